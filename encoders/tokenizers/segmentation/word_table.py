"""A table of words, looked up by their symbols."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import members
from encoder_zoo.encoders.tokenizers.text.packed_words import MAX_SYMBOL, HashTable, PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import replace_by_spans

SYMBOLS_PER_KEY = 4  # 16 bits each
KEYS = 3
MAX_SYMBOLS = SYMBOLS_PER_KEY * KEYS  # symbols of a word in the table


class WordTable(tf.Module):
    """Maps words of up to twelve symbols to ids.

    Four symbols of 16 bits are an int64 key, and three keys are a word. Longer words, and all
    others that are not in the table, take the caller's slow path.

    Args:
        words: with symbols from 1 to `MAX_SYMBOL`.
        ids: (W,).

    Example:
        >>> table = WordTable(PackedWords.from_symbols([[7, 8], [9]]), [40, 41])
        >>> symbols = tf.constant([7, 8, 0, 9, 7])
        >>> table.look_up(word_keys(symbols, tf.constant([0, 3]), tf.constant([2, 5])))
        <tf.Tensor: shape=(2,), dtype=int32, numpy=array([40, -1], dtype=int32)>
    """

    def __init__(self, words: PackedWords, ids: Sequence[int]):
        super().__init__()
        is_short = words.lengths <= MAX_SYMBOLS
        words, ids = words.where(is_short), np.asarray(ids, np.int32)[is_short]
        padded = np.zeros([len(ids), MAX_SYMBOLS], np.uint16)
        padded[np.arange(MAX_SYMBOLS) < words.lengths[:, None]] = words.symbols
        keys = padded.reshape(-1, MAX_SYMBOLS).view(np.int64)  # (words, KEYS)
        prints, rows = np.unique((keys * FACTORS).sum(1), return_index=True)
        keys = np.concatenate([keys, np.zeros([1, KEYS], np.int64)])  # the last row is no word
        self._keys = [tf.constant(column) for column in keys.T]
        self._ids = tf.constant([*ids, -1], tf.int32)
        self._rows = HashTable(prints, rows, default_value=len(ids))

    def look_up(self, keys: list[tf.Tensor]) -> tf.Tensor:
        """Return ids, int32 (W,), of words given by their `KEYS` keys (W,); -1 for others."""
        row = self._rows.lookup(fingerprints(keys))
        same = all_equal([tf.gather(column, row) for column in self._keys], keys)
        return tf.where(same, tf.gather(self._ids, row), -1)

    def tokens(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, slow: Callable
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the tokens of words; words not in the table take the slow path.

        Args:
            symbols: int32 (S,).
            starts, ends: int32 (W,), of the words in the symbols.
            slow: returns the `WordTokens` of words that are not in the table, given their starts
                and ends, without duplicates.

        Returns:
            ids, starts and ends (T,) of the tokens in order, and splits (W + 1,) of the words.
        """
        keys = word_keys(symbols, starts, ends)
        ids = self.look_up(keys)
        missed = tf.cast(tf.where(ids < 0)[:, 0], tf.int32)
        chosen, alike = distinct([tf.gather(key, missed) for key in keys])
        chosen = tf.gather(missed, chosen)
        others = slow(tf.gather(starts, chosen), tf.gather(ends, chosen))
        positions, word, splits = replace_by_spans(tf.size(ids), missed, alike, others.splits)
        ids = tf.gather(tf.concat([ids, others.ids], 0), positions)
        within = tf.gather(tf.concat([tf.zeros_like(starts), others.starts], 0), positions)
        begins = tf.gather(starts, word) + within
        next_begins = tf.concat([begins[1:], ends[-1:]], 0)
        return ids, begins, tf.minimum(next_begins, tf.gather(ends, word)), splits


FACTORS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, KEYS) | 1
# Masks of the keys for each length of a word; 0 for words that are too long.
MASKS = np.where(np.arange(MAX_SYMBOLS) < np.arange(MAX_SYMBOLS + 2)[:, None], MAX_SYMBOL, 0)
MASKS[-1] = 0
MASKS = MASKS.astype(np.uint16).view(np.int64).T  # (KEYS, MAX_SYMBOLS + 2)


def fingerprints(keys: list[tf.Tensor]) -> tf.Tensor:
    """Return hashes (W,) of keys."""
    return tf.add_n([key * factor for key, factor in zip(keys, FACTORS.tolist(), strict=True)])


def all_equal(keys: list[tf.Tensor], others: list[tf.Tensor]) -> tf.Tensor:
    """Return a mask (W,) of the words whose keys are all equal."""
    return functools.reduce(operator.and_, map(tf.equal, keys, others))


