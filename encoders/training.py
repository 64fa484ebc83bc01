"""Ways of training an encoder: with less memory, by low-rank updates, over several devices; and
blocks that are traced once."""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from encoder_zoo.common.keras_private import (
    attributes_of,
    frozen_kernel,
    innermost_layers,
    layers_in,
    own_variables,
    remove_lora,
)
from encoder_zoo.common.lazy import keras, ops, tf
from encoder_zoo.common.wording import invalid

if TYPE_CHECKING:
    from encoder_zoo.encoders.core import Encoder

# Paths begin with the backbone's name, which the user chooses: exactly one part.
BLOCK = r"[^/]+/(\w+_)?block_\d+/"
# Columns of a product's first matrix and rows of its second, so that devices add up once for it.
PROJECTIONS = r"(cross_)?attention/(query|key|value|query_key_value|distance)"
COLUMNS = (PROJECTIONS, "intermediate", "gate", "up")
ROWS = (r"(cross_)?attention/output", "output")
TOKENS = r"[^/]+/(\w+_)?embeddings/token_embedding/embeddings"


def recomputed(
    block: keras.layers.Layer, x: keras.KerasTensor, context: Mapping
) -> keras.KerasTensor:
    """Return `block(x, training=True, **context)`, and keep only its inputs for the gradients.

    Args:
        block: its inner values are computed a second time when gradients are taken.
        x: (B, L, D).
        context: other arguments of the block, tensors or nested structures of them; those of
            floating point are differentiated too.

    Returns:
        (B, L, D).

    Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, section 4.
    """
    # Keras's remat repeats a call as it is: a second draw of dropout would be another one. Here
    # the call is a function of the weights and of the state of the random generators.
    generators = [
        layer.seed_generator
        for layer in layers_in(block)
        if isinstance(layer, keras.layers.Dropout) and layer.rate
    ]
    states = [(g.state, ops.copy(g.state)) for g in generators]  # before the draws below

    # Gradients reach arguments alone, not tensors that the function closes over; and TensorFlow
    # asks for a gradient by each argument, so that masks must not be among them.
    leaves = keras.tree.flatten(dict(context))
    floats = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]

    def call(x, *arguments):
        weights, differentiable = arguments[: len(block.weights)], arguments[len(block.weights) :]
        given = dict(zip(floats, differentiable, strict=True))
        leaves_now = [given.get(i, leaf) for i, leaf in enumerate(leaves)]
        mapping = [*zip(block.weights, weights, strict=True), *states]
        with keras.StatelessScope(state_mapping=mapping):
            now = keras.tree.pack_sequence_as(dict(context), leaves_now)
            return block(x, training=True, **now)

    # Copies, as a variable among the arguments would get its gradient twice when run eagerly.
    weights = [ops.copy(weight) for weight in block.weights]
    y = keras.remat(call)(x, *weights, *(ops.copy(leaves[i]) for i in floats))
    for generator in generators:  # each drawn from once
        generator.next()
    return y


# {what blocks have in common: their function}, of the graph that TensorFlow is tracing; or None.
_functions = contextvars.ContextVar("functions_of_blocks", default=None)


@contextlib.contextmanager
def blocks_traced_once() -> Iterator[None]:
    """Return a context in which TensorFlow traces blocks that are alike once for a graph.

    Most of a trace are the blocks: it takes half the time for six of them. The graph that runs has
    the same operations, as TensorFlow puts a function's in the place of each call.
    """
    token = _functions.set({})
    try:
        yield
    finally:
        _functions.reset(token)


def call_block(
    block: keras.layers.Layer, x: keras.KerasTensor, context: Mapping, training: bool | None
) -> keras.KerasTensor:
    """Return `block(x, training=training, **context)`, inside `blocks_traced_once` by a function.

    Args:
        block: of this package's; others are called as they are, as what they are made of is not
            known.
        x: (B, L, D).
        context: other arguments of the block, tensors or nested structures of them.
        training: whether the block drops.
    """
    functions = _functions.get()
    ours = type(block).__module__.startswith("encoder_zoo.")
    if functions is None or not ours or tf.executing_eagerly():
        return block(x, training=training, **context)
    variables = block.variables  # those of random generators too

    def call(x, values):
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            y = block(x, training=training, **context)
            now = [scope.get_current_value(variable) for variable in variables]
        return y, {i: v for i, v in enumerate(now) if v is not values[i]}

    # The context's tensors, the same ones for many blocks, are captured.
    key = _likeness(block), training, *map(id, keras.tree.flatten(dict(context)))
    function = functions.setdefault(key, tf.function(call, autograph=False))
    y, changed = function(x, [variable.value for variable in variables])
    for i, value in changed.items():
        variables[i].assign(value)
    return y


def _likeness(block: keras.layers.Layer) -> str:
    """Return what a block's trace depends on: its layers, their settings, and their weights."""
    layers = [
        (type(layer), layer.get_config() | {"name": None, "call": vars(layer).get("call")})
        for layer in layers_in(block)  # a `call` of its own: somebody watches the layer
    ]
    return repr((layers, [(v.shape, v.dtype, v.trainable) for v in block.variables]))


def _is_float(leaf) -> bool:
    return hasattr(leaf, "dtype") and "float" in keras.backend.standardize_dtype(leaf.dtype)


# Attributes of layers that hold a bias, such as "bias", "bias_hh" and "query_bias", or what a
# normalization multiplies and adds.
_UNDECAYED = re.compile(r"(.*_)?bias(es)?(_.*)?|gamma|beta")
_NORMALIZATIONS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.RMSNormalization,
)


