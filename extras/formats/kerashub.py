"""Read KerasHub presets without running any code from them.

The files contain names of Python modules and classes, which are never imported. Instead, class
names are looked up in a table.
"""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Mapping

import numpy as np

from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders import get_family
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.extras.formats.kerashub_names import KERAS_HUB
from encoder_zoo.presets.files.folder_files import FolderFiles, Subfolder
from encoder_zoo.presets.files.hdf5_file import Hdf5File
from encoder_zoo.presets.formats.checkpoint import Checkpoint, TokenizerPreset, number_block_names
from encoder_zoo.presets.formats.preset_files import CONFIG, MANIFEST
from encoder_zoo.presets.formats.stored_tokenizer import StoredTokenizer, read_content

_OTHERS = ("metadata.json", "preprocessor.json")  # files that are not read
WEIGHTS, TASK_WEIGHTS, TASK = "model.weights.h5", "task.weights.h5", "task.json"
_TOKENIZER, _ASSETS = "tokenizer.json", "assets/tokenizer"
# Settings of KerasHub tokenizers for which this package only supports one value.
_TOKENIZER_BUILT_IN = {
    "split": True,
    "split_on_cjk": True,
    "suffix_indicator": "##",
    "special_tokens_in_strings": False,
    "add_bos": False,
    "add_eos": False,
}
# {activation of a classifier's outputs: problem_type}
_PROBLEMS = {"linear": None, "softmax": None, "sigmoid": "multi_label_classification"}
_POSITIONS, _SEGMENTS = "embeddings.position_embedding", "embeddings.segment_embedding"


def list_files() -> set[str]:
    """List the names of all files that a KerasHub preset can contain."""
    weights = {TASK, WEIGHTS, TASK_WEIGHTS}
    return {CONFIG, MANIFEST, *list_tokenizer_file_names(), *weights, *_OTHERS}


def list_tokenizer_file_names() -> set[str]:
    """List the names of all tokenizer files that a KerasHub preset can contain."""
    named = {name for names in KERAS_HUB.values() for name in names.tokenizer_file_names.values()}
    return {_TOKENIZER, *(f"{_ASSETS}/{name}" for name in named)}


def open_checkpoint(files: FolderFiles, settings: dict) -> Checkpoint | None:
    """Open the checkpoint of a KerasHub preset. Return None for other folders."""
    if CONFIG in files and "class_name" in files.read_json(CONFIG):
        return KerasHubCheckpoint(files, settings)
    return None


def open_tokenizer(files: FolderFiles, settings: dict) -> TokenizerPreset | None:
    """Open the tokenizer of a KerasHub preset. Return None for other folders."""
    family = find_tokenizer_family(files, files.read_json(CONFIG) if CONFIG in files else {})
    if family is None:
        return None
    stored = read_stored_tokenizer(files, family)
    return TokenizerPreset(files, {}, files.path / CONFIG, family, settings, stored)


