"""Reads settings, special tokens and vocabularies from the parsed files of a tokenizer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from encoder_zoo.common.configuration import argument_defaults
from encoder_zoo.common.wording import differing, invalid, shown
from encoder_zoo.encoders.tokenizers.files.special_tokens import FIELDS, Template, read_template
from encoder_zoo.encoders.tokenizers.steps import flat_steps

logger = logging.getLogger("encoder_zoo")

# What the classes of transformers do where tokenizer_config.json does not say it.
CLASS_DEFAULTS = {"do_lower_case": True, "tokenize_chinese_chars": True}
# transformers' classes for any kind of tokenizer, without "Fast": tokenizer.json has its steps.
GENERIC_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")
# {our argument: names of that token in the files}; the first name takes precedence.
SPECIAL_TOKENS = {
    "start_token": ("cls_token", "bos_token"),
    "end_token": ("sep_token", "eos_token"),
    "pad_token": ("pad_token",),
    "mask_token": ("mask_token",),
    "unknown_token": ("unk_token",),
}


class TokenizerFiles:
    """Holds the parsed files of a tokenizer and reads its settings from them.

    Args:
        folder: path of their folder, for error messages.
        contents: {file name: parsed JSON, or the text of another file}.

    Example:
        >>> files = TokenizerFiles("preset", {"tokenizer_config.json": {"cls_token": "<c>"}})
        >>> files.special_tokens(), "vocab.txt" in files
        ({'start_token': '<c>'}, False)
    """

    def __init__(self, folder: str | Path, contents: Mapping[str, Any]):
        self.folder = Path(folder)
        self.contents = dict(contents)
        self._steps: dict[str, list[dict]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    @property
    def json_path(self) -> Path:
        """Path of tokenizer.json, for error messages."""
        return self.folder / "tokenizer.json"

    def mismatch(self, found: str, expected: object) -> ValueError:
        """Return the error for a part of tokenizer.json that this kind of tokenizer lacks."""
        return ValueError(f"{self.json_path}: {found}. Expected {expected}, else ids differ.")

    def part(self, name: str) -> dict:
        """Return a part of tokenizer.json, such as "model"; {} if it is missing or null."""
        part = self._object("tokenizer.json").get(name) or {}
        if not isinstance(part, dict):
            raise invalid(f"{self.json_path}: {name}", part, "an object")
        return part

    def steps(self, part: str) -> list[dict]:
        """Return the steps of a part such as "normalizer", see `flat_steps`.

        They are those that transformers takes, once `setting` has been asked for all settings.

        Example:
            >>> content = {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}
            >>> TokenizerFiles("preset", {"tokenizer.json": content}).steps("normalizer")
            [{'type': 'NFC'}]
        """
        if part not in self._steps:
            self._steps[part] = flat_steps(self.part(part), part)
        return self._steps[part]

    @property
    def tokenizer_class(self) -> object:
        """Return the class in tokenizer_config.json, without "Fast"; None if there is none."""
        return strip_fast(self._object("tokenizer_config.json").get("tokenizer_class"))

    @property
    def names_class(self) -> bool:
        """Return whether tokenizer_config.json names a class of one kind, not a generic one."""
        return self.tokenizer_class not in (None, *GENERIC_CLASSES)

    def setting(self, name: str, field: str, *parts: str) -> bool | None:
        """Return a setting of tokenizer_config.json or of tokenizer.json; None if neither has it.

        If only tokenizer.json has it, that counts, where transformers' class takes its default: one
        line of the log says so. If both have it, the precedence is that of transformers:
        tokenizer_config.json for a class of one kind, and `steps` then have its value;
        tokenizer.json for a generic class, of whose steps tokenizer_config.json says nothing.

        Args:
            name: of the setting in tokenizer_config.json.
            field: of a step in tokenizer.json.
            *parts: where such steps are.
        """
        steps = [step for part in parts for step in self.steps(part) if field in step]
        own = self._object("tokenizer_config.json").get(name)
        stated = steps[0][field] if steps else None
        for file, value in (("tokenizer_config.json", own), ("tokenizer.json", stated)):
            if not isinstance(value, bool | None):
                raise invalid(f"{self.folder / file}: {name}", value, "true or false")
        generic = self.tokenizer_class in GENERIC_CLASSES and "tokenizer.json" in self
        if own is None or (generic and not steps):
            default = CLASS_DEFAULTS.get(name)
            if None not in (stated, default) and stated != default and not generic:
                logger.warning(
                    "%s: %s is %s in tokenizer.json, which counts. tokenizer_config.json does not "
                    "say it, so that transformers takes %s: write it there, too.",
                    self.folder.name,
                    name,
                    stated,
                    default,
                )
            return stated
        if steps and own != stated:
            logger.warning(
                "%s: %s is %s in tokenizer_config.json and %s in tokenizer.json. %s counts, as in "
                "transformers.",
                self.folder.name,
                name,
                own,
                stated,
                "tokenizer.json" if generic else "tokenizer_config.json",
            )
        if generic:
            return stated
        for step in steps:
            step[field] = own
        return own

    def special_tokens(self) -> dict[str, str]:
        """Return {argument: token} of the special tokens that the files name."""
        files = ("tokenizer_config.json", "special_tokens_map.json")
        found: dict[str, str] = {}
        for argument, names in SPECIAL_TOKENS.items():
            for name in names:
                named = {file: self._special_token(file, name) for file in files}
                tokens = {file: token for file, token in named.items() if token is not None}
                if len(set(tokens.values())) > 1:
                    raise ValueError(f"{self.folder}: {name} is {differing(tokens)}")
                for token in tokens.values():
                    found.setdefault(argument, token)
        if unknown := self.unknown_of_model():
            found.setdefault("unknown_token", unknown)
        return {**found, **self._tokens_of_template(found)}

    def unknown_of_model(self) -> str | None:
        """Return the unknown token of the model in tokenizer.json; None if it has none."""
        model = self.part("model")
        token, position, vocabulary = (model.get(name) for name in ("unk_token", "unk_id", "vocab"))
        if type(position) is int and isinstance(vocabulary, list):
            entry = vocabulary[position] if 0 <= position < len(vocabulary) else None
            token = entry[0] if isinstance(entry, list) and entry else None
        return token if isinstance(token, str) and token else None

    def special_tokens_for(self, cls: type) -> dict[str, str]:
        """Return {argument: special token} from the files, or by default from a class."""
        defaults = argument_defaults(cls)
        tokens = {name: defaults[name] for name in SPECIAL_TOKENS} | self.special_tokens()
        if tokens["pad_token"] == tokens["mask_token"]:  # PyLate fills queries up with it
            tokens["pad_token"] = defaults["pad_token"]
        # Byte-level BPE needs no unknown token, so that another may serve as it. The end may pad.
        named = [token for name, token in tokens.items() if name != "unknown_token"]
        if len(set(named)) + (tokens["pad_token"] == tokens["end_token"]) < len(named):
            raise ValueError(
                f"{self.folder}: the tokens for start, end, padding and mask (cls_token, "
                "sep_token, pad_token, mask_token) are "
                f"{', '.join(map(shown, named))}. Expected four different ones."
            )
        return tokens

    def _tokens_of_template(self, named: Mapping[str, str]) -> dict[str, str]:
        """Return the start and end tokens of the post-processor in tokenizer.json."""
        if (template := self.template()) is None:
            return {}
        tokens = {"start_token": template.start_token, "end_token": template.end_token}
        for argument, token in tokens.items():
            if named.get(argument, token) != token:
                name = " or ".join(SPECIAL_TOKENS[argument])
                raise ValueError(
                    f"{self.folder}: {name} is {shown(named[argument])}, but the post_processor in "
                    f"tokenizer.json puts {shown(token)} in its place. Expected the same."
                )
        return tokens

    def template(self) -> Template | None:
        """Return the template of the post-processor; None if tokenizer.json has none."""
        name = f"{self.json_path}: post_processor"
        return read_template(self.part("post_processor"), name)

    def config_value(self, name: str) -> object:
        """Return a field of tokenizer_config.json; None if it is missing."""
        return self._object("tokenizer_config.json").get(name)

    def config_token(self, name: str) -> str | None:
        """Return a special token in tokenizer_config.json; None if it is missing."""
        return self._special_token("tokenizer_config.json", name)

    def _special_token(self, file: str, name: str) -> str | None:
        value = self._object(file).get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if not isinstance(value, str | None):
            raise invalid(f"{self.folder / file}: {name}", value, "a string")
        return value or None

    def renamed_tokens(self, name: str, ids: Mapping[str, int]) -> dict[int, str]:
        """Return tokens whose names in tokenizer.json, which take precedence, differ from a file's.

        Args:
            name: of the file.
            ids: {token: id} in the file.

        Returns:
            {id: token in tokenizer.json}, if the token in the file is not in tokenizer.json.

        Raises:
            ValueError: If tokens are missing or have other ids. See `compare_ids`.
        """
        if "tokenizer.json" not in self:
            return {}
        fast = self.vocabulary(name)
        tokens, fast_tokens = ({i: token for token, i in v.items()} for v in (ids, fast))
        renamed = {
            i: token
            for i, token in fast_tokens.items()
            if i in tokens and tokens[i] not in fast and token not in ids
        }
        self.compare_ids(
            name,
            {t: i for t, i in ids.items() if i not in renamed},
            {t: i for t, i in fast.items() if i not in renamed},
        )
        if renamed:
            i = min(renamed)
            logger.warning(
                "%s: %d tokens are others in %s than in tokenizer.json, such as %s and %s. "
                "tokenizer.json counts, as in transformers.",
                self.folder.name,
                len(renamed),
                name,
                shown(tokens[i]),
                shown(renamed[i]),
            )
        return renamed

    def compare_ids(self, name: str, ids: Mapping[str, int], fast: Mapping[str, int]) -> None:
        """Raise an error if tokenizer.json has another vocabulary than a file.

        Args:
            name: of the file.
            ids: {token: id} in the file.
            fast: {token: id} in tokenizer.json.

        Raises:
            ValueError: If a token has two ids.
        """
        # Added tokens may be in either of them.
        added = {"", *self.added_tokens()}
        for token in (*ids, *fast):
            if ids.get(token) != fast.get(token) and token not in added:
                said = {name: ids.get(token), "tokenizer.json": fast.get(token)}
                raise ValueError(f"{self.folder}: the id of {shown(token)} is {differing(said)}")

    def compare_added(self, ids: Mapping[str, int]) -> None:
        """Raise an error if an added token has another id in the vocabulary.

        Raises:
            ValueError: If an added token has another id in the vocabulary.
        """
        for token, token_id in self.added_tokens().items():
            if ids.get(token, token_id) != token_id:
                said = {"the vocabulary": ids[token], "added tokens": token_id}
                raise ValueError(f"{self.folder}: the id of {shown(token)} is {differing(said)}")

    def model(self, alternative: str) -> dict:
        """Return the model in tokenizer.json.

        Args:
            alternative: the file that may hold it instead, for the error message.

        Raises:
            FileNotFoundError: If the folder has no tokenizer.json.
        """
        if "tokenizer.json" not in self:
            raise FileNotFoundError(
                f"{self.folder} has no {alternative} and no tokenizer.json. Expected the "
                "vocabulary in one of them."
            )
        return self.part("model")

    def vocabulary(self, alternative: str) -> dict[str, int]:
        """Return {token: id} of the model in tokenizer.json; see `model`."""
        name = f"{self.json_path}: model.vocab"
        return checked_vocabulary(self.model(alternative).get("vocab"), name)

    def all_added_tokens(self) -> list[dict]:
        """Return the added tokens, special ones included, in the order of their ids.

        The order of precedence is tokenizer.json, tokenizer_config.json, added_tokens.json.
        """
        known: dict[str, dict] = {}
        for token in self._added_entries():
            entry = {name: token[name] for name in FIELDS if name in token}
            first = known.setdefault(token["content"], entry)
            if first["id"] != token["id"]:
                raise ValueError(
                    f"{self.folder}: the added token {shown(token['content'])} has the ids "
                    f"{first['id']} and {token['id']}. Expected one."
                )
        return sorted(known.values(), key=lambda token: token["id"])

    def _added_entries(self) -> list[dict]:
        """Return the entries of all files, in the order of precedence."""
        later = self._object("tokenizer_config.json").get("added_tokens_decoder") or {}
        try:
            entries = [
                *(self._object("tokenizer.json").get("added_tokens") or []),
                *({**token, "id": int(i)} for i, token in later.items()),
                *({"content": t, "id": i} for t, i in self._object("added_tokens.json").items()),
            ]
            good = all(type(t["id"]) is int and isinstance(t["content"], str) for t in entries)
        except (TypeError, KeyError, AttributeError, ValueError):
            good = False
        if not good:
            raise ValueError(
                f"{self.folder}: an added token is malformed. Expected objects with content and id."
            )
        check_count(len(entries), f"{self.folder}: added tokens")
        return entries

    def added_tokens(self) -> dict[str, int]:
        """Return {token: id} of `all_added_tokens`."""
        ids = {token["content"]: token["id"] for token in self.all_added_tokens()}
        return checked_vocabulary(ids, f"{self.folder}: added_tokens", 2**21) if ids else {}

    def split_added_tokens(
        self, vocabulary: Mapping[str, int], special: Iterable[str]
    ) -> tuple[dict[str, int], list[dict]]:
        """Split the added tokens: special ones join the vocabulary, others are returned apart.

        Args:
            vocabulary: {token: id} of the model.
            special: special tokens, such as [MASK].

        Returns:
            the vocabulary with its special tokens, and the other added tokens.
        """
        ids, special = self.added_tokens(), set(special)
        added = [t for t in self.all_added_tokens() if t["content"] not in special]
        return {**vocabulary, **{t: i for t, i in ids.items() if t in special}}, added

    def special_added_tokens(self) -> list[str]:
        """Return the added tokens that tokenizer.json marks as special."""
        added = self._object("tokenizer.json").get("added_tokens") or []
        return [token["content"] for token in added if token.get("special")]

    def _object(self, name: str) -> dict:
        return self.contents.get(name, {})


def strip_fast(name: object) -> object:
    """Return the name of a class of transformers without "Fast".

    Example:
        >>> strip_fast("BertTokenizerFast")
        'BertTokenizer'
    """
    return name.removesuffix("Fast") if isinstance(name, str) else name


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
        raise ValueError(f"{name} is no object of ids. Expected tokens with ids 0, 1, 2 ...")
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
    """Raise an error if a vocabulary is larger than any known one."""
    if count > MAX_TOKENS:
        raise ValueError(f"{name} has {count} tokens. Expected at most {MAX_TOKENS}.")


def check_merges(merges: Sequence[str], ids: Mapping[str, int]) -> None:
    """Raise an error if a merge is not of two tokens that together are a third.

    Args:
        merges: "a b" pairs.
        ids: {token: id}.
    """
    for i, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise invalid(
                f"merges[{i}]", merge, "two tokens, separated by a space, that together are a third"
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
        ValueError: If `model.merges` is not a list of pairs of tokens.

    Example:
        >>> model = {"merges": [["a", "b"], "ab c"]}
        >>> read_merges(TokenizerFiles("preset", {"tokenizer.json": {"model": model}}))
        ['a b', 'ab c']
    """
    name = f"{files.json_path}: model.merges"
    merges = files.part("model").get("merges")
    if not isinstance(merges, list):
        raise invalid(name, merges, "a list of pairs of tokens")
    check_count(len(merges), name)
    for i, merge in enumerate(merges):
        tokens = merge.split(" ") if isinstance(merge, str) else merge
        is_pair = isinstance(tokens, list) and len(tokens) == 2
        if not is_pair or not all(isinstance(t, str) and t and " " not in t for t in tokens):
            raise invalid(f"{name}[{i}]", merge, "two tokens")
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
