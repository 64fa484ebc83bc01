"""Graph for SentencePiece tokenizers, which split words that begin with "▁" by Unigram or BPE."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
from encoder_zoo.encoders.tokenizers.graphs.models import (
    byte_ids,
    fuses_unknown,
    make_splitter,
    spell_unknown,
    token_ids,
)
from encoder_zoo.encoders.tokenizers.graphs.normalizers import COMPOSED, RUNS, make_normalizer
from encoder_zoo.encoders.tokenizers.segmentation.tokens import (
    Tokens,
    WordTokens,
    are_single_tokens,
)
from encoder_zoo.encoders.tokenizers.segmentation.word_table import (
    MAX_SYMBOLS,
    WhitespaceWordLookup,
    WordTable,
)
from encoder_zoo.encoders.tokenizers.steps import (
    KEPT_WORDS,
    METASPACE,
    QUOTES,
    REPLACED_SPACE,
    SPACE,
    SPACE_PREPENDED,
)
from encoder_zoo.encoders.tokenizers.text.characters import (
    SPECIALS,
    Characters,
    CodePointTable,
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
)

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Model, Steps

WHITE = 0  # number for white space, which separates words


class SentencePieceGraph(TokenizerGraph):
    """Graph for words that begin with "▁". Supports Unigram models and BPE on characters.

    Args:
        steps: `Steps` to execute.
        model: `Model` to use with the steps.
    """

    def __init__(self, steps: Steps, model: Model):
        super().__init__(steps, model)
        normalizer = list(steps.normalizer)
        if normalizer[-1:] == [REPLACED_SPACE]:  # spaces and "▁" have the same number in the model
            normalizer.pop()
            if normalizer[-1:] == [SPACE_PREPENDED]:
                normalizer.pop()
        self._normalizer = make_normalizer(normalizer, (COMPOSED, *RUNS))
        self._keeps_spaces, self._inserts_space = steps.keeps_spaces, steps.inserts_space
        self._words_depend = steps.words_depend
        self._splits_at_all_space = "WhitespaceSplit" in steps.types("pre_tokenizer")
        ids = token_ids(model.settings)
        self._bytes, self._fuses = byte_ids(model.settings), fuses_unknown(model.settings)
        words = self._make_model(steps, model.settings, ids)
        rules = lookup_rules(steps.normalizer) if self._splits_at_all_space else None
        self._word_lookup = WhitespaceWordLookup(words, *rules) if rules else None
        self._index_added_tokens(steps)

    def _make_model(self, steps: Steps, model: dict, all_ids: dict[str, int]) -> dict[str, int]:
        """Build a model with lookup tables. Return {word: id} for words with a single token."""
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
        self._model = make_splitter(model, numbers, words, ids, self.unknown_token_id)
        self._splits_words = self._tokens_stay_in_words(words)
        self.words_are_independent &= not self._keeps_spaces or self._splits_words
        if self._keeps_spaces:
            numbers[ord(" ")] = self._space_number
        self._numbers = CodePointTable(numbers)
        whole = self._are_whole(words, ids)
        self._word_table = WordTable(words.where(whole), ids[whole])
        names, special = dict(zip(found.values(), found, strict=True)), set(steps.skipped_ids)
        return {names[i].removeprefix(SPACE): i for i in ids[whole] if i not in special}

    def _tokens_stay_in_words(self, words: PackedWords) -> bool:
        """Return whether all tokens are limited to a single word."""
        is_sign = words.symbols == self._space_number
        inner = np.ones_like(is_sign)
        inner[words.starts] = False
        crosses = is_sign & inner & ~np.roll(is_sign, 1)
        alone = is_sign[words.starts] & (words.lengths == 1)  # else it could be fused
        return bool(alone.any() and not crosses.any())

    def _are_whole(self, words: PackedWords, ids: np.ndarray) -> np.ndarray:
        """Return a boolean array of shape (W,): True for short words with a single token."""
        first = words.symbols[words.starts]
        is_whole = np.isin(ids, self.special_ids) | (first == self._space_number)
        is_whole &= words.lengths <= MAX_SYMBOLS
        few = words.where(is_whole)
        is_whole[is_whole] = are_single_tokens(self._split, few, ids[is_whole])
        return is_whole

    def _split(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordTokens:
        """Return tokens for words, given start and end indices with shape (W,) for symbols (S,)."""
        tokens = self._model.encode(symbols, starts, ends)
        # With byte fallback in BPE, each byte has the same span as its character.
        return tokens.fuse(self.unknown_token_id) if self._fuses else tokens

    def _ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        if self._word_lookup is None or not self.words_are_independent:
            return super()._ids(texts, as_words)
        return self._word_lookup.ids(texts, lambda parts: self._encode(parts, as_words)[0])

    def _tokenize(self, chars: Characters) -> Tokens:
        numbers = self._numbers(chars.codes)
        solid, first, spaced = self._word_starts(chars, numbers)
        # Remove white space, and insert "▁" before words that do not start with it.
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
            ids, begins, ends, splits = spell_unknown(
                self._bytes, self.unknown_token_id, codes, ids, begins, ends
            )
            rows = tf.gather(splits, rows)
        starts = tf.gather(chars.starts, tf.gather(owner, begins))
        return Tokens(ids, starts, tf.gather(chars.ends, tf.gather(owner, ends - 1)), rows)

    def _normalize(self, chars: Characters) -> Characters:
        return self._normalizer(chars)

    def _add_prefix_space(self, chars: Characters, as_words: bool) -> Characters:
        if self._inserts_space or not as_words:
            return chars
        return insert_spaces(chars, chars.row_starts() & ~is_special_token(chars.codes))

    def _word_starts(
        self, chars: Characters, numbers: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return three masks with shape (N,).

        They are True for characters that are not white space, for the first character in each word,
        and for first characters that need to be preceded by "▁".
        """
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
        if self._words_depend:  # if a text contains "▁", insert another "▁" before it
            spaced |= first & shift_right(~solid, 1, False) & ~chars.row_starts() & ~special
        return solid, first, spaced


def lookup_rules(
    normalizer: Sequence[Mapping],
) -> tuple[dict[str, str], Mapping[int, Sequence[int]], bool] | None:
    """Return rules, mapping and lower-casing for `WhitespaceWordLookup`.

    Return None if the normalizer steps are not supported.
    """
    types = [step["type"] for step in normalizer if step not in QUOTES]
    charsmaps = [s["precompiled_charsmap"] for s in normalizer if s["type"] == "Precompiled"]
    lowers, strips = "Lowercase" in types, "StripAccents" in types
    accents = ["NFKD", "StripAccents"] * strips
    if types != [*accents, *["Lowercase"] * lowers, *["Precompiled"] * len(charsmaps)]:
        return None
    mapping = folding_map(lowers, not strips) if lowers or strips else {}
    return charsmap_rules(charsmaps[0] if charsmaps else None), mapping, lowers


def has_its_words(steps: Steps) -> bool:
    """Return whether words begin with "▁", as required by `SentencePieceGraph`."""
    if steps.keeps_spaces:
        ends = steps.normalizer[-1:] == [REPLACED_SPACE]
        return ends and steps.pre_tokenizer in ([], [KEPT_WORDS]) and not steps.trims
    split = [] if steps.words_depend else [{"type": "WhitespaceSplit"}]
    return steps.pre_tokenizer == [*split, METASPACE] and not steps.trims
