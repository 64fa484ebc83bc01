"""Parse tags of words, such as B-PER, and find the spans that they mark.

These schemes are read alike: IOB1 (B only between two spans of one type), IOB2, also called BIO
(every span begins with B), and IOBES (a span's last word is E, a span of one word S), also written
BILOU, with L for E and U for S, or BMES and BMEWO, with M for I and W for S. A prefix may also be
written as in B_PER, b-per or PER-B. Tags without a prefix are types by themselves: neighbours of
one type are one span.

Comment letters: C tags, L words.
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
OTHER_NAMES = {"BIO": "IOB2", **dict.fromkeys(("BIOES", "BILOU", "BMES", "BMEWO"), "IOBES")}
# Heads and tails of tags that mark a place in a span in a notation that is not read.
PLACE = r"[a-z]|begin|start|in|inside|mid|middle|end|last|single|unit|out"


class TagSet(NamedTuple):
    """Tags taken apart.

    Attributes:
        prefixes: (C,) int; OUTSIDE, INSIDE, BEGIN, END or SINGLE.
        types: (C,) int, indices in `type_names`; `len(type_names)` for O.
        type_names: the types, sorted.
    """

    prefixes: np.ndarray
    types: np.ndarray
    type_names: list[str]


class Notation(NamedTuple):
    """How the place in a span is written in tags: as in B-PER, B_PER, PER-B or b-per."""

    separator: str = "-"
    is_suffix: bool = False
    is_lower: bool = False

    def split(self, tag: str) -> tuple[str, str]:
        """Return the letter of a tag and its type; no letter if there is none."""
        parts = tag.rpartition(self.separator) if self.is_suffix else tag.partition(self.separator)
        kind, _, letter = parts if self.is_suffix else parts[::-1]
        if self.is_lower:
            letter = letter.upper() if letter.islower() else ""
        return (letter, kind) if kind and letter in LETTERS else ("", tag)

    def outside(self, tags: Iterable[str]) -> set[str]:
        """Return the tags of words outside of spans."""
        return {"O", "o"} & set(tags) if self.is_lower else {"O"}


DEFAULT = Notation()
OTHERS = [
    Notation(separator, is_suffix, is_lower)
    for separator in "-_:/|."
    for is_lower in (False, True)
    for is_suffix in (False, True)
]


def _split(tags: Iterable[str]) -> tuple[Notation, dict[str, tuple[str, str]]]:
    """Return the notation of tags, and of each that is not outside its letter and type.

    As in B-PER where one tag is written so; in another notation only where all of them are.
    """
    known = set(tags)
    parts = {tag: DEFAULT.split(tag) for tag in known - {"O"}}
    letters, of_kind = {letter for letter, _ in parts.values()}, _letters_of(parts.values())
    # M, E, S and so on are prefixes only in company, so that a plain type may be called "E-mail".
    company = {kind for kind, found in of_kind.items() if len(found) > 1}
    has_middle = any(letter == "M" and kind in company for letter, kind in parts.values())
    read = {*"BIESLU", *("MW" if has_middle else "")}
    alone = {*"BI", *(read & {*"SUW"} if letters <= read else ())}
    for tag, (letter, kind) in parts.items():
        if letter not in alone and kind not in company:
            parts[tag] = "", tag
    if not any(letter for letter, _ in parts.values()):
        for notation in OTHERS:
            found = {tag: notation.split(tag) for tag in known - notation.outside(known)}
            if found and _is_notation(found.values(), notation, "o" in known - {*found}):
                return notation, found
    return DEFAULT, parts


def _letters_of(parts: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return the letters that each type of prefixed tags has."""
    found: dict[str, set[str]] = {}
    for letter, kind in parts:
        if letter:
            found.setdefault(kind, set()).add(letter)
    return found


def _is_notation(parts: Iterable[tuple[str, str]], notation: Notation, has_lower_o: bool) -> bool:
    """Return whether all tags follow a notation.

    A type has two letters, or all types have B; in lower case only beside "o".
    """
    letters = {letter for letter, _ in parts}
    of_kind = _letters_of(parts)
    in_company = any(len(found) > 1 for found in of_kind.values())
    all_begin = letters == {"B"} and (has_lower_o if notation.is_lower else len(of_kind) > 1)
    return "" not in letters and bool(letters & {"B", "I"}) and (in_company or all_begin)


def parse_tags(tags: Sequence[str]) -> TagSet:
    """Return the prefix and the type of every tag.

    Args:
        tags: names, best all that there are: the notation is seen from them together. "O" is
            outside of every span.

    Example:
        >>> tags = parse_tags(["O", "B-PER", "I-PER", "E-mail"])
        >>> tags.type_names, tags.types.tolist(), tags.prefixes.tolist()
        (['E-mail', 'PER'], [2, 1, 1, 0], [0, 2, 1, 1])
        >>> parse_tags(["o", "b_per", "m_per", "e_per"]).prefixes.tolist()
        [0, 2, 1, 3]
    """
    _, parts = _split(tags)
    names = sorted({kind for _, kind in parts.values()})
    types = [names.index(parts[tag][1]) if tag in parts else len(names) for tag in tags]
    # A type by itself is as inside of a span.
    prefixes = [LETTERS[parts[tag][0] or "I"] if tag in parts else OUTSIDE for tag in tags]
    return TagSet(np.array(prefixes, "int32"), np.array(types, "int32"), names)


