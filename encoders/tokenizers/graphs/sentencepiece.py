"""The graphs of SentencePiece tokenizers: words that begin with "▁", by Unigram or BPE."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
from encoder_zoo.encoders.tokenizers.graphs.normalizers import make_normalizers
from encoder_zoo.encoders.tokenizers.segmentation.bpe import BPE
from encoder_zoo.encoders.tokenizers.segmentation.tokens import (
    Tokens,
    WordTokens,
    are_single_tokens,
)
from encoder_zoo.encoders.tokenizers.segmentation.unigram import Unigram
from encoder_zoo.encoders.tokenizers.segmentation.word_table import (
    MAX_SYMBOLS,
    WhitespaceWordLookup,
    WordTable,
)
from encoder_zoo.encoders.tokenizers.steps import (
    BYTE_TOKENS,
    KEPT_WORDS,
    METASPACE,
    QUOTES,
    REPLACED_SPACE,
    SPACE,
    SPACE_PREPENDED,
    without_interpreter,
)
from encoder_zoo.encoders.tokenizers.text.characters import (
    SPECIALS,
    Characters,
    CodePointTable,
    encode_utf8,
    insert_spaces,
    members,
)
from encoder_zoo.encoders.tokenizers.text.charsmap import charsmap_rules
from encoder_zoo.encoders.tokenizers.text.normalization import folding_map, is_special_token
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords, character_numbers
from encoder_zoo.encoders.tokenizers.text.ragged import (
    index_mask,
    row_ids,
    shift_left,
    shift_right,
    span_indices,
)

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Model, Steps

WHITE = 0  # the number of white space, which separates words


class SentencePieceGraph(TokenizerGraph):
    """The graph of words that begin with "▁", and of a Unigram model or BPE of characters.

    Args:
        steps: `Steps` to execute.
        model: `Model` of the steps.
    """

    def __init__(self, steps: Steps, model: Model):
        super().__init__(steps, model)
        check_words(steps)
        normalizer = list(steps.normalizer)
        if normalizer[-1:] == [REPLACED_SPACE]:  # the model numbers spaces like "▁"
            normalizer.pop()
            if normalizer[-1:] == [SPACE_PREPENDED]:
                normalizer.pop()
        self._normalizers = make_normalizers(normalizer)
        self._keeps_spaces, self._inserts_space = steps.keeps_spaces, steps.inserts_space
        self._words_depend = steps.words_depend
        self._splits_at_all_space = "WhitespaceSplit" in steps.types("pre_tokenizer")
        byte_fallback, is_bpe = model.settings["byte_fallback"], model.settings["type"] == "BPE"
        self._fuses = not (is_bpe and byte_fallback)
        ids = token_ids(model.settings)
        self._bytes = tf.constant([ids[token] for token in BYTE_TOKENS]) if byte_fallback else None
        words = self._make_model(steps, model.settings, ids)
        rules = lookup_rules(steps.normalizer) if self._splits_at_all_space else None
        self._word_lookup = WhitespaceWordLookup(words, *rules) if rules else None
        self._index_added_tokens(steps)

    def _make_model(self, steps: Steps, model: dict, all_ids: dict[str, int]) -> dict[str, int]:
        """Build the model and its tables; return {word: id} of the words that are one token."""
        codes = PackedWords.from_symbols([[code] for code in SPECIALS[: len(self.special_ids)]])
        found = {token: i for token, i in all_ids.items() if token and " " not in token}
        words = PackedWords.from_texts(list(found)).concatenate(codes)
        ids = np.array([*found.values(), *self.special_ids])
        numbers = character_numbers(words.concatenate(PackedWords.from_symbols([[ord(SPACE)]])))
        self._space_number = int(numbers[ord(SPACE)])
        numbers[members("white_space") if self._splits_at_all_space else ord(" ")] = WHITE
        words = words._replace(symbols=numbers[words.symbols])
        in_words = np.logical_and.reduceat(words.symbols != WHITE, words.starts)
        words, ids = words.where(in_words), ids[in_words]
        self._model = self._make_splitter(model, all_ids, words, ids, int(numbers.max()) + 1)
        self._splits_words = self._tokens_stay_in_words(words)
        self.words_are_independent &= not self._keeps_spaces or self._splits_words
        if self._keeps_spaces:
            numbers[ord(" ")] = self._space_number
        self._numbers = CodePointTable(numbers)
        whole = self._are_whole(words, ids)
        self._word_table = WordTable(words.where(whole), ids[whole])
        names, special = dict(zip(found.values(), found, strict=True)), set(steps.skipped_ids)
        return {names[i].removeprefix(SPACE): i for i in ids[whole] if i not in special}

    def _make_splitter(
        self,
        model: dict,
        all_ids: dict[str, int],
        words: PackedWords,
        ids: np.ndarray,
        num_symbols: int,
    ) -> tf.Module:
        """Return the Unigram or BPE model of the tokens that are found in texts."""
        if model["type"] == "Unigram":
            scores = [score for _, score in model["vocab"]]
            return Unigram(words, ids, scores, self.unknown_token_id)
        single = words.lengths == 1
        symbol_ids = np.full(num_symbols, self.unknown_token_id)
        symbol_ids[words.symbols[words.starts[single]]] = ids[single]
        return BPE(symbol_ids, [" ".join(pair) for pair in model["merges"]], all_ids)

    def _tokens_stay_in_words(self, words: PackedWords) -> bool:
        """Return whether no token spans several words."""
        is_sign = words.symbols == self._space_number
        inner = np.ones_like(is_sign)
        inner[words.starts] = False
        crosses = is_sign & inner & ~np.roll(is_sign, 1)
        alone = is_sign[words.starts] & (words.lengths == 1)  # else it may be unknown and fused
        return bool(alone.any() and not crosses.any())

    def _are_whole(self, words: PackedWords, ids: np.ndarray) -> np.ndarray:
        """Return, boolean (W,), which short words are one token of their own."""
        first = words.symbols[words.starts]
        is_whole = np.isin(ids, self.special_ids) | (first == self._space_number)
        is_whole &= words.lengths <= MAX_SYMBOLS
        few = words.where(is_whole)
        is_whole[is_whole] = are_single_tokens(self._split, few, ids[is_whole])
        return is_whole

    def _split(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordTokens:
        """Return the tokens of the words at starts (W,) ... ends (W,) of the symbols (S,)."""
        tokens = self._model.encode(symbols, starts, ends)
        # Bytes of BPE each have the span of their own character.
        return tokens.fuse(self.unknown_token_id) if self._fuses else tokens

    def _ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        if self._word_lookup is None or not self.words_are_independent:
            return super()._ids(texts, as_words)
        return self._word_lookup.ids(texts, lambda parts: self._encode(parts, as_words)[0])

    def _tokenize(self, chars: Characters) -> Tokens:
        numbers = self._numbers(chars.codes)
        solid, first, spaced = self._word_starts(chars, numbers)
        # White space is removed, and "▁" inserted before the words without one.
        splits = tf.concat(
            [[0], tf.cumsum(tf.cast(solid, tf.int32) + tf.cast(spaced, tf.int32))], 0
        )
        owner = row_ids(splits, splits[-1])
        is_sign = index_mask(tf.boolean_mask(splits[:-1], spaced), splits[-1])
        symbols = tf.where(is_sign, self._space_number, tf.gather(numbers, owner))
        starts = tf.boolean_mask(splits[:-1], first)
        ids, begins, ends, tokens = self._word_table.tokens(
            symbols,
            starts,
            shift_left(starts, 1, splits[-1]),
            functools.partial(self._split, symbols),
        )
        words = tf.searchsorted(starts, tf.gather(splits, chars.row_splits))
        rows = tf.gather(tokens, words)
        if self._bytes is not None:
            codes = tf.where(is_sign, ord(SPACE), tf.gather(chars.codes, owner))
            ids, begins, ends, rows = self._with_bytes(codes, ids, begins, ends, rows)
        starts = tf.gather(chars.starts, tf.gather(owner, begins))
        return Tokens(ids, starts, tf.gather(chars.ends, tf.gather(owner, ends - 1)), rows)

    def _normalize(self, chars: Characters) -> Characters:
        return functools.reduce(lambda chars, normalize: normalize(chars), self._normalizers, chars)

    def _add_prefix_space(self, chars: Characters, as_words: bool) -> Characters:
        if self._inserts_space or not as_words:
            return chars
        return insert_spaces(chars, chars.row_starts() & ~is_special_token(chars.codes))

    def _word_starts(
        self, chars: Characters, numbers: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return masks (N,): no white space, first character of a word, first without "▁"."""
        special = is_special_token(chars.codes)
        solid = numbers != WHITE
        is_sign = numbers == self._space_number
        if self._keeps_spaces:
            begins = chars.row_starts() | special | shift_right(special, 1, False)
            first = (
                begins | (is_sign & ~shift_right(is_sign, 1, False))
                if self._splits_words
                else begins
            )
            return solid, first, begins & ~special & self._inserts_space
        gap = shift_right(~solid | special, 1, True) | chars.row_starts() | special | is_sign
        first = solid & gap
        spaced = first & ~is_sign & ~special
        if self._words_depend:  # a "▁" of the text itself gets another one before it
            spaced |= first & shift_right(~solid, 1, False) & ~chars.row_starts() & ~special
        return solid, first, spaced

    def _with_bytes(
        self, codes: tf.Tensor, ids: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor, rows: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Replace unknown tokens by bytes, each with the span of the whole token."""
        unknown = ids == self.unknown_token_id
        unknown &= ~is_special_token(tf.gather(codes, begins))
        indices, token, _ = span_indices(
            tf.boolean_mask(begins, unknown), tf.boolean_mask(ends, unknown)
        )
        symbols, splits, _ = encode_utf8(tf.gather(codes, indices))
        num_bytes = tf.math.segment_sum(splits[1:] - splits[:-1], token)
        where = tf.where(unknown)
        lengths = tf.tensor_scatter_nd_update(tf.ones_like(ids), where, num_bytes)
        splits = tf.concat([[0], tf.cumsum(lengths)], 0)
        owner = row_ids(splits, splits[-1])
        ids = tf.gather(ids, owner)
        is_byte = tf.where(tf.gather(unknown, owner))
        ids = tf.tensor_scatter_nd_update(ids, is_byte, tf.gather(self._bytes, symbols))
        return ids, tf.gather(begins, owner), tf.gather(ends, owner), tf.gather(splits, rows)


def token_ids(model: Mapping) -> dict[str, int]:
    """Return {token: id} of a Unigram or BPE model of tokenizer.json."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        return vocabulary
    return {token: i for i, (token, _) in enumerate(vocabulary)}


def lookup_rules(
    normalizer: Sequence[Mapping],
) -> tuple[dict[str, str], Mapping[int, Sequence[int]], bool] | None:
    """Return rules, mapping and lower-casing for `WhitespaceWordLookup`; None for other steps."""
    types = [step["type"] for step in normalizer if step not in QUOTES]
    charsmaps = [s["precompiled_charsmap"] for s in normalizer if s["type"] == "Precompiled"]
    lowers, strips = "Lowercase" in types, "StripAccents" in types
    accents = ["NFKD", "StripAccents"] * strips
    if types != [*accents, *["Lowercase"] * lowers, *["Precompiled"] * len(charsmaps)]:
        return None
    mapping = folding_map(lowers, not strips) if lowers or strips else {}
    return charsmap_rules(charsmaps[0] if charsmaps else None), mapping, lowers


def check_words(steps: Steps) -> None:
    """Raise an error if the words are not those that begin with "▁"."""
    if steps.keeps_spaces:
        expected = [[], [KEPT_WORDS]]
    elif steps.words_depend:
        expected = [[METASPACE]]
    else:
        expected = [[{"type": "WhitespaceSplit"}, METASPACE]]
    if steps.pre_tokenizer not in expected:
        raise without_interpreter("pre_tokenizer", steps.pre_tokenizer)
