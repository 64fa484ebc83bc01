"""The base class of the tokenizers: input, special and added tokens, offsets, words."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import numpy as np

from encoder_zoo.common.arguments import TokenizerPresetArguments
from encoder_zoo.common.lazy import array_ops, for_graphs, in_tensorflow, loading, refuse_in_fork
from encoder_zoo.common.validation import NonNegativeInt, validate_arguments
from encoder_zoo.common.wording import ForeignMethod, with_type
from encoder_zoo.encoders.tokenizers.arguments import TokenizerArguments
from encoder_zoo.encoders.tokenizers.text.ragged import in_chunks
from encoder_zoo.encoders.tokenizers.text.text_input import as_text_tensor, truncate_texts

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
    from encoder_zoo.encoders.tokenizers.library import LibraryTokenizer


LIBRARY_BYTES = 2**20  # a graph is faster than the library, but tracing it takes a second


class Tokenizer(TokenizerArguments):
    """Converts texts to token ids with character offsets, and ids to texts.

    Inside `tf.function`, `tf.data` and a SavedModel, and for large inputs on TensorFlow, a graph of
    core operations does the work; elsewhere the library `tokenizers` does, with the same ids and
    offsets.
    A subclass stores each argument of its `__init__` under its own name, and implements
    `_make_graph`, `_steps`, which the library reads, and `spelling`.

    Args:
        vocabulary: tokens in the order of their ids.
        special_tokens_in_text: read a literal special token in a text, such as "[SEP]" or "</s>",
            as that token. By default it is ordinary text, so that a text cannot forge structure.
        start_token, end_token, pad_token, mask_token, unknown_token: tokens of the vocabulary.
        uses_segments: whether the second text of a pair has segment id 1.
        pair_separators: number of end tokens between the two texts of a pair.
        truncation_side: the side from which tokens are removed of texts that are too long.
        padding_side: the side on which transformers pads, where questions are asked: with "left"
            `SpanQA` puts the context before the question. Batches are padded at the end whatever
            it is, since no token attends to padding.
        model_max_length: the most tokens of an example, special ones counted, where a task or a
            preprocessor is not given a length; None for the most that the backbone takes.
        added_tokens: tokens to find in texts before the model splits them, see
            `files.added_tokens.complete_added_tokens`.

    Attributes:
        defaults: {argument: default} of the class, where they differ.
        first_column: position in an example of a text's first token: 1, behind the start token; 0
            where the start token is the example's last one, of a segment of its own.
        start_token_id, end_token_id, pad_token_id, mask_token_id, unknown_token_id: int.
        special_tokens: the start, end, padding, mask and unknown token.

    Raises:
        ValueError: "'[CLS]' is not among the 3 tokens ..."
        TypeError: "BertTokenizer got an unknown argument 'lower_case'. Did you mean 'lowercase'?"
    """

    if not TYPE_CHECKING:  # so that editors do not offer it
        from_pretrained = ForeignMethod("from_preset(source)")

    first_column = 1
    lstrip_mask: bool  # whether a mask in a text takes in the white space before it

    def __init__(self, *args, **options):
        super().__init__(*args, **{**self.defaults, **options})
        self._engines, self._lock = {}, threading.RLock()

    @property
    def graph(self) -> TokenizerGraph:
        """The graph of the rules in TensorFlow, made when it is first used."""
        return self._engine("graph", self._make_graph_once)

    @property
    def library(self) -> LibraryTokenizer:
        """The same rules for the library `tokenizers`, made when they are first used."""
        return self._engine("library", self._make_library)

    def _engine(self, name: str, make: Callable):
        with self._lock:
            if name not in self._engines:
                self._engines[name] = make()
            return self._engines[name]

    def _make_graph_once(self) -> TokenizerGraph:
        refuse_in_fork()
        from tensorflow import init_scope

        with init_scope(), for_graphs():  # its tables belong to no graph of the user
            return self._make_graph()

    def _make_graph(self) -> TokenizerGraph:
        """Build the tables and graphs."""
        raise NotImplementedError

    def _make_library(self) -> LibraryTokenizer:
        from encoder_zoo.encoders.tokenizers.library import LibraryTokenizer

        return LibraryTokenizer(self)

    def spelling(self) -> list[str] | list[bytes]:
        """Return the text of each id."""
        raise NotImplementedError

    def __call__(self, texts: object) -> array_ops.RaggedTensor:
        """Call `tokenize`."""
        return self.tokenize(texts)

    @validate_arguments
    def tokenize(
        self, texts: object, first: NonNegativeInt | None = None
    ) -> array_ops.RaggedTensor:
        """Convert texts to token ids, without adding special tokens.

        Args:
            texts: a string, or a list, array, pandas column or tensor (B,) of strings.
            first: number of tokens needed of each text, from the side that `truncation_side`
                keeps; others may be left out, which saves time on long texts. None for all tokens.

        Returns:
            RaggedTensor int32 (B, None); for a single string a tensor (length,).

        Raises:
            ValueError: "texts[1] is None (NoneType); expected a string ..."
        """
        texts = as_text_tensor(texts)
        rows = array_ops.reshape(texts, [-1])
        if self._runs_in_graph(rows):
            whole = first is None or self.truncation_side == "left"
            whole = whole or not self.graph.words_are_independent

            def function(rows: array_ops.Tensor) -> tuple[array_ops.RaggedTensor, ...]:
                return (self.graph.ids_of_texts(rows if whole else truncate_texts(rows, first)),)

            [ids] = in_chunks(function, rows)
        else:
            ids = self.library.ids_of_texts(rows)
        return ids if len(texts.shape) else ids[0]

    def tokenize_with_offsets(
        self, texts: object
    ) -> tuple[array_ops.RaggedTensor, array_ops.RaggedTensor, array_ops.RaggedTensor]:
        """Convert texts to token ids and character offsets.

        Args:
            texts: as for `tokenize`.

        Returns:
            ids, starts, ends: three results like that of `tokenize`. A token is
            `text[start:end]`: offsets count characters of the original text, as Python does. A
            token of one byte of a character has the span of the character.
        """
        texts = as_text_tensor(texts)
        rows = array_ops.reshape(texts, [-1])
        if self._runs_in_graph(rows):
            parts = in_chunks(self.graph.tokens_of_texts, rows)
        else:
            parts = self.library.tokens_of_texts(rows)
        return parts if len(texts.shape) else tuple(part[0] for part in parts)

    def _runs_in_graph(self, texts: array_ops.Tensor) -> bool:
        """Return whether the graph tokenizes texts (B,), not the library."""
        if not in_tensorflow():
            return False
        if array_ops.is_symbolic_tensor(texts) or not self.library_is_equal:
            return True
        return int(array_ops.reduce_sum(array_ops.strings.length(texts))) > LIBRARY_BYTES

    @property
    def library_is_equal(self) -> bool:
        """Return whether the library gives the graph's ids and offsets for all texts."""
        return True

    @property
    def words_are_independent(self) -> bool:
        """Whether words can be tokenized apart: special and added tokens may span several."""
        return not (self.special_tokens_in_text or self.added_tokens)

    def tokenize_words(
        self, words: object
    ) -> tuple[array_ops.RaggedTensor, array_ops.RaggedTensor]:
        """Convert texts that are split into words to token ids, and the word index of each token.

        Args:
            words: lists of strings, one list per text, or a RaggedTensor of strings (B, None).

        Returns:
            ids and word indices: RaggedTensors int32 (B, None). A word without a token, such as an
            empty one, is not among them.

        Raises:
            ValueError: "words[0] is 'ab' (str); expected a list of words"
        """
        if not isinstance(words, array_ops.RaggedTensor):
            for i, row in enumerate(words):
                if isinstance(row, str | bytes) or np.ndim(row) == 0:
                    raise ValueError(f"words[{i}] is {with_type(row)}; expected a list of words")
            flat = [as_text_tensor(row, f"words[{i}]") for i, row in enumerate(words)]
            lengths = [len(row) for row in words]
            values = array_ops.concat(flat, 0) if flat else array_ops.constant([], array_ops.string)
            words = array_ops.RaggedTensor.from_row_lengths(
                values, array_ops.constant(lengths, array_ops.int64)
            )
        if self._runs_in_graph(words.values):
            return in_chunks(self.graph.ids_of_words, words)
        return self.library.ids_of_words(words)

    def ends_word(self, token: str) -> bool:
        """Return whether a token ends its word, whatever follows."""
        return False

    @validate_arguments
    def detokenize(self, ids: object, skip_special_tokens: bool = True) -> array_ops.Tensor:
        """Convert token ids to texts; see the class for how much of the original they keep.

        Args:
            ids: integers (B, L), ragged or padded, or those of one text (L,).
            skip_special_tokens: leave out padding, start and end tokens and the like.

        Returns:
            tf.string tensor (B,); () for one text.

        Example:
            >>> import encoder_zoo as ez
            >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##do", "it"]
            >>> ez.BertTokenizer(tokens).detokenize([2, 5, 6, 7, 3]).numpy()
            b'undo it'
        """
        if isinstance(ids, list | tuple):
            single = all(np.ndim(token_id) == 0 for token_id in ids)
        else:
            single = hasattr(ids, "ndim") and ids.ndim == 1
        if single:
            ids = [ids] if isinstance(ids, list | tuple) else ids[None]
        engine = self.graph if in_tensorflow() else self.library
        texts = self._clean_up(engine.texts_of_ids(as_rows(ids), skip_special_tokens))
        return texts[0] if single else texts

    def _clean_up(self, texts: array_ops.Tensor) -> array_ops.Tensor:
        """Remove the white space that joining the tokens (B,) leaves."""
        return texts

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **options: Unpack[TokenizerPresetArguments]
    ) -> Self:
        """Load the tokenizer of a preset, of the class that its files describe.

        A folder of tokenizer files is enough; weights are neither needed nor downloaded.

        Args:
            source: a bundled or registered name, a folder, or an address.
            **options: `added_tokens`, to add to those of the preset; and how much to check, see
                `presets.opening.Safeguards`.

        Raises:
            ValueError: "SOURCE holds a RobertaTokenizer. Received: BertTokenizer.from_preset."

        Example:
            >>> import encoder_zoo as ez
            >>> tokenizer = ez.BertTokenizer.from_preset("bert_nano_en_uncased")
            >>> tokenizer.id_to_token(tokenizer.start_token_id)
            '[CLS]'
        """
        return loading.load_tokenizer(cls, source, **options)


def as_rows(ids: object) -> array_ops.RaggedTensor:
    """Return ids (B, L), ragged or padded, as ragged int32."""
    if isinstance(ids, list | tuple):
        rows = [np.asarray(row, np.int32).reshape(-1) for row in ids]
        values = np.concatenate([np.zeros(0, np.int32), *rows])
        return array_ops.RaggedTensor.from_row_lengths(values, [len(row) for row in rows])
    if hasattr(ids, "row_splits"):
        return array_ops.cast(
            array_ops.convert_to_tensor(ids) if not array_ops.is_tensor(ids) else ids,
            array_ops.int32,
        )
    return array_ops.RaggedTensor.from_tensor(
        array_ops.cast(array_ops.convert_to_tensor(ids), array_ops.int32)
    )
