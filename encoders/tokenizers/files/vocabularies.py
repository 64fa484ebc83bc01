"""Checks and orders the vocabularies in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from encoder_zoo.common.wording import shown

MAX_TOKENS = 2**20  # the largest vocabulary of an encoder has 900,000


def checked_vocabulary(vocabulary: object, name: str, most: int | None = None) -> dict[str, int]:
    """Return {token: id} if a file holds that; raise an error otherwise.

    Args:
        vocabulary: parsed contents of the file.
        name: of the file, for error messages.
        most: ids must be below this; None allows some gaps between the ids.
    """
    ids = vocabulary.values() if isinstance(vocabulary, Mapping) else ()
    if not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise ValueError(f"{name} must be an object of tokens with their ids 0, 1, 2 ...")
    most = most or 2 * len(ids) + 1000
    if max(ids) >= most:  # callers make a list of this length
        raise ValueError(
            f"{name} has the id {max(ids)} among {len(ids)} tokens. Expected ids below {most}."
        )
    check_count(len(ids), name)
    if len(set(ids)) < len(ids):
        owners: dict[int, str] = {}
        for token, i in vocabulary.items():
            if owners.setdefault(i, token) != token:
                raise ValueError(
                    f"{name} has the id {i} for {shown(owners[i])} and for {shown(token)}. "
                    "Expected an id of its own for every token."
                )
    return dict(vocabulary)


def check_count(count: int, name: str) -> None:
    """Raise an error if a vocabulary is larger than any known one.

    Raises:
        ValueError: "vocab.txt has 30000000 tokens. Expected at most 1048576."
    """
    if count > MAX_TOKENS:
        raise ValueError(f"{name} has {count} tokens. Expected at most {MAX_TOKENS}.")


def check_merges(merges: Sequence[str], ids: Mapping[str, int]) -> None:
    """Raise an error if a merge is not of two tokens that together are a third.

    Args:
        merges: "a b" pairs.
        ids: {token: id}.

    Raises:
        ValueError: "merges[0] is 'ab'; expected two tokens of the vocabulary, separated by a space,
            that together are a third"
    """
    for i, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ValueError(
                f"merges[{i}] is {merge!r}; expected two tokens of the vocabulary, separated "
                "by a space, that together are a third"
            )


def append_tokens(tokens: list[str], added: Mapping[str, int]) -> list[str]:
    """Return a vocabulary with the added tokens whose ids follow it.

    Example:
        >>> append_tokens(["a", "b"], {"b": 1, "[E1]": 2})
        ['a', 'b', '[E1]']
    """
    behind = {token: i for token, i in added.items() if i >= len(tokens)}
    return [*tokens, *tokens_by_id(behind)[len(tokens) :]] if behind else tokens


def tokens_by_id(vocabulary: Mapping[str, int]) -> list[str]:
    """Return a list of the tokens, indexed by their ids."""
    tokens = [f"[unused id {i}]" for i in range(max(vocabulary.values()) + 1)]
    for token, token_id in vocabulary.items():
        tokens[token_id] = token
    return tokens
