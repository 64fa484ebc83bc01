"""BERT's tokenizer: normalise, split at spaces and punctuation, then longest match first."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from encoder_zoo.common.validation import PositiveInt, SpecialToken, validate_arguments
from encoder_zoo.common.wording import decoded, shown
from encoder_zoo.encoders.tokenizers.files.wordpiece import WordPieceFiles, tokens_in
from encoder_zoo.encoders.tokenizers.segmentation.trie import NOWHERE, Trie
from encoder_zoo.encoders.tokenizers.segmentation.whole_words import WholeWords
from encoder_zoo.encoders.tokenizers.segmentation.word_table import (
    FOREIGN,
    WordPieces,
    WordTable,
    character_numbers,
)
from encoder_zoo.encoders.tokenizers.text.characters import (
    Characters,
    after,
    characters,
    laid_out,
    marked,
    row_numbers,
)
from encoder_zoo.encoders.tokenizers.text.normalization import (
    FIRST_ALONE,
    FIRST_DROPPED,
    FIRST_SPACE,
    BertNormalizer,
    normalization_tables,
    number_of,
)
from encoder_zoo.encoders.tokenizers.text.sequences import Spellings
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable, members
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer, Tokens

MAX_WORD_CHARACTERS = 100
START, CONTINUATION = 1, 2  # roots of the trie


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BertTokenizer(WordPieceFiles, Tokenizer):
    """WordPiece ids of texts, exactly those that BERT checkpoints were trained with.

    Args:
        vocabulary: tokens in the order of their ids, or the path of a vocab.txt. Pieces that
            continue a word start with "##".
        lowercase: lower-case the text, character by character.
        strip_accents: decompose characters and leave out nonspacing marks; None follows lowercase.
        split_chinese_characters: make every Chinese character a word.
        special_tokens_in_text: read a literal "[SEP]" or "[MASK]" in a text as that token; without
            it, it is text like any other, so that a text cannot forge structure.
        start_token, end_token, pad_token, mask_token, unknown_token: names in the vocabulary.
        uses_segments: whether the second text of a pair has segment id 1.
        pair_separators: how many end tokens stand between the two texts of a pair.
        added_tokens: words, markers or white space to be found in texts before all else, see
            `added_tokens.described`.

    Raises:
        ValueError: "'[CLS]' is not among the 3 tokens ..."

    Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2019); Wu et
        al., "Google's Neural Machine Translation System" (2016), section 4.1, for WordPiece.

    Example:
        >>> words = ["un", "##affable", "café", "cafe"]
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        >>> tokenizer.tokenize(["Unaffable Café?"]).to_list()
        [[5, 6, 8, 1]]
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets("Unaffable Café?")
        >>> starts.numpy().tolist(), ends.numpy().tolist()
        ([0, 2, 10, 14], [2, 9, 14, 15])
    """

    mask_takes_space_before = False

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str] | str | Path,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_chinese_characters: bool = True,
        special_tokens_in_text: bool = False,
        start_token: SpecialToken = "[CLS]",
        end_token: SpecialToken = "[SEP]",
        pad_token: SpecialToken = "[PAD]",
        mask_token: SpecialToken = "[MASK]",
        unknown_token: SpecialToken = "[UNK]",
        uses_segments: bool = True,
        pair_separators: PositiveInt = 1,
        added_tokens: Sequence[str | Mapping] = (),
    ):
        if isinstance(vocabulary, str | Path):
            vocabulary = tokens_in(decoded(Path(vocabulary).read_bytes(), vocabulary))
        for i, token in enumerate(vocabulary):
            if isinstance(token, str) and ("\n" in token or "\r" in token):
                raise ValueError(
                    f"vocabulary[{i}] is {shown(token)}; expected no line break in a token, of "
                    "which vocab.txt has one in each line"
                )
        special_tokens = [start_token, end_token, pad_token, mask_token, unknown_token]
        super().__init__(vocabulary, special_tokens, special_tokens_in_text, added_tokens)
        self.uses_segments = uses_segments
        self.pair_separators = pair_separators
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_chinese_characters = split_chinese_characters
        strips = self.strips_accents
        roots, words, ids = self._entries()
        numbers = character_numbers(words)
        self._normalize = BertNormalizer(lowercase, strips, split_chinese_characters, numbers)
        self._numbers = None
        if any(token["normalized"] for token in self.added_tokens):  # they are of all characters
            self._numbers = CodePointTable(numbers)
            codes = np.arange(SPECIALS.stop, dtype=np.int32)
            self._to_codes = BertNormalizer(lowercase, strips, split_chinese_characters, codes)
            chinese = members("chinese") & split_chinese_characters
            self._chinese = CodePointTable(chinese.astype(np.int32))
        words = words._replace(symbols=numbers[words.symbols])
        self._trie = Trie(roots, words, ids, num_roots=2)
        words = words.where(roots == START).followed_by(Spellings.of([[FOREIGN]]))
        self._words = WordTable(words, [*ids[roots == START], self.unknown_token_id])
        whole = [t for t in self._vocabulary.ids if self._may_be_word(t)]
        whole = normalization_tables(lowercase, strips, split_chinese_characters).unchanged(whole)
        whole_words = {token: self._vocabulary.ids[token] for token in whole}
        self._whole_words = WholeWords(whole_words, lowercase)
        self._spelling = tf.constant(
            [
                t.removeprefix("##") if not self.starts_word(t) else f" {t}"
                for t in self.get_vocabulary()
            ]
        )
        self._make_finders()

    @property
    def vocabulary(self) -> list[str]:
        """The tokens of the model, in the order of their ids."""
        return list(self._vocabulary.tokens)

    @property
    def strips_accents(self) -> bool:
        """Whether accents are left out."""
        return self.lowercase if self.strip_accents is None else self.strip_accents

    def starts_word(self, token: str) -> bool:
        """Whether a piece begins a word, rather than continuing one."""
        return not token.startswith("##")

    @validate_arguments
    def detokenize(self, ids: object, skip_special_tokens: bool = True) -> tf.Tensor:
        """Readable texts of token ids: words with one space between them.

        Args:
            ids: integers (B, L), ragged or padded, or those of one text (L,).
            skip_special_tokens: leave out padding, [CLS] and the like.

        Returns:
            tf.string tensor (B,); () for one text.

        Example:
            >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##do", "it"]
            >>> BertTokenizer(tokens).detokenize([2, 5, 6, 7, 3]).numpy()
            b'undo it'
        """
        return tf.strings.strip(self._joined(ids, self._spelling, skip_special_tokens))

    def _may_be_word(self, token: str) -> bool:
        """Whether a word of text, if it is spelled like a token, is that token."""
        continues = token.startswith("##") and len(token) > 2
        return 0 < len(token) <= MAX_WORD_CHARACTERS and not continues

    def _ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        if self.special_tokens_in_text or self.added_tokens:  # they are made of several words
            return super()._ids(texts, as_words)
        return self._whole_words.ids(texts, self._pieces)

    def _pieces(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids (B, None) of texts (B,) few of whose words are tokens, so that none is looked up."""
        chars = self._normalize(characters(texts))
        starts, ends = word_bounds(chars)
        pieces = self._longest_matches(number_of(chars.codes), starts, ends)
        splits = tf.gather(pieces.splits, tf.searchsorted(starts, chars.row_splits))
        return tf.RaggedTensor.from_row_splits(pieces.ids, splits, validate=False)

    def _entries(self) -> tuple[np.ndarray, Spellings, np.ndarray]:
        """Roots of the trie (W,), spellings and ids (W,) of every token that text can hold."""
        tokens = [token for token in self._vocabulary.ids if token]
        continues = np.array([t.startswith("##") and len(t) > 2 for t in tokens])
        texts = [t[2:] if c else t for t, c in zip(tokens, continues, strict=True)]
        special_ids = self.special_token_ids[: len(SPECIALS)]
        special = Spellings.of([[code] for code in SPECIALS[: len(special_ids)]])
        roots = [*np.where(continues, CONTINUATION, START), *[START] * len(special_ids)]
        ids = [*map(self._vocabulary.ids.get, tokens), *special_ids]
        return np.array(roots), Spellings.of_texts(texts).followed_by(special), np.array(ids)

    def _normalized(self, chars: Characters) -> Characters:
        if self._numbers is None:
            return self._normalize(chars)
        chars = self._to_codes(chars)
        is_space = (chars.codes >= FIRST_SPACE) & (chars.codes < FIRST_DROPPED)
        chars = chars._replace(codes=tf.where(is_space, FIRST_SPACE | ord(" "), chars.codes))
        # A Chinese character has a space before and behind it, which tokens may be found with.
        repeats = 1 + 2 * self._chinese(number_of(chars.codes))
        splits = tf.concat([[0], tf.cumsum(repeats)], 0)
        owner = row_numbers(splits, splits[-1])
        is_added = tf.range(splits[-1]) != tf.gather(splits[:-1] + repeats // 2, owner)
        codes = tf.where(is_added, FIRST_SPACE | ord(" "), tf.gather(chars.codes, owner))
        rows = tf.gather(splits, chars.row_splits)
        return chars.take(owner)._replace(codes=codes, row_splits=rows)

    def _code_points(self, chars: Characters) -> tf.Tensor:
        return number_of(chars.codes)

    def _tokens(self, chars: Characters) -> Tokens:
        starts, ends = word_bounds(chars)
        words = tf.searchsorted(starts, chars.row_splits)
        numbers = number_of(chars.codes)
        if self._numbers is not None:
            numbers = self._numbers(numbers)
        ids, starts, ends, splits = self._words.tokens(
            numbers, starts, ends, functools.partial(self._longest_matches, numbers)
        )
        return Tokens(
            ids,
            tf.gather(chars.starts, starts),
            tf.gather(chars.ends, ends - 1),
            tf.gather(splits, words),
        )

    def _longest_matches(self, codes: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordPieces:
        """The longest pieces of words (W,), from left to right."""
        too_long = ends - starts > MAX_WORD_CHARACTERS
        ends = tf.where(too_long, starts, ends)
        places, word, splits = laid_out(starts, ends + 1)  # (P,), (P,), (W + 1,)
        codes = tf.gather(codes, tf.minimum(places, tf.size(codes) - 1))
        codes = tf.tensor_scatter_nd_update(codes, splits[1:, None] - 1, tf.zeros_like(starts))
        begins = splits[:-1]  # every word stands there now, and a zero behind it

        ids, lengths = self._matches(codes, begins)
        reached = reached_from(begins, lengths)
        stuck = tf.boolean_mask(word, reached & (lengths == 0) & (codes != 0))
        failed = too_long | marked(stuck, tf.size(starts))  # then the whole word is unknown
        ids = tf.where(tf.gather(failed, word), self.unknown_token_id, ids)
        is_piece = tf.where(
            tf.gather(failed, word), marked(begins, tf.size(codes)), reached & (lengths > 0)
        )
        found = tf.cast(tf.where(is_piece)[:, 0], tf.int32)
        within = found - tf.gather(begins, tf.gather(word, found))
        return WordPieces(tf.gather(ids, found), within, tf.searchsorted(found, splits))

    def _matches(self, codes: tf.Tensor, begins: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The longest piece that starts at each place, where it may: ids and lengths (P,)."""
        nothing = tf.zeros_like(codes)
        nodes = tf.where(marked(begins, tf.size(codes)), START, CONTINUATION)

        def step(length, origin, node, ids, lengths):  # one character on, from all places at once
            node = self._trie.step(node, tf.gather(codes, origin + length))
            alive = tf.where(node != NOWHERE)[:, 0]
            origin, node, length = tf.gather(origin, alive), tf.gather(node, alive), length + 1
            value = self._trie.value(node)
            matching = tf.where(value >= 0)[:, 0]
            place = tf.gather(origin, matching)[:, None]
            ids = tf.tensor_scatter_nd_update(ids, place, tf.gather(value, matching))
            longest = tf.fill(tf.shape(matching), length)
            lengths = tf.tensor_scatter_nd_update(lengths, place, longest)
            return length, origin, node, ids, lengths

        *_, ids, lengths = tf.while_loop(
            lambda length, origin, *_: tf.size(origin) > 0,
            step,
            [0, tf.range(tf.size(codes)), tf.cast(nodes, tf.int64), nothing, nothing],
            shape_invariants=[tf.TensorShape([]), *[tf.TensorShape([None])] * 4],
            parallel_iterations=1,
        )
        return ids, lengths


def reached_from(begins: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Boolean (P,): does a chain of pieces of these lengths (P,), from one of the begins, get here?

    Example:
        >>> reached_from(tf.constant([0, 4]), tf.constant([2, 1, 1, 0, 0])).numpy().tolist()
        [True, False, True, True, True]
    """

    def follow(current, reached):
        ones = tf.ones_like(current)
        reached = tf.tensor_scatter_nd_update(reached, current[:, None], ones)
        length = tf.gather(lengths, current)
        return tf.boolean_mask(current + length, length > 0), reached

    _, reached = tf.while_loop(
        lambda current, _: tf.size(current) > 0,
        follow,
        [begins, tf.zeros_like(lengths)],
        shape_invariants=[tf.TensorShape([None])] * 2,
        parallel_iterations=1,
    )
    return reached > 0


def word_bounds(chars: Characters) -> tuple[tf.Tensor, tf.Tensor]:
    """Starts and ends (W,) of the words: runs of WORD, and every ALONE for itself."""
    is_word = chars.codes < FIRST_ALONE
    follows = tf.concat([[False], is_word], 0)
    row_starts = chars.row_splits[:-1, None]
    follows = tf.tensor_scatter_nd_update(
        follows, row_starts, tf.zeros_like(row_starts[:, 0], bool)
    )
    goes_on = is_word & follows[:-1]
    in_word = chars.codes < FIRST_SPACE
    starts = tf.where(in_word & ~goes_on)[:, 0]
    lasts = tf.where(in_word & ~after(goes_on, 1, False))[:, 0]
    return tf.cast(starts, tf.int32), tf.cast(lasts, tf.int32) + 1
