"""Read folders in the Hugging Face format, with weights in one file or in shards."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import numpy as np

from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders import FAMILIES, find_family, list_families
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.tokenizers import TokenizerClass
from encoder_zoo.presets.files.file_bytes import check_is_float
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.files.pytorch_file import PyTorchFile
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.presets.formats.preset_files import CONFIG, PYTORCH, SAFETENSORS, WEIGHT_FORMATS

_READERS = {SAFETENSORS: SafetensorsFile, PYTORCH: PyTorchFile}
# {old name of a LayerNorm weight: current name}
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
# Prefixes in checkpoints of DataParallel, compiled models and Lightning.
_WRAPPERS = ("module.", "_orig_mod.", "model.")


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in an open file, or one of several slices of a fused tensor.

    Attributes:
        file: The file.
        name: String. The name of the tensor in the file.
        part: Integer. Index of the slice. Defaults to 0.
        parts: Integer. The number of slices. Defaults to 1, which means that the tensor is not
            fused.
    """

    file: SafetensorsFile | PyTorchFile
    name: str
    part: int = 0
    parts: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.file.shapes[self.name]
        return (shape[0] // self.parts, *shape[1:]) if self.parts > 1 else shape

    def read(self) -> np.ndarray:
        check_is_float(self.file.get_dtype(self.name), self.file.path, self.name)
        value = self.file.read(self.name)
        return np.split(value, self.parts)[self.part] if self.parts > 1 else value


class TensorFiles(Checkpoint):
    """Checkpoint whose tensors are in open files.

    Args:
        files: `FolderFiles`. The files of the checkpoint.
        tensors: Dict {tensor name: `StoredTensor`}.
    """

    def __init__(self, files: FolderFiles, tensors: dict[str, StoredTensor]):
        self.files, self._tensors = files, tensors
        self.shapes = {name: stored.shape for name, stored in tensors.items()}

    def read_tensor(self, name: str) -> np.ndarray:
        return self._tensors[name].read()


class HuggingFaceCheckpoint(TensorFiles):
    """Checkpoint in the Hugging Face format, with safetensors or PyTorch files.

    The weights are in a single file or in shards.

    Args:
        files: `FolderFiles`. The files of the checkpoint.
        settings: Dict. The `encoder_zoo.json` content.
        config_name: String. Configuration file name. Defaults to "config.json".
        config: Optional dict. Encoder configuration. If None, the whole content of the file will be
            used.
        wrapper: Optional string. The prefix of all encoder tensors. If None, the prefix will be
            detected with `_find_wrapper`.

    Raises:
        ValueError: If files are missing, damaged or invalid.
    """

    def __init__(
        self,
        files: FolderFiles,
        settings: dict,
        config_name: str = CONFIG,
        config: Mapping | None = None,
        wrapper: str | None = None,
    ):
        self.files = files
        self.settings = settings
        self.config_file = files.path / config_name
        self.config = dict(files.read_json(config_name) if config is None else config)
        weights = open_weights(files)
        self.weight_files = frozenset(pathlib.Path(file.path).name for file in weights)
        raw_names = [name for file in weights for name in file.shapes]
        if "model_type" not in self.config:
            self.config["model_type"] = _guess_family(raw_names, files)
        self.family = _find_family(self.config, self.config_file)
        self.config = self.family.read(self.config)
        tensors: dict[str, StoredTensor] = {}
        wrapper = _find_wrapper(raw_names, self.family) if wrapper is None else wrapper
        for file in weights:
            for raw_name in file.shapes:
                for name, stored in _locate_tensors(file, raw_name, self.family, wrapper):
                    if name in tensors:
                        raise ValueError(
                            f"{self.folder}: the tensor {name} occurs twice. Download the folder "
                            "again."
                        )
                    tensors[name] = stored
        # `save_model` of safetensors writes shared tensors only once, under any name.
        is_tied = self.config.get("tie_word_embeddings", True)
        for name, twin in self.family.tied.items():
            if name in tensors and (is_tied or name.endswith(".bias")):
                tensors.setdefault(twin, tensors[name])
        self._read_alias(tensors)
        super().__init__(files, tensors)

    def _read_alias(self, tensors: dict[str, StoredTensor]) -> None:
        """Replace the alias of a head in the configuration. See `Family.aliases`."""
        for name, alias in self.family.aliases.items():
            if self.config.get("architectures") == [self.family.class_prefix + name]:
                output = self.family.heads[alias.head].output
                if f"{output}.weight" in tensors:  # a separate head that was trained later
                    continue
                self.set_head(alias.head, alias.labels)
                for part in ("weight", "bias"):
                    if (old := f"{alias.output}.{part}") in tensors:
                        tensors[f"{output}.{part}"] = tensors[old]
                        if name not in self.family.heads:  # otherwise both names are kept
                            del tensors[old]


def open_weights(files: FolderFiles) -> list[SafetensorsFile | PyTorchFile]:
    """Open all files with weights, in the safetensors format if available.

    Raises:
        ValueError: If weights are missing, or if a file is damaged.
    """
    for weights in WEIGHT_FORMATS:
        read = _READERS[weights]
        if weights.file in files:
            return [read(files.open_file(weights.file))]
        if weights.index in files:
            return [read(file) for file in _open_shards(files, weights.index)]
    raise ValueError(describe_missing_weights(files.path, files.listed))


def _open_shards(files: FolderFiles, index: str) -> list[BinaryIO]:
    """Open all files listed in an index."""
    names = files.read_json(index).get("weight_map")
    field = f"{files.path / index}: weight_map"
    if not isinstance(names, dict) or not names:
        raise invalid(field, names, "an object that maps tensor names to file names")
    shards = {str(name): name for name in names.values()}
    return [files.open_file(shards[name], field) for name in sorted(shards)]


def describe_missing_weights(source: object, names: Iterable[str]) -> str:
    """Create the error message for missing weights, or weights in an unknown format."""
    others = sorted(n for n in names if n.endswith((".bin", ".pt", ".pth", ".h5", ".msgpack")))
    found = f", only {', '.join(others)}" if others else ""
    return (
        f"{source}: no {SAFETENSORS.file} and no {PYTORCH.file}{found}. Expected one of these two "
        "files, or shards with an index. To convert other files, open them with the original "
        "library, and save the model with save_pretrained(folder) of transformers."
    )


def _find_family(config: dict, path: pathlib.Path) -> Family:
    """Find the family by the field `model_type` in config.json."""
    name = config["model_type"]
    if (family := find_family(name)) is None:
        raise invalid(f"{path}: model_type", name, f"one of {', '.join(FAMILIES)}")
    return family


def _guess_family(raw_names: list[str], files: FolderFiles) -> str | None:
    """Infer the family for an old checkpoint without `model_type`."""
    named = [
        family
        for family in list_families()
        if any(name.startswith(f"{family.prefix}.") for name in raw_names)
    ]
    possible = named or [f for f in list_families() if _has_blocks(f, raw_names)]
    known = [f for f in possible if f.tokenizer.files[0] in files]
    if not known and "tokenizer.json" not in files:
        known = named[:1]
    found: dict[TokenizerClass, str] = {}
    for family in known or named:
        found.setdefault(family.tokenizer, family.name)
    if len(found) > 1:
        names = list(found.values())
        raise ValueError(
            f"{files.path / CONFIG}: model_type is missing. The weights could belong to "
            f'{" or ".join(names)}. Add the correct family, for example "model_type": "{names[0]}".'
        )
    return next(iter(found.values()), None)


def _has_blocks(family: Family, raw_names: list[str]) -> bool:
    """Return whether tensor names match the block names of the family."""
    stems = tuple(name.format(0) for name in family.tensors.values() if "{}" in name)
    return any(_normalize_name(name, family).startswith(stems) for name in raw_names)


def _find_wrapper(raw_names: list[str], family: Family) -> str:
    """Find the prefix of all tensor names in a model that was saved as a part of another module.

    For other models, return "".

    Example:
        >>> names = ["net.bert.embeddings.word_embeddings.weight", "net.classifier.weight"]
        >>> _find_wrapper(names, find_family("bert")), _find_wrapper(names[:1], find_family("bert"))
        ('net.', 'net.')
        >>> _find_wrapper([*names, "loss.weight"], find_family("bert"))
        ''
    """
    tokens = f"{family.tensors['embeddings.token_embedding']}.weight"
    found = [name for name in raw_names if f".{name}".endswith(f".{tokens}")]
    if len(found) != 1:
        return ""
    wrapper = found[0].removesuffix(tokens).removesuffix(f"{family.prefix}.")
    return wrapper if all(name.startswith(wrapper) for name in raw_names) else ""


def _normalize_name(name: str, family: Family) -> str:
    """Convert a tensor name to the current name without prefixes.

    Example:
        >>> _normalize_name("module.bert.embeddings.LayerNorm.gamma", find_family("bert"))
        'embeddings.LayerNorm.weight'
    """
    prefixes = {*_WRAPPERS, f"{family.prefix}."}
    while prefix := next((p for p in prefixes if name.startswith(p)), None):
        name = name.removeprefix(prefix)
    for other, ours in family.other_names.items():
        name = _replace_prefix(name, other, ours)
    return re.sub(r"(?<=\.)(gamma|beta)$", lambda found: _OLD_NAMES[found[0]], name)


def _replace_prefix(name: str, other: str, ours: str) -> str:
    """Replace the prefix of a tensor name. {} stands for a number, which is kept.

    Example:
        >>> _replace_prefix("layers.3.norm1.bias", "layers.{}.norm1.", "layers.{}.norm.")
        'layers.3.norm.bias'
    """
    if "{}" not in other:
        return ours + name.removeprefix(other) if name.startswith(other) else name
    pattern = re.escape(other).replace(re.escape("{}"), r"(\d+)")
    found = re.match(pattern, name)
    return ours.format(*found.groups()) + name[found.end() :] if found else name


def _locate_tensors(
    file: SafetensorsFile | PyTorchFile, raw_name: str, family: Family, wrapper: str
) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the name and location of a tensor, or of each part of a tensor in `Family.fused`."""
    name, shape = _normalize_name(raw_name.removeprefix(wrapper), family), file.shapes[raw_name]
    for fused, parts in family.fused.items():
        names = [_replace_prefix(name, fused, part) for part in parts]
        if names[0] != name and shape and shape[0] % len(parts) == 0:
            for i, part in enumerate(names):
                yield part, StoredTensor(file, raw_name, i, len(parts))
            return
    yield name, StoredTensor(file, raw_name)
