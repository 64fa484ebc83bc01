"""Checkpoints with tensor names of the Hugging Face format, for loading and saving."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import keras
from encoder_zoo.encoders.arrays import gather_array
from encoder_zoo.encoders.family import Family
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.formats.stored_tokenizer import StoredTokenizer, read_stored_tokenizer

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone

# {weight name in Keras: name in the checkpoint}
_WEIGHTS = {
    "kernel": "weight",
    "embeddings": "weight",
    "gamma": "weight",
    "beta": "bias",
    "bias": "bias",
}
MAX_CLASSES = 2**20
# Trained weights are far below this limit. Products of larger values overflow.
_LARGEST = 1e4
# Buffers without information.
_REDUNDANT = re.compile(r"(^|\.)(position_ids|token_type_ids)$")


class Checkpoint(ABC):
    """Base class of checkpoints. Every format is converted to Hugging Face tensor names.

    Use a checkpoint as a context manager. At the end, it closes all files, and raises an error if a
    file has changed.

    Attributes:
        files: `FolderFiles` for the folder.
        family: `Family` of the model.
        config_file: Path of the file with the configuration.
        config: Dict. The content of `config.json`, or the configuration converted to this format.
        config_names: Dict {field in `config`: name in the file}, only for fields with other names.
        weight_files: Frozen set of strings. Names of the files with tensors.
        shapes: Dict {tensor name without family prefix: shape}. The shape of dense kernels is (out,
            in).
        settings: Dict. Content from `encoder_zoo.json`, or {} if this file is missing.
        listed_settings: Dict. Settings of the entry in `list_presets()`. See
            `registry.get_listed_settings`.
        is_of_one_task: Boolean. Whether the files belong to a single task. In this case, the head
            must be complete.
        head_arguments: Dict {head in `Family.heads`: dict with task arguments that have no fields
            in config.json}.
    """

    files: FolderFiles
    family: Family
    config_file: pathlib.Path
    config: dict
    config_names: Mapping[str, str] = MappingProxyType({})
    weight_files: frozenset[str] = frozenset()
    shapes: dict[str, tuple[int, ...]]
    settings: dict
    listed_settings: Mapping[str, object] = MappingProxyType({})
    is_of_one_task = False
    head_arguments: Mapping[str, Mapping[str, object]] = MappingProxyType({})

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        try:
            if kind is None:
                self.files.check_unchanged()
        finally:
            self.files.close()

    @property
    def folder(self) -> pathlib.Path:
        """Path of the folder, for error messages."""
        return self.files.path

    @abstractmethod
    def tensor(self, name: str) -> np.ndarray:
        """Read a tensor by name."""

    def stored_tokenizer(self) -> StoredTokenizer | None:
        """Return the tokenizer in the folder, or None when the format allows this."""
        return read_stored_tokenizer(self.files, self.config, self.family.tokenizer)

    def set_head(self, name: str, labels: Sequence[str] | None, classes: int = 0) -> None:
        """Set the fields of `config` that describe a head and its labels.

        Args:
            name: String. Head name in `Family.heads`.
            labels: Optional list of strings. Labels of the outputs.
            classes: Integer. Number of outputs, if there are no labels. Defaults to 0.

        Raises:
            ValueError: If `classes` is too large.
        """
        if classes > MAX_CLASSES:
            raise ValueError(
                f"{self.folder}: the head has {classes} classes. Expected at most {MAX_CLASSES} "
                "classes."
            )
        self.config["architectures"] = [self.family.class_name(name)]
        labels = labels or make_default_labels(classes)
        if labels:
            self.config["id2label"] = {str(i): label for i, label in enumerate(labels)}
            self.config.pop("label2id", None)  # the inverse of the previous labels


@dataclasses.dataclass(frozen=True)
class TokenizerPreset:
    """A tokenizer in a preset.

    Attributes:
        files: Open `FolderFiles` for the preset.
        config: Dict. Content from the configuration file, or {} if this file is missing.
        config_file: Path of the configuration.
        family: `Family` for this model, or None if unknown.
        settings: Dict. Content from `encoder_zoo.json`.
        stored: Optional `StoredTokenizer`. The tokenizer.
        listed_settings: Dict. See `Checkpoint`. Defaults to {}.
    """

    files: FolderFiles
    config: dict
    config_file: pathlib.Path
    family: Family | None
    settings: dict
    stored: StoredTokenizer | None
    listed_settings: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def folder(self) -> pathlib.Path:
        """Path of the folder, for error messages."""
        return self.files.path

    def stored_tokenizer(self) -> StoredTokenizer | None:
        """Return the tokenizer, as in `Checkpoint`."""
        return self.stored


def make_default_labels(num_classes: int) -> list[str]:
    """Return LABEL_0, LABEL_1, ..., the names of unnamed classes in transformers."""
    return [f"LABEL_{i}" for i in range(num_classes)]


class ChangedCheckpoint(Checkpoint):
    """A checkpoint with other values for some tensors.

    Args:
        checkpoint: The original `Checkpoint`.
        shapes: Dict from the names of changed tensors to their new shapes.
        change: Function of a name and the original value that returns the new value.
        config: Optional dict. Changed fields of config.json.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        shapes: Mapping[str, tuple[int, ...]],
        change: Callable[[str, np.ndarray], np.ndarray],
        config: Mapping = MappingProxyType({}),
    ):
        vars(self).update(vars(checkpoint))
        self._checkpoint, self._changed, self._change = checkpoint, shapes.keys(), change
        self.config = {**checkpoint.config, **config}
        self.shapes = {**checkpoint.shapes, **shapes}

    def tensor(self, name: str) -> np.ndarray:
        value = self._checkpoint.tensor(name)
        return self._change(name, value) if name in self._changed else value

    def stored_tokenizer(self) -> StoredTokenizer | None:
        return self._checkpoint.stored_tokenizer()