class KerasHubCheckpoint(Checkpoint):
    """The checkpoint of a KerasHub preset, for example from Kaggle.

    The model computes the same outputs as in KerasHub. For this reason, it uses the values that
    KerasHub hard-codes, such as tanh GELU in BERT blocks and exact GELU in the masked-LM head.
    Token ids can differ, because KerasHub case-folds texts. For example, "ß" becomes "ss".

    Args:
        files: `FolderFiles`. The files of the preset.
        settings: Dict. The content of `encoder_zoo.json`, or {} if the file is missing.

    Raises:
        ValueError: If a file is missing or damaged, or contains invalid values.
    """

    def __init__(self, files: FolderFiles, settings: dict):
        self.files = files
        self.settings = settings
        self.config_file = files.path / CONFIG
        description = files.read_json(CONFIG)
        self.family = _find_family(files, description.get("class_name"))
        self._names = KERAS_HUB[self.family.name]
        keys = self.family.config_keys
        self.config_names = {
            theirs: self._names.arguments.get(ours, ours) for ours, theirs in keys.items()
        }
        self.config = {
            **_convert_config(description, self.family, self.config_file),
            **{keys[name]: v for name, v in self._names.built_in.items() if name in keys},
            "model_type": self.family.name,
        }
        self._tensors: dict[str, tuple[Hdf5File, str]] = {}
        self._kernels: set[str] = set()
        self.weight_files = frozenset({WEIGHTS, TASK_WEIGHTS})
        self.shapes = {}
        file = Hdf5File(files.open_file(WEIGHTS))
        kinds = self._names.blocks.items()
        blocks = {ours: range(file.count(theirs)) for ours, theirs in kinds}
        groups = number_block_names(self._names.groups, blocks)
        names = number_block_names(self.family.tensors, blocks)
        if file.count("dense") < 2:  # the only dense layer is the pooler
            groups.pop("embeddings.projection", None)
        self._add(file, groups, {**names, "pooler_dense": self.family.pooler})
        if TASK in files and self._names.heads:  # other tasks are not supported
            self._read_head()
        self._positions = {f"{names[path]}.weight" for path in groups if path.endswith(_POSITIONS)}
        self._add_positions()
        if _SEGMENTS in names and _SEGMENTS not in groups:
            hidden = self.shapes[f"{names[_POSITIONS]}.weight"][1]
            self.shapes[f"{names[_SEGMENTS]}.weight"] = (self.config[keys["num_segments"]], hidden)

    def read_tensor(self, name: str) -> np.ndarray:
        shape = self.shapes[name]
        if name not in self._tensors:
            return np.zeros(shape, "float32")
        file, path = self._tensors[name]
        value = file.read(path)
        if name in self._positions:
            return np.pad(value, ((shape[0] - len(value), 0), (0, 0)))
        if name in self._kernels:
            return value.reshape(shape[::-1]).T
        return value.reshape(shape)

    def read_tokenizer(self) -> StoredTokenizer | None:
        return read_stored_tokenizer(self.files, self.family)

    def _read_head(self) -> None:
        path = self.folder / TASK
        heads = {record.task: head for head, record in self._names.heads.items()}
        description = self.files.read_json(TASK)
        head = _look_up(heads, description.get("class_name"), path)
        record, names = self._names.heads[head], self.family.heads[head].tensors
        self._add(Hdf5File(self.files.open_file(TASK_WEIGHTS)), record.groups, names)
        output = self.family.heads[head].output
        rows = self.shapes.get(f"{output}.weight", (0,))[0]  # tied outputs have no weight
        stored = _read_head(self.settings, self.folder / MANIFEST)
        self.set_head(head, stored.get("labels"), rows)
        self.head_arguments = {head: record.built_in}
        settings = _read_settings(description, path)
        if (key := self.family.heads[head].dropout) and "dropout" in settings:
            self.config[key] = settings["dropout"]
        if "activation" in settings:
            problem = _look_up(_PROBLEMS, settings["activation"], path, "activation")
            self.config["problem_type"] = stored.get("problem_type", problem)

    def _add(self, file: Hdf5File, groups: Mapping[str, str], names: Mapping[str, str]) -> None:
        """Map Hugging Face tensor names to arrays in the file, and store the shapes."""
        for path, group in groups.items():
            parts = [""] if path == "head.bias" else [".weight", ".bias"]
            for block in self._names.blocks.values():
                group = group.replace(f"{block}_0/", f"{block}/")  # the first block has no number
            for i, (part, stored) in enumerate(zip(parts, file.list_shapes(group), strict=False)):
                name = f"{names[path]}{part}"
                self._tensors[name] = (file, f"{group}/vars/{i}")
                self.shapes[name] = stored
                if path.endswith(("dense", "projection")) and part == ".weight":
                    self._kernels.add(name)
                    self.shapes[name] = _find_kernel_shape(stored, group)
                elif not path.endswith("embedding"):
                    self.shapes[name] = (math.prod(stored),)

    def _add_positions(self) -> None:
        """Add rows for unused first positions, which KerasHub does not store."""
        added = self.family.unused_positions
        if self.family.positions_skip_padding:
            added = self.config["pad_token_id"] + 1
            key = self.family.config_keys["max_sequence_length"]
            if isinstance(self.config.get(key), int):
                self.config[key] += added
        for name in self._positions:
            rows, hidden = self.shapes[name]
            self.shapes[name] = (rows + added, hidden)


def find_tokenizer_family(files: FolderFiles, config: Mapping) -> Family | None:
    """Find the family for the tokenizer in a KerasHub preset. Return None for other folders.

    Args:
        files: `FolderFiles`. The files of the preset. Only the tokenizer files are required.
        config: Dict. The content of config.json, or {} if the file is missing.
    """
    if "class_name" in config:
        return _find_family(files, config["class_name"])
    if config or _TOKENIZER not in files:
        return None
    if (name := files.read_json(_TOKENIZER).get("class_name")) is None:
        return None
    named = {names.tokenizer: family for family, names in KERAS_HUB.items()}
    return get_family(_look_up(named, name, files.path / _TOKENIZER))


def _find_family(files: FolderFiles, name: object) -> Family:
    """Find the family by the class name of the backbone in config.json."""
    families = {names.backbone: family for family, names in KERAS_HUB.items()}
    return get_family(_look_up(families, name, files.path / CONFIG))