def outside_index(tags: Sequence[str]) -> int | None:
    """Return the index of the tag of words outside of spans; None if there is none.

    Example:
        >>> outside_index(["B-PER", "O"]), outside_index(["NOUN", "VERB"])
        (1, None)
    """
    found = np.flatnonzero(parse_tags(tags).prefixes == OUTSIDE)
    return int(found[0]) if len(found) else None


def notation_line(tags: Sequence[str]) -> str | None:
    """Return a line of the log about how tags are read; None for those of IOB1, IOB2 and IOBES.

    Example:
        >>> notation_line(["O", "B-PER", "M-PER", "E-PER", "S-PER"])
        "Tags follow BMES, such as 'M-PER'; they are read as BIOES."
        >>> notation_line(["O", "B-PER", "I-PER"]), notation_line(["NOUN", "VERB"])
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
        return f"Tags follow {scheme}, such as {shown!r}; they are read as {read}."
    if letters and plain:
        return (
            f"Tags follow {scheme}, but {', '.join(map(repr, plain[:5]))} "
            f"{'have' if len(plain) > 1 else 'has'} no prefix of it: "
            f"{'each' if len(plain) > 1 else 'it'} is read as a type by itself."
        )
    unknown = [] if letters else _in_unknown_notation(plain)
    if unknown:
        return (
            f"The notation of tags such as {', '.join(map(repr, unknown[:5]))} is not known. Each "
            "is read as a type by itself. Known are BIO, IOB1, BIOES, BILOU and BMES, as B-PER."
        )
    if not letters and outside_index(tags) is not None and plain:
        return (
            f"Tags have no prefixes, such as {plain[0]!r}: neighbours of one tag are read as one "
            "entity."
        )
    return None


def _in_unknown_notation(tags: Sequence[str]) -> list[str]:
    """Return the tags that differ only in what seems to mark the place in a span."""
    for pattern in (rf"(?:{PLACE})[-_:/|.](?P<kind>.+)", rf"(?P<kind>.+)[-_:/|.](?:{PLACE})"):
        kinds: dict[str, list[str]] = {}
        for tag in tags:
            match = re.fullmatch(pattern, tag, re.IGNORECASE)
            if match:
                kinds.setdefault(match["kind"].lower(), []).append(tag)
        for found in kinds.values():
            if len(found) > 1:
                return found
    return []


def begins_span(prefix, kind, previous_prefix, previous_kind):
    """Return whether a span begins at a word; it reaches to the next beginning or O.

    As the CoNLL script: in every scheme, and for ill-formed tags too. Works on NumPy arrays and on
    tensors of every backend.

    Args:
        prefix: of the word, see `TagSet`.
        kind: the word's type.
        previous_prefix: of the word before; OUTSIDE for a sentence's first.
        previous_kind: the type of the word before.

    Source: Tjong Kim Sang and Buchholz 2000, conlleval.
    """
    after_closed = (
        (previous_prefix == OUTSIDE) | (previous_prefix == END) | (previous_prefix == SINGLE)
    )
    opens = (prefix == BEGIN) | (prefix == SINGLE)
    return (prefix != OUTSIDE) & (opens | after_closed | (kind != previous_kind))


def spans_of_tags(
    tags: Sequence[str], scheme: str | None = None, tag_set: Sequence[str] | None = None
) -> list[tuple[str, int, int]]:
    """Return the spans that a sentence's tags mark.

    Args:
        tags: one for each word.
        scheme: None reads tags as the CoNLL script does, so that ill-formed ones mark spans too;
            "IOB1", "IOB2", "IOE1", "IOE2" or "IOBES" counts only spans that are well-formed in
            that scheme; "BIO", "BIOES", "BILOU", "BMES" and "BMEWO" are other names of these.
        tag_set: all tags there are, for `parse_tags`; None for those of the sentence.

    Returns:
        (type, first word, word after the last) of every span.

    Raises:
        ValueError: If `scheme` is unknown.

    Example:
        >>> spans_of_tags(["B-PER", "I-PER", "O", "I-LOC"])
        [('PER', 0, 2), ('LOC', 3, 4)]
        >>> spans_of_tags(["B-PER", "I-PER", "O", "I-LOC"], scheme="IOB2")
        [('PER', 0, 2)]
    """
    vocabulary = list(dict.fromkeys([*(tag_set or []), *tags]))
    parsed = parse_tags(vocabulary)
    numbers = {tag: i for i, tag in enumerate(vocabulary)}
    ids = np.array([numbers[tag] for tag in tags], "int32")
    prefixes, types = parsed.prefixes[ids], parsed.types[ids]
    starts, ends = span_bounds(prefixes, types, scheme)
    return [
        (parsed.type_names[types[s]], int(s), int(e)) for s, e in zip(starts, ends, strict=True)
    ]


def span_bounds(
    prefixes: np.ndarray, types: np.ndarray, scheme: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of the spans of one sentence, from prefixes and types (L,)."""
    scheme = OTHER_NAMES.get(scheme, scheme)
    if scheme not in (None, *SCHEMES):
        known = ", ".join((*SCHEMES, *OTHER_NAMES))
        raise invalid("scheme", scheme, f"one of {known} or None")
    if scheme in ("IOE1", "IOE2"):  # IOB1 and IOB2 from the end
        flipped = np.where(prefixes == END, BEGIN, prefixes)[::-1]
        starts, ends = span_bounds(flipped, types[::-1], f"IOB{scheme[-1]}")
        return (len(prefixes) - ends)[::-1], (len(prefixes) - starts)[::-1]
    kind_before = _shifted(types, -1)
    stray = np.zeros(len(prefixes), bool)
    if scheme == "IOB1":  # a B that separates no spans is not a tag of this scheme
        before = _shifted(prefixes, OUTSIDE)
        separates = ((before == INSIDE) | (before == BEGIN)) & (types == kind_before)
        stray = (prefixes == BEGIN) & ~separates
        prefixes = np.where(stray, OUTSIDE, prefixes)
    begins = begins_span(prefixes, types, _shifted(prefixes, OUTSIDE), kind_before)
    starts = np.flatnonzero(begins)
    breaks = np.append(np.flatnonzero(begins | (prefixes == OUTSIDE)), len(prefixes))
    ends = breaks[np.searchsorted(breaks, starts, side="right")]
    good = np.ones(len(starts), bool)
    if scheme == "IOB1":  # nor does such a B end a span of a single B
        good = (prefixes[ends - 1] != BEGIN) | ~np.append(stray, False)[ends]
    elif scheme == "IOB2":
        good = prefixes[starts] == BEGIN
    elif scheme == "IOBES":
        first, last = prefixes[starts], prefixes[ends - 1]
        good = (first == SINGLE) | ((first == BEGIN) & (last == END))
    return starts[good], ends[good]


