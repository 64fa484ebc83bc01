"""Read settings, special tokens and vocabularies from parsed tokenizer files."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from encoder_zoo.common.configuration import get_argument_defaults
from encoder_zoo.common.wording import describe_mismatch, invalid, quote
from encoder_zoo.encoders.tokenizers.files.special_tokens import FIELDS, Template, read_template
from encoder_zoo.encoders.tokenizers.steps import flatten_steps

logger = logging.getLogger("encoder_zoo")

# Default settings in transformers, used if a setting is missing in tokenizer_config.json.
CLASS_DEFAULTS = {"do_lower_case": True, "tokenize_chinese_chars": True}
# Generic transformers classes (without "Fast") that can load any tokenizer.json.
GENERIC_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")
# Names used in files for each special token argument. The first name takes precedence.
SPECIAL_TOKENS = {
    "start_token": ("cls_token", "bos_token"),
    "end_token": ("sep_token", "eos_token"),
    "pad_token": ("pad_token",),
    "mask_token": ("mask_token",),
    "unknown_token": ("unk_token",),
}


class TokenizerFiles:
    """The parsed files of a tokenizer, with methods that look up settings in the files.

    Args:
        folder: Path to the folder with the files, for error messages.
        contents: Dict mapping file names to parsed JSON, or to text for all other formats.

    Example:
        >>> files = TokenizerFiles("preset", {"tokenizer_config.json": {"cls_token": "<c>"}})
        >>> files.find_special_tokens(), "vocab.txt" in files
        ({'start_token': '<c>'}, False)
    """

    def __init__(self, folder: str | Path, contents: Mapping[str, Any]):
        self.folder = Path(folder)
        self.contents = dict(contents)
        self._steps: dict[str, list[dict]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    @contextlib.contextmanager
    def add_folder_to_errors(self) -> Iterator[None]:
        """Add the folder to the message of a ValueError that does not name it."""
        try:
            yield
        except ValueError as error:
            if str(self.folder) in str(error):
                raise
            raise ValueError(f"{self.folder}: {error}") from None

    @property
    def json_path(self) -> Path:
        """Path to tokenizer.json, for error messages."""
        return self.folder / "tokenizer.json"

    def make_mismatch_error(self, found: str, expected: object) -> ValueError:
        """Return the error to raise if tokenizer.json is not supported by a tokenizer class."""
        return ValueError(f"{self.json_path}: {found}. Expected {expected}.")

    def get_part(self, name: str) -> dict:
        """Return a part of tokenizer.json, such as "model". Return {} if it is missing or null."""
        part = self._get_object("tokenizer.json").get(name) or {}
        if not isinstance(part, dict):
            raise invalid(f"{self.json_path}: {name}", part, "an object")
        return part

    def get_steps(self, part: str) -> list[dict]:
        """Return the flattened steps for a part such as "normalizer". See `flatten_steps`.

        Calls to `get_setting` can change these steps. After all settings have been read, they
        match the steps used by transformers.

        Example:
            >>> content = {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}
            >>> TokenizerFiles("preset", {"tokenizer.json": content}).get_steps("normalizer")
            [{'type': 'NFC'}]
        """
        if part not in self._steps:
            self._steps[part] = flatten_steps(self.get_part(part), part)
        return self._steps[part]

    @property
    def tokenizer_class(self) -> object:
        """The class name in tokenizer_config.json without "Fast", or None if it is missing."""
        return remove_fast_suffix(self._get_object("tokenizer_config.json").get("tokenizer_class"))

    @property
    def has_class_name(self) -> bool:
        """Return whether tokenizer_config.json contains a specific (not generic) class name."""
        return self.tokenizer_class not in (None, *GENERIC_CLASSES)

    def get_setting(self, name: str, field: str, *parts: str) -> bool | None:
        """Look up a setting in tokenizer_config.json and tokenizer.json, or return None.

        If both files contain the setting, the precedence is the same as in transformers. For
        specific classes, the value in tokenizer_config.json is used, and is also set in the steps
        returned by `get_steps`. For generic classes, tokenizer.json is used. If only tokenizer.json
        contains the setting, its value is used, and a warning is logged if a specific class in
        transformers would use a different default.

        Args:
            name: String. Name to look up in tokenizer_config.json.
            field: String. Field name to look up in steps from tokenizer.json.
            *parts: Names of tokenizer.json parts to search, such as "normalizer".
        """
        steps = [step for part in parts for step in self.get_steps(part) if field in step]
        own = self._get_object("tokenizer_config.json").get(name)
        stated = steps[0][field] if steps else None
        for file, value in (("tokenizer_config.json", own), ("tokenizer.json", stated)):
            if not isinstance(value, bool | None):
                raise invalid(f"{self.folder / file}: {name}", value, "true or false")
        generic = self.tokenizer_class in GENERIC_CLASSES and "tokenizer.json" in self
        default = CLASS_DEFAULTS.get(name)
        if not generic and own is None and None not in (stated, default) and stated != default:
            logger.warning(
                "%s: %s is %s in tokenizer.json, and this value is used. It is missing in "
                "tokenizer_config.json, so transformers uses %s. Add it to tokenizer_config.json.",
                self.folder.name,
                name,
                stated,
                default,
            )
        if steps and own not in (None, stated):
            logger.warning(
                "%s: %s is %s in tokenizer_config.json and %s in tokenizer.json. The value in %s "
                "is used, as in transformers.",
                self.folder.name,
                name,
                own,
                stated,
                "tokenizer.json" if generic else "tokenizer_config.json",
            )
        if own is None or generic:
            return stated
        for step in steps:
            step[field] = own
        return own

    def find_special_tokens(self) -> dict[str, str]:
        """Return the special tokens in all files, as a dict mapping argument names to tokens."""
        files = ("tokenizer_config.json", "special_tokens_map.json")
        found: dict[str, str] = {}
        for argument, names in SPECIAL_TOKENS.items():
            for name in names:
                named = {file: self._get_special_token(file, name) for file in files}
                tokens = {file: token for file, token in named.items() if token is not None}
                if len(set(tokens.values())) > 1:
                    raise ValueError(f"{self.folder}: {name} is {describe_mismatch(tokens)}")
                for token in tokens.values():
                    found.setdefault(argument, token)
        if unknown := self.get_unknown_token():
            found.setdefault("unknown_token", unknown)
        return {**found, **self._read_template_tokens(found)}

    def get_unknown_token(self) -> str | None:
        """Return the unknown token for the model in tokenizer.json, or None if it is not set."""
        model = self.get_part("model")
        token, position, vocabulary = (model.get(name) for name in ("unk_token", "unk_id", "vocab"))
        if type(position) is int and isinstance(vocabulary, list):
            entry = vocabulary[position] if 0 <= position < len(vocabulary) else None
            token = entry[0] if isinstance(entry, list) and entry else None
        return token if isinstance(token, str) and token else None

    def read_special_tokens(self, cls: type) -> dict[str, str]:
        """Return special tokens from the files, with default values from a tokenizer class."""
        defaults = get_argument_defaults(cls)
        tokens = {name: defaults[name] for name in SPECIAL_TOKENS} | self.find_special_tokens()
        if tokens["pad_token"] == tokens["mask_token"]:  # used by PyLate to pad queries
            tokens["pad_token"] = defaults["pad_token"]
        # Byte-level BPE does not need an unknown token, so it can be equal to another token. The
        # end token can be used for padding.
        named = [token for name, token in tokens.items() if name != "unknown_token"]
        if len(set(named)) + (tokens["pad_token"] == tokens["end_token"]) < len(named):
            raise ValueError(
                f"{self.folder}: the tokens for start, end, padding and mask (cls_token, "
                "sep_token, pad_token, mask_token) are "
                f"{', '.join(map(quote, named))}. Expected four different tokens."
            )
        return tokens

    def _read_template_tokens(self, named: Mapping[str, str]) -> dict[str, str]:
        """Return the start and end tokens used by the post-processor in tokenizer.json."""
        if (template := self.get_template()) is None:
            return {}
        found = {}
        for argument, tokens in template.roles.items():
            found |= {argument: named.get(argument, tokens[0])} if tokens else {}
            if tokens and found[argument] not in tokens:
                name = " or ".join(SPECIAL_TOKENS[argument])
                raise ValueError(
                    f"{self.folder}: {name} is {quote(named[argument])}, but the post_processor in "
                    f"tokenizer.json uses {', '.join(map(quote, tokens))}. Expected the same token."
                )
        return found

    def get_template(self) -> Template | None:
        """Return the post-processor template, or None if tokenizer.json does not contain one."""
        name = f"{self.json_path}: post_processor"
        return read_template(self.get_part("post_processor"), name)

    def get_config_value(self, name: str) -> object:
        """Return a field from tokenizer_config.json, or None if it is missing."""
        return self._get_object("tokenizer_config.json").get(name)

    def get_config_token(self, name: str) -> str | None:
        """Return a special token from tokenizer_config.json, or None if it is missing."""
        return self._get_special_token("tokenizer_config.json", name)

    def _get_special_token(self, file: str, name: str) -> str | None:
        value = self._get_object(file).get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if not isinstance(value, str | None):
            raise invalid(f"{self.folder / file}: {name}", value, "a string")
        return value or None

    def find_renamed_tokens(self, name: str, ids: Mapping[str, int]) -> dict[int, str]:
        """Find the tokens that have another name in tokenizer.json, which takes precedence.

        Args:
            name: String. The name of the file to compare with.
            ids: Dict mapping tokens in this file to ids.

        Returns:
            Dict mapping the ids of renamed tokens to their names in tokenizer.json.

        Raises:
            ValueError: If tokens are missing or have different ids. See `compare_ids`.
        """
        if "tokenizer.json" not in self:
            return {}
        fast, tokens = self.get_vocabulary(name), {i: token for token, i in ids.items()}
        renamed = {
            i: token
            for token, i in fast.items()
            if i in tokens and tokens[i] not in fast and token not in ids
        }
        kept = ({t: i for t, i in known.items() if i not in renamed} for known in (ids, fast))
        self.compare_ids(name, *kept)
        if renamed:
            i = min(renamed)
            logger.warning(
                "%s: %d tokens in %s differ from tokenizer.json, for example %s and %s. The "
                "tokens in tokenizer.json are used, as in transformers.",
                self.folder.name,
                len(renamed),
                name,
                quote(tokens[i]),
                quote(renamed[i]),
            )
        return renamed

    def compare_ids(self, name: str, ids: Mapping[str, int], fast: Mapping[str, int]) -> None:
        """Raise an error if a vocabulary file differs from the vocabulary in tokenizer.json.

        Args:
            name: String. The name of the file to compare with.
            ids: Dict mapping tokens in this file to ids.
            fast: Dict mapping tokens in tokenizer.json to ids.

        Raises:
            ValueError: If a token has two different ids, or if a token that is not an added token
                is missing in one of the files.
        """
        # Added tokens may be missing in one of the files.
        added = {"", *self.added_tokens()}
        for token in (*ids, *fast):
            if ids.get(token) != fast.get(token) and token not in added:
                said = {name: ids.get(token), "tokenizer.json": fast.get(token)}
                raise self._make_id_error(token, said)

    def compare_added_tokens(self, ids: Mapping[str, int]) -> None:
        """Raise an error if an added token has a different id in the vocabulary.

        Raises:
            ValueError: If an added token has a different id in the vocabulary.
        """
        for token, i in self.added_tokens().items():
            if ids.get(token, i) != i:
                raise self._make_id_error(token, {"the vocabulary": ids[token], "added tokens": i})

    def _make_id_error(self, token: str, ids: Mapping[str, int | None]) -> ValueError:
        """Return the error for a token with two different ids, given as {name of the file: id}."""
        return ValueError(f"{self.folder}: the id of {quote(token)} is {describe_mismatch(ids)}")

    def get_model(self, alternative: str) -> dict:
        """Return the model from tokenizer.json.

        Args:
            alternative: String. The files that could be used instead, such as "vocab.json and
                merges.txt". It is part of the error message.

        Raises:
            FileNotFoundError: If the folder does not contain a tokenizer.json.
        """
        if "tokenizer.json" not in self:
            raise FileNotFoundError(
                f"{self.folder} does not contain the files of this tokenizer. Expected "
                f"{alternative}, or tokenizer.json."
            )
        return self.get_part("model")

    def get_vocabulary(self, alternative: str) -> dict[str, int]:
        """Return {token: id} for the model in tokenizer.json. See `get_model`."""
        name = f"{self.json_path}: model.vocab"
        return check_vocabulary(self.get_model(alternative).get("vocab"), name)

    def list_added_tokens(self) -> list[dict]:
        """Return all added tokens, including special tokens, sorted by id.

        If a token is defined in several files, the order of precedence is tokenizer.json,
        tokenizer_config.json, added_tokens.json.
        """
        known: dict[str, dict] = {}
        for token in self._read_added_entries():
            entry = {name: token[name] for name in FIELDS if name in token}
            first = known.setdefault(token["content"], entry)
            if first["id"] != token["id"]:
                raise ValueError(
                    f"{self.folder}: the added token {quote(token['content'])} has the ids "
                    f"{first['id']} and {token['id']}. Expected a single id."
                )
        if known:
            ids = {token: entry["id"] for token, entry in known.items()}
            check_vocabulary(ids, f"{self.folder}: added_tokens", 2**21)
        return sorted(known.values(), key=lambda token: token["id"])

    def _read_added_entries(self) -> list[dict]:
        """Return added token entries from all files, in order of precedence."""
        name = f"{self.json_path}: added_tokens"
        listed = self._get_object("tokenizer.json").get("added_tokens") or []
        if not isinstance(listed, list):
            raise invalid(name, listed, "a list of objects")
        entries = [(f"{name}[{i}]", token) for i, token in enumerate(listed)]

        name = f"{self.folder / 'tokenizer_config.json'}: added_tokens_decoder"
        decoder = self._get_object("tokenizer_config.json").get("added_tokens_decoder") or {}
        if not isinstance(decoder, dict):
            raise invalid(name, decoder, "an object that maps ids to tokens")
        for i, token in decoder.items():
            if not re.fullmatch(r"[0-9]{1,9}", i) or not isinstance(token, dict):
                expected = "an object as the value, and an integer id as the key"
                raise invalid(f"{name}[{quote(i)}]", token, expected)
            entries.append((f"{name}[{quote(i)}]", {**token, "id": int(i)}))

        added = self._get_object("added_tokens.json").items()
        name = f"{self.folder / 'added_tokens.json'}"
        entries += [(f"{name}: {quote(t)}", {"content": t, "id": i}) for t, i in added]
        for place, token in entries:
            is_object = isinstance(token, dict)
            if not is_object or type(token.get("id")) is not int:
                raise invalid(place, token, "an object with an integer as its id")
            if not isinstance(token.get("content"), str):
                raise invalid(place, token, "an object with a text as its content")
        check_vocabulary_size(len(entries), f"{self.folder}: added tokens")
        return [token for _, token in entries]

    def added_tokens(self) -> dict[str, int]:
        """Return {token: id} for all added tokens. See `list_added_tokens`."""
        return {token["content"]: token["id"] for token in self.list_added_tokens()}

    def map_added_tokens(self, tokens: Collection[str]) -> dict[str, int]:
        """Return {token: id} for the added tokens among the given tokens."""
        return {token: i for token, i in self.added_tokens().items() if token in tokens}

    def list_special_added_tokens(self) -> list[str]:
        """Return the added tokens that are marked as special in tokenizer.json."""
        added = self._get_object("tokenizer.json").get("added_tokens") or []
        return [token["content"] for token in added if token.get("special")]

    def _get_object(self, name: str) -> dict:
        return self.contents.get(name, {})


def remove_fast_suffix(name: object) -> object:
    """Remove "Fast" from the name of a transformers class.

    Example:
        >>> remove_fast_suffix("BertTokenizerFast")
        'BertTokenizer'
    """
    return name.removesuffix("Fast") if isinstance(name, str) else name


MAX_TOKENS = 2**20  # the largest known encoder vocabulary has 900,000 tokens


def check_vocabulary(vocabulary: object, name: str, most: int | None = None) -> dict[str, int]:
    """Check a vocabulary from parsed JSON, and return it as {token: id}.

    Args:
        vocabulary: Parsed file content to check.
        name: String. Name to use in error messages.
        most: Optional integer. Upper bound for ids (exclusive). By default, ids must be less than
            twice the number of tokens plus 1,000.
    """
    ids = vocabulary.values() if isinstance(vocabulary, Mapping) else ()
    if not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise ValueError(
            f"{name} is not a JSON object with ids. Expected tokens with the ids 0, 1, 2 ..."
        )
    most = most or 2 * len(ids) + 1000
    if max(ids) >= most:  # a list with this length will be created
        raise ValueError(
            f"{name} has the id {max(ids)} among {len(ids)} tokens. Expected ids below {most}."
        )
    check_vocabulary_size(len(ids), name)
    if len(set(ids)) < len(ids):
        owners: dict[int, str] = {}
        for token, i in vocabulary.items():
            if owners.setdefault(i, token) != token:
                raise ValueError(
                    f"{name} has the id {i} for {quote(owners[i])} and for {quote(token)}. "
                    "Expected a different id for each token."
                )
    return dict(vocabulary)


def check_vocabulary_size(count: int, name: str) -> None:
    """Raise an error if a vocabulary is too large."""
    if count > MAX_TOKENS:
        raise ValueError(f"{name} has {count} tokens. Expected at most {MAX_TOKENS}.")


def check_merges(merges: Sequence[str], ids: Mapping[str, int]) -> None:
    """Raise an error if a merge does not combine two tokens of the vocabulary into a third token.

    Args:
        merges: List of "a b" pairs.
        ids: Dict mapping tokens to ids.
    """
    for i, merge in enumerate(merges):
        tokens = merge.split(" ")
        if len(tokens) != 2:
            raise invalid(f"merges[{i}]", merge, "two tokens, separated by a space")
        for token in (*tokens, "".join(tokens)):
            if token not in ids:
                raise ValueError(
                    f"merges[{i}] is {quote(merge)}, but {quote(token)} is not in the vocabulary. "
                    "Expected the vocabulary and merges of the same model."
                )


def append_tokens(tokens: list[str], added: Mapping[str, int]) -> list[str]:
    """Append added tokens to a vocabulary if they have larger ids.

    Example:
        >>> append_tokens(["a", "b"], {"b": 1, "[E1]": 2})
        ['a', 'b', '[E1]']
    """
    behind = {token: i for token, i in added.items() if i >= len(tokens)}
    return [*tokens, *sort_tokens_by_id(behind)[len(tokens) :]] if behind else tokens


def sort_tokens_by_id(vocabulary: Mapping[str, int]) -> list[str]:
    """Return a list of tokens, indexed by id. Unused ids have names such as "[unused id 7]"."""
    tokens = [f"[unused id {i}]" for i in range(max(vocabulary.values()) + 1)]
    for token, token_id in vocabulary.items():
        tokens[token_id] = token
    return tokens


def make_byte_alphabet() -> list[str]:
    """Return the visible characters that represent all 256 bytes in the vocabulary.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section
        2.2, and the files released with it.

    Example:
        >>> make_byte_alphabet()[32], make_byte_alphabet()[65]
        ('Ġ', 'A')
    """
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {byte: chr(byte) for byte in visible}
    characters |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [characters[byte] for byte in range(256)]


@functools.lru_cache(maxsize=1)
def map_alphabet_to_bytes() -> dict[str, int]:
    """Return {character: byte} for `make_byte_alphabet`."""
    return {c: byte for byte, c in enumerate(make_byte_alphabet())}


def get_token_bytes(token: str) -> bytes:
    """Return the bytes that a byte-level token represents. Other tokens are encoded as UTF-8."""
    byte_of = map_alphabet_to_bytes()
    if all(c in byte_of for c in token):
        return bytes(byte_of[c] for c in token)
    return token.encode("utf-8")


def parse_merges(merges_txt: str) -> list[str]:
    """Return the pairs in merges.txt, without the version line.

    Example:
        >>> parse_merges("#version: 0.2\\na b\\n")
        ['a b']
    """
    check_vocabulary_size(merges_txt.count("\n"), "merges.txt")
    lines = merges_txt.split("\n")
    return [line for line in lines if line and not line.startswith("#version")]


def read_merges(files: TokenizerFiles) -> list[str]:
    """Look up the merges in tokenizer.json. Each merge can be a string or a pair.

    Raises:
        ValueError: If `model.merges` is not a list of token pairs.

    Example:
        >>> model = {"merges": [["a", "b"], "ab c"]}
        >>> read_merges(TokenizerFiles("preset", {"tokenizer.json": {"model": model}}))
        ['a b', 'ab c']
    """
    name = f"{files.json_path}: model.merges"
    merges = files.get_part("model").get("merges")
    if not isinstance(merges, list):
        raise invalid(name, merges, "a list of pairs of tokens")
    check_vocabulary_size(len(merges), name)
    for i, merge in enumerate(merges):
        tokens = merge.split(" ") if isinstance(merge, str) else merge
        is_pair = isinstance(tokens, list) and len(tokens) == 2
        if not is_pair or not all(isinstance(t, str) and t and " " not in t for t in tokens):
            raise invalid(f"{name}[{i}]", merge, "two non-empty tokens without spaces")
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
