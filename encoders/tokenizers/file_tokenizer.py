"""Tokenizer without special tokens, for tokenizer.json files with arbitrary steps.

Comments use these letters for shapes: N texts.
"""

from __future__ import annotations

import functools
import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.reading import convert_read_errors
from encoder_zoo.common.serializable import serializable
from encoder_zoo.encoders.tokenizers.files.special_tokens import Template
from encoder_zoo.encoders.tokenizers.library import decode_texts, encode, parse_steps, tokenizers
from encoder_zoo.encoders.tokenizers.steps import SEQUENCES, Model, Steps, flatten_steps

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph


@serializable
class FileTokenizer(ConfigFromSignature):
    """Tokenizes texts with the `tokenizers` library, without special tokens.

    All files that can be loaded by the library are supported. Datasets and exports require a
    TensorFlow implementation for each step.

    Args:
        tokenizer_json: String. The content of tokenizer.json.
        keeps_unknown: Boolean. Whether to keep tokens for unknown words. Defaults to True.

    Attributes:
        tokenizer_json: String. The content of tokenizer.json.
        keeps_unknown: Boolean. Whether to keep tokens for unknown words.
        unknown_id: Integer. The id for unknown words, or None if this is not defined by the model.

    Raises:
        ValueError: If the library cannot read the file, or if a step in a dataset or export is not
            supported by TensorFlow operations.

    Example:
        >>> model = {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1, "cat": 2}}
        >>> file = {"version": "1.0", "model": {**model, "unk_token": "<unk>"}, "added_tokens": []}
        >>> file["pre_tokenizer"] = {"type": "Whitespace"}
        >>> tokenizer = FileTokenizer(json.dumps(file), keeps_unknown=False)
        >>> tokenizer.tokenize(np.array([b"a black cat"])).to_list()
        [[1, 2]]
    """

    # Attributes required by preprocessors.
    uses_segments = False
    model_max_length = None
    first_column = 0
    template = Template((), (), (), (), uses_segments=False)
    truncation_side = "right"
    pad_token_id = 0
    mask_token = ""
    added_tokens = special_tokens = ()

    def __init__(self, tokenizer_json: str, keeps_unknown: bool = True):
        self.tokenizer_json = tokenizer_json
        self.keeps_unknown = keeps_unknown
        with convert_read_errors("tokenizer.json"):
            contents = parse_steps(tokenizer_json)
            contents |= {"truncation": None, "padding": None}
            self._library = tokenizers.Tokenizer.from_str(json.dumps(contents))
            model = contents["model"]
            unknown = model.get("unk_id")
            if unknown is None and model.get("unk_token") is not None:
                unknown = self._library.token_to_id(model["unk_token"])
        self.unknown_id = unknown

    def __copy__(self) -> FileTokenizer:
        return self

    def __deepcopy__(self, memo: dict) -> FileTokenizer:
        return self

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        return self._library.get_vocab_size()

    def get_vocabulary(self) -> list[str]:
        """Return all tokens, sorted by id."""
        tokens = sorted(self._library.get_vocab().items(), key=lambda item: item[1])
        return [token for token, _ in tokens]

    def to_files(self) -> dict[str, str]:
        """Return a dict that maps file names to content, to be stored in a preset."""
        return {"tokenizer.json": self.tokenizer_json}

    def compute_ids(self, texts: list[str], first: int | None = None) -> tuple[np.ndarray, ...]:
        """Return token ids, the number of tokens per text, and whether texts were truncated.

        Args:
            texts: List of N strings.
            first: Optional integer. The maximum number of tokens per text. Unknown tokens are only
                removed after truncation. By default, all tokens are returned.

        Returns:
            Tuple with int32 ids (T,), int64 counts (N,), and booleans (N,) that are True if a text
            was truncated.
        """
        found = encode(self._library, texts)
        rows = [encoding.ids for encoding in found]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        longer = np.zeros(len(rows), bool) if first is None else lengths > first
        if longer.any():
            rows, lengths = [row[:first] for row in rows], np.minimum(lengths, first)
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
        if self.keeps_unknown or self.unknown_id is None:
            return ids, lengths, longer
        known = ids != self.unknown_id
        of_texts = np.repeat(np.arange(len(rows)), lengths)
        return ids[known], np.bincount(of_texts[known], minlength=len(rows)), longer

    def tokenize(self, texts: Any, first: int | None = None) -> Any:
        """Convert texts to token ids.

        Args:
            texts: Strings of shape (N,), in memory or as a symbolic tensor.
            first: Optional integer. The maximum number of tokens per text. Unknown tokens are only
                removed after truncation. By default, all tokens are returned.

        Returns:
            Integer RaggedTensor of shape (N, None).
        """
        if xp.is_symbolic_tensor(texts):
            ids = self.graph.texts_to_ids(texts)[:, :first]
            if self.keeps_unknown or self.unknown_id is None:
                return ids
            return xp.ragged.boolean_mask(ids, ids != self.unknown_id)
        ids, lengths, _ = self.compute_ids(list_texts(texts), first)
        return xp.RaggedTensor.from_row_lengths(xp.constant(ids), lengths)

    @functools.cached_property
    def graph(self) -> TokenizerGraph:
        """TensorFlow graph to execute the steps. It is built on first use."""
        from encoder_zoo.encoders.tokenizers.graphs.graph import make_graph

        file = json.loads(self._library.to_str())  # contains all fields
        steps = Steps(
            *(flatten_steps(file[part], part) for part in SEQUENCES),
            unknown_id=self.unknown_id or 0,
            added_tokens=file["added_tokens"],
        )
        return make_graph(steps, Model(file["model"]))

    def tokenize_with_offsets(self, texts: Any) -> tuple:
        """Return token ids, starts and ends as RaggedTensors of shape (N, None)."""
        found = encode(self._library, list_texts(texts), with_offsets=True)
        left_out = None if self.keeps_unknown else self.unknown_id
        rows = [
            [(i, *o) for i, o in zip(e.ids, e.offsets, strict=True) if i != left_out] for e in found
        ]
        flat = np.array(list(itertools.chain.from_iterable(rows)), np.int32).reshape(-1, 3)
        lengths = [len(row) for row in rows]
        return tuple(
            xp.RaggedTensor.from_row_lengths(xp.constant(column), lengths)
            for column in np.ascontiguousarray(flat.T)
        )


def list_texts(texts: Any) -> list[str]:
    """Convert texts (N,) to a list of strings."""
    return texts if isinstance(texts, list) else decode_texts(texts)
