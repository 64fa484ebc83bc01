"""Compare training with `fit` and training in a plain loop with its own losses and its own AdamW.

`compare` trains a tiny task with `fit` and with the plain loop, which uses the gradients of the
backend. In the folder `tests`, `python -c "import plain_training; plain_training.main()"` prints
the table of a backend.

AdamW divides a gradient by its size. A gradient that only consists of rounding errors would
therefore change its weight as much as any other gradient. With an epsilon of 1e-3 in `fit` and in
the plain loop, small gradients cause small changes, so the changes of all weights can be compared.
"""

import contextlib
import functools
import itertools
import sys
from unittest import mock

import keras
import numpy as np
from keras import ops

import encoder_zoo as ez
from encoder_zoo.common.layers import list_layers
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.training import optimizers, recipe
from encoder_zoo.tasks.training.optimizers import (
    AccumulatingLossScaleOptimizer,
    LinearWarmupDecay,
    ScheduledAdamW,
)
from encoder_zoo.tasks.training.text_model import TextModel
from encoder_zoo.testing import tiny

ROWS, SIZE, LENGTH = 7, 2, 16  # rows in batches of 2: the last is smaller
FILLED = 10  # rows per batch of the plain loop, including padding, so that there is one shape
PEAK, DECAY, EPSILON = 1e-2, 0.01, 1e-3
FIRST_SCALE = 2.0**15  # loss scale in float16
# Maximum norm of the errors, relative to the norm of the changes. A real fault causes 1e-2 or more.
MOST = {"float32": 1e-4, "mixed_float16": 5e-2, "mixed_bfloat16": 2e-1}


# -- losses of a batch, with `rows` (N,): 1 for real rows and 0 for padding ------------------------


def crossentropy(logits, y, smoothing=0.0):
    logits = ops.cast(logits, "float32")
    classes = logits.shape[-1]
    chosen = ops.one_hot(ops.cast(y, "int32"), classes) * (1 - smoothing) + smoothing / classes
    return -ops.sum(chosen * ops.log_softmax(logits), axis=-1)


def binary_crossentropy(logits, y):
    logits = ops.cast(logits, "float32")
    return ops.softplus(logits) - ops.cast(y, "float32") * logits


def mean_of_rows(values, weights, rows):
    return ops.sum(rows * weights * values) / ops.sum(rows)


def of_classes(x, y, weights, logits, rows, smoothing=0.0):
    return mean_of_rows(crossentropy(logits, y, smoothing), weights, rows)


def of_labels(x, y, weights, logits, rows):
    return mean_of_rows(ops.mean(binary_crossentropy(logits, y), axis=-1), weights, rows)


def of_numbers(x, y, weights, found, rows):
    squares = ops.square(ops.cast(y, "float32") - ops.cast(found, "float32"))
    return mean_of_rows(ops.mean(ops.reshape(squares, (FILLED, -1)), axis=-1), weights, rows)


def of_tokens(x, y, weights, logits, rows):
    weights = weights * rows[:, None]
    return ops.sum(weights * crossentropy(logits, y)) / ops.sum(weights)


def of_spans(x, y, weights, logits, rows):
    hidden = 1.0 - ops.cast(x["padding_mask"], "float32")[:, None]
    values = crossentropy(ops.cast(logits, "float32") - 1e9 * hidden, y)  # (N, 2)
    return mean_of_rows(ops.mean(values, axis=-1), weights, rows)


def of_scores(x, y, weights, logits, rows):
    values = binary_crossentropy(ops.reshape(logits, (-1,)), ops.reshape(y, (-1,)))
    return mean_of_rows(values, weights, rows)


def of_tokens_and_pairs(x, y, weights, found, rows):
    of_pairs = crossentropy(found["next_sentence"], ops.reshape(y["next_sentence"], (-1,)))
    of_pairs = ops.sum(rows * weights["next_sentence"] * of_pairs)
    of_pairs = of_pairs / ops.sum(rows * weights["next_sentence"])
    return of_tokens(x, y["masked_lm"], weights["masked_lm"], found["masked_lm"], rows) + of_pairs


