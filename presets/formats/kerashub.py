"""Reading a KerasHub preset: its JSON as plain data, its weights as arrays.

A preset's files name Python modules and classes. Here a class name is looked up in the records
of the families and a module is never imported.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping

import numpy as np

from encoder_zoo.encoders import all_families
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.tokenizers.files import TokenizerFiles
from encoder_zoo.presets.files.hdf5_file import Hdf5File
from encoder_zoo.presets.files.plain_files import preset_file, read_json, read_text
from encoder_zoo.presets.formats.checkpoint import Checkpoint, numbered
from encoder_zoo.presets.preset_files import CONFIG

WEIGHTS, TASK_WEIGHTS, TASK = "model.weights.h5", "task.weights.h5", "task.json"
_TOKENIZER, _ASSETS = "tokenizer.json", "assets/tokenizer"
_BLOCK = "transformer_encoder"
_POSITIONS, _SEGMENTS = "embeddings.position_embedding", "embeddings.segment_embedding"


def files() -> set[str]:
    """The names of a KerasHub preset's files."""
    named = [f.keras_hub.tokenizer_files.values() for f in all_families() if f.keras_hub]
    vocabularies = {f"{_ASSETS}/{name}" for names in named for name in names}
    return {CONFIG, _TOKENIZER, TASK, WEIGHTS, TASK_WEIGHTS, *vocabularies}


class KerasHubCheckpoint(Checkpoint):
    """A folder that KerasHub's `save_to_preset` wrote, or that its Kaggle presets are.

    What KerasHub's class has built in, such as BERT's tanh GELU, is kept, so that the numbers are
    KerasHub's. Its masked-LM head has the exact GELU; here a head has its backbone's.

    Args:
        folder: holds `config.json` with a `class_name`, and `model.weights.h5`.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.settings = {}
        self.config_file = folder / CONFIG
        description = read_json(self.config_file)
        families = {f.keras_hub.backbone: f for f in all_families() if f.keras_hub}
        self.family = _look_up(families, description["class_name"], self.config_file)
        self._names = self.family.keras_hub
        keys = self.family.config_keys
        self.config_names = {theirs: ours for ours, theirs in keys.items()}
        self.config = {
            **_config(description, self.family, self.config_file),
            **self._names.built_in,
            "model_type": self.family.name,
        }
        self._places: dict[str, tuple[Hdf5File, str]] = {}
        self._kernels: set[str] = set()
        self.shapes = {}
        file = Hdf5File(preset_file(folder, WEIGHTS))
        blocks = range(file.count(_BLOCK))
        groups = numbered(self._names.groups, blocks)
        names = numbered(self.family.tensors, blocks)
        self._add(file, groups, {**names, "pooler_dense": self.family.pooler})
        if (folder / TASK).exists():
            self._read_head(folder / TASK)
        if self.family.positions_skip_padding:
            self._skip_padding(names[_POSITIONS])
        if _SEGMENTS not in groups:
            hidden = self.shapes[f"{names[_POSITIONS]}.weight"][1]
            self.shapes[f"{names[_SEGMENTS]}.weight"] = (self.config[keys["num_segments"]], hidden)

    def tensor(self, name: str) -> np.ndarray:
        shape = self.shapes[name]
        if name not in self._places:
            return np.zeros(shape, "float32")
        file, place = self._places[name]
        value = file.read(place)
        if name == f"{self.family.tensors[_POSITIONS]}.weight":
            return np.pad(value, ((shape[0] - len(value), 0), (0, 0)))
        if name in self._kernels:
            return value.reshape(shape[::-1]).T
        return value.reshape(shape)

    def tokenizer_files(self) -> TokenizerFiles:
        path = self.folder / _TOKENIZER
        description = read_json(path)
        expected = self._names.tokenizer
        if description.get("class_name") != expected:
            raise ValueError(
                f"{path}: class_name is {description.get('class_name')!r}. "
                f"Expected {expected} for a {self.family.name} checkpoint."
            )
        settings = description.get("config") or {}
        contents = {
            "tokenizer_config.json": {
                theirs: bool(settings.get(ours, False))
                for theirs, ours in self._names.tokenizer_settings.items()
            }
        }
        for theirs, ours in self._names.tokenizer_files.items():
            file = preset_file(self.folder, ours, inside=_ASSETS)
            contents[theirs] = read_json(file) if file.suffix == ".json" else read_text(file)
        return TokenizerFiles(self.folder, contents)

    def _read_head(self, path: pathlib.Path) -> None:
        heads = {cls: (head, groups) for head, (cls, groups) in self._names.heads.items()}
        head, groups = _look_up(heads, read_json(path).get("class_name"), path)
        names = self.family.heads[head].tensors
        self._add(Hdf5File(preset_file(self.folder, TASK_WEIGHTS)), groups, names)
        output = self.family.heads[head].output
        rows = self.shapes.get(f"{output}.weight", (0,))[0]  # none where it is tied
        self.set_head(head, [f"LABEL_{i}" for i in range(rows)])

    def _add(self, file: Hdf5File, groups: Mapping[str, str], names: Mapping[str, str]) -> None:
        """Notes where the arrays of some layers lie, and their shapes in the other format."""
        for path, group in groups.items():
            parts = [""] if path == "head.bias" else [".weight", ".bias"]
            group = group.replace(f"{_BLOCK}_0/", f"{_BLOCK}/")  # the first has no number
            for i, (part, stored) in enumerate(zip(parts, file.shapes(group), strict=False)):
                name = f"{names[path]}{part}"
                self._places[name] = (file, f"{group}/vars/{i}")
                self.shapes[name] = stored
                if path.endswith("dense") and part == ".weight":
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


def _look_up(table: Mapping, name: object, path: pathlib.Path):
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"{path}: class_name is {name!r}. Expected one of {', '.join(table)}.")
    return table[name]


def _config(description: Mapping, family: Family, path: pathlib.Path) -> dict:
    """KerasHub's configuration in config.json's words."""
    config = description.get("config")
    if not isinstance(config, dict):
        raise ValueError(f"{path}: config is {config!r}. Expected an object.")
    keys = family.config_keys
    known = {theirs: config[ours] for ours, theirs in keys.items() if ours in config}
    if "dropout" in config:
        known[keys["attention_dropout"]] = config["dropout"]
    return known


def _kernel_shape(stored: tuple[int, ...], group: str) -> tuple[int, int]:
    """A kernel's shape as (out, in), with its heads merged."""
    merged = (math.prod(stored[:-1]), stored[-1])
    if len(stored) == 3 and not group.endswith("output_dense"):
        merged = (stored[0], math.prod(stored[1:]))
    return merged[::-1]
