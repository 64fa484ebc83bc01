"""Training beside a plain loop that is written out: own losses, gradients of the backend, AdamW.

`compare` trains a tiny task in both ways; in the folder `tests`,
`python -c "import plain_training; plain_training.main()"` prints the table of a backend.
"""

import contextlib
import sys

import keras
import numpy as np
from keras import ops

import encoder_zoo as ez
from encoder_zoo.common.keras_private import layers_in
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

ROWS, PEAK, DECAY = 7, 1e-3, 0.01  # rows in batches of 2: the last is smaller


# -- losses, of a whole batch ------------------------------------------------------------------


def crossentropy(logits, y):
    chosen = ops.one_hot(ops.cast(y, "int32"), ops.shape(logits)[-1])
    return -ops.sum(chosen * ops.log_softmax(ops.cast(logits, "float32")), axis=-1)


def of_classes(x, y, weights, logits):
    return ops.sum(weights * crossentropy(logits, y)) / len(y)


def of_tokens(x, y, weights, logits):
    return ops.sum(weights * crossentropy(logits, y)) / ops.sum(weights)


def of_spans(x, y, weights, logits):
    hidden = 1.0 - ops.cast(x["padding_mask"], "float32")[:, None]
    values = crossentropy(ops.cast(logits, "float32") - 1e9 * hidden, y)  # (B, 2)
    return ops.sum(weights[:, None] * values) / (2 * len(y))


def of_scores(x, y, weights, logits):
    logits = ops.reshape(ops.cast(logits, "float32"), (-1,))
    y = ops.reshape(ops.cast(y, "float32"), (-1,))
    values = ops.softplus(logits) - y * logits
    return ops.sum(weights * values) / len(y)


def of_vectors(x, y, weights, vectors):
    values = ops.mean(ops.square(ops.cast(y, "float32") - vectors), axis=-1)
    return ops.sum(weights * values) / len(y)


# Task, its own loss, whether `fit` takes raw texts here: those of MaskedLM are masked at random.
TASKS = {
    "SequenceClassifier": (of_classes, True),
    "TokenClassifier": (of_tokens, True),
    "MaskedLM": (of_tokens, False),
    "SpanQA": (of_spans, False),
    "MultipleChoice": (of_classes, False),
    "Reranker": (of_scores, False),
    "TextEmbedder": (of_vectors, False),
}
# Arguments of `compile`, epochs, and the precision.
WAYS = {
    "one step": ({}, 1, "float32"),
    "accumulation": ({"gradient_accumulation_steps": 3}, 2, "float32"),
    "layer decay": ({"layer_decay": 0.5, "gradient_accumulation_steps": 2}, 1, "float32"),
    "executions": ({"steps_per_execution": 3}, 3, "float32"),
    "mixed_bfloat16": ({}, 2, "mixed_bfloat16"),
    "mixed_float16": ({}, 2, "mixed_float16"),
    "replicas": ({}, 2, "float32"),
    "replicas, accumulation": ({"gradient_accumulation_steps": 3}, 2, "float32"),
}


def task_of(name, precision="float32"):
    """A tiny task without dropout, with the same weights every time."""
    keras.utils.set_random_seed(0)
    with _precision(precision):
        task = tiny.task(get_family("bert"), getattr(ez, name))
    for layer in layers_in(task):
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    task.preprocessor.sequence_length = 16
    return task


@contextlib.contextmanager
def _precision(name):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def several(values):
    if isinstance(values, tuple):
        return tuple(map(several, values))
    if isinstance(values, np.ndarray):
        return np.concatenate([values] * ROWS)[:ROWS]
    return None if values is None else (list(values) * ROWS)[:ROWS]


def data_of(task):
    """Raw inputs and labels, sample weights, and the same as one prepared batch."""
    data = type(task).tiny_data()
    x, y = several(data.x), several(data.y)
    given = np.random.default_rng(1).uniform(0.2, 2.0, ROWS).astype("float32")
    batch = task.preprocessor(x, y)
    inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
    inputs = {name: np.asarray(values) for name, values in inputs.items()}
    labels = np.asarray(labels)
    if weights is None:
        weights = given
    else:
        weights = np.asarray(weights) * given.reshape(-1, *[1] * (len(weights.shape) - 1))
    return (x, y, given), (inputs, labels, np.float32(weights))


# -- the plain loop ----------------------------------------------------------------------------


def gradients_of(task, loss, x, y, weights):
    """The gradient of a loss of one batch, by the backend alone."""
    backend = keras.config.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss(x, y, weights, task(x, training=True))
        found = tape.gradient(value, [v.value for v in task.trainable_variables])
        return [0.0 if g is None else tf.convert_to_tensor(g).numpy() for g in found]
    if backend == "jax":
        import jax

        fixed = [v.value for v in task.non_trainable_variables]

        def value(trained):
            return loss(x, y, weights, task.stateless_call(trained, fixed, x, training=True)[0])

        found = jax.grad(value)([v.value for v in task.trainable_variables])
        return [np.asarray(gradient) for gradient in found]
    task.zero_grad()
    loss(x, y, ops.convert_to_tensor(weights), task(x, training=True)).backward()
    found = [v.value.grad for v in task.trainable_variables]
    return [0.0 if g is None else g.numpy() for g in found]


def rates(steps):
    """Warmup over a tenth of the steps, from above 0 to the peak, and down."""
    up = max(1, int(steps * 0.1))
    return [PEAK * min((n + 1) / up, (steps - n) / max(1, steps - up)) for n in range(steps)]


