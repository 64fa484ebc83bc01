"""Graphs of byte-level BPE: GPT-2's words and Llama 3's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.files.reading import (
    alphabet_bytes,
    byte_alphabet,
    surrounding_spaces,
)
from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
from encoder_zoo.encoders.tokenizers.graphs.normalizers import make_normalizers
from encoder_zoo.encoders.tokenizers.segmentation.bpe import BPE
from encoder_zoo.encoders.tokenizers.segmentation.pre_tokenization import (
    LETTER,
    NUMBER,
    OTHER,
    SPACE,
    SPECIAL,
    byte_level_character_kinds,
    byte_level_word_starts,
    find_contractions,
)
from encoder_zoo.encoders.tokenizers.segmentation.tokens import (
    Tokens,
    WordTokens,
    are_single_tokens,
)
from encoder_zoo.encoders.tokenizers.segmentation.word_table import MAX_SYMBOLS, WordTable
from encoder_zoo.encoders.tokenizers.steps import (
    GPT2_WORDS,
    LLAMA_WORDS,
    split_at,
    without_interpreter,
)
from encoder_zoo.encoders.tokenizers.text.characters import (
    SPECIALS,
    Characters,
    CodePointTable,
    encode_utf8,
    insert_spaces,
)
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import (
    row_ids,
    shift_left,
    shift_right,
    span_indices,
)

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Model, Steps


class ByteBPEGraph(TokenizerGraph):
    """The graph of byte-level BPE, of GPT-2's words or Llama 3's.

    Args:
        steps: `Steps` to execute.
        model: `Model` of the steps.
    """

    def __init__(self, steps: Steps, model: Model):
        super().__init__(steps, model)
        self._normalizers = make_normalizers(steps.normalizer)
        self._find_words = find_word_starts(steps.pre_tokenizer)
        self._inserts_space, self._trims = steps.inserts_space, steps.trims
        self._kinds = CodePointTable(byte_level_character_kinds())
        vocabulary = model.settings["vocab"]
        added = [token["id"] for token in (*steps.special_tokens, *steps.added_tokens)]
        size = 1 + max(*vocabulary.values(), *steps.skipped_ids, *added)
        spaces = np.zeros([size, 2], np.int32)  # none for added tokens
        for token, spaces_around in zip(
            vocabulary, surrounding_spaces(list(vocabulary)), strict=True
        ):
            spaces[vocabulary[token]] = spaces_around
        spaces[[token["id"] for token in steps.added_tokens]] = 0
        self._spaces = tf.constant(spaces)
        byte_ids = [vocabulary.get(c, self.unknown_token_id) for c in byte_alphabet()]
        merges = [" ".join(pair) for pair in model.settings["merges"]]
        self._model = BPE([*byte_ids, *self.special_ids], merges, vocabulary)
        self._long = None
        self._word_table = WordTable(
            *self._single_tokens(vocabulary, model.settings["ignore_merges"])
        )
        self._index_added_tokens(steps)

    def _single_tokens(
        self, vocabulary: Mapping[str, int], ignore_merges: bool
    ) -> tuple[PackedWords, np.ndarray]:
        """Return the words that are one token, as 1 + symbols, and their ids.

        They are those that the merges make one token, or with `ignore_merges` all tokens; of these
        the table has no long ones.
        """
        byte_of = alphabet_bytes()
        ids = {
            bytes(map(byte_of.get, token)): token_id
            for token, token_id in vocabulary.items()
            if token and all(c in byte_of for c in token)
        }
        words, ids = PackedWords.from_symbols(list(ids)), np.array(list(ids.values()), np.int64)
        is_short = words.lengths <= MAX_SYMBOLS
        if ignore_merges:
            self._long = self._long_tokens(words.where(~is_short), ids[~is_short])
        words, ids = words.where(is_short), ids[is_short]
        if not ignore_merges:
            is_made = are_single_tokens(self._model.encode, words, ids)
            words, ids = words.where(is_made), ids[is_made]
        special = PackedWords.from_symbols([[256 + i] for i in range(len(self.special_ids))])
        words = words.concatenate(special)
        return words._replace(symbols=1 + words.symbols), np.array([*ids, *self.special_ids])

    def _long_tokens(self, words: PackedWords, ids: np.ndarray) -> tf.lookup.StaticHashTable | None:
        """Return {bytes: id} of the tokens too long for the table that no merges make."""
        if not len(ids):
            return None
        left = ~are_single_tokens(self._model.encode, words, ids)
        if not left.any():
            return None
        words = words.where(left)
        texts = np.split(words.symbols.astype(np.uint8), words.starts[1:])
        keys = tf.constant([text.tobytes() for text in texts])
        pairs = tf.lookup.KeyValueTensorInitializer(keys, tf.constant(ids[left], tf.int32))
        return tf.lookup.StaticHashTable(pairs, default_value=-1)

    def _encode_words(self, symbols, starts, ends) -> WordTokens:
        """Return the tokens of words (W,) that are not in the table."""
        tokens = self._model.encode(symbols, starts, ends)
        if self._long is None:
            return tokens
        long = tf.where(ends - starts > MAX_SYMBOLS)
        words = tf.gather(starts, long[:, 0]), tf.gather(ends, long[:, 0])
        indices, _, splits = span_indices(*words)
        characters = tf.gather(BYTES, tf.minimum(tf.gather(symbols, indices), 255))
        texts = tf.RaggedTensor.from_row_splits(characters, splits, validate=False)
        found = self._long.lookup(tf.strings.reduce_join(texts, axis=1))
        ids = tf.tensor_scatter_nd_update(tf.fill(tf.shape(starts), -1), long, found)
        return _replace_whole(tokens, ids)

    def _normalize(self, chars: Characters) -> Characters:
        return functools.reduce(lambda chars, normalize: normalize(chars), self._normalizers, chars)

    def _add_prefix_space(self, chars: Characters, as_words: bool) -> Characters:
        if not (self._inserts_space or as_words):
            return chars
        special = chars.codes >= SPECIALS.start
        first = chars.row_starts() | shift_right(special, 1, False)
        return insert_spaces(chars, first & ~special & (chars.codes != ord(" ")))

    def _tokenize(self, chars: Characters) -> Tokens:
        starts = self._find_words(chars.codes, self._kinds(chars.codes), chars.row_starts())
        symbols, splits, owners = encode_utf8(chars.codes)  # (S,), (N + 1,), (S,)
        begins = tf.gather(splits, starts)
        ends = shift_left(begins, 1, tf.size(symbols))
        ids, begins, ends, tokens = self._word_table.tokens(
            1 + symbols, begins, ends, functools.partial(self._encode_words, symbols)
        )
        rows = tf.gather(tokens, tf.searchsorted(starts, chars.row_splits))
        starts = tf.gather(chars.starts, tf.gather(owners, begins))
        ends = tf.gather(chars.ends, tf.gather(owners, ends - 1))
        return Tokens(ids, starts, ends, rows)

    def _trim_spans(self, tokens: Tokens) -> Tokens:
        """Remove the spaces around tokens from their spans, as RobertaProcessing does."""
        if not self._trims:
            return tokens
        ids, starts, ends, rows = tokens
        leading, trailing = tf.unstack(tf.gather(self._spaces, ids), num=2, axis=1)
        if self._trims[0]:  # the only space before a text counts as the added one
            first = tf.boolean_mask(rows[:-1], rows[:-1] < rows[1:])
            ones = tf.cast(tf.gather(leading, first) == 1, tf.int32)
            leading = tf.tensor_scatter_nd_sub(leading, first[:, None], ones)
        starts = tf.minimum(starts + leading, ends)
        return Tokens(ids, starts, tf.maximum(ends - trailing, starts), rows)


def find_word_starts(pre_tokenizer: Sequence[Mapping]) -> Callable[..., tf.Tensor]:
    """Return the function that finds the first characters of a pre-tokenizer's words.

    Raises:
        ValueError: If the pre-tokenizer is not ByteLevel or a split by a known expression.
    """
    *splits, last = pre_tokenizer
    if last["type"] != "ByteLevel" or (splits and last["add_prefix_space"]):
        raise without_interpreter("pre_tokenizer", [last])
    if last["use_regex"] and not splits:
        return byte_level_word_starts
    for words, function in ((GPT2_WORDS, byte_level_word_starts), (LLAMA_WORDS, llama_word_starts)):
        if splits == [split_at(words)] and not last["use_regex"]:
            return function
    raise without_interpreter("pre_tokenizer", pre_tokenizer)


BYTES = [bytes([byte]) for byte in range(256)]


def _replace_whole(tokens: WordTokens, ids: tf.Tensor) -> WordTokens:
    """Return tokens of words, of which those with an id of their own, (W,) or -1, have that one."""
    whole = tf.gather(ids, row_ids(tokens.splits, tf.size(tokens.ids)))  # (T,)
    kept = (whole < 0) | (tokens.starts == 0)
    kept_before = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int32))], 0)
    found = tf.where(whole < 0, tokens.ids, whole)
    return WordTokens(
        tf.boolean_mask(found, kept),
        tf.boolean_mask(tokens.starts, kept),
        tf.gather(kept_before, tokens.splits),
    )


def llama_word_starts(codes: tf.Tensor, kinds: tf.Tensor, row_starts: tf.Tensor) -> tf.Tensor:
    r"""Return the first characters (W,) of the words that Llama 3's pattern finds, `LLAMA_WORDS`.

    It depends on runs of one kind alone. A run of letters takes in one character before it, which
    is no line break, unless that belongs to a longer run of others or follows a space. A run of
    others takes in the space before it and the line breaks after it.

    Args:
        codes, kinds: int32 (N,), code points and their kinds, see `byte_level_character_kinds`.
        row_starts: boolean (N,), the first character of each text.

    Source: Dubey et al. 2024, The Llama 3 Herd of Models, released tokenizer.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.segmentation import pre_tokenization
        >>> text = "I'll  go, 12345\n\n !"
        >>> codes = tf.constant([ord(c) for c in text])
        >>> kinds = tf.gather(pre_tokenization.byte_level_character_kinds(), codes)
        >>> starts = llama_word_starts(codes, kinds, tf.range(len(text)) == 0).numpy().tolist()
        >>> [text[i:j] for i, j in zip(starts, [*starts[1:], len(text)])]
        ['I', "'ll", ' ', ' go', ',', ' ', '123', '45', '\n\n', ' !']
    """
    special = kinds == SPECIAL
    row_starts |= special | shift_right(special, 1, False)  # split at special tokens
    last_kind = tf.where(row_starts, -1, shift_right(kinds, 1, -1))
    first = last_kind != kinds  # of a run
    is_end = shift_left(row_starts, 1, True)
    next_kind = tf.where(is_end, -1, shift_left(kinds, 1, -1))

    after_blank = shift_right(codes == ord(" "), 1, False) & ~row_starts
    others = (kinds == OTHER) & first & ~after_blank
    joins_letters = others & (next_kind == LETTER)
    contracted, contraction_ends = _contractions(codes, joins_letters, row_starts)
    joins_letters |= (kinds == SPACE) & ~_is_line_break(codes)
    letters = (kinds == LETTER) & first & ~(shift_right(joins_letters, 1, False) & ~row_starts)
    letters |= (kinds == LETTER) & contraction_ends
    letters &= ~shift_right(contracted, 1, False)

    numbers = (kinds == NUMBER) & (_index_in_run(first) % 3 == 0)
    spaces = _space_starts(codes, kinds, first, last_kind, is_end)
    starts = others | letters | numbers | spaces | row_starts
    return tf.cast(tf.where(starts)[:, 0], tf.int32)


def _is_line_break(codes):
    return (codes == ord("\n")) | (codes == ord("\r"))


def _index_in_run(first):
    """Return how far each character is from the start of its run, (N,)."""
    starts = tf.cast(tf.where(first)[:, 0], tf.int32)
    positions = tf.range(tf.size(first))
    return positions - tf.gather(starts, tf.cumsum(tf.cast(first, tf.int32)) - 1)


def _contractions(codes, may_open, row_starts):
    """Return masks (N,): the apostrophes of contractions, and the characters behind these."""
    lower = tf.where((codes >= ord("A")) & (codes <= ord("Z")), codes + 32, codes)
    lower = tf.where(codes == ord("ſ"), ord("s"), lower)  # by Unicode's case folding
    positions, letters = find_contractions(lower, may_open, row_starts)
    size = tf.size(codes)
    ones = tf.ones_like(positions)
    contracted = tf.scatter_nd(positions[:, None], ones, [size]) > 0
    ends = tf.scatter_nd((positions + letters + 1)[:, None], ones, [size + 1])[:size] > 0
    return contracted, ends


def _space_starts(codes, kinds, first, last_kind, is_end):
    """Return where words begin in runs of white space, (N,).

    Line breaks at the start of a run belong to others before it. Then a word reaches to the last
    line break, another is the rest but for its last character, and that one begins a word itself.
    """
    is_space, breaks = kinds == SPACE, _is_line_break(codes)
    size = tf.size(codes)
    run = tf.cumsum(tf.cast(first, tf.int32)) - 1
    opens = is_space & first & breaks & (last_kind == OTHER)
    # Runs of line breaks and of all else, and those of them that others take in.
    part = tf.cumsum(tf.cast(first | (breaks != shift_right(breaks, 1, False)), tf.int32)) - 1
    taken = tf.gather(tf.math.unsorted_segment_max(tf.cast(opens, tf.int32), part, size + 1), part)
    left = is_space & (taken == 0)
    # Where the last line break of each run is.
    positions = tf.range(size)
    last_break = tf.math.unsorted_segment_max(tf.where(breaks & left, positions, -1), run, size + 1)
    behind = left & (positions > tf.gather(last_break, run))
    until = left & ~behind
    until_first = until & (first | ~shift_right(until, 1, False))
    behind_first = behind & (first | ~shift_right(behind, 1, False))
    behind_last = behind & ~is_end & (shift_left(run, 1, -1) != run)
    return until_first | behind_first | behind_last
