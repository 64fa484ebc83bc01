"""SentencePiece: words with the space before them, split into probable pieces."""

import base64
import functools
import json
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.common.validation import PositiveInt, SpecialToken, validate_arguments
from encoder_zoo.encoders.tokenizers.files.sentencepiece import BYTE_TOKENS, SentencePieceFiles
from encoder_zoo.encoders.tokenizers.segmentation.bpe import PairMerges
from encoder_zoo.encoders.tokenizers.segmentation.pre_tokenization import utf8_symbols
from encoder_zoo.encoders.tokenizers.segmentation.unigram import Unigram
from encoder_zoo.encoders.tokenizers.segmentation.whitespace_words import SpacedWords
from encoder_zoo.encoders.tokenizers.segmentation.word_table import (
    LONGEST,
    WordPieces,
    WordTable,
    character_numbers,
)
from encoder_zoo.encoders.tokenizers.text.characters import (
    Characters,
    after,
    before,
    laid_out,
    marked,
    row_numbers,
)
from encoder_zoo.encoders.tokenizers.text.charsmap import read_charsmap
from encoder_zoo.encoders.tokenizers.text.precompiled import PrecompiledNormalizer, is_special
from encoder_zoo.encoders.tokenizers.text.sequences import Spellings
from encoder_zoo.encoders.tokenizers.text.unicode_tables import (
    SPECIALS,
    CodePointTable,
    members,
)
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer, Tokens

SPACE = "▁"
WHITE = 0  # the number of white space, which separates words


