"""Training options for encoders: gradient checkpointing, low-rank updates and multiple devices.

This module also traces identical blocks only once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.context import get_context
from encoder_zoo.common.layers import (
    get_frozen_kernel,
    list_attributes,
    list_direct_weights,
    list_innermost_layers,
    list_layers,
    remove_lora,
)
from encoder_zoo.common.lazy import keras, ops, tf
from encoder_zoo.common.wording import invalid

if TYPE_CHECKING:
    from encoder_zoo.encoders.core import Encoder

# Paths start with the name of the backbone, which is chosen by users and contains no slashes.
BLOCK_PATH = r"[^/]+/(\w+_)?block_\d+/"
# The first matrix is split by columns and the second matrix by rows, so a single sum is needed.
PROJECTIONS = r"(cross_)?attention/(global_)?(query|key|value|query_key_value|distance)"
SPLIT_COLUMNS = (PROJECTIONS, "intermediate", "gate", "up")
SPLIT_ROWS = (r"(cross_)?attention/output", "output")
TOKEN_TABLE = r"[^/]+/(\w+_)?embeddings/token_embedding/embeddings"


def recompute_block(
    block: keras.layers.Layer, x: keras.KerasTensor, context: Mapping
) -> keras.KerasTensor:
    """Compute `block(x, training=True, **context)` with gradient checkpointing.

    Args:
        block: A layer. Intermediate values will not be stored, but computed again for the
            gradients.
        x: Tensor of shape (B, L, D).
        context: Dictionary of additional arguments, which can be nested. Floating-point tensors
            also get a gradient.

    Returns:
        Tensor of shape (B, L, D).

    Raises:
        ValueError: If the block adds losses with `add_loss`, or updates a metric or a weight, such
            as the moving averages of BatchNormalization.

    Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, section 4.
    """
    # `keras.remat` calls the block twice. To use the same dropout mask, the block is called as a
    # function of weights and random generator states.
    generators = [
        layer.seed_generator
        for layer in list_layers(block)
        if isinstance(layer, keras.layers.Dropout) and layer.rate
    ]
    states = [(g.state, ops.copy(g.state)) for g in generators]  # before the first call
    redrawn = {id(state) for state, _ in states}

    # Gradients are computed for all arguments, but not for captured tensors. As TensorFlow requires
    # a gradient for each argument, masks cannot be arguments.
    leaves = keras.tree.flatten(dict(context))
    floats = [
        i
        for i, leaf in enumerate(leaves)
        if hasattr(leaf, "dtype") and "float" in keras.backend.standardize_dtype(leaf.dtype)
    ]

    def call(x, *arguments):
        weights, differentiable = arguments[: len(block.weights)], arguments[len(block.weights) :]
        given = dict(zip(floats, differentiable, strict=True))
        leaves_now = [given.get(i, leaf) for i, leaf in enumerate(leaves)]
        mapping = [*zip(block.weights, weights, strict=True), *states]
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            now = keras.tree.pack_sequence_as(dict(context), leaves_now)
            before = dict(scope.state_mapping)
            y = block(x, training=True, **now)
        updated = [
            v.path
            for v in (*block.variables, *block.metrics_variables)
            if id(v) not in redrawn and scope.get_current_value(v) is not before.get(id(v))
        ]
        if scope.losses or updated:
            action = "adds a loss" if scope.losses else f"updates the variable {updated[0]}"
            raise ValueError(
                f"A layer in {type(block).__name__} {block.name!r} {action}, which is not "
                "supported with gradient checkpointing. Train without "
                "`enable_gradient_checkpointing`."
            )
        return y

    # Pass copies, because TensorFlow counts the gradient of a variable twice in eager mode.
    weights = [ops.copy(weight) for weight in block.weights]
    y = keras.remat(call)(x, *weights, *(ops.copy(leaves[i]) for i in floats))
    for generator in generators:  # the same generator can be included several times
        generator.next()
    return y


def call_block(
    block: keras.layers.Layer, x: keras.KerasTensor, context: Mapping, training: bool | None
) -> keras.KerasTensor:
    """Compute `block(x, training=training, **context)`, and trace identical blocks only once.

    Traces are only shared if `Context.blocks` is a dictionary, which stores the traced functions.

    Args:
        block: A layer. It can share a trace if its constructor arguments describe it (see
            `ConfigFromSignature`).
        x: Tensor of shape (B, L, D).
        context: Dictionary of additional arguments, which can be nested.
        training: Optional boolean. Whether the block applies dropout.
    """
    functions = get_context().blocks
    is_described = isinstance(block, ConfigFromSignature)
    if functions is None or not is_described or tf.executing_eagerly():
        return block(x, training=training, **context)
    # The variables include the states of random generators.
    variables = [*block.variables, *block.metrics_variables]

    def call(x, values):
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            y = block(x, training=training, **context)
            now = [scope.get_current_value(variable) for variable in variables]
        return y, {i: v for i, v in enumerate(now) if v is not values[i]}, scope.losses

    # The tensors in the context are captured, because many blocks share them.
    key = _describe_block(block), training, *map(id, keras.tree.flatten(dict(context)))
    function = functions.setdefault(key, tf.function(call, autograph=False))
    y, changed, losses = function(x, [variable.value for variable in variables])
    for i, value in changed.items():
        variables[i].assign(value)
    block.add_loss(losses)
    return y


def _describe_block(block: keras.layers.Layer) -> str:
    """Return a description of a block. Blocks with equal descriptions can share a trace.

    The description contains the types and dtype policies of the layers, and the shape, dtype and
    `trainable` of each variable. Other attributes that every Keras layer has are not included. All
    remaining attributes are included, because custom layers can depend on them.
    """
    layers = []
    for layer in list_layers(block):
        given = {n: v for n, v in vars(layer).items() if not _is_keras_attribute(n)}
        policy = layer.dtype_policy.get_config()
        layers.append((type(layer), policy, {n: _describe_value(v) for n, v in given.items()}))
    return repr((layers, [(v.shape, v.dtype, v.trainable) for v in block.variables]))


def _is_keras_attribute(name: str) -> bool:
    """Return whether every Keras layer has this attribute, such as its name and path.

    TensorFlow adds attributes that begin with "_self_".
    """
    return name in _list_keras_attributes() or name.startswith("_self_")


@functools.cache
def _list_keras_attributes() -> frozenset[str]:
    return frozenset(vars(keras.layers.Layer(name="layer")))


def _describe_value(value: object) -> object:
    if isinstance(value, keras.Variable | keras.layers.Layer | keras.random.SeedGenerator):
        return type(value)  # these objects are described elsewhere, or are passed as arguments
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {name: _describe_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_describe_value(inner) for inner in value]
    if hasattr(value, "get_config") and not isinstance(value, type):  # such as an initializer
        return type(value), value.get_config()
    return "object", id(value)  # such as an array, a function or a class


# Names of attributes for biases (e.g. "bias", "bias_hh" or "query_bias"), and for the scale and
# offset in normalization layers.
_UNDECAYED = re.compile(r"(.*_)?bias(es)?(_.*)?|gamma|beta")
_NORMALIZATIONS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.RMSNormalization,
)


def list_undecayed(model: keras.layers.Layer) -> list[keras.Variable]:
    """Find weights to exclude from weight decay: biases, and all weights in normalization layers.

    Weights are selected by layer type and attribute name. The names of layers are ignored, because
    users can choose them. To exclude more weights, a layer can list attribute names in
    `without_weight_decay`.

    Args:
        model: A layer or model.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(2, name="bias")], name="norm")
        >>> model.build((None, 3))
        >>> [weight.path for weight in list_undecayed(model)]
        ['norm/bias/bias']
    """
    found = []
    for layer in list_layers(model):
        own = list_direct_weights(layer)
        named = [v for name, v in list_attributes(layer).items() if _UNDECAYED.fullmatch(name)]
        held = {id(value) for value in keras.tree.flatten(named)}
        is_norm = isinstance(layer, _NORMALIZATIONS)
        found += [weight for weight in own if is_norm or id(weight) in held]
        for name in getattr(type(layer), "without_weight_decay", ()):
            part = getattr(layer, name)
            found += part.weights if isinstance(part, keras.layers.Layer) else [part]
    return found


def choose_layers(backbone: Encoder, names: Sequence[str] | None) -> list[keras.layers.Dense]:
    """Find the dense layers with certain names in all blocks.

    Args:
        backbone: The encoder.
        names: List of strings, for example "query" or "output". A name is an attribute name without
            the suffix "_dense". If None, the query and value layers of the attention are selected.

    Raises:
        ValueError: If one of the `names` is not a dense layer of the blocks.

    Example:
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, 2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> [layer.name for layer in choose_layers(backbone, ["intermediate"])]
        ['intermediate', 'intermediate']
    """
    blocks = dict.fromkeys(backbone.blocks)
    if names is None:
        return [layer for block in blocks for layer in block.attention.lora_layers]
    named = [pair for block in blocks for pair in _list_dense_layers(block)]
    known = {name for name, _ in named}
    unknown = sorted(set(names) - known)
    if unknown or not names:
        raise invalid("layers", unknown or names, f"names from {', '.join(sorted(known))}")
    return list(dict.fromkeys(layer for name, layer in named if name in names))


def _list_dense_layers(layer: keras.layers.Layer) -> Iterator[tuple[str, keras.layers.Dense]]:
    """Yield the attribute name and the layer for all nested dense layers."""
    for owner in list_layers(layer):
        for attribute, value in list_attributes(owner).items():
            for inner in keras.tree.flatten(value):
                if isinstance(inner, keras.layers.Dense | keras.layers.EinsumDense):
                    yield attribute.removesuffix("_dense"), inner


def add_low_rank_updates(backbone: Encoder, updates: Mapping[keras.layers.Dense, tuple]) -> None:
    """Freeze a backbone, and train low-rank updates for some layers.

    Biases are also frozen, as with `bias="none"` in peft. Existing updates are kept if they have
    the requested rank and alpha. Otherwise, they are removed.

    Args:
        backbone: The encoder.
        updates: Dictionary that maps dense layers to `(rank, alpha)`. The product of the two update
            matrices is multiplied by alpha / rank.

    Raises:
        ValueError: If a layer cannot have an update. In this case, nothing is changed.

    Source: Hu et al. 2022, LoRA, sections 4.1 and 4.2.
    """
    check_supports_lora(updates)
    present = find_low_rank_updates(backbone)
    if present != updates:
        for layer in present:
            remove_lora(layer)
        for layer, (rank, alpha) in updates.items():
            layer.enable_lora(rank, lora_alpha=alpha)
        backbone.layers_version += 1
        backbone.train_function = backbone.test_function = backbone.predict_function = None
    for layer in list_innermost_layers(backbone):
        layer.trainable = False
    for layer in updates:
        layer.trainable = True
        for weight in (get_frozen_kernel(layer), layer.bias):
            if weight is not None:
                weight.trainable = False


def check_supports_lora(layers: Iterable[keras.layers.Dense]) -> None:
    """Raise a ValueError if a layer does not support low-rank updates."""
    for layer in layers:
        if layer.kernel_constraint is not None:
            raise ValueError(
                f"The layer {layer.path} cannot have a low-rank update, because it has a kernel "
                "constraint. Choose different layers."
            )
        if layer.quantization_mode in ("gptq", "awq"):
            raise ValueError(
                f"The layer {layer.path} cannot have a low-rank update, because it is quantized "
                f"({layer.quantization_mode}). Call `enable_lora` before `quantize`, or choose "
                "different layers."
            )


def find_low_rank_updates(model: keras.layers.Layer) -> dict[keras.layers.Layer, tuple]:
    """Return the rank and alpha of each layer that has a low-rank update."""
    return {
        layer: (layer.lora_rank, layer.lora_alpha)
        for layer in list_layers(model)
        if getattr(layer, "lora_enabled", False)
    }


def make_megatron_layout(
    mesh: keras.distribution.DeviceMesh, vocabulary_size: int | None = None
) -> keras.distribution.LayoutMap:
    """Create a layout map for the weights of any family. See `Backbone.layout_map`."""
    if len(mesh.axis_names) != 2:
        raise invalid(
            "mesh.axis_names",
            mesh.axis_names,
            "two axes, one for the batch and one for the weights, for example "
            "keras.distribution.DeviceMesh((2, 4), ('batch', 'model'), devices)",
        )
    axis, parts = mesh.axis_names[1], mesh.shape[1]
    layout = keras.distribution.LayoutMap(mesh)
    for names in SPLIT_COLUMNS:
        layout[f"{BLOCK_PATH}{names}/kernel"] = (None, axis)
        layout[f"{BLOCK_PATH}{names}/bias"] = (axis,)
    for names in SPLIT_ROWS:
        layout[f"{BLOCK_PATH}{names}/kernel"] = (axis, None)
    by_token = vocabulary_size is not None and vocabulary_size % parts == 0
    layout[TOKEN_TABLE] = (axis, None) if by_token else (None, axis)
    return layout
