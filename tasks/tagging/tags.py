"""Parse tags of words, such as B-PER, and find the spans that they mark.

The following schemes are supported: IOB1 (B only separates two spans of the same type), IOB2, also
called BIO (every span begins with B), and IOBES (the last word of a span has the tag E, and a span
of one word has the tag S). IOBES is also written as BILOU, with L for E and U for S, or as BMES and
BMEWO, with M for I and W for S. Prefixes can also be written as in B_PER, b-per or PER-B. A tag
without a prefix is a type, and adjacent words of the same type are one span.

Comments use these letters for shapes: C tags, L words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from encoder_zoo.common.wording import invalid

OUTSIDE, INSIDE, BEGIN, END, SINGLE = range(5)
LETTERS = {
    "B": BEGIN,
    **dict.fromkeys("IM", INSIDE),
    **dict.fromkeys("EL", END),
    **dict.fromkeys("SUW", SINGLE),
}
SCHEMES = ("IOB1", "IOB2", "IOE1", "IOE2", "IOBES")
SCHEME_NAMES = {"BIO": "IOB2", **dict.fromkeys(("BIOES", "BILOU", "BMES", "BMEWO"), "IOBES")}
# Prefixes and suffixes that mark the position in a span in unsupported notations.
POSITION_PATTERN = r"[a-z]|begin|start|in|inside|mid|middle|end|last|single|unit|out"


class TagSet(NamedTuple):
    """The parsed tags.

    Attributes:
        prefixes: Integer array of shape (C,). OUTSIDE, INSIDE, BEGIN, END or SINGLE.
        types: Integer array of shape (C,). Indices in `type_names`, or `len(type_names)` for O.
        type_names: Sorted list of the types.
    """

    prefixes: np.ndarray
    types: np.ndarray
    type_names: list[str]


class Notation(NamedTuple):
    """Notation of tags, such as B-PER, B_PER, PER-B or b-per."""

    separator: str = "-"
    is_suffix: bool = False
    is_lower: bool = False

    def split(self, tag: str) -> tuple[str, str]:
        """Split a tag into its position letter and its type. Without a prefix, the letter is ""."""
        parts = tag.rpartition(self.separator) if self.is_suffix else tag.partition(self.separator)
        kind, _, letter = parts if self.is_suffix else parts[::-1]
        if self.is_lower:
            letter = letter.upper() if letter.islower() else ""
        return (letter, kind) if kind and letter in LETTERS else ("", tag)

    def get_outside_tags(self, tags: Iterable[str]) -> set[str]:
        """Return the tags of words outside spans."""
        return {"O", "o"} & set(tags) if self.is_lower else {"O"}


DEFAULT = Notation()
OTHERS = [
    Notation(separator, is_suffix, is_lower)
    for separator in "-_:/|."
    for is_lower in (False, True)
    for is_suffix in (False, True)
]


def _split(tags: Iterable[str]) -> tuple[Notation, dict[str, tuple[str, str]]]:
    """Find the notation of tags. Return it with the position letter and the type of all span tags.

    If at least one tag is written like B-PER, this notation is returned. A different notation is
    only returned if all tags follow it.
    """
    known = set(tags)
    parts = {tag: DEFAULT.split(tag) for tag in known - {"O"}}
    letters, of_kind = {letter for letter, _ in parts.values()}, _collect_prefixes(parts.values())
    # Letters such as M, E and S are only prefixes if other prefixes occur, so "E-mail" can be a
    # type.
    company = {kind for kind, found in of_kind.items() if len(found) > 1}
    has_middle = any(letter == "M" and kind in company for letter, kind in parts.values())
    read = {*"BIESLU", *("MW" if has_middle else "")}
    alone = {*"BI", *(read & {*"SUW"} if letters <= read else ())}
    for tag, (letter, kind) in parts.items():
        if letter not in alone and kind not in company:
            parts[tag] = "", tag
    if not any(letter for letter, _ in parts.values()):
        for notation in OTHERS:
            found = {tag: notation.split(tag) for tag in known - notation.get_outside_tags(known)}
            if found and _is_notation(found.values(), notation, "o" in known - {*found}):
                return notation, found
    return DEFAULT, parts


def _collect_prefixes(parts: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return the prefixes of each type that occurs with a prefix."""
    found: dict[str, set[str]] = {}
    for letter, kind in parts:
        if letter:
            found.setdefault(kind, set()).add(letter)
    return found


