"""Tokens added to a vocabulary: found in texts, which are cut around them.

What lies between two of them is tokenized as a text of its own. Comment letters: N characters,
K found tokens, R rows, P = K + R pieces of text between them, some of them empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.trie import NOWHERE, Trie
from encoder_zoo.encoders.tokenizers.text.characters import Characters, laid_out, marked
from encoder_zoo.encoders.tokenizers.text.sequences import Spellings
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable, members

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokens

# What tokenizer.json says of an added token, and what holds where it says nothing.
OPTIONS = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
FIELDS = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
# Rust's \w, in RE2's words: letters that no category of letters has are numbers and symbols.
WORD_CHARACTER = (
    r"[\pL\pM\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}"
    r"\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}]"
)


def described(tokens: Sequence[str | Mapping], ids: Mapping[str, int]) -> list[dict]:
    """Added tokens with everything said of them that tokenizer.json would say.

    Args:
        tokens: contents, or objects with a "content" and whatever differs from `OPTIONS`; a token
            is looked for in the normalised text, "normalized", unless it is special.
        ids: of the tokens of the vocabulary. A token that is among them keeps its id; others count
            on from the last.

    Raises:
        ValueError: "added_tokens[0] is ...; expected a string, or an object with content ..."

    Example:
        >>> [token] = described(["<e>"], {"a": 0})
        >>> token["id"], token["normalized"]
        (1, True)
    """
    last = max(ids.values(), default=-1)
    taken = {i: token for token, i in ids.items() if token not in ("", f"[unused id {i}]")}
    found = []
    for i, token in enumerate(tokens):
        given = {"content": token} if isinstance(token, str) else dict(token)
        _check(given, f"added_tokens[{i}]")
        entry = {**OPTIONS, "normalized": not given.get("special", False), **given}
        content = entry["content"]
        entry.setdefault("id", ids.get(content, max(last, *taken, -1) + 1))
        if taken.setdefault(entry["id"], content) != content or content in (
            other["content"] for other in found
        ):
            raise ValueError(
                f"added_tokens[{i}], {content!r} with the id {entry['id']}, is there already; "
                "expected tokens and ids of their own"
            )
        found.append({field: entry[field] for field in FIELDS})
    return found


def with_tokens(tokens: Sequence[str], added: Sequence[Mapping]) -> list[str]:
    """All tokens in the order of their ids.

    Example:
        >>> with_tokens(["a"], described([{"content": "<e>", "id": 2}], {"a": 0}))
        ['a', '[unused id 1]', '<e>']
    """
    size = max(len(tokens), *(token["id"] + 1 for token in added))
    known = dict(enumerate(tokens)) | {token["id"]: token["content"] for token in added}
    return [known.get(i, f"[unused id {i}]") for i in range(size)]


def _check(token: Mapping, name: str) -> None:
    content, token_id = token.get("content"), token.get("id", 0)
    good = isinstance(content, str) and content and type(token_id) is int and 0 <= token_id < 2**21
    good = good and all(type(v) is bool for k, v in token.items() if k not in ("content", "id"))
    if not good or not set(token) <= set(FIELDS):
        raise ValueError(
            f"{name} is {token}; expected a string, or an object with content and some of "
            f"{', '.join(FIELDS)}"
        )


class Cut(NamedTuple):
    """A batch of texts without the tokens that were found in it.

    Attributes:
        pieces: the characters between the tokens, in P rows.
        ids: int32 (K,), of the tokens.
        starts, ends: int32 (K,), spans of original characters.
        rows: int32 (K,), in which row each token stands.
        num_rows: R.
    """

    pieces: Characters
    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    rows: tf.Tensor
    num_rows: tf.Tensor


class TokenFinder(tf.Module):
    """Finds tokens in texts as `tokenizers` does: from left to right, the longest of several.

    Args:
        tokens: see `described`.
        contents: code points of what each is to be found as; of equal ones the first counts.
        trims: whether spans leave out white space at their ends.
        keeps_first: whether they keep a single space at the beginning of a text.

    Source: `AddedVocabulary` of the library `tokenizers`, and its searches, Aho-Corasick with
        leftmost-longest matches.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import characters
        >>> finder = TokenFinder(described(["ab", "abc"], {}), [[97, 98], [97, 98, 99]])
        >>> cut = finder(characters(tf.constant(["xabcab", "y"])))
        >>> cut.ids.numpy().tolist(), cut.starts.numpy().tolist(), cut.pieces.codes.numpy().tolist()
        ([1, 0], [1, 4], [120, 121])
    """

    def __init__(
        self,
        tokens: Sequence[Mapping],
        contents: Sequence[Sequence[int]],
        trims: bool = False,
        keeps_first: bool = False,
    ):
        super().__init__()
        self._trims = trims
        self._keeps_first = keeps_first
        alphabet = sorted({code for content in contents for code in content})
        numbers = np.zeros(SPECIALS.stop, np.int32)
        numbers[alphabet] = np.arange(len(alphabet)) + 1
        self._numbers = CodePointTable(numbers)
        firsts = np.zeros(len(alphabet) + 1, bool)
        firsts[[numbers[content[0]] for content in contents]] = True
        self._may_begin = tf.constant(firsts)
        words = Spellings.of(contents[::-1])
        words = words._replace(symbols=numbers[words.symbols])
        self._trie = Trie([1] * len(contents), words, range(len(contents))[::-1])
        self._ids = tf.constant([token["id"] for token in tokens], tf.int32)
        self._options = {
            name: tf.constant([token[name] for token in tokens])
            for name in ("single_word", "lstrip", "rstrip")
            if any(token[name] for token in tokens)
        }
        self._spaces = CodePointTable(members("bpe_space").astype("int32"))

    def __call__(self, chars: Characters, codes: tf.Tensor | None = None) -> Cut:
        """The texts cut around the tokens; no token reaches from one into the next.

        Args:
            chars: the texts.
            codes: int32 (N,), their code points, where `chars` has other numbers.
        """
        text = chars if codes is None else chars._replace(codes=codes)
        starts, ends, tokens = self._longest(text)
        chosen = leftmost(starts, ends)
        starts, ends, tokens = (tf.gather(part, chosen) for part in (starts, ends, tokens))
        if "single_word" in self._options:
            alone = ~tf.gather(self._options["single_word"], tokens)
            alone |= ~(_word_at(text, starts - 1, starts) | _word_at(text, ends, ends))
            starts, ends, tokens = (tf.boolean_mask(p, alone) for p in (starts, ends, tokens))
        rows = row_of(text, starts)
        starts, ends = self._with_spaces(text, starts, ends, tokens, rows)
        spans = self._spans(text, starts, ends)
        return Cut(
            without(chars, starts, ends, rows),
            tf.gather(self._ids, tokens),
            *spans,
            rows,
            tf.size(chars.row_splits) - 1,
        )

    def _longest(self, chars: Characters) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The longest token from each place that one starts at: starts, ends, numbers (M,)."""
        numbers = self._numbers(chars.codes)
        origins = tf.cast(tf.where(tf.gather(self._may_begin, numbers))[:, 0], tf.int32)
        limits = tf.gather(chars.row_splits, row_of(chars, origins) + 1)
        nothing = tf.zeros_like(origins)

        def step(length, walker, node, tokens, lengths):  # one character on, from all places
            place = tf.gather(origins, walker) + length
            inside = place < tf.gather(limits, walker)
            symbol = tf.gather(numbers, tf.minimum(place, tf.size(numbers) - 1))
            node = tf.where(inside, self._trie.step(node, symbol), NOWHERE)
            alive = tf.where(node != NOWHERE)[:, 0]
            walker, node, length = tf.gather(walker, alive), tf.gather(node, alive), length + 1
            value = self._trie.value(node)
            ended = tf.where(value >= 0)[:, 0]
            who = tf.gather(walker, ended)[:, None]
            tokens = tf.tensor_scatter_nd_update(tokens, who, tf.gather(value, ended))
            reached = tf.fill(tf.shape(ended), length)
            return length, walker, node, tokens, tf.tensor_scatter_nd_update(lengths, who, reached)

        roots = tf.ones_like(origins, tf.int64)
        *_, tokens, lengths = tf.while_loop(
            lambda length, walker, *_: tf.size(walker) > 0,
            step,
            [0, tf.range(tf.size(origins)), roots, nothing, nothing],
            shape_invariants=[tf.TensorShape([]), *[tf.TensorShape([None])] * 4],
            parallel_iterations=1,
        )
        found = lengths > 0
        starts = tf.boolean_mask(origins, found)
        ends = starts + tf.boolean_mask(lengths, found)
        return starts, ends, tf.boolean_mask(tokens, found)

    def _with_spaces(
        self,
        chars: Characters,
        starts: tf.Tensor,
        ends: tf.Tensor,
        tokens: tf.Tensor,
        rows: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Starts and ends (K,), with the white space that the tokens take along."""
        if "rstrip" in self._options:
            most = tf.minimum(self._next_solid(chars, ends), tf.gather(chars.row_splits, rows + 1))
            ends = tf.where(tf.gather(self._options["rstrip"], tokens), most, ends)
        if "lstrip" in self._options:
            least = tf.maximum(self._last_solid(chars, starts), tf.gather(chars.row_splits, rows))
            taken = tf.concat([[0], ends], 0)[:-1]  # by the token before
            least = tf.maximum(least, taken)
            starts = tf.where(tf.gather(self._options["lstrip"], tokens), least, starts)
        return starts, ends

    def _spans(
        self, chars: Characters, starts: tf.Tensor, ends: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Where the tokens stand among the original characters."""
        first, last = tf.gather(chars.starts, starts), tf.gather(chars.ends, ends - 1)
        if not self._trims:
            return first, last
        inner = tf.minimum(self._next_solid(chars, starts), ends)
        outer = tf.maximum(self._last_solid(chars, ends), inner)
        if self._keeps_first:  # a single space there is taken for the one put there
            is_first = tf.gather(
                marked(chars.original_splits, chars.original_splits[-1] + 1), first
            )
            inner = tf.where(is_first & (inner - starts == 1), starts, inner)
            outer = tf.maximum(outer, inner)
        none = tf.size(chars.codes) - 1  # where it is all white space, the span ends with it
        begin = tf.gather(chars.starts, tf.minimum(inner, none))
        begin = tf.where(inner < ends, begin, last)
        return begin, tf.where(outer > inner, tf.gather(chars.ends, outer - 1), begin)

    def _next_solid(self, chars: Characters, places: tf.Tensor) -> tf.Tensor:
        """The first place from each (K,) on that is no white space, or the end of all texts."""
        solid = self._solid(chars)
        return tf.gather(
            tf.concat([solid, [tf.size(chars.codes)]], 0), tf.searchsorted(solid, places)
        )

    def _last_solid(self, chars: Characters, places: tf.Tensor) -> tf.Tensor:
        """Behind the last place before each (K,) that is no white space, or 0."""
        solid = self._solid(chars)
        return tf.gather(tf.concat([[-1], solid], 0), tf.searchsorted(solid, places)) + 1

    def _solid(self, chars: Characters) -> tf.Tensor:
        return tf.cast(tf.where(self._spaces(chars.codes) == 0)[:, 0], tf.int32)


def _word_at(chars: Characters, places: tf.Tensor, borders: tf.Tensor) -> tf.Tensor:
    """Boolean (K,): is there a character of a word, which no border of a text keeps apart?"""
    size = tf.size(chars.codes)
    apart = tf.gather(marked(chars.row_splits, size + 1), borders)
    codes = tf.gather(tf.concat([chars.codes, [0]], 0), tf.where(apart, size, places))
    letters = tf.strings.unicode_encode(codes[:, None], "UTF-8")
    return tf.strings.regex_full_match(letters, WORD_CHARACTER)


def without(chars: Characters, starts: tf.Tensor, ends: tf.Tensor, rows: tf.Tensor) -> Characters:
    """The characters outside of spans (K,): a row ends where a span stands, and the next begins."""
    num, num_rows = tf.size(rows), tf.size(chars.row_splits) - 1
    first = tf.range(num_rows) + tf.searchsorted(rows, tf.range(num_rows))  # piece of each row
    behind = rows + tf.range(num) + 1  # piece behind each span
    last = tf.concat([first[1:], [num + num_rows]], 0) - 1

    def borders(of_rows: tf.Tensor, row_borders: tf.Tensor, of_spans: tf.Tensor, spans: tf.Tensor):
        places = tf.concat([of_rows, of_spans], 0)[:, None]
        return tf.scatter_nd(places, tf.concat([row_borders, spans], 0), [num + num_rows])

    begins = borders(first, chars.row_splits[:-1], behind, ends)
    stops = borders(last, chars.row_splits[1:], behind - 1, starts)
    places, _, splits = laid_out(begins, tf.maximum(begins, stops))
    return chars.take(places)._replace(row_splits=splits)


def around(
    finder: TokenFinder | None, tokenize: Callable[[Characters], Tokens]
) -> Callable[..., Tokens]:
    """A function from texts to tokens that finds some by itself and asks for those between.

    Args:
        finder: of the tokens; None: there are none.
        tokenize: pieces of text to tokens.
    """
    if finder is None:
        return lambda chars, codes=None: tokenize(chars)

    def tokens(chars: Characters, codes: tf.Tensor | None = None) -> Tokens:
        cut = finder(chars, codes)
        return joined(tokenize(cut.pieces), cut)

    return tokens


def joined(tokens: Tokens, cut: Cut) -> Tokens:
    """The tokens of the pieces in P rows, with those that were found between them, in R rows."""
    found = tf.range(tf.size(cut.ids))
    places = tf.gather(tokens.row_splits, cut.rows + found + 1) + found
    is_found = tf.cast(marked(places, tf.size(tokens.ids) + tf.size(cut.ids)), tf.int32)
    order = tf.where(
        is_found > 0,
        tf.size(tokens.ids) + tf.cumsum(is_found) - 1,
        tf.cumsum(1 - is_found) - 1,
    )
    parts = zip(tokens[:3], (cut.ids, cut.starts, cut.ends), strict=True)
    values = [tf.gather(tf.concat(part, 0), order) for part in parts]
    rows = tf.range(cut.num_rows + 1)
    before = tf.searchsorted(cut.rows, rows)
    return type(tokens)(*values, tf.gather(tokens.row_splits, rows + before) + before)


def row_of(chars: Characters, places: tf.Tensor) -> tf.Tensor:
    """The row (K,) of ascending places (K,)."""
    return tf.searchsorted(chars.row_splits, places, side="right") - 1


def leftmost(starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Which of some spans (M,), in the order of their starts, are found from left to right.

    Each next one is the first that starts behind the last.

    Example:
        >>> leftmost(tf.constant([0, 1, 2, 5]), tf.constant([2, 3, 4, 6])).numpy().tolist()
        [0, 2, 3]
    """
    num = tf.size(starts)
    following = tf.concat([tf.searchsorted(starts, ends), [num]], 0)  # (M + 1,), the last is none
    reached = marked(tf.zeros([1], tf.int32), num + 1)

    def double(jump, reached):  # whoever is reached reaches who is twice as many steps on
        reached |= marked(tf.boolean_mask(jump, reached), num + 1)
        return tf.gather(jump, jump), reached

    _, reached = tf.while_loop(
        lambda jump, _: jump[0] < num,
        double,
        [following, reached],
        shape_invariants=[tf.TensorShape([None])] * 2,
    )
    return tf.cast(tf.where(reached[:num])[:, 0], tf.int32)