def enlarge_vocabulary(checkpoint: Checkpoint, vocabulary_size: int) -> Checkpoint:
    """Add embeddings for new tokens to a checkpoint. They are the mean of all old embeddings.

    Args:
        checkpoint: `Checkpoint` with fewer tokens.
        vocabulary_size: Integer. The new number of tokens.

    Source: Hewitt 2021, Initializing New Word Embeddings for Pretrained Language Models. The mean
    has the smallest effect on the outputs for other tokens.
    """
    family, shapes = checkpoint.family, checkpoint.shapes
    key = family.config_keys["vocabulary_size"]
    added = vocabulary_size - checkpoint.config[key]
    embedding = f"{family.tensors['embeddings.token_embedding']}.weight"
    biases = [head.tied_bias for head in family.heads.values()]
    masked_lm = family.heads.get("ForMaskedLM")
    projection = masked_lm and f"{masked_lm.output}.weight"
    tied = {name for name, twin in family.tied.items() if twin in (embedding, *biases)}
    enlarged = {embedding, projection, *biases, *tied} & set(shapes)
    # Tokens are on the last axis of a bias, and on the first axis of other tensors.
    new = {
        name: (*shapes[name][:-1], vocabulary_size)
        if name in biases
        else (vocabulary_size, *shapes[name][1:])
        for name in enlarged
    }

    def add_means(name: str, value: np.ndarray) -> np.ndarray:
        value, axis = value.astype("float32"), -1 if name in biases else 0
        mean = value.mean(axis, keepdims=True)
        return np.concatenate([value, np.repeat(mean, added, axis)], axis)

    return ChangedCheckpoint(checkpoint, new, add_means, {key: vocabulary_size})