def _is_notation(parts: Iterable[tuple[str, str]], notation: Notation, has_lower_o: bool) -> bool:
    """Return whether all tags follow a notation.

    All tags must have a letter, and B or I must occur. In addition, one type must have two
    different letters. If B is the only letter, several types are sufficient, or the tag "o" if the
    notation is lowercase.
    """
    letters = {letter for letter, _ in parts}
    of_kind = _collect_prefixes(parts)
    in_company = any(len(found) > 1 for found in of_kind.values())
    all_begin = letters == {"B"} and (has_lower_o if notation.is_lower else len(of_kind) > 1)
    return "" not in letters and bool(letters & {"B", "I"}) and (in_company or all_begin)


def parse_tags(tags: Sequence[str]) -> TagSet:
    """Parse the prefix and the type of every tag.

    Args:
        tags: List of strings. Preferably all tags of a model, because the notation is detected from
            all of them. "O" is outside every span.

    Example:
        >>> tags = parse_tags(["O", "B-PER", "I-PER", "E-mail"])
        >>> tags.type_names, tags.types.tolist(), tags.prefixes.tolist()
        (['E-mail', 'PER'], [2, 1, 1, 0], [0, 2, 1, 1])
        >>> parse_tags(["o", "b_per", "m_per", "e_per"]).prefixes.tolist()
        [0, 2, 1, 3]
    """
    _, parts = _split(tags)
    names = sorted({kind for _, kind in parts.values()})
    numbers = {name: i for i, name in enumerate(names)}
    types = [numbers[parts[tag][1]] if tag in parts else len(names) for tag in tags]
    # A type without a prefix is treated as inside a span.
    prefixes = [LETTERS[parts[tag][0] or "I"] if tag in parts else OUTSIDE for tag in tags]
    return TagSet(np.array(prefixes, "int32"), np.array(types, "int32"), names)


def find_outside_index(tags: Sequence[str]) -> int | None:
    """Return the index of the tag for words outside spans, or None.

    Example:
        >>> find_outside_index(["B-PER", "O"]), find_outside_index(["NOUN", "VERB"])
        (1, None)
    """
    found = np.flatnonzero(parse_tags(tags).prefixes == OUTSIDE)
    return int(found[0]) if len(found) else None


def describe_notation(tags: Sequence[str]) -> str | None:
    """Create a log message that explains how unusual tags are parsed.

    Return None for IOB1, IOB2 and IOBES.

    Example:
        >>> describe_notation(["O", "B-PER", "M-PER", "E-PER", "S-PER"])
        "Tags follow BMES, such as 'M-PER'. They are converted to BIOES."
        >>> describe_notation(["O", "B-PER", "I-PER"]), describe_notation(["NOUN", "VERB"])
        (None, None)
    """
    notation, parts = _split(tags)
    letters = {letter for letter, _ in parts.values()} - {""}
    plain = [tag for tag in tags if tag in parts and not parts[tag][0]]
    scheme, read = "BIO", "BIO"
    if letters & {*"MESLUW"}:
        scheme, read = ("BILOU" if letters & {*"LU"} else "BIOES"), "BIOES"
        scheme = ("BMEWO" if "W" in letters else "BMES") if letters & {*"MW"} else scheme
    if notation != DEFAULT or scheme in ("BMES", "BMEWO"):
        of_place = {*"MW"} & letters or letters
        shown = next(tag for tag in tags if tag in parts and parts[tag][0] in of_place)
        return f"Tags follow {scheme}, such as {shown!r}. They are converted to {read}."
    if letters and plain:
        return (
            f"Tags follow {scheme}, but {', '.join(map(repr, plain[:5]))} "
            f"{'have' if len(plain) > 1 else 'has'} no prefix of this scheme. Tags without a "
            "prefix are used as separate types."
        )
    unknown = [] if letters else _find_unknown_notation(plain)
    if unknown:
        return (
            f"The scheme of the tags is unknown: {', '.join(map(repr, unknown[:5]))}. Each tag is "
            "used as a separate type. Known schemes are BIO, IOB1, BIOES, BILOU and BMES, with "
            "tags such as B-PER."
        )
    if not letters and find_outside_index(tags) is not None and plain:
        return (
            f"Tags such as {plain[0]!r} have no prefixes. Adjacent words with the same tag are "
            "combined into one entity."
        )
    return None


