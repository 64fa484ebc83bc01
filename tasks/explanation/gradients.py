"""A model's outputs for given embeddings, and their gradients, on every backend.

Comment letters: n points, L sequence, D hidden.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders.inputs import backbone_inputs

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task


def weighted_logits(task: Task, inputs: Mapping, weights: np.ndarray, vectors):
    """Return sums of a model's outputs for one text, each output times its weight.

    Args:
        task: the model.
        inputs: of the text, {name: (1, L)}.
        weights: of the outputs, (1, ...).
        vectors: (n, L, D), each in place of the text's embeddings.

    Returns:
        (n,) float32.
    """
    count = vectors.shape[0]
    inputs = {
        name: ops.repeat(ops.convert_to_tensor(values), count, axis=0)
        for name, values in inputs.items()
    }
    encoded = task.backbone._encode_embedded(vectors, backbone_inputs(inputs))
    outputs = ops.cast(task.logits_of(encoded, inputs, training=False), "float32")
    outputs = outputs * ops.convert_to_tensor(weights)
    return ops.sum(ops.reshape(outputs, (count, -1)), axis=1)


def values_and_gradients(function: Callable, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values (n,) of a function of the rows of x (n, ...), and each row's gradient.

    Args:
        function: from (n, ...) to (n,), each value of its own row alone.
        x: float32.

    Example:
        >>> values, gradients = values_and_gradients(
        ...     lambda x: ops.sum(x**2, axis=1), np.float32([[1, 2], [3, 4]]))
        >>> values.tolist(), gradients.tolist()
        ([5.0, 25.0], [[2.0, 4.0], [6.0, 8.0]])
    """
    x = ops.convert_to_tensor(x)
    if keras.config.backend() == "tensorflow":
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = function(x)
        gradients = tape.gradient(values, x)
    elif keras.config.backend() == "jax":
        import jax

        values, pulled_back = jax.vjp(function, x)
        [gradients] = pulled_back(ops.ones_like(values))
    else:
        import torch

        x = x.requires_grad_()
        values = function(x)
        [gradients] = torch.autograd.grad(values.sum(), x)
    return ops.convert_to_numpy(values), ops.convert_to_numpy(gradients)


def straight_line(
    task: Task, inputs: Mapping, masked_ids: np.ndarray, weights: np.ndarray, batch_size: int
) -> Callable:
    """Return the function of points from 0 to 1 on the line from a masked text to the text.

    Args:
        task: the model.
        inputs: of the text, {name: (1, L)}.
        masked_ids: (1, L), the text's ids with masks for its words.
        weights: see `weighted_logits`.
        batch_size: points at once.

    Returns:
        A function of (n,) points. It returns the outputs (n,) there, and by how much each token's
        embedding changes them along the line, (n, L).
    """
    start, end = (
        ops.convert_to_numpy(
            ops.cast(task.backbone._embed({**inputs, "token_ids": ids}), "float32")
        )
        for ids in (masked_ids, inputs["token_ids"])
    )  # (1, L, D)
    function = functools.partial(weighted_logits, task, inputs, weights)

    def along(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = []
        for i in range(0, len(points), batch_size):
            part = points[i : i + batch_size, None, None].astype("float32")
            values, gradients = values_and_gradients(function, start + part * (end - start))
            found.append((values, np.sum(gradients * (end - start), axis=-1, dtype="float64")))
        values, slopes = map(np.concatenate, zip(*found, strict=True))
        return values.astype("float64"), slopes

    return along
