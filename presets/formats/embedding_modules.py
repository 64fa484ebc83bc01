"""Read modules of sentence-transformers such as Pooling and Dense, and write Dense modules."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping, Sequence

import numpy as np
from safetensors.numpy import save

from encoder_zoo.common.lazy import keras
from encoder_zoo.common.validation import check_argument, one_of
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets.files.folder_files import FolderFiles, Subfolder
from encoder_zoo.presets.files.json_data import COUNT, JSON_FLAG, read_field
from encoder_zoo.presets.files.pytorch_file import PyTorchFile, encode_pytorch_file
from encoder_zoo.presets.formats.checkpoint import (
    Checkpoint,
    check_not_quantized,
    copy_tensors,
    map_weights,
    match_weights,
)
from encoder_zoo.presets.formats.huggingface import StoredTensor, TensorFiles, open_weights
from encoder_zoo.presets.formats.preset_files import CONFIG, SAFETENSORS
from encoder_zoo.presets.formats.sentence_transformers import Module, select_modules

# Pooled vectors are concatenated in this order.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# {activation in Keras: class in PyTorch}
TORCH_ACTIVATIONS = {
    "tanh": "torch.nn.modules.activation.Tanh",
    "linear": "torch.nn.modules.linear.Identity",
    "gelu": "torch.nn.modules.activation.GELU",
    "relu": "torch.nn.modules.activation.ReLU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "silu": "torch.nn.modules.activation.SiLU",
}
_ACTIVATION = re.compile(r"torch\.nn\.(?:modules\.\w+\.)?(\w+)")
# Names of the input tensor of a module: one vector per text, or one vector per token.
SENTENCE, TOKEN_OUTPUTS = "sentence_embedding", "token_embeddings"


def read_pooling(
    files: FolderFiles, module: Module, width: int | None
) -> tuple[str | list[str], bool]:
    """Read the configuration of a Pooling module.

    Args:
        files: `FolderFiles`. All files in the preset folder.
        module: Pooling `Module` to read.
        width: Optional integer. Encoder output dimension. If None, dimensions are not checked.

    Returns:
        A tuple (`pooling` argument of `TextEmbedder`, whether prompts are included in pooling).

    Raises:
        ValueError: If a field value is invalid, or if a dimension differs from `width`.
    """
    config, path = _read_module_config(files, module)
    own = ("embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt")
    check_fields(config, (*own, *POOLING_FLAGS), path)
    for field in own[:2]:
        if width is not None and config.get(field, width) != width:
            raise invalid(
                f"{path}: {field}", config[field], f"{width}, the output dimension of the encoder"
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
            f"one of {', '.join(known)}, or a list of these names",
        )
    return modes[0] if len(modes) == 1 else modes, config.get("include_prompt", True)


def read_dense(
    files: FolderFiles, module: Module, width: int, embedding: str = SENTENCE
) -> dict[str, object]:
    """Read the configuration of a Dense module.

    Args:
        files: `FolderFiles`. The files of the whole folder.
        module: Dense `Module` to read.
        width: Integer. The input vector dimension.
        embedding: String. Input tensor name, `SENTENCE` or `TOKEN_OUTPUTS`. Defaults to `SENTENCE`.

    Returns:
        A dict for the `dense` argument of `TextEmbedder`.

    Raises:
        ValueError: If a field value is invalid, or if `in_features` differs from `width`.
    """
    config, path = _read_module_config(files, module)
    sizes, flags = ("in_features", "out_features"), ("bias", "use_residual")
    names = ("module_input_name", "module_output_name")
    check_fields(config, (*sizes, *flags, *names, "activation_function"), path)
    for field in sizes:
        check_argument(f"{path}: {field}", config.get(field), COUNT)
    if config["in_features"] != width:
        raise invalid(
            f"{path}: in_features",
            config["in_features"],
            f"{width}, the dimension of the input vectors",
        )
    _check_flags(config, flags, path)
    _check_tensor_names(config, names, path, embedding)
    return {
        "units": config["out_features"],
        "activation": read_activation(
            config.get("activation_function", TORCH_ACTIVATIONS["tanh"]),
            f"{path}: activation_function",
        ),
        "use_bias": config.get("bias", True),
        "residual": config.get("use_residual", False),
    }


def read_dense_layers(
    files: FolderFiles, modules: Sequence[Module], width: int, embedding: str = SENTENCE
) -> list[dict[str, object]]:
    """Read the configurations of all Dense modules, and check the shapes of the weights.

    Args:
        files: `FolderFiles`. The files of the whole folder.
        modules: Sequence of `Module` objects. The output of each module is the input of the next
            module.
        width: Integer. Input dimension of the first module.
        embedding: String. See `read_dense`. Defaults to `SENTENCE`.

    Returns:
        A list of dicts for the `dense` argument of `TextEmbedder`.
    """
    found = []
    for module in select_modules(modules, "Dense"):
        found.append(read_dense(files, module, width, embedding))
        _check_weights(files, module, found[-1], width)
        width = found[-1]["units"]
    return found


def read_splade_pooling(files: FolderFiles, module: Module) -> tuple[str, str]:
    """Read the configuration of a SpladePooling module.

    Args:
        files: `FolderFiles`. The files of the whole folder.
        module: SpladePooling `Module` to read.

    Returns:
        A tuple of the arguments `pooling` and `activation` of `SparseEncoder`.

    Raises:
        ValueError: If a field value is not supported.

    Source: sentence-transformers 6.2, `sparse_encoder/modules/splade_pooling.py`.
    """
    config, path = _read_module_config(files, module)
    # These sizes are not used, because the weights determine them.
    sizes = ("embedding_dimension", "word_embedding_dimension")
    check_fields(config, ("pooling_strategy", "activation_function", *sizes), path)
    pooling = config.get("pooling_strategy", "max")
    activation = config.get("activation_function", "relu")
    check_argument(f"{path}: pooling_strategy", pooling, one_of("max", "sum"))
    check_argument(f"{path}: activation_function", activation, one_of("relu", "log1p_relu"))
    return pooling, activation


def check_normalize(files: FolderFiles, module: Module, embedding: str = SENTENCE) -> None:
    """Check the configuration file of a Normalize module, if the file exists.

    Args:
        files: `FolderFiles`. All files in the preset folder.
        module: Normalize `Module` to check.
        embedding: String. See `read_dense`. Defaults to `SENTENCE`.

    Raises:
        ValueError: If `module` reads or writes a different tensor from `embedding`.
    """
    if f"{module.path}/{CONFIG}" in files:
        config, path = _read_module_config(files, module)
        names = ("module_input_name", "module_output_name")
        check_fields(config, names, path)
        _check_tensor_names(config, names, path, embedding)


def read_activation(name: object, field: object, expected: tuple[str, ...] = ()) -> str:
    """Convert the name of an activation class in PyTorch to the name in Keras.

    Args:
        name: Class name from a file, such as "torch.nn.modules.activation.Tanh".
        field: File name and field for error messages.
        expected: Tuple of strings. Activations in Keras that are allowed. If empty, all activations
            in `TORCH_ACTIVATIONS` are allowed. Defaults to ().

    Raises:
        ValueError: If the activation is not supported.

    Example:
        >>> read_activation("torch.nn.modules.activation.Tanh", "config.json")
        'tanh'
    """
    known = {ours: TORCH_ACTIVATIONS[ours] for ours in expected or TORCH_ACTIVATIONS}
    classes = {theirs.split(".")[-1]: ours for ours, theirs in known.items()}
    matched = _ACTIVATION.fullmatch(name) if isinstance(name, str) else None
    if matched is None or matched[1] not in classes:
        names = ", ".join(known.values())
        raise invalid(f"{field}: activation", name, f"one of {names}")
    return classes[matched[1]]


def _read_module_config(files: FolderFiles, module: Module) -> tuple[dict, object]:
    inner = Subfolder(files, module.path)
    return inner.read_json(CONFIG), inner.path / CONFIG


def check_fields(config: Mapping, known: tuple[str, ...], path: object) -> None:
    """Raise a ValueError for an unknown field, which could change the outputs."""
    if unknown := [name for name in config if name not in known]:
        raise ValueError(
            f"{path} contains the unknown field {quote(unknown[0])}. Expected {', '.join(known)}."
        )


def _check_flags(config: Mapping, names: tuple[str, ...], path: object) -> None:
    for name in config.keys() & names:
        check_argument(f"{path}: {name}", config[name], JSON_FLAG)


def _check_tensor_names(
    config: Mapping, fields: tuple[str, ...], path: object, embedding: str
) -> None:
    """Raise a ValueError if a module reads or writes an unexpected tensor."""
    for field in fields:
        read_field(config, field, one_of(embedding), path)


SAFETENSORS_METADATA = {"format": "pt"}  # metadata that transformers expects in safetensors files
# {attribute of a projection: name of the weights in the file}
_LAYERS = {"dense": "linear", "residual_dense": "residual"}


class ModuleCheckpoint(TensorFiles):
    """Checkpoint with the weights of a module in a subfolder.

    Args:
        files: `FolderFiles`. The files of the whole folder.
        module: The `Module` to open.
    """

    def __init__(self, files: FolderFiles, module: Module):
        inner = Subfolder(files, module.path)
        weights = open_weights(inner)
        super().__init__(inner, {n: StoredTensor(file, n) for file in weights for n in file.shapes})


def _check_weights(files: FolderFiles, module: Module, dense: Mapping, width: int) -> None:
    """Check the shapes of the weights of a Dense module before the layer is created.

    Args:
        files: `FolderFiles`. The files of the whole folder.
        module: Dense `Module` to check.
        dense: Dict. The result of `read_dense`.
        width: Integer. The input vector dimension.
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
            f"{files.path / module.path}: the weights have the shapes {quote(found)}. Expected "
            f"{expected} according to {CONFIG}."
        )