def undecayed_weights(model: keras.layers.Layer) -> list[keras.Variable]:
    """Return the weights without weight decay: biases, and the weights of normalization layers.

    The layer decides by its type and by the attribute that holds the weight. Names do not count,
    as users choose them. A layer with other biases lists their attributes in
    `without_weight_decay`.

    Args:
        model: Any layer or model.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(2, name="bias")], name="norm")
        >>> model.build((None, 3))
        >>> [weight.path for weight in undecayed_weights(model)]
        ['norm/bias/bias']
    """
    found = []
    for layer in layers_in(model):
        own = own_variables(layer)
        named = [v for name, v in attributes_of(layer).items() if _UNDECAYED.fullmatch(name)]
        held = {id(value) for value in keras.tree.flatten(named)}
        is_norm = isinstance(layer, _NORMALIZATIONS)
        found += [weight for weight in own if is_norm or id(weight) in held]
        for name in getattr(type(layer), "without_weight_decay", ()):
            part = getattr(layer, name)
            found += part.weights if isinstance(part, keras.layers.Layer) else [part]
    return found


def choose_layers(backbone: Encoder, names: Sequence[str] | None) -> list[keras.layers.Dense]:
    """Return the dense layers of all blocks that have one of some names.

    Args:
        backbone: the encoder.
        names: such as "query" or "output", the attributes that hold the layers, without "_dense".
            None for the attention's query and value projections.

    Raises:
        ValueError: If a layer does not exist.

    Example:
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, 2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> [layer.name for layer in choose_layers(backbone, ["intermediate"])]
        ['intermediate', 'intermediate']
    """
    blocks = dict.fromkeys(backbone.blocks)
    if names is None:
        return [layer for block in blocks for layer in block.attention.lora_layers]
    named = [pair for block in blocks for pair in _dense_layers(block)]
    known = {name for name, _ in named}
    unknown = sorted(set(names) - known)
    if unknown or not names:
        raise invalid("layers", unknown or names, f"some of {', '.join(sorted(known))}")
    return list(dict.fromkeys(layer for name, layer in named if name in names))


def _dense_layers(layer: keras.layers.Layer) -> Iterator[tuple[str, keras.layers.Dense]]:
    """Yield the dense layers inside a layer, with the attributes that hold them."""
    for owner in layers_in(layer):
        for attribute, value in attributes_of(owner).items():
            for inner in keras.tree.flatten(value):
                if isinstance(inner, keras.layers.Dense | keras.layers.EinsumDense):
                    yield attribute.removesuffix("_dense"), inner


def train_updates(backbone: Encoder, updates: Mapping[keras.layers.Dense, tuple]) -> None:
    """Freeze a backbone and train low-rank updates of some of its layers.

    Biases are frozen too, as with peft's `bias="none"`. If the backbone has the same updates
    already, they are kept. Other updates are removed.

    Args:
        backbone: The encoder.
        updates: Dict of dense layers to `(rank, alpha)`. The product of an update's matrices is
            multiplied by alpha / rank.

    Raises:
        ValueError: If a layer cannot have an update. Nothing has changed then.

    Source: Hu et al. 2022, LoRA, sections 4.1 and 4.2.
    """
    check_updatable(updates)
    present = current_updates(backbone)
    if present != updates:
        for layer in present:
            remove_lora(layer)
        for layer, (rank, alpha) in updates.items():
            layer.enable_lora(rank, lora_alpha=alpha)
        backbone.layers_version += 1
        backbone.train_function = backbone.test_function = backbone.predict_function = None
    for layer in innermost_layers(backbone):
        layer.trainable = False
    for layer in updates:
        layer.trainable = True
        for weight in (frozen_kernel(layer), layer.bias):
            if weight is not None:
                weight.trainable = False


def check_updatable(layers: Iterable[keras.layers.Dense]) -> None:
    """Raise a ValueError for layers that Keras gives no low-rank update."""
    for layer in layers:
        if layer.kernel_constraint is not None or layer.quantization_mode in ("gptq", "awq"):
            raise ValueError(
                f"The layer {layer.path} has a kernel constraint or is quantized "
                f"({layer.quantization_mode}), so it cannot have a low-rank update. Call "
                "enable_lora before quantizing, or choose other layers."
            )


def current_updates(model: keras.layers.Layer) -> dict[keras.layers.Layer, tuple]:
    """Return the layers inside a model that have a low-rank update, with its rank and alpha."""
    return {
        layer: (layer.lora_rank, layer.lora_alpha)
        for layer in layers_in(model)
        if getattr(layer, "lora_enabled", False)
    }


def megatron_layout(
    mesh: keras.distribution.DeviceMesh, vocabulary_size: int | None = None
) -> keras.distribution.LayoutMap:
    """Return the layout of the weights of any family; see `Backbone.layout_map`."""
    if len(mesh.axis_names) != 2:
        raise invalid(
            "axis_names of the mesh",
            mesh.axis_names,
            "two axes, the first for the batch, the second for the weights: "
            "keras.distribution.DeviceMesh((2, 4), ('batch', 'model'), devices)",
        )
    axis, parts = mesh.axis_names[1], mesh.shape[1]
    layout = keras.distribution.LayoutMap(mesh)
    for names in COLUMNS:
        layout[f"{BLOCK}{names}/kernel"] = (None, axis)
        layout[f"{BLOCK}{names}/bias"] = (axis,)
    for names in ROWS:
        layout[f"{BLOCK}{names}/kernel"] = (axis, None)
    by_token = vocabulary_size is not None and vocabulary_size % parts == 0
    layout[TOKENS] = (axis, None) if by_token else (None, axis)
    return layout
