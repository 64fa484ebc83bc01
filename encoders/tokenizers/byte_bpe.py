"""RoBERTa's tokenizer: byte-level byte pair encoding, as in GPT-2."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import decoded
from encoder_zoo.encoders.tokenizers.files.byte_bpe import ByteBPEFiles, parse_merges
from encoder_zoo.encoders.tokenizers.files.vocabularies import checked_vocabulary
from encoder_zoo.encoders.tokenizers.segmentation.bpe import BPE
from encoder_zoo.encoders.tokenizers.segmentation.pre_tokenization import (
    byte_level_character_kinds,
    byte_level_word_starts,
)
from encoder_zoo.encoders.tokenizers.segmentation.tokens import Tokens, are_single_tokens
from encoder_zoo.encoders.tokenizers.segmentation.word_table import MAX_SYMBOLS, WordTable
from encoder_zoo.encoders.tokenizers.text.characters import Characters, insert_spaces
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import shift_left, shift_right
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable
from encoder_zoo.encoders.tokenizers.text.utf8 import encode_utf8
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RobertaTokenizer(ByteBPEFiles, Tokenizer):
    """Tokenizes texts by byte-level BPE, with the ids that RoBERTa checkpoints were trained with.

    Args:
        vocabulary: {token: id}, or the path of a vocab.json. Bytes without a token become the
            unknown token.
        merges: "a b" pairs in the order in which they were learned, or the path of a merges.txt.
        add_prefix_space: tokenize the first word like one after a space.
        **options: the other arguments of `Tokenizer`.

    Raises:
        ValueError: "'<s>' is not among the 3 tokens ...", "merges[0] is 'ab'; expected two ...",
            "vocabulary has the id 4000000000 among 50265 tokens. Expected ids below 101530."

    Source: Liu et al., "RoBERTa" (2019), section 4.4; Radford et al., "Language Models are
        Unsupervised Multitask Learners" (2019), section 2.2.

    Example:
        >>> tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *byte_alphabet(), "Ġh", "Ġhi"]
        >>> vocabulary = {token: i for i, token in enumerate(tokens)}
        >>> tokenizer = RobertaTokenizer(vocabulary, ["Ġ h", "Ġh i"], add_prefix_space=True)
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets("hi hi!")
        >>> [tokenizer.id_to_token(i) for i in ids], starts.numpy().tolist()
        (['Ġhi', 'Ġhi', '!'], [0, 3, 5])
    """

    lstrip_mask = True

    @validate_arguments
    def __init__(
        self,
        vocabulary: Mapping[str, int] | str | Path,
        merges: Sequence[str] | str | Path,
        add_prefix_space: bool = False,
        **options,
    ):
        if isinstance(vocabulary, str | Path):
            vocabulary = json.loads(decoded(Path(vocabulary).read_bytes(), vocabulary))
        if isinstance(merges, str | Path):
            merges = parse_merges(decoded(Path(merges).read_bytes(), merges))
        vocabulary = checked_vocabulary(vocabulary, "vocabulary")
        tokens = [""] * (max(vocabulary.values()) + 1)  # "" for ids without a token
        for token, token_id in vocabulary.items():
            tokens[token_id] = token
        super().__init__(tokens, **options)
        self.add_prefix_space = add_prefix_space
        self._merge_lines = "\n".join(merges)
        self._kinds = CodePointTable(byte_level_character_kinds())
        spelled = [spelled_bytes(token) for token in self.get_vocabulary()]
        self._spelling = tf.constant(spelled, tf.string)
        spaces = np.zeros([self.vocabulary_size, 2], np.int32)  # none for added tokens
        spaces[: len(tokens)] = surrounding_spaces(tokens)
        spaces[[token["id"] for token in self.added_tokens]] = 0
        self._spaces = tf.constant(spaces)
        byte_ids = [vocabulary.get(c, self.unknown_token_id) for c in byte_alphabet()]
        symbol_ids = [*byte_ids, *self.special_token_ids]
        self._model = BPE(symbol_ids, merges, vocabulary)
        self._word_table = WordTable(*self._single_tokens())
        self._index_added_tokens()

    def _span_options(self) -> dict[str, bool]:
        return {"trim_offsets": True, "keep_first_space": self.add_prefix_space}

    @property
    def vocabulary(self) -> dict[str, int]:
        """{token: id} of the model."""
        return {token: i for i, token in enumerate(self._vocabulary.tokens) if token}

    @property
    def merges(self) -> list[str]:
        """Pairs of tokens in the order in which they were learned."""
        return self._merge_lines.split("\n") if self._merge_lines else []

    def starts_word(self, token: str) -> bool:
        """Return whether a token begins a word after a space."""
        return token.startswith("Ġ")

    def _single_tokens(self) -> tuple[PackedWords, np.ndarray]:
        """Return the words that the merges make one token, as 1 + symbols, and their ids."""
        byte_of = alphabet_bytes()
        ids = {
            bytes(map(byte_of.get, token)): token_id
            for token, token_id in self._vocabulary.ids.items()
            if 0 < len(token) <= MAX_SYMBOLS and all(c in byte_of for c in token)
        }
        words, ids = PackedWords.from_symbols(list(ids)), np.array(list(ids.values()), np.int64)
        is_made = are_single_tokens(self._model.encode, words, ids)
        special_ids = self.special_token_ids[:256]
        special = PackedWords.from_symbols([[256 + i] for i in range(len(special_ids))])
        words = words.where(is_made).concatenate(special)
        return words._replace(symbols=1 + words.symbols), np.array([*ids[is_made], *special_ids])

    def _add_prefix_space(self, chars: Characters, as_words: bool) -> Characters:
        if not (self.add_prefix_space or as_words):
            return chars
        special = chars.codes >= SPECIALS.start
        first = chars.row_starts() | shift_right(special, 1, False)
        return insert_spaces(chars, first & ~special & (chars.codes != ord(" ")))

    def _tokenize(self, chars: Characters) -> Tokens:
        starts = byte_level_word_starts(chars.codes, self._kinds(chars.codes), chars.row_starts())
        symbols, splits, owners = encode_utf8(chars.codes)  # (S,), (N + 1,), (S,)
        begins = tf.gather(splits, starts)
        ends = shift_left(begins, 1, tf.size(symbols))
        ids, begins, ends, tokens = self._word_table.tokens(
            1 + symbols, begins, ends, functools.partial(self._model.encode, symbols)
        )
        rows = tf.gather(tokens, tf.searchsorted(starts, chars.row_splits))
        starts = tf.gather(chars.starts, tf.gather(owners, begins))
        ends = tf.gather(chars.ends, tf.gather(owners, ends - 1))
        return Tokens(ids, starts, ends, rows)

    def _trim_spans(self, tokens: Tokens) -> Tokens:
        """Remove the spaces around tokens from their spans, as RobertaProcessing does."""
        ids, starts, ends, rows = tokens
        leading, trailing = tf.unstack(tf.gather(self._spaces, ids), num=2, axis=1)
        if self.add_prefix_space:  # the first space of a text counts as the added one
            first = tf.boolean_mask(rows[:-1], rows[:-1] < rows[1:])
            ones = tf.minimum(tf.gather(leading, first), 1)
            leading = tf.tensor_scatter_nd_sub(leading, first[:, None], ones)
        starts = tf.minimum(starts + leading, ends)
        return Tokens(ids, starts, tf.maximum(ends - trailing, starts), rows)


def byte_alphabet() -> list[str]:
    """Return the visible characters that stand for the 256 bytes in the vocabulary.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section
        2.2, and the files released with it.

    Example:
        >>> byte_alphabet()[32], byte_alphabet()[65]
        ('Ġ', 'A')
    """
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {byte: chr(byte) for byte in visible}
    characters |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [characters[byte] for byte in range(256)]


@functools.lru_cache(maxsize=1)
def alphabet_bytes() -> dict[str, int]:
    """Return {character: byte} of `byte_alphabet`."""
    return {c: byte for byte, c in enumerate(byte_alphabet())}


def spelled_bytes(token: str) -> bytes:
    """Return the bytes of a token; special tokens, which are not in bytes, are encoded as UTF-8."""
    byte_of = alphabet_bytes()
    if all(c in byte_of for c in token):
        return bytes(byte_of[c] for c in token)
    return token.encode("utf-8")


def surrounding_spaces(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return the number of spaces at the start and end of each token.

    Example:
        >>> surrounding_spaces(["Ġthe", "ĠĠ"])
        [(1, 0), (2, 2)]
    """
    space = byte_alphabet()[ord(" ")]
    return [
        (len(token) - len(token.lstrip(space)), len(token) - len(token.rstrip(space)))
        for token in tokens
    ]
