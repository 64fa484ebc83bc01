"""Tokenizer models, implemented with TensorFlow core operations.

Comments use these letters for shapes: S symbols, W words, T tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet, map_alphabet_to_bytes
from encoder_zoo.encoders.tokenizers.graphs.patterns import join_words
from encoder_zoo.encoders.tokenizers.graphs.wordpiece import make_word_piece
from encoder_zoo.encoders.tokenizers.graphs.words import Words
from encoder_zoo.encoders.tokenizers.segmentation.bpe import BPE
from encoder_zoo.encoders.tokenizers.segmentation.tokens import (
    Tokens,
    WordTokens,
    are_single_tokens,
)
from encoder_zoo.encoders.tokenizers.segmentation.unigram import Trie, Unigram
from encoder_zoo.encoders.tokenizers.segmentation.word_table import MAX_SYMBOLS, WordTable
from encoder_zoo.encoders.tokenizers.steps import (
    BYTE_TOKENS,
    get_model_settings,
    make_unsupported_error,
)
from encoder_zoo.encoders.tokenizers.text import ragged
from encoder_zoo.encoders.tokenizers.text.characters import CodePointTable, encode_utf8
from encoder_zoo.encoders.tokenizers.text.packed_words import (
    HashTable,
    PackedWords,
    number_characters,
)

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Model, Steps


def map_token_ids(model: Mapping) -> dict[str, int]:
    """Return {token: id} for a model in tokenizer.json."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        return vocabulary
    return {token: i for i, (token, _) in enumerate(vocabulary)}


def fuses_unknown(model: Mapping) -> bool:
    """Return whether consecutive unknown characters are fused into a single token."""
    if model["type"] == "BPE":
        # With byte fallback, each byte has the same span as its character.
        return bool(model.get("fuse_unk")) and not model.get("byte_fallback")
    return model["type"] == "Unigram"


def make_bpe(
    model: Mapping, texts: Mapping[str, int], numbers: np.ndarray, suffix: str, unknown_id: int
) -> BPE:
    """Create a BPE model.

    If the model has a suffix for the last character in a word, each character has a second symbol
    for this position. The second symbols are numbered after all other symbols.

    Args:
        model: Dict with a model from tokenizer.json.
        texts: Dict mapping tokens to ids, with one character per symbol.
        numbers: Integer array of shape (code points,). The symbol for each character.
        suffix: String. The suffix for the last character in a word, or "".
        unknown_id: Integer. The id for symbols without a token.
    """
    num = int(numbers.max()) + 1
    symbol_ids = np.full(2 * num, unknown_id)
    for first, end in ((0, ""), (num, suffix)):
        for token, token_id in texts.items():
            if len(token) == 1 + len(end) and token.endswith(end):
                symbol_ids[first + numbers[ord(token[0])]] = token_id
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return BPE(symbol_ids, merges, model["vocab"])


