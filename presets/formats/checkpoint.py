"""Load and save checkpoints with the tensor names of the Hugging Face format."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

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
logger = logging.getLogger("encoder_zoo")

# Trained weights are much smaller. Products of larger values can overflow in float16.
_MAX_WEIGHT = 1e4
# Buffers that do not contain trained values.
_REDUNDANT = re.compile(r"(^|\.)(position_ids|token_type_ids)$")


class Preset:
    """Open preset with a configuration and a tokenizer.

    Attributes:
        files: `FolderFiles`. The files of the preset.
        family: The `Family` of the model. None for an unknown model in a `TokenizerPreset`.
        config_file: The path of the file with the configuration.
        config: Dict. The `config.json` content, or a configuration converted to this format.
        settings: Dict. The `encoder_zoo.json` content, or {} for a missing file.
        listed_settings: Dict. Settings from `list_presets()`. See `registry.get_listed_settings`.
    """

    files: FolderFiles
    family: Family
    config_file: pathlib.Path
    config: dict
    settings: dict
    listed_settings: Mapping[str, object] = MappingProxyType({})

    @property
    def folder(self) -> pathlib.Path:
        """Folder path for error messages."""
        return self.files.path

    def read_tokenizer(self) -> StoredTokenizer | None:
        """Read the tokenizer in the folder. Some formats return None if there is no tokenizer."""
        return read_stored_tokenizer(self.files, self.config, self.family.tokenizer)


class Checkpoint(Preset, ABC):
    """Base class of checkpoints. All formats are converted to Hugging Face tensor names.

    A checkpoint is a context manager, which closes all files at the end. An error is raised if a
    file has changed.

    Attributes:
        config_names: Dict {field in `config`: name in the file} for renamed fields.
        weight_files: Frozen set of strings. Names of all files with tensors.
        shapes: Dict {tensor name without family prefix: shape}. Dense kernels have the shape (out,
            in).
        is_of_one_task: Boolean. Whether the files belong to a single task, which means that the
            head must be complete.
        head_arguments: Dict {head in `Family.heads`: dict of task arguments that config.json cannot
            store}.
        other_class: Optional string. The class in transformers to which the head belongs, if it
            does not belong to the task that is loaded. See `heads.resolve_head`.
    """

    config_names: Mapping[str, str] = MappingProxyType({})
    weight_files: frozenset[str] = frozenset()
    shapes: dict[str, tuple[int, ...]]
    is_of_one_task = False
    head_arguments: Mapping[str, Mapping[str, object]] = MappingProxyType({})
    other_class: str | None = None

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        try:
            if kind is None:
                self.files.check_unchanged()
        finally:
            self.files.close()

    def get_size(self, argument: str) -> int:
        """Return a size in the configuration by the backbone argument, such as "hidden_dim"."""
        return self.config[self.family.config_keys[argument]]

    @abstractmethod
    def read_tensor(self, name: str) -> np.ndarray:
        """Read a tensor by name."""

    def set_head(self, name: str, labels: Sequence[str] | None, classes: int = 0) -> None:
        """Set the fields of `config` that describe a head and its labels.

        Args:
            name: String. The head name in `Family.heads`.
            labels: Optional list of strings. One label per output.
            classes: Integer. The number of outputs if `labels` is None. Defaults to 0.

        Raises:
            ValueError: If `classes` is too large.
        """
        if classes > MAX_CLASSES:
            raise ValueError(
                f"{self.folder}: the head has {classes} classes. Expected at most {MAX_CLASSES} "
                "classes."
            )
        self.config["architectures"] = [self.family.get_class_name(name)]
        labels = labels or make_default_labels(classes)
        if labels:
            self.config["id2label"] = {str(i): label for i, label in enumerate(labels)}
            self.config.pop("label2id", None)  # the inverse of the previous labels


@dataclasses.dataclass
class TokenizerPreset(Preset):
    """Preset whose tokenizer was read. The weights can be missing.

    Attributes:
        stored: Optional `StoredTokenizer`.
    """

    files: FolderFiles
    config: dict
    config_file: pathlib.Path
    family: Family | None
    settings: dict
    stored: StoredTokenizer | None

    def read_tokenizer(self) -> StoredTokenizer | None:
        return self.stored


def make_default_labels(num_classes: int) -> list[str]:
    """Return the default class names of transformers, LABEL_0, LABEL_1, and so on."""
    return [f"LABEL_{i}" for i in range(num_classes)]


class ChangedCheckpoint(Checkpoint):
    """Checkpoint with new values for some tensors.

    Args:
        checkpoint: The original `Checkpoint`.
        shapes: Dict {changed tensor name: new shape}.
        change: A function that takes the name and the original value of a tensor, and returns the
            new value.
        config: Dict. Changed fields of config.json. Defaults to {}.
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

    def read_tensor(self, name: str) -> np.ndarray:
        value = self._checkpoint.read_tensor(name)
        return self._change(name, value) if name in self._changed else value

    def read_tokenizer(self) -> StoredTokenizer | None:
        return self._checkpoint.read_tokenizer()


