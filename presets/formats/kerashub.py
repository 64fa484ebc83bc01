"""Reading a KerasHub preset: its JSON as plain data, its weights as arrays.

A preset's files name Python modules and classes. Here a class name is looked up in the records
of the families and a module is never imported.
"""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Mapping

import numpy as np

from encoder_zoo.common.wording import shown
from encoder_zoo.encoders import all_families
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.files.hdf5_file import Hdf5File
from encoder_zoo.presets.formats.checkpoint import Checkpoint, numbered
from encoder_zoo.presets.formats.preset_files import CONFIG, MANIFEST
from encoder_zoo.presets.formats.stored_tokenizer import StoredTokenizer, read_content

_OTHERS = ("metadata.json", "preprocessor.json")  # written, not read here
WEIGHTS, TASK_WEIGHTS, TASK = "model.weights.h5", "task.weights.h5", "task.json"
_TOKENIZER, _ASSETS = "tokenizer.json", "assets/tokenizer"
# Settings of KerasHub's tokenizers that this package does not implement.
_TOKENIZER_BUILT_IN = {
    "split": True,
    "split_on_cjk": True,
    "suffix_indicator": "##",
    "special_tokens_in_strings": False,
    "add_bos": False,
    "add_eos": False,
}
# Activation of a classifier's outputs there, where this package has logits: what it says of them.
_PROBLEMS = {"linear": None, "softmax": None, "sigmoid": "multi_label_classification"}
_POSITIONS, _SEGMENTS = "embeddings.position_embedding", "embeddings.segment_embedding"


def files() -> set[str]:
    """Return the names of a KerasHub preset's files."""
    weights = {TASK, WEIGHTS, TASK_WEIGHTS}
    return {CONFIG, MANIFEST, *tokenizer_file_names(), *weights, *_OTHERS}


def tokenizer_file_names() -> set[str]:
    """Return the names of the files of a KerasHub preset's tokenizer."""
    named = [f.keras_hub.tokenizer_file_names.values() for f in all_families() if f.keras_hub]
    return {_TOKENIZER, *(f"{_ASSETS}/{name}" for names in named for name in names)}