def of_detection(x, y, weights, found, rows):
    replaced = found["token_ids"] != ops.cast(x["token_ids"], "int32")
    real = ops.cast(x["padding_mask"], "float32") * rows[:, None] * weights["detection"]
    detection = ops.sum(real * binary_crossentropy(found["detection"], replaced)) / ops.sum(real)
    return of_tokens(x, y, weights["generator"], found["generator"], rows) + 50.0 * detection


def of_ranking(scores, y, rows):
    """Return the cross-entropy (N,) of each row's positive among all candidates (N, K N)."""
    numbers = ops.reshape(ops.transpose(y[:, 1:]), (1, -1))  # (1, K N)
    absent = ops.tile(rows[None], (1, y.shape[1] - 1)) == 0
    queries, positives = y[:, :1] == y[None, :, 0], y[:, 1:2] == numbers  # (N, N), (N, K N)
    known = ops.matmul(ops.cast(queries, "float32") * rows[None], ops.cast(positives, "float32"))
    own = ops.eye(FILLED, numbers.shape[1])
    left_out = ((known > 0) | (y[:, :1] == numbers) | absent) & (own == 0)
    return ops.logsumexp(ops.where(left_out, -1e9, scores), axis=-1) - ops.sum(scores * own, -1)


def candidates(vectors):
    """Concatenate the columns of additional texts (N, K, ...) to (K N, ...)."""
    columns = ops.swapaxes(vectors[:, 1:], 0, 1)
    return ops.reshape(columns, (-1, *columns.shape[2:]))


def of_pairs(x, y, weights, vectors, rows):
    vectors = vectors / ops.sqrt(ops.sum(ops.square(vectors), axis=-1, keepdims=True))
    scores = 20.0 * ops.matmul(vectors[:, 0], ops.transpose(candidates(vectors)))
    return mean_of_rows(of_ranking(scores, y, rows), weights, rows)


def of_terms(x, y, weights, vectors, rows, share):
    scores = ops.matmul(vectors[:, 0], ops.transpose(candidates(vectors)))
    values, real = of_ranking(scores, y, rows), vectors * rows[:, None, None]
    for weight, part in ((5e-5, real[:, :1]), (1e-3, real[:, 1:])):
        means = ops.sum(part, axis=(0, 1)) / (ops.sum(rows) * part.shape[1])
        values = values + share * weight * ops.sum(ops.square(means))
    return mean_of_rows(values, weights, rows)


def of_token_vectors(x, y, weights, vectors, rows):
    documents = candidates(vectors)  # (K N, L, D)
    products = ops.einsum("qld,cmd->qclm", vectors[:, 0], documents)
    absent = ops.all(documents == 0, axis=-1)[None, :, None]
    scores = ops.sum(ops.max(ops.where(absent, -1e9, products), axis=-1), axis=-1)
    return mean_of_rows(of_ranking(scores, y, rows), weights, rows)


def distilled(x, y, weights, found, rows, label_weight=0.5):
    student, teacher = (ops.cast(found[name], "float32") / 2 for name in ("logits", "teacher"))
    student, teacher = ops.log_softmax(student), ops.log_softmax(teacher)
    soft = 4 * ops.sum(ops.exp(teacher) * (teacher - student), axis=-1)
    soft = ops.sum(rows * weights * soft) / ops.sum(rows * weights)
    if not label_weight:
        return soft
    return soft + label_weight * of_classes(x, y, weights, found["logits"], rows)


def distilled_alone(x, y, weights, found, rows):
    return distilled(x, y, weights, found, rows, label_weight=0.0)


def rows_of(weights, rows):
    return rows.sum()


def tokens_of(weights, rows):
    for name in {"masked_lm", "generator"} & set(weights):
        weights = weights[name]
    return (weights * rows[:, None]).sum()


# -- tasks ---------------------------------------------------------------------------------------