def enlarge_vocabulary(checkpoint: Checkpoint, vocabulary_size: int) -> Checkpoint:
    """Add rows for new tokens to the embeddings. Each new row is the mean of the old rows.

    Args:
        checkpoint: The `Checkpoint` with fewer tokens.
        vocabulary_size: Integer. The new number of tokens.

    Source: Hewitt 2021, Initializing New Word Embeddings for Pretrained Language Models. The mean
    has the smallest effect on the outputs for other tokens.
    """
    family, shapes = checkpoint.family, checkpoint.shapes
    key = family.config_keys["vocabulary_size"]
    added = vocabulary_size - checkpoint.get_size("vocabulary_size")
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
    """Rearrange the rows of the output layer for new labels.

    Args:
        checkpoint: The `Checkpoint` with one row per old label.
        output: String. Name of the output layer.
        rows: Sequence of optional integers. Row index in the checkpoint for each new label. None
            stands for an unknown label, whose weights are set to 0.
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
    """Map the attribute paths of all backbone layers to names in the checkpoint."""
    family = backbone.family
    layers = number_block_names(family.tensors, map_block_indices(backbone))
    return {**layers, **({"pooler_dense": family.pooler} if backbone.pooler else {})}


def map_block_indices(backbone: Backbone) -> dict[str, list[int]]:
    """Map each attribute that contains a list of blocks to the indices of distinct blocks.

    For a block that occurs several times, the first index is used.
    """
    encoder = list(backbone.blocks[: backbone.num_layers])
    return {
        "blocks": [encoder.index(block) for block in dict.fromkeys(encoder)],
        "decoder_blocks": list(range(len(backbone.decoder_blocks))),
    }


def number_block_names(
    names: Mapping[str, str], indices: Mapping[str, Sequence[int]]
) -> dict[str, str]:
    """Replace {} in layer names by block indices.

    Args:
        names: Dict {attribute path in the backbone: name in the checkpoint}.
        indices: Dict {attribute with a list of blocks: block indices in the backbone}. In the
            checkpoint, the blocks are numbered consecutively.

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


