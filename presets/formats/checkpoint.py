"""Checkpoints in the Hugging Face words: one table of names, for reading and for writing."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import keras
import numpy as np

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Family
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.formats.stored_tokenizer import StoredTokenizer

# Weight of a layer: its name in the checkpoint
_WEIGHTS = {
    "kernel": "weight",
    "embeddings": "weight",
    "gamma": "weight",
    "beta": "bias",
    "bias": "bias",
}
MAX_CLASSES = 2**20
# No trained weight is near this; numbers beyond it make products that overflow.
_LARGEST = 1e4
# Buffers without information.
_REDUNDANT = re.compile(r"(^|\.)(position_ids|token_type_ids)$")


class Checkpoint:
    """A checkpoint of any origin, told in the Hugging Face format's words.

    It is a context: its files are closed in the end, and an error says if one of them was changed
    while it was read.

    Attributes:
        files: of its folder.
        family: of its model.
        config_file: which of its files `config` is from.
        config: contents of `config.json`, or their translation.
        config_names: what the file calls the fields of `config`, where that is something else.
        shapes: {tensor name, without the family's prefix: shape}; dense kernels are (out, in).
        settings: contents of `encoder_zoo.json`, {} where there is none.
        head_arguments: {head, see `Family.heads`: arguments of its task for which config.json has
            no words}.
    """

    files: FolderFiles
    family: Family
    config_file: pathlib.Path
    config: dict
    config_names: Mapping[str, str] = MappingProxyType({})
    shapes: dict[str, tuple[int, ...]]
    settings: dict
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
        """The path of the folder, for errors."""
        return self.files.path

    def tensor(self, name: str) -> np.ndarray:
        """Return one tensor, read when asked for."""
        raise NotImplementedError

    def stored_tokenizer(self) -> StoredTokenizer | None:
        """Return the tokenizer in the folder; None where the format knows models without."""
        raise NotImplementedError

    def set_head(self, name: str, labels: Sequence[str] | None, classes: int = 0) -> None:
        """Notes in `config` which head the checkpoint has, and what its outputs are called.

        Args:
            name: see `Family.heads`.
            labels: of the outputs; None where the checkpoint does not tell them.
            classes: how many outputs there are then.

        Raises:
            ValueError: "...: the head has 60000000 classes. Expected at most 1048576."
        """
        if classes > MAX_CLASSES:
            raise ValueError(
                f"{self.folder}: the head has {classes} classes. Expected at most {MAX_CLASSES}."
            )
        self.config["architectures"] = [self.family.class_prefix + name]
        labels = labels or [f"LABEL_{i}" for i in range(classes)]
        if labels:
            self.config["id2label"] = {str(i): label for i, label in enumerate(labels)}
            self.config.pop("label2id", None)  # of the names that were there before


class EnlargedCheckpoint(Checkpoint):
    """A checkpoint with embeddings of more tokens, each the mean of the others.

    Args:
        checkpoint: with fewer.
        vocabulary_size: how many there are to be.

    Source: Hewitt 2021, Initializing New Word Embeddings for Pretrained Language Models: so the
    new tokens change the outputs for other tokens least.
    """

    def __init__(self, checkpoint: Checkpoint, vocabulary_size: int):
        vars(self).update(vars(checkpoint))
        self._checkpoint = checkpoint
        key = self.family.config_keys["vocabulary_size"]
        self._added = vocabulary_size - checkpoint.config[key]
        self.config = {**checkpoint.config, key: vocabulary_size}
        embedding = f"{self.family.tensors['embeddings.token_embedding']}.weight"
        biases = [head.tied_bias for head in self.family.heads.values()]
        self._enlarged = {embedding, *biases, *self.family.tied} & set(self.shapes)
        self.shapes = {
            name: (vocabulary_size, *shape[1:]) if name in self._enlarged else shape
            for name, shape in self.shapes.items()
        }

    def tensor(self, name: str) -> np.ndarray:
        value = self._checkpoint.tensor(name)
        if name not in self._enlarged:
            return value
        value = value.astype("float32")
        return np.concatenate([value, np.repeat(value.mean(0, keepdims=True), self._added, 0)])

    def stored_tokenizer(self) -> StoredTokenizer | None:
        return self._checkpoint.stored_tokenizer()


def backbone_layers(backbone: Backbone) -> dict[str, str]:
    """Return {attribute path of a layer in the backbone: its name in the checkpoint}."""
    family = backbone.family
    layers = numbered(family.tensors, first_places(backbone))
    return {**layers, **({"pooler_dense": family.pooler} if backbone.pooler else {})}


def first_places(backbone: Backbone) -> list[int]:
    """Return the index of each block, the first one if a block is repeated."""
    return [backbone.blocks.index(block) for block in dict.fromkeys(backbone.blocks)]


def numbered(names: Mapping[str, str], indices: Sequence[int]) -> dict[str, str]:
    """Return names with {} replaced by the numbers of blocks.

    Args:
        names: {attribute path in the backbone: name in the checkpoint}.
        indices: for each of the checkpoint's blocks, its first index in the backbone.

    Example:
        >>> numbered({"norm": "LayerNorm", "blocks.{}.dense": "layer.{}.fc"}, [0, 3])
        {'norm': 'LayerNorm', 'blocks.0.dense': 'layer.0.fc', 'blocks.3.dense': 'layer.1.fc'}
    """
    once = {ours: theirs for ours, theirs in names.items() if "{}" not in ours}
    blocks = {
        ours.format(index): theirs.format(i)
        for i, index in enumerate(indices)
        for ours, theirs in names.items()
        if "{}" in ours
    }
    return {**once, **blocks}


def named_weights(
    model: keras.Model, layers: Mapping[str, str]
) -> Iterator[tuple[str, keras.Variable, bool]]:
    """The weights of the listed layers, with their names in the checkpoint.

    Args:
        model: the layers' owner.
        layers: {attribute path: name in the checkpoint}.

    Yields:
        (name in the checkpoint, weight, whether the checkpoint holds its transpose).
    """
    for path, name in layers.items():
        target = layer_at(model, path)
        if target is None:  # a layer that not every configuration has
            continue
        if not isinstance(target, keras.layers.Layer):
            yield name, target, False
            continue
        for attribute, suffix in _WEIGHTS.items():
            weight = getattr(target, attribute, None)
            if weight is not None:
                # Keras keeps a dense kernel as (in, out), torch as (out, in).
                yield f"{name}.{suffix}", weight, attribute == "kernel"


def layer_at(model: keras.Model, path: str) -> object:
    """Return the layer or weight at an attribute path such as 'blocks.0.attention'."""
    target = model
    for part in path.split("."):
        target = target[int(part)] if part.isdigit() else getattr(target, part)
    return target


def refuse_quantized(model: keras.Model, path: str) -> None:
    """Refuses to write a layer whose weights are quantized.

    Raises:
        ValueError: "blocks.0... is quantized (int8) ..."
    """
    mode = getattr(layer_at(model, path), "quantization_mode", None)
    if mode is not None:
        raise ValueError(
            f"{path} is quantized ({mode}), which presets do not hold. Save the preset before "
            "quantizing, or save the model with .save('...keras')."
        )


def match(
    checkpoint: Checkpoint, model: keras.Model, layers: Mapping[str, str]
) -> tuple[dict[str, tuple[keras.Variable, bool]], dict[str, str]]:
    """Finds the checkpoint's tensors for the listed layers, by name and shape.

    Args:
        checkpoint: to look in.
        model: the layers' owner.
        layers: {attribute path: name in the checkpoint}.

    Returns:
        {tensor name: (weight, whether it is the transpose)} for what fits, and {tensor name:
        what is wrong} for what does not: "missing" or "is (2, 8), expected (3, 8)".
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
    """Copies the tensors that `match` found into the weights.

    Raises:
        ValueError: "... has 3 values that are NaN or infinite, or beyond 10000 ..."
    """
    advice = "Pass allow_nonfinite=True to load it all the same."
    for name, (weight, transposed) in matched.items():
        value = float_values(checkpoint.tensor(name))
        if not allow_nonfinite:
            check_weights(value, f"{checkpoint.folder}: {name}", advice)
        weight.assign(value.T if transposed else value)


def float_values(tensor: np.ndarray) -> np.ndarray:
    """In float32; a float64 that is too large for it becomes infinite."""
    with np.errstate(over="ignore"):
        return tensor.astype("float32")


def check_weights(value: np.ndarray, name: str, advice: str) -> None:
    """Refuses what no training ends with.

    Args:
        value: the numbers of one tensor.
        name: of the tensor, with its file.
        advice: what to do, in a sentence.

    Raises:
        ValueError: "... has 3 values that are NaN or infinite, or beyond 10000 ..."

    Example:
        >>> check_weights(np.array([1.0, np.nan]), "bias", "Download it again.")
        Traceback (most recent call last):
        ValueError: bias has 1 values that are NaN or infinite, or beyond 10000, as no trained ...
    """
    if not _are_weights(value):
        broken = value.size - np.count_nonzero(np.abs(value) <= _LARGEST)
        raise ValueError(
            f"{name} has {broken} values that are NaN or infinite, or beyond {_LARGEST:.0f}, as no "
            f"trained weight is. {advice}"
        )


def _are_weights(value: np.ndarray) -> bool:
    """Return whether all are numbers that a model can compute with; False for NaN."""
    smallest, largest = value.min(initial=0.0), value.max(initial=0.0)
    return bool(smallest >= -_LARGEST and largest <= _LARGEST)


def unexpected(checkpoint: Checkpoint, used: Iterable[str]) -> list[str]:
    """Return the names of tensors with information that was not used."""
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
