"""Tables to look up words by symbols."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import mark_members
from encoder_zoo.encoders.tokenizers.text.packed_words import MAX_SYMBOL, HashTable, PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import replace_by_spans

SYMBOLS_PER_KEY = 4  # 16 bits each
KEYS = 3
MAX_SYMBOLS = SYMBOLS_PER_KEY * KEYS  # maximum number of symbols per word


class WordTable(tf.Module):
    """Maps words with up to twelve symbols to ids.

    Four 16-bit symbols are combined into an int64 key, and three keys are used per word. All other
    words are passed to a slower function by `look_up_tokens`.

    Args:
        words: `PackedWords`. Symbols must be between 1 and `MAX_SYMBOL`.
        ids: Integer array of shape (W,). The id for each word.

    Example:
        >>> table = WordTable(PackedWords.from_symbols([[7, 8], [9]]), [40, 41])
        >>> symbols = tf.constant([7, 8, 0, 9, 7])
        >>> table.look_up(compute_word_keys(symbols, tf.constant([0, 3]), tf.constant([2, 5])))
        <tf.Tensor: shape=(2,), dtype=int32, numpy=array([40, -1], dtype=int32)>
    """

    def __init__(self, words: PackedWords, ids: Sequence[int]):
        super().__init__()
        is_short = words.lengths <= MAX_SYMBOLS
        words, ids = words.select(is_short), np.asarray(ids, np.int32)[is_short]
        padded = np.zeros([len(ids), MAX_SYMBOLS], np.uint16)
        padded[np.arange(MAX_SYMBOLS) < words.lengths[:, None]] = words.symbols
        keys = padded.reshape(-1, MAX_SYMBOLS).view(np.int64)  # (words, KEYS)
        prints, rows = np.unique((keys * FACTORS).sum(1), return_index=True)
        keys = np.concatenate([keys, np.zeros([1, KEYS], np.int64)])  # last row: no word
        self._keys = [tf.constant(column) for column in keys.T]
        self._ids = tf.constant([*ids, -1], tf.int32)
        self._rows = HashTable(prints, rows, default_value=len(ids))

    def look_up(self, keys: list[tf.Tensor]) -> tf.Tensor:
        """Return the id of each word, or -1 for words that are not in the table.

        Args:
            keys: List of `KEYS` int64 tensors of shape (W,). See `compute_word_keys`.

        Returns:
            Int32 tensor of shape (W,).
        """
        row = self._rows.lookup(compute_fingerprints(keys))
        same = compare_keys([tf.gather(column, row) for column in self._keys], keys)
        return tf.where(same, tf.gather(self._ids, row), -1)

    def look_up_tokens(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, slow: Callable
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return tokens for words. Words that are not in the table are passed to `slow`.

        Args:
            symbols: int32 tensor of shape (S,).
            starts, ends: int32 tensors of shape (W,). The start and end for each word in the
                symbols.
            slow: Callable. Takes starts and ends for words that are not in the table, without
                duplicates, and returns `WordTokens`.

        Returns:
            Tuple (ids, starts, ends, splits). The first three tensors have shape (T,). Starts and
            ends are positions in the symbols. `splits` has shape (W + 1,) and contains the index of
            the first token in each word, followed by T.
        """
        keys = compute_word_keys(symbols, starts, ends)
        ids = self.look_up(keys)
        missed = tf.cast(tf.where(ids < 0)[:, 0], tf.int32)
        chosen, alike = remove_duplicates([tf.gather(key, missed) for key in keys])
        chosen = tf.gather(missed, chosen)
        others = slow(tf.gather(starts, chosen), tf.gather(ends, chosen))
        positions, word, splits = replace_by_spans(tf.size(ids), missed, alike, others.splits)
        ids = tf.gather(tf.concat([ids, others.ids], 0), positions)
        within = tf.gather(tf.concat([tf.zeros_like(starts), others.starts], 0), positions)
        begins = tf.gather(starts, word) + within
        next_begins = tf.concat([begins[1:], ends[-1:]], 0)
        return ids, begins, tf.minimum(next_begins, tf.gather(ends, word)), splits


FACTORS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, KEYS) | 1
# Masks to apply to keys for each word length, or 0 if a word is too long.
MASKS = np.where(np.arange(MAX_SYMBOLS) < np.arange(MAX_SYMBOLS + 2)[:, None], MAX_SYMBOL, 0)
MASKS[-1] = 0
MASKS = MASKS.astype(np.uint16).view(np.int64).T  # (KEYS, MAX_SYMBOLS + 2)