class Case:
    """A task and its loss in the plain loop.

    Args:
        name: String. Class name of the task.
        loss: Function that computes the loss of a batch.
        raw: Boolean. Whether `fit` receives raw texts. If False, the inputs are preprocessed, and
            the texts for MaskedLM are masked once, at random. Defaults to False.
        size: Optional function. Weight of a batch in an accumulated step. If None, the loss is
            computed for the large batch. Required for losses that compare the texts of a batch, and
            for sums of two means. Defaults to None.
        data: Optional tuple (x, y) to use instead of `tiny_data`.
        arguments: Optional dict. Task arguments to use instead of the arguments in `tiny_data`.
        compiled: Optional dict. Arguments for `compile`.
    """

    def __init__(self, name, loss, raw=False, size=None, data=None, arguments=None, compiled=None):
        self.cls = getattr(ez, name)
        self.loss, self.raw, self.size, self.compiled = loss, raw, size, compiled or {}
        given = self.cls.tiny_data() if name != "Distillation" else None
        self.data = data or (given.x, given.y)
        self.arguments = (given and given.arguments) if arguments is None else arguments

    def task(self, precision):
        """Return a tiny task without dropout, with the same weights every time."""
        keras.utils.set_random_seed(0)
        with _precision(precision):
            if self.cls is ez.Distillation:
                task = self._distillation()
            else:
                task = self._task(self.cls, self.arguments)
        for layer in list_layers(task):
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0
        if self.cls is ez.ReplacedTokenDetection:  # the same tokens every time
            task._sample_tokens = lambda logits: ops.cast(ops.argmax(logits, -1), "int32")
        return task

    def _task(self, cls, arguments):
        family = get_family("electra" if cls is ez.ReplacedTokenDetection else "bert")
        preprocessor = cls.record.preprocessor_class(tiny.tokenizer(family), sequence_length=LENGTH)
        backbone = tiny.backbone(family, num_layers=1, pooler=cls.get_family_head(family).pooled)
        return tiny.randomize_weights(cls(backbone, preprocessor, **arguments))

    def _distillation(self):
        teacher, student = (self._task(ez.SequenceClassifier, {"num_classes": 3}) for _ in range(2))
        teacher.set_weights([0.7 * weight for weight in teacher.get_weights()])
        return ez.Distillation(teacher, student, objectives=["soft_labels"])


TEXTS = ["a b ab", "c", "c d e", "p"]
PAIRS = (["a b ab", "c", "c d e a b", "p"], ["d e", "a b", "p", "a b c"])
SMOOTHED = functools.partial(of_classes, smoothing=0.1)
CASES = {
    "SequenceClassifier": Case("SequenceClassifier", of_classes, True),
    "SequenceClassifier, label smoothing": Case(
        "SequenceClassifier",
        SMOOTHED,
        True,
        compiled={"loss": keras.losses.CategoricalCrossentropy(label_smoothing=0.1)},
    ),
    "SequenceClassifier, several labels": Case(
        "SequenceClassifier",
        of_labels,
        True,
        data=(
            ["a b ab", "c", "c d e", "p"],
            np.int32([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]]),
        ),
        arguments={"num_classes": 3, "problem_type": "multi_label_classification"},
    ),
    "SequenceClassifier, numbers": Case(
        "SequenceClassifier",
        of_numbers,
        True,
        data=(TEXTS, np.float32([0.5, -1.0, 2.0, 0.0])),
        arguments={"num_classes": 1, "problem_type": "regression"},
    ),
    "TokenClassifier": Case("TokenClassifier", of_tokens, True),
    "MaskedLM": Case("MaskedLM", of_tokens),
    "Pretraining": Case("Pretraining", of_tokens_and_pairs, size=tokens_of),
    "ReplacedTokenDetection": Case("ReplacedTokenDetection", of_detection, size=tokens_of),
    "SpanQA": Case("SpanQA", of_spans),
    "MultipleChoice": Case("MultipleChoice", of_classes),
    "Reranker": Case("Reranker", of_scores),
    "TextEmbedder, vectors": Case(
        "TextEmbedder", of_numbers, compiled={"loss": keras.losses.MeanSquaredError()}
    ),
    "TextEmbedder, pairs": Case("TextEmbedder", of_pairs, size=rows_of, data=(PAIRS, None)),
    "TextEmbedder, negatives": Case(
        "TextEmbedder", of_pairs, size=rows_of, data=((*PAIRS, ["c", "f", "a", "d e"]), None)
    ),
    "SparseEncoder": Case("SparseEncoder", of_terms, size=rows_of, data=(PAIRS, None)),
    "LateInteraction": Case("LateInteraction", of_token_vectors, size=rows_of),
    "Distillation, without labels": Case("Distillation", distilled_alone, True, data=(TEXTS, None)),
    "Distillation": Case(
        "Distillation",
        distilled,
        True,
        size=rows_of,
        data=(["a b ab", "c", "c d e", "p"], [0, 2, 1, 1]),
    ),
}