def select_rows(checkpoint: Checkpoint, output: str, rows: Sequence[int | None]) -> Checkpoint:
    """Rearrange the output layer of a checkpoint for new labels.

    Args:
        checkpoint: `Checkpoint` with rows for its own labels.
        output: String. Output layer name.
        rows: List of optional integers. For each new label, the index of its row in the checkpoint.
            None stands for an unknown label, whose weights are set to 0.
    """
    names = {f"{output}.weight", f"{output}.bias"} & set(checkpoint.shapes)
    shapes = {name: (len(rows), *checkpoint.shapes[name][1:]) for name in names}

    def select(name: str, value: np.ndarray) -> np.ndarray:
        new = np.zeros(shapes[name], "float32")
        for i, row in enumerate(rows):
            if row is not None:
                new[i] = value[row]
        return new

    return ChangedCheckpoint(checkpoint, shapes, select)


def map_backbone_layers(backbone: Backbone) -> dict[str, str]:
    """Map the attribute path of each backbone layer to its name in the checkpoint."""
    family = backbone.family
    layers = number_block_names(family.tensors, map_block_indices(backbone))
    return {**layers, **({"pooler_dense": family.pooler} if backbone.pooler else {})}


def map_block_indices(backbone: Backbone) -> dict[str, list[int]]:
    """Return a dict {attribute with a list of blocks: index of each distinct block}.

    If a block occurs several times, its first index is used.
    """
    encoder = list(backbone.blocks[: backbone.num_layers])
    return {
        "blocks": [encoder.index(block) for block in dict.fromkeys(encoder)],
        "decoder_blocks": list(range(len(backbone.decoder_blocks))),
    }


def number_block_names(
    names: Mapping[str, str], indices: Mapping[str, Sequence[int]]
) -> dict[str, str]:
    """Replace {} in names with the indices of blocks.

    Args:
        names: Dict {attribute path in the backbone: name in the checkpoint}.
        indices: Dict {attribute with a list of blocks: block indices}. The position of an index in
            the list is the index in the checkpoint.

    Example:
        >>> names = {"norm": "LayerNorm", "blocks.{}.dense": "layer.{}.fc"}
        >>> number_block_names(names, {"blocks": [0, 3]})
        {'norm': 'LayerNorm', 'blocks.0.dense': 'layer.0.fc', 'blocks.3.dense': 'layer.1.fc'}
    """
    once = {ours: theirs for ours, theirs in names.items() if "{}" not in ours}
    blocks = {
        ours.format(index): theirs.format(i)
        for name, found in indices.items()
        for i, index in enumerate(found)
        for ours, theirs in names.items()
        if ours.startswith(f"{name}.{{}}")
    }
    return {**once, **blocks}


def list_named_weights(
    model: keras.Model, layers: Mapping[str, str]
) -> Iterator[tuple[str, keras.Variable, bool]]:
    """Yield the weights of layers with their names in the checkpoint.

    Args:
        model: Model that contains the layers.
        layers: Dict {attribute path: name in the checkpoint}.

    Yields:
        Tuples (name in the checkpoint, weight, whether the checkpoint stores it transposed).
    """
    for path, name in layers.items():
        target = find_layer(model, path)
        if target is None:  # an optional layer
            continue
        if not isinstance(target, keras.layers.Layer):
            yield name, target, False
            continue
        for attribute, suffix in _WEIGHTS.items():
            weight = getattr(target, attribute, None)
            if weight is not None:
                # Dense kernels have shape (in, out) in Keras and (out, in) in PyTorch.
                yield f"{name}.{suffix}", weight, attribute == "kernel"


def find_layer(model: keras.Model, path: str) -> object:
    """Return the layer or weight at an attribute path such as 'blocks.0.attention'."""
    target = model
    for part in path.split("."):
        target = target[int(part)] if part.isdigit() else getattr(target, part)
    return target


def check_not_quantized(model: keras.Model, path: str) -> None:
    """Raise a ValueError when a layer contains quantized weights."""
    mode = getattr(find_layer(model, path), "quantization_mode", None)
    if mode is not None:
        raise ValueError(
            f"{path} is quantized ({mode}), but presets cannot store quantized weights. Save the "
            "preset before quantization, or save the model with .save('model.keras') and load it "
            "with keras.saving.load_model."
        )


