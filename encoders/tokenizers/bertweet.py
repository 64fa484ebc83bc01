"""BERTweet's tokenizer: words between white space, split by fastBPE's merges of characters."""

import functools
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.files.bertweet import BertweetFiles
from encoder_zoo.encoders.tokenizers.segmentation.bpe import BPE
from encoder_zoo.encoders.tokenizers.segmentation.tokens import (
    Tokens,
    WordTokens,
    are_single_tokens,
)
from encoder_zoo.encoders.tokenizers.segmentation.word_table import MAX_SYMBOLS, WordTable
from encoder_zoo.encoders.tokenizers.text.characters import Characters
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords, character_numbers
from encoder_zoo.encoders.tokenizers.text.ragged import index_mask, shift_left, shift_right
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

WORD_END = "</w>"  # on the last character of a word, in the merges
CONTINUED = "@@"  # on tokens that do not end a word, in the vocabulary
NUM_FIRST = 4  # tokens with a fixed id
LAST_SPACE = 0x3000  # the last code point that is white space


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BertweetTokenizer(BertweetFiles, Tokenizer):
    """Splits texts into the ids that BERTweet was trained with.

    Texts are split at white space; a line break directly after a word belongs to it. Texts are not
    normalized: pass tweets with "@USER" and "HTTPURL" for names and links, as in training.

    Args:
        vocabulary: the tokens in the order of their ids: start, padding, end and unknown token
            first. Tokens that do not end a word end with "@@".
        merges: pairs "a b" in the order in which they were learned. The last character of a word
            ends with "</w>".
        **options: the other arguments of `Tokenizer`.

    Raises:
        ValueError: "vocabulary begins with ['a', ...]. Expected ['<s>', '<pad>', '</s>',
            '<unk>'].", "vocabulary has 'a' twice. Expected ...", "vocabulary[5] is ' a'. Expected
            ...", "merges[0] is 'ab'. Expected two symbols, separated by a space."

    Source: Nguyen, Vu & Nguyen, "BERTweet: A pre-trained language model for English Tweets"
        (2020), section 3; Sennrich, Haddow & Birch, "Neural Machine Translation of Rare Words
        with Subword Units" (2016).

    Example:
        >>> vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "hi", "h@@", "o", "<mask>"]
        >>> tokenizer = BertweetTokenizer(vocabulary, ["h i</w>"])
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets("hi ho")
        >>> [tokenizer.id_to_token(i) for i in ids], starts.numpy().tolist()
        (['hi', 'h@@', 'o'], [0, 3, 4])
    """

    lstrip_mask = False

    def __init__(self, vocabulary: Sequence[str], merges: Sequence[str], **options):
        super().__init__(vocabulary, **options)
        first = [self.start_token, self.pad_token, self.end_token, self.unknown_token]
        _check_vocabulary(self.vocabulary, first)
        _check_merges(merges)
        self._merge_lines = "\n".join(merges)
        spaces = np.zeros(SPECIALS.stop, np.int32)
        spaces[[code for code in range(LAST_SPACE + 1) if chr(code).isspace()]] = 1
        self._spaces = CodePointTable(spaces)
        spelled = [f"{t} ".removesuffix(f"{CONTINUED} ") for t in self.get_vocabulary()]
        self._spelling = tf.constant(spelled)
        numbers = self._numbered_characters()
        self._numbers = CodePointTable(numbers)
        self._num_characters = int(numbers.max()) + 1
        self._make_bpe(numbers)
        self._word_table = WordTable(*self._single_tokens(numbers))
        self._index_added_tokens()

    @property
    def merges(self) -> list[str]:
        """Pairs of symbols in the order in which they were learned."""
        return self._merge_lines.split("\n") if self._merge_lines else []

    def starts_word(self, token: str) -> bool:
        """Return False: tokens only tell whether they end a word, see `ends_word`."""
        return False

    def ends_word(self, token: str) -> bool:
        """Return whether a token is the last of its word."""
        return not token.endswith(CONTINUED)

    def _clean_up(self, texts: tf.Tensor) -> tf.Tensor:
        return tf.strings.strip(texts)

    def _numbered_characters(self) -> np.ndarray:
        """Number the characters of the vocabulary and the merges, and special tokens in texts."""
        texts = PackedWords.from_texts([*self.vocabulary, self._merge_lines])
        special = PackedWords.from_symbols([[code] for code in SPECIALS[:5]])
        return character_numbers(texts.concatenate(special))

    def _make_bpe(self, numbers: np.ndarray) -> None:
        """Build the BPE, whose symbols have ids of their own since some are no tokens."""
        known = np.flatnonzero(numbers[: SPECIALS.start] > 1)
        ids: dict[str, int] = {}  # 0 is for characters without a token
        symbol_ids = np.zeros(2 * self._num_characters, np.int32)
        for code in known:
            for symbol, offset in ((chr(code), 0), (chr(code) + WORD_END, self._num_characters)):
                symbol_ids[numbers[code] + offset] = ids.setdefault(symbol, len(ids) + 1)
        for merge in self.merges:
            left, _, right = merge.partition(" ")
            for symbol in (left, right, left + right):
                ids.setdefault(symbol, len(ids) + 1)
        special = set(self.special_token_ids)  # texts contain no special tokens
        tokens = {t: i for t, i in self._vocabulary.ids.items() if i not in special}
        unknown = self.unknown_token_id
        inner = [tokens.get(symbol + CONTINUED, unknown) for symbol in ids]
        last = [tokens.get(symbol.removesuffix(WORD_END), unknown) for symbol in ids]
        self._inner_ids = tf.constant([unknown, *inner], tf.int32)
        self._last_ids = tf.constant([unknown, *last], tf.int32)
        self._model = BPE(symbol_ids.tolist(), self.merges, ids)

    def _single_tokens(self, numbers: np.ndarray) -> tuple[PackedWords, np.ndarray]:
        """Return the words that the merges make one token, as numbers, and their ids."""
        special = set(self.special_token_ids)
        ids = {
            token: i
            for token, i in self._vocabulary.ids.items()
            if 0 < len(token) <= MAX_SYMBOLS and i not in special
        }
        words, ids = PackedWords.from_texts(list(ids)), np.array(list(ids.values()), np.int64)
        words = words._replace(symbols=numbers[words.symbols].astype(np.int64))
        is_made = are_single_tokens(
            lambda symbols, starts, ends: self._encode_words(symbols, ends, starts, ends),
            words,
            ids,
        )
        of_special = PackedWords.from_symbols([[numbers[code]] for code in SPECIALS[:5]])
        words = words.where(is_made).concatenate(of_special)
        return words, np.array([*ids[is_made], *self.special_token_ids[:5]])

    def _encode_words(
        self, numbers: tf.Tensor, all_ends: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> WordTokens:
        """Return the tokens of the words at starts (W,) ... ends (W,) of the numbers (N,)."""
        ends_word = tf.cast(index_mask(all_ends - 1, tf.size(numbers)), tf.int32)
        symbols = numbers + self._num_characters * ends_word
        tokens = self._model.encode(symbols, starts, ends)
        is_last = index_mask(tokens.splits[1:] - 1, tf.size(tokens.ids))
        last, inner = tf.gather(self._last_ids, tokens.ids), tf.gather(self._inner_ids, tokens.ids)
        return tokens._replace(ids=tf.where(is_last, last, inner))

    def _tokenize(self, chars: Characters) -> Tokens:
        starts, ends = self._word_bounds(chars)
        numbers = self._numbers(chars.codes)
        ids, begins, ends, splits = self._word_table.tokens(
            numbers, starts, ends, functools.partial(self._encode_words, numbers, ends)
        )
        rows = tf.gather(splits, tf.searchsorted(starts, chars.row_splits))
        starts, ends = tf.gather(chars.starts, begins), tf.gather(chars.ends, ends - 1)
        return Tokens(ids, starts, ends, rows)

    def _word_bounds(self, chars: Characters) -> tuple[tf.Tensor, tf.Tensor]:
        """Return starts and ends (W,) of the words, with a line break directly after them."""
        solid = self._spaces(chars.codes) == 0
        special = chars.codes >= SPECIALS.start
        alone = chars.row_starts() | special | shift_right(special, 1, False)
        begins = solid & (alone | ~shift_right(solid, 1, False))
        is_last = solid & (shift_left(begins, 1, True) | ~shift_left(solid, 1, False))
        breaks = (chars.codes == ord("\n")) & ~chars.row_starts()
        starts = tf.cast(tf.where(begins)[:, 0], tf.int32)
        lasts = tf.cast(tf.where(is_last)[:, 0], tf.int32)
        takes_break = shift_left(breaks, 1, False) & ~special
        return starts, lasts + 1 + tf.cast(tf.gather(takes_break, lasts), tf.int32)


def _check_vocabulary(vocabulary: list[str], first: list[str]) -> None:
    """Raise an error if vocab.txt cannot hold the vocabulary."""
    if vocabulary[:NUM_FIRST] != first:
        raise ValueError(f"vocabulary begins with {vocabulary[:NUM_FIRST]}. Expected {first}.")
    if len(set(vocabulary)) < len(vocabulary):
        seen: set[str] = set()
        double = next(token for token in vocabulary if token in seen or seen.add(token))
        raise ValueError(f"vocabulary has {shown(double)} twice. Expected every token once.")
    for i, token in enumerate(vocabulary):
        if not token or token != token.strip() or "\n" in token or "\r" in token:
            raise ValueError(
                f"vocabulary[{i}] is {shown(token)}. Expected a token without a line break in it "
                "and without white space around it, as lines of vocab.txt hold them."
            )


def _check_merges(merges: Sequence[str]) -> None:
    """Raise an error if a merge is not a pair of symbols."""
    for i, merge in enumerate(merges):
        if len(merge.split()) != 2 or merge != " ".join(merge.split()):
            raise ValueError(
                f"merges[{i}] is {shown(merge)}. Expected two symbols, separated by a space."
            )
