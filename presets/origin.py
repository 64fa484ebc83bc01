"""Finds where a backbone's weights come from: their preset, and their checkpoint's vocabulary."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import re
from typing import TYPE_CHECKING, NamedTuple

from encoder_zoo.presets.files.manifest import CARD
from encoder_zoo.presets.registry import REPOSITORY, listed_entry

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-\w+)?|code|multilingual")
_MAX_BYTES = 2**16  # of a card, whose fields come first


class Origin(NamedTuple):
    """The model that weights come from.

    Attributes:
        base_model: its repository on the hub, or its name in `list_presets()`; None if unknown.
        licence: as the hub spells it, such as "apache-2.0"; None if it is not stated.
        languages: codes of ISO 639, or "multilingual".
    """

    base_model: str | None = None
    licence: str | None = None
    languages: tuple[str, ...] = ()


def origin_of(source: str | os.PathLike, folder: pathlib.Path) -> Origin:
    """Return where the weights of a preset come from, as far as the list or its card say so.

    Args:
        source: as given to `from_preset`.
        folder: with its files.

    Example:
        >>> origin_of("bert_base_en_uncased", pathlib.Path("none"))
        Origin(base_model='google-bert/bert-base-uncased', licence='apache-2.0', languages=('en',))
    """
    name = os.fspath(source)
    if entry := listed_entry(name):
        return _listed(name, entry)
    found = read_card(folder / CARD)
    repository = name.removeprefix("hf://").split("@")[0]
    is_remote = name.startswith("hf://") or not pathlib.Path(name).exists()
    if is_remote and REPOSITORY.fullmatch(repository):
        return found._replace(base_model=repository)
    return found


def _listed(name: str, entry: dict) -> Origin:
    source, licence = entry["source"], entry["licence"].lower()
    base_model = source.removeprefix("hf://") if source.startswith("hf://") else name
    several = entry["languages"].startswith("multi")
    languages = ("multilingual",) if several else tuple(entry["languages"].split())
    return Origin(base_model, licence if _LICENCE.fullmatch(licence) else None, languages)


def read_card(path: pathlib.Path) -> Origin:
    """Return what the first lines of a model card say; fields that are odd are left out.

    Args:
        path: of a README.md, which need not exist.
    """
    if not path.is_file():
        return Origin()
    with path.open("rb") as file:
        text = file.read(_MAX_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")
    matched = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    front = matched[1] if matched else ""
    licences = [v for v in _values(front, "license") if _LICENCE.fullmatch(v)]
    languages = [v for v in _values(front, "language") if _LANGUAGE.fullmatch(v)]
    models = [v for v in _values(front, "base_model") if REPOSITORY.fullmatch(v)]
    return Origin(next(iter(models), None), next(iter(licences), None), tuple(languages))


def _values(front: str, field: str) -> list[str]:
    """Return the plain values of a field of YAML: one, a list in brackets, or one of dashes.

    Example:
        >>> _values("license: mit\\nlanguage:\\n- en\\n- de\\ntags: [a, 'b']", "language")
        ['en', 'de']
    """
    found = re.search(rf"^{field}:(.*(?:\n *- .*)*)", front, re.MULTILINE)
    return re.findall(r"[A-Za-z0-9][\w./+-]*", found[1]) if found else []


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Class and tokens of a tokenizer.

    Attributes:
        kind: name of the class.
        size: number of tokens; None if they were not read.
        sha256: of the tokens; likewise.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"]
        >>> known = Vocabulary.of(BertTokenizer(tokens))
        >>> known.is_of(BertTokenizer(tokens, added_tokens=["dog"]))
        True
        >>> known.is_of(BertTokenizer([*tokens[:-1], "dog"]))
        False
    """

    kind: str
    size: int | None = None
    sha256: str | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """Return the vocabulary of a tokenizer."""
        tokens = tokenizer.get_vocabulary()
        return cls(type(tokenizer).__name__, len(tokens), _digest(tokens))

    def is_of(self, tokenizer: Tokenizer) -> bool:
        """Return whether a tokenizer has this vocabulary, possibly followed by added tokens."""
        if self.kind not in {cls.__name__ for cls in type(tokenizer).__mro__}:
            return False
        first = tokenizer.get_vocabulary()[: self.size]
        return self.sha256 is None or _digest(first) == self.sha256


def _digest(tokens: list[str]) -> str:
    text = "\n".join(tokens).encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"%d\n%s" % (len(tokens), text)).hexdigest()


def check_tokenizer(backbone: Backbone, tokenizer: Tokenizer) -> None:
    """Raise an error if a tokenizer is not that of the backbone's checkpoint.

    Raises:
        ValueError: If the tokens are others than those of the backbone's checkpoint.
    """
    known = backbone.checkpoint_vocabulary
    if known is None or known.is_of(tokenizer):
        return
    size = "" if known.size is None else f" of {known.size}"
    raise ValueError(
        f"The tokenizer is a {type(tokenizer).__name__} of {tokenizer.vocabulary_size} tokens, but "
        f"the backbone's checkpoint has a {known.kind}{size}, whose ids are of other tokens. Load "
        "the tokenizer from the preset that the backbone is from, with Tokenizer.from_preset."
    )
