"""Maps tokens to ids and back."""

import difflib
from collections.abc import Sequence

from encoder_zoo.common.wording import with_type
from encoder_zoo.encoders.tokenizers.text.text_input import LONE_SURROGATE


class Vocabulary:
    """Holds tokens in the order of their ids; of equal tokens the last id counts.

    Example:
        >>> Vocabulary(["[UNK]", "cat"]).id("cat")
        1
    """

    def __init__(self, tokens: Sequence[str]):
        self.tokens = list(tokens)
        _check_tokens(self.tokens)
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def id(self, token: str) -> int:
        """Return the id of a token; raise an error with similar tokens if there is none."""
        if token in self.ids:
            return self.ids[token]
        near = difflib.get_close_matches(str(token), self.ids, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"{token!r} is not among the {len(self.ids)} tokens{hint}")

    def token(self, token_id: int) -> str:
        """Return the token of an id; raise an error if it is out of range."""
        if not 0 <= token_id < len(self.tokens):
            raise ValueError(f"token id {token_id} is outside 0..{len(self.tokens) - 1}")
        return self.tokens[token_id]


def _check_tokens(tokens: Sequence[str]) -> None:
    """Raise an error for tokens that are no strings or cannot be encoded as UTF-8.

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


def check_no_overlap(tokens: Sequence[str]) -> None:
    """Raise an error for special tokens of which two may overlap in a text.

    Raises:
        ValueError: "the special tokens '<a<' and '<b' overlap ..."
    """
    for a in tokens:
        for b in tokens:
            tails = [a[i:] for i in range(1, len(a))] if a != b else []
            if any(tail.startswith(b) or b.startswith(tail) for tail in tails):
                raise ValueError(
                    f"the special tokens {a!r} and {b!r} overlap, so that finding them in text "
                    "would be ambiguous; use special_tokens_in_text=False"
                )