def plain_loop(task, loss, prepared, groups, shares):
    """Train on groups of rows, one step each.

    Returns:
        The gradient of the first step, and of which numbers the gradients are more than rounding:
        Adam's steps are as long for the others.
    """
    moments, first = [(0.0, 0.0) for _ in task.trainable_variables], None
    for n, (rows, rate) in enumerate(zip(groups, rates(len(groups)), strict=True)):
        x, y, weights = keras.tree.map_structure(lambda values, rows=rows: values[rows], prepared)
        gradients = gradients_of(task, loss, x, y, weights)
        norm = np.sqrt(sum(np.sum(np.square(np.float64(g))) for g in gradients))
        gradients = [g / max(1.0, norm) for g in gradients]
        first = first or gradients
        for i, (variable, g) in enumerate(zip(task.trainable_variables, gradients, strict=True)):
            own = rate * shares(variable)
            weight = ops.convert_to_numpy(variable)
            if variable.name not in ("bias", "gamma", "beta"):
                weight = weight - own * DECAY * weight
            m, v = moments[i] = (
                0.9 * moments[i][0] + 0.1 * g,
                0.999 * moments[i][1] + 0.001 * np.square(g),
            )
            mean, square = m / (1 - 0.9 ** (n + 1)), v / (1 - 0.999 ** (n + 1))
            variable.assign(weight - own * mean / (np.sqrt(square) + 1e-8))
    return flat(first, task), np.sqrt(flat([v for _, v in moments], task)) > 1e-6


def flat(parts, task):
    variables = task.trainable_variables
    parts = [np.broadcast_to(p, v.shape) for p, v in zip(parts, variables, strict=True)]
    return np.concatenate([np.ravel(part) for part in parts])


def slices(start, stop, size):
    return [slice(i, min(i + size, stop)) for i in range(start, stop, size)]


def groups_of(accumulated, epochs):
    """The rows of every step: of so many batches of 2, across the end of an epoch."""
    batches = [np.arange(ROWS)[rows] for _ in range(epochs) for rows in slices(0, ROWS, 2)]
    return [np.concatenate(batches[i : i + accumulated]) for i in slices_of(batches, accumulated)]


def slices_of(batches, size):
    return range(0, len(batches), size)


# -- both --------------------------------------------------------------------------------------


def changes(task, before):
    found = [ops.convert_to_numpy(v) for v in task.trainable_variables]
    return np.concatenate([np.ravel(f - b) for f, b in zip(found, before, strict=True)])


def cosine(a, b):
    a, b = np.float64(a), np.float64(b)
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def compare(name, way, strategy=None):
    """Return the numbers of steps and the cosines of first gradients and of all changes."""
    (loss, raw), (compiled, epochs, precision) = TASKS[name], WAYS[way]
    with strategy.scope() if strategy else contextlib.nullcontext():
        task = task_of(name, precision)
    texts, prepared = data_of(task)
    accumulated = compiled.get("gradient_accumulation_steps", 1)
    size = ROWS if way == "one step" else 2
    groups = [np.arange(ROWS)] if way == "one step" else groups_of(accumulated, epochs)
    before = [ops.convert_to_numpy(v) for v in task.trainable_variables]
    task.compile(
        loss=keras.losses.MeanSquaredError() if name == "TextEmbedder" else None,
        learning_rate=PEAK,
        weight_decay=DECAY,
        **{"layer_decay": 1.0, **compiled},
    )
    x, y, weights = texts if raw else prepared
    task.fit(x, y, size, epochs, sample_weight=weights, shuffle=False, verbose=0)
    optimizer = getattr(task.optimizer, "inner_optimizer", task.optimizer)
    steps = int(optimizer.iterations)
    changed = changes(task, before)
    shares = optimizer.learning_rate_multiplier or (lambda variable: 1.0)
    expected = task_of(name, precision)
    pairs = zip(expected.trainable_variables, task.trainable_variables, strict=True)
    of_variable = {id(theirs): ours for theirs, ours in pairs}
    first, known = plain_loop(
        expected, loss, prepared, groups, lambda v: shares(of_variable[id(v)])
    )
    wanted = changes(expected, before)
    result = {"steps": (steps, len(groups)), "changes": cosine(changed[known], wanted[known])}
    if len(groups) == 1:
        moments = [optimizer.moments_of(v)[0] for v in task.trainable_variables]
        result["gradient"] = cosine(flat(map(ops.convert_to_numpy, moments), task), first)
    return result


def wrong(result, precision="float32"):
    """Return what of a result is not that of the plain loop."""
    gradient, changed = (1e-6, 1e-5) if precision == "float32" else (1e-3, 2e-2)
    found, expected = result["steps"]
    problems = [] if found == expected else [f"{found} steps for {expected}"]
    for name, most in (("gradient", gradient), ("changes", changed)):
        if result.get(name, 1.0) < 1 - most:
            problems.append(f"{name} {result[name]}")
    return problems


def main(*ways):
    """Print the table of this backend; exit with an error where a line is wrong."""
    backend, failed, count = keras.config.backend(), 0, 0
    strategy = None
    for way in ways or WAYS:
        if way.startswith("replicas"):
            if backend != "tensorflow":
                continue
            import tensorflow as tf

            strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        if backend == "torch" and way == "executions":
            continue  # Keras refuses it by name
        for name in TASKS:
            result = compare(name, way, strategy if way.startswith("replicas") else None)
            problems = wrong(result, WAYS[way][2])
            count, failed = count + 1, failed + bool(problems)
            print(backend, way, name, result, *problems, flush=True)
    print(f"{count} compared, {failed} other than the plain loop")
    sys.exit(bool(failed))