def read_stored_tokenizer(files: FolderFiles, family: Family) -> StoredTokenizer | None:
    """Read the tokenizer in a KerasHub preset. Return None for presets without a tokenizer.

    Raises:
        ValueError: If `family` requires another tokenizer class.
    """
    path, names = files.path / _TOKENIZER, KERAS_HUB[family.name]
    if _TOKENIZER not in files:
        return None
    description = files.read_json(_TOKENIZER)
    if description.get("class_name") != names.tokenizer:
        raise invalid(
            f"{path}: class_name",
            description.get("class_name"),
            f"{names.tokenizer} for a {family.name} checkpoint",
        )
    settings = _read_settings(description, path)
    _check_tokenizer(settings, names.tokenizer_settings, path)
    contents = {
        "tokenizer_config.json": {
            name: settings.get(theirs, default)
            for name, (theirs, default) in names.tokenizer_settings.items()
        }
    }
    for theirs, ours in names.tokenizer_file_names.items():
        content = read_content(Subfolder(files, _ASSETS), ours)
        # KerasHub opens text files with universal newlines.
        contents[theirs] = content.replace("\r", "\n") if isinstance(content, str) else content
    return StoredTokenizer(family.tokenizer, TokenizerFiles(files.path, contents))


def _read_head(settings: Mapping, path: pathlib.Path) -> dict:
    """Get the head settings from the manifest."""
    head = settings.get("head", {})
    labels = head.get("labels") if isinstance(head, dict) else 0
    names = labels is None or (
        isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    )
    if not names or not isinstance(head.get("problem_type"), str | None):
        expected = "an object with labels (null or strings) and problem_type (null or a string)"
        raise invalid(f"{path}: head", head, expected)
    return head


def _look_up(table: Mapping, name: object, path: pathlib.Path, field: str = "class_name"):
    if not isinstance(name, str) or name not in table:
        raise invalid(f"{path}: {field}", name, f"one of {', '.join(table)}")
    return table[name]


def _read_settings(description: Mapping, path: pathlib.Path) -> dict:
    config = description.get("config")
    if not isinstance(config, dict):
        raise invalid(f"{path}: config", config, "an object")
    return config


def _convert_config(description: Mapping, family: Family, path: pathlib.Path) -> dict:
    """Convert a KerasHub configuration to config.json in the Hugging Face format."""
    config = _read_settings(description, path)
    dtype = config.get("dtype")
    if isinstance(dtype, dict) and dtype.get("class_name", "DTypePolicy") != "DTypePolicy":
        raise ValueError(
            f"{path}: dtype is {quote(dtype['class_name'])}, but quantized weights are not "
            "supported. Save the preset before quantizing the model."
        )
    names, keys = KERAS_HUB[family.name].arguments, family.config_keys
    known = {theirs: names.get(ours, ours) for ours, theirs in keys.items()}
    known = {theirs: config[name] for theirs, name in known.items() if name in config}
    if "dropout" in config:  # KerasHub uses the same rate for attention
        known[keys["attention_dropout"]] = config["dropout"]
    return known


def _check_tokenizer(settings: Mapping, known: Mapping, path: pathlib.Path) -> None:
    """Check that all settings that affect token ids are supported."""
    for name, default in known.values():
        value = settings.get(name, default)
        if type(value) is not type(default):
            kind = type(default).__name__
            raise invalid(f"{path}: config.{name}", value, f"a value of type {kind}")
    for name, only in _TOKENIZER_BUILT_IN.items():
        value = settings.get(name)
        if value is not None and (type(value) is not type(only) or value != only):
            raise invalid(f"{path}: config.{name}", value, f"{only!r}")
    for name in ("special_tokens", "unsplittable_tokens"):
        value = settings.get(name)
        if not (value is None or (isinstance(value, list) and all(map(_is_special, value)))):
            raise invalid(
                f"{path}: config.{name}",
                value,
                "null, or a list of special tokens such as [CLS] or <s>",
            )


def _is_special(token: object) -> bool:
    return isinstance(token, str) and re.fullmatch(r"\[\w+\]|</?\w+>", token) is not None


def _find_kernel_shape(stored: tuple[int, ...], group: str) -> tuple[int, int]:
    """Return the kernel shape (out, in) after merging the attention head axes."""
    if len(stored) not in (2, 3):
        raise invalid(f"{group}/vars/0.shape", stored, "two or three axes")
    inputs = len(stored) - 1 if group.endswith("output_dense") else 1
    return (math.prod(stored[inputs:]), math.prod(stored[:inputs]))