def _shifted(values: np.ndarray, first: int) -> np.ndarray:
    """Return the value before each word (L,)."""
    return np.concatenate([[first], values])[: len(values)]


def all_tags(types: Iterable[str]) -> list[str]:
    """Return the IOB2 tags for some types, O first.

    Example:
        >>> all_tags(["PER", "LOC"])
        ['O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER']
    """
    return ["O", *(f"{letter}-{kind}" for kind in sorted(set(types)) for letter in "BI")]


def subword_tags(tags: Sequence[str]) -> np.ndarray:
    """Return the tags of the tokens of a word or span that has several.

    Args:
        tags: all tags there are, C of them.

    Returns:
        (C, 4) int, indices in `tags`: of a word with this tag the only, the first, a middle and the
        last token's tag. B-PER continues as I-PER and S-PER begins as B-PER, where the scheme has
        these tags.

    Example:
        >>> subword_tags(["O", "B-PER", "I-PER"]).tolist()
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


def word_tags(tags: Sequence[str]) -> np.ndarray:
    """Return the tag of a word with several tokens, the inverse of `subword_tags`.

    Args:
        tags: all tags there are, C of them.

    Returns:
        (C, C) int, indices in `tags`: of a word whose first token has one tag and whose last token
        another. Where no word is written so, the first token's.

    Example:
        >>> tags = ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
        >>> table = word_tags(tags)
        >>> tags[table[1, 3]], tags[table[1, 2]], tags[table[1, 0]]
        ('S-PER', 'B-PER', 'B-PER')
    """
    table = np.repeat(np.arange(len(tags))[:, None], len(tags), axis=1)
    for tag, (_, first, _, last) in enumerate(subword_tags(tags)):
        table[first, last] = tag
    return table


def sorted_tags(tags: Iterable[str]) -> list[str]:
    """Sort tags in the order of a head's outputs: O first, then by type, each B, I, E, S.

    Example:
        >>> sorted_tags(["I-PER", "B-PER", "O", "B-LOC"])
        ['O', 'B-LOC', 'B-PER', 'I-PER']
    """
    names = set(tags)
    names = sorted(names | (set() if outside_index([*names]) is not None else {"O"}))
    parsed = parse_tags(names)
    order = [OUTSIDE, BEGIN, INSIDE, END, SINGLE]
    kinds = zip(names, parsed.types, map(order.index, parsed.prefixes), strict=True)
    return [name for name, _, _ in sorted(kinds, key=lambda k: (k[2] > 0, k[1], k[2]))]
