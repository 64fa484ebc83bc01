"""BERTweet's tokenizer: words between white space, split by fastBPE's merges of characters."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from encoder_zoo.common.validation import PositiveInt, SpecialToken, validate_arguments
from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.files.bertweet import BertweetFiles
from encoder_zoo.encoders.tokenizers.segmentation.bpe import PairMerges
from encoder_zoo.encoders.tokenizers.segmentation.word_table import (
    LONGEST,
    WordPieces,
    WordTable,
    character_numbers,
)
from encoder_zoo.encoders.tokenizers.text.characters import Characters, after, before, marked
from encoder_zoo.encoders.tokenizers.text.sequences import Spellings
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer, Tokens

WORD_END = "</w>"  # on the last character of a word, in the merges
CONTINUED = "@@"  # behind a piece that does not end its word, in the vocabulary
NUM_FIRST = 4  # tokens with a fixed id
LAST_SPACE = 0x3000  # the last code point that is white space


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BertweetTokenizer(BertweetFiles, Tokenizer):
    """Splits texts into the ids that BERTweet was trained with.

    Words stand between white space; a line break directly behind a word belongs to it. Tweets are
    expected as the model was trained on them, with "@USER" and "HTTPURL" for names and links:
    texts are not normalized.

    Args:
        vocabulary: the tokens in the order of their ids: start, padding, end and unknown token
            first. A piece that does not end its word ends with "@@".
        merges: pairs "a b" in the order in which they were learned. The last character of a word
            ends with "</w>".
        special_tokens_in_text: read a literal "</s>" or "<mask>" in a text as that token. Without
            this it is text like any other, so that a text cannot forge structure.
        start_token, end_token, pad_token, mask_token, unknown_token: names in the vocabulary.
        uses_segments: whether the second text of a pair has segment id 1.
        pair_separators: how many end tokens stand between the two texts of a pair.
        added_tokens: words or markers to be found in texts before all else, see
            `added_tokens.described`.

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

    mask_takes_space_before = False

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Sequence[str],
        special_tokens_in_text: bool = False,
        start_token: SpecialToken = "<s>",
        end_token: SpecialToken = "</s>",
        pad_token: SpecialToken = "<pad>",
        mask_token: SpecialToken = "<mask>",
        unknown_token: SpecialToken = "<unk>",
        uses_segments: bool = False,
        pair_separators: PositiveInt = 2,
        added_tokens: Sequence[str | Mapping] = (),
    ):
        special_tokens = [start_token, end_token, pad_token, mask_token, unknown_token]
        super().__init__(vocabulary, special_tokens, special_tokens_in_text, added_tokens)
        _check_vocabulary(self.vocabulary, [start_token, pad_token, end_token, unknown_token])
        _check_merges(merges)
        self.uses_segments = uses_segments
        self.pair_separators = pair_separators
        self._merge_lines = "\n".join(merges)
        spaces = np.zeros(SPECIALS.stop, np.int32)
        spaces[[code for code in range(LAST_SPACE + 1) if chr(code).isspace()]] = 1
        self._spaces = CodePointTable(spaces)
        spelled = [f"{t} ".removesuffix(f"{CONTINUED} ") for t in self.get_vocabulary()]
        self._spelling = tf.constant(spelled)
        numbers = self._numbered_characters()
        self._numbers = CodePointTable(numbers)
        self._num_characters = int(numbers.max()) + 1
        self._make_merges(numbers)
        self._words = WordTable(*self._reachable(numbers))
        self._make_finders()

    @property
    def vocabulary(self) -> list[str]:
        """The tokens of the model, in the order of their ids."""
        return list(self._vocabulary.tokens)

    @property
    def merges(self) -> list[str]:
        """Pairs of symbols in the order in which they were learned."""
        return self._merge_lines.split("\n") if self._merge_lines else []

    def starts_word(self, token: str) -> bool:
        """Returns False: a piece does not tell whether it begins a word, see `ends_word`."""
        return False

    def ends_word(self, token: str) -> bool:
        """Tells whether a piece is the last of its word."""
        return not token.endswith(CONTINUED)

    @validate_arguments
    def detokenize(self, ids: object, skip_special_tokens: bool = True) -> tf.Tensor:
        """Joins tokens to readable texts: words with one space between them.

        Args:
            ids: integers (B, L), ragged or padded, or those of one text (L,).
            skip_special_tokens: leave out padding, <s> and the like.

        Returns:
            tf.string tensor (B,); () for one text.

        Example:
            >>> vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "hi", "h@@", "o", "<mask>"]
            >>> BertweetTokenizer(vocabulary, []).detokenize([0, 4, 5, 6, 2]).numpy()
            b'hi ho'
        """
        return tf.strings.strip(self._joined(ids, self._spelling, skip_special_tokens))

    def _numbered_characters(self) -> np.ndarray:
        """Numbers what the vocabulary and the merges are made of, and special tokens in texts."""
        texts = Spellings.of_texts([*self.vocabulary, self._merge_lines])
        special = Spellings.of([[code] for code in SPECIALS[:5]])
        return character_numbers(texts.followed_by(special))

    def _make_merges(self, numbers: np.ndarray) -> None:
        """Prepares the merges, whose symbols have ids of their own: not all of them are tokens."""
        known = np.flatnonzero(numbers[: SPECIALS.start] > 1)
        ids: dict[str, int] = {}  # 0 is left for characters that are in no token
        symbol_ids = np.zeros(2 * self._num_characters, np.int32)
        for code in known:
            for symbol, place in ((chr(code), 0), (chr(code) + WORD_END, self._num_characters)):
                symbol_ids[numbers[code] + place] = ids.setdefault(symbol, len(ids) + 1)
        for merge in self.merges:
            left, _, right = merge.partition(" ")
            for symbol in (left, right, left + right):
                ids.setdefault(symbol, len(ids) + 1)
        special = set(self.special_token_ids)  # no text is a special token
        tokens = {t: i for t, i in self._vocabulary.ids.items() if i not in special}
        unknown = self.unknown_token_id
        inner = [tokens.get(symbol + CONTINUED, unknown) for symbol in ids]
        last = [tokens.get(symbol.removesuffix(WORD_END), unknown) for symbol in ids]
        self._inner_ids = tf.constant([unknown, *inner], tf.int32)
        self._last_ids = tf.constant([unknown, *last], tf.int32)
        self._merges = PairMerges(symbol_ids.tolist(), self.merges, ids)

    def _reachable(self, numbers: np.ndarray) -> tuple[Spellings, np.ndarray]:
        """Returns the short words that are merged to one token, as numbers, and their ids."""
        special = set(self.special_token_ids)
        ids = {
            token: i
            for token, i in self._vocabulary.ids.items()
            if 0 < len(token) <= LONGEST and i not in special
        }
        words, ids = Spellings.of_texts(list(ids)), np.array(list(ids.values()), np.int64)
        words = words._replace(symbols=numbers[words.symbols].astype(np.int64))
        symbols = tf.constant(words.symbols, tf.int32)
        starts, ends = (x.astype("int32") for x in (words.starts, words.starts + words.lengths))
        made = self._pieces(symbols, tf.constant(ends), tf.constant(starts), tf.constant(ends))
        first, num = np.append(made.ids.numpy(), -1)[made.splits[:-1]], np.diff(made.splits)
        is_made = (num == 1) & (first == ids)
        of_special = Spellings.of([[numbers[code]] for code in SPECIALS[:5]])
        words = words.where(is_made).followed_by(of_special)
        return words, np.array([*ids[is_made], *self.special_token_ids[:5]])

    def _pieces(
        self, numbers: tf.Tensor, all_ends: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> WordPieces:
        """Merges words that lie at starts (W,) ... ends (W,) in the numbered characters (N,)."""
        ends_word = tf.cast(marked(all_ends - 1, tf.size(numbers)), tf.int32)
        symbols = numbers + self._num_characters * ends_word
        pieces = self._merges.encode(symbols, starts, ends)
        is_last = marked(pieces.splits[1:] - 1, tf.size(pieces.ids))
        last, inner = tf.gather(self._last_ids, pieces.ids), tf.gather(self._inner_ids, pieces.ids)
        return pieces._replace(ids=tf.where(is_last, last, inner))

    def _tokens(self, chars: Characters) -> Tokens:
        starts, ends = self._word_bounds(chars)
        numbers = self._numbers(chars.codes)
        ids, begins, ends, splits = self._words.tokens(
            numbers, starts, ends, functools.partial(self._pieces, numbers, ends)
        )
        rows = tf.gather(splits, tf.searchsorted(starts, chars.row_splits))
        starts, ends = tf.gather(chars.starts, begins), tf.gather(chars.ends, ends - 1)
        return Tokens(ids, starts, ends, rows)

    def _word_bounds(self, chars: Characters) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds starts and ends (W,) of the words; a line break behind a word belongs to it."""
        solid = self._spaces(chars.codes) == 0
        special = chars.codes >= SPECIALS.start
        alone = chars.row_starts() | special | before(special, 1, False)
        begins = solid & (alone | ~before(solid, 1, False))
        is_last = solid & (after(begins, 1, True) | ~after(solid, 1, False))
        breaks = (chars.codes == ord("\n")) & ~chars.row_starts()
        starts = tf.cast(tf.where(begins)[:, 0], tf.int32)
        lasts = tf.cast(tf.where(is_last)[:, 0], tf.int32)
        takes_break = after(breaks, 1, False) & ~special
        return starts, lasts + 1 + tf.cast(tf.gather(takes_break, lasts), tf.int32)


def _check_vocabulary(vocabulary: list[str], first: list[str]) -> None:
    """Refuses what vocab.txt cannot hold."""
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
    """Refuses what is no pair of symbols."""
    for i, merge in enumerate(merges):
        if len(merge.split()) != 2 or merge != " ".join(merge.split()):
            raise ValueError(
                f"merges[{i}] is {shown(merge)}. Expected two symbols, separated by a space."
            )