def match(
    checkpoint: Checkpoint, model: keras.Model, layers: Mapping[str, str]
) -> tuple[dict[str, tuple[keras.Variable, bool]], dict[str, str]]:
    """Match the weights of layers to tensors in a checkpoint by name and shape.

    Args:
        checkpoint: `Checkpoint` with the tensors.
        model: Model that contains the layers.
        layers: Dict {attribute path: name in the checkpoint}.

    Returns:
        matched: Dict {tensor name: (weight, whether the tensor is transposed)}.
        misfits: Dict {tensor name: "missing" or "is (2, 8), expected (3, 8)"}.
    """
    fitting, misfits = {}, {}
    for name, weight, transposed in list_named_weights(model, layers):
        expected = tuple(weight.shape)[:: -1 if transposed else 1]
        if name not in checkpoint.shapes:
            misfits[name] = "missing"
        elif checkpoint.shapes[name] != expected:
            misfits[name] = f"is {checkpoint.shapes[name]}, expected {expected}"
        else:
            fitting[name] = (weight, transposed)
    return fitting, misfits


def copy(
    checkpoint: Checkpoint,
    matched: Mapping[str, tuple[keras.Variable, bool]],
    allow_nonfinite: bool = False,
) -> None:
    """Copy matched tensors from the checkpoint to the weights.

    Raises:
        ValueError: If a value is NaN, infinite or too large.
    """
    advice = "Pass allow_nonfinite=True to load it anyway."
    for name, (weight, transposed) in matched.items():
        value = convert_to_float32(checkpoint.tensor(name))
        if not allow_nonfinite:
            check_weights(value, f"{checkpoint.folder}: {name}", advice)
        weight.assign(value.T if transposed else value)


def make_stored_array(weight: keras.Variable, transposed: bool, dtype: object = None) -> np.ndarray:
    """Convert a weight to an array in the form in which a file stores it."""
    value = gather_array(weight)
    return np.ascontiguousarray(value.T if transposed else value, dtype)


def convert_to_float32(tensor: np.ndarray) -> np.ndarray:
    """Convert a tensor to float32. Values that are too large become infinite."""
    with np.errstate(over="ignore"):
        return tensor.astype("float32")


def check_weights(value: np.ndarray, name: str, advice: str) -> None:
    """Raise a ValueError when a tensor contains NaN, infinite or very large values.

    Args:
        value: Array. Values of a tensor.
        name: String. File and the name of the tensor, for the error message.
        advice: String. Last sentence of the error message.

    Example:
        >>> check_weights(np.array([1.0, np.nan]), "bias", "Download it again.")
        Traceback (most recent call last):
        ValueError: bias has 1 values that are NaN, infinite or beyond 10000. Trained ...
    """
    smallest, largest = value.min(initial=0.0), value.max(initial=0.0)
    if not (smallest >= -_LARGEST and largest <= _LARGEST):  # also if one is NaN
        broken = value.size - np.count_nonzero(np.abs(value) <= _LARGEST)
        raise ValueError(
            f"{name} has {broken} values that are NaN, infinite or beyond {_LARGEST:.0f}. Trained "
            f"weights are smaller. {advice}"
        )


def find_unexpected(checkpoint: Checkpoint, used: Iterable[str]) -> list[str]:
    """Return the sorted names of unused tensors, without tensors that contain no information."""
    return [
        name
        for name in sorted(set(checkpoint.shapes) - set(used))
        if not _REDUNDANT.search(name) and not _is_copy(checkpoint, name)
    ]


def _is_copy(checkpoint: Checkpoint, name: str) -> bool:
    """Check whether a tensor is an equal copy of the tensor it is tied to."""
    twin = checkpoint.family.tied.get(name)
    return twin in checkpoint.shapes and np.array_equal(
        checkpoint.tensor(name), checkpoint.tensor(twin)
    )
