"""Store the class and the files of a tokenizer, so that the tokenizer can be created later."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.tokenizers import TokenizerClass
from encoder_zoo.encoders.tokenizers.choice import choose_tokenizer
from encoder_zoo.encoders.tokenizers.comparison import create_tokenizer
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.special_tokens import OPTIONS, Template, read_template
from encoder_zoo.encoders.tokenizers.tokenizer import format_json
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.formats.preset_files import GLINER, TOKENIZER_JSON

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

TOKENIZER_CONFIG = "tokenizer_config.json"
_BINARY = (".model", ".spm")  # SentencePiece models
# Fields of transformers 4 and 5 for special tokens without a role.
_FURTHER_TOKENS = ("additional_special_tokens", "extra_special_tokens")
_FURTHER_TOKENS += ("model_specific_special_tokens",)
# Classes of transformers 5 that return segment ids by default.
_WITH_SEGMENTS = ("BertTokenizer", "ElectraTokenizer", "DebertaV2Tokenizer")
_MAX_TOKENS = 2**20  # larger values mean no limit. For example, transformers stores 1e30


class StoredTokenizer(NamedTuple):
    """The class and the files of a tokenizer, from which it can be created later.

    Attributes:
        kind: The `TokenizerClass` of the tokenizer.
        files: The `TokenizerFiles` with the contents of the files.
        added: Tuple of strings. Special tokens of the model that are missing in the files. Defaults
            to ().
    """

    kind: TokenizerClass
    files: TokenizerFiles
    added: tuple[str, ...] = ()

    def read(self, **arguments: object) -> Tokenizer:
        """Create the tokenizer. See `create_tokenizer` for arguments and errors."""
        return create_tokenizer(self.kind.load(), self.files, **arguments)

    def read_arguments(self, family: Family | None) -> dict[str, object]:
        """Get constructor arguments from the files, for example the padding side.

        Missing arguments use the class defaults. Segment ids are disabled for families
        without segments.

        Args:
            family: Optional `Family` of the model. None for an unknown model.

        Raises:
            ValueError: If a field value is invalid, or if the start token is on the wrong
                side.
        """
        template = self.files.get_template() or self.kind
        if bool(template.first_column) != self.kind.first_column:
            last, first = "after the texts", "before the texts"
            puts, expected = (last, first) if self.kind.first_column else (first, last)
            raise ValueError(
                f"{self.files.json_path}: post_processor puts the start token {puts}. Expected the "
                f"start token {expected}, as in {self.kind.name}."
            )
        segments = template.uses_segments and (family is None or family.uses_segments)
        segments = segments and self._returns_segments()
        pairs = {"uses_segments": segments, "pair_separators": template.pair_separators}
        if isinstance(template, Template) and not template.is_regular:
            steps = self.files.get_steps("post_processor")
            [pairs["post_processor"]] = [s for s in steps if read_template(s, "post_processor")]
        found = {**pairs, **_read_sides(self.files), **_read_max_length(self.files)}
        in_text = self.files.get_config_value("special_tokens_in_text")  # only in this package
        return found if in_text is None else {**found, "special_tokens_in_text": in_text}

    def _returns_segments(self) -> bool:
        """Return whether this tokenizer returns segment ids in transformers.

        If the field `model_input_names` is missing, the result depends on the version. In version
        4, all tokenizers return segment ids. In version 5, which writes the field "backend", only
        some classes return segment ids.
        """
        names = self.files.get_config_value("model_input_names")
        if names:
            return "token_type_ids" in names
        is_of_5 = self.files.get_config_value("backend") is not None
        return not is_of_5 or self.files.tokenizer_class in _WITH_SEGMENTS

    def list_special_tokens_to_add(self, tokenizer: Tokenizer) -> list[dict[str, object]]:
        """List the special tokens in the files that are missing in the tokenizer.

        Args:
            tokenizer: Tokenizer created from the files.

        Raises:
            ValueError: If a special token is not in the vocabulary.
        """
        known = {token["content"] for token in tokenizer.added_tokens}
        known.update(tokenizer.special_tokens)
        vocabulary, found = set(tokenizer.get_vocabulary()), {}
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            settings = self.files.contents.get(file, {})
            for name in _FURTHER_TOKENS:
                named = settings.get(name) or ()
                for token in named.values() if isinstance(named, dict) else named:
                    content = token.get("content") if isinstance(token, dict) else token
                    if isinstance(content, str) and content in known:
                        continue
                    if not isinstance(content, str) or content not in vocabulary:
                        raise ValueError(
                            f"{self.files.folder / file}: {name} contains {quote(content)}, which "
                            "is not in the vocabulary. Remove the token from the file, or add the "
                            "token to the model with from_preset(..., added_tokens=[...])."
                        )
                    options = token if isinstance(token, dict) else {}
                    given = {name: options[name] for name in OPTIONS if name in options}
                    found[content] = {**given, "content": content, "special": True}
        further = [token for token in self.added if token not in vocabulary]
        return [*found.values(), *({"content": token, "special": True} for token in further)]


def make_tokenizer_files(tokenizer: Tokenizer, max_length: int | None) -> dict[str, str | bytes]:
    """Create the files of a tokenizer.

    Args:
        tokenizer: The `Tokenizer` to save.
        max_length: Optional integer. The value of `model_max_length` in tokenizer_config.json. If
            None, the setting of the tokenizer is kept.
    """
    files = tokenizer.to_files()
    if not max_length or TOKENIZER_CONFIG not in files:  # static embeddings have no such file
        return files
    settings = {**json.loads(files[TOKENIZER_CONFIG]), "model_max_length": max_length}
    return {**files, TOKENIZER_CONFIG: format_json(settings)}


def _read_sides(files: TokenizerFiles) -> dict[str, str]:
    """Get the truncation side and the padding side.

    The values in tokenizer_config.json have priority over tokenizer.json.
    """
    config = files.contents.get("tokenizer_config.json", {})
    found = {}
    for name in ("truncation_side", "padding_side"):
        block = name.removesuffix("_side")
        direction = files.get_part(block).get("direction")
        for path, field, value in (
            (files.folder / "tokenizer_config.json", name, config.get(name)),
            (files.json_path, f"{block}.direction", direction),
        ):
            if value is None:
                continue
            side = value.lower() if isinstance(value, str) else value
            if side not in ("right", "left"):
                raise invalid(f"{path}: {field}", value, "'right' or 'left'")
            found.setdefault(name, side)
    return found


def _read_max_length(files: TokenizerFiles) -> dict[str, int]:
    """Get the maximum length from tokenizer_config.json. In old files, the field is "max_len"."""
    config = files.contents.get("tokenizer_config.json", {})
    for name in ("model_max_length", "max_len"):
        if (length := config.get(name)) is not None:
            field = f"{files.folder / 'tokenizer_config.json'}: {name}"
            length = check_max_length(length, field)
            return {} if length is None else {"model_max_length": length}
    return {}


def check_max_length(length: object, field: str) -> int | None:
    """Validate a maximum length. Return None for a value that means no limit.

    Args:
        length: Value from a file.
        field: String. The file name and field for the error message.

    Raises:
        ValueError: If `length` is not an integer greater than 2.

    Example:
        >>> check_max_length(512, "file"), check_max_length(int(1e30), "file")
        (512, None)
    """
    whole = isinstance(length, int | float) and not isinstance(length, bool) and length >= 3
    if not whole or (length < _MAX_TOKENS and length != int(length)):
        raise invalid(field, length, "an integer of 3 or more")
    return int(length) if length < _MAX_TOKENS else None


def read_stored_tokenizer(
    files: FolderFiles, config: Mapping, default: TokenizerClass | None
) -> StoredTokenizer:
    """Read the tokenizer files in a folder, and choose the tokenizer class.

    Args:
        files: `FolderFiles`. The files of the preset.
        config: Dict. The config.json content, or {} for a missing file.
        default: Optional `TokenizerClass` to use if the files do not determine the class.

    Raises:
        ValueError: If a tokenizer file is invalid. See also `choose_tokenizer`.
    """
    kind = choose_tokenizer(_read_contents(files, TOKENIZER_JSON), config, files.listed, default)
    stored = StoredTokenizer(kind, read_tokenizer_files(files, kind))
    return _fix_pair_template(stored) if GLINER in files else stored


def _fix_pair_template(stored: StoredTokenizer) -> StoredTokenizer:
    """Remove the second start token from the template for text pairs in gliner folders.

    gliner models do not use text pairs, so the outputs are not affected.
    """
    contents = stored.files.contents
    template = stored.files.get_part("post_processor")
    single = template.get("single")
    if template.get("type") != "TemplateProcessing" or not isinstance(single, list):
        return stored
    end = single[-1].get("SpecialToken") if single and isinstance(single[-1], dict) else None
    is_framed = len(single) == 3 and isinstance(single[1], dict) and "Sequence" in single[1]
    if not is_framed or not isinstance(end, dict):
        return stored
    second = {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {**end, "type_id": 1}}
    template = {**template, "pair": [*single, *second]}
    data = {**contents["tokenizer.json"], "post_processor": template}
    files = TokenizerFiles(stored.files.folder, {**contents, "tokenizer.json": data})
    return stored._replace(files=files)


def read_tokenizer_files(files: FolderFiles, kind: TokenizerClass) -> TokenizerFiles:
    """Read the files that a tokenizer class needs.

    Args:
        files: `FolderFiles`. The files of the preset.
        kind: The `TokenizerClass` of the tokenizer.

    Returns:
        `TokenizerFiles` for `create_tokenizer`.

    Raises:
        ValueError: If a tokenizer file is missing or too large.
    """
    return _read_contents(files, (*TOKENIZER_JSON, *kind.files))


def _read_contents(files: FolderFiles, names: Iterable[str]) -> TokenizerFiles:
    contents = {name: read_content(files, name) for name in names if name in files}
    return TokenizerFiles(files.path, contents)


def read_content(files: FolderFiles, name: str) -> dict | str | bytes:
    """Read a tokenizer file as JSON, bytes or text. The suffix of the name determines the type."""
    suffix = pathlib.PurePath(name).suffix
    if suffix == ".json":
        return files.read_json(name)
    return files.read_bytes(name) if suffix in _BINARY else files.read_text(name)
