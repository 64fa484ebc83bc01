"""BERT's tokenizer: normalise, split at spaces and punctuation, then longest match first."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from encoder_zoo.encoders.characters import Characters, after, before, laid_out
from encoder_zoo.encoders.normalization import SPACE, WORD, BertNormalizer
from encoder_zoo.encoders.tokenizer import Tokenizer, Tokens, collect, note
from encoder_zoo.encoders.trie import Trie
from encoder_zoo.encoders.unicode_tables import SPECIALS
from encoder_zoo.encoders.word_table import WordTable

MAX_WORD_CHARACTERS = 100
START, CONTINUATION = 0, 1  # roots of the trie


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BertTokenizer(Tokenizer):
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
    pair_separators = 1  # end tokens between the two texts of a pair
    uses_segments = True  # whether the second text of a pair has segment id 1

    def __init__(
        self,
        vocabulary: Sequence[str] | str | Path,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_chinese_characters: bool = True,
        special_tokens_in_text: bool = False,
        start_token: str = "[CLS]",
        end_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        mask_token: str = "[MASK]",
        unknown_token: str = "[UNK]",
    ):
        if isinstance(vocabulary, str | Path):
            vocabulary = read_vocabulary(vocabulary)
        special_tokens = [start_token, end_token, pad_token, mask_token, unknown_token]
        super().__init__(vocabulary, special_tokens, special_tokens_in_text)
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_chinese_characters = split_chinese_characters
        strips = lowercase if strip_accents is None else strip_accents
        self._normalize = BertNormalizer(lowercase, strips, split_chinese_characters)
        entries = list(self._entries())
        self._trie = Trie(entries, num_roots=2)
        words = [(codes, i) for root, codes, i in entries if root == START]
        self._words = WordTable(w for w in words if len(w[0]) <= MAX_WORD_CHARACTERS)
        self._spelling = tf.constant(
            [t.removeprefix("##") if not self.starts_word(t) else f" {t}" for t in self.vocabulary]
        )

    @property
    def vocabulary(self) -> list[str]:
        """All tokens, in the order of their ids."""
        return self.get_vocabulary()

    def starts_word(self, token: str) -> bool:
        """Whether a piece begins a word, rather than continuing one."""
        return not token.startswith("##")

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

    def _entries(self) -> Iterator[tuple[int, list[int], int]]:
        """(root of the trie, code points, id) of every token that text can hold."""
        for token, token_id in self._vocabulary.ids.items():
            if token.startswith("##") and len(token) > 2:
                yield CONTINUATION, [ord(c) for c in token[2:]], token_id
            elif token:
                yield START, [ord(c) for c in token], token_id
        for code, token_id in zip(SPECIALS, self.special_token_ids, strict=False):
            yield START, [code], token_id

    def _tokens(self, chars: Characters) -> Tokens:
        chars, kinds = self._normalize(chars)
        starts, ends = word_bounds(kinds, chars.row_starts())
        ids = self._words.look_up(chars.codes, starts, ends)
        pieces = note(tf.zeros([tf.size(chars.codes), 2], tf.int32), starts, ids, ends)
        missed = tf.where(ids < 0)[:, 0]
        missed = self._longest_matches(
            chars.codes, tf.gather(starts, missed), tf.gather(ends, missed)
        )
        pieces = note(pieces, *missed)
        ids, starts, ends = collect(pieces)
        return Tokens(
            ids,
            tf.gather(chars.starts, starts),
            tf.gather(chars.ends, ends - 1),
            tf.searchsorted(starts, chars.row_splits),
        )

    def _longest_matches(
        self, codes: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Starts, ids and ends of the longest pieces of words (W,), from left to right."""
        places, _, splits = laid_out(starts, ends)  # (P,), (W + 1,)
        word_start, word_end = splits[:-1], splits[1:]
        too_long = word_end - word_start > MAX_WORD_CHARACTERS
        unknown = tf.where(too_long, self.unknown_token_id, -1)
        pieces = note(tf.zeros([tf.size(places), 2], tf.int32), word_start, unknown, word_end)
        none = tf.fill(tf.shape(word_start), -1)
        # (active words, 7): word start, word end, piece start, cursor, node, match id, match end
        state = tf.stack([word_start, word_end, word_start, word_start, none + 1, none, none], 1)
        codes = tf.gather(codes, places)
        _, pieces = tf.while_loop(
            lambda state, pieces: tf.shape(state)[0] > 0,
            lambda state, pieces: self._advance(codes, state, pieces),
            [tf.boolean_mask(state, ~too_long), pieces],
            shape_invariants=[tf.TensorShape([None, 7]), tf.TensorShape([None, 2])],
            parallel_iterations=1,
        )
        ids, starts, ends = collect(without_failed(pieces, word_start))
        return tf.gather(places, starts), ids, tf.gather(places, ends - 1) + 1

    def _advance(
        self, codes: tf.Tensor, state: tf.Tensor, pieces: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Moves every active word one character on, and notes the pieces that end here."""
        word_start, word_end, start, cursor, node, match, match_end = tf.unstack(
            state, num=7, axis=1
        )
        code = tf.gather(codes, tf.minimum(cursor, tf.size(codes) - 1))
        node = tf.where(cursor < word_end, self._trie.step(node, code), -1)
        value = self._trie.value(node)
        cursor += 1
        match = tf.where(value >= 0, value, match)
        match_end = tf.where(value >= 0, cursor, match_end)

        stopped = node < 0
        failed = stopped & (match < 0)  # the whole word is one unknown token
        found = tf.where(failed, self.unknown_token_id, tf.where(stopped, match, -1))
        pieces = note(
            pieces,
            tf.where(failed, word_start, start),
            found,
            tf.where(failed, word_end, match_end),
        )
        cursor = tf.where(stopped, match_end, cursor)  # look for the next piece from there
        start = tf.where(stopped, match_end, start)
        node = tf.where(stopped, CONTINUATION, node)
        match = tf.where(stopped, -1, match)
        active = tf.where(~stopped | (~failed & (match_end < word_end)))[:, 0]
        state = tf.stack([word_start, word_end, start, cursor, node, match, match_end], 1)
        return tf.gather(state, active), pieces


def word_bounds(kinds: tf.Tensor, row_starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Starts and ends (W,) of the words: runs of WORD, and every ALONE for itself."""
    is_word = kinds == WORD
    goes_on = is_word & before(is_word, 1, False) & ~row_starts
    in_word = kinds != SPACE
    starts = tf.where(in_word & ~goes_on)[:, 0]
    lasts = tf.where(in_word & ~after(goes_on, 1, False))[:, 0]
    return tf.cast(starts, tf.int32), tf.cast(lasts, tf.int32) + 1


def without_failed(pieces: tf.Tensor, word_starts: tf.Tensor) -> tf.Tensor:
    """Forgets the pieces of a word that were found before it turned out to be unknown."""
    _, begins, _ = collect(pieces)
    word = tf.gather(word_starts, tf.searchsorted(word_starts, begins, side="right") - 1)
    stale = (begins > word) & (begins < tf.gather(pieces[:, 1], word))
    stale = tf.boolean_mask(begins, stale)[:, None]
    return tf.tensor_scatter_nd_update(pieces, stale, tf.zeros([tf.size(stale), 2], tf.int32))


def read_vocabulary(path: str | Path) -> list[str]:
    """The tokens of a vocab.txt, one per line; a line's number is its token's id."""
    tokens = Path(path).read_text(encoding="utf-8").split("\n")
    return tokens[:-1] if tokens[-1] == "" else tokens
