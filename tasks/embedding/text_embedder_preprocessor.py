"""Texts to examples for embeddings, each text by itself.

Comment letters: B batch, N examples, K further texts of each, L sequence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from encoder_zoo.common.escaping import check_writable
from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import SequenceLength, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.tokenizers.file_tokenizer import FileTokenizer, texts_in_memory
from encoder_zoo.presets.formats.embedding_folder import EmbeddingFolder
from encoder_zoo.tasks.embedding.pair_columns import COLUMNS, SeparateTexts
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed
from encoder_zoo.tasks.preprocessing.preprocessor import count_truncated
from encoder_zoo.tasks.preprocessing.windows import make_windows, take

if TYPE_CHECKING:
    from encoder_zoo.tasks.retrieval.documents import Contexts

# The names that models give to the prompt of a document, which mean the same; the default first.
DOCUMENT_NAMES = ("document", "passage", "corpus")
# Names that mean no prompt where a model has none, as do the others of `DOCUMENT_NAMES`.
ROLES = ("query", "document")


def checked_prompts(prompts: Mapping[str, str] | None, default_prompt: str | None) -> dict:
    """Return the prompts by name.

    Raises:
        ValueError: If a prompt is not a text, or if `default_prompt` is not among `prompts`.
    """
    if not isinstance(prompts, Mapping | None):
        raise invalid("prompts", prompts, "a dict of names and texts")
    prompts = dict(prompts or {})
    for name, text in prompts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise invalid(f"prompts[{name!r}]", text, "names and texts")
        check_writable(name, "A name of prompts")
        check_writable(text, f"prompts[{name!r}]")
    if default_prompt is not None and default_prompt not in prompts:
        raise invalid(
            "default_prompt",
            default_prompt,
            f"one of {', '.join(prompts)}" if prompts else "None: there are no prompts",
        )
    return prompts


def prompt_text(prompts: Mapping[str, str], prompt: str | None, default: str | None) -> str:
    """Return the text that is put before every text.

    Args:
        prompts: {name: text} of the model.
        prompt: a name; "query" or "document", which mean no prompt where the model has none;
            "passage" or "corpus", which are "document" where no prompt has that name, and the other
            way round; a text that is no word, such as "query: "; or None for the default.
        default: name of the model's default prompt, or None for no prompt.

    Raises:
        ValueError: If `prompt` is not a text, or looks like a name and is unknown.

    Example:
        >>> prompts = {"query": "query: ", "passage": "passage: "}
        >>> [prompt_text(prompts, p, None) for p in ("query", "document", "search: ", None)]
        ['query: ', 'passage: ', 'search: ', '']
    """
    name = default if prompt is None else prompt
    if name is None:
        return ""
    if not isinstance(name, str):
        raise invalid("prompt", name, "its name, or its text")
    check_writable(name, "prompt")
    for known in (name, *(DOCUMENT_NAMES if name in DOCUMENT_NAMES else ())):
        if known in prompts:
            return prompts[known]
    if name in (*ROLES, *DOCUMENT_NAMES) or not name:
        return ""
    if re.fullmatch(r"\w+", name):
        names = ", ".join(dict.fromkeys([*prompts, *ROLES]))
        raise invalid("prompt", name, f"{names}, or the text itself, such as 'query: '")
    return name


class Part(NamedTuple):
    """The tokens of a chunk in a window of its text.

    Attributes:
        window: its number.
        chunk: its number.
        first: its first token there.
        last: the one after its last.
    """

    window: int
    chunk: int
    first: int
    last: int


@serializable
class TextEmbedderPreprocessor(SeparateTexts):
    """Texts to `[CLS] text [SEP]`; of pairs, triplets and so on each text is an input of its own.

    Args:
        tokenizer: any of this package's.
        sequence_length: see `Preprocessor`.
        max_length: longer texts are truncated to so many tokens, special ones counted;
            None is the model's longest. Unlike `sequence_length` it does not pad.
        prompts: {name: text to put before a text}.
        default_prompt: name of the prompt where none is asked for; None for no prompt.
        include_prompt: whether the prompt's tokens are pooled.

    Returns:
        As of `Preprocessor`; of inputs with several texts the first is "token_ids" (B, L), and the
        others are "candidate_token_ids" (B, K, L). Without scores the labels are numbers
        (B, 1 + K) that are equal where texts are equal.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "you"]
        >>> preprocessor = TextEmbedderPreprocessor(BertTokenizer(tokens))
        >>> x, y = preprocessor((["hello"], ["hello you"]))
        >>> x["token_ids"].numpy().tolist(), x["candidate_token_ids"].numpy().tolist()
        ([[2, 5, 3]], [[[2, 5, 6, 3]]])
        >>> y.numpy().tolist()
        [[0, 1]]
    """

    task_name = "text_embedder"
    folder = EmbeddingFolder()
    values_per_text = ("pooled_from",)  # with `include_prompt=False`: tokens that are not pooled
    truncation_advice = 'embed(texts, windows="mean") reads all of a text.'

    @validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: SequenceLength | None = None,
        max_length: SequenceLength | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt: str | None = None,
        include_prompt: bool = True,
    ):
        super().__init__(tokenizer, sequence_length)
        self.max_length = max_length
        self.max_sequence_length = sequence_length or max_length or self.max_sequence_length
        self.prompts = checked_prompts(prompts, default_prompt)
        self.default_prompt = default_prompt
        self.include_prompt = include_prompt

    @property
    def document_room(self) -> int:
        """Return how many tokens of a document are read, behind its prompt."""
        [prompt] = self.tokenizer.tokenize([self.prompt_text("document")]).row_lengths()
        return self.max_sequence_length - 2 - int(prompt)

    def prompt_text(self, prompt: str | None) -> str:
        """Return the text of a prompt, by its name; see `TextEmbedder.embed`."""
        return prompt_text(self.prompts, prompt, self.default_prompt)

    def encoded_texts(self, texts: array_ops.Tensor, prompt: str | None) -> dict:
        if isinstance(self.tokenizer, FileTokenizer):
            if array_ops.is_symbolic_tensor(texts):
                ids = self._tokens(texts, prompt, self.max_sequence_length)
                empty = array_ops.cast(ids.row_lengths() == 0, "int64")
                none = array_ops.fill([array_ops.reduce_sum(empty)], self.tokenizer.vocabulary_size)
                none = array_ops.RaggedTensor.from_row_lengths(none, empty)
                return {"token_ids": array_ops.concat([ids, none], 1)}
            ids, lengths = self.ids_of(texts, prompt)
            starts, empty = np.cumsum(lengths) - lengths, lengths == 0
            ids = np.insert(ids, starts[empty], self.tokenizer.vocabulary_size)
            ids, lengths = array_ops.constant(ids, "int32"), np.maximum(lengths, 1)
            return {"token_ids": array_ops.RaggedTensor.from_row_lengths(ids, lengths)}
        # One more than is read, to count the texts that are cut.
        tokens = self._tokens(texts, prompt, self.max_sequence_length - 1)
        examples = {"token_ids": self.pack([tokens])["token_ids"]}
        if not self.include_prompt:
            count = self._prompt_length(prompt)
            examples["pooled_from"] = array_ops.fill([array_ops.shape(texts)[0]], count)
        return examples

    @validate_arguments
    def ids_of(
        self, texts: array_ops.Tensor, prompt: str | None, whole: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all tokens of texts (N,), and how many each has, of a `FileTokenizer`.

        There are no special tokens.

        Args:
            texts: (N,) in memory.
            prompt: as for `encode`.
            whole: whether to read all of a text that has more tokens than are read.
        """
        before, given = self.prompt_text(prompt), texts_in_memory(texts)
        given, most = [before + text for text in given], self.max_sequence_length
        ids, lengths, longer = self.tokenizer.ids_of(given, None if whole else most)
        count_truncated(longer, self, f"texts are longer than {most} tokens; the rest is not read.")
        return ids, lengths

    def _tokens(
        self, texts: array_ops.Tensor, prompt: str | None, first: int | None
    ) -> array_ops.RaggedTensor:
        text = self.prompt_text(prompt)
        return self.tokenizer.tokenize(
            array_ops.strings.join([text, texts]) if text else texts, first
        )

    def _prompt_length(self, prompt: str | None) -> int:
        """Return the number of tokens before those that are pooled: of prompt and [CLS]."""
        text = self.prompt_text(prompt)
        return len(self.tokenizer.tokenize(text)) + self.tokenizer.first_column if text else 0

    def encode_windows(self, texts, prompt: str | None = None) -> dict:
        """Return examples of single texts, a long one cut into several of equal length or shorter.

        Args:
            texts: (N,), as for `encode`.
            prompt: before the text, so at the beginning of the first window alone.

        Returns:
            As of `encode`, for all windows, and "text_index" (W,) int64, the text of each.
        """
        [texts] = COLUMNS.read(texts)
        tokens = self._tokens(texts, prompt, None)
        windows = make_windows(tokens.row_lengths(), self.max_sequence_length - 2, 0)
        examples = {"token_ids": self.pack([take(tokens, windows)])["token_ids"]}
        if not self.include_prompt:
            first = windows.begin == 0
            examples["pooled_from"] = array_ops.where(first, self._prompt_length(prompt), 0)
        return {**examples, "text_index": windows.example}

    def encode_contexts(self, contexts: Contexts, prompt: str | None) -> tuple[dict, list[Part]]:
        """Return examples of whole texts, and where the tokens of their chunks are in these.

        Of a text that is longer than the model reads, neighbouring windows share a quarter of
        their tokens, each of which counts in the window where it is further from the edge. The
        prompt stands before every window; its tokens and the special ones belong to no chunk.

        Args:
            contexts: of N chunks.
            prompt: as for `encode`.
        """
        before = self.prompt_text(prompt)
        given = [before + text for text in contexts.texts]
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(given)
        splits = np.asarray(ids.row_splits)[1:-1]
        columns = [np.asarray(ids.flat_values)]
        columns += [np.asarray(part.flat_values) - len(before) for part in (starts, ends)]
        tokens = list(zip(*(np.split(column, splits) for column in columns), strict=True))
        prompts = [int((ends <= 0).sum()) for _, _, ends in tokens]
        lengths = np.array([len(ids) for ids, *_ in tokens]) - prompts
        room = np.maximum(self.max_sequence_length - 2 - np.array(prompts), 1)
        windows = make_windows(array_ops.constant(lengths, "int64"), room, room // 4)
        chunks = np.searchsorted(contexts.index, np.arange(len(given) + 1))
        rows, parts = [], []
        for window in zip(*map(np.asarray, windows), strict=True):
            i, begin, length, owned_from, owned_to = (int(value) for value in window)
            (all_ids, begins, stops), prefix = tokens[i], prompts[i]
            rows.append(np.r_[all_ids[:prefix], all_ids[prefix + begin : prefix + begin + length]])
            for chunk in range(chunks[i], chunks[i + 1]):
                start, end = contexts.spans[chunk]
                first = np.searchsorted(stops[prefix:], start, "right")
                last = np.searchsorted(begins[prefix:], end, "left")
                first = max(first - begin, owned_from)
                last = min(last - begin, owned_to)
                if first < last:
                    shift = self.tokenizer.first_column + prefix
                    parts.append(Part(len(rows) - 1, chunk, shift + first, shift + last))
        ids = array_ops.RaggedTensor.from_row_splits(
            array_ops.constant(np.concatenate(rows), "int32"),
            array_ops.constant(np.cumsum([0, *map(len, rows)]), "int64"),
        )
        return {"token_ids": self.pack([ids])["token_ids"]}, parts

    @validate_arguments
    def pad(self, examples: dict, bucketed: Bucketed = False) -> dict[str, array_ops.Tensor]:
        """Return the model's inputs (B, L) of the first texts."""
        # All tokens are in segment 0.
        first_length = {
            "first_length": array_ops.fill([array_ops.shape(examples["token_ids"])[0]], 2**30)
        }
        inputs = super().pad({**examples, **first_length}, bucketed)
        if "pooled_from" in examples:
            columns = array_ops.range(array_ops.shape(inputs["token_ids"])[1])
            pooled = columns >= examples["pooled_from"][:, None]
            inputs["pooling_mask"] = inputs["padding_mask"] & pooled
        return inputs
