"""Parse tags of words, such as B-PER, and find the spans that they mark.

Three schemes are read alike: IOB1 (B only between two spans of one type), IOB2, also called BIO
(every span begins with B), and IOBES (a span's last word is E, a span of one word S), also written
BILOU, with L for E and U for S. Tags without a prefix are types by themselves: neighbours of one
type are one span.

Comment letters: C tags, L words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

OUTSIDE, INSIDE, BEGIN, END, SINGLE = range(5)
PREFIXES = {"I": INSIDE, "B": BEGIN, "E": END, "S": SINGLE, "L": END, "U": SINGLE}
SCHEMES = ("IOB1", "IOB2", "IOBES")


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


def parse_tags(tags: Sequence[str]) -> TagSet:
    """Return the prefix and the type of every tag.

    B- and I- are prefixes; E-, S-, L- and U- are where the type has another prefix too, so that a
    plain type may be called "E-mail"; S- and U- also where every tag looks prefixed.

    Args:
        tags: names; "O" is outside of every span.

    Example:
        >>> tags = parse_tags(["O", "B-PER", "I-PER", "E-mail"])
        >>> tags.type_names, tags.types.tolist(), tags.prefixes.tolist()
        (['E-mail', 'PER'], [2, 1, 1, 0], [0, 2, 1, 1])
    """
    known = set(tags)
    heads = {tag.partition("-")[0] for tag in known - {"O"}}
    all_prefixed = heads <= set(PREFIXES)

    def split(tag: str) -> tuple[int, str]:
        prefix, dash, kind = tag.partition("-")
        prefixed = dash and kind and prefix in PREFIXES
        if prefixed and prefix in "ESLU":
            others = (f"{other}-{kind}" for other in PREFIXES if other != prefix)
            alone = prefix in "SU" and all_prefixed
            prefixed = alone or any(other in known for other in others)
        return (PREFIXES[prefix], kind) if prefixed else (INSIDE, tag)

    parts = [(OUTSIDE, None) if tag == "O" else split(tag) for tag in tags]
    names = sorted({kind for _, kind in parts if kind is not None})
    types = [len(names) if kind is None else names.index(kind) for _, kind in parts]
    prefixes = [prefix for prefix, _ in parts]
    return TagSet(np.array(prefixes, "int32"), np.array(types, "int32"), names)


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
            "IOB1", "IOB2" or "IOBES" counts only spans that are well-formed in that scheme.
        tag_set: all tags there are, for `parse_tags`; None for those of the sentence.

    Returns:
        (type, first word, word after the last) of every span.

    Raises:
        ValueError: "Unknown scheme 'BIO'. Expected one of IOB1, IOB2, IOBES or None."

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
    if scheme not in (None, *SCHEMES):
        raise ValueError(
            f"Unknown scheme {scheme!r}. Expected one of {', '.join(SCHEMES)} or None."
        )
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
    names = sorted(set(tags) | {"O"})
    parsed = parse_tags(names)
    order = [OUTSIDE, BEGIN, INSIDE, END, SINGLE]
    kinds = zip(names, parsed.types, map(order.index, parsed.prefixes), strict=True)
    return [name for name, _, _ in sorted(kinds, key=lambda k: (k[0] != "O", k[1], k[2]))]
