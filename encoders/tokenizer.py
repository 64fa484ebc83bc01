"""What all tokenizers share: checked input, the vocabulary, special tokens, offsets, words."""

import difflib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.unicode_tables import SPECIALS

LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def as_text_tensor(texts: object, name: str = "texts") -> tf.Tensor:
    """Turns what a caller calls text into a checked string tensor.

    A lone surrogate, which UTF-8 cannot hold, becomes U+FFFD; NUL is a character like any other.
    Tensors inside a graph are taken as they are; there a malformed byte reads as U+FFFD.

    Args:
        texts: a string, or a list, tuple, NumPy array, pandas column or string tensor of strings;
            `bytes` are read as UTF-8.
        name: what to call the argument in errors.

    Returns:
        tf.string tensor, () for a single string and (B,) otherwise; `[]` gives (0,).

    Raises:
        ValueError: "texts[1] is None (NoneType); expected a string ..."

    Example:
        >>> as_text_tensor(["naïve", "b"]).shape
        TensorShape([2])
    """
    if isinstance(texts, tf.Tensor):
        return _checked_tensor(texts, name)
    if isinstance(texts, str | bytes):
        return tf.constant(_checked_text(texts, name), tf.string)
    if not isinstance(texts, list | tuple) and not hasattr(texts, "__array__"):
        raise ValueError(
            f"{name} is {_shown(texts)}; expected a string or a list, NumPy array, pandas column "
            "or tensor of strings"
        )
    rows = texts if isinstance(texts, list | tuple) else np.asarray(texts, dtype=object).tolist()
    if isinstance(rows, str | bytes):  # an array of rank 0
        return tf.constant(_checked_text(rows, name), tf.string)
    checked = [_checked_text(row, f"{name}[{i}]") for i, row in enumerate(rows)]
    return tf.constant(checked, tf.string, shape=(len(checked),))


def _checked_text(text: object, name: str) -> bytes:
    """A text as UTF-8, or an error that names it."""
    if isinstance(text, str):
        try:
            return text.encode("utf-8")
        except UnicodeEncodeError:
            return LONE_SURROGATE.sub("\ufffd", text).encode("utf-8")
    if isinstance(text, bytes):
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name} is not UTF-8 at byte {error.start}: {text[error.start :][:8]!r}; decode "
                "it with its own encoding first"
            ) from None
        return text
    raise ValueError(
        f"{name} is {_shown(text)}; expected a string"
        + (", not texts nested one deeper" if isinstance(text, list | tuple | np.ndarray) else "")
    )


def _checked_tensor(texts: tf.Tensor, name: str) -> tf.Tensor:
    """A string tensor of rank 0 or 1; its bytes are looked at where they are known by now."""
    if texts.dtype != tf.string or (texts.shape.rank or 0) > 1:
        raise ValueError(
            f"{name} is a tensor of {texts.dtype.name} with shape {texts.shape}; expected strings "
            "of rank 0 or 1"
        )
    if not tf.is_symbolic_tensor(texts):
        repaired = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
        for row in np.flatnonzero(np.atleast_1d(tf.not_equal(texts, repaired).numpy())):
            _checked_text(np.atleast_1d(texts.numpy())[row], f"{name}[{row}]")
    return texts


def _shown(value: object) -> str:
    """A value and its type, short enough for an error."""
    text = repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(value).__name__})"


class Vocabulary:
    """Tokens and their ids, both ways. Of a token written twice the later id counts.

    Example:
        >>> Vocabulary(["[UNK]", "cat"]).id("cat")
        1
    """

    def __init__(self, tokens: Sequence[str]):
        self.tokens = list(tokens)
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def id(self, token: str) -> int:
        """The token's id, or an error that names tokens like it."""
        if token in self.ids:
            return self.ids[token]
        near = difflib.get_close_matches(str(token), self.ids, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"{token!r} is not among the {len(self.ids)} tokens{hint}")

    def token(self, token_id: int) -> str:
        """The token of an id, or an error that gives the range of ids."""
        if not 0 <= token_id < len(self.tokens):
            raise ValueError(f"token id {token_id} is outside 0..{len(self.tokens) - 1}")
        return self.tokens[token_id]


