"""Find layers, weights and attributes. Only public Keras names are used."""

from __future__ import annotations

import collections
import gc

import keras
from keras import ops

# In Keras, only models have a public `layers` property. This function works for any layer.
_inside = keras.Model.layers.fget
# Names of the weights that `enable_lora` adds to dense layers and to embeddings.
KERNEL_UPDATES = ("lora_kernel_a", "lora_kernel_b")
EMBEDDING_UPDATES = ("lora_embeddings_a", "lora_embeddings_b")


def list_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the layer and all nested layers. In Keras, `layers` contains direct sublayers only.

    Example:
        >>> [layer.name for layer in list_layers(keras.layers.Dropout(0.1, name="dropout"))]
        ['dropout']
    """
    found, left = {id(layer): layer}, collections.deque(_inside(layer))
    while left:
        inner = left.popleft()
        if id(inner) not in found:
            found[id(inner)] = inner
            left.extendleft(_inside(inner))
    return list(found.values())


def list_innermost_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return all nested layers without sublayers."""
    return [inner for inner in list_layers(layer)[1:] if not _inside(inner)]


def list_direct_weights(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return all weights of a layer, including frozen weights, except for nested layers.

    Example:
        >>> block = keras.Sequential([keras.layers.Dense(2)])
        >>> block.build((None, 3))
        >>> own = list_direct_weights(block.layers[0])
        >>> len(list_direct_weights(block)), [weight.name for weight in own]
        (0, ['kernel', 'bias'])
    """
    inner = {id(weight) for one in _inside(layer) for weight in one.weights}
    return [weight for weight in layer.weights if id(weight) not in inner]


def list_attributes(layer: keras.layers.Layer) -> dict[str, object]:
    """Return all public attributes of a layer, including PyTorch submodules.

    Example:
        >>> block = keras.layers.Layer()
        >>> block.output_dense = keras.layers.Dense(2, name="bias")
        >>> list_attributes(block)["output_dense"].units
        2
    """
    of_torch = layer.named_children() if hasattr(layer, "named_children") else ()
    found = {**vars(layer), **dict(of_torch)}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def get_frozen_kernel(layer: keras.layers.Layer) -> keras.Variable:
    """Return the original kernel or embedding matrix of a layer with LoRA.

    `layer.kernel` and `layer.embeddings` also include the updates.
    """
    names = "kernel", "embeddings"
    return next(weight for weight in list_direct_weights(layer) if weight.name in names)


def list_merged_weights(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the weights that `merge_updates` combines: the original matrix and both factors.

    Example:
        >>> dense = keras.layers.Dense(2)
        >>> dense.build((None, 3))
        >>> dense.enable_lora(1)
        >>> [weight.name for weight in list_merged_weights(dense)]
        ['kernel', 'lora_kernel_a', 'lora_kernel_b']
    """
    names = KERNEL_UPDATES if hasattr(layer, KERNEL_UPDATES[0]) else EMBEDDING_UPDATES
    return [get_frozen_kernel(layer), *(getattr(layer, name) for name in names)]


def merge_updates(layer: keras.layers.Layer) -> keras.KerasTensor:
    """Return the kernel or embedding matrix of a layer with LoRA, including the updates.

    The dtype is the dtype of the weight. `layer.kernel` and `layer.embeddings` have the compute
    dtype, which is less precise with mixed precision.
    """
    weight, *factors = list_merged_weights(layer)
    update = ops.matmul(*factors)
    return ops.cast(weight + layer.lora_alpha / layer.lora_rank * update, weight.dtype)


def remove_lora(layer: keras.layers.Layer) -> None:
    """Remove low-rank updates from a layer. The kernel or embedding matrix will not be changed.

    Example:
        >>> dense = keras.layers.Dense(2)
        >>> dense.build((None, 3))
        >>> dense.enable_lora(1)
        >>> remove_lora(dense)
        >>> [weight.name for weight in dense.weights]
        ['kernel', 'bias']
    """
    # Keras calls the garbage collector for each variable. Freezing all objects saves a few seconds.
    freezes = not gc.get_freeze_count()
    if freezes:
        gc.freeze()
    for name in (*KERNEL_UPDATES, *EMBEDDING_UPDATES):
        if hasattr(layer, name):
            delattr(layer, name)
    if freezes:
        gc.unfreeze()
    layer.lora_enabled, layer.lora_rank, layer.lora_alpha = False, None, None
