"""The base class of the tokenizers: input, special and added tokens, offsets, words."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np
import tensorflow as tf

from encoder_zoo.common.foreign_method import ForeignMethod
from encoder_zoo.common.forks import refuse_in_fork
from encoder_zoo.common.lazy import loading
from encoder_zoo.common.preset_arguments import TokenizerPresetArguments
from encoder_zoo.common.validation import NonNegativeInt, validate_arguments
from encoder_zoo.common.wording import with_type
from encoder_zoo.encoders.tokenizers.arguments import TokenizerArguments
from encoder_zoo.encoders.tokenizers.segmentation.added_tokens import make_finder, tokenize_around
from encoder_zoo.encoders.tokenizers.segmentation.special_tokens import SpecialTokenFinder
from encoder_zoo.encoders.tokenizers.segmentation.tokens import Tokens
from encoder_zoo.encoders.tokenizers.text.characters import Characters, characters
from encoder_zoo.encoders.tokenizers.text.chunks import in_chunks
from encoder_zoo.encoders.tokenizers.text.ragged import row_ids
from encoder_zoo.encoders.tokenizers.text.text_input import as_text_tensor, truncate_texts

if TYPE_CHECKING:
    from typing import Self


class Tokenizer(TokenizerArguments, tf.Module):
    """Converts texts to token ids with character offsets, and ids to texts.

    It works on eager strings, inside `tf.function` and `tf.data`, and in a SavedModel, with
    TensorFlow's core operations only. A subclass implements `_tokenize(characters)`; its `__init__`
    stores each argument under its own name, sets `_spelling`, a string tensor (V,) with the text
    of each id, and calls `_index_added_tokens` at the end.

    Args:
        vocabulary: tokens in the order of their ids.
        special_tokens_in_text: read a literal special token in a text, such as "[SEP]" or "</s>",
            as that token. By default it is ordinary text, so that a text cannot forge structure.
        start_token, end_token, pad_token, mask_token, unknown_token: tokens of the vocabulary.
        uses_segments: whether the second text of a pair has segment id 1.
        pair_separators: number of end tokens between the two texts of a pair.
        added_tokens: tokens to find in texts before the model splits them, see
            `files.added_tokens.complete_added_tokens`.

    Attributes:
        defaults: {argument: default} of the class, where they differ.
        start_token_id, end_token_id, pad_token_id, mask_token_id, unknown_token_id: int.
        special_tokens: the start, end, padding, mask and unknown token.

    Raises:
        ValueError: "'[CLS]' is not among the 3 tokens ..."
        TypeError: "BertTokenizer got an unknown argument 'lower_case'. Did you mean 'lowercase'?"
    """

    if not TYPE_CHECKING:  # so that editors do not offer it
        from_pretrained = ForeignMethod("from_preset(source)")

    lstrip_mask: bool  # whether a mask in a text takes in the white space before it

    def __init__(self, *args, **options):
        refuse_in_fork()
        super().__init__(*args, **{**self.defaults, **options})
        self._special_finder = None
        if self.special_tokens_in_text:
            lstrip = self.mask_token if self.lstrip_mask else None
            self._special_finder = SpecialTokenFinder(self.special_tokens, lstrip)
        texts = tf.TensorSpec([None], tf.string)
        self._ragged_ids = graph_of_method(self._ids_of_texts, [texts])
        self._ragged = graph_of_method(self._tokens_of_texts, [texts])
        self._ragged_words = graph_of_method(
            self._ids_of_words, [tf.RaggedTensorSpec([None, None], tf.string)]
        )
        self._spelled = graph_of_method(self._texts_of_ids)

    def _index_added_tokens(self) -> None:
        """Build the finders of added tokens, which need the subclass's normalizer."""
        raw = [token for token in self.added_tokens if not token["normalized"]]
        normalized = [token for token in self.added_tokens if token["normalized"]]
        options = self._span_options()
        contents = [[ord(c) for c in token["content"]] for token in raw]
        self._raw_finder = make_finder(raw, contents, **options)
        self._normalized_finder = None
        if normalized:
            chars = self._normalize(characters(tf.constant([t["content"] for t in normalized])))
            contents = tf.RaggedTensor.from_row_splits(self._code_points(chars), chars.row_splits)
            self._normalized_finder = make_finder(normalized, contents.to_list(), **options)

    def _span_options(self) -> dict[str, bool]:
        """Return arguments of `AddedTokenFinder` for its spans."""
        return {}

    def __call__(self, texts: object) -> tf.RaggedTensor:
        """Call `tokenize`."""
        return self.tokenize(texts)

    @validate_arguments
    def tokenize(self, texts: object, first: NonNegativeInt | None = None) -> tf.RaggedTensor:
        """Convert texts to token ids, without adding special tokens.

        Args:
            texts: a string, or a list, array, pandas column or tensor (B,) of strings.
            first: number of tokens needed of each text; later ones may be left out, which saves
                time on long texts. None for all tokens.

        Returns:
            RaggedTensor int32 (B, None); for a single string a tensor (length,).

        Raises:
            ValueError: "texts[1] is None (NoneType); expected a string ..."
        """
        texts = as_text_tensor(texts)
        whole = first is None or not self._words_are_independent

        def function(rows: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
            return (self._ragged_ids(rows if whole else truncate_texts(rows, first)),)

        [ids] = in_chunks(function, tf.reshape(texts, [-1]))
        return ids[0] if texts.shape.rank == 0 else ids

    def tokenize_with_offsets(
        self, texts: object
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Convert texts to token ids and character offsets.

        Args:
            texts: as for `tokenize`.

        Returns:
            ids, starts, ends: three results like that of `tokenize`. A token is
            `text[start:end]`: offsets count characters of the original text, as Python does. A
            token of one byte of a character has the span of the character.
        """
        texts = as_text_tensor(texts)
        parts = in_chunks(self._ragged, tf.reshape(texts, [-1]))
        return tuple(part[0] for part in parts) if texts.shape.rank == 0 else parts

    @property
    def _words_are_independent(self) -> bool:
        """Whether words can be tokenized apart: special and added tokens may span several."""
        return not (self.special_tokens_in_text or self.added_tokens)

    def _ids_of_texts(self, texts: tf.Tensor) -> tf.RaggedTensor:
        with tf.device("CPU"):
            return self._ids(texts, as_words=False)

    def _ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        """Return the ids of `_encode`; overridden by tokenizers with a faster path to them."""
        return self._encode(texts, as_words)[0]

    def _tokens_of_texts(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        return self._encode(texts, as_words=False)

    def _encode(self, texts: tf.Tensor, as_words: bool) -> tuple[tf.RaggedTensor, ...]:
        """Return ids, starts and ends of texts (B,), or of words that each follow a space."""
        with tf.device("CPU"):  # a GPU would only add copies
            chars = self._characters(texts)
            tokens = self._trim_spans(self._with_added(chars, as_words))
            splits = tf.cast(tokens.row_splits, tf.int64)
            ids = tf.RaggedTensor.from_row_splits(tokens.ids, splits, validate=False)
            row = row_ids(tokens.row_splits, tf.size(tokens.ids))
            row_start = tf.gather(chars.original_splits, row)
            return (
                ids,
                ids.with_values(tokens.starts - row_start),
                ids.with_values(tokens.ends - row_start),
            )

    def _characters(self, texts: tf.Tensor) -> Characters:
        chars = characters(texts)
        return self._special_finder(chars) if self.special_tokens_in_text else chars

    def _with_added(self, chars: Characters, as_words: bool) -> Tokens:
        """Find the added tokens, and tokenize the parts around them."""

        def tokenize(parts: Characters) -> Tokens:
            return self._tokenize(self._add_prefix_space(parts, as_words))

        def normalize_and_tokenize(parts: Characters) -> Tokens:
            parts = self._normalize(parts)
            return tokenize_around(self._normalized_finder, tokenize)(
                parts, self._code_points(parts)
            )

        return tokenize_around(self._raw_finder, normalize_and_tokenize)(chars)

    def _normalize(self, chars: Characters) -> Characters:
        """Apply the normalizer."""
        return chars

    def _code_points(self, chars: Characters) -> tf.Tensor:
        """Return the code points, int32 (N,), of normalized characters."""
        return chars.codes

    def _add_prefix_space(self, chars: Characters, as_words: bool) -> Characters:
        """Insert the space before the first word that the pre-tokenizer adds, if any."""
        return chars

    def _tokenize(self, chars: Characters) -> Tokens:
        """Split normalized texts into the tokens of the model."""
        raise NotImplementedError

    def _trim_spans(self, tokens: Tokens) -> Tokens:
        """Trim the spans of the tokens, as the post-processor does."""
        return tokens

    def tokenize_words(self, words: object) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Convert texts that are split into words to token ids, and the word index of each token.

        Args:
            words: lists of strings, one list per text, or a RaggedTensor of strings (B, None).

        Returns:
            ids and word indices: RaggedTensors int32 (B, None). A word without a token, such as an
            empty one, is not among them.

        Raises:
            ValueError: "words[0] is 'ab' (str); expected a list of words"
        """
        if not isinstance(words, tf.RaggedTensor):
            for i, row in enumerate(words):
                if isinstance(row, str | bytes) or np.ndim(row) == 0:
                    raise ValueError(f"words[{i}] is {with_type(row)}; expected a list of words")
            flat = [as_text_tensor(row, f"words[{i}]") for i, row in enumerate(words)]
            lengths = [len(row) for row in words]
            values = tf.concat(flat, 0) if flat else tf.constant([], tf.string)
            words = tf.RaggedTensor.from_row_lengths(values, tf.constant(lengths, tf.int64))
        return in_chunks(self._ragged_words, words)

    def _ids_of_words(self, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        with tf.device("CPU"):
            ids = self._ids(words.values, as_words=True)  # (words, None)
            per_text = words.with_values(ids)
            within = tf.range(tf.size(words.values)) - tf.gather(
                tf.cast(words.row_splits, tf.int32), tf.cast(words.value_rowids(), tf.int32)
            )
            merged = per_text.merge_dims(1, 2)
            return merged, merged.with_values(tf.gather(within, ids.value_rowids()))

    def ends_word(self, token: str) -> bool:
        """Return whether a token ends its word, whatever follows."""
        return False

    @validate_arguments
    def detokenize(self, ids: object, skip_special_tokens: bool = True) -> tf.Tensor:
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
            single = isinstance(ids, tf.Tensor | np.ndarray) and ids.ndim == 1
        rows = ids if isinstance(ids, tf.Tensor | tf.RaggedTensor) else tf.ragged.constant(ids)
        rows = tf.cast(tf.RaggedTensor.from_tensor(rows[None]) if single else rows, tf.int32)
        if not isinstance(rows, tf.RaggedTensor):
            rows = tf.RaggedTensor.from_tensor(rows)
        texts = self._clean_up(self._spelled(rows, self._spelling, skip_special_tokens))
        return texts[0] if single else texts

    def _clean_up(self, texts: tf.Tensor) -> tf.Tensor:
        """Remove the white space that joining the tokens (B,) leaves."""
        return texts

    def _texts_of_ids(
        self, rows: tf.RaggedTensor, spelling: tf.Tensor, skip_special_tokens: bool
    ) -> tf.Tensor:
        if skip_special_tokens:
            special = tf.reduce_any(rows.values[:, None] == self.special_token_ids, 1)
            rows = tf.ragged.boolean_mask(rows, rows.with_values(~special))
        return tf.strings.reduce_join(rows.with_values(tf.gather(spelling, rows.values)), axis=1)

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


def _call(method: weakref.WeakMethod, *args):
    return method()(*args)


def graph_of_method(method: Callable, signature: Sequence[tf.TypeSpec] | None = None) -> Callable:
    """Compile a method to a `tf.function` of its own object.

    A partial function avoids TensorFlow's warning of repeated tracing, which counts the methods of
    all objects of a class as one function. The graph holds a weak reference to the object, so that
    the object's tables are freed with it.
    """
    partial = functools.partial(_call, weakref.WeakMethod(method))
    return tf.function(
        partial, input_signature=signature, autograph=False, reduce_retracing=signature is None
    )