def word_keys(symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> list[tf.Tensor]:
    """Return the `KEYS` keys (W,) of the words at starts (W,) ... ends (W,) of the symbols (S,).

    The keys of words of more than `MAX_SYMBOLS` symbols are 0.
    """
    step = SYMBOLS_PER_KEY
    narrow = tf.pad(tf.cast(symbols, tf.uint16), [[0, MAX_SYMBOLS + step]])
    num = tf.size(symbols) // step + KEYS  # of windows that start at 0, 4, 8, ...; or at 1, 5, 9
    windows = tf.concat([narrow[shift : shift + step * num] for shift in range(step)], 0)
    windows = tf.bitcast(tf.reshape(windows, [-1, step]), tf.int64)
    first = starts % step * num + starts // step
    lengths = tf.minimum(ends - starts, MAX_SYMBOLS + 1)
    return [
        tf.bitwise.bitwise_and(tf.gather(windows, first + i), tf.gather(MASKS[i], lengths))
        for i in range(KEYS)
    ]


def distinct(keys: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Remove duplicate words, given by their keys (W,); words that are too long are all kept.

    Returns:
        the indices of distinct words (D,), and for every word the index (W,) among these.

    Example:
        >>> keys = [tf.constant(key, tf.int64) for key in ([7, 8, 7, 0, 0], [0] * 5, [0] * 5)]
        >>> [part.numpy().tolist() for part in distinct(keys)]
        [[0, 1, 3, 4], [0, 1, 0, 2, 3]]
    """
    unique, group = tf.unique(fingerprints(keys))
    index = tf.range(tf.size(group))
    first = tf.gather(tf.math.unsorted_segment_min(index, group, tf.size(unique)), group)
    same = all_equal([tf.gather(key, first) for key in keys], keys) & (keys[0] != 0)
    first = tf.where(same, first, index)
    chosen = first == index
    number = tf.cumsum(tf.cast(chosen, tf.int32)) - 1
    return tf.cast(tf.where(chosen)[:, 0], tf.int32), tf.gather(number, first)


ALONE_IN_ASCII = r"([!-/:-@\[-`{-~])"  # each is a word of its own
# Removed before the split, since TensorFlow splits at two of them.
DROPPED_IN_ASCII = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"


class WholeWordLookup(tf.Module):
    """Maps texts to ids by a table of whole words where possible.

    TensorFlow's string kernels split texts at ASCII spaces and punctuation. Normalization and
    pre-tokenization never cross these borders, so that a part found in the table needs neither;
    other parts take the caller's slow path.

    Args:
        words: {word: id} of the words that normalization does not change and that are one token.
        lowercase: whether texts are lower-cased first.
        clean_text: whether control characters are removed first.

    Example:
        >>> words = WholeWordLookup({"cats": 7, "!": 8}, lowercase=True)
        >>> slow = lambda parts: tf.RaggedTensor.from_row_lengths([1, 2], [2])
        >>> words.ids(tf.constant(["Cats!!", "cats, cats"]), slow).to_list()
        [[7, 8, 8], [7, 1, 2, 7]]
    """

    def __init__(self, words: Mapping[str, int], lowercase: bool, clean_text: bool = True):
        super().__init__()
        self._clean_text = clean_text
        self._lowercase = lowercase
        # TensorFlow refuses an empty table; a space is never looked up.
        keys, ids = tf.constant([" ", *words]), tf.constant([-1, *words.values()], tf.int32)
        self._table = HashTable(keys, ids, default_value=-1)

    def ids(
        self, texts: tf.Tensor, slow: Callable[[tf.Tensor], tf.RaggedTensor]
    ) -> tf.RaggedTensor:
        """Return the ids (B, None) of texts (B,).

        Args:
            texts: strings.
            slow: returns the ids (P, None) of parts (P,) that are not in the table, without
                duplicates.
        """
        parts, splits = self._parts(texts)
        ids = self._table.lookup(parts)
        ids, splits = tf.cond(
            tf.reduce_all(ids >= 0),
            lambda: (ids, splits),
            lambda: replace_missing(ids, splits, parts, slow),
        )
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)

    def _parts(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Split texts at ASCII spaces and punctuation: parts (P,) and row splits (B + 1,)."""
        if self._clean_text:
            texts = tf.strings.regex_replace(texts, DROPPED_IN_ASCII, "")
        texts = tf.strings.lower(texts) if self._lowercase else texts  # only ASCII
        texts = tf.strings.regex_replace(texts, ALONE_IN_ASCII, r" \1 ")
        positions, parts, shape = tf.raw_ops.StringSplitV2(input=texts, sep="")
        return parts, tf.searchsorted(positions[:, 0], tf.range(shape[0] + 1), out_type=tf.int64)


def replace_missing(
    ids: tf.Tensor, splits: tf.Tensor, parts: tf.Tensor, slow: Callable
) -> tuple[tf.Tensor, tf.Tensor]:
    """Replace negative ids (P,) by the tokens of `slow`; return ids and row splits."""
    missed = tf.cast(tf.where(ids < 0)[:, 0], tf.int32)
    chosen, alike = tf.unique(tf.gather(parts, missed))
    others = slow(chosen)
    positions, _, part_splits = replace_by_spans(tf.size(ids), missed, alike, others.row_splits)
    ids = tf.gather(tf.concat([ids, others.values], 0), positions)
    return ids, tf.cast(tf.gather(part_splits, splits), tf.int64)


SPLITTING = " \t\n\x0b\x0c\r"  # where tf.strings.split splits
QUOTE_PAIRS = ("``", "''")  # which ALBERT replaces by a quotation mark


class WhitespaceWordLookup(WholeWordLookup):
    """Maps texts to ids by a table of words between ASCII white space.

    Normalization rarely crosses white space, as with a combining mark after a space; if a batch has
    such a text, all its texts take the slow path.

    Args:
        words: {word: id} of words that are one token.
        rules: of the normalizer, see `read_charsmap`.
        mapping: {code point: code points}, applied before the rules.
        lowercase: whether texts are lower-cased first.

    Example:
        >>> words = WhitespaceWordLookup({"cat": 7, "½": 8}, {"½": "1/2"}, {}, lowercase=False)
        >>> slow = lambda parts: tf.RaggedTensor.from_row_lengths([1, 2], [2])
        >>> words.ids(tf.constant(["cat  cat", "½ cat"]), slow).to_list()
        [[7, 7], [1, 2, 7]]
    """

    def __init__(
        self,
        words: Mapping[str, int],
        rules: Mapping[str, str],
        mapping: Mapping[int, Sequence[int]],
        lowercase: bool,
    ):
        kept = unchanged_words([word for word in words if word], rules, mapping)
        super().__init__({word: words[word] for word in kept}, lowercase)
        self._joining = joining_pattern(rules, mapping)

    def _parts(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Split texts at white space, or not at all: parts (P,) and row splits (B + 1,)."""
        texts = tf.strings.lower(texts) if self._lowercase else texts  # only ASCII

        def whole() -> tuple[tf.Tensor, tf.Tensor]:
            return texts, tf.range(tf.size(texts, tf.int64) + 1)

        def split() -> tuple[tf.Tensor, tf.Tensor]:
            positions, parts, shape = tf.raw_ops.StringSplitV2(input=texts, sep="")
            rows = tf.range(shape[0] + 1)
            return parts, tf.searchsorted(positions[:, 0], rows, out_type=tf.int64)

        joins = tf.strings.regex_full_match(texts, self._joining)
        return tf.cond(tf.reduce_any(joins), whole, split)


def unchanged_words(
    words: Sequence[str], rules: Mapping[str, str], mapping: Mapping[int, Sequence[int]]
) -> list[str]:
    """Return the words (none empty) that normalization does not change and that stay one word.

    Example:
        >>> unchanged_words(["cat", "½", "a▁b", "``"], {"½": "1/2"}, {})
        ['cat']
    """
    changes = members("extends") | members("prepends") | members("ends_grapheme")
    changes |= members("white_space")
    changes[[ord("▁"), *mapping, *(ord(key) for key in rules if len(key) == 1)]] = True
    spellings = PackedWords.from_texts(words)
    changed = np.logical_or.reduceat(changes[spellings.symbols], spellings.starts)
    pairs = [any(pair in word for pair in QUOTE_PAIRS) for word in words]
    return [w for w, c, p in zip(words, changed, pairs, strict=True) if not c and not p]


def joining_pattern(rules: Mapping[str, str], mapping: Mapping[int, Sequence[int]]) -> str:
    """Return a regular expression for texts where normalization crosses white space.

    White space may be in one grapheme with a neighbour, see `PrecompiledNormalizer`, or be
    replaced by something else.
    """
    follows, leads = members("extends"), members("prepends")
    behind, ahead = follows.copy(), leads.copy()
    for code, codes in mapping.items():
        behind[code] = not codes or follows[codes[0]]
        ahead[code] = not codes or leads[codes[-1]]
    lost = {
        character
        for key, value in {**dict(zip(SPLITTING, SPLITTING, strict=True)), **rules}.items()
        for character in SPLITTING
        if character in key and not value.isspace()
    }
    parts = [f" {character_class(behind)}", f"{character_class(ahead)} "]
    parts += [rf"\x{{{ord(character):X}}}" for character in sorted(lost)]
    return rf"\C*(?:{'|'.join(parts)})\C*"


def character_class(belongs: np.ndarray) -> str:
    """Return the code points where `belongs` is true as a class of a regular expression.

    Example:
        >>> character_class(np.isin(np.arange(300), [97, 98, 99, 256]))
        '[\\\\x{61}-\\\\x{63}\\\\x{100}-\\\\x{100}]'
    """
    edges = np.flatnonzero(np.diff(belongs, prepend=False, append=False)).reshape(-1, 2)
    return "[" + "".join(rf"\x{{{a:X}}}-\x{{{b - 1:X}}}" for a, b in edges) + "]"