class KerasHubCheckpoint(Checkpoint):
    """A folder that KerasHub's `save_to_preset` wrote, or that its Kaggle presets are.

    What KerasHub's classes have built in, such as the tanh GELU of BERT's blocks and the exact one
    of its masked-LM head, is kept, so that the numbers are KerasHub's. A text's ids may differ
    where KerasHub case-folds it: "ß" is "ss" there, which the vocabularies were not made with.

    Args:
        files: of the folder: `config.json` with a `class_name`, and `model.weights.h5`.
        settings: contents of its `encoder_zoo.json`, if it was written here.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """

    def __init__(self, files: FolderFiles, settings: dict):
        self.files = files
        self.settings = settings
        self.config_file = files.path / CONFIG
        description = files.read_json(CONFIG)
        families = {f.keras_hub.backbone: f for f in all_families() if f.keras_hub}
        self.family = _look_up(families, description.get("class_name"), self.config_file)
        self._names = self.family.keras_hub
        keys = self.family.config_keys
        self.config_names = {
            theirs: self._names.arguments.get(ours, ours) for ours, theirs in keys.items()
        }
        self.config = {
            **_config(description, self.family, self.config_file),
            **{keys[name]: v for name, v in self._names.built_in.items() if name in keys},
            "model_type": self.family.name,
        }
        self._tensors: dict[str, tuple[Hdf5File, str]] = {}
        self._kernels: set[str] = set()
        self.shapes = {}
        file = Hdf5File(files.file(WEIGHTS))
        blocks = range(file.count(self._names.block))
        groups = numbered(self._names.groups, blocks)
        names = numbered(self.family.tensors, blocks)
        if file.count("dense") < 2:  # the only one is the pooler
            groups.pop("embeddings.projection", None)
        self._add(file, groups, {**names, "pooler_dense": self.family.pooler})
        if TASK in files:
            self._read_head()
        if self.family.positions_skip_padding:
            self._skip_padding(names[_POSITIONS])
        if _SEGMENTS in names and _SEGMENTS not in groups:
            hidden = self.shapes[f"{names[_POSITIONS]}.weight"][1]
            self.shapes[f"{names[_SEGMENTS]}.weight"] = (self.config[keys["num_segments"]], hidden)

    def tensor(self, name: str) -> np.ndarray:
        shape = self.shapes[name]
        if name not in self._tensors:
            return np.zeros(shape, "float32")
        file, path = self._tensors[name]
        value = file.read(path)
        if name == f"{self.family.tensors.get(_POSITIONS)}.weight":
            return np.pad(value, ((shape[0] - len(value), 0), (0, 0)))
        if name in self._kernels:
            return value.reshape(shape[::-1]).T
        return value.reshape(shape)

    def stored_tokenizer(self) -> StoredTokenizer | None:
        return read_stored_tokenizer(self.files, self.family)

    def _read_head(self) -> None:
        path = self.folder / TASK
        heads = {record.task: head for head, record in self._names.heads.items()}
        description = self.files.read_json(TASK)
        head = _look_up(heads, description.get("class_name"), path)
        record, names = self._names.heads[head], self.family.heads[head].tensors
        self._add(Hdf5File(self.files.file(TASK_WEIGHTS)), record.groups, names)
        output = self.family.heads[head].output
        rows = self.shapes.get(f"{output}.weight", (0,))[0]  # none where it is tied
        stored = _stored_head(self.settings, self.folder / MANIFEST)
        self.set_head(head, stored.get("labels"), rows)
        self.head_arguments = {head: record.built_in}
        settings = _settings(description, path)
        if (key := self.family.heads[head].dropout) and "dropout" in settings:
            self.config[key] = settings["dropout"]
        if "activation" in settings:
            problem = _look_up(_PROBLEMS, settings["activation"], path, "activation")
            self.config["problem_type"] = stored.get("problem_type", problem)

    def _add(self, file: Hdf5File, groups: Mapping[str, str], names: Mapping[str, str]) -> None:
        """Notes where the arrays of some layers lie, and their shapes in the other format."""
        for path, group in groups.items():
            parts = [""] if path == "head.bias" else [".weight", ".bias"]
            block = self._names.block
            group = group.replace(f"{block}_0/", f"{block}/")  # the first has no number
            for i, (part, stored) in enumerate(zip(parts, file.shapes(group), strict=False)):
                name = f"{names[path]}{part}"
                self._tensors[name] = (file, f"{group}/vars/{i}")
                self.shapes[name] = stored
                if path.endswith(("dense", "projection")) and part == ".weight":
                    self._kernels.add(name)
                    self.shapes[name] = _kernel_shape(stored, group)
                elif not path.endswith("embedding"):
                    self.shapes[name] = (math.prod(stored),)

    def _skip_padding(self, positions: str) -> None:
        """KerasHub counts the positions of such families from 0."""
        skipped = self.config["pad_token_id"] + 1
        rows, hidden = self.shapes[f"{positions}.weight"]
        self.shapes[f"{positions}.weight"] = (rows + skipped, hidden)
        key = self.family.config_keys["max_sequence_length"]
        if isinstance(self.config.get(key), int):
            self.config[key] += skipped


def tokenizer_family(files: FolderFiles, config: Mapping) -> Family | None:
    """Return the family of a preset's tokenizer, None if the preset is none of KerasHub.

    Args:
        files: of the preset, which may hold a tokenizer alone.
        config: contents of its config.json, {} where there is none.
    """
    families = [f for f in all_families() if f.keras_hub]
    if "class_name" in config:
        named = {f.keras_hub.backbone: f for f in families}
        return _look_up(named, config["class_name"], files.path / CONFIG)
    name = None
    if _TOKENIZER in files and not config:
        name = files.read_json(_TOKENIZER).get("class_name")
    named = {f.keras_hub.tokenizer: f for f in families}
    return None if name is None else _look_up(named, name, files.path / _TOKENIZER)


