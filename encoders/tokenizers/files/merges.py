"""The merges of byte-level BPE in files, and the characters that stand for bytes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.vocabularies import check_count

WORD_END = "</w>"  # on the last character of a word, in BERTweet's merges


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


def parse_merges(merges_txt: str) -> list[str]:
    """Return the pairs of a merges.txt, without its version line.

    Example:
        >>> parse_merges("#version: 0.2\\na b\\n")
        ['a b']
    """
    check_count(merges_txt.count("\n"), "merges.txt")
    lines = merges_txt.split("\n")
    return [line for line in lines if line and not line.startswith("#version")]


def read_merges(files: TokenizerFiles) -> list[str]:
    """Return the merges of tokenizer.json, where each is a string or a pair.

    Raises:
        ValueError: "FILE: model.merges[3] is ['a']; expected two tokens"

    Example:
        >>> model = {"merges": [["a", "b"], "ab c"]}
        >>> read_merges(TokenizerFiles("preset", {"tokenizer.json": {"model": model}}))
        ['a b', 'ab c']
    """
    name = f"{files.json_path}: model.merges"
    merges = files.part("model").get("merges")
    if not isinstance(merges, list):
        raise ValueError(f"{name} is not a list of pairs of tokens")
    check_count(len(merges), name)
    for i, merge in enumerate(merges):
        tokens = merge.split(" ") if isinstance(merge, str) else merge
        is_pair = isinstance(tokens, list) and len(tokens) == 2
        if not is_pair or not all(isinstance(t, str) and t and " " not in t for t in tokens):
            raise ValueError(f"{name}[{i}] is {shown(merge)}; expected two tokens")
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