class Characters(NamedTuple):
    """The characters of a batch of texts in one row, and where each came from.

    Attributes:
        codes: int32 (N,), code points.
        starts, ends: int32 (N,), the span of the original characters, counted over the batch.
        row_splits: int32 (B + 1,), where each text starts in `codes`.
        original_splits: int32 (B + 1,), where each text starts among the original characters.
    """

    codes: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    row_splits: tf.Tensor
    original_splits: tf.Tensor

    def take(self, indices: tf.Tensor) -> "Characters":
        """These characters only; the rows are cut where they were."""
        parts = [tf.gather(part, indices) for part in self[:3]]
        splits = tf.searchsorted(indices, self.row_splits)
        return Characters(*parts, splits, self.original_splits)

    def row_starts(self) -> tf.Tensor:
        """Boolean (N,): the first character of each text."""
        first = self.row_splits[:-1, None]
        num = tf.size(self.codes)
        return tf.scatter_nd(first, tf.ones_like(first[:, 0]), [num + 1])[:num] > 0


def characters(texts: tf.Tensor) -> Characters:
    """Code points of texts (B,)."""
    joined = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)

    def from_ascii() -> tuple[tf.Tensor, tf.Tensor]:
        ends = tf.cumsum(tf.strings.length(texts))
        return tf.cast(joined, tf.int32), tf.concat([[0], ends], 0)

    def from_utf8() -> tuple[tf.Tensor, tf.Tensor]:
        decoded = tf.strings.unicode_decode(texts, "UTF-8")  # decoding costs 20 times a cast
        return decoded.values, tf.cast(decoded.row_splits, tf.int32)

    codes, splits = tf.cond(tf.reduce_all(joined < 128), from_ascii, from_utf8)
    positions = tf.range(tf.size(codes))
    return Characters(codes, positions, positions + 1, splits, splits)


class Tokens(NamedTuple):
    """Tokens of a batch, in order: int32 (T,) each.

    Attributes:
        ids: token ids.
        starts, ends: spans of the original characters, counted over the batch.
    """

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    row_splits: tf.Tensor


