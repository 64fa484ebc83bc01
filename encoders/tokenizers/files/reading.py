"""Reads settings, special tokens and vocabularies from the parsed files of a tokenizer."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from encoder_zoo.common.configuration import argument_defaults
from encoder_zoo.common.wording import differing, shown
from encoder_zoo.encoders.tokenizers.files.added_tokens import FIELDS
from encoder_zoo.encoders.tokenizers.files.templates import Template, read_template
from encoder_zoo.encoders.tokenizers.files.vocabularies import check_count, checked_vocabulary

logger = logging.getLogger("encoder_zoo")

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

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    @property
    def json_path(self) -> Path:
        """Path of tokenizer.json, for error messages."""
        return self.folder / "tokenizer.json"

    def mismatch(self, found: str, expected: object) -> ValueError:
        """Return the error for a part of tokenizer.json that this kind of tokenizer lacks."""
        ours = f"this kind of tokenizer has {expected}"
        return ValueError(f"{self.json_path}: {found}; {ours}, so the ids would differ")

    def part(self, name: str) -> dict:
        """Return a part of tokenizer.json, such as "model"; {} if it is missing or null."""
        part = self._object("tokenizer.json").get(name) or {}
        if not isinstance(part, dict):
            raise ValueError(f"{self.json_path}: {name} is not an object")
        return part

    def steps(self, part: str) -> list[dict]:
        """Return the steps of "normalizer" or "pre_tokenizer", nested sequences flattened.

        Example:
            >>> content = {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}
            >>> TokenizerFiles("preset", {"tokenizer.json": content}).steps("normalizer")
            [{'type': 'NFC'}]
        """
        return _flatten(self.part(part), part.replace("_", "") + "s")

    def expect(self, part: str, field: str, value: object) -> None:
        """Raise a ValueError if a field of tokenizer.json is there with another value."""
        found = self.part(part).get(field, value)
        if found != value:
            raise self.mismatch(f"{part}.{field} is {shown(found)}", repr(value))

    @property
    def tokenizer_class(self) -> object:
        """Return the class in tokenizer_config.json, without "Fast"; None if there is none."""
        return strip_fast(self._object("tokenizer_config.json").get("tokenizer_class"))

    def setting(self, name: str, part: str, field: str, kind: type) -> Any:
        """Return a setting of tokenizer_config.json or of tokenizer.json; None if neither has it.

        If both have it, the precedence is that of transformers: tokenizer_config.json for a class
        of one kind, tokenizer.json for a generic class.

        Args:
            name: of the setting in tokenizer_config.json.
            part, field: position of the setting in tokenizer.json.
            kind: its type.
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
        return {**found, **self._tokens_of_template(found)}

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
                f"{self.folder}: the tokens for start, end, padding and mask are "
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
                name = SPECIAL_TOKENS[argument][0]
                raise ValueError(
                    f"{self.folder}: {name} is {shown(named[argument])}, but the post_processor in "
                    f"tokenizer.json puts {shown(token)} in its place. Expected the same."
                )
        return tokens

    def template(self) -> Template | None:
        """Return the template of the post-processor; None if tokenizer.json has none."""
        name = f"{self.json_path}: post_processor"
        return read_template(self.part("post_processor"), name)

    def _special_token(self, file: str, name: str) -> str | None:
        value = self._object(file).get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if not isinstance(value, str | None):
            raise ValueError(f"{self.folder / file}: {name} is {shown(value)}; expected a string")
        return value or None

    def renamed_tokens(self, name: str, ids: Mapping[str, int]) -> dict[int, str]:
        """Return tokens whose names in tokenizer.json, which take precedence, differ from a file's.

        Args:
            name: of the file.
            ids: {token: id} in the file.

        Returns:
            {id: token in tokenizer.json}, if the token in the file is not in tokenizer.json.

        Raises:
            ValueError: as `compare_ids`, if tokens are missing or have other ids.
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
            ValueError: "FOLDER: the id of 'cat' is 5 in vocab.txt, but 7 in tokenizer.json ..."
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
            ValueError: "FOLDER: the id of '[SEP]' is 3 in the vocabulary, but 9 in added tokens
                ..."
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
            FileNotFoundError: "FOLDER has no vocab.txt and no tokenizer.json ..."
        """
        if "tokenizer.json" not in self:
            raise FileNotFoundError(
                f"{self.folder} has no {alternative} and no tokenizer.json; one of them must hold "
                "the vocabulary"
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
            raise ValueError(f"{self.folder}: added tokens must be objects with content and id")
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


def _flatten(step: Mapping, name: str) -> list[dict]:
    if not step:
        return []
    inner = step.get(name, []) if isinstance(step, Mapping) else None
    if not isinstance(inner, list):
        raise ValueError(f"tokenizer.json: a step is {shown(step)}; expected an object")
    if step.get("type") != "Sequence":
        return [dict(step)]
    return [step for part in inner for step in _flatten(part, name)]


def strip_fast(name: object) -> object:
    """Return the name of a class of transformers without "Fast".

    Example:
        >>> strip_fast("BertTokenizerFast")
        'BertTokenizer'
    """
    return name.removesuffix("Fast") if isinstance(name, str) else name
