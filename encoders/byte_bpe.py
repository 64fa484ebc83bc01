"""RoBERTa's tokenizer: GPT-2's split into words, then byte pair encoding of their UTF-8 bytes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizer import Characters, Tokenizer, Tokens, characters
from encoder_zoo.encoders.trie import SYMBOL_BITS, Trie
from encoder_zoo.encoders.unicode_tables import SPECIALS, CodePointTable, members

OTHER, LETTER, NUMBER, SPACE = range(4)
NO_RANK = np.int32(2**31 - 1)


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


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RobertaTokenizer(Tokenizer):
    mask_takes_space_before = True
    pair_separators = 2  # end tokens between the two texts of a pair
    uses_segments = False  # whether the second text of a pair has segment id 1

    def __init__(
        self,
        vocabulary: Mapping[str, int] | str | Path,
        merges: Sequence[str] | str | Path,
        add_prefix_space: bool = False,
        special_tokens_in_text: bool = False,
        start_token: str = "<s>",
        end_token: str = "</s>",
        pad_token: str = "<pad>",
        mask_token: str = "<mask>",
        unknown_token: str = "<unk>",
    ):
        if isinstance(vocabulary, str | Path):
            vocabulary = json.loads(Path(vocabulary).read_text(encoding="utf-8"))
        if isinstance(merges, str | Path):
            merges = read_merges(merges)
        tokens = [""] * (max(vocabulary.values()) + 1)
        for token, token_id in vocabulary.items():
            tokens[token_id] = token
        special_tokens = [start_token, end_token, pad_token, mask_token, unknown_token]
        super().__init__(tokens, special_tokens, special_tokens_in_text)
        self.add_prefix_space = add_prefix_space
        self._spaces = tf.constant(surrounding_spaces(tokens), tf.int32)
        self._kinds = CodePointTable(character_kinds())
        self._spelling = tf.constant([spelled_bytes(token) for token in tokens], tf.string)
        self._build_merges(merges)
        self._build_whole_words()

    def starts_word(self, token: str) -> bool:
        """Whether a piece begins a word, rather than continuing one."""
        return token.startswith("Ġ")

    def _build_merges(self, merges: Sequence[str]) -> None:
        ids = self._vocabulary.ids
        byte_ids = [ids.get(c, self.unknown_token_id) for c in byte_alphabet()]
        self._byte_ids = tf.constant(byte_ids, tf.int32)
        self._merge_list = "\n".join(merges)
        pairs = [merge.split(" ") for merge in merges]
        keys = [ids[a] << 32 | ids[b] for a, b in pairs]
        self._merged = tf.constant([ids[a + b] for a, b in pairs] + [0], tf.int32)
        self._ranks = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(keys, tf.int64), tf.range(len(keys), dtype=tf.int64)
            ),
            default_value=int(NO_RANK),
        )

    def _build_whole_words(self) -> None:
        """A trie of the tokens that the merges really produce, so that a word is looked up whole."""
        byte_of = {c: byte for byte, c in enumerate(byte_alphabet())}
        spelled = [
            (token_id, [byte_of[c] for c in token])
            for token, token_id in self._vocabulary.ids.items()
            if token and all(c in byte_of for c in token)
        ]
        symbols = tf.constant([byte for _, word in spelled for byte in word], tf.int32)
        ends = np.cumsum([len(word) for _, word in spelled])
        starts = ends - [len(word) for _, word in spelled]
        ids, places, _ = self._merge(
            symbols, tf.constant(starts, tf.int32), tf.constant(ends, tf.int32)
        )
        first = dict(zip(places.numpy().tolist(), ids.numpy().tolist(), strict=True))
        self._trie = Trie(
            (0, word, token_id)
            for (token_id, word), start in zip(spelled, starts.tolist(), strict=True)
            if first[start] == token_id
        )

    def _tokens(self, chars: Characters) -> Tokens:
        starts = word_starts(chars.codes, self._kinds(chars.codes), chars.row_starts())
        symbols, symbol_starts = utf8_symbols(chars.codes)  # (S,), (N + 1,)
        word_begins = tf.gather(symbol_starts, starts)
        word_ends = tf.concat([word_begins[1:], [tf.size(symbols)]], 0)[: tf.size(starts)]
        whole = self._look_up(symbols, word_begins, word_ends)
        known = tf.where(whole >= 0)[:, 0]
        missed = tf.where(whole < 0)[:, 0]
        parts, part_begins, part_ends = self._merge(
            symbols, tf.gather(word_begins, missed), tf.gather(word_ends, missed)
        )
        ids = tf.concat([tf.gather(whole, known), parts], 0)
        begins = tf.concat([tf.gather(word_begins, known), part_begins], 0)
        ends = tf.concat([tf.gather(word_ends, known), part_ends], 0)
        in_order = tf.argsort(begins)
        ids, begins, ends = (tf.gather(x, in_order) for x in (ids, begins, ends))
        splits = tf.searchsorted(begins, tf.gather(symbol_starts, chars.row_splits))
        first = tf.searchsorted(symbol_starts, begins, side="right") - 1
        last = tf.searchsorted(symbol_starts, ends - 1, side="right") - 1
        starts, ends = self._trim(
            ids, tf.gather(chars.starts, first), tf.gather(chars.ends, last), splits
        )
        return Tokens(ids, starts, ends, splits)

    def _trim(
        self, ids: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, splits: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Spans without the spaces around a token, as RoBERTa's own tokenizer gives them."""
        leading, trailing = tf.unstack(tf.gather(self._spaces, ids), axis=1)
        if self.add_prefix_space:  # the first space of a text is taken for the one put there
            rows = splits[:-1][splits[:-1] < splits[1:]]
            ones = tf.minimum(tf.gather(leading, rows), 1)
            leading = tf.tensor_scatter_nd_sub(leading, rows[:, None], ones)
        starts = tf.minimum(starts + leading, ends)
        return starts, tf.maximum(ends - trailing, starts)

    def _characters(self, texts: tf.Tensor) -> Characters:
        if not self.add_prefix_space:
            return characters(texts)
        lacks_space = (tf.strings.substr(texts, 0, 1) != " ") & (texts != "")
        chars = characters(tf.where(lacks_space, tf.strings.join([" ", texts]), texts))
        added = tf.concat([tf.cast(lacks_space, tf.int32), [0]], 0)
        return chars._replace(original_splits=chars.original_splits + added)

    def detokenize(self, ids: object, skip_special_tokens: bool = True) -> tf.Tensor:
        """Texts (B,) whose tokens these are, byte for byte; a single row gives a scalar."""
        return self._joined(ids, self._spelling, skip_special_tokens)

    def get_config(self) -> dict:
        """The arguments that build this tokenizer again."""
        return {
            "vocabulary": self._vocabulary.ids,
            "merges": self._merge_list.split("\n") if self._merge_list else [],
            "add_prefix_space": self.add_prefix_space,
            **self._shared_config(),
        }

    def _look_up(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Ids (W,) of the words that are tokens; -1 for the others."""
        found = tf.fill(tf.shape(starts), -1)
        state = tf.stack([tf.range(tf.size(starts)), starts, ends, tf.zeros_like(starts)], 1)

        def step(state, found):
            word, cursor, end, node = tf.unstack(state, axis=1)
            node = self._trie.step(node, tf.gather(symbols, cursor))
            cursor += 1
            done = tf.where(cursor == end)[:, 0]
            found = tf.tensor_scatter_nd_update(
                found, tf.gather(word, done)[:, None], self._trie.value(tf.gather(node, done))
            )
            active = tf.where((node >= 0) & (cursor < end))[:, 0]
            return tf.gather(tf.stack([word, cursor, end, node], 1), active), found

        return tf.while_loop(
            lambda state, found: tf.shape(state)[0] > 0,
            step,
            [state, found],
            shape_invariants=[tf.TensorShape([None, 4]), tf.TensorShape([None])],
            parallel_iterations=1,
        )[1]

    @tf.function(reduce_retracing=True)
    def _merge(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Byte pair encoding of words (W,): ids, starts, ends among the symbols."""
        lengths = ends - starts
        places = ragged_ranges(starts, lengths)
        word = tf.cumsum(
            tf.scatter_nd(
                (tf.cumsum(lengths) - lengths)[:, None],
                tf.ones_like(lengths),
                [tf.size(places)],
            )
        )
        ids = tf.gather(self._byte_ids, tf.gather(symbols, places))
        state = tf.stack([ids, word, places], 1)
        notes = tf.zeros([tf.size(symbols)], tf.int32)
        _, notes = tf.while_loop(
            lambda state, notes: tf.shape(state)[0] > 0,
            self._merge_step,
            [state, notes],
            shape_invariants=[tf.TensorShape([None, 3]), tf.TensorShape([None])],
            parallel_iterations=1,
        )
        begins = tf.cast(tf.where(notes > 0)[:, 0], tf.int32)
        following = tf.concat([begins[1:], [tf.size(symbols)]], 0)[: tf.size(begins)]
        word_end = tf.gather(ends, tf.searchsorted(starts, begins, side="right") - 1)
        return tf.gather(notes, begins) - 1, begins, tf.minimum(following, word_end)

    def _merge_step(self, state: tf.Tensor, notes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """In every word, merges the pair of lowest rank wherever it stands."""
        ids, word, places = tf.unstack(state, axis=1)
        pairs = tf.bitwise.left_shift(tf.cast(ids[:-1], tf.int64), 32) + tf.cast(ids[1:], tf.int64)
        rank = tf.cast(self._ranks.lookup(pairs), tf.int32)
        rank = tf.concat([tf.where(word[1:] == word[:-1], rank, NO_RANK), [NO_RANK]], 0)
        lowest = tf.gather(tf.math.segment_min(rank, word), word)
        merging = alternate((rank == lowest) & (rank < NO_RANK))
        rank = tf.where(merging, rank, tf.size(self._merged) - 1)
        ids = tf.where(merging, tf.gather(self._merged, rank), ids)
        swallowed = tf.concat([[False], merging[:-1]], 0)
        done = tf.where(lowest == NO_RANK)[:, 0]
        notes = tf.tensor_scatter_nd_update(
            notes, tf.gather(places, done)[:, None], tf.gather(ids, done) + 1
        )
        active = tf.where(~swallowed & (lowest < NO_RANK))[:, 0]
        return tf.gather(tf.stack([ids, word, places], 1), active), notes


def spelled_bytes(token: str) -> bytes:
    """The bytes that a token of the vocabulary file stands for; special tokens are as written."""
    byte_of = {c: byte for byte, c in enumerate(byte_alphabet())}
    if all(c in byte_of for c in token):
        return bytes(byte_of[c] for c in token)
    return token.encode("utf-8")


def read_merges(path: str | Path) -> list[str]:
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line and not line.startswith("#version")]


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


def character_kinds() -> np.ndarray:
    """OTHER, LETTER, NUMBER or SPACE of every code point."""
    kinds = np.full(len(members("bpe_space")), OTHER)
    kinds[members("bpe_letter")] = LETTER
    kinds[members("bpe_number")] = NUMBER
    kinds[members("bpe_space")] = SPACE
    return kinds


def before(values: tf.Tensor, steps: int, fill: object) -> tf.Tensor:
    """values moved so that each place holds what stood `steps` before it."""
    num = tf.size(values)
    return tf.concat([tf.fill([steps], tf.cast(fill, values.dtype)), values], 0)[:num]


def after(values: tf.Tensor, steps: int, fill: object) -> tf.Tensor:
    """values moved so that each place holds what stands `steps` after it."""
    num = tf.size(values)
    return tf.concat([values, tf.fill([steps], tf.cast(fill, values.dtype))], 0)[
        steps : steps + num
    ]


def word_starts(codes: tf.Tensor, kinds: tf.Tensor, row_starts: tf.Tensor) -> tf.Tensor:
    """First characters (W,) of GPT-2's words.

    The pattern `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`
    decides locally, so no regular expression runs.
    """
    last_code = tf.where(row_starts, -1, before(codes, 1, -1))
    last_kind = tf.where(row_starts, -1, before(kinds, 1, -1))
    row_ends = after(row_starts, 1, True)
    is_space = kinds == SPACE
    last_space_of_run = is_space & ~row_ends & ~after(is_space, 1, True)
    space_starts = is_space & ((last_kind != SPACE) | last_space_of_run)

    opens = (codes == ord("'")) & (last_kind != OTHER) & (last_code != ord(" "))
    one, two = contraction_ends(codes, opens, row_ends)
    joined = before(one | two, 1, False) | before(two, 2, False)  # inside a contraction
    resumes = before(one, 2, False) | before(two, 3, False)  # right after one
    word_starts = (last_code != ord(" ")) & (last_kind != kinds) & ~joined | resumes
    starts = tf.where(is_space, space_starts, word_starts & ~is_space)
    return tf.cast(tf.where(starts | row_starts)[:, 0], tf.int32)


def contraction_ends(codes, opens, row_ends):
    """Where an apostrophe opens 's 't 'm 'd, and where 're 've 'll."""
    first = tf.where(row_ends, -1, after(codes, 1, -1))
    second = tf.where(row_ends | after(row_ends, 1, True), -1, after(codes, 2, -1))

    def any_of(values, letters):
        return tf.reduce_any(values[:, None] == [ord(c) for c in letters], 1)

    one = opens & any_of(first, "stmd")
    two = opens & (
        any_of(first, "rv") & (second == ord("e")) | (first == ord("l")) & (second == ord("l"))
    )
    return one, two


def utf8_symbols(codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """UTF-8 bytes (S,) of code points (N,), and where each one's begin (N + 1,)."""

    def encoded():
        length = 1 + sum(tf.cast(codes >= low, tf.int32) for low in (0x80, 0x800, 0x10000))
        length = tf.where(codes >= SPECIALS.start, 1, length)
        shifts = tf.constant([18, 12, 6, 0])
        tail = tf.bitwise.right_shift(codes[:, None], shifts) & 0x3F | 0x80  # (N, 4)
        marker = tf.gather([0, 0, 0xC0, 0xE0, 0xF0], length)
        place = 4 - length[:, None]  # column of the leading byte
        lead = tf.bitwise.right_shift(codes, tf.gather(shifts, 4 - length)) | marker
        lead = tf.where(codes >= SPECIALS.start, codes - SPECIALS.start + 256, lead)
        columns = tf.range(4)[None]
        columns = tf.where(columns == place, lead[:, None], tail), columns >= place
        splits = tf.concat([[0], tf.cumsum(length)], 0)
        return tf.boolean_mask(*columns), splits

    return tf.cond(
        tf.reduce_all(codes < 0x80), lambda: (codes, tf.range(tf.size(codes) + 1)), encoded
    )


def ragged_ranges(starts: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """The numbers from each start on, one range after the other."""
    return tf.ragged.range(starts, starts + lengths).values


def alternate(flags: tf.Tensor) -> tf.Tensor:
    """Keeps the first, third, ... flag of every run."""
    run_starts = flags & ~before(flags, 1, False)
    first = tf.cast(tf.where(run_starts)[:, 0], tf.int32)
    run = tf.maximum(tf.cumsum(tf.cast(run_starts, tf.int32)) - 1, 0)
    offset = tf.range(tf.size(flags)) - tf.gather(tf.concat([first, [0]], 0), run)
    return flags & (offset % 2 == 0)
