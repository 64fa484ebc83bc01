"""Checkpoints with the names of the Hugging Face format, for reading and for writing."""

from __future__ import annotations

import pathlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import keras
from encoder_zoo.encoders.arrays import whole_array
from encoder_zoo.encoders.family import Family
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.formats.stored_tokenizer import StoredTokenizer, read_stored_tokenizer

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone

# {weight of a layer: its name in the checkpoint}
_WEIGHTS = {
    "kernel": "weight",
    "embeddings": "weight",
    "gamma": "weight",
    "beta": "bias",
    "bias": "bias",
}
MAX_CLASSES = 2**20
# Trained weights are far below this; products of larger numbers overflow.
_LARGEST = 1e4
# Buffers without information.
_REDUNDANT = re.compile(r"(^|\.)(position_ids|token_type_ids)$")


class Checkpoint(ABC):
    """A checkpoint of any format, with the names of the Hugging Face format.

    A context manager: it closes the files, and raises an error if one was changed while it was
    read.

    Attributes:
        files: of its folder.
        family: of its model.
        config_file: the file that `config` is read from.
        config: contents of `config.json`, or their translation.
        config_names: {field of `config`: its name in the file, if different}.
        weight_files: names of the files with its tensors.
        shapes: {tensor name, without the family's prefix: shape}; dense kernels are (out, in).
        settings: contents of `encoder_zoo.json`, {} if there is none.
        listed_settings: of its entry in `list_presets()`, see `registry.listed_settings`.
        is_of_one_task: whether the files are those of one task, whose head is never there in part.
        head_arguments: {head, see `Family.heads`: arguments of its task without a field in
            config.json}.
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
        """Read one tensor."""

    def stored_tokenizer(self) -> StoredTokenizer | None:
        """Return the tokenizer in the folder; None if the format allows models without one."""
        return read_stored_tokenizer(self.files, self.config, self.family.tokenizer)

    def set_head(self, name: str, labels: Sequence[str] | None, classes: int = 0) -> None:
        """Set the fields of `config` for the head of the checkpoint and its labels.

        Args:
            name: see `Family.heads`.
            labels: of the outputs; None if the checkpoint has none.
            classes: number of outputs, if there are no labels.

        Raises:
            ValueError: If the head has too many classes.
        """
        if classes > MAX_CLASSES:
            raise ValueError(
                f"{self.folder}: the head has {classes} classes. Expected at most {MAX_CLASSES}."
            )
        self.config["architectures"] = [self.family.class_name(name)]
        labels = labels or default_labels(classes)
        if labels:
            self.config["id2label"] = {str(i): label for i, label in enumerate(labels)}
            self.config.pop("label2id", None)  # of the previous labels


def default_labels(num_classes: int) -> list[str]:
    """Return LABEL_0, LABEL_1, ..., which transformers writes for classes without names."""
    return [f"LABEL_{i}" for i in range(num_classes)]


class EnlargedCheckpoint(Checkpoint):
    """A checkpoint whose embeddings have rows for new tokens, each the mean of the others.

    Args:
        checkpoint: with fewer tokens.
        vocabulary_size: the new number of tokens.

    Source: Hewitt 2021, Initializing New Word Embeddings for Pretrained Language Models: the mean
    changes the outputs for other tokens least.
    """

    def __init__(self, checkpoint: Checkpoint, vocabulary_size: int):
        vars(self).update(vars(checkpoint))
        self._checkpoint = checkpoint
        key = self.family.config_keys["vocabulary_size"]
        self._added = vocabulary_size - checkpoint.config[key]
        self.config = {**checkpoint.config, key: vocabulary_size}
        embedding = f"{self.family.tensors['embeddings.token_embedding']}.weight"
        biases = [head.tied_bias for head in self.family.heads.values()]
        masked_lm = self.family.heads.get("ForMaskedLM")
        projection = masked_lm and f"{masked_lm.output}.weight"
        enlarged = {embedding, projection, *biases, *self.family.tied} & set(self.shapes)
        # {tensor: whether its tokens are on the last axis, and not on the first}
        self._enlarged = {name: name in biases for name in enlarged}
        self.shapes = {n: self._enlarged_shape(n, vocabulary_size) for n in self.shapes}

    def _enlarged_shape(self, name: str, vocabulary_size: int) -> tuple[int, ...]:
        shape = self._checkpoint.shapes[name]
        if name not in self._enlarged:
            return shape
        return (
            (*shape[:-1], vocabulary_size)
            if self._enlarged[name]
            else (vocabulary_size, *shape[1:])
        )

    def tensor(self, name: str) -> np.ndarray:
        value = self._checkpoint.tensor(name)
        if name not in self._enlarged:
            return value
        value = value.astype("float32")
        axis = -1 if self._enlarged[name] else 0
        added = np.repeat(value.mean(axis, keepdims=True), self._added, axis)
        return np.concatenate([value, added], axis)

    def stored_tokenizer(self) -> StoredTokenizer | None:
        return self._checkpoint.stored_tokenizer()


def backbone_layers(backbone: Backbone) -> dict[str, str]:
    """Return {attribute path of a layer in the backbone: its name in the checkpoint}."""
    family = backbone.family
    layers = numbered(family.tensors, block_indices(backbone))
    return {**layers, **({"pooler_dense": family.pooler} if backbone.pooler else {})}


def block_indices(backbone: Backbone) -> dict[str, list[int]]:
    """Return {attribute with a list of blocks: index of each; the first one if it is repeated}."""
    encoder = list(backbone.blocks[: backbone.num_layers])
    return {
        "blocks": [encoder.index(block) for block in dict.fromkeys(encoder)],
        "decoder_blocks": list(range(len(backbone.decoder_blocks))),
    }


def numbered(names: Mapping[str, str], indices: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Return names with {} replaced by the indices of blocks.

    Args:
        names: {attribute path in the backbone: name in the checkpoint}.
        indices: for each list of blocks in the backbone the first index of each of the
            checkpoint's blocks.

    Example:
        >>> names = {"norm": "LayerNorm", "blocks.{}.dense": "layer.{}.fc"}
        >>> numbered(names, {"blocks": [0, 3]})
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


def named_weights(
    model: keras.Model, layers: Mapping[str, str]
) -> Iterator[tuple[str, keras.Variable, bool]]:
    """Yield the weights of layers with their names in the checkpoint.

    Args:
        model: with the layers.
        layers: {attribute path: name in the checkpoint}.

    Yields:
        (name in the checkpoint, weight, whether the checkpoint has its transpose).
    """
    for path, name in layers.items():
        target = layer_at(model, path)
        if target is None:  # an optional layer
            continue
        if not isinstance(target, keras.layers.Layer):
            yield name, target, False
            continue
        for attribute, suffix in _WEIGHTS.items():
            weight = getattr(target, attribute, None)
            if weight is not None:
                # Dense kernels are (in, out) in Keras, (out, in) in torch.
                yield f"{name}.{suffix}", weight, attribute == "kernel"


def layer_at(model: keras.Model, path: str) -> object:
    """Return the layer or weight at an attribute path such as 'blocks.0.attention'."""
    target = model
    for part in path.split("."):
        target = target[int(part)] if part.isdigit() else getattr(target, part)
    return target


def check_not_quantized(model: keras.Model, path: str) -> None:
    """Raise an error if the weights of a layer are quantized."""
    mode = getattr(layer_at(model, path), "quantization_mode", None)
    if mode is not None:
        raise ValueError(
            f"{path} is quantized ({mode}), which presets do not support. Save the preset before "
            "quantizing, or save the model with .save('...keras'), which keras.saving.load_model "
            "opens."
        )


def match(
    checkpoint: Checkpoint, model: keras.Model, layers: Mapping[str, str]
) -> tuple[dict[str, tuple[keras.Variable, bool]], dict[str, str]]:
    """Match the weights of layers to the checkpoint's tensors, by name and shape.

    Args:
        checkpoint: with the tensors.
        model: with the layers.
        layers: {attribute path: name in the checkpoint}.

    Returns:
        matched: {tensor name: (weight, whether the tensor is its transpose)}.
        misfits: {tensor name: "missing" or "is (2, 8), expected (3, 8)"}.
    """
    fitting, misfits = {}, {}
    for name, weight, transposed in named_weights(model, layers):
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
    """Assign the matched tensors to the weights.

    Raises:
        ValueError: If weights are NaN, infinite or too large.
    """
    advice = "Pass allow_nonfinite=True to load it all the same."
    for name, (weight, transposed) in matched.items():
        value = float_values(checkpoint.tensor(name))
        if not allow_nonfinite:
            check_weights(value, f"{checkpoint.folder}: {name}", advice)
        weight.assign(value.T if transposed else value)


def stored_array(weight: keras.Variable, transposed: bool, dtype: object = None) -> np.ndarray:
    """Return a weight, or its transpose, as an array to be written to a file."""
    value = whole_array(weight)
    return np.ascontiguousarray(value.T if transposed else value, dtype)


def float_values(tensor: np.ndarray) -> np.ndarray:
    """Return a tensor in float32; values that are too large become infinite."""
    with np.errstate(over="ignore"):
        return tensor.astype("float32")


def check_weights(value: np.ndarray, name: str, advice: str) -> None:
    """Raise an error for NaN, infinite or very large weights.

    Args:
        value: a tensor.
        name: of the tensor, with its file.
        advice: last sentence of the error message.

    Example:
        >>> check_weights(np.array([1.0, np.nan]), "bias", "Download it again.")
        Traceback (most recent call last):
        ValueError: bias has 1 values that are NaN or infinite, or beyond 10000, as no trained ...
    """
    smallest, largest = value.min(initial=0.0), value.max(initial=0.0)
    if not (smallest >= -_LARGEST and largest <= _LARGEST):  # also if one is NaN
        broken = value.size - np.count_nonzero(np.abs(value) <= _LARGEST)
        raise ValueError(
            f"{name} has {broken} values that are NaN or infinite, or beyond {_LARGEST:.0f}, as no "
            f"trained weight is. {advice}"
        )


def unexpected(checkpoint: Checkpoint, used: Iterable[str]) -> list[str]:
    """Return the names of unused tensors, without redundant ones."""
    return [
        name
        for name in sorted(set(checkpoint.shapes) - set(used))
        if not _REDUNDANT.search(name) and not _is_copy(checkpoint, name)
    ]


def _is_copy(checkpoint: Checkpoint, name: str) -> bool:
    """Return whether a tensor equals the one that it is tied to."""
    twin = checkpoint.family.tied.get(name)
    return twin in checkpoint.shapes and np.array_equal(
        checkpoint.tensor(name), checkpoint.tensor(twin)
    )