class StoredWeight(NamedTuple):
    """Weight of a model, and how it is stored in a checkpoint.

    Attributes:
        weight: The variable. For a layer with low-rank updates, a tensor that includes them.
        transposed: Boolean. Whether the stored tensor is transposed. Dense kernels have the shape
            (in, out) in Keras and (out, in) in PyTorch.
    """

    weight: keras.Variable
    transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the stored tensor."""
        return tuple(self.weight.shape)[:: -1 if self.transposed else 1]

    def assign(self, stored: np.ndarray) -> None:
        """Assign the value of a stored tensor to the weight."""
        self.weight.assign(stored.T if self.transposed else stored)

    def make_array(self, dtype: object = None) -> np.ndarray:
        """Convert the weight to an array for storage.

        Raises:
            ValueError: If a value is too large for `dtype`.
        """
        value = gather_array(self.weight)
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(value.T if self.transposed else value, dtype)
        if stored.dtype != value.dtype and np.isinf(stored).any() and not np.isinf(value).any():
            name = getattr(self.weight, "path", "A merged weight")
            raise ValueError(
                f"{name} has values up to {np.abs(value).max():g}, which are too large for "
                f"{stored.dtype}. Pass dtype='bfloat16' or 'float32'."
            )
        return stored


def map_weights(
    model: keras.Model, layers: Mapping[str, str], prefix: str = ""
) -> dict[str, StoredWeight]:
    """Map names in the checkpoint to the weights of layers.

    Args:
        model: Model that contains the layers.
        layers: Dict {attribute path: name in the checkpoint}.
        prefix: String. Added to all names. Defaults to "".
    """
    from encoder_zoo.common.layers import merge_updates

    found = {}
    for path, name in layers.items():
        target, updated = find_layer(model, path), find_updated_layer(model, path)
        if target is None:  # an optional layer
            continue
        if not isinstance(target, keras.layers.Layer):
            weight = target if updated is None else merge_updates(updated)
            found[prefix + name] = StoredWeight(weight, False)
            continue
        for attribute, suffix in _WEIGHTS.items():
            weight = getattr(target, attribute, None)
            if weight is None:
                continue
            if suffix == "weight" and updated is not None:
                weight = merge_updates(updated)
            found[f"{prefix}{name}.{suffix}"] = StoredWeight(weight, attribute == "kernel")
    return found


def find_layer(model: keras.Model, path: str) -> object:
    """Return the layer or weight at an attribute path such as 'blocks.0.attention'."""
    target = model
    for part in path.split("."):
        target = target[int(part)] if part.isdigit() else getattr(target, part)
    return target


def find_updated_layer(model: keras.Model, path: str) -> keras.layers.Layer | None:
    """Return the layer at an attribute path, or of the kernel at this path, if it has LoRA."""
    layer = find_layer(model, path.removesuffix(".kernel"))
    return layer if getattr(layer, "lora_enabled", False) else None


def check_not_quantized(model: keras.Model, path: str) -> None:
    """Raise a ValueError if a layer is quantized."""
    mode = getattr(find_layer(model, path), "quantization_mode", None)
    if mode is not None:
        raise ValueError(
            f"{path} is quantized ({mode}), but presets cannot store quantized weights. Save the "
            "preset before quantization, or save the model with .save('model.keras') and load it "
            "with keras.saving.load_model."
        )


def match_weights(
    checkpoint: Checkpoint, model: keras.Model, layers: Mapping[str, str]
) -> tuple[dict[str, StoredWeight], dict[str, str]]:
    """Match layer weights to checkpoint tensors by name and shape.

    Args:
        checkpoint: The `Checkpoint` with the tensors.
        model: Model that contains the layers.
        layers: Dict {attribute path: name in the checkpoint}.

    Returns:
        A tuple of two dicts. The first dict maps the names of matching tensors to weights. The
        second dict maps the names of all other tensors to descriptions, such as "missing" or "is
        (2, 8), expected (3, 8)".
    """
    fitting, misfits = {}, {}
    for name, weight in map_weights(model, layers).items():
        if name not in checkpoint.shapes:
            misfits[name] = "missing"
        elif checkpoint.shapes[name] != weight.shape:
            misfits[name] = f"is {checkpoint.shapes[name]}, expected {weight.shape}"
        else:
            fitting[name] = weight
    return fitting, misfits


def copy_tensors(checkpoint: Checkpoint, matched: Mapping[str, StoredWeight]) -> None:
    """Copy matched tensors from the checkpoint to the weights.

    Raises:
        ValueError: If a value is NaN, infinite or too large. See `check_finite`.
    """
    for name, weight in matched.items():
        value = convert_to_float32(checkpoint.read_tensor(name))
        check_finite(value, f"{checkpoint.folder}: {name}", checkpoint.files)
        weight.assign(value)


def warn_new_weights(message: str, *args: object) -> None:
    """Log a warning about random weights. Its record has the attribute `has_new_weights`."""
    logger.warning(f"{message} Fine-tune before use.", *args, extra={"has_new_weights": True})


def convert_to_float32(tensor: np.ndarray) -> np.ndarray:
    """Convert a tensor to float32. Values that are too large become infinite."""
    with np.errstate(over="ignore"):
        return tensor.astype("float32")


def check_weights(value: np.ndarray, name: str, advice: str) -> None:
    """Raise a ValueError if a tensor contains NaN, infinite or very large values.

    Args:
        value: Array with the values of the tensor.
        name: String. The file name and tensor name for the error message.
        advice: String. The last sentence of the error message.

    Example:
        >>> check_weights(np.array([1.0, np.nan]), "bias", "Download it again.")
        Traceback (most recent call last):
        ValueError: bias has 1 values that are NaN, infinite or beyond 10000. Trained ...
    """
    smallest, largest = value.min(initial=0.0), value.max(initial=0.0)
    if not (smallest >= -_MAX_WEIGHT and largest <= _MAX_WEIGHT):  # also true if a value is NaN
        broken = value.size - np.count_nonzero(np.abs(value) <= _MAX_WEIGHT)
        raise ValueError(
            f"{name} has {broken} values that are NaN, infinite or beyond {_MAX_WEIGHT:.0f}. "
            f"Trained weights are smaller. {advice}"
        )


def check_finite(value: np.ndarray, name: str, files: FolderFiles) -> None:
    """Call `check_weights`, unless the `Safeguards` of the files allow any value."""
    if not files.safeguards.allow_nonfinite:
        check_weights(value, name, "Pass allow_nonfinite=True to load the weights anyway.")


def list_unused_tensors(checkpoint: Checkpoint, used: Iterable[str]) -> list[str]:
    """List the unused tensors, except buffers and copies of other tensors."""
    return [
        name
        for name in sorted(set(checkpoint.shapes) - set(used))
        if not _REDUNDANT.search(name) and not _is_copy(checkpoint, name)
    ]


def _is_copy(checkpoint: Checkpoint, name: str) -> bool:
    """Return whether a tensor is a copy of the tensor to which it is tied."""
    twin = checkpoint.family.tied.get(name)
    return twin in checkpoint.shapes and np.array_equal(
        checkpoint.read_tensor(name), checkpoint.read_tensor(twin)
    )
