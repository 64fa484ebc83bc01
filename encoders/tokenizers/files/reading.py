"""What a tokenizer's files say, whatever its class: a tokenizer reads and writes itself with this.

Files come as plain data and go as text; this floor opens none.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from encoder_zoo.common.wording import differing, shown
from encoder_zoo.encoders.tokenizers.files.templates import Template, read_template

logger = logging.getLogger("encoder_zoo")

MAX_TOKENS = 2**20  # the largest vocabulary of an encoder has 900,000
# What is said of an added token.
_ADDED = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")

# What transformers calls a tokenizer of any kind, without "Fast": its steps are in tokenizer.json.
GENERIC_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")
# our argument: the names of that token in the files, the first of which counts
SPECIAL_TOKENS = {
    "start_token": ("cls_token", "bos_token"),
    "end_token": ("sep_token", "eos_token"),
    "pad_token": ("pad_token",),
    "mask_token": ("mask_token",),
    "unknown_token": ("unk_token",),
}


class TokenizerFiles:
    """The files of a checkpoint's folder that say something about its tokenizer.

    Args:
        folder: that they are from, for errors.
        contents: {file name: a JSON file's object, or another file's text}.

    Example:
        >>> files = TokenizerFiles("preset", {"tokenizer_config.json": {"cls_token": "<c>"}})
        >>> files.special_tokens(), "vocab.txt" in files
        ({'start_token': '<c>'}, False)
    """

    def __init__(self, folder: str | Path, contents: Mapping[str, Any]):
        self.folder = Path(folder)
        self.contents = dict(contents)

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    def part(self, name: str) -> dict:
        """A part of tokenizer.json, such as its model; {} where there is none."""
        part = self._object("tokenizer.json").get(name) or {}
        if not isinstance(part, dict):
            raise ValueError(f"{self.folder / 'tokenizer.json'}: {name} is not an object")
        return part

    def expect(self, part: str, field: str, value: object) -> None:
        """Refuses a tokenizer.json that asks for what this package does otherwise."""
        found = self.part(part).get(field, value)
        if found != value:
            raise ValueError(
                f"{self.folder / 'tokenizer.json'}: {part}.{field} is {shown(found)}; this "
                f"kind of tokenizer has {value!r}, so the ids would differ"
            )

    @property
    def tokenizer_class(self) -> object:
        """The class that tokenizer_config.json names, without "Fast"; None if it names none."""
        return plain_class(self._object("tokenizer_config.json").get("tokenizer_class"))

    def setting(self, name: str, part: str, field: str, kind: type) -> Any:
        """A setting of tokenizer_config.json or of a part of tokenizer.json, None without either.

        Where both have it, that one counts that counts in transformers: a class of a certain kind
        takes the setting of tokenizer_config.json, one of any kind that of tokenizer.json.
        """
        found = {}
        for file, value in (
            ("tokenizer_config.json", self._object("tokenizer_config.json").get(name)),
            ("tokenizer.json", self.part(part).get(field)),
        ):
            if value is not None and not isinstance(value, kind):
                raise ValueError(
                    f"{self.folder / file}: {name} is {shown(value)}; expected {kind.__name__}"
                )
            if value is not None:
                found[file] = value
        if len(set(found.values())) < 2:
            return next(iter(found.values()), None)
        generic = self.tokenizer_class in GENERIC_CLASSES
        first = "tokenizer.json" if generic else "tokenizer_config.json"
        logger.warning(
            "%s: %s is %s in tokenizer_config.json and %s in tokenizer.json. %s counts, as in "
            "transformers.",
            self.folder.name,
            name,
            *found.values(),
            first,
        )
        return found[first]

    def special_tokens(self) -> dict[str, str]:
        """The special tokens that the files name, under the names of our arguments."""
        files = ("tokenizer_config.json", "special_tokens_map.json")
        found: dict[str, str] = {}
        for argument, names in SPECIAL_TOKENS.items():
            for name in names:
                said = {file: self._special_token(file, name) for file in files}
                tokens = {file: token for file, token in said.items() if token is not None}
                if len(set(tokens.values())) > 1:
                    raise ValueError(f"{self.folder}: {name} is {differing(tokens)}")
                for token in tokens.values():
                    found.setdefault(argument, token)
        return {**found, **self._tokens_of_template(found)}

    def _tokens_of_template(self, named: Mapping[str, str]) -> dict[str, str]:
        """The tokens for start and end that tokenizer.json puts around texts."""
        if (template := self.template()) is None:
            return {}
        tokens = {"start_token": template.start_token, "end_token": template.end_token}
        for argument, token in tokens.items():
            if named.get(argument, token) != token:
                name = SPECIAL_TOKENS[argument][0]
                raise ValueError(
                    f"{self.folder}: {name} is {shown(named[argument])}, but the post_processor in "
                    f"tokenizer.json puts {shown(token)} in its place. Expected the same."
                )
        return tokens

    def template(self) -> Template | None:
        """Returns how tokenizer.json joins two texts; None where it does not say it."""
        name = f"{self.folder / 'tokenizer.json'}: post_processor"
        return read_template(self.part("post_processor"), name)

    def _special_token(self, file: str, name: str) -> str | None:
        value = self._object(file).get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if not isinstance(value, str | None):
            raise ValueError(f"{self.folder / file}: {name} is {shown(value)}; expected a string")
        return value or None

    def renamed(self, name: str, ids: Mapping[str, int]) -> dict[int, str]:
        """Tokens that tokenizer.json calls otherwise than a file; its names count.

        Args:
            name: of the file.
            ids: of its tokens.

        Returns:
            {id: token in tokenizer.json}, where the token in the file is not in tokenizer.json.

        Raises:
            ValueError: as `compare_vocabulary`, where tokens are missing or have other ids: one
                of the files was cut or is of another model.
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

    def compare_vocabulary(self, name: str, ids: Mapping[str, int]) -> None:
        """Refuses another vocabulary in tokenizer.json, which transformers reads, than in a file.

        Args:
            name: of the file.
            ids: of its tokens.

        Raises:
            ValueError: "FOLDER: the id of 'cat' is 5 in vocab.txt, but 7 in tokenizer.json ..."
        """
        if "tokenizer.json" in self:
            self.compare_ids(name, ids, self.vocabulary(name))

    def compare_ids(self, name: str, ids: Mapping[str, int], fast: Mapping[str, int]) -> None:
        """Likewise, of a vocabulary in tokenizer.json that was read already."""
        # Added tokens are in one or in both of them.
        added = {"", *self.added_tokens()}
        for token in (*ids, *fast):
            if ids.get(token) != fast.get(token) and token not in added:
                said = {name: ids.get(token), "tokenizer.json": fast.get(token)}
                raise ValueError(f"{self.folder}: the id of {shown(token)} is {differing(said)}")

    def compare_added(self, ids: Mapping[str, int]) -> None:
        """Refuses added tokens that have other ids in the vocabulary.

        Raises:
            ValueError: "FOLDER: the id of '[SEP]' is 3 in the vocabulary, but 9 in added tokens
                ..."
        """
        for token, token_id in self.added_tokens().items():
            if ids.get(token, token_id) != token_id:
                said = {"the vocabulary": ids[token], "added tokens": token_id}
                raise ValueError(f"{self.folder}: the id of {shown(token)} is {differing(said)}")

    def vocabulary(self, alternative: str) -> dict[str, int]:
        """The vocabulary in tokenizer.json, with the special tokens that were added to it.

        Args:
            alternative: the file that might hold it instead, for the error.

        Raises:
            FileNotFoundError: "FOLDER has no vocab.txt and no tokenizer.json ..."
        """
        path = self.folder / "tokenizer.json"
        if path.name not in self:
            raise FileNotFoundError(
                f"{self.folder} has no {alternative} and no tokenizer.json; one of them must hold "
                "the vocabulary"
            )
        return checked_vocabulary(self.part("model").get("vocab"), f"{path}: model.vocab")

    def all_added_tokens(self) -> list[dict]:
        """What was added to the model's vocabulary, special tokens among them, by their ids.

        From tokenizer.json, then tokenizer_config.json, then added_tokens.json, which knows of no
        options.
        """
        known: dict[str, dict] = {}
        for token in self._added_entries():
            options = {name: token[name] for name in _ADDED if name in token}
            first = known.setdefault(token["content"], {"id": token["id"], **options})
            if first["id"] != token["id"]:
                raise ValueError(
                    f"{self.folder}: the added token {shown(token['content'])} has the ids "
                    f"{first['id']} and {token['id']}. Expected one."
                )
        return sorted(known.values(), key=lambda token: token["id"])

    def _added_entries(self) -> list[dict]:
        """What the files say of added tokens, one after the other."""
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
            raise ValueError(f"{self.folder}: added tokens must be objects with content and id")
        check_count(len(entries), f"{self.folder}: added tokens")
        return entries

    def added_tokens(self) -> dict[str, int]:
        """Ids of `all_added_tokens`."""
        ids = {token["content"]: token["id"] for token in self.all_added_tokens()}
        return checked_vocabulary(ids, f"{self.folder}: added_tokens", 2**21) if ids else {}

    def divided(
        self, vocabulary: Mapping[str, int], special: Iterable[str]
    ) -> tuple[dict[str, int], list[dict]]:
        """The vocabulary with the special tokens, and what else was added to it.

        Args:
            vocabulary: of the model.
            special: tokens with a use of their own, such as [MASK].
        """
        ids, special = self.added_tokens(), set(special)
        added = [t for t in self.all_added_tokens() if t["content"] not in special]
        return {**vocabulary, **{t: i for t, i in ids.items() if t in special}}, added

    def special_added_tokens(self) -> list[str]:
        """Those of the tokens in `added_tokens` that a text cannot hold."""
        added = self._object("tokenizer.json").get("added_tokens") or []
        return [token["content"] for token in added if token.get("special")]

    def _object(self, name: str) -> dict:
        return self.contents.get(name, {})