# -- ways to train -------------------------------------------------------------------------------


FEW = ("SequenceClassifier", "TokenClassifier")
TF, ALWAYS = ("tensorflow",), ("tensorflow", "jax", "torch")


class Way:
    """A way to train: arguments for `compile` and `fit`.

    Args:
        epochs: Integer. Number of epochs. Defaults to 2.
        precision: String. Dtype policy of the task. Defaults to "float32".
        size: Integer. Batch size.
        fit: Optional dict. Additional arguments for `fit`.
        backends: Tuple of strings. Backends to test. Defaults to all backends.
        all_on: Tuple of strings. Backends on which all tasks are tested instead of `FEW` tasks.
        **compiled: Arguments for `compile`.
    """

    def __init__(
        self,
        epochs=2,
        precision="float32",
        size=SIZE,
        fit=None,
        backends=ALWAYS,
        all_on=(),
        **compiled,
    ):
        self.epochs, self.precision, self.size, self.fit = epochs, precision, size, fit or {}
        self.backends, self.all_on, self.compiled = backends, all_on, compiled


ALL = {
    "weight_decay": DECAY,
    "warmup": 0.1,
    "layer_decay": 1.0,
    "frozen_layers": 0,
    "gradient_accumulation_steps": 1,
    "steps_per_execution": 1,
    "loss": "auto",
    "jit_compile": "auto",
}
WAYS = {
    "one step": Way(epochs=1, size=ROWS, all_on=("torch",)),
    "batches": Way(),
    "accumulation": Way(gradient_accumulation_steps=3, all_on=ALWAYS),
    "executions": Way(steps_per_execution=3),
    "executions, accumulation": Way(steps_per_execution=3, gradient_accumulation_steps=3),
    "mixed_bfloat16": Way(precision="mixed_bfloat16", backends=("torch", "jax"), all_on=("torch",)),
    "mixed_bfloat16, executions": Way(
        precision="mixed_bfloat16", steps_per_execution=3, backends=TF, all_on=TF
    ),
    "mixed_float16": Way(precision="mixed_float16", all_on=("torch",)),
    "mixed_float16, accumulation": Way(precision="mixed_float16", gradient_accumulation_steps=3),
    "mixed_float16, replicas, accumulation": Way(
        precision="mixed_float16", gradient_accumulation_steps=3, backends=TF
    ),
    "all steps warm up": Way(warmup=0.99),
    "no warmup, accumulation": Way(warmup=0.0, gradient_accumulation_steps=5),
    "layer decay": Way(layer_decay=0.5, gradient_accumulation_steps=2),
    "frozen layers": Way(frozen_layers=1),
    "steps_per_epoch": Way(fit={"steps_per_epoch": 3}),
    "class weights": Way(fit={"class_weight": {0: 3.0, 1: 0.5}}),
    "class weights, accumulation": Way(
        fit={"class_weight": {0: 3.0, 1: 0.5}}, gradient_accumulation_steps=3
    ),
    "XLA": Way(jit_compile=True, backends=TF),
    "XLA, accumulation": Way(jit_compile=True, gradient_accumulation_steps=3, backends=TF),
    "replicas": Way(backends=TF),
    "replicas, accumulation": Way(gradient_accumulation_steps=3, backends=TF, all_on=TF),
}


def cells(backend):
    """Return the pairs of a way and a case to test on a backend.

    Except for accumulation, a way does not depend on the loss of the task. On JAX, a program is
    compiled for each pair, so a way is only tested with one task.
    """
    few, found = FEW[:1] if backend == "jax" else FEW, []
    for (way, given), case in itertools.product(WAYS.items(), CASES):
        if backend in given.backends and case in (CASES if backend in given.all_on else few):
            found.append((way, case))
    return found


@contextlib.contextmanager
def _precision(name):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


# -- data ----------------------------------------------------------------------------------------


def several(values):
    """Repeat the rows of a list, an array or a tuple of columns until there are seven rows."""
    if isinstance(values, tuple):
        return tuple(map(several, values))
    if isinstance(values, np.ndarray):
        return np.concatenate([values] * ROWS)[:ROWS]
    return None if values is None else (list(values) * ROWS)[:ROWS]


