"""Tokenizer engine based on the `tokenizers` library, which does not need TensorFlow."""

from __future__ import annotations

import base64
import copy
import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import LazyModule, xp
from encoder_zoo.common.reading import convert_read_errors, parse_json, read_field
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.tokenizers.steps import SEQUENCES, flatten_steps, list_trimming_steps

if TYPE_CHECKING:
    import tokenizers

    from encoder_zoo.encoders.tokenizers.steps import Model, Steps
else:
    tokenizers = LazyModule(
        "tokenizers",
        "Without TensorFlow, texts are tokenized by the library tokenizers, which is not "
        "installed: `pip install tokenizers`.",
    )


class LibraryTokenizer:
    """Tokenizes texts with the `tokenizers` library. Results are the same as in `TokenizerGraph`.

    Args:
        steps: `Steps` to execute.
        model: `Model` to use with the steps.
    """

    def __init__(self, steps: Steps, model: Model):
        self._steps = steps
        self._texts, self._ids = make_library(steps, model)

    def texts_to_ids(self, texts: xp.Tensor) -> xp.RaggedTensor:
        """Return token ids for texts with shape (B,)."""
        return self._collect_ids(encode(self._texts, decode_texts(texts)))

    def texts_to_tokens(self, texts: xp.Tensor) -> tuple[xp.RaggedTensor, ...]:
        """Return token ids, starts and ends for texts with shape (B,)."""
        found = encode(self._texts, decode_texts(texts), with_offsets=True)
        ids, spans = self._collect_ids(found), [encoding.offsets for encoding in found]
        flat = np.array(list(itertools.chain.from_iterable(spans)), np.int32).reshape(-1, 2)
        starts, ends = flat[:, 0], flat[:, 1]
        for token in self._steps.special_tokens:
            if token["lstrip"]:  # exclude white space before the token from the span
                same = np.asarray(ids.values) == token["id"]
                starts = np.where(same, ends - len(token["content"]), starts)
        return ids, ids.with_values(starts), ids.with_values(ends)

    def words_to_ids(self, words: xp.RaggedTensor) -> tuple[xp.RaggedTensor, xp.RaggedTensor]:
        """Return token ids and word indices for words, as if each word followed a space."""
        texts = decode_texts(words.values)
        if self._steps.keeps_spaces and not self._steps.inserts_space:
            special = tuple(token["content"] for token in self._steps.special_tokens)
            texts = [
                f" {text}" if text and not text.startswith(special) else text for text in texts
            ]
        ids = self._collect_ids(encode(self._word_tokenizer, texts))
        lengths = ids.row_lengths()
        within = np.arange(len(texts)) - np.repeat(words.row_starts(), words.row_lengths())
        merged = words.with_values(ids).merge_dims(1, 2)
        return merged, merged.with_values(np.repeat(within, lengths).astype(np.int32))

    def split(self, text: str) -> list[str]:
        """Return the normalized words of a text, to which the model is applied."""
        normalized = self._texts.normalizer.normalize_str(text)
        return [word for word, _ in self._texts.pre_tokenizer.pre_tokenize_str(normalized)]

    @functools.cached_property
    def _word_tokenizer(self) -> tokenizers.Tokenizer:
        """Library tokenizer that treats each text as a word that follows a space."""
        if "ByteLevel" not in self._steps.list_types("pre_tokenizer"):
            return self._texts  # "▁" is always inserted before words
        made = copy.deepcopy(self._texts)
        before = tokenizers.pre_tokenizers.Metaspace(" ", "always", split=False)
        both = [before, made.pre_tokenizer]
        made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(both)
        return made

    def _collect_ids(self, encodings: list) -> xp.RaggedTensor:
        rows = [encoding.ids for encoding in encodings]
        lengths = [len(row) for row in rows]
        flat = itertools.chain.from_iterable(rows)
        ids = self._ids[np.fromiter(flat, np.int32, sum(lengths))]
        return xp.RaggedTensor.from_row_lengths(ids, lengths)


def make_library(steps: Steps, model: Model) -> tuple[tokenizers.Tokenizer, np.ndarray]:
    """Create a tokenizer from the library, and an array to map library ids to token ids.

    Args:
        steps: `Steps` to execute.
        model: `Model` to use with the steps.
    """
    vocabulary, known = model.settings["vocab"], model.ids
    if isinstance(vocabulary, dict):  # the library does not allow gaps between ids
        tokens = sorted(vocabulary, key=vocabulary.get)
        numbers = [vocabulary[token] for token in tokens]
        known = [model.ids[number] for number in numbers] if model.ids else numbers
        vocabulary = {token: i for i, token in enumerate(tokens)}
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    content |= {"decoder": None, "model": {**model.settings, "vocab": vocabulary}}
    for part in ("normalizer", "pre_tokenizer"):
        content[part] = {"type": "Sequence", SEQUENCES[part]: getattr(steps, part)}
    trims = list_trimming_steps(steps.post_processor)
    content["post_processor"] = {"type": "Sequence", "processors": trims}
    made = tokenizers.Tokenizer.from_str(json.dumps(content))
    options = ({n: v for n, v in token.items() if n != "id"} for token in steps.tokens_in_texts)
    made.add_tokens([tokenizers.AddedToken(**given) for given in options])
    ids = np.arange(made.get_vocab_size(), dtype=np.int32)
    ids[: len(known)] = known
    for token in steps.tokens_in_texts:
        ids[made.token_to_id(token["content"])] = token["id"]
    return made, ids