class WritesFiles:
    """Mixin: what the files of every tokenizer have in common.

    A subclass gives `_vocabulary_files`, `_settings` and `_steps`.
    """

    special_token_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        argument: names[:1] for argument, names in SPECIAL_TOKENS.items()
    }

    def to_files(self) -> dict[str, str | bytes]:
        """The tokenizer as files that transformers' AutoTokenizer reads with the same ids.

        Returns:
            {file name: text or bytes}: the vocabulary's own, tokenizer.json,
            tokenizer_config.json and special_tokens_map.json.
        """
        special = {
            name: getattr(self, argument)
            for argument, names in self.special_token_names.items()
            for name in names
        }
        added = self._added_tokens()
        fast = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": sorted(added, key=lambda token: token["id"]),
            **self._steps(),
        }
        return {
            **self._vocabulary_files(),
            "tokenizer.json": as_json(fast),
            "tokenizer_config.json": as_json({**self._settings(), **self._generic(), **special}),
            "special_tokens_map.json": as_json(special),
        }

    def _generic(self) -> dict:
        """The class of any tokenizer, where the usual class would join two texts otherwise."""
        usual = inspect.signature(type(self)).parameters
        adds_segments = self.uses_segments and not usual["uses_segments"].default
        if self.pair_separators == usual["pair_separators"].default and not adds_segments:
            return {}
        segments = ["token_type_ids"] if self.uses_segments else []
        inputs = ["input_ids", *segments, "attention_mask"]
        return {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}

    def _added_tokens(self) -> list[dict]:
        """The special tokens, as tokenizer.json describes them; a mask may take a space before."""
        tokens = [getattr(self, argument) for argument in SPECIAL_TOKENS]
        takes_space = self.mask_token if self.mask_takes_space_before else None
        special = [added_token(self.token_to_id(t), t, t == takes_space) for t in tokens]
        return [*special, *(token for token in self.added_tokens if token["content"] not in tokens)]

    def _template(self) -> dict:
        """Where the special tokens stand, of one text and of a pair."""
        start, end = self.start_token, self.end_token
        second = int(self.uses_segments)
        single = [special(start, 0), text("A", 0), special(end, 0)]
        between = [special(end, second)] * (self.pair_separators - 1)
        return {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, *between, text("B", second), special(end, second)],
            "special_tokens": {
                token: {"id": token, "ids": [self.token_to_id(token)], "tokens": [token]}
                for token in (start, end)
            },
        }

    def _vocabulary_files(self) -> Mapping[str, str | bytes]:
        """The files of the tokenizer's class."""
        raise NotImplementedError

    def _settings(self) -> dict:
        """What tokenizer_config.json says, beside the special tokens."""
        raise NotImplementedError

    def _steps(self) -> dict:
        """The steps from a text to ids, in the terms of tokenizer.json."""
        raise NotImplementedError


