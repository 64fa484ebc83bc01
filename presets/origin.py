"""Find the origin of backbone weights: the model on the hub and the vocabulary."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import re
from typing import TYPE_CHECKING, NamedTuple

from encoder_zoo.presets.files.manifest import CARD
from encoder_zoo.presets.registry import REPOSITORY, get_listed_entry

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-\w+)?|code|multilingual")
_MAX_BYTES = 2**16  # number of bytes to read from a card, whose first lines contain the fields


class Origin(NamedTuple):
    """The model from which the weights were loaded.

    Attributes:
        base_model: Optional string. The repository on the hub, or name in `list_presets()`.
            Defaults to None, which means unknown.
        licence: Optional string. The licence identifier on the hub, such as "apache-2.0". Defaults
            to None, which means unknown.
        languages: Tuple of strings. ISO 639 codes, or "multilingual". Defaults to ().
    """

    base_model: str | None = None
    licence: str | None = None
    languages: tuple[str, ...] = ()


def find_origin(source: str | os.PathLike, folder: pathlib.Path) -> Origin:
    """Find the origin of a preset in the list of presets or in the model card.

    Args:
        source: String or path. Argument of `from_preset`.
        folder: Path. Folder with the preset files.

    Example:
        >>> find_origin("bert_base_en_uncased", pathlib.Path("none"))
        Origin(base_model='google-bert/bert-base-uncased', licence='apache-2.0', languages=('en',))
    """
    name = os.fspath(source)
    if entry := get_listed_entry(name):
        return _make_origin(name, entry)
    found = read_card(folder / CARD)
    repository = name.removeprefix("hf://").split("@")[0]
    is_remote = name.startswith("hf://") or not pathlib.Path(name).exists()
    if is_remote and REPOSITORY.fullmatch(repository):
        return found._replace(base_model=repository)
    return found


def _make_origin(name: str, entry: dict) -> Origin:
    source, licence = entry["source"], entry["licence"].lower()
    base_model = source.removeprefix("hf://") if source.startswith("hf://") else name
    several = entry["languages"].startswith("multi")
    languages = ("multilingual",) if several else tuple(entry["languages"].split())
    return Origin(base_model, licence if _LICENCE.fullmatch(licence) else None, languages)


def read_card(path: pathlib.Path) -> Origin:
    """Read the origin from YAML fields in a model card. Invalid fields are ignored.

    Args:
        path: The path of the file README.md, which does not need to exist.
    """
    if not path.is_file():
        return Origin()
    with path.open("rb") as file:
        text = file.read(_MAX_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")
    matched = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    front = matched[1] if matched else ""
    licences = [v for v in _parse_values(front, "license") if _LICENCE.fullmatch(v)]
    languages = [v for v in _parse_values(front, "language") if _LANGUAGE.fullmatch(v)]
    models = [v for v in _parse_values(front, "base_model") if REPOSITORY.fullmatch(v)]
    return Origin(next(iter(models), None), next(iter(licences), None), tuple(languages))


def _parse_values(front: str, field: str) -> list[str]:
    r"""Parse the values of a YAML field, which can contain a single value or a list.

    Example:
        >>> _parse_values("license: mit\nlanguage:\n- en\n- de\ntags: [a, 'b']", "language")
        ['en', 'de']
    """
    found = re.search(rf"^{field}:(.*(?:\n *- .*)*)", front, re.MULTILINE)
    return re.findall(r"[A-Za-z0-9][\w./+-]*", found[1]) if found else []


@dataclasses.dataclass(frozen=True)
class OriginVocabulary:
    """The vocabulary with which the weights were trained.

    Attributes:
        kind: String. The tokenizer class name.
        size: Optional integer. The number of tokens. None if the tokens were not read.
        sha256: Optional string. Checksum of all tokens. None if the tokens were not read.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"]
        >>> known = OriginVocabulary.create(BertTokenizer(tokens))
        >>> known.matches(BertTokenizer(tokens, added_tokens=["dog"]))
        True
        >>> known.matches(BertTokenizer([*tokens[:-1], "dog"]))
        False
    """

    kind: str
    size: int | None = None
    sha256: str | None = None

    @classmethod
    def create(cls, tokenizer: Tokenizer) -> OriginVocabulary:
        """Create an object for the vocabulary of a tokenizer."""
        tokens = tokenizer.get_vocabulary()
        return cls(type(tokenizer).__name__, len(tokens), _compute_digest(tokens))

    def matches(self, tokenizer: Tokenizer) -> bool:
        """Return whether a tokenizer has this vocabulary, optionally followed by added tokens."""
        if self.kind not in {cls.__name__ for cls in type(tokenizer).__mro__}:
            return False
        first = tokenizer.get_vocabulary()[: self.size]
        return self.sha256 is None or _compute_digest(first) == self.sha256


def _compute_digest(tokens: list[str]) -> str:
    text = "\n".join(tokens).encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"%d\n%s" % (len(tokens), text)).hexdigest()


def check_tokenizer(backbone: Backbone, tokenizer: Tokenizer) -> None:
    """Check that a tokenizer uses the vocabulary with which a backbone was trained.

    Raises:
        ValueError: If `tokenizer` has a different vocabulary.
    """
    known = backbone.checkpoint_vocabulary
    if known is None or known.matches(tokenizer):
        return
    size = "" if known.size is None else f" with {known.size} tokens"
    raise ValueError(
        f"The tokenizer is a {type(tokenizer).__name__} with {tokenizer.vocabulary_size} tokens, "
        f"but the backbone was trained with the vocabulary of a different {known.kind}{size}. Load "
        "the tokenizer from the preset of the backbone with Tokenizer.from_preset."
    )
