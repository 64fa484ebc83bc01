"""Compute the gradients of a large batch with the memory for a small batch.

Comments use these letters for shapes: B (batch size), P (chunks), S (rows in a chunk).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import keras
from keras import ops

from encoder_zoo.common.layers import list_layers
from encoder_zoo.common.lazy import tf, xp


def recompute_in_chunks(
    model: keras.Model, call: Callable, inputs: Mapping, chunk_size: int
) -> keras.KerasTensor:
    """Compute `call(inputs, True)` in chunks, and recompute each chunk for its gradients.

    The loss and the gradients are the same as for the whole batch. Intermediate values of `call`
    are not stored, so only one chunk needs memory at a time. Each chunk has its own dropout mask,
    which is the same in both passes. On TensorFlow without XLA, a chunk contains rows of similar
    length, and padding that all rows share is removed. With XLA and on other backends, chunks of
    different lengths would require several compilations.

    Args:
        model: Model whose weights and dropout layers are used in `call`.
        call: Function `call(inputs, training)`. It computes a float32 vector for each row,
            independently of the other rows.
        inputs: Dict of tensors of shape (B, ...). The input "padding_mask", with shape (B, L), is
            optional.
        chunk_size: Integer. Maximum number of rows per chunk.

    Returns:
        Float32 tensor of shape (B, ...).

    Source: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited
    Setup, section 3.2.

    Example:
        >>> import numpy as np
        >>> model = keras.Sequential([keras.layers.Dense(2)])
        >>> model.build((None, 3))
        >>> call = lambda inputs, training: model(inputs["x"], training=training)
        >>> recompute_in_chunks(model, call, {"x": np.ones((5, 3), "float32")}, 2).shape
        TensorShape([5, 2])
    """
    count = ops.shape(next(iter(inputs.values())))[0]
    number = -(-count // chunk_size)
    if isinstance(number, int) and number < 2:
        return call(inputs, True)
    on_tensorflow = keras.config.backend() == "tensorflow"
    uses_xla = model.compiled and model.jit_compile
    trims = on_tensorflow and "padding_mask" in inputs and not uses_xla
    order = ops.argsort(_compute_lengths(inputs)) if trims else None  # the shortest row first
    parts, draws = _divide_inputs(inputs, count, number, order), _list_random_states(model)
    # The arguments are copies, because a variable in the arguments would get its gradient twice.
    learning = [ops.copy(weight) for weight in model.trainable_weights]
    fixed = [(weight, ops.copy(weight)) for weight in model.non_trainable_weights]

    def run(part: Mapping, states: list, learning: list) -> tuple:
        """Compute the vectors (S, ...) of a chunk, and the new states of the random generators."""
        changing = ((model.trainable_weights, learning), (draws, states))
        pairs = [pair for names, values in changing for pair in zip(names, values, strict=True)]
        with keras.StatelessScope(state_mapping=pairs + fixed) as scope:
            vectors = call(_trim_padding(part) if trims else part, True)
        return vectors, [scope.get_current_value(state) for state in draws]

    every_part = _loop_over_chunks if on_tensorflow else _scan_chunks
    vectors, states = every_part(run, parts, [ops.copy(state) for state in draws], learning)
    for state, value in zip(draws, states, strict=True):
        state.assign(value)
    rest = ops.shape(vectors)[2:]
    if order is not None:
        vectors = ops.reshape(vectors, (-1, *rest))[:count]
        return ops.take(vectors, ops.argsort(order), axis=0)
    vectors = ops.swapaxes(vectors, 0, 1)  # (S, P, ...)
    return ops.reshape(vectors, (-1, *rest))[:count]


def _compute_lengths(inputs: Mapping):
    """Return the length of each row without its padding, shape (B,)."""
    mask = ops.cast(inputs["padding_mask"], "int32")  # (B, L)
    return ops.max(mask * ops.arange(1, ops.shape(mask)[1] + 1, dtype="int32"), axis=1)


def _trim_padding(part: Mapping) -> dict:
    """Remove the last columns of a chunk (S, L, ...) if they are padding in all rows."""
    longest = ops.max(_compute_lengths(part))
    return {name: values[:, :longest] for name, values in part.items()}


def _divide_inputs(inputs: Mapping, count, number, order=None) -> dict:
    """Divide inputs into P chunks of S rows, shape (P, S, ...). Repeat rows to fill all chunks.

    If `order` is given, each chunk contains consecutive rows in this order. Otherwise, each chunk
    contains every P-th row, so that `keras.distribution` can split each chunk across devices.
    """
    number = number if isinstance(number, int) else ops.maximum(number, 1)
    size = -(-count // number)
    rows = ops.minimum(ops.arange(size * number, dtype="int32"), count - 1)
    if order is not None:
        rows = ops.take(order, rows)

    def divide(values):
        values, rest = ops.take(values, rows, axis=0), ops.shape(values)[1:]
        if order is not None:
            return ops.reshape(values, (number, size, *rest))
        return ops.swapaxes(ops.reshape(values, (size, number, *rest)), 0, 1)

    return {name: divide(values) for name, values in inputs.items()}


def _list_random_states(model: keras.Model) -> list[keras.Variable]:
    """Return the states of all random generators in a model's layers."""
    generators = (getattr(layer, "seed_generator", None) for layer in list_layers(model))
    states = [g.state for g in generators if isinstance(g, keras.random.SeedGenerator)]
    return list({id(state): state for state in states}.values())