def flat(step: Mapping, name: str) -> list[dict]:
    """The steps of a sequence of steps, however they are nested.

    Example:
        >>> flat({"type": "Sequence", "normalizers": [{"type": "NFC"}]}, "normalizers")
        [{'type': 'NFC'}]
    """
    if not step:
        return []
    inner = step.get(name, []) if isinstance(step, Mapping) else None
    if not isinstance(inner, list):
        raise ValueError(f"tokenizer.json: a step is {shown(step)}; expected an object")
    if step.get("type") != "Sequence":
        return [dict(step)]
    return [step for part in inner for step in flat(part, name)]


def plain_class(name: object) -> object:
    """The name of a class of transformers, without "Fast".

    Example:
        >>> plain_class("BertTokenizerFast")
        'BertTokenizer'
    """
    return name.removesuffix("Fast") if isinstance(name, str) else name


def special_tokens(cls: type, files: TokenizerFiles) -> dict[str, str]:
    """{argument: token} of the tokens with a use, as files name them or as the class does."""
    parameters = inspect.signature(cls).parameters
    tokens = {name: parameters[name].default for name in SPECIAL_TOKENS} | files.special_tokens()
    # Byte-level BPE never needs the unknown token: some have none of their own.
    named = [token for name, token in tokens.items() if name != "unknown_token"]
    if len(set(named)) < len(named):
        raise ValueError(
            f"{files.folder}: the tokens for start, end, padding and mask are "
            f"{', '.join(map(shown, named))}. Expected four different ones."
        )
    return tokens