class SentencePieceTokenizer(SentencePieceFiles, Tokenizer):
    """What the SentencePiece tokenizers have in common.

    A text is normalised and split at white space; every word has the sign for a space before it,
    also the first, and becomes the pieces whose scores add up to most, or, with merges, those that
    byte pair encoding of its characters ends with.

    Args:
        vocabulary: tokens in the order of their ids, the spaces in them written as "▁".
        scores: of the tokens, logarithms of probabilities; None for a token that stands for no
            text, and none for those at the end that were added. With merges, no number counts.
        precompiled_charsmap: the normalisation in base64, as tokenizer.json has it; None for none.
        byte_fallback: write characters without a piece as bytes, the tokens "<0x00>" to "<0xFF>".
        special_tokens_in_text: read a literal "</s>" or "<mask>" in a text as that token, a mask
            together with the white space before it; without this, it is text like any other, so
            that a text cannot forge structure.
        start_token, end_token, pad_token, mask_token, unknown_token: names in the vocabulary.
        uses_segments: whether the second text of a pair has segment id 1.
        pair_separators: how many end tokens stand between the two texts of a pair.
        added_tokens: words, markers or white space to be found in texts before all else, see
            `added_tokens.described`.
        merges: "a b" pairs in the order in which they were learned, of a model that is a byte pair
            encoding; None for a Unigram model.
        remove_extra_whitespaces: False: no white space separates words or is left out. A space is
            written "▁", as is one put before every text, and tokens go across words as they may.

    Raises:
        ValueError: "'<s>' is not among the 3 tokens ...", "scores has 5 values for 3 tokens",
            "merges[0] is 'ab'; expected two tokens ..."

    Source: Kudo & Richardson, "SentencePiece" (2018); Kudo, "Subword Regularization" (2018);
        Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016). Ids
        and spans are those of the library `tokenizers`, which transformers uses.
    """

    mask_takes_space_before = True

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        scores: Sequence[float | None],
        precompiled_charsmap: str | None = None,
        byte_fallback: bool = False,
        special_tokens_in_text: bool = False,
        start_token: SpecialToken = "<s>",
        end_token: SpecialToken = "</s>",
        pad_token: SpecialToken = "<pad>",
        mask_token: SpecialToken = "<mask>",
        unknown_token: SpecialToken = "<unk>",
        uses_segments: bool = False,
        pair_separators: PositiveInt = 2,
        added_tokens: Sequence[str | Mapping] = (),
        merges: Sequence[str] | None = None,
        remove_extra_whitespaces: bool = True,
    ):
        special_tokens = [start_token, end_token, pad_token, mask_token, unknown_token]
        super().__init__(vocabulary, special_tokens, special_tokens_in_text, added_tokens)
        self._scores = checked_scores(scores, vocabulary)
        self.uses_segments = uses_segments
        self.pair_separators = pair_separators
        self.precompiled_charsmap = precompiled_charsmap
        self.byte_fallback = byte_fallback
        self.remove_extra_whitespaces = remove_extra_whitespaces
        # As text: tf.Module would wrap each of a list's strings.
        self._merges_json = json.dumps(None if merges is None else list(merges))
        rules = {}
        if precompiled_charsmap:
            content = base64.b64decode(precompiled_charsmap, validate=True)
            rules = read_charsmap(content, "precompiled_charsmap")
        self._normalize = PrecompiledNormalizer(rules)
        self._bytes = self._byte_ids() if byte_fallback else None
        common = self._prepare_pieces()
        self._spaced_words = SpacedWords(common, rules, self._mapping(), self._lowers())
        self._spelling = tf.constant([self._text_of(token) for token in self.get_vocabulary()])
        self._make_finders()

    @property
    def vocabulary(self) -> list[str]:
        """The tokens of the model, in the order of their ids."""
        return list(self._vocabulary.tokens)

    @property
    def scores(self) -> list[float | None]:
        """Scores of the tokens; None for a token that stands for no text."""
        return [None if np.isnan(score) else score for score in self._scores.tolist()]

    @property
    def merges(self) -> list[str] | None:
        """Pairs of tokens in the order in which they were learned; None for a Unigram model."""
        return json.loads(self._merges_json)

    def starts_word(self, token: str) -> bool:
        """Whether a piece begins a word, rather than continuing one."""
        return token.startswith(SPACE)

    @validate_arguments
    def detokenize(self, ids: object, skip_special_tokens: bool = True) -> tf.Tensor:
        """Readable texts of token ids, normalised, with one space between words.

        Args:
            ids: integers (B, L), ragged or padded, or those of one text (L,).
            skip_special_tokens: leave out padding, <s> and the like.

        Returns:
            tf.string tensor (B,); () for one text.
        """
        texts = self._joined(ids, self._spelling, skip_special_tokens)
        return tf.strings.regex_replace(texts, "^ ", "")

    def _text_of(self, token: str) -> bytes:
        """The text that a token stands for."""
        if self._bytes is not None and token in BYTE_TOKENS:
            return bytes([BYTE_TOKENS.index(token)])
        return token.replace(SPACE, " ").encode("utf-8")

    def _byte_ids(self) -> tf.Tensor:
        """The ids (256,) of the tokens that stand for bytes."""
        lacking = [token for token in BYTE_TOKENS if token not in self._vocabulary.ids]
        if lacking:
            raise ValueError(
                f"byte_fallback is True, but the vocabulary lacks {', '.join(lacking[:3])}; "
                "expected the tokens <0x00> to <0xFF>"
            )
        return tf.constant([self._vocabulary.ids[token] for token in BYTE_TOKENS], tf.int32)

    @property
    def _words_stand_alone(self) -> bool:
        return super()._words_stand_alone and (self.remove_extra_whitespaces or self._apart)

    def _mapping(self) -> Mapping[int, Sequence[int]]:
        """What single characters become before the model's own normalisation."""
        return {}

    def _lowers(self) -> bool:
        """Whether letters are lower-cased before all else."""
        return False

    def _prepare_pieces(self) -> dict[str, int]:
        """Tables of characters, pieces and words; returns {word: id} of those that are tokens."""
        special, tokens = set(self.special_token_ids), self._vocabulary.tokens
        ids = [
            token_id
            for token_id, (token, score) in enumerate(zip(tokens, self._scores, strict=False))
            if token and not np.isnan(score) and token_id not in special
        ]
        in_text = self.special_token_ids[: len(SPECIALS)]
        codes = Spellings.of([[code] for code in SPECIALS[: len(in_text)]])
        words = Spellings.of_texts([tokens[i] for i in ids]).followed_by(codes)
        ids = np.array([*ids, *in_text])
        numbers = character_numbers(words.followed_by(Spellings.of([[ord(SPACE)]])))
        self._space_number = int(numbers[ord(SPACE)])
        numbers[ord(" ") if self._only_spaces else members("white_space")] = WHITE
        words = words._replace(symbols=numbers[words.symbols])
        in_words = np.logical_and.reduceat(words.symbols != WHITE, words.starts)
        words, ids = words.where(in_words), ids[in_words]
        self._pieces = self._splitter(words, ids, int(numbers.max()) + 1)
        self._apart = self._words_apart(words)
        if not self.remove_extra_whitespaces:
            numbers[ord(" ")] = self._space_number
        self._numbers = CodePointTable(numbers)
        whole = self._are_whole(words, ids)
        self._words = WordTable(words.where(whole), ids[whole])
        return {tokens[i].removeprefix(SPACE): i for i in ids[whole] if i not in special}

    def _splitter(self, words: Spellings, ids: np.ndarray, num_symbols: int) -> tf.Module:
        """What splits words into tokens, given those that stand for text."""
        if self.merges is None:
            scores = np.zeros(self.vocabulary_size)
            scores[: len(self._scores)] = np.nan_to_num(self._scores)
            return Unigram(words, ids, scores, self.unknown_token_id)
        single = words.lengths == 1
        symbol_ids = np.full(num_symbols, self.unknown_token_id)
        symbol_ids[words.symbols[words.starts[single]]] = ids[single]
        special = set(self.special_token_ids)  # which are among the words, as they stand in text
        texts = {self._vocabulary.tokens[i] for i in ids if i not in special}
        all_ids = self._vocabulary.ids
        merges = [  # of tokens that stand for no text, none is made
            merge
            for merge in self.merges
            if (made := merge.replace(" ", "", 1)) in texts or made not in all_ids
        ]
        return PairMerges(symbol_ids, merges, all_ids)

    def _words_apart(self, words: Spellings) -> bool:
        """Whether no token goes from one word to the next."""
        is_sign = words.symbols == self._space_number
        inner = np.ones_like(is_sign)
        inner[words.starts] = False
        crosses = is_sign & inner & ~np.roll(is_sign, 1)
        alone = is_sign[words.starts] & (words.lengths == 1)  # else signs may be one unknown token
        return bool(alone.any() and not crosses.any())

    def _are_whole(self, words: Spellings, ids: np.ndarray) -> np.ndarray:
        """Boolean (W,): is it one token as a word of its own? Long words are not asked."""
        first = words.symbols[words.starts]
        asked = np.isin(ids, self.special_token_ids) | (first == self._space_number)
        asked &= words.lengths <= LONGEST
        few = words.where(asked)
        starts, ends = few.starts.astype("int32"), (few.starts + few.lengths).astype("int32")
        made = self._split(tf.constant(few.symbols, tf.int32), starts, ends)  # without a trace
        asked[asked] = (np.diff(made.splits) == 1) & (
            tf.gather(made.ids, made.splits[:-1]).numpy() == ids[asked]
        )
        return asked

    def _split(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordPieces:
        """The tokens of words that lie at starts (W,) ... ends (W,) in the symbols (S,)."""
        pieces = self._pieces.encode(symbols, starts, ends)
        if self.merges is not None and self.byte_fallback:
            return pieces  # each of its bytes has the span of its own character
        return pieces.fused(self.unknown_token_id)

    def _ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        if self._only_spaces or not self._words_stand_alone:
            return super()._ids(texts, as_words)
        return self._spaced_words.ids(texts, lambda parts: self._encode(parts, as_words)[0])

    def _tokens(self, chars: Characters) -> Tokens:
        numbers = self._numbers(chars.codes)
        solid, first, spaced = self._word_starts(chars, numbers)
        # white space is left out, and a sign for it put before the words that have none
        splits = tf.concat(
            [[0], tf.cumsum(tf.cast(solid, tf.int32) + tf.cast(spaced, tf.int32))], 0
        )
        owner = row_numbers(splits, splits[-1])
        is_sign = marked(tf.boolean_mask(splits[:-1], spaced), splits[-1])
        symbols = tf.where(is_sign, self._space_number, tf.gather(numbers, owner))
        starts = tf.boolean_mask(splits[:-1], first)
        ids, begins, ends, tokens = self._words.tokens(
            symbols,
            starts,
            after(starts, 1, splits[-1]),
            functools.partial(self._split, symbols),
        )
        words = tf.searchsorted(starts, tf.gather(splits, chars.row_splits))
        rows = tf.gather(tokens, words)
        if self._bytes is not None:
            codes = tf.where(is_sign, ord(SPACE), tf.gather(chars.codes, owner))
            ids, begins, ends, rows = self._with_bytes(codes, ids, begins, ends, rows)
        starts = tf.gather(chars.starts, tf.gather(owner, begins))
        return Tokens(ids, starts, tf.gather(chars.ends, tf.gather(owner, ends - 1)), rows)

    def _normalized(self, chars: Characters) -> Characters:
        """The characters as they stand in the vocabulary."""
        return self._normalize(chars)

    def _word_starts(
        self, chars: Characters, numbers: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Boolean (N,) each: is it no white space, the first of a word, and one without a sign?"""
        special = is_special(chars.codes)
        solid = numbers != WHITE
        is_sign = numbers == self._space_number
        if not self.remove_extra_whitespaces:
            begins = chars.row_starts() | special | before(special, 1, False)
            first = begins | (is_sign & ~before(is_sign, 1, False)) if self._apart else begins
            return solid, first, begins & ~special
        gap = before(~solid | special, 1, True) | chars.row_starts() | special | is_sign
        first = solid & gap
        return solid, first, first & ~is_sign & ~special

    def _with_bytes(
        self, codes: tf.Tensor, ids: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor, rows: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Puts bytes in the place of unknown tokens, each with the span of the whole token."""
        unknown = ids == self.unknown_token_id
        unknown &= ~is_special(tf.gather(codes, begins))
        places, token, _ = laid_out(
            tf.boolean_mask(begins, unknown), tf.boolean_mask(ends, unknown)
        )
        symbols, splits, _ = utf8_symbols(tf.gather(codes, places))
        num_bytes = tf.math.segment_sum(splits[1:] - splits[:-1], token)
        where = tf.where(unknown)
        lengths = tf.tensor_scatter_nd_update(tf.ones_like(ids), where, num_bytes)
        splits = tf.concat([[0], tf.cumsum(lengths)], 0)
        owner = row_numbers(splits, splits[-1])
        ids = tf.gather(ids, owner)
        is_byte = tf.where(tf.gather(unknown, owner))
        ids = tf.tensor_scatter_nd_update(ids, is_byte, tf.gather(self._bytes, symbols))
        return ids, tf.gather(begins, owner), tf.gather(ends, owner), tf.gather(splits, rows)


def checked_scores(scores: Sequence[float | None], tokens: Sequence[str]) -> np.ndarray:
    """Scores with NaN for None, or an error that says which is none."""
    if len(scores) > len(tokens):
        raise ValueError(f"scores has {len(scores)} values for {len(tokens)} tokens")
    for i, score in enumerate(scores):
        if score is not None and not (isinstance(score, int | float) and np.isfinite(score)):
            raise ValueError(
                f"scores[{i}], of {tokens[i]!r}, is {score!r}; expected a finite number or None"
            )
    if all(score is None for score in scores):
        raise ValueError("scores has no number; expected one for every piece of text")
    return np.array([np.nan if score is None else score for score in scores], np.float64)