def _scan_chunks(run: Callable, parts: dict, states: list, learning: list) -> tuple:
    """Compute the vectors of all chunks on JAX or PyTorch.

    Returns:
        Tuple of the vectors, shape (P, S, ...), and the final states of the random generators.
    """
    again = keras.remat(run)

    def step(states, part):
        vectors, states = again(part, states, learning)
        return states, vectors

    states, vectors = ops.scan(step, states, parts)
    return vectors, states


# A TensorFlow graph runs operations in parallel. With this option, loops run one chunk after
# another, for the values and for the gradients.
SEQUENTIAL_LOOP = {"parallel_iterations": 1}


def _loop_over_chunks(run: Callable, parts: dict, states: list, learning: list) -> tuple:
    """Compute the vectors of all chunks on TensorFlow. See `_scan_chunks` for the results."""
    number = _count_chunks(parts)

    @tf.custom_gradient
    def run_all_chunks(*learning):
        shapes = []

        def step(i, states, found):
            vectors, states = run(_get_part(parts, i), states, learning)
            shapes.append(vectors.shape)
            return i + 1, states, found.write(i, vectors)

        found = xp.TensorArray("float32", number, infer_shape=False)
        start = (0, states, found)
        _, last, found = xp.while_loop(lambda i, *_: i < number, step, start, **SEQUENTIAL_LOOP)
        vectors = xp.ensure_shape(found.stack(), (None, *shapes[0]))
        return (vectors, *last), lambda upstream, *_: _compute_gradients(
            run, parts, states, learning, upstream
        )

    vectors, *last = run_all_chunks(*learning)
    return vectors, last


def _compute_gradients(run: Callable, parts: dict, states: list, learning: list, upstream) -> list:
    """Compute the gradients of the weights, summed over all chunks.

    The gradient of an unused weight is None.

    Args:
        run: Function. See `recompute_in_chunks`.
        parts: Dict of tensors of shape (P, S, ...).
        states: List of the states of the random generators before the first chunk.
        learning: List of the values of the trainable weights.
        upstream: Tensor of shape (P, S, ...). Gradient of the loss with respect to the vectors.
    """
    number, used = _count_chunks(parts), set()

    def step(i, states, sums):
        values = [xp.identity(weight) for weight in learning]
        with tf.GradientTape() as tape:
            tape.watch(values)
            vectors, states = run(_get_part(parts, i), states, values)
        found = tape.gradient(vectors, values, upstream[i])
        used.update(j for j, gradient in enumerate(found) if gradient is not None)
        return i + 1, states, [_add_gradient(s, g) for s, g in zip(sums, found, strict=True)]

    start = (0, states, [xp.zeros_like(weight) for weight in learning])
    *_, sums = xp.while_loop(lambda i, *_: i < number, step, start, **SEQUENTIAL_LOOP)
    return [total if j in used else None for j, total in enumerate(sums)]


def _add_gradient(total: xp.Tensor, gradient) -> xp.Tensor:
    if gradient is None:
        return total
    if isinstance(gradient, tf.IndexedSlices):  # a sparse gradient, for some rows of a table
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, None], gradient.values)
    return total + gradient


def _count_chunks(parts: dict) -> xp.Tensor:
    return xp.shape(next(iter(parts.values())))[0]


def _get_part(parts: dict, i: xp.Tensor) -> dict:
    return {name: values[i] for name, values in parts.items()}