def compute_fingerprints(keys: list[tf.Tensor]) -> tf.Tensor:
    """Return hash values (W,) for keys."""
    return tf.add_n([key * factor for key, factor in zip(keys, FACTORS.tolist(), strict=True)])


def compare_keys(keys: list[tf.Tensor], others: list[tf.Tensor]) -> tf.Tensor:
    """Return a mask (W,) for words with equal keys."""
    return functools.reduce(operator.and_, map(tf.equal, keys, others))


def compute_word_keys(symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> list[tf.Tensor]:
    """Compute `KEYS` keys for each word.

    Args:
        symbols: Integer tensor of shape (S,).
        starts, ends: int32 tensors of shape (W,). The start and end for each word in the symbols.

    Returns:
        List of `KEYS` int64 tensors of shape (W,). All keys are 0 for words with more than
        `MAX_SYMBOLS` symbols.
    """
    step = SYMBOLS_PER_KEY
    narrow = tf.pad(tf.cast(symbols, tf.uint16), [[0, MAX_SYMBOLS + step]])
    num = tf.size(symbols) // step + KEYS  # windows start at 0, 4, 8, ...; or at 1, 5, 9
    windows = tf.concat([narrow[shift : shift + step * num] for shift in range(step)], 0)
    windows = tf.bitcast(tf.reshape(windows, [-1, step]), tf.int64)
    first = starts % step * num + starts // step
    lengths = tf.minimum(ends - starts, MAX_SYMBOLS + 1)
    return [
        tf.bitwise.bitwise_and(tf.gather(windows, first + i), tf.gather(MASKS[i], lengths))
        for i in range(KEYS)
    ]


def remove_duplicates(keys: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Remove duplicate words by comparing keys (W,). Words that are too long are never removed.

    Returns:
        Two int32 tensors. The first has shape (D,) and contains the indices of distinct words. The
        second has shape (W,) and contains a position in the first tensor for each word.

    Example:
        >>> keys = [tf.constant(key, tf.int64) for key in ([7, 8, 7, 0, 0], [0] * 5, [0] * 5)]
        >>> [part.numpy().tolist() for part in remove_duplicates(keys)]
        [[0, 1, 3, 4], [0, 1, 0, 2, 3]]
    """
    unique, group = tf.unique(compute_fingerprints(keys))
    index = tf.range(tf.size(group))
    first = tf.gather(tf.math.unsorted_segment_min(index, group, tf.size(unique)), group)
    same = compare_keys([tf.gather(key, first) for key in keys], keys) & (keys[0] != 0)
    first = tf.where(same, first, index)
    chosen = first == index
    number = tf.cumsum(tf.cast(chosen, tf.int32)) - 1
    return tf.cast(tf.where(chosen)[:, 0], tf.int32), tf.gather(number, first)


TextSplitter = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


class WordLookup(tf.Module):
    """Tokenizes texts with a lookup table of words that are a single token.

    Parts of a text that are found in the table are neither normalized nor split by the model. All
    other parts are passed to a slower function.

    Args:
        words: Dict mapping words to ids.
        split: Callable. Takes texts (B,), and returns parts (P,) that can be tokenized separately,
            and row splits (B + 1,). See `make_ascii_splitter` and `make_white_space_splitter`.

    Example:
        >>> words = WordLookup({"cats": 7, "!": 8}, make_ascii_splitter(lowercase=True))
        >>> slow = lambda parts: tf.RaggedTensor.from_row_lengths([1, 2], [2])
        >>> words.look_up_ids(tf.constant(["Cats!!", "cats, cats"]), slow).to_list()
        [[7, 8, 8], [7, 1, 2, 7]]
    """

    def __init__(self, words: Mapping[str, int], split: TextSplitter):
        super().__init__()
        self._split = split
        # TensorFlow does not allow empty tables. Spaces will never be looked up.
        keys, ids = tf.constant([" ", *words]), tf.constant([-1, *words.values()], tf.int32)
        self._table = HashTable(keys, ids, default_value=-1)

    def look_up_ids(
        self, texts: tf.Tensor, slow: Callable[[tf.Tensor], tf.RaggedTensor]
    ) -> tf.RaggedTensor:
        """Return ids (B, None) for texts (B,).

        Args:
            texts: String tensor of shape (B,).
            slow: Callable. Takes parts (P,) that are not in the table, without duplicates, and
                returns ids (P, None).
        """
        parts, splits = self._split(texts)
        ids = self._table.lookup(parts)
        ids, splits = tf.cond(
            tf.reduce_all(ids >= 0),
            lambda: (ids, splits),
            lambda: replace_missing(ids, splits, parts, slow),
        )
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)


def replace_missing(
    ids: tf.Tensor, splits: tf.Tensor, parts: tf.Tensor, slow: Callable
) -> tuple[tf.Tensor, tf.Tensor]:
    """Replace negative ids (P,) with tokens from `slow`, and return ids and row splits."""
    missed = tf.cast(tf.where(ids < 0)[:, 0], tf.int32)
    chosen, alike = tf.unique(tf.gather(parts, missed))
    others = slow(chosen)
    positions, _, part_splits = replace_by_spans(tf.size(ids), missed, alike, others.row_splits)
    ids = tf.gather(tf.concat([ids, others.values], 0), positions)
    return ids, tf.cast(tf.gather(part_splits, splits), tf.int64)


ALONE_IN_ASCII = r"([!-/:-@\[-`{-~])"  # each of these characters is a word
# Remove these characters before the split, since TensorFlow splits at two of them.
DROPPED_IN_ASCII = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
SPLITTING = " \t\n\x0b\x0c\r"  # white space in tf.strings.split


def make_ascii_splitter(lowercase: bool, clean_text: bool = True) -> TextSplitter:
    """Create a function to split texts at ASCII spaces and punctuation.

    Args:
        lowercase: Boolean. Whether to lower-case ASCII letters.
        clean_text: Boolean. Whether to remove control characters first. Defaults to True.
    """

    def split(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if clean_text:
            texts = tf.strings.regex_replace(texts, DROPPED_IN_ASCII, "")
        texts = tf.strings.lower(texts) if lowercase else texts
        return split_at_spaces(tf.strings.regex_replace(texts, ALONE_IN_ASCII, r" \1 "))

    return split


def make_white_space_splitter(
    rules: Mapping[str, str], mapping: Mapping[int, Sequence[int]], lowercase: bool
) -> TextSplitter:
    """Create a function to split texts at ASCII white space.

    In rare cases, normalization depends on white space, for example if it is followed by a
    combining mark. If this happens for any text in a batch, no text is split.

    Args:
        rules: Dict with normalizer rules. See `read_charsmap`.
        mapping: Dict mapping code points to lists of code points. This is applied before the rules.
        lowercase: Boolean. Whether to lower-case ASCII letters.

    Example:
        >>> split = make_white_space_splitter({"½": "1/2"}, {}, lowercase=False)
        >>> [part.numpy().tolist() for part in split(tf.constant(["a  cat", "b"]))]
        [[b'a', b'cat', b'b'], [0, 2, 3]]
    """
    joining = make_joining_pattern(rules, mapping)

    def split(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        texts = tf.strings.lower(texts) if lowercase else texts
        whole = texts, tf.range(tf.size(texts, tf.int64) + 1)
        joins = tf.strings.regex_full_match(texts, joining)
        return tf.cond(tf.reduce_any(joins), lambda: whole, lambda: split_at_spaces(texts))

    return split


def split_at_spaces(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Split texts (B,) at ASCII white space, and return parts (P,) and row splits (B + 1,)."""
    positions, parts, shape = tf.raw_ops.StringSplitV2(input=texts, sep="")
    return parts, tf.searchsorted(positions[:, 0], tf.range(shape[0] + 1), out_type=tf.int64)


def make_joining_pattern(rules: Mapping[str, str], mapping: Mapping[int, Sequence[int]]) -> str:
    """Create a regular expression that finds texts whose normalization depends on white space.

    White space can be part of a grapheme with adjacent characters, or it can be replaced by other
    characters. See `PrecompiledNormalizer`.
    """
    follows, leads = mark_members("extends"), mark_members("prepends")
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
    parts = [f" {make_character_class(behind)}", f"{make_character_class(ahead)} "]
    parts += [rf"\x{{{ord(character):X}}}" for character in sorted(lost)]
    return rf"\C*(?:{'|'.join(parts)})\C*"


def make_character_class(belongs: np.ndarray) -> str:
    """Convert a mask over code points to a character class for regular expressions.

    Example:
        >>> make_character_class(np.isin(np.arange(300), [97, 98, 99, 256]))
        '[\\\\x{61}-\\\\x{63}\\\\x{100}-\\\\x{100}]'
    """
    edges = np.flatnonzero(np.diff(belongs, prepend=False, append=False)).reshape(-1, 2)
    return "[" + "".join(rf"\x{{{a:X}}}-\x{{{b - 1:X}}}" for a, b in edges) + "]"
