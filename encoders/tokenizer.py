"""What all tokenizers share: checked input, the vocabulary, special tokens, offsets, words."""

import difflib
import inspect
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.characters import Characters, SpecialTokenFinder, characters

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


def note(pieces: tf.Tensor, starts: tf.Tensor, ids: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Enters tokens (T,) into pieces (N, 2) at their starts, as id + 1 and end; but no id of -1.

    Example:
        >>> pieces = note(tf.zeros([3, 2], tf.int32), [1], tf.constant([7]), tf.constant([3]))
        >>> pieces.numpy().tolist()
        [[0, 0], [8, 3], [0, 0]]
    """
    real = tf.where(ids >= 0)[:, 0]
    entries = tf.gather(tf.stack([ids + 1, ends], 1), real)
    return tf.tensor_scatter_nd_update(pieces, tf.gather(starts, real)[:, None], entries)


def collect(pieces: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Ids, starts and ends (T,) of the tokens entered by `note`, in the order of the text."""
    starts = tf.cast(tf.where(pieces[:, 0] > 0)[:, 0], tf.int32)
    ids, ends = tf.unstack(tf.gather(pieces, starts), num=2, axis=1)
    return ids - 1, starts, ends


class Tokenizer(tf.Module):
    """Text to token ids, with the place of every token in the text, and back.

    A subclass gives `_tokens(characters)`, `detokenize` and `get_config`.
    """

    mask_takes_space_before: bool  # "a [MASK]": does the mask swallow the space?

    def __init__(self, tokens: Sequence[str], special_tokens: Sequence[str], in_text: bool):
        super().__init__()
        self._vocabulary = Vocabulary(tokens)
        self.special_tokens_in_text = in_text
        self.start_token, self.end_token, self.pad_token = special_tokens[:3]
        self.mask_token, self.unknown_token = special_tokens[3:]
        self.start_token_id, self.end_token_id, self.pad_token_id = map(
            self._vocabulary.id, special_tokens[:3]
        )
        self.mask_token_id, self.unknown_token_id = map(self._vocabulary.id, special_tokens[3:])
        takes_space = self.mask_token if self.mask_takes_space_before else None
        self._find_special = SpecialTokenFinder(special_tokens, takes_space) if in_text else None

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

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def _ragged(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        return self._encode(texts, as_words=False)

    def _encode(self, texts: tf.Tensor, as_words: bool) -> tuple[tf.RaggedTensor, ...]:
        """Ids, starts and ends of texts (B,), or of words that each follow a space."""
        with tf.device("CPU"):  # integer work on strings: a GPU would only wait for copies
            chars = self._characters(texts, as_words)
            tokens = self._tokens(chars)
            splits = tf.cast(tokens.row_splits, tf.int64)
            ids = tf.RaggedTensor.from_row_splits(tokens.ids, splits, validate=False)
            row_start = tf.gather(chars.original_splits, tf.cast(ids.value_rowids(), tf.int32))
            return (
                ids,
                ids.with_values(tokens.starts - row_start),
                ids.with_values(tokens.ends - row_start),
            )

    def _characters(self, texts: tf.Tensor, as_words: bool) -> Characters:
        chars = characters(texts)
        return self._find_special(chars) if self.special_tokens_in_text else chars

    def tokenize_words(self, words: object) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Token ids of texts that are split into words already, and the word of every token.

        Args:
            words: lists of strings, one list per text, or a RaggedTensor of strings (B, None).

        Returns:
            ids and word numbers: RaggedTensors int32 (B, None). A word without any token, such as
            an empty one, has no place among them.

        Raises:
            ValueError: "words[0] is 'ab' (str); expected a list of words"
        """
        if not isinstance(words, tf.RaggedTensor):
            for i, row in enumerate(words):
                if isinstance(row, str | bytes) or np.ndim(row) == 0:
                    raise ValueError(f"words[{i}] is {_shown(row)}; expected a list of words")
            flat = [as_text_tensor(row, f"words[{i}]") for i, row in enumerate(words)]
            lengths = [len(row) for row in words]
            values = tf.concat(flat, 0) if flat else tf.constant([], tf.string)
            words = tf.RaggedTensor.from_row_lengths(values, tf.constant(lengths, tf.int64))
        return self._ragged_words(words)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.string)], autograph=False)
    def _ragged_words(self, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        with tf.device("CPU"):
            ids, _, _ = self._encode(words.values, as_words=True)  # (words, None)
            per_text = words.with_values(ids)
            within = tf.range(tf.size(words.values)) - tf.gather(
                tf.cast(words.row_splits, tf.int32), tf.cast(words.value_rowids(), tf.int32)
            )
            merged = per_text.merge_dims(1, 2)
            return merged, merged.with_values(tf.gather(within, ids.value_rowids()))

    def _joined(self, ids: object, spelling: tf.Tensor, skip_special_tokens: bool) -> tf.Tensor:
        """Strings (B,) of the tokens' spellings, one after the other."""
        if isinstance(ids, list | tuple):
            single = all(np.ndim(token_id) == 0 for token_id in ids)
        else:
            single = isinstance(ids, tf.Tensor | np.ndarray) and ids.ndim == 1
        rows = ids if isinstance(ids, tf.Tensor | tf.RaggedTensor) else tf.ragged.constant(ids)
        rows = tf.cast(tf.RaggedTensor.from_tensor(rows[None]) if single else rows, tf.int32)
        if not isinstance(rows, tf.RaggedTensor):
            rows = tf.RaggedTensor.from_tensor(rows)
        texts = self._spelled(rows, spelling, skip_special_tokens)
        return texts[0] if single else texts

    @tf.function(reduce_retracing=True, autograph=False)
    def _spelled(
        self, rows: tf.RaggedTensor, spelling: tf.Tensor, skip_special_tokens: bool
    ) -> tf.Tensor:
        if skip_special_tokens:
            special = tf.reduce_any(rows.values[:, None] == self.special_token_ids, 1)
            rows = tf.ragged.boolean_mask(rows, rows.with_values(~special))
        return tf.strings.reduce_join(rows.with_values(tf.gather(spelling, rows.values)), axis=1)

    def get_config(self) -> dict:
        """The arguments that build this tokenizer again; they can be written as JSON."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: dict) -> "Tokenizer":
        """Builds a tokenizer from `get_config`."""
        return cls(**config)
