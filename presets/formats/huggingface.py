"""Reading a folder in the Hugging Face format: safetensors, in one file or in shards."""

from __future__ import annotations

import pathlib
import re

import numpy as np

from encoder_zoo.encoders import FAMILIES, all_families, get_family
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.tokenizers import TokenizerClass
from encoder_zoo.encoders.wording import shown
from encoder_zoo.presets.files.arrays import check_floats
from encoder_zoo.presets.files.plain_files import preset_file, read_json
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.presets.preset_files import CONFIG, INDEX, WEIGHTS
from encoder_zoo.presets.tokenizer_files import StoredTokenizer, read_stored_tokenizer

# Older names of LayerNorm's weights
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}


class HuggingFaceCheckpoint(Checkpoint):
    """A folder with `config.json` and `model.safetensors`, or the shards that an index lists.

    Args:
        folder: see above.
        settings: contents of its `encoder_zoo.json`.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """

    def __init__(self, folder: pathlib.Path, settings: dict):
        self.folder = folder
        self.settings = settings
        self.config_file = folder / CONFIG
        self.config = read_json(self.config_file)
        self._files = [SafetensorsFile(path) for path in weight_files(folder)]
        raw_names = [name for file in self._files for name in file.shapes]
        if "model_type" not in self.config:
            self.config["model_type"] = _guess_family(raw_names, folder)
        self.family = _family_of(self.config, self.config_file)
        self.config = self.family.read_config(self.config)
        self._places: dict[str, tuple[SafetensorsFile, str]] = {}
        for file in self._files:
            for raw_name in file.shapes:
                name = _normalise(raw_name, self.family)
                if name in self._places:
                    raise ValueError(f"{folder}: {name} stands in the weights twice.")
                self._places[name] = (file, raw_name)
        self._read_alias()
        self.shapes = {name: file.shapes[raw] for name, (file, raw) in self._places.items()}

    def tensor(self, name: str) -> np.ndarray:
        file, raw_name = self._places[name]
        check_floats(file.dtype(raw_name), file.path, raw_name)
        return file.read(raw_name)

    def stored_tokenizer(self) -> StoredTokenizer:
        return read_stored_tokenizer(self.folder, self.config, self.family.tokenizer)

    def _read_alias(self) -> None:
        """Gives a head that has another name here the one it has elsewhere."""
        for name, alias in self.family.aliases.items():
            if self.config.get("architectures") == [self.family.class_prefix + name]:
                self.set_head(alias.head, alias.labels)
                output = self.family.heads[alias.head].output
                for part in ("weight", "bias"):
                    if (old := f"{alias.output}.{part}") in self._places:
                        self._places[f"{output}.{part}"] = self._places[old]
                        if name not in self.family.heads:  # under its own name nobody asks for it
                            del self._places[old]


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files with the weights.

    Raises:
        ValueError: "... no model.safetensors ...", saying what to do where there are weights in
            another format.
    """
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        names = read_json(folder / INDEX).get("weight_map")
        field = f"{folder / INDEX}: weight_map"
        if not isinstance(names, dict) or not names:
            raise ValueError(f"{field} is {type(names).__name__}. Expected names and files.")
        files = {str(name): name for name in names.values()}
        return [preset_file(folder, files[name], field) for name in sorted(files)]
    raise ValueError(no_safetensors(folder, [path.name for path in folder.iterdir()]))


def no_safetensors(where: object, names: list[str]) -> str:
    """The error for weights in no format that is opened here."""
    others = sorted(n for n in names if n.endswith((".bin", ".pt", ".pth", ".h5", ".msgpack")))
    if not others:
        return f"{where}: no {WEIGHTS}. The weights must be in this file, or in shards of it."
    return (
        f"{where}: no {WEIGHTS}, only {', '.join(others)}. safetensors is required: other formats "
        "can run code when they are opened, and are never opened here. Convert it where you trust "
        "it, with transformers: AutoModel.from_pretrained(...).save_pretrained(folder), taking "
        "the class of the checkpoint's task."
    )


def _family_of(config: dict, path: pathlib.Path) -> Family:
    """The family that a configuration names."""
    name = config["model_type"]
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(
            f"{path}: model_type is {shown(name)}. Expected one of {', '.join(FAMILIES)}."
        )
    return get_family(name)


def _guess_family(raw_names: list[str], folder: pathlib.Path) -> str | None:
    """The family of a checkpoint whose configuration does not say: one of the oldest.

    Raises:
        ValueError: "FILE: no model_type, and weights and tokenizer may be those of xlm-roberta or
            camembert. Write ..." These differ in their ids, not in their weights.
    """
    named = [
        family
        for family in all_families()
        if any(name.startswith(f"{family.prefix}.") for name in raw_names)
    ]
    known = [f for f in named or all_families() if (folder / f.tokenizer.files[0]).exists()]
    if not known and not (folder / "tokenizer.json").exists():
        known = named[:1]
    found: dict[TokenizerClass, str] = {}
    for family in known or named:
        found.setdefault(family.tokenizer, family.name)
    if len(found) > 1:
        names = list(found.values())
        raise ValueError(
            f"{folder / CONFIG}: no model_type, and weights and tokenizer may be those of "
            f'{" or ".join(names)}. Write "model_type": "{names[0]}", or whichever it is, into it.'
        )
    return next(iter(found.values()), None)


def _normalise(name: str, family: Family) -> str:
    """Without prefixes, with the family's names and the newer ones of LayerNorm's weights.

    Example:
        >>> _normalise("module.bert.embeddings.LayerNorm.gamma", get_family("bert"))
        'embeddings.LayerNorm.weight'
    """
    name = name.removeprefix("module.").removeprefix(f"{family.prefix}.")
    for other, ours in family.other_names.items():
        if name.startswith(other):
            name = ours + name.removeprefix(other)
    return re.sub(r"(?<=\.)(gamma|beta)$", lambda found: _OLD_NAMES[found[0]], name)
