"""RoBERTa's tokenizer: GPT-2's split into words, then byte pair encoding of their UTF-8 bytes."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from encoder_zoo.common.validation import PositiveInt, SpecialToken, validate_arguments
from encoder_zoo.common.wording import decoded
from encoder_zoo.encoders.tokenizers.files.byte_bpe import ByteBPEFiles, merges_in
from encoder_zoo.encoders.tokenizers.files.reading import checked_vocabulary
from encoder_zoo.encoders.tokenizers.segmentation.bpe import PairMerges
from encoder_zoo.encoders.tokenizers.segmentation.pre_tokenization import (
    character_kinds,
    utf8_symbols,
    word_starts,
)
from encoder_zoo.encoders.tokenizers.segmentation.word_table import LONGEST, WordTable
from encoder_zoo.encoders.tokenizers.text.characters import Characters, after, before, with_spaces
from encoder_zoo.encoders.tokenizers.text.sequences import Spellings
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer, Tokens


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RobertaTokenizer(ByteBPEFiles, Tokenizer):
    """Byte-level BPE ids of texts, exactly those that RoBERTa checkpoints were trained with.

    Args:
        vocabulary: token to id, or the path of a vocab.json. A byte that it lacks becomes the
            unknown token.
        merges: "a b" pairs in the order in which they were learned, or the path of a merges.txt.
        add_prefix_space: treat the first word like one after a space.
        special_tokens_in_text: read a literal "</s>" or "<mask>" in a text as that token, a mask
            together with the white space before it; without this, it is text like any other, so
            that a text cannot forge structure.
        start_token, end_token, pad_token, mask_token, unknown_token: names in the vocabulary.
        uses_segments: whether the second text of a pair has segment id 1.
        pair_separators: how many end tokens stand between the two texts of a pair.
        added_tokens: words, markers or white space to be found in texts before all else, see
            `added_tokens.described`.

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

    mask_takes_space_before = True

    @validate_arguments
    def __init__(
        self,
        vocabulary: Mapping[str, int] | str | Path,
        merges: Sequence[str] | str | Path,
        add_prefix_space: bool = False,
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
        if isinstance(vocabulary, str | Path):
            vocabulary = json.loads(decoded(Path(vocabulary).read_bytes(), vocabulary))
        if isinstance(merges, str | Path):
            merges = merges_in(decoded(Path(merges).read_bytes(), merges))
        vocabulary = checked_vocabulary(vocabulary, "vocabulary")
        tokens = [""] * (max(vocabulary.values()) + 1)  # "": an id that no token has
        for token, token_id in vocabulary.items():
            tokens[token_id] = token
        special_tokens = [start_token, end_token, pad_token, mask_token, unknown_token]
        super().__init__(tokens, special_tokens, special_tokens_in_text, added_tokens)
        self.uses_segments = uses_segments
        self.pair_separators = pair_separators
        self.add_prefix_space = add_prefix_space
        self._merge_lines = "\n".join(merges)
        self._kinds = CodePointTable(character_kinds())
        spelled = [spelled_bytes(token) for token in self.get_vocabulary()]
        self._spelling = tf.constant(spelled, tf.string)
        spaces = np.zeros([self.vocabulary_size, 2], np.int32)  # those of added tokens are cut off
        spaces[: len(tokens)] = surrounding_spaces(tokens)
        spaces[[token["id"] for token in self.added_tokens]] = 0
        self._spaces = tf.constant(spaces)
        byte_ids = [vocabulary.get(c, self.unknown_token_id) for c in byte_alphabet()]
        symbol_ids = [*byte_ids, *self.special_token_ids]
        self._merges = PairMerges(symbol_ids, merges, vocabulary)
        self._words = WordTable(*self._reachable())
        self._make_finders()

    def _span_options(self) -> dict[str, bool]:
        return {"trims": True, "keeps_first": self.add_prefix_space}

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token to id."""
        return {token: i for i, token in enumerate(self._vocabulary.tokens) if token}

    @property
    def merges(self) -> list[str]:
        """Pairs of tokens in the order in which they were learned."""
        return self._merge_lines.split("\n") if self._merge_lines else []

    def starts_word(self, token: str) -> bool:
        """Whether a piece begins a word, rather than continuing one."""
        return token.startswith("Ġ")

    @validate_arguments
    def detokenize(self, ids: object, skip_special_tokens: bool = True) -> tf.Tensor:
        """The texts whose tokens these are, byte for byte.

        Args:
            ids: integers (B, L), ragged or padded, or those of one text (L,).
            skip_special_tokens: leave out padding, <s> and the like.

        Returns:
            tf.string tensor (B,); () for one text.

        Example:
            >>> tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *byte_alphabet()]
            >>> tokenizer = RobertaTokenizer({token: i for i, token in enumerate(tokens)}, [])
            >>> tokenizer.detokenize(tokenizer.tokenize("naïve  ½")).numpy().decode()
            'naïve  ½'
        """
        return self._joined(ids, self._spelling, skip_special_tokens)

    def _reachable(self) -> tuple[Spellings, np.ndarray]:
        """1 + symbols, and ids, of the short tokens that the merges make of their own bytes."""
        byte_of = alphabet_bytes()
        ids = {
            bytes(map(byte_of.get, token)): token_id
            for token, token_id in self._vocabulary.ids.items()
            if 0 < len(token) <= LONGEST and all(c in byte_of for c in token)
        }
        words, ids = Spellings.of(list(ids)), np.array(list(ids.values()), np.int64)
        symbols = tf.constant(words.symbols, tf.int32)
        starts, ends = (x.astype("int32") for x in (words.starts, words.starts + words.lengths))
        made = self._merges.encode(symbols, starts, ends)  # once: a trace would take longer
        first, num = tf.gather(made.ids, made.splits[:-1]).numpy(), np.diff(made.splits)
        is_made = (num == 1) & (first == ids)
        special_ids = self.special_token_ids[:256]
        special = Spellings.of([[256 + i] for i in range(len(special_ids))])
        words = words.where(is_made).followed_by(special)
        return words._replace(symbols=1 + words.symbols), np.array([*ids[is_made], *special_ids])

    def _prepared(self, chars: Characters, as_words: bool) -> Characters:
        if not (self.add_prefix_space or as_words):
            return chars
        special = chars.codes >= SPECIALS.start
        first = chars.row_starts() | before(special, 1, False)
        return with_spaces(chars, first & ~special & (chars.codes != ord(" ")))

    def _tokens(self, chars: Characters) -> Tokens:
        starts = word_starts(chars.codes, self._kinds(chars.codes), chars.row_starts())
        symbols, splits, owners = utf8_symbols(chars.codes)  # (S,), (N + 1,), (S,)
        begins = tf.gather(splits, starts)
        ends = after(begins, 1, tf.size(symbols))
        ids, begins, ends, tokens = self._words.tokens(
            1 + symbols, begins, ends, functools.partial(self._merges.encode, symbols)
        )
        rows = tf.gather(tokens, tf.searchsorted(starts, chars.row_splits))
        starts = tf.gather(chars.starts, tf.gather(owners, begins))
        ends = tf.gather(chars.ends, tf.gather(owners, ends - 1))
        return Tokens(ids, starts, ends, rows)

    def _trimmed(self, tokens: Tokens) -> Tokens:
        """Spans without the spaces around a token, as RoBERTa's own tokenizer gives them."""
        ids, starts, ends, rows = tokens
        leading, trailing = tf.unstack(tf.gather(self._spaces, ids), num=2, axis=1)
        if self.add_prefix_space:  # the first space of a text is taken for the one put there
            first = tf.boolean_mask(rows[:-1], rows[:-1] < rows[1:])
            ones = tf.minimum(tf.gather(leading, first), 1)
            leading = tf.tensor_scatter_nd_sub(leading, first[:, None], ones)
        starts = tf.minimum(starts + leading, ends)
        return Tokens(ids, starts, tf.maximum(ends - trailing, starts), rows)


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in the vocabulary files: 256 visible ones.

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
    """The byte that each character of `byte_alphabet` stands for."""
    return {c: byte for byte, c in enumerate(byte_alphabet())}


def spelled_bytes(token: str) -> bytes:
    """The bytes that a token of the vocabulary stands for; special tokens are as written."""
    byte_of = alphabet_bytes()
    if all(c in byte_of for c in token):
        return bytes(byte_of[c] for c in token)
    return token.encode("utf-8")


def surrounding_spaces(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """How many spaces each token begins and ends with.

    Example:
        >>> surrounding_spaces(["Ġthe", "ĠĠ"])
        [(1, 0), (2, 2)]
    """
    space = byte_alphabet()[ord(" ")]
    return [
        (len(token) - len(token.lstrip(space)), len(token) - len(token.rstrip(space)))
        for token in tokens
    ]
