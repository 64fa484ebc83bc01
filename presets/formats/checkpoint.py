"""Checkpoints in the Hugging Face words: one table of names, for reading and for writing."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.encoders.backbone import Backbone, Family

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

# Layer of the backbone: its name in the checkpoint
_EMBEDDINGS = {
    "embeddings.token_embedding": "embeddings.word_embeddings",
    "embeddings.position_embedding": "embeddings.position_embeddings",
    "embeddings.segment_embedding": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
_BLOCK = {
    "attention.query_dense": "attention.self.query",
    "attention.key_dense": "attention.self.key",
    "attention.value_dense": "attention.self.value",
    "attention.output_dense": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate_dense": "intermediate.dense",
    "output_dense": "output.dense",
    "output_norm": "output.LayerNorm",
}
_POOLER = {"pooler_dense": "pooler.dense"}

# Weight of a layer: its name in the checkpoint
_WEIGHTS = {
    "kernel": "weight",
    "embeddings": "weight",
    "gamma": "weight",
    "beta": "bias",
    "bias": "bias",
}

# Buffers without information, and second copies of tied weights.
_REDUNDANT = re.compile(r"embeddings\.(position_ids|token_type_ids)$")
TIED = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}


class Checkpoint:
    """A checkpoint of any origin, told in the Hugging Face format's words.

    Attributes:
        folder: where it lies.
        config_file: which of its files `config` is from.
        config: what `config.json` says or would say.
        config_names: what the file calls the fields of `config`, where that is something else.
        shapes: {tensor name, without the family's prefix: shape}; dense kernels are (out, in).
        settings: contents of `encoder_zoo.json`, {} where there is none.
    """

    folder: pathlib.Path
    config_file: pathlib.Path
    config: dict
    config_names: Mapping[str, str] = MappingProxyType({})
    shapes: dict[str, tuple[int, ...]]
    settings: dict

    def tensor(self, name: str) -> np.ndarray:
        """One tensor, read when asked for."""
        raise NotImplementedError

    def load_tokenizer(self, family: Family) -> Tokenizer:
        """The tokenizer that lies in the folder."""
        raise NotImplementedError


def backbone_layers(backbone: Backbone) -> dict[str, str]:
    """{attribute path of a layer in the backbone: its name in the checkpoint}."""
    blocks = {
        f"blocks.{i}.{ours}": f"encoder.layer.{i}.{theirs}"
        for i in range(backbone.num_layers)
        for ours, theirs in _BLOCK.items()
    }
    return {**_EMBEDDINGS, **blocks, **(_POOLER if backbone.pooler else {})}


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
        if not isinstance(target, keras.layers.Layer):
            yield name, target, False
            continue
        for attribute, suffix in _WEIGHTS.items():
            weight = getattr(target, attribute, None)
            if weight is not None:
                # Keras keeps a dense kernel as (in, out), torch as (out, in).
                yield f"{name}.{suffix}", weight, attribute == "kernel"


def layer_at(model: keras.Model, path: str) -> object:
    """The layer or weight at an attribute path such as 'blocks.0.attention'."""
    target = model
    for part in path.split("."):
        target = target[int(part)] if part.isdigit() else getattr(target, part)
    return target


def match(
    checkpoint: Checkpoint, model: keras.Model, layers: Mapping[str, str]
) -> tuple[dict[str, tuple[keras.Variable, bool]], list[str]]:
    """Finds the checkpoint's tensors for the listed layers, by name and shape.

    Args:
        checkpoint: to look in.
        model: the layers' owner.
        layers: {attribute path: name in the checkpoint}.

    Returns:
        {tensor name: (weight, whether it is the transpose)} for what fits, and lines for what
        does not: "- name (missing)" or "- name (is (2, 8), expected (3, 8))".
    """
    fitting, misfits = {}, []
    for name, weight, transposed in named_weights(model, layers):
        expected = tuple(weight.shape)[:: -1 if transposed else 1]
        if name not in checkpoint.shapes:
            misfits.append(f"- {name} (missing)")
        elif checkpoint.shapes[name] != expected:
            misfits.append(f"- {name} (is {checkpoint.shapes[name]}, expected {expected})")
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
        ValueError: "... has 3 values that are NaN or infinite ..."
    """
    for name, (weight, transposed) in matched.items():
        value = checkpoint.tensor(name).astype("float32")
        broken = value.size - np.count_nonzero(np.isfinite(value))
        if broken and not allow_nonfinite:
            raise ValueError(
                f"{checkpoint.folder}: {name} has {broken} values that are NaN or infinite. "
                "Pass allow_nonfinite=True to load it all the same."
            )
        weight.assign(value.T if transposed else value)


def unexpected(checkpoint: Checkpoint, used: Iterable[str]) -> list[str]:
    """Names of tensors that carry information and that nobody took."""
    return [
        name
        for name in sorted(set(checkpoint.shapes) - set(used))
        if not _REDUNDANT.search(name) and not _is_copy(checkpoint, name)
    ]


def _is_copy(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a tensor says only what another one, to which it is tied, says too."""
    twin = TIED.get(name)
    return twin in checkpoint.shapes and np.array_equal(
        checkpoint.tensor(name), checkpoint.tensor(twin)
    )
