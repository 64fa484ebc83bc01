"""The characters that stand for bytes in the vocabularies of byte-level BPE."""

import functools
from collections.abc import Sequence


def byte_alphabet() -> list[str]:
    """Return the visible characters that stand for the 256 bytes in the vocabulary.

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


@functools.lru_cache(maxsize=1)
def alphabet_bytes() -> dict[str, int]:
    """Return {character: byte} of `byte_alphabet`."""
    return {c: byte for byte, c in enumerate(byte_alphabet())}


def spelled_bytes(token: str) -> bytes:
    """Return the bytes of a token; special tokens, which are not in bytes, are encoded as UTF-8."""
    byte_of = alphabet_bytes()
    if all(c in byte_of for c in token):
        return bytes(byte_of[c] for c in token)
    return token.encode("utf-8")


def surrounding_spaces(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return the number of spaces at the start and end of each token.

    Example:
        >>> surrounding_spaces(["Ġthe", "ĠĠ"])
        [(1, 0), (2, 2)]
    """
    space = byte_alphabet()[ord(" ")]
    return [
        (len(token) - len(token.lstrip(space)), len(token) - len(token.rstrip(space)))
        for token in tokens
    ]