def load_dense(layer: keras.layers.Layer, weights: Checkpoint, advice: str = "") -> None:
    """Load the weights of a dense layer.

    Args:
        layer: `Projection` layer to assign the weights to.
        weights: `Checkpoint` with the tensors "linear.weight" and, if necessary, "linear.bias" and
            "residual.weight", such as a `ModuleCheckpoint` or a `LinearFile`.
        advice: String. Last sentence of error messages, after a space. Defaults to "".

    Raises:
        ValueError: If a stored weight is missing, or has a different shape from the weight in
            `layer`.
    """
    matched, misfits = match_weights(weights, layer, _LAYERS)
    if misfits:
        found = "; ".join(f"{name} {misfit}" for name, misfit in misfits.items())
        raise ValueError(f"{weights.folder}: {found}.{advice}")
    copy_tensors(weights, matched)


def make_dense_files(
    layers: Sequence[keras.layers.Layer], paths: Sequence[str], width: int, name: str, dtype: object
) -> dict[str, object]:
    """Create the files for a sequence of Dense modules.

    Args:
        layers: Sequence of `Projection` layers.
        paths: Sequence of strings. The subfolder of each layer.
        width: Integer. Input dimension of the first layer.
        name: String. Name of the argument with the layers, for error messages.
        dtype: Dtype of the stored weights. If None, every weight keeps its dtype.

    Returns:
        A dict {file path: content}.

    Raises:
        ValueError: If sentence-transformers does not support an activation.
    """
    files: dict[str, object] = {}
    for i, (layer, path) in enumerate(zip(layers, paths, strict=True)):
        files[f"{path}/{CONFIG}"] = _make_dense_config(layer, width, f"{name}[{i}]")
        files[f"{path}/{SAFETENSORS.file}"] = save(
            _map_arrays(layer, dtype), metadata=SAFETENSORS_METADATA
        )
        width = layer.units
    return files