class Tokenizer(tf.Module):
    """Text to token ids, with the place of every token in the text, and back.

    A subclass gives `_tokens(characters)`, `detokenize` and `get_config`.
    """

    def __init__(self, tokens: Sequence[str], special_tokens: Sequence[str], in_text: bool):
        super().__init__()
        self._vocabulary = Vocabulary(tokens)
        self.special_tokens_in_text = in_text
        special_ids = [self._vocabulary.id(token) for token in special_tokens]
        (
            self.start_token_id,
            self.end_token_id,
            self.pad_token_id,
            self.mask_token_id,
            self.unknown_token_id,
        ) = special_ids
        self._special_tokens = "\n".join(special_tokens)

    @property
    def special_token_ids(self) -> tuple[int, ...]:
        """Ids that stand for no text: start, end, padding, mask and unknown."""
        ids = (self.start_token_id, self.end_token_id, self.pad_token_id)
        return (*ids, self.mask_token_id, self.unknown_token_id)

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        return len(self._vocabulary.tokens)

    def get_vocabulary(self) -> list[str]:
        """All tokens, in the order of their ids."""
        return list(self._vocabulary.tokens)

    def token_to_id(self, token: str) -> int:
        """The id of a token."""
        return self._vocabulary.id(token)

    def id_to_token(self, token_id: int) -> str:
        """The token of an id."""
        return self._vocabulary.token(int(token_id))

    def tokenize(self, texts: object) -> tf.RaggedTensor:
        """Token ids of texts, without any special token added."""
        texts = as_text_tensor(texts)
        ids, _, _ = self._ragged(tf.reshape(texts, [-1]))
        return ids[0] if texts.shape.rank == 0 else ids

    def tokenize_with_offsets(
        self, texts: object
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Token ids, and the span of each token in the caller's own text."""
        texts = as_text_tensor(texts)
        parts = self._ragged(tf.reshape(texts, [-1]))
        return tuple(part[0] for part in parts) if texts.shape.rank == 0 else parts

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def _ragged(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        with tf.device("CPU"):  # integer work on strings: a GPU would only wait for copies
            chars = self._characters(texts)
            tokens = self._tokens(chars)
            splits = tf.cast(tokens.row_splits, tf.int64)
            ids = tf.RaggedTensor.from_row_splits(tokens.ids, splits, validate=False)
            row_start = tf.gather(chars.original_splits, tf.cast(ids.value_rowids(), tf.int32))
            return (
                ids,
                # a space put before a text begins at -1
                ids.with_values(tf.maximum(tokens.starts - row_start, 0)),
                ids.with_values(tf.maximum(tokens.ends - row_start, 0)),
            )

    def _characters(self, texts: tf.Tensor) -> Characters:
        return characters(texts)

    def tokenize_words(self, words: object) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Token ids of texts that are split into words already, and the word of every token.

        Args:
            words: lists of strings, one list per text, or a RaggedTensor of strings (B, None).

        Returns:
            ids and word numbers: RaggedTensors int32 (B, None). A word without any token, such as
            an empty one, has no place among them.
        """
        if not isinstance(words, tf.RaggedTensor):
            flat = [as_text_tensor(row, f"words[{i}]") for i, row in enumerate(words)]
            lengths = [len(row) for row in words]
            values = tf.concat(flat, 0) if flat else tf.constant([], tf.string)
            words = tf.RaggedTensor.from_row_lengths(values, tf.constant(lengths, tf.int64))
        return self._ragged_words(words)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.string)])
    def _ragged_words(self, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        with tf.device("CPU"):
            ids, _, _ = self._ragged(words.values)  # (words, None)
            per_text = words.with_values(ids)
            within = tf.range(tf.size(words.values)) - tf.gather(
                tf.cast(words.row_splits, tf.int32), tf.cast(words.value_rowids(), tf.int32)
            )
            merged = per_text.merge_dims(1, 2)
            return merged, merged.with_values(tf.gather(within, ids.value_rowids()))

    def _joined(self, ids: object, spelling: tf.Tensor, skip_special_tokens: bool) -> tf.Tensor:
        """Strings (B,) of the tokens' spellings, one after the other."""
        single = isinstance(ids, tf.Tensor | np.ndarray) and ids.ndim == 1
        single = single or isinstance(ids, list | tuple) and all(np.ndim(i) == 0 for i in ids)
        rows = ids if isinstance(ids, tf.Tensor | tf.RaggedTensor) else tf.ragged.constant(ids)
        rows = tf.cast(tf.RaggedTensor.from_tensor(rows[None]) if single else rows, tf.int32)
        if not isinstance(rows, tf.RaggedTensor):
            rows = tf.RaggedTensor.from_tensor(rows)
        if skip_special_tokens:
            special = tf.reduce_any(rows.values[:, None] == self.special_token_ids, 1)
            rows = tf.ragged.boolean_mask(rows, rows.with_values(~special))
        texts = tf.strings.reduce_join(rows.with_values(tf.gather(spelling, rows.values)), axis=1)
        return texts[0] if single else texts

    def _shared_config(self) -> dict:
        names = ("start_token", "end_token", "pad_token", "mask_token", "unknown_token")
        tokens = dict(zip(names, self._special_tokens.split("\n"), strict=True))
        return {"special_tokens_in_text": self.special_tokens_in_text, **tokens}

    @classmethod
    def from_config(cls, config: dict) -> "Tokenizer":
        """Builds a tokenizer from `get_config`."""
        return cls(**config)
