"""Find added tokens in texts, and split texts around them.

The parts between added tokens are tokenized as separate texts. Comments use these letters for
shapes: N characters, K found tokens, R rows, and P = K + R parts, which may be empty.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.tokens import Tokens
from encoder_zoo.encoders.tokenizers.segmentation.unigram import Trie
from encoder_zoo.encoders.tokenizers.text.characters import (
    NUM_CODE_POINTS,
    Characters,
    CodePointTable,
    mark_members,
)
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import expand_spans, make_index_mask


class SplitTexts(NamedTuple):
    """A batch of texts that are split at added tokens.

    Attributes:
        parts: `Characters` between the added tokens, with P rows.
        ids: int32 tensor of shape (K,). The ids for the added tokens.
        starts, ends: int32 tensors of shape (K,). The span of each added token, as character
            indices in the concatenation of all original texts.
        rows: int32 tensor of shape (K,). The row index for each added token.
        num_rows: Integer scalar R. The number of texts.
    """

    parts: Characters
    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    rows: tf.Tensor
    num_rows: tf.Tensor


class AddedTokenFinder(tf.Module):
    """Finds added tokens in texts with leftmost-longest matching, as in the `tokenizers` library.

    Args:
        tokens: List of entries in tokenizer.json. See `complete_added_tokens` in
            `files.special_tokens`.
        contents: List with the code points of each token. To search in normalized texts, the
            contents must be normalized, too. If several tokens have equal contents, the first token
            is used.
        trim_offsets: Boolean. Whether to exclude leading and trailing white space from spans.
            Defaults to False.
        keep_first_space: Boolean. Whether spans include a single space at the beginning of a text,
            even if `trim_offsets` is True. Defaults to False.

    Source: `AddedVocabulary` in the `tokenizers` library, which uses leftmost-longest Aho-Corasick
        search.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.files.special_tokens import complete_added_tokens
        >>> from encoder_zoo.encoders.tokenizers.text.characters import decode_characters
        >>> tokens = complete_added_tokens(["ab", "abc"], {})
        >>> finder = AddedTokenFinder(tokens, [[97, 98], [97, 98, 99]])
        >>> split = finder(decode_characters(tf.constant(["xabcab", "y"])))
        >>> [x.numpy().tolist() for x in (split.ids, split.starts, split.parts.codes)]
        [[1, 0], [1, 4], [120, 121]]
    """

    def __init__(
        self,
        tokens: Sequence[Mapping],
        contents: Sequence[Sequence[int]],
        trim_offsets: bool = False,
        keep_first_space: bool = False,
    ):
        super().__init__()
        self._trim_offsets = trim_offsets
        self._keep_first_space = keep_first_space
        alphabet = sorted({code for content in contents for code in content})
        numbers = np.zeros(NUM_CODE_POINTS, np.int32)
        numbers[alphabet] = np.arange(len(alphabet)) + 1
        self._numbers = CodePointTable(numbers)
        firsts = np.zeros(len(alphabet) + 1, bool)
        firsts[[numbers[content[0]] for content in contents]] = True
        self._may_begin = tf.constant(firsts)
        words = PackedWords.from_symbols(contents[::-1])
        words = words._replace(symbols=numbers[words.symbols])
        self._trie = Trie([1] * len(contents), words, range(len(contents))[::-1])
        self._ids = tf.constant([token["id"] for token in tokens], tf.int32)
        self._options = {
            name: tf.constant([token[name] for token in tokens])
            for name in ("single_word", "lstrip", "rstrip")
            if any(token[name] for token in tokens)
        }
        self._spaces = CodePointTable(mark_members("bpe_space").astype("int32"))
        self._word_characters = CodePointTable(mark_members("word_character").astype("int32"))

    def __call__(self, chars: Characters) -> SplitTexts:
        """Split texts around added tokens."""
        starts, ends, tokens = self._find_longest_matches(chars)
        chosen = select_leftmost_spans(starts, ends)
        starts, ends, tokens = (tf.gather(part, chosen) for part in (starts, ends, tokens))
        if "single_word" in self._options:
            alone = ~tf.gather(self._options["single_word"], tokens)
            word_before = self._is_word_character(chars, starts - 1, starts)
            alone |= ~(word_before | self._is_word_character(chars, ends, ends))
            starts, ends, tokens = (tf.boolean_mask(p, alone) for p in (starts, ends, tokens))
        rows = find_rows(chars, starts)
        starts, ends = self._strip(chars, starts, ends, tokens, rows)
        spans = self._compute_spans(chars, starts, ends)
        return SplitTexts(
            remove_spans(chars, starts, ends, rows),
            tf.gather(self._ids, tokens),
            *spans,
            rows,
            tf.size(chars.row_splits) - 1,
        )

    def _find_longest_matches(self, chars: Characters) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Find the longest match at each position.

        Returns:
            Starts, ends and token indices of all matches, as int32 tensors of shape (M,).
        """
        numbers = self._numbers(chars.codes)
        origins = tf.cast(tf.where(tf.gather(self._may_begin, numbers))[:, 0], tf.int32)
        limits = tf.gather(chars.row_splits, find_rows(chars, origins) + 1)

        def symbol_at(searching, offset):
            position = tf.gather(origins, searching) + offset
            symbol = tf.gather(numbers, tf.minimum(position, tf.size(numbers) - 1))
            return tf.where(position < tf.gather(limits, searching), symbol, 0)

        tokens, lengths = self._trie.find_longest_matches(
            tf.ones_like(origins, tf.int64), symbol_at
        )
        found = lengths > 0
        starts = tf.boolean_mask(origins, found)
        ends = starts + tf.boolean_mask(lengths, found)
        return starts, ends, tf.boolean_mask(tokens, found)

    def _is_word_character(
        self, chars: Characters, positions: tf.Tensor, borders: tf.Tensor
    ) -> tf.Tensor:
        """Return a mask (K,) that is True for positions with a word character.

        The mask is False if a text starts or ends at the border between the position and the token.
        """
        size = tf.size(chars.codes)
        apart = tf.gather(make_index_mask(chars.row_splits, size + 1), borders)
        codes = tf.gather(tf.concat([chars.codes, [0]], 0), tf.where(apart, size, positions))
        return self._word_characters(codes) > 0

    def _strip(
        self,
        chars: Characters,
        starts: tf.Tensor,
        ends: tf.Tensor,
        tokens: tf.Tensor,
        rows: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Include white space before tokens with lstrip, and after tokens with rstrip."""
        if "rstrip" in self._options:
            most = tf.minimum(
                self._find_next_non_space(chars, ends), tf.gather(chars.row_splits, rows + 1)
            )
            ends = tf.where(tf.gather(self._options["rstrip"], tokens), most, ends)
        if "lstrip" in self._options:
            least = tf.maximum(
                self._find_last_non_space(chars, starts), tf.gather(chars.row_splits, rows)
            )
            taken = tf.concat([[0], ends], 0)[:-1]  # end of the previous token
            least = tf.maximum(least, taken)
            starts = tf.where(tf.gather(self._options["lstrip"], tokens), least, starts)
        return starts, ends

    def _compute_spans(
        self, chars: Characters, starts: tf.Tensor, ends: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the start and end offsets of each token in the original text."""
        first, last = tf.gather(chars.starts, starts), tf.gather(chars.ends, ends - 1)
        if not self._trim_offsets:
            return first, last
        inner = tf.minimum(self._find_next_non_space(chars, starts), ends)
        outer = tf.maximum(self._find_last_non_space(chars, ends), inner)
        if self._keep_first_space:  # it is treated like an inserted space
            is_first = tf.gather(
                make_index_mask(chars.original_splits, chars.original_splits[-1] + 1), first
            )
            inner = tf.where(is_first & (inner - starts == 1), starts, inner)
            outer = tf.maximum(outer, inner)
        # If a token only contains white space, use an empty span at its end.
        begin = tf.gather(chars.starts, tf.minimum(inner, tf.size(chars.codes) - 1))
        begin = tf.where(inner < ends, begin, last)
        return begin, tf.where(outer > inner, tf.gather(chars.ends, outer - 1), begin)

    def _find_next_non_space(self, chars: Characters, positions: tf.Tensor) -> tf.Tensor:
        """Return the first non-space position at or after each position (K,), or N."""
        solid = self._find_non_spaces(chars)
        return tf.gather(
            tf.concat([solid, [tf.size(chars.codes)]], 0), tf.searchsorted(solid, positions)
        )

    def _find_last_non_space(self, chars: Characters, positions: tf.Tensor) -> tf.Tensor:
        """Return the end of the last non-space character before each position (K,), or 0."""
        solid = self._find_non_spaces(chars)
        return tf.gather(tf.concat([[-1], solid], 0), tf.searchsorted(solid, positions)) + 1

    def _find_non_spaces(self, chars: Characters) -> tf.Tensor:
        return tf.cast(tf.where(self._spaces(chars.codes) == 0)[:, 0], tf.int32)


def make_finder(
    tokens: Sequence[Mapping], contents: Sequence[Sequence[int]], **options: bool
) -> AddedTokenFinder | None:
    """Create a finder for the tokens with non-empty contents, or return None if there are none."""
    found = [pair for pair in zip(tokens, contents, strict=True) if pair[1]]
    return AddedTokenFinder(*zip(*found, strict=True), **options) if found else None


def remove_spans(
    chars: Characters, starts: tf.Tensor, ends: tf.Tensor, rows: tf.Tensor
) -> Characters:
    """Remove the characters in spans (K,), and split the remaining characters into P rows."""
    num, num_rows = tf.size(rows), tf.size(chars.row_splits) - 1
    first = tf.range(num_rows) + tf.searchsorted(rows, tf.range(num_rows))  # first part in each row
    behind = rows + tf.range(num) + 1  # part after each span
    last = tf.concat([first, [num + num_rows]], 0)[1:] - 1

    def borders(of_rows: tf.Tensor, row_borders: tf.Tensor, of_spans: tf.Tensor, spans: tf.Tensor):
        indices = tf.concat([of_rows, of_spans], 0)[:, None]
        return tf.scatter_nd(indices, tf.concat([row_borders, spans], 0), [num + num_rows])

    begins = borders(first, chars.row_splits[:-1], behind, ends)
    stops = borders(last, chars.row_splits[1:], behind - 1, starts)
    indices, _, splits = expand_spans(begins, tf.maximum(begins, stops))
    return chars.take(indices)._replace(row_splits=splits)


def make_added_tokenizer(
    finder: AddedTokenFinder | None, tokenize: Callable[[Characters], Tokens]
) -> Callable[[Characters], Tokens]:
    """Create a function to find added tokens and to tokenize the parts between them.

    Args:
        finder: Finder to use for added tokens, or None if there are no added tokens.
        tokenize: Function to tokenize the parts.
    """
    if finder is None:
        return tokenize

    def tokenize_with_added(chars: Characters) -> Tokens:
        split = finder(chars)
        return merge_tokens(tokenize(split.parts), split)

    return tokenize_with_added


def merge_tokens(tokens: Tokens, split: SplitTexts) -> Tokens:
    """Insert the added tokens between the tokens of the parts (P rows), and return R rows."""
    found = tf.range(tf.size(split.ids))
    positions = tf.gather(tokens.row_splits, split.rows + found + 1) + found
    is_found = tf.cast(
        make_index_mask(positions, tf.size(tokens.ids) + tf.size(split.ids)), tf.int32
    )
    order = tf.where(
        is_found > 0, tf.size(tokens.ids) + tf.cumsum(is_found) - 1, tf.cumsum(1 - is_found) - 1
    )
    parts = zip(tokens[:3], (split.ids, split.starts, split.ends), strict=True)
    values = [tf.gather(tf.concat(part, 0), order) for part in parts]
    rows = tf.range(split.num_rows + 1)
    before = tf.searchsorted(split.rows, rows)
    return Tokens(*values, tf.gather(tokens.row_splits, rows + before) + before)


def find_rows(chars: Characters, positions: tf.Tensor) -> tf.Tensor:
    """Return the row index for each position, with shape (K,)."""
    return tf.searchsorted(chars.row_splits, positions, side="right") - 1


def select_leftmost_spans(starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Select non-overlapping spans from left to right, and return their indices.

    Args:
        starts, ends: int32 tensors of shape (M,). Spans, sorted by start.

    Example:
        >>> starts, ends = tf.constant([0, 1, 2, 5]), tf.constant([2, 3, 4, 6])
        >>> select_leftmost_spans(starts, ends).numpy().tolist()
        [0, 2, 3]
    """
    num = tf.size(starts)
    following = tf.concat([tf.searchsorted(starts, ends), [num]], 0)  # (M + 1,); index M stops
    reached = make_index_mask(tf.zeros([1], tf.int32), num + 1)

    def double(jump, reached):  # doubles the number of steps
        reached |= make_index_mask(tf.boolean_mask(jump, reached), num + 1)
        return tf.gather(jump, jump), reached

    _, reached = tf.while_loop(
        lambda jump, _: jump[0] < num,
        double,
        [following, reached],
        shape_invariants=[tf.TensorShape([None])] * 2,
    )
    return tf.cast(tf.where(reached[:num])[:, 0], tf.int32)
