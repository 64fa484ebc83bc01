"""The Hugging Face checkpoint format: one table of names, for reading and for writing."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping

import keras
import numpy as np
from safetensors import safe_open

from encoder_zoo.encoders.backbone import Backbone, Family

# Backbone argument: key in config.json
CONFIG_KEYS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "activation": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "pad_token_id": "pad_token_id",
}
_REQUIRED = ("vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size")

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
_TIED = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}


class Checkpoint:
    """A checkpoint folder, opened for reading.

    Args:
        folder: holds `config.json` and `model.safetensors`, or the shards that
            `model.safetensors.index.json` lists.

    Attributes:
        config: the contents of `config.json`.
        family_name: its `model_type`.
        shapes: {tensor name, without the family's prefix: shape}.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.config = read_json(folder / "config.json")
        self.family_name = self.config.get("model_type")
        self._places: dict[str, tuple[pathlib.Path, str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in _weight_files(folder):
            with safe_open(file, framework="np") as f:
                for raw_name in f.keys():  # noqa: SIM118, not a dict
                    name = _normalise(raw_name, self.family_name)
                    self._places[name] = (file, raw_name)
                    self.shapes[name] = tuple(f.get_slice(raw_name).get_shape())

    def tensor(self, name: str) -> np.ndarray:
        """One tensor, read when asked for."""
        file, raw_name = self._places[name]
        with safe_open(file, framework="np") as f:
            return f.get_tensor(raw_name)

    def backbone_arguments(self, family: Family) -> dict:
        """Constructor arguments of the backbone, as config.json states them.

        Raises:
            ValueError: if a size is missing or a setting would change the numbers in a way that
                the backbone does not implement.
        """
        config, path = self.config, self.folder / "config.json"
        for key in _REQUIRED:
            if key not in config:
                raise ValueError(f"{path}: '{key}' is missing.")
        _refuse_unsupported(config, path)
        arguments = {ours: config[key] for ours, key in CONFIG_KEYS.items() if key in config}
        if not family.positions_skip_padding:
            arguments.pop("pad_token_id", None)
        elif "max_sequence_length" in arguments:
            arguments["max_sequence_length"] -= config.get("pad_token_id", 1) + 1
        arguments.setdefault("intermediate_dim", 4 * config["hidden_size"])
        arguments["pooler"] = "pooler.dense.weight" in self.shapes
        return arguments


def _refuse_unsupported(config: Mapping, path: pathlib.Path) -> None:
    supported = {
        "position_embedding_type": (None, "absolute"),
        "is_decoder": (None, False),
        "add_cross_attention": (None, False),
        "embedding_size": (None, config["hidden_size"]),
    }
    for key, values in supported.items():
        if config.get(key) not in values:
            raise ValueError(f"{path}: {key}={config[key]!r} is not supported here.")


def read_json(path: pathlib.Path) -> dict:
    """A JSON object from a file, as plain data.

    Raises:
        ValueError: "...: file not found ..." or "...: not a JSON object ..."
    """
    if not path.is_file():
        raise ValueError(f"{path}: file not found. A preset folder holds config.json, "
                         "model.safetensors and the tokenizer's files.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object. Received: {type(value).__name__}.")
    return value


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        return [folder / name for name in sorted(set(read_json(index)["weight_map"].values()))]
    others = sorted(p.name for p in folder.glob("*.bin")) + sorted(
        p.name for p in folder.glob("*.h5")
    )
    hint = f" The folder holds {', '.join(others)}; convert it to safetensors." if others else ""
    raise ValueError(f"{folder}: no model.safetensors.{hint}")


def _normalise(name: str, family_name: str) -> str:
    """Without the family's prefix, and with the newer names of LayerNorm's weights."""
    name = name.removeprefix(f"{family_name}.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


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


def copy(checkpoint: Checkpoint, matched: Mapping[str, tuple[keras.Variable, bool]]) -> None:
    """Copies the tensors that `match` found into the weights."""
    for name, (weight, transposed) in matched.items():
        value = checkpoint.tensor(name).astype("float32")
        weight.assign(value.T if transposed else value)


def unexpected(checkpoint: Checkpoint, used: Iterable[str]) -> list[str]:
    """Names of tensors that carry information and that nobody took.

    Raises:
        ValueError: if the checkpoint's output projection is not tied to its token embedding,
            as these models have it.
    """
    left = []
    for name in sorted(set(checkpoint.shapes) - set(used)):
        twin = _TIED.get(name)
        if twin in checkpoint.shapes:
            if not np.array_equal(checkpoint.tensor(name), checkpoint.tensor(twin)):
                raise ValueError(
                    f"{checkpoint.folder}: {name} differs from {twin}. Only output projections "
                    "tied to the token embedding are supported."
                )
        elif not _REDUNDANT.search(name):
            left.append(name)
    return left