def _make_dense_config(layer: keras.layers.Layer, width: int, name: str) -> dict[str, object]:
    """Create the configuration of a Dense module. The name is used in error messages."""
    activation = "silu" if layer.activation == "swish" else layer.activation
    if activation not in TORCH_ACTIVATIONS:
        raise invalid(
            f"{name}: activation",
            activation,
            f"one of {', '.join(TORCH_ACTIVATIONS)}, as supported by sentence-transformers",
        )
    return {
        "in_features": width,
        "out_features": layer.units,
        "bias": layer.use_bias,
        "activation_function": TORCH_ACTIVATIONS[activation],
        **({"use_residual": True} if layer.residual else {}),
    }


def _map_arrays(layer: keras.layers.Layer, dtype: object) -> dict[str, np.ndarray]:
    """Map tensor names in a file to the arrays of a `Projection`."""
    for path in _LAYERS:
        check_not_quantized(layer, path)
    return {n: weight.make_array(dtype) for n, weight in map_weights(layer, _LAYERS).items()}


class LinearFile(TensorFiles):
    """Weights of a linear layer in a separate file, as in BGE-M3.

    Args:
        files: `FolderFiles`. The files of the preset.
        name: String. The name of a PyTorch file with the tensors "weight" and optionally "bias".

    Raises:
        ValueError: If the file contains unexpected tensors or shapes.

    Source: FlagEmbedding 1.4, `finetune/embedder/encoder_only/m3/modeling.py`.
    """

    def __init__(self, files: FolderFiles, name: str):
        self._name, self._file = name, PyTorchFile(files.open_file(name))
        found = self._file.shapes
        units, width = weight if len(weight := found.get("weight", ())) == 2 else (0, 0)
        biases = {"bias": (units,)} if "bias" in found else {}
        if not width or found != {"weight": (units, width), **biases}:
            raise ValueError(
                f"{self._file.path}: the tensors have the shapes {quote(found)}. Expected a weight "
                "of shape (units, width), and optionally a bias of shape (units,)."
            )
        self.units, self.width, self.use_bias = units, width, "bias" in found
        super().__init__(files, {f"linear.{n}": StoredTensor(self._file, n) for n in found})

    @property
    def folder(self) -> pathlib.Path:
        """File path for error messages."""
        return self.files.path / self._name

    def check_width(self, width: int) -> None:
        """Raise a ValueError if the layer and the encoder have different dimensions.

        Args:
            width: Integer. Encoder output dimension.
        """
        if self.width != width:
            raise ValueError(
                f"{self._file.path}: the weight has input dimension {self.width}. Expected "
                f"{width}, the output dimension of the encoder."
            )


def encode_linear_file(layer: keras.layers.Layer, dtype: object) -> bytes:
    """Encode the weights of a `Projection` as a PyTorch file with a linear layer."""
    arrays = _map_arrays(layer, dtype)
    return encode_pytorch_file({name.removeprefix("linear."): a for name, a in arrays.items()})