def data_of(case, task):
    """Return raw inputs, labels and sample weights, and the same data as a preprocessed batch."""
    x, y = map(several, case.data)
    given = np.random.default_rng(1).uniform(0.2, 2.0, ROWS).astype("float32")
    of_detection = case.cls is ez.ReplacedTokenDetection  # with weights for all tokens
    prepared = task.preprocessor(x, y, given if of_detection else None)
    inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(prepared)
    labels = np.zeros(ROWS) if labels is None else labels
    inputs, labels = keras.tree.map_structure(np.asarray, (inputs, labels))
    if isinstance(labels, dict):
        weights = {name: 1.0 if weights.get(name) is None else weights[name] for name in labels}
    factor = 1.0 if of_detection else given
    weights = keras.tree.map_structure(
        lambda w: np.float32(factor * np.asarray(w).T).T, 1.0 if weights is None else weights
    )
    return (x, y, given), (inputs, labels, weights)


def filled(values, rows):
    """Select rows, and fill the batch with copies of row 0."""
    rows = np.concatenate([rows, np.zeros(FILLED - len(rows), int)])
    return keras.tree.map_structure(lambda v: np.asarray(v)[rows], values)


def groups_of(way):
    """Return the rows of every batch of every step, across the ends of epochs."""
    one = [np.arange(i, min(i + way.size, ROWS)) for i in range(0, ROWS, way.size)]
    batches = (one * way.epochs)[: way.epochs * way.fit.get("steps_per_epoch", len(one))]
    count = way.compiled.get("gradient_accumulation_steps", 1)
    return [batches[i : i + count] for i in range(0, len(batches), count)]


# -- the plain loop ------------------------------------------------------------------------------


def gradient_function(task, loss):
    """Create a function that computes the gradient of scale * loss with the backend, without Keras.

    The function has the arguments `(scale, x, y, weights, rows, *share)`.
    """
    backend = keras.config.backend()

    def scaled(scale, x, y, weights, rows, *share, outputs):
        return scale * loss(x, y, weights, outputs, rows, *share)

    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function(autograph=False)
        def gradients(scale, x, *others):
            variables = [v.value for v in task.trainable_variables]
            with tf.GradientTape() as tape:
                value = scaled(scale, x, *others, outputs=task(x, training=True))
            found = tape.gradient(value, variables, unconnected_gradients="zero")
            return [tf.convert_to_tensor(gradient) for gradient in found]

    elif backend == "jax":
        import jax

        @jax.jit
        @jax.grad
        def of_values(trained, fixed, scale, x, *others):
            outputs = task.stateless_call(trained, fixed, x, training=True)[0]
            return scaled(scale, x, *others, outputs=outputs)

        def gradients(*batch):
            trained, fixed = (
                [v.value for v in variables]
                for variables in (task.trainable_variables, task.non_trainable_variables)
            )
            return of_values(trained, fixed, *batch)

    else:

        def gradients(*batch):
            batch = keras.tree.map_structure(ops.convert_to_tensor, batch)
            task.zero_grad()
            scaled(*batch, outputs=task(batch[1], training=True)).backward()
            found = [v.value.grad for v in task.trainable_variables]
            variables = task.trainable_variables
            return [
                ops.zeros(v.shape) if g is None else g
                for g, v in zip(found, variables, strict=True)
            ]

    def in_numpy(*batch):
        batch = keras.tree.map_structure(np.asarray, batch)
        return [np.float64(ops.convert_to_numpy(gradient)) for gradient in gradients(*batch)]

    return in_numpy


def rates(steps, warmup):
    """Return the learning rates of all steps: linear warmup to the peak, and linear decay."""
    up = max(1, int(steps * warmup)) if warmup else 0
    return [
        PEAK * min((n + 1) / up if up else 1.0, (steps - n) / max(1, steps - up))
        for n in range(steps)
    ]


def shares(backbone, variables, decay):
    """Return the learning rate multiplier of each weight, for a head, one block and embeddings."""
    [block] = backbone.blocks
    powers = {id(weight): 1 for weight in block.weights}
    powers |= {id(weight): 2 for weight in backbone.embeddings.weights}
    return [decay ** powers.get(id(variable), 0) for variable in variables]