def _find_unknown_notation(tags: Sequence[str]) -> list[str]:
    """Find tags that differ only in a prefix or suffix, which indicates an unknown scheme."""
    for pattern in (
        rf"(?:{POSITION_PATTERN})[-_:/|.](?P<kind>.+)",
        rf"(?P<kind>.+)[-_:/|.](?:{POSITION_PATTERN})",
    ):
        kinds: dict[str, list[str]] = {}
        for tag in tags:
            match = re.fullmatch(pattern, tag, re.IGNORECASE)
            if match:
                kinds.setdefault(match["kind"].lower(), []).append(tag)
        for found in kinds.values():
            if len(found) > 1:
                return found
    return []


def mark_span_starts(prefix, kind, previous_prefix, previous_kind):
    """Return whether a span begins at each word. A span ends before the next span or O.

    Like the CoNLL script, this function supports all schemes and malformed tags. It accepts NumPy
    arrays and tensors of every backend.

    Args:
        prefix: Integer array or tensor. Prefix of each word (see `TagSet`).
        kind: Integer array or tensor. Type of each word.
        previous_prefix: Integer array or tensor. Prefix of the previous word, or OUTSIDE for the
            first word of a sentence.
        previous_kind: Integer array or tensor. Type of the previous word.

    Source: Tjong Kim Sang and Buchholz 2000, Introduction to the CoNLL-2000 Shared Task, and its
    script conlleval.
    """
    after_closed = (
        (previous_prefix == OUTSIDE) | (previous_prefix == END) | (previous_prefix == SINGLE)
    )
    opens = (prefix == BEGIN) | (prefix == SINGLE)
    return (prefix != OUTSIDE) & (opens | after_closed | (kind != previous_kind))


def find_spans(
    tags: Sequence[str], scheme: str | None = None, tag_set: Sequence[str] | None = None
) -> list[tuple[str, int, int]]:
    """Find all spans in a sentence from its tags.

    Args:
        tags: List of strings. Tag of each word.
        scheme: Optional string. With "IOB1", "IOB2", "IOE1", "IOE2" or "IOBES", only well-formed
            spans of this scheme are found. "BIO", "BIOES", "BILOU", "BMES" and "BMEWO" are accepted
            as other names. If None, tags are read as in the CoNLL script, and malformed tags also
            mark spans.
        tag_set: Optional list of strings. All tags, for `parse_tags`. If None, the tags in the
            sentence are used.

    Returns:
        List of tuples (type, index of the first word, index after the last word).

    Raises:
        ValueError: If `scheme` is unknown.

    Example:
        >>> find_spans(["B-PER", "I-PER", "O", "I-LOC"])
        [('PER', 0, 2), ('LOC', 3, 4)]
        >>> find_spans(["B-PER", "I-PER", "O", "I-LOC"], scheme="IOB2")
        [('PER', 0, 2)]
    """
    vocabulary = list(dict.fromkeys([*(tag_set or []), *tags]))
    parsed = parse_tags(vocabulary)
    numbers = {tag: i for i, tag in enumerate(vocabulary)}
    ids = np.array([numbers[tag] for tag in tags], "int32")
    prefixes, types = parsed.prefixes[ids], parsed.types[ids]
    starts, ends = find_span_bounds(prefixes, types, scheme)
    return [
        (parsed.type_names[types[s]], int(s), int(e)) for s, e in zip(starts, ends, strict=True)
    ]