def make_decoder(steps: Sequence[Mapping]) -> Callable[[list[str]], str]:
    """Create a function to join tokens with the decoder steps. Decoding is done by the library.

    Example:
        >>> make_decoder([{"type": "WordPiece", "prefix": "##", "cleanup": True}])(["un", "##do"])
        'undo'
    """
    content = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor"))
    content["model"] = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    content["decoder"] = {"type": "Sequence", "decoders": steps}
    made = tokenizers.Tokenizer.from_str(
        json.dumps({"version": "1.0", **content, "added_tokens": []})
    )

    def decode(tokens: list[str]) -> str:
        with convert_read_errors("A token", "Its decoder does not support this input."):
            return made.decoder.decode(tokens)

    return decode


# Used in error messages when the library fails on a text, e.g. due to endless backtracking.
TEXTS, EXPECTED = "A text", "The steps in tokenizer.json do not support this input."


def encode(tokenizer: tokenizers.Tokenizer, texts: list[str], with_offsets: bool = False) -> list:
    """Encode texts with the library, without special tokens."""
    encode_batch = tokenizer.encode_batch if with_offsets else tokenizer.encode_batch_fast
    with convert_read_errors(TEXTS, EXPECTED):
        return encode_batch(texts, add_special_tokens=False)


MAX_GROWTH = 500  # maximum growth factor for normalized texts; NFKC can expand one letter to 18


def check_normalizer_growth(normalizer: Mapping | None) -> None:
    """Raise an error for a normalizer that can turn short texts into very long texts.

    Args:
        normalizer: Dict with a normalizer step from tokenizer.json, or None.

    Raises:
        ValueError: If texts can become more than `MAX_GROWTH` times as long.

    Example:
        >>> step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
        >>> check_normalizer_growth({"type": "Sequence", "normalizers": [step, step, step]})
        Traceback (most recent call last):
        ValueError: tokenizer.json: the normalizer can increase the length of a text by a factor ...
    """
    # Maps each letter to the number of letters produced by later steps. "" is used for all
    # remaining letters.
    lengths = {"": 1.0}
    for step in reversed(flatten_steps(normalizer, "normalizer")):
        lengths = _compute_growth(step, lengths)
        if (longest := max(lengths.values())) > MAX_GROWTH:
            raise ValueError(
                "tokenizer.json: the normalizer can increase the length of a text by a factor of "
                f"{longest:g}. Expected a factor of at most {MAX_GROWTH}."
            )


def parse_steps(tokenizer_json: str) -> dict:
    """Parse a tokenizer.json, and check the parts that could crash or block the library.

    Raises:
        ValueError: If the content is not valid. See `check_normalizer_growth` and `check_merges`.
    """
    name = "tokenizer.json"
    content = parse_json(tokenizer_json, name)
    check_normalizer_growth(read_field(content, "normalizer", (dict, NoneType), name, None))
    check_merges(content["model"])
    return content


def check_merges(model: Mapping) -> None:
    """Raise an error for merges that would crash the `tokenizers` library.

    The library removes the prefix from the second token in each pair without checking it.

    Raises:
        ValueError: If the second token in a pair does not start with the continuation prefix, or if
            this prefix is not ASCII.

    Example:
        >>> check_merges({"continuing_subword_prefix": "##", "merges": [["a", "b"]]})
        Traceback (most recent call last):
        ValueError: model.merges[0] is ['a', 'b']. Expected a second token that begins with '##'.
    """
    prefix = model.get("continuing_subword_prefix") or ""
    merges = model.get("merges", ()) if prefix else ()
    if merges and not prefix.isascii():
        raise invalid("model.continuing_subword_prefix", prefix, "only ASCII characters")
    for i, merge in enumerate(merges):
        _, second = merge.split(" ") if isinstance(merge, str) else merge
        if not second.startswith(prefix):
            expected = f"a second token that begins with {quote(prefix)}"
            raise invalid(f"model.merges[{i}]", merge, expected)


def _compute_growth(step: Mapping, lengths: Mapping[str, float]) -> dict[str, float]:
    """Return the maximum number of letters that each letter becomes after a step and later steps.

    Args:
        step: Dict with a normalizer step.
        lengths: Dict mapping letters to the maximum number of letters after all later steps. See
            `check_normalizer_growth`.
    """
    kind, longest = step.get("type"), max(lengths.values())
    if kind in ("Strip", "StripAccents", "Prepend"):  # "Prepend" is applied only once per text
        return dict(lengths)
    if kind == "Precompiled":  # size, trie and strings that are terminated by "\0"
        content = base64.b64decode(step["precompiled_charsmap"] or "")
        strings = content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")
        return {"": longest * max(1, *map(len, strings))}
    if kind != "Replace":
        return {"": longest * (18 if "NFK" in str(kind) else 3)}
    pattern, content = step["pattern"], step["content"]
    new = sum(lengths.get(letter, lengths[""]) for letter in content)
    if "String" not in pattern or not pattern["String"]:  # may match between letters
        return {letter: length + new for letter, length in lengths.items()}
    replaced = pattern["String"]
    share = {letter: new / len(replaced) for letter in replaced}
    return {**lengths, **{k: max(v, lengths.get(k, lengths[""])) for k, v in share.items()}}


def decode_texts(texts: xp.Tensor) -> list[str]:
    """Decode UTF-8 texts to strings."""
    return [text.decode("utf-8", "replace") for text in np.asarray(texts).tolist()]