def added_token(token_id: int, token: str, takes_space_before: bool = False) -> dict:
    """How tokenizer.json describes a special token."""
    return {
        "id": token_id,
        "content": token,
        "single_word": False,
        "lstrip": takes_space_before,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def special(token: str, segment: int) -> dict:
    """A special token in a template."""
    return {"SpecialToken": {"id": token, "type_id": segment}}


def text(name: str, segment: int) -> dict:
    """A text in a template."""
    return {"Sequence": {"id": name, "type_id": segment}}


def as_json(content: object) -> str:
    """JSON that a person can read."""
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def checked_vocabulary(vocabulary: object, name: str, most: int | None = None) -> dict[str, int]:
    """A mapping from tokens to ids, or an error that says what it is.

    Args:
        vocabulary: what the file holds.
        name: of the file, for errors.
        most: ids must be below; None allows a few gaps among as many ids as there are tokens.
    """
    ids = vocabulary.values() if isinstance(vocabulary, Mapping) else ()
    if not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise ValueError(f"{name} must be an object of tokens with their ids 0, 1, 2 ...")
    most = most or 2 * len(ids) + 1000
    if max(ids) >= most:  # a list with a place for every id is made next
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
    """Refuses a vocabulary larger than any there is, before anything is made of it.

    Raises:
        ValueError: "vocab.txt has 30000000 tokens. Expected at most 1048576."
    """
    if count > MAX_TOKENS:
        raise ValueError(f"{name} has {count} tokens. Expected at most {MAX_TOKENS}.")


def with_added(tokens: list[str], added: Mapping[str, int]) -> list[str]:
    """A vocabulary with the tokens that were added behind it.

    Example:
        >>> with_added(["a", "b"], {"b": 1, "[E1]": 2})
        ['a', 'b', '[E1]']
    """
    behind = {token: i for token, i in added.items() if i >= len(tokens)}
    return [*tokens, *in_id_order(behind)[len(tokens) :]] if behind else tokens


def in_id_order(vocabulary: Mapping[str, int]) -> list[str]:
    """The tokens, each at the place of its id."""
    tokens = [f"[unused id {i}]" for i in range(max(vocabulary.values()) + 1)]
    for token, token_id in vocabulary.items():
        tokens[token_id] = token
    return tokens