def find_span_bounds(
    prefixes: np.ndarray, types: np.ndarray, scheme: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Find the starts and ends of spans in a sentence from the prefixes and types (L,)."""
    scheme = SCHEME_NAMES.get(scheme, scheme)
    if scheme not in (None, *SCHEMES):
        known = ", ".join((*SCHEMES, *SCHEME_NAMES))
        raise invalid("scheme", scheme, f"one of {known} or None")
    if scheme in ("IOE1", "IOE2"):  # the mirror images of IOB1 and IOB2
        flipped = np.where(prefixes == END, BEGIN, prefixes)[::-1]
        starts, ends = find_span_bounds(flipped, types[::-1], f"IOB{scheme[-1]}")
        return (len(prefixes) - ends)[::-1], (len(prefixes) - starts)[::-1]
    kind_before = _get_previous(types, -1)
    stray = np.zeros(len(prefixes), bool)
    if scheme == "IOB1":  # a B must separate two spans
        before = _get_previous(prefixes, OUTSIDE)
        separates = ((before == INSIDE) | (before == BEGIN)) & (types == kind_before)
        stray = (prefixes == BEGIN) & ~separates
        prefixes = np.where(stray, OUTSIDE, prefixes)
    begins = mark_span_starts(prefixes, types, _get_previous(prefixes, OUTSIDE), kind_before)
    starts = np.flatnonzero(begins)
    breaks = np.append(np.flatnonzero(begins | (prefixes == OUTSIDE)), len(prefixes))
    ends = breaks[np.searchsorted(breaks, starts, side="right")]
    good = np.ones(len(starts), bool)
    if scheme == "IOB1":  # an invalid B does not end a span of a single B either
        good = (prefixes[ends - 1] != BEGIN) | ~np.append(stray, False)[ends]
    elif scheme == "IOB2":
        good = prefixes[starts] == BEGIN
    elif scheme == "IOBES":
        first, last = prefixes[starts], prefixes[ends - 1]
        good = (first == SINGLE) | ((first == BEGIN) & (last == END))
    return starts[good], ends[good]


def _get_previous(values: np.ndarray, first: int) -> np.ndarray:
    """Return the value of the previous word for each word (L,)."""
    return np.concatenate([[first], values])[: len(values)]


def list_tags(types: Iterable[str]) -> list[str]:
    """Return the IOB2 tags of entity types, starting with O.

    Example:
        >>> list_tags(["PER", "LOC"])
        ['O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER']
    """
    return ["O", *(f"{letter}-{kind}" for kind in sorted(set(types)) for letter in "BI")]


def map_subword_tags(tags: Sequence[str]) -> np.ndarray:
    """Map the tag of a word to the tags of the word's tokens.

    Args:
        tags: List of strings. All C tags.

    Returns:
        Integer array of shape (C, 4). Indices in `tags`. Row i contains the tags for words with tag
        i: the tag of the only token, the first token, the middle tokens and the last token. If the
        scheme has these tags, B-PER is followed by I-PER, and S-PER becomes B-PER, I-PER, E-PER.

    Example:
        >>> map_subword_tags(["O", "B-PER", "I-PER"]).tolist()
        [[0, 0, 0, 0], [1, 1, 2, 2], [2, 2, 2, 2]]
    """
    parsed = parse_tags(tags)
    keys = list(zip(parsed.prefixes.tolist(), parsed.types.tolist(), strict=True))
    indices = {key: i for i, key in enumerate(keys)}
    patterns = {
        OUTSIDE: (OUTSIDE,) * 3,
        INSIDE: (INSIDE, INSIDE, INSIDE),
        BEGIN: (BEGIN, INSIDE, INSIDE),
        END: (INSIDE, INSIDE, END),
        SINGLE: (BEGIN, INSIDE, END),
    }
    table = [
        [i, *(indices.get((p, kind), i) for p in patterns[prefix])]
        for i, (prefix, kind) in enumerate(keys)
    ]
    return np.array(table, "int32").reshape(-1, 4)


def map_word_tags(tags: Sequence[str]) -> np.ndarray:
    """Map the tags of a word's first and last token to the tag of the word.

    This table is the inverse of `map_subword_tags`.

    Args:
        tags: List of strings. All C tags.

    Returns:
        Integer array of shape (C, C). Indices in `tags`. Row i and column j contain the tag of a
        word whose first token has tag i and whose last token has tag j. For an invalid combination,
        this is the tag of the first token.

    Example:
        >>> tags = ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
        >>> table = map_word_tags(tags)
        >>> tags[table[1, 3]], tags[table[1, 2]], tags[table[1, 0]]
        ('S-PER', 'B-PER', 'B-PER')
    """
    table = np.repeat(np.arange(len(tags))[:, None], len(tags), axis=1)
    for tag, (_, first, _, last) in enumerate(map_subword_tags(tags)):
        table[first, last] = tag
    return table


def sort_tags(tags: Iterable[str]) -> list[str]:
    """Sort tags: O first, then by type, and the tags of a type in the order B, I, E, S.

    If tags have prefixes, but there is no tag for words outside spans, O is added. If no tag has a
    prefix, as in part-of-speech tagging, every word can have a tag.

    Example:
        >>> sort_tags(["I-PER", "B-PER", "B-LOC"]), sort_tags(["VERB", "NOUN"])
        (['O', 'B-LOC', 'B-PER', 'I-PER'], ['NOUN', 'VERB'])
    """
    names = set(tags)
    has_prefixes = any(letter for letter, _ in _split(names)[1].values())
    if has_prefixes and find_outside_index([*names]) is None:
        names.add("O")
    names = sorted(names)
    parsed = parse_tags(names)
    order = [OUTSIDE, BEGIN, INSIDE, END, SINGLE]
    kinds = zip(names, parsed.types, map(order.index, parsed.prefixes), strict=True)
    return [name for name, _, _ in sorted(kinds, key=lambda k: (k[2] > 0, k[1], k[2]))]