def step_gradient(case, gradient, prepared, batches, total, scale):
    """Return the gradient of a step. `batches` are pairs of a batch index and its row indices."""
    if not case.size:
        batches = [(batches[0][0], np.concatenate([rows for _, rows in batches]))]
    sums, divisor = None, 0.0
    for number, rows in batches:
        share = ()
        if case.loss is of_terms:  # rises over the first third of all batches
            share = (np.float32(min(number / max(1, total // 3), 1.0) ** 2),)
            share = share if total // 3 else (np.float32(1.0),)
        real = np.float32(np.arange(FILLED) < len(rows))
        x, y, weights = filled(prepared, rows)
        size = case.size(weights, real) if case.size else 1.0
        found = gradient(np.float32(scale), x, y, weights, real, *share)
        sums = [size * g + s for g, s in zip(found, sums or [0.0] * len(found), strict=True)]
        divisor += size
    return [s / divisor / scale for s in sums]


def plain_loop(case, way, gradient, prepared, values, trained, shares, decays):
    """Return the weights after all steps, and the number of steps.

    Args:
        case, way: `Case` and `Way` to test.
        gradient: Function from `gradient_function`. It uses the weights that `values` assigns.
        prepared: Tuple of inputs, labels and weights.
        values: Function that returns the weights as NumPy arrays, or assigns them.
        trained: List of booleans. Whether each weight is trained.
        shares: List of floats. Learning rate multiplier of each weight.
        decays: List of booleans. Whether each weight has weight decay.
    """
    groups, warmup = groups_of(way), way.compiled.get("warmup", 0.1)
    total, step, numbers = sum(map(len, groups)), 0, itertools.count()
    weights = values()
    moments = [(0.0, 0.0) for _ in weights]
    scale = FIRST_SCALE if way.precision == "mixed_float16" else 1.0

    def of_step(batches):
        found = step_gradient(case, gradient, prepared, batches, total, scale)
        found = [g * used for g, used in zip(found, trained, strict=True)]
        return found, np.sqrt(sum(np.sum(np.square(g)) for g in found))

    for group in groups:
        batches = []
        for batch in [(next(numbers), rows) for rows in group]:
            if scale == 1 or np.isfinite(of_step([batch])[1]):
                batches.append(batch)
            else:
                scale /= 2
        if not batches:
            continue
        gradients, norm = of_step(batches)
        assert np.isfinite(norm)
        rate, step = rates(len(groups), warmup)[step], step + 1
        for i, g in enumerate(gradients):
            if not trained[i]:
                continue
            g, own = g / max(1.0, norm), rate * shares[i]
            m, v = moments[i]
            m, v = moments[i] = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * np.square(g)
            own_rate = own * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            kept = 1 - own * DECAY if decays[i] else 1.0
            weights[i] = kept * weights[i] - own_rate * m / (np.sqrt(v) + EPSILON)
        values(weights)
    return weights, step


# -- both ----------------------------------------------------------------------------------------


class Models:
    """Two copies of a task that all ways share: one copy for `fit`, and one copy for gradients."""

    def __init__(self, case, precision, strategy=None):
        self.case = case
        with strategy.scope() if strategy else contextlib.nullcontext():
            self.task = case.task(precision)
        self.other = case.task(precision)
        self.raw, self.prepared = data_of(case, self.other)
        self.weights = [ops.convert_to_numpy(v) for v in self.other.trainable_variables]
        self.all = [list(m.trainable_variables) for m in (self.task, self.other)]
        self.rest = [ops.convert_to_numpy(v) for v in self.task.non_trainable_variables]
        self.gradient = gradient_function(self.other, case.loss)

    def reset(self):
        for variables in self.all:
            for variable, value in zip(variables, self.weights, strict=True):
                variable.assign(value)

    def values(self, weights=None):
        """Assign weights to the copy for gradients. By default, return the weights as float64."""
        if weights is None:
            return [np.float64(weight) for weight in self.weights]
        for variable, value in zip(self.all[1], weights, strict=True):
            variable.assign(np.float32(value))


def compare(name, way_name, models=None, strategy=None):
    """Train in both ways. Return the numbers of steps (found, expected) and the relative error."""
    case, way = CASES[name], WAYS[way_name]
    models = models or Models(case, way.precision, strategy)
    models.reset()
    task = models.task
    x, y, weights = models.raw if case.raw else models.prepared
    prepared, fit = models.prepared, dict(way.fit)
    if class_weight := fit.get("class_weight"):
        of_class = np.array([class_weight.get(c, 1.0) for c in range(task.num_classes)])
        prepared = (*prepared[:2], np.float32(prepared[2] * of_class[np.maximum(prepared[1], 0)]))
    with mock.patch.object(optimizers, "EPSILON", EPSILON):
        task.compile("auto", learning_rate=PEAK, **{**ALL, **case.compiled, **way.compiled})
        fit |= {"sample_weight": weights, "shuffle": False, "verbose": 0}
        task.fit(x, y, way.size, way.epochs, **fit)
    optimizer = optimizers.get_inner_optimizer(task.optimizer)
    expected, steps = plain_loop(
        case,
        way,
        models.gradient,
        prepared,
        models.values,
        [v.trainable for v in models.all[0]],
        shares(models.task.backbone, models.all[0], way.compiled.get("layer_decay", 1.0)),
        [v.name not in ("bias", "gamma", "beta") for v in models.all[0]],
    )
    found = [ops.convert_to_numpy(v) for v in models.all[0]]
    wanted = [e - w for e, w in zip(expected, models.weights, strict=True)]
    errors = [f - e for f, e in zip(found, expected, strict=True)]
    norms = [np.sqrt(sum(np.sum(np.square(v)) for v in values)) for values in (errors, wanted)]
    made = int(ops.convert_to_numpy(optimizer.iterations))
    return {"steps": (made, steps), "error": float(norms[0] / norms[1])}


def wrong(result, precision="float32"):
    """Return a list of the differences between a result and the plain loop."""
    found, expected = result["steps"]
    problems = [] if found == expected else [f"{found} steps for {expected}"]
    if not result["error"] < MOST[precision]:
        problems.append(f"the changes are wrong by {result['error']:.2g}")
    return problems


# Faults that occurred or could occur, each with a pair of case and way that must detect it.
FAULTS = {
    "a mean of the batches' means": (
        lambda: mock.patch.object(
            ScheduledAdamW,
            "weigh_batch",
            lambda self, *_: vars(self).update(_factor=1.0, _size=1.0),
        ),
        ("TokenClassifier", "accumulation"),
    ),
    "the batches left over make no step": (
        lambda: mock.patch.object(ScheduledAdamW, "is_step_complete", _only_whole_steps),
        ("SequenceClassifier", "accumulation"),
    ),
    "batches that overflow are not counted": (
        lambda: mock.patch.object(
            optimizers, "AccumulatingLossScaleOptimizer", keras.optimizers.LossScaleOptimizer
        ),
        ("SequenceClassifier", "mixed_float16, accumulation"),
    ),
    "the first step has the rate 0": (
        lambda: mock.patch.object(
            LinearWarmupDecay,
            "__call__",
            lambda self, step, own=LinearWarmupDecay.__call__: (
                own(self, step) * ops.cast(step > 0, "float32")
            ),
        ),
        ("SequenceClassifier", "one step"),
    ),
    "all layers learn alike": (
        lambda: mock.patch.object(recipe, "make_layerwise_multipliers", lambda *_: {}),
        ("SequenceClassifier", "layer decay"),
    ),
    "sample weights do not count": (
        lambda: mock.patch.object(
            TextModel,
            "compute_loss",
            lambda self, x, y, y_pred, weights, training, own=TextModel.compute_loss: own(
                self, x, y, y_pred, ops.cast(weights > 0, "float32"), training
            ),
        ),
        ("TokenClassifier", "batches"),
    ),
}


ALIKE = {"_factor": 1.0, "_size": 1.0}


def _only_whole_steps(optimizer):
    number = ops.cast(optimizer.batches.value, "int32") + 1
    return number % optimizer.gradient_accumulation_steps == 0


def faults():
    """Insert each fault, and exit with an error if the comparison does not detect it."""
    missed = 0
    for fault, (put_in, (name, way)) in FAULTS.items():
        with put_in():
            result = compare(name, way)
        missed += not wrong(result)
        print(keras.config.backend(), fault, name, way, result, sep=" | ", flush=True)
    print(f"{len(FAULTS)} faults, {missed} missed")
    sys.exit(bool(missed))


def check_overflows(steps=(2, 3), count=5):
    """Check training with overflowing batches against AdamW as in the paper.

    All combinations of overflowing and finite batches are tested. Each step uses the mean of its
    finite gradients. The warmup has one step.
    """
    backend, start, first_scale = keras.config.backend(), np.float32([1.0, -2.0, 0.5]), 8.0
    gradients = np.random.default_rng(0).normal(size=(count, 3)) * [[3], [0.1], [1], [2], [0.3]]
    weight = keras.Variable(start, name="kernel")

    def expected(finite, accumulated):
        value, m, v, step, total = np.float64(start), 0.0, 0.0, 0, -(-count // accumulated)
        for i in range(0, count, accumulated):
            numbers = [n for n in range(i, min(i + accumulated, count)) if finite[n]]
            if not numbers:
                continue
            g = gradients[numbers].mean(axis=0)
            g, rate = g / max(1.0, np.linalg.norm(g)), PEAK * min(1.0, (total - step) / (total - 1))
            step += 1
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * np.square(g)
            move = m / (1 - 0.9**step) / np.sqrt(v / (1 - 0.999**step))
            value = value * (1 - rate * DECAY) - rate * move
        return value, step, first_scale * 0.5 ** finite.count(False)

    for accumulated in steps:
        inner = optimizers.make_fine_tuning_optimizer(1, gradient_accumulation_steps=accumulated)
        optimizer = AccumulatingLossScaleOptimizer(inner, initial_scale=first_scale)
        optimizer.build([weight])
        apply = applying(optimizer, weight, backend)
        for finite in itertools.product((True, False), repeat=count):
            weight.assign(start)
            optimizers.restart_optimizer(optimizer, PEAK, count)
            for gradient, counts in zip(gradients, finite, strict=True):
                scaled = gradient * float(optimizer.dynamic_scale)
                scaled = scaled if counts else scaled * [1, np.inf, np.nan]
                apply(ops.convert_to_tensor(np.float32(scaled)))
            value, made, scale = expected(finite, accumulated)
            found = int(optimizer.iterations), float(optimizer.dynamic_scale)
            assert found == (made, scale), (accumulated, finite, found)
            np.testing.assert_allclose(
                ops.convert_to_numpy(weight), value, atol=1e-4 * PEAK, err_msg=str(finite)
            )


def applying(optimizer, weight, backend):
    """Create a function that takes a gradient and runs an optimizer step in a graph."""
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda gradient: optimizer.apply([gradient], [weight]))
    if backend == "torch":
        return lambda gradient: optimizer.apply([gradient], [weight])
    import jax

    step = jax.jit(optimizer.stateless_apply)

    def apply(gradient):
        state = [v.value for v in optimizer.variables]
        values, state = step(state, [gradient], [weight.value])
        for variable, value in zip([weight, *optimizer.variables], [*values, *state], strict=True):
            variable.assign(value)

    return apply


def two_devices():
    """Create a strategy with two devices on one processor. Call this before using TensorFlow."""
    import tensorflow as tf

    [cpu] = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def main(*ways, names=()):
    """Print the table of this backend, and exit with an error if a result is wrong.

    By default, all ways and cases are tested.
    """
    backend = keras.config.backend()
    strategy = two_devices() if backend == "tensorflow" else None
    chosen = [
        (name, WAYS[way].precision, "replicas" in way, repr(WAYS[way].compiled), way)
        for way, name in cells(backend)
        if (not ways or way in ways) and (not names or name in names)
    ]  # pairs with the same `compile` arguments are adjacent, because they share a graph
    failed = 0
    for (name, precision, divided), members in itertools.groupby(sorted(chosen), lambda c: c[:3]):
        models = Models(CASES[name], precision, strategy if divided else None)
        for *_, way in members:
            result = compare(name, way, models)
            problems = wrong(result, precision)
            failed += bool(problems)
            print(backend, name, way, result, *problems, sep=" | ", flush=True)
    print(f"{len(chosen)} tried, {len(chosen) - failed} equal to the plain loop, {failed} wrong")
    sys.exit(bool(failed))
