"""BERT's tokenizer: normalization, a split at spaces and punctuation, then WordPiece."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import keras
import numpy as np
import tensorflow as tf

from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import decoded, shown
from encoder_zoo.encoders.tokenizers.arguments import BERT_DEFAULTS
from encoder_zoo.encoders.tokenizers.files.wordpiece import WordPieceFiles, parse_vocabulary
from encoder_zoo.encoders.tokenizers.segmentation.pre_tokenization import bert_word_bounds
from encoder_zoo.encoders.tokenizers.segmentation.tokens import Tokens
from encoder_zoo.encoders.tokenizers.segmentation.whole_words import WholeWordLookup
from encoder_zoo.encoders.tokenizers.segmentation.word_table import WordTable
from encoder_zoo.encoders.tokenizers.segmentation.wordpiece import MAX_WORD_CHARACTERS, WordPiece
from encoder_zoo.encoders.tokenizers.text.characters import Characters, characters
from encoder_zoo.encoders.tokenizers.text.normalization import (
    FIRST_DROPPED,
    FIRST_SPACE,
    BertNormalizer,
    normalization_tables,
    unpack_codes,
)
from encoder_zoo.encoders.tokenizers.text.packed_words import (
    UNKNOWN_SYMBOL,
    PackedWords,
    character_numbers,
)
from encoder_zoo.encoders.tokenizers.text.ragged import row_ids
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable, members
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BertTokenizer(WordPieceFiles, Tokenizer):
    """Tokenizes texts by WordPiece, with the ids that BERT checkpoints were trained with.

    Args:
        vocabulary: tokens in the order of their ids, or the path of a vocab.txt. Tokens that
            continue a word start with "##".
        lowercase: lower-case the text.
        strip_accents: decompose characters and remove nonspacing marks; None follows lowercase.
        split_chinese_characters: make every Chinese character a word.
        **options: the other arguments of `Tokenizer`.

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

    lstrip_mask = False
    defaults: ClassVar = {**BERT_DEFAULTS, "uses_segments": True}

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str] | str | Path,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_chinese_characters: bool = True,
        **options,
    ):
        if isinstance(vocabulary, str | Path):
            vocabulary = parse_vocabulary(decoded(Path(vocabulary).read_bytes(), vocabulary))
        for i, token in enumerate(vocabulary):
            if isinstance(token, str) and ("\n" in token or "\r" in token):
                raise ValueError(
                    f"vocabulary[{i}] is {shown(token)}; expected no line break in a token, of "
                    "which vocab.txt has one in each line"
                )
        super().__init__(vocabulary, **options)
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_chinese_characters = split_chinese_characters
        tokens, continues, ids = self._tokens_in_texts()
        numbers = character_numbers(tokens)
        self._make_normalizers(numbers)
        tokens = tokens._replace(symbols=numbers[tokens.symbols])
        self._model = WordPiece(tokens, continues, ids, self.unknown_token_id)
        unknown = PackedWords.from_symbols([[UNKNOWN_SYMBOL]])
        words, word_ids = tokens.where(~continues).concatenate(unknown), ids[~continues]
        self._word_table = WordTable(words, [*word_ids, self.unknown_token_id])
        self._word_lookup = WholeWordLookup(self._whole_words(), lowercase)
        texts = [f" {t}" if self.starts_word(t) else t[2:] for t in self.get_vocabulary()]
        self._spelling = tf.constant(texts)
        self._index_added_tokens()

    def _make_normalizers(self, numbers: np.ndarray) -> None:
        """Build the normalizer to character numbers, and that to code points if needed."""
        options = (self.lowercase, self.strips_accents, self.split_chinese_characters)
        self._normalizer = BertNormalizer(*options, numbers)
        self._numbers = None
        if any(token["normalized"] for token in self.added_tokens):  # with any characters
            self._numbers = CodePointTable(numbers)
            self._to_codes = BertNormalizer(*options, np.arange(SPECIALS.stop, dtype=np.int32))
            chinese = members("chinese") & self.split_chinese_characters
            self._chinese = CodePointTable(chinese.astype(np.int32))

    def _whole_words(self) -> dict[str, int]:
        """Return {word: id} of the words that are one token and that normalization keeps."""
        options = (self.lowercase, self.strips_accents, self.split_chinese_characters)
        ids = self._vocabulary.ids
        words = [t for t in ids if 0 < len(t) <= MAX_WORD_CHARACTERS and not _continues(t)]
        return {word: ids[word] for word in normalization_tables(*options).unchanged(words)}

    @property
    def strips_accents(self) -> bool:
        """Whether accents are removed."""
        return self.lowercase if self.strip_accents is None else self.strip_accents

    def starts_word(self, token: str) -> bool:
        """Return whether a token begins a word."""
        return not token.startswith("##")

    def _clean_up(self, texts: tf.Tensor) -> tf.Tensor:
        return tf.strings.strip(texts)

    def _ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        if not self._words_are_independent:
            return super()._ids(texts, as_words)
        return self._word_lookup.ids(texts, self._split_words)

    def _split_words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return ids (B, None) of texts (B,) that mostly are words of several tokens."""
        chars = self._normalizer(characters(texts))
        starts, ends = bert_word_bounds(chars)
        tokens = self._model.encode(unpack_codes(chars.codes), starts, ends)
        splits = tf.gather(tokens.splits, tf.searchsorted(starts, chars.row_splits))
        return tf.RaggedTensor.from_row_splits(tokens.ids, splits, validate=False)

    def _tokens_in_texts(self) -> tuple[PackedWords, np.ndarray, np.ndarray]:
        """Return the tokens that texts can hold, whether they continue a word, and their ids."""
        tokens = [token for token in self._vocabulary.ids if token]
        special_ids = self.special_token_ids[: len(SPECIALS)]
        special = PackedWords.from_symbols([[code] for code in SPECIALS[: len(special_ids)]])
        texts = [token[2:] if _continues(token) else token for token in tokens]
        continues = [*map(_continues, tokens), *[False] * len(special_ids)]
        ids = [*map(self._vocabulary.ids.get, tokens), *special_ids]
        return (
            PackedWords.from_texts(texts).concatenate(special),
            np.array(continues),
            np.array(ids),
        )

    def _normalize(self, chars: Characters) -> Characters:
        if self._numbers is None:
            return self._normalizer(chars)
        chars = self._to_codes(chars)
        is_space = (chars.codes >= FIRST_SPACE) & (chars.codes < FIRST_DROPPED)
        chars = chars._replace(codes=tf.where(is_space, FIRST_SPACE | ord(" "), chars.codes))
        # Chinese characters get a space on both sides, which added tokens may contain.
        repeats = 1 + 2 * self._chinese(unpack_codes(chars.codes))
        splits = tf.concat([[0], tf.cumsum(repeats)], 0)
        owner = row_ids(splits, splits[-1])
        is_added = tf.range(splits[-1]) != tf.gather(splits[:-1] + repeats // 2, owner)
        codes = tf.where(is_added, FIRST_SPACE | ord(" "), tf.gather(chars.codes, owner))
        rows = tf.gather(splits, chars.row_splits)
        return chars.take(owner)._replace(codes=codes, row_splits=rows)

    def _code_points(self, chars: Characters) -> tf.Tensor:
        return unpack_codes(chars.codes)

    def _tokenize(self, chars: Characters) -> Tokens:
        starts, ends = bert_word_bounds(chars)
        words = tf.searchsorted(starts, chars.row_splits)
        numbers = unpack_codes(chars.codes)
        if self._numbers is not None:
            numbers = self._numbers(numbers)
        ids, starts, ends, splits = self._word_table.tokens(
            numbers, starts, ends, functools.partial(self._model.encode, numbers)
        )
        return Tokens(
            ids,
            tf.gather(chars.starts, starts),
            tf.gather(chars.ends, ends - 1),
            tf.gather(splits, words),
        )


def _continues(token: str) -> bool:
    return token.startswith("##") and len(token) > 2
