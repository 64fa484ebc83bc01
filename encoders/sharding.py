"""The layout of a backbone's weights over the devices of a mesh, and whole weights again."""

from __future__ import annotations

import keras
import numpy as np

BLOCK = r".*block_\d+/"
# Columns of a product's first matrix and rows of its second, so that devices add up once for it.
PROJECTIONS = r"(cross_)?attention/(query|key|value|query_key_value|distance)"
COLUMNS = (PROJECTIONS, "intermediate", "gate", "up")
ROWS = (r"(cross_)?attention/output", "output")
TOKENS = ".*embeddings/token_embedding/embeddings"


def megatron_layout(
    mesh: keras.distribution.DeviceMesh, vocabulary_size: int | None = None
) -> keras.distribution.LayoutMap:
    """Return the layout of the weights of any family; see `Backbone.layout_map`."""
    if len(mesh.axis_names) != 2:
        raise ValueError(
            "The mesh must have two axes, the first for the rows of a batch, the second for the "
            "weights: keras.distribution.DeviceMesh((2, 4), ('batch', 'model'), devices). "
            f"Received: axes {', '.join(mesh.axis_names)}."
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


def whole_array(values: keras.Variable | keras.KerasTensor) -> np.ndarray:
    """Return all values of a variable or tensor, also of one whose parts are in other processes.

    Of such a one all processes of JAX must ask together.

    Example:
        >>> whole_array(keras.Variable([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """
    tensor = getattr(values, "value", values)
    if getattr(tensor, "is_fully_addressable", True) or tensor.is_fully_replicated:
        return keras.ops.convert_to_numpy(values)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tensor, tiled=True)
