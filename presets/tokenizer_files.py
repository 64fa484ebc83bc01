"""Reads the tokenizer files of a Hugging Face checkpoint folder, as plain data."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer, read_merges
from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer, read_vocabulary
from encoder_zoo.presets.tokenizer_writing import SPECIAL_TOKENS
from encoder_zoo.presets.tokenizer_writing import write_tokenizer as write_tokenizer

logger = logging.getLogger("encoder_zoo")


def read_bert_tokenizer(folder: str | Path) -> BertTokenizer:
    """The WordPiece tokenizer of a checkpoint folder.

    Settings come from tokenizer_config.json, then tokenizer.json. Where neither says whether to
    lower-case, the vocabulary does: it is cased if it holds a word with a capital letter.

    Args:
        folder: holds vocab.txt or tokenizer.json, and mostly tokenizer_config.json.

    Returns:
        The tokenizer.

    Raises:
        FileNotFoundError: "FOLDER has no vocab.txt and no tokenizer.json ..."
        ValueError: "FILE: FIELD is ...; expected ..."

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Cat"]
        >>> write_tokenizer(BertTokenizer(vocabulary, lowercase=False), folder)
        >>> read_bert_tokenizer(folder).lowercase
        False
    """
    files = TokenizerFiles(folder)
    files.expect("normalizer", "type", "BertNormalizer")
    files.expect("normalizer", "clean_text", True)
    files.expect("pre_tokenizer", "type", "BertPreTokenizer")
    files.expect("model", "type", "WordPiece")
    files.expect("model", "continuing_subword_prefix", "##")
    files.expect("model", "max_input_chars_per_word", 100)
    if (files.folder / "vocab.txt").exists():
        tokens = with_added(read_vocabulary(files.folder / "vocab.txt"), files.added_tokens())
    else:
        tokens = in_id_order(files.vocabulary("vocab.txt"))
    special = files.special_tokens()
    lowercase = files.setting("do_lower_case", "normalizer", "lowercase", bool)
    if lowercase is None:
        lowercase = not any(t != t.lower() for t in tokens if not t.startswith(("[", "<")))
    chinese = files.setting("tokenize_chinese_chars", "normalizer", "handle_chinese_chars", bool)
    return BertTokenizer(
        tokens,
        lowercase=lowercase,
        strip_accents=files.setting("strip_accents", "normalizer", "strip_accents", bool),
        split_chinese_characters=True if chinese is None else chinese,
        **special,
    )


def read_roberta_tokenizer(folder: str | Path) -> RobertaTokenizer:
    """The byte-level BPE tokenizer of a checkpoint folder.

    Args:
        folder: holds vocab.json and merges.txt, or tokenizer.json.

    Returns:
        The tokenizer.

    Raises:
        FileNotFoundError: "FOLDER has no vocab.json and no tokenizer.json ..."
        ValueError: "FILE: FIELD is ...; expected ..."
    """
    files = TokenizerFiles(folder)
    files.expect("normalizer", "type", None)
    files.expect("pre_tokenizer", "type", "ByteLevel")
    files.expect("pre_tokenizer", "use_regex", True)
    files.expect("model", "type", "BPE")
    if (files.folder / "vocab.json").exists() and (files.folder / "merges.txt").exists():
        vocabulary = checked_vocabulary(read_json(files.folder / "vocab.json"), "vocab.json")
        vocabulary = {**vocabulary, **files.added_tokens()}
        merges = read_merges(files.folder / "merges.txt")
    else:
        vocabulary = files.vocabulary("vocab.json and merges.txt")
        merges = files.merges()
    special = files.special_tokens()
    prefix = files.setting("add_prefix_space", "pre_tokenizer", "add_prefix_space", bool)
    return RobertaTokenizer(vocabulary, merges, add_prefix_space=bool(prefix), **special)


class TokenizerFiles:
    """The JSON files of a checkpoint folder that say something about its tokenizer."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.config = self._read("tokenizer_config.json")
        self.special = self._read("special_tokens_map.json")
        self.fast = self._read("tokenizer.json")

    def _read(self, name: str) -> dict:
        path = self.folder / name
        content = read_json(path) if path.exists() else {}
        if not isinstance(content, dict):
            raise ValueError(f"{path} holds a {type(content).__name__}; expected an object")
        return content

    def part(self, name: str) -> dict:
        """A part of tokenizer.json, such as its model; {} where there is none."""
        part = self.fast.get(name) or {}
        if not isinstance(part, dict):
            raise ValueError(f"{self.folder / 'tokenizer.json'}: {name} is not an object")
        return part

    def expect(self, part: str, field: str, value: object) -> None:
        """Refuses a tokenizer.json that asks for what this package does otherwise."""
        found = self.part(part).get(field, value)
        if found != value:
            raise ValueError(
                f"{self.folder / 'tokenizer.json'}: {part}.{field} is {found!r}; this family's "
                f"tokenizer has {value!r}, so the ids would differ"
            )

    def setting(self, name: str, part: str, field: str, kind: type) -> Any:
        """A setting from tokenizer_config.json, or else from a part of tokenizer.json, or None."""
        for file, value in (
            ("tokenizer_config.json", self.config.get(name)),
            ("tokenizer.json", self.part(part).get(field)),
        ):
            if value is not None:
                if not isinstance(value, kind):
                    raise ValueError(
                        f"{self.folder / file}: {name} is {value!r}; expected {kind.__name__}"
                    )
                return value
        return None

    def special_tokens(self) -> dict[str, str]:
        """The special tokens that the files name, under the names of our arguments."""
        found = {}
        for argument, names in SPECIAL_TOKENS.items():
            values = [source.get(n) for n in names for source in (self.config, self.special)]
            contents = [v.get("content") if isinstance(v, dict) else v for v in values if v]
            if contents:
                if not isinstance(contents[0], str):
                    raise ValueError(f"{self.folder}: {names[0]} is {values}; expected a string")
                found[argument] = contents[0]
        return found

    def vocabulary(self, alternative: str) -> dict[str, int]:
        """The vocabulary in tokenizer.json, with the special tokens that were added to it."""
        path = self.folder / "tokenizer.json"
        if not path.exists():
            raise FileNotFoundError(
                f"{self.folder} has no {alternative} and no tokenizer.json; one of them must hold "
                "the vocabulary"
            )
        vocabulary = checked_vocabulary(self.part("model").get("vocab"), f"{path}: model.vocab")
        return {**vocabulary, **self.added_tokens()}

    def added_tokens(self) -> dict[str, int]:
        """Tokens of tokenizer.json beside its model's, of which the special ones have a use."""
        added = self.fast.get("added_tokens") or []
        try:
            plain = [token["content"] for token in added if not token.get("special")]
            ids = {token["content"]: token["id"] for token in added}
        except (TypeError, KeyError, AttributeError):
            path = self.folder / "tokenizer.json"
            raise ValueError(
                f"{path}: added_tokens must hold objects with content and id"
            ) from None
        slow = self._read("added_tokens.json")
        plain += [token for token in slow if token not in ids]
        if plain:
            logger.warning("%s: added tokens %s are not looked for in text", self.folder, plain[:9])
        ids = {**slow, **ids}
        return checked_vocabulary(ids, f"{self.folder}: added_tokens", 2**21) if ids else {}

    def merges(self) -> list[str]:
        """The merges of tokenizer.json, which writes each as a string or as a pair."""
        merges = self.part("model").get("merges")
        if not isinstance(merges, list):
            raise ValueError(f"{self.folder / 'tokenizer.json'}: model.merges is not a list")
        return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def read_json(path: Path) -> Any:
    """The content of a JSON file, or an error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON in UTF-8: {error}") from None


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
    return dict(vocabulary)


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
