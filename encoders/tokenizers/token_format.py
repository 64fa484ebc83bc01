"""Describe how tokens are written in texts, and read this from the decoder in tokenizer.json."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from encoder_zoo.common.lazy import xp
from encoder_zoo.encoders.tokenizers.files.reading import get_token_bytes
from encoder_zoo.encoders.tokenizers.library import make_decoder
from encoder_zoo.encoders.tokenizers.steps import BYTE_TOKENS

BEFORE = "\ue000"  # decoded before each token, because the first token is often an exception


class TokenFormat(NamedTuple):
    """Defines how the tokens of a vocabulary are written in texts. By default, a token is a word.

    Attributes:
        get_text: Function that returns the text of a token inside a text, as a string or bytes.
        starts_word: Function that returns whether a token starts a word.
        ends_word: Function that returns whether a token can only be the last token in a word.
        clean_up: Function that removes additional white space from joined texts of shape (B,).
    """

    get_text: Callable[[str], str | bytes] = str
    starts_word: Callable[[str], bool] = lambda token: True
    ends_word: Callable[[str], bool] = lambda token: False
    clean_up: Callable[[xp.Tensor], xp.Tensor] = lambda texts: texts


def strip_texts(texts: xp.Tensor) -> xp.Tensor:
    """Remove white space at both ends of texts (B,)."""
    return xp.strings.strip(texts)


def get_token_format(decoder: Mapping) -> TokenFormat:
    """Return the token format for a decoder in tokenizer.json.

    By default, tokens are joined by spaces.

    Example:
        >>> token_format = get_token_format({"type": "WordPiece", "prefix": "##", "cleanup": False})
        >>> token_format.get_text("un"), token_format.get_text("##do")
        (b' un', b'do')
    """
    steps = [step for step in decoder.get("decoders", [decoder]) if step]
    joined = [*itertools.takewhile(lambda step: step["type"] != "Fuse", steps)]
    decode = make_decoder(joined) if steps else " ".join
    decoders = {step["type"]: step for step in steps}
    suffix = decoders.get("BPEDecoder", {}).get("suffix")

    def get_text(token: str) -> bytes:
        if "ByteLevel" in decoders:
            return get_token_bytes(token)
        if "ByteFallback" in decoders and token in BYTE_TOKENS:
            return bytes([BYTE_TOKENS.index(token)])
        if suffix:
            is_end = token.endswith(suffix)
            return (f"{token.removesuffix(suffix)} " if is_end else token).encode()
        return decode([BEFORE, token]).removeprefix(BEFORE).encode()

    clean_up = strip_texts
    if "Fuse" in decoders:
        strips = [step for step in steps[len(joined) + 1 :] if step["type"] == "Strip"]
        clean_up = functools.partial(_strip_content, strips)
    return TokenFormat(get_text, lambda token: get_text(token).startswith(b" "), clean_up=clean_up)


def _strip_content(steps: Sequence[Mapping], texts: xp.Tensor) -> xp.Tensor:
    """Execute "Strip" decoder steps on texts (B,)."""
    for step in steps:
        content = re.escape(step["content"])
        for end in (f"^({content}){{0,{step['start']}}}", f"({content}){{0,{step['stop']}}}$"):
            texts = xp.strings.regex_replace(texts, end, "")
    return texts