def read_stored_tokenizer(files: FolderFiles, family: Family) -> StoredTokenizer | None:
    """Reads the tokenizer in a preset of KerasHub, None if there is none.

    Raises:
        ValueError: "FILE: class_name is 'RobertaTokenizer'. Expected BertTokenizer ..."
    """
    path, names = files.path / _TOKENIZER, family.keras_hub
    if _TOKENIZER not in files:
        return None
    description = files.read_json(_TOKENIZER)
    if description.get("class_name") != names.tokenizer:
        raise ValueError(
            f"{path}: class_name is {shown(description.get('class_name'))}. "
            f"Expected {names.tokenizer} for a {family.name} checkpoint."
        )
    settings = _settings(description, path)
    _check_tokenizer(settings, names.tokenizer_settings, path)
    contents = {
        "tokenizer_config.json": {
            name: settings.get(theirs, usual)
            for name, (theirs, usual) in names.tokenizer_settings.items()
        }
    }
    for theirs, ours in names.tokenizer_file_names.items():
        contents[theirs] = read_content(files, ours, inside=_ASSETS)
    return StoredTokenizer(family.tokenizer, TokenizerFiles(files.path, contents))


def _stored_head(settings: Mapping, path: pathlib.Path) -> dict:
    """Return the head's settings in the manifest."""
    head = settings.get("head", {})
    labels = head.get("labels") if isinstance(head, dict) else 0
    names = labels is None or (
        isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    )
    if not names or not isinstance(head.get("problem_type"), str | None):
        raise ValueError(
            f"{path}: head is {shown(head)}. Expected an object with the labels' names."
        )
    return head


def _look_up(table: Mapping, name: object, path: pathlib.Path, field: str = "class_name"):
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"{path}: {field} is {shown(name)}. Expected one of {', '.join(table)}.")
    return table[name]


def _settings(description: Mapping, path: pathlib.Path) -> dict:
    config = description.get("config")
    if not isinstance(config, dict):
        raise ValueError(f"{path}: config is {shown(config)}. Expected an object.")
    return config


def _config(description: Mapping, family: Family, path: pathlib.Path) -> dict:
    """KerasHub's configuration in config.json's words."""
    config = _settings(description, path)
    dtype = config.get("dtype")
    if isinstance(dtype, dict) and dtype.get("class_name", "DTypePolicy") != "DTypePolicy":
        raise ValueError(
            f"{path}: dtype is a {dtype['class_name']}. Expected a DTypePolicy: quantized weights "
            "are not read. Save the preset before quantizing."
        )
    words, keys = family.keras_hub.arguments, family.config_keys
    known = {theirs: words.get(ours, ours) for ours, theirs in keys.items()}
    known = {theirs: config[word] for theirs, word in known.items() if word in config}
    if "dropout" in config:  # one for both
        known[keys["attention_dropout"]] = config["dropout"]
    return known


def _check_tokenizer(settings: Mapping, known: Mapping, path: pathlib.Path) -> None:
    """Refuses what would give other ids and is not implemented here.

    Raises:
        ValueError: "...: suffix_indicator is '@@'. Expected '##'."
    """
    for name, usual in known.values():
        value = settings.get(name, usual)
        if type(value) is not type(usual):
            words = type(usual).__name__
            raise ValueError(f"{path}: config.{name} is {shown(value)}. Expected {words}.")
    for name, only in _TOKENIZER_BUILT_IN.items():
        value = settings.get(name)
        if value is not None and (type(value) is not type(only) or value != only):
            raise ValueError(f"{path}: config.{name} is {shown(value)}. Expected {only!r}.")
    for name in ("special_tokens", "unsplittable_tokens"):
        value = settings.get(name)
        if not (value is None or (isinstance(value, list) and all(map(_is_special, value)))):
            raise ValueError(
                f"{path}: config.{name} is {shown(value)}. Expected null, or a list of special "
                "tokens such as [CLS] or <s>."
            )


def _is_special(token: object) -> bool:
    return isinstance(token, str) and re.fullmatch(r"\[\w+\]|</?\w+>", token) is not None


def _kernel_shape(stored: tuple[int, ...], group: str) -> tuple[int, int]:
    """Return a kernel's shape as (out, in), with its heads merged.

    Raises:
        ValueError: "layers/dense/vars/0 has the shape (). Expected two or three sizes."
    """
    if len(stored) not in (2, 3):
        raise ValueError(f"{group}/vars/0 has the shape {stored}. Expected two or three sizes.")
    merged = (math.prod(stored[:-1]), stored[-1])
    if len(stored) == 3 and not group.endswith("output_dense"):
        merged = (stored[0], math.prod(stored[1:]))
    return merged[::-1]
