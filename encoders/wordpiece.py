"""BERT's tokenizer: normalise, split at spaces and punctuation, then longest match first."""

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizer import Characters, Tokenizer, Tokens
from encoder_zoo.encoders.trie import Trie
from encoder_zoo.encoders.unicode_tables import (
    SPECIALS,
    CodePointTable,
    decompositions,
    members,
    unicode_data,
)

# What a character is to the splitter. A MARK falls away, but only after it has kept its neighbours
# in their places; a COMPLEX character becomes several, or may change places itself.
WORD, SPACE, ALONE, DROPPED, MARK, COMPLEX = range(6)
KIND_SHIFT, ORDER_SHIFT = 21, 24  # one int32 holds: combining order, kind, code point
MAX_WORD_CHARACTERS = 100
START, CONTINUATION = 0, 1  # roots of the trie


class BertTokenizer(Tokenizer):
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
        strip = lowercase if strip_accents is None else strip_accents
        tables = normalization_tables(lowercase, strip, split_chinese_characters)
        self._table = CodePointTable(tables.packed)
        self._expansions = tf.constant(tables.expansions, tf.int32)
        self._expansion_splits = tf.constant(tables.expansion_splits, tf.int32)
        self._trie = Trie(self._trie_entries(), num_roots=2)

        self._spelling = tf.constant(
            [t.removeprefix("##") if t.startswith("##") else " " + t for t in self.get_vocabulary()]
        )

    def starts_word(self, token: str) -> bool:
        """Whether a piece begins a word, rather than continuing one."""
        return not token.startswith("##")

    def detokenize(self, ids: object, skip_special_tokens: bool = True) -> tf.Tensor:
        """Readable texts (B,) of token ids; a single row gives a scalar."""
        return tf.strings.strip(self._joined(ids, self._spelling, skip_special_tokens))

    def get_config(self) -> dict:
        """The arguments that build this tokenizer again."""
        return {
            "vocabulary": self.get_vocabulary(),
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "split_chinese_characters": self.split_chinese_characters,
            **self._shared_config(),
        }

    def _trie_entries(self):
        for token, token_id in self._vocabulary.ids.items():
            if token.startswith("##"):
                yield CONTINUATION, [ord(c) for c in token[2:]], token_id
            yield START, [ord(c) for c in token], token_id

    def _tokens(self, chars: Characters) -> Tokens:
        chars, kinds = self._normalize(chars)
        starts, ends = word_bounds(kinds, chars.row_starts())
        ids, starts, ends = self._longest_matches(chars.codes, starts, ends)
        return Tokens(
            ids,
            tf.gather(chars.starts, starts),
            tf.gather(chars.ends, ends - 1),
            tf.searchsorted(starts, chars.row_splits),
        )

    def _normalize(self, chars: Characters) -> tuple[Characters, tf.Tensor]:
        """The characters that the splitter sees, and what they are to it."""
        chars = chars._replace(codes=self._table(chars.codes))
        chars = tf.cond(
            tf.reduce_any(kind_of(chars.codes) == COMPLEX),
            lambda: in_canonical_order(self._expand(without(chars, DROPPED))),
            lambda: without(chars, DROPPED),
        )
        chars = without(chars, MARK)
        codes = tf.bitwise.bitwise_and(chars.codes, (1 << KIND_SHIFT) - 1)
        return chars._replace(codes=codes), kind_of(chars.codes)

    def _expand(self, chars: Characters) -> Characters:
        """Puts the characters that a COMPLEX one becomes in its place."""
        is_complex = kind_of(chars.codes) == COMPLEX
        index = tf.bitwise.bitwise_and(chars.codes, (1 << KIND_SHIFT) - 1)
        index = tf.where(is_complex, index, 0)
        first = tf.gather(self._expansion_splits, index)
        lengths = tf.where(is_complex, tf.gather(self._expansion_splits, index + 1) - first, 1)
        ends = tf.cumsum(lengths)
        begins = ends - lengths
        num = tf.reduce_sum(lengths)
        owner = tf.cumsum(tf.scatter_nd(begins[:, None], tf.ones_like(begins), [num])) - 1
        within = tf.range(num) - tf.gather(begins, owner)
        expanded = tf.gather(self._expansions, tf.gather(first, owner) + within)
        return Characters(
            tf.where(tf.gather(is_complex, owner), expanded, tf.gather(chars.codes, owner)),
            tf.gather(chars.starts, owner),
            tf.gather(chars.ends, owner),
            tf.gather(tf.concat([begins, [num]], 0), chars.row_splits),
            chars.original_splits,
        )

    def _longest_matches(
        self, codes: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Splits words (W,) into the longest pieces of the vocabulary: ids, starts, ends."""
        known = ends - starts <= MAX_WORD_CHARACTERS
        pieces = tf.zeros([tf.size(codes), 2], tf.int32)  # by its first character: id + 1, end
        unknown = tf.boolean_mask(tf.stack([starts, ends], 1), ~known)
        pieces = self._note(pieces, unknown[:, 0], self.unknown_token_id, unknown[:, 1])
        words = tf.boolean_mask(tf.stack([starts, ends], 1), known)
        nowhere = tf.fill([tf.shape(words)[0]], -1)
        # (active words, 7): word start, word end, piece start, cursor, node, match id, match end
        state = tf.stack(
            [words[:, 0], words[:, 1], words[:, 0], words[:, 0], nowhere + 1, nowhere, nowhere], 1
        )
        _, pieces = tf.while_loop(
            lambda state, pieces: tf.shape(state)[0] > 0,
            lambda state, pieces: self._step(codes, state, pieces),
            [state, pieces],
            shape_invariants=[tf.TensorShape([None, 7]), tf.TensorShape([None, 2])],
            parallel_iterations=1,
        )
        begins = tf.cast(tf.where(pieces[:, 0] > 0)[:, 0], tf.int32)
        found = tf.gather(pieces, begins)
        # A word that failed late is one unknown token; the pieces found before it failed go.
        word = tf.searchsorted(starts, begins, side="right") - 1
        word_start = tf.gather(starts, word)
        valid = (begins == word_start) | (begins >= tf.gather(pieces[:, 1], word_start))
        kept = tf.where(valid)[:, 0]
        return (
            tf.gather(found[:, 0], kept) - 1,
            tf.gather(begins, kept),
            tf.gather(found[:, 1], kept),
        )

    def _note(self, pieces, starts, ids, ends):
        values = tf.stack([tf.broadcast_to(ids + 1, tf.shape(ends)), ends], 1)
        return tf.tensor_scatter_nd_update(pieces, starts[:, None], values)

    def _step(self, codes: tf.Tensor, state: tf.Tensor, pieces: tf.Tensor) -> list[tf.Tensor]:
        """Moves every active word one character on; notes the pieces that end here."""
        word_start, word_end, start, cursor, node, match, match_end = tf.unstack(state, axis=1)
        inside = cursor < word_end
        code = tf.gather(codes, tf.minimum(cursor, tf.size(codes) - 1))
        node = tf.where(inside, self._trie.step(node, code), -1)
        value = self._trie.value(node)
        cursor += 1
        match = tf.where(value >= 0, value, match)
        match_end = tf.where(value >= 0, cursor, match_end)
        stopped = node < 0
        failed = stopped & (match < 0)
        rows = tf.where(stopped)[:, 0]
        pieces = self._note(
            pieces,
            tf.gather(tf.where(failed, word_start, start), rows),
            tf.gather(tf.where(failed, self.unknown_token_id, match), rows),
            tf.gather(tf.where(failed, word_end, match_end), rows),
        )
        start = tf.where(stopped, match_end, start)
        cursor = tf.where(stopped, match_end, cursor)
        node = tf.where(stopped, CONTINUATION, node)
        match = tf.where(stopped, -1, match)
        state = tf.stack([word_start, word_end, start, cursor, node, match, match_end], 1)
        active = ~stopped | (~failed & (match_end < word_end))
        return [tf.gather(state, tf.where(active)[:, 0]), pieces]


def read_vocabulary(path: str | Path) -> list[str]:
    """The tokens of a vocab.txt, one per line; a line's number is its token's id."""
    tokens = Path(path).read_text(encoding="utf-8").split("\n")
    return tokens[:-1] if tokens[-1] == "" else tokens


def kind_of(packed: tf.Tensor) -> tf.Tensor:
    """What each character is to the splitter."""
    return tf.bitwise.bitwise_and(tf.bitwise.right_shift(packed, KIND_SHIFT), 7)


def without(chars: Characters, kind: int) -> Characters:
    """Leaves out the characters of a kind."""
    keep = kind_of(chars.codes) != kind
    return tf.cond(
        tf.reduce_all(keep),
        lambda: chars,
        lambda: chars.take(tf.cast(tf.where(keep)[:, 0], tf.int32)),
    )


def in_canonical_order(chars: Characters) -> Characters:
    """Sorts each run of combining marks by combining class, as Unicode's section 3.11 says."""
    order = tf.bitwise.right_shift(chars.codes, ORDER_SHIFT)
    run = tf.cumsum(tf.cast((order == 0) | chars.row_starts(), tf.int32))
    by_order = tf.argsort(run * 64 + order, stable=True)
    return chars._replace(codes=tf.gather(chars.codes, by_order))


def word_bounds(kinds: tf.Tensor, row_starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """First characters and ends of the words: runs of WORD, and every ALONE for itself."""
    is_word = kinds == WORD
    after_word = tf.concat([[False], is_word[:-1]], 0)[: tf.size(kinds)]
    goes_on = is_word & after_word & ~row_starts
    in_word = kinds != SPACE
    starts = in_word & ~goes_on
    ends = in_word & ~tf.concat([goes_on[1:], [False]], 0)[: tf.size(kinds)]
    bounds = [tf.cast(tf.where(flags)[:, 0], tf.int32) for flags in (starts, ends)]
    return bounds[0], bounds[1] + 1


class NormalizationTables:
    """How every character is cleaned, decomposed, lower-cased and classed.

    Attributes:
        packed: int32 (code points,); of a COMPLEX character the low bits are an index into
            `expansion_splits`.
        expansions, expansion_splits: packed numbers of the characters that it becomes.
    """

    def __init__(self, lowercase: bool, strip_accents: bool, split_chinese: bool):
        self.kinds = np.where(members("punctuation"), ALONE, WORD)
        self.kinds[members("mark") & strip_accents] = MARK
        self.orders = combining_orders() if strip_accents else {}
        self.parts = decompositions() if strip_accents else {}
        self.lower = unicode_data()["lowercase"] if lowercase else {}
        self.expansions: list[int] = []
        self.expansion_splits = [0]
        self.chinese = members("chinese") & split_chinese
        kinds = np.where(self.chinese, ALONE, self.kinds)
        kinds[members("space")] = SPACE
        kinds[members("dropped")] = DROPPED
        kinds[SPECIALS.start :] = ALONE
        self.packed = (np.arange(len(kinds)) | kinds << KIND_SHIFT).astype(np.int32)
        changing = {*self.parts, *self.orders, *map(int, self.lower)}
        for code in sorted(changing):
            if kinds[code] not in (SPACE, DROPPED):
                self.packed[code] = self._packed(code)

    def _packed(self, code: int) -> int:
        becomes = [self._pack(code, part) for part in self.parts.get(code, [code])]
        becomes = [packed for parts in becomes for packed in parts]
        kept = [packed for packed in becomes if packed >> KIND_SHIFT & 7 != MARK]
        marks_are_ordered = all(p >> ORDER_SHIFT for p in becomes if p not in kept)
        if marks_are_ordered and not kept:
            return becomes[0]
        if marks_are_ordered and len(kept) == 1 and not kept[0] >> ORDER_SHIFT:
            return kept[0]
        self.expansions += becomes
        self.expansion_splits.append(len(self.expansions))
        return COMPLEX << KIND_SHIFT | len(self.expansion_splits) - 2

    def _pack(self, code: int, part: int) -> list[int]:
        order = self.orders.get(part, 0) << ORDER_SHIFT
        kind = ALONE if self.chinese[code] else None
        return [
            order | int(self.kinds[c] if kind is None else kind) << KIND_SHIFT | c
            for c in self.lower.get(str(part), [part])
        ]


def combining_orders() -> dict[int, int]:
    """Canonical combining classes, numbered from 1 in their order to take six bits."""
    classes = unicode_data()["combining_class"]
    rank = {value: i + 1 for i, value in enumerate(sorted(set(classes.values())))}
    return {int(code): rank[value] for code, value in classes.items()}


@functools.lru_cache(maxsize=8)
def normalization_tables(*options: bool) -> NormalizationTables:
    """The tables of one set of options, made once."""
    return NormalizationTables(*options)
