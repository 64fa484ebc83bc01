"""Reads the configurations of sentence-transformers' modules: Pooling, Dense, Normalize."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping, Sequence

import numpy as np
from safetensors.numpy import save

from encoder_zoo.common.lazy import keras
from encoder_zoo.common.validation import check_argument, one_of
from encoder_zoo.common.wording import invalid, shown
from encoder_zoo.presets.files.file_bytes import check_floats
from encoder_zoo.presets.files.folder_files import FolderFiles, Subfolder
from encoder_zoo.presets.files.json_data import COUNT, FLAG, read_field
from encoder_zoo.presets.files.pytorch_file import PyTorchFile, pytorch_bytes
from encoder_zoo.presets.formats.checkpoint import (
    Checkpoint,
    check_not_quantized,
    copy,
    match,
    named_weights,
    stored_array,
)
from encoder_zoo.presets.formats.huggingface import open_weights
from encoder_zoo.presets.formats.preset_files import CONFIG, SAFETENSORS
from encoder_zoo.presets.formats.sentence_transformers import Module, of_kind

# In the order in which the pooled vectors are concatenated.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# {our activation: torch's class}
ACTIVATIONS = {
    "tanh": "torch.nn.modules.activation.Tanh",
    "linear": "torch.nn.modules.linear.Identity",
    "gelu": "torch.nn.modules.activation.GELU",
    "relu": "torch.nn.modules.activation.ReLU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "silu": "torch.nn.modules.activation.SiLU",
}
_ACTIVATION = re.compile(r"torch\.nn\.(?:modules\.\w+\.)?(\w+)")
# The tensors that modules read: a text's vector, or those of its tokens.
SENTENCE, TOKENS = "sentence_embedding", "token_embeddings"


def read_pooling(
    files: FolderFiles, module: Module, width: int | None
) -> tuple[str | list[str], bool]:
    """Read the configuration of a Pooling.

    Args:
        files: of the whole folder.
        module: the Pooling.
        width: of the encoder's vectors; None if it is not known.

    Returns:
        The pooling of `TextEmbedder`, and whether prompts are pooled.

    Raises:
        ValueError: If a field has a wrong value, or if the width is not that of the encoder.
    """
    config, path = _module_config(files, module)
    own = ("embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt")
    _check_fields(config, (*own, *POOLING_FLAGS), path)
    for field in own[:2]:
        if width is not None and config.get(field, width) != width:
            raise invalid(
                f"{path}: {field}", config[field], f"{width}, the width of the encoder's vectors"
            )
    _check_flags(config, ("include_prompt", *POOLING_FLAGS), path)
    flagged = [mode for flag, mode in POOLING_FLAGS.items() if config.get(flag)] or ["mean"]
    modes = config.get("pooling_mode", flagged)
    modes = [modes] if isinstance(modes, str) else modes
    known = list(POOLING_FLAGS.values())
    if not isinstance(modes, list) or not modes or not all(mode in known for mode in modes):
        raise invalid(
            f"{path}: pooling_mode",
            config["pooling_mode"],
            f"one of {', '.join(known)}, or a list of these",
        )
    return modes[0] if len(modes) == 1 else modes, config.get("include_prompt", True)


def read_dense(
    files: FolderFiles, module: Module, width: int, embedding: str = SENTENCE
) -> dict[str, object]:
    """Read the configuration of a Dense.

    Args:
        files: of the whole folder.
        module: the Dense.
        width: of the vectors before it.
        embedding: name of the tensor that it reads, `SENTENCE` or `TOKENS`.

    Returns:
        An entry of `dense` of `TextEmbedder`.

    Raises:
        ValueError: If a field has a wrong value, or if the width is not that of the vectors before
            it.
    """
    config, path = _module_config(files, module)
    sizes, flags = ("in_features", "out_features"), ("bias", "use_residual")
    names = ("module_input_name", "module_output_name")
    _check_fields(config, (*sizes, *flags, *names, "activation_function"), path)
    for field in sizes:
        check_argument(f"{path}: {field}", config.get(field), COUNT)
    if config["in_features"] != width:
        raise invalid(
            f"{path}: in_features",
            config["in_features"],
            f"{width}, the width of the vectors before it",
        )
    _check_flags(config, flags, path)
    _check_names(config, names, path, embedding)
    return {
        "units": config["out_features"],
        "activation": read_activation(
            config.get("activation_function", ACTIVATIONS["tanh"]), f"{path}: activation_function"
        ),
        "use_bias": config.get("bias", True),
        "residual": config.get("use_residual", False),
    }


def read_dense_layers(
    files: FolderFiles, modules: Sequence[Module], width: int, embedding: str = SENTENCE
) -> list[dict[str, object]]:
    """Read the configurations of the Dense among modules, and check the shapes of their weights.

    Args:
        files: of the whole folder.
        modules: each reads the vectors of the one before it.
        width, embedding: as of `read_dense`, of the first.

    Returns:
        Entries of `dense` of `TextEmbedder`.
    """
    found = []
    for module in of_kind(modules, "Dense"):
        found.append(read_dense(files, module, width, embedding))
        _check_weights(files, module, found[-1], width)
        width = found[-1]["units"]
    return found


def read_splade_pooling(files: FolderFiles, module: Module) -> tuple[str, str]:
    """Read the configuration of a SpladePooling.

    Args:
        files: of the whole folder.
        module: the SpladePooling.

    Returns:
        The pooling and the activation of `SparseEncoder`.

    Raises:
        ValueError: If a field has a value that is not implemented.

    Source: sentence-transformers 6.2, `sparse_encoder/modules/splade_pooling.py`.
    """
    config, path = _module_config(files, module)
    sizes = ("embedding_dimension", "word_embedding_dimension")  # noted; the vocabulary's
    _check_fields(config, ("pooling_strategy", "activation_function", *sizes), path)
    pooling = config.get("pooling_strategy", "max")
    activation = config.get("activation_function", "relu")
    check_argument(f"{path}: pooling_strategy", pooling, one_of("max", "sum"))
    check_argument(f"{path}: activation_function", activation, one_of("relu", "log1p_relu"))
    return pooling, activation


def check_normalize(files: FolderFiles, module: Module, embedding: str = SENTENCE) -> None:
    """Check the configuration of a Normalize, if it has one.

    Args:
        files: of the whole folder.
        module: the Normalize.
        embedding: name of the tensor that it reads, `SENTENCE` or `TOKENS`.

    Raises:
        ValueError: If the module takes another input than the pooled vectors.
    """
    if f"{module.path}/{CONFIG}" in files:
        config, path = _module_config(files, module)
        names = ("module_input_name", "module_output_name")
        _check_fields(config, names, path)
        _check_names(config, names, path, embedding)


def read_activation(name: object, field: object, expected: tuple[str, ...] = ()) -> str:
    """Return our name of an activation, of the name of torch's class.

    Args:
        name: in a file.
        field: the file, for error messages.
        expected: our names of those that are allowed; all of `ACTIVATIONS` if there are none.

    Raises:
        ValueError: If the activation is not implemented.

    Example:
        >>> read_activation("torch.nn.modules.activation.Tanh", "config.json")
        'tanh'
    """
    known = {ours: ACTIVATIONS[ours] for ours in expected or ACTIVATIONS}
    classes = {theirs.split(".")[-1]: ours for ours, theirs in known.items()}
    matched = _ACTIVATION.fullmatch(name) if isinstance(name, str) else None
    if matched is None or matched[1] not in classes:
        names = ", ".join(known.values())
        raise invalid(f"{field}: the activation", name, f"one of {names}")
    return classes[matched[1]]


def _module_config(files: FolderFiles, module: Module) -> tuple[dict, object]:
    return files.read_json(CONFIG, module.path), files.path / module.path / CONFIG


def _check_fields(config: Mapping, known: tuple[str, ...], path: object) -> None:
    """Raise an error for a field that is not known: it may change the numbers."""
    if unknown := [name for name in config if name not in known]:
        raise ValueError(f"{path}: unknown field {shown(unknown[0])}. Expected {', '.join(known)}.")


def _check_flags(config: Mapping, names: tuple[str, ...], path: object) -> None:
    for name in config.keys() & names:
        check_argument(f"{path}: {name}", config[name], FLAG)


def _check_names(config: Mapping, names: tuple[str, ...], path: object, embedding: str) -> None:
    """Raise an error if a module reads or writes another tensor than the embedding."""
    for name in names:
        read_field(config, name, one_of(embedding), path)


# {attribute of a projection: name in its weights}
PT = {"format": "pt"}  # what transformers expects in a file of safetensors
_LAYERS = {"dense": "linear", "residual_dense": "residual"}


class ModuleCheckpoint(Checkpoint):
    """The weights of a module in a subfolder.

    Args:
        files: of the whole folder.
        module: with weights.
    """

    def __init__(self, files: FolderFiles, module: Module):
        self.files = Subfolder(files, module.path)
        weights = open_weights(self.files)
        self._tensors = {name: file for file in weights for name in file.shapes}
        self.shapes = {name: file.shapes[name] for name, file in self._tensors.items()}

    def tensor(self, name: str) -> np.ndarray:
        file = self._tensors[name]
        check_floats(file.dtype(name), file.path, name)
        return file.read(name)


def _check_weights(files: FolderFiles, module: Module, dense: Mapping, width: int) -> None:
    """Check the shapes of a Dense before a layer is made by its configuration.

    Args:
        files: of the whole folder.
        module: the Dense.
        dense: its settings, of `read_dense`.
        width: of the vectors before it.
    """
    units = dense["units"]
    expected = {"linear.weight": (units, width)}
    if dense["use_bias"]:
        expected["linear.bias"] = (units,)
    if dense["residual"] and units != width:
        expected["residual.weight"] = (units, width)
    found = ModuleCheckpoint(files, module).shapes
    if found != expected:
        raise ValueError(
            f"{files.path / module.path}: the weights are {shown(found)}. Expected {expected}, as "
            f"its {CONFIG} says."
        )


def load_dense(
    layer: keras.layers.Layer, files: FolderFiles, module: Module, allow_nonfinite: bool
) -> None:
    """Load the weights of a Dense.

    Args:
        layer: a `Projection`.
        files: of the whole folder.
        module: the Dense.
        allow_nonfinite: see `Safeguards`.

    Raises:
        ValueError: If the weights have other shapes.
    """
    advice = (
        " The pooling given is not the one that its dense layers take: leave it out, or pass "
        "dense=() as well."
    )
    _load(layer, ModuleCheckpoint(files, module), allow_nonfinite, advice)


def _load(
    layer: keras.layers.Layer, weights: Checkpoint, allow_nonfinite: bool, advice: str = ""
) -> None:
    """Assign weights to a `Projection`; advice is the end of the error if they do not fit."""
    matched, misfits = match(weights, layer, _LAYERS)
    if misfits:
        found = "; ".join(f"{name} {misfit}" for name, misfit in misfits.items())
        raise ValueError(f"{weights.folder}: {found}.{advice}")
    copy(weights, matched, allow_nonfinite)


def dense_files(
    layers: Sequence[keras.layers.Layer],
    paths: Sequence[str],
    width: int,
    name: str,
    dtype: object,
) -> dict[str, object]:
    """Return the files of Dense, one behind the other.

    Args:
        layers: of `Projection`.
        paths: the subfolder of each.
        width: of the vectors before the first.
        name: of the argument that they are of, for the error.
        dtype: of their weights; None stores them in their own.

    Raises:
        ValueError: If sentence-transformers does not read the activation of a layer.
    """
    files: dict[str, object] = {}
    for i, (layer, path) in enumerate(zip(layers, paths, strict=True)):
        files[f"{path}/{CONFIG}"] = _dense_config(layer, width, f"{name}[{i}]")
        files[f"{path}/{SAFETENSORS.file}"] = save(_arrays(layer, dtype), metadata=PT)
        width = layer.units
    return files


def _dense_config(layer: keras.layers.Layer, width: int, name: str) -> dict[str, object]:
    """Return the configuration of a Dense; `name` is for the error."""
    activation = "silu" if layer.activation == "swish" else layer.activation
    if activation not in ACTIVATIONS:
        raise invalid(
            f"{name}: activation",
            activation,
            f"one that sentence-transformers reads, {', '.join(ACTIVATIONS)}",
        )
    return {
        "in_features": width,
        "out_features": layer.units,
        "bias": layer.use_bias,
        "activation_function": ACTIVATIONS[activation],
        **({"use_residual": True} if layer.residual else {}),
    }


def _arrays(layer: keras.layers.Layer, dtype: object) -> dict[str, np.ndarray]:
    """Return the weights of a `Projection` by their names in files."""
    for path in _LAYERS:
        check_not_quantized(layer, path)
    return {
        name: stored_array(weight, transposed, dtype)
        for name, weight, transposed in named_weights(layer, _LAYERS)
    }


class LinearFile(Checkpoint):
    """The weights of a linear layer in a file of its own, as BGE-M3 has them.

    Args:
        files: of the folder.
        name: of a file of torch.save with "weight", and "bias" or not.

    Raises:
        ValueError: If the file holds tensors other than a weight and a bias that fit together.

    Source: FlagEmbedding 1.4, `finetune/embedder/encoder_only/m3/modeling.py`.
    """

    def __init__(self, files: FolderFiles, name: str):
        self.files, self._name = files, name
        self._file = PyTorchFile(files.file(name))
        found = self._file.shapes
        units, width = weight if len(weight := found.get("weight", ())) == 2 else (0, 0)
        biases = {"bias": (units,)} if "bias" in found else {}
        if not width or found != {"weight": (units, width), **biases}:
            raise ValueError(
                f"{self._file.path}: its tensors are {shown(found)}. Expected weight (units, "
                "width), and bias (units,) if there is one."
            )
        self.units, self.width, self.use_bias = units, width, "bias" in found
        self.shapes = {f"linear.{name}": shape for name, shape in found.items()}

    @property
    def folder(self) -> pathlib.Path:
        """Path of the file, for error messages."""
        return self.files.path / self._name

    def tensor(self, name: str) -> np.ndarray:
        name = name.removeprefix("linear.")
        check_floats(self._file.dtype(name), self._file.path, name)
        return self._file.read(name)

    def check_width(self, width: int) -> None:
        """Raise an error if the layer does not read vectors of the encoder.

        Args:
            width: of the encoder's vectors.
        """
        if self.width != width:
            raise ValueError(
                f"{self._file.path}: weight takes vectors of width {self.width}. Expected {width}, "
                "the width of the encoder's vectors."
            )

    def load(self, layer: keras.layers.Layer, allow_nonfinite: bool) -> None:
        """Assign the weights to a `Projection`.

        Raises:
            ValueError: If the weights have other shapes.
        """
        _load(layer, self, allow_nonfinite)


def linear_bytes(layer: keras.layers.Layer, dtype: object) -> bytes:
    """Return the file of torch.save for the linear layer of a `Projection`."""
    arrays = _arrays(layer, dtype)
    return pytorch_bytes({name.removeprefix("linear."): a for name, a in arrays.items()})