def decode_byte_tokens(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Convert byte-level tokens to strings with one character (0 to 255) for each byte.

    All other tokens are removed.

    Example:
        >>> decode_byte_tokens({"Ġa": 1, "▁": 2})
        {' a': 1}
    """
    byte_of = map_alphabet_to_bytes()
    return {
        bytes(map(byte_of.get, token)).decode("latin-1"): i
        for token, i in vocabulary.items()
        if all(c in byte_of for c in token)
    }


def replace_unknown_tokens(
    of_bytes: tf.Tensor,
    unknown_id: int,
    codes: tf.Tensor,
    ids: tf.Tensor,
    begins: tf.Tensor,
    ends: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Replace unknown tokens with byte tokens, which have the same span as the unknown token.

    Args:
        of_bytes: Integer tensor of shape (256,). The token id for each byte.
        unknown_id: Integer. The id for unknown tokens.
        codes: Integer tensor of shape (S,). The code points for all symbols.
        ids, begins, ends: Integer tensors of shape (T,). The token ids and symbol spans.

    Returns:
        Tuple (ids, begins, ends, splits). `splits` has shape (T + 1,) and contains the index of the
        first new token for each original token, followed by the number of new tokens.
    """
    unknown = ids == unknown_id
    indices, token, _ = ragged.expand_spans(
        tf.boolean_mask(begins, unknown), tf.boolean_mask(ends, unknown)
    )
    symbols, splits, _ = encode_utf8(tf.gather(codes, indices))
    num_bytes = tf.math.segment_sum(splits[1:] - splits[:-1], token)
    lengths = tf.tensor_scatter_nd_update(tf.ones_like(ids), tf.where(unknown), num_bytes)
    splits = tf.concat([[0], tf.cumsum(lengths)], 0)
    owner = ragged.compute_row_ids(splits, splits[-1])
    is_byte = tf.where(tf.gather(unknown, owner))
    ids = tf.tensor_scatter_nd_update(tf.gather(ids, owner), is_byte, tf.gather(of_bytes, symbols))
    return ids, tf.gather(begins, owner), tf.gather(ends, owner), splits


class SubwordModel(tf.Module):
    """Splits words into tokens, with characters or bytes as symbols.

    Args:
        model: `Model` to use.
        unknown_id: Integer. The id for unknown tokens.
        is_byte_level: Boolean. Whether the symbols are bytes.
    """

    def __init__(self, model: Model, unknown_id: int, is_byte_level: bool):
        super().__init__()
        settings, vocabulary = model.settings, map_token_ids(model.settings)
        self._unknown_id, self._fuses = unknown_id, fuses_unknown(settings)
        self._is_byte_level, self._ids, self._long = is_byte_level, None, None
        self._bytes = None
        if settings.get("byte_fallback"):
            self._bytes = tf.constant([vocabulary[token] for token in BYTE_TOKENS])
        self._first_last = 0  # first symbol for the last character in a word
        if settings["type"] == "WordPiece":
            tables = make_word_piece(vocabulary, unknown_id)
            numbers, self._model, self._word_table = tables
        else:
            texts = decode_byte_tokens(vocabulary) if is_byte_level else vocabulary
            suffix = settings.get("end_of_word_suffix") or ""
            found = {t.removesuffix(suffix): i for t, i in texts.items() if t.endswith(suffix)}
            found.pop("", None)
            words, ids = PackedWords.from_texts(list(found)), np.array(list(found.values()), int)
            numbers = number_characters(PackedWords.from_texts(list(texts)))
            words = words._replace(symbols=numbers[words.symbols])
            if model.ids:
                self._ids = tf.constant(model.ids, tf.int32)
                unknown_id = vocabulary[settings["unk_token"]]
            if settings["type"] == "BPE":
                self._model = make_bpe(settings, texts, numbers, suffix, unknown_id)
            else:
                scores = [score for _, score in settings["vocab"]]
                self._model = Unigram(words, ids, scores, unknown_id)
            if suffix:
                self._first_last = int(numbers.max()) + 1
            ids = np.array(model.ids)[ids] if model.ids else ids
            self._word_table = self._make_word_table(words, ids, settings.get("ignore_merges"))
        self._numbers = CodePointTable(numbers)

    def _make_word_table(
        self, words: PackedWords, ids: np.ndarray, ignore_merges: bool | None
    ) -> WordTable:
        """Create the table for words with a single token.

        With `ignore_merges`, this includes all tokens. Long tokens that do not result from merges
        are stored in a trie, as the table only contains short words.
        """
        is_short = words.lengths <= MAX_SYMBOLS
        checked = ~is_short if ignore_merges else is_short
        is_single = np.ones(len(ids), bool)
        is_single[checked] = are_single_tokens(self._split, words.select(checked), ids[checked])
        if ignore_merges and not is_single.all():
            self._long = Trie(
                np.ones(len(ids))[~is_single], words.select(~is_single), ids[~is_single]
            )
        return WordTable(words.select(is_single), ids[is_single])

    def _split(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordTokens:
        """Tokenize words, given as start and end indices (W,) in `symbols` (S,)."""
        if self._first_last:
            is_last = tf.cast(ragged.make_index_mask(ends - 1, tf.size(symbols)), tf.int32)
            symbols += self._first_last * is_last
        tokens = self._model.encode(symbols, starts, ends)
        if self._ids is not None:
            tokens = tokens._replace(ids=tf.gather(self._ids, tokens.ids))
        if self._long is not None:
            tokens = tokens.replace_words(self._find_long_tokens(symbols, starts, ends))
        return tokens.fuse(self._unknown_id) if self._fuses else tokens

    def _find_long_tokens(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> tf.Tensor:
        """Return an id (W,) for each word that is a long token, and -1 for other words."""

        def symbol_at(words: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
            position = tf.gather(starts, words) + offset
            symbol = tf.gather(symbols, tf.minimum(position, tf.size(symbols) - 1))
            return tf.where(position < tf.gather(ends, words), symbol, 0)

        ids, lengths = self._long.find_longest_matches(tf.ones_like(starts, tf.int64), symbol_at)
        return tf.where(lengths == ends - starts, ids, -1)

    def __call__(self, words: Words) -> Tokens:
        """Tokenize words."""
        chars, starts = words.chars, words.starts
        before_rows = tf.searchsorted(starts, chars.row_splits)
        symbols, owners = chars.codes, None
        if self._is_byte_level:
            symbols, splits, owners = encode_utf8(chars.codes)
            starts = tf.gather(splits, starts)
        numbers = self._numbers(symbols)
        ids, begins, ends, splits = self._word_table.look_up_tokens(
            numbers,
            starts,
            ragged.shift_left(starts, 1, tf.size(numbers)),
            functools.partial(self._split, numbers),
        )
        rows = tf.gather(splits, before_rows)
        if self._bytes is not None:
            ids, begins, ends, splits = replace_unknown_tokens(
                self._bytes, self._unknown_id, chars.codes, ids, begins, ends
            )
            rows = tf.gather(splits, rows)
        lasts = ends - 1
        if owners is not None:
            begins, lasts = tf.gather(owners, begins), tf.gather(owners, lasts)
        return Tokens(ids, tf.gather(chars.starts, begins), tf.gather(chars.ends, lasts), rows)


class WordLevel(tf.Module):
    """Looks up words in a vocabulary.

    Args:
        model: `Model` to use.
        unknown_id: Integer. The id for unknown tokens.
    """

    def __init__(self, model: Model, unknown_id: int):
        super().__init__()
        ids = model.settings["vocab"]
        self._table = HashTable([*ids], np.array([*ids.values()], np.int32), unknown_id)

    def __call__(self, words: Words) -> Tokens:
        """Tokenize words."""
        chars, starts = words.chars, words.starts
        last = ragged.shift_left(starts, 1, tf.size(chars.codes)) - 1
        return Tokens(
            self._table.lookup(join_words(chars, words.begins)),
            tf.gather(chars.starts, starts),
            tf.gather(chars.ends, last),
            tf.searchsorted(starts, chars.row_splits),
        )


def make_model(model: Model, unknown_id: int, is_byte_level: bool) -> SubwordModel | WordLevel:
    """Create the model to split words into tokens. See `SubwordModel` for the arguments."""
    if model.settings["type"] == "WordLevel":
        return WordLevel(model, unknown_id)
    return SubwordModel(model, unknown_id, is_byte_level)


_BPE = {"dropout": None, "continuing_subword_prefix": None}
_CHARACTER_BPE = {**_BPE, "ignore_merges": False}
_BYTE_BPE = {**_BPE, "byte_fallback": False, "fuse_unk": False, "end_of_word_suffix": None}
_WORDPIECE = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}


def check_model(steps: Steps, model: Model) -> None:
    """Raise a ValueError if a model setting is not supported."""
    kind, tokens = model.settings["type"], map_token_ids(model.settings).keys()
    settings = get_model_settings(model.settings, kind)
    is_byte_level = "ByteLevel" in steps.list_types("pre_tokenizer")
    needs_unknown = True
    if kind == "BPE":
        needs_unknown = not (is_byte_level and set(make_byte_alphabet()) <= tokens)
        expected, unknown = _BYTE_BPE if is_byte_level else _CHARACTER_BPE, "unk_token"
        if settings["end_of_word_suffix"]:  # the library also converts the suffix to bytes
            expected = {**expected, "byte_fallback": False}
    elif kind == "Unigram" and not is_byte_level:
        expected, unknown = {}, "unk_id"
    elif kind in ("WordPiece", "WordLevel") and not is_byte_level:
        expected, unknown = _WORDPIECE if kind == "WordPiece" else {}, "unk_token"
    else:
        raise make_unsupported_error("model", [{"type": kind}])
    for name, value in expected.items():
        if settings.get(name, value) != value:
            raise make_unsupported_error("model", [{name: settings[name]}])
    if settings.get("byte_fallback") and not set(BYTE_TOKENS) <= tokens:
        unsupported = {"byte_fallback": True, "vocab": "incomplete bytes"}
        raise make_unsupported_error("model", [unsupported])
    if needs_unknown and settings.get(unknown, model.settings.get(unknown)) is None:
        raise make_unsupported_error("model", [{unknown: None}])
