"""Added tokens as tokenizer.json describes them."""

from collections.abc import Mapping, Sequence

# Defaults of the options of an added token in tokenizer.json.
OPTIONS = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
FIELDS = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")


def complete_added_tokens(tokens: Sequence[str | Mapping], ids: Mapping[str, int]) -> list[dict]:
    """Return added tokens with all fields that tokenizer.json has for them.

    Args:
        tokens: strings, or mappings with "content" and the options that are not at their default:
            `OPTIONS`, and "normalized" (find the token in the normalized text), by default True
            unless the token is special.
        ids: {token: id} of the vocabulary. Tokens of the vocabulary keep their ids; new ones are
            numbered from the last id on.

    Raises:
        ValueError: "added_tokens[0] is ...; expected a string, or an object with content ..."

    Example:
        >>> [token] = complete_added_tokens(["<e>"], {"a": 0})
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


def tokens_with_added(tokens: Sequence[str], added: Sequence[Mapping]) -> list[str]:
    """Return the tokens of a model and the added ones in the order of their ids.

    Example:
        >>> tokens_with_added(["a"], complete_added_tokens([{"content": "<e>", "id": 2}], {"a": 0}))
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


def special_added_token(token_id: int, token: str, lstrip: bool = False) -> dict:
    """Return the entry of a special token in tokenizer.json."""
    own = {"id": token_id, "content": token, "lstrip": lstrip, "special": True}
    entry = {**OPTIONS, **own, "normalized": False}
    return {field: entry[field] for field in FIELDS}
