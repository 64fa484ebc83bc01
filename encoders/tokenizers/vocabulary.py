"""Tokens and their ids, both ways."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from encoder_zoo.common.wording import with_type
from encoder_zoo.encoders.tokenizers.text.text_input import LONE_SURROGATE


class Vocabulary:
    """What the ids stand for. Of a token written twice the later id counts.

    Example:
        >>> Vocabulary(["[UNK]", "cat"]).id("cat")
        1
    """

    def __init__(self, tokens: Sequence[str]):
        self.tokens = list(tokens)
        _check_tokens(self.tokens)
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def id(self, token: str) -> int:
        """The token's id, or an error that names tokens like it."""
        if token in self.ids:
            return self.ids[token]
        near = difflib.get_close_matches(str(token), self.ids, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"{token!r} is not among the {len(self.ids)} tokens{hint}")

    def token(self, token_id: int) -> str:
        """The token of an id, or an error that gives the range of ids."""
        if not 0 <= token_id < len(self.tokens):
            raise ValueError(f"token id {token_id} is outside 0..{len(self.tokens) - 1}")
        return self.tokens[token_id]


def _check_tokens(tokens: Sequence[str]) -> None:
    """Refuses what no file in UTF-8 can hold as a token.

    Raises:
        ValueError: "vocabulary[3] is 7 (int); expected a string", "vocabulary[4] is '\\ud800' ..."
    """
    try:
        "".join(tokens).encode("utf-8")
    except TypeError:
        i = next(i for i, token in enumerate(tokens) if not isinstance(token, str))
        raise ValueError(f"vocabulary[{i}] is {with_type(tokens[i])}; expected a string") from None
    except UnicodeEncodeError:
        i = next(i for i, token in enumerate(tokens) if LONE_SURROGATE.search(token))
        raise ValueError(
            f"vocabulary[{i}] is {with_type(tokens[i])}, with half of a character, which UTF-8 "
            "cannot hold; expected a string of whole ones"
        ) from None
