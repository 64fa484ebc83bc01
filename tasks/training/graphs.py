"""TensorFlow graphs of a task, kept from call to call as long as they are valid."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import logging
import os
import pathlib
import platform
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.keras_private import compiled_metrics, graphs_as_traced
from encoder_zoo.common.lazy import array_ops, in_numpy, tf
from encoder_zoo.common.ragged_array import as_array
from encoder_zoo.common.weights_lock import weights_lock
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.encoders.kernels import long_attention
from encoder_zoo.encoders.training import trace_blocks_once
from encoder_zoo.tasks.preprocessing.batch_shapes import (
    REAL_ROWS,
    THREE_LENGTHS_UP_TO,
    choose_lengths,
    choose_sequence_counts,
    padding_to,
    take_examples,
)
from encoder_zoo.tasks.preprocessing.batching import LengthGroupedBatcher
from encoder_zoo.tasks.preprocessing.tracing import ShapePolymorphicFunction
from encoder_zoo.tasks.training.distribution import data_parallel_devices
from encoder_zoo.tasks.training.loss_inputs import computes_rows

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.text_model import TextModel

logger = logging.getLogger("encoder_zoo")

# Compiled faster, a program is not worth a file.
MIN_SECONDS = 0.1


@functools.cache
def enable_compilation_cache() -> pathlib.Path | None:
    """Have JAX keep compiled programs in the user's cache, unless its settings say otherwise.

    `JAX_COMPILATION_CACHE_DIR` names another folder, `JAX_ENABLE_COMPILATION_CACHE=false` keeps
    nothing. Programs of other processors, whose instructions may differ, are in another folder.

    Returns:
        The folder; None where JAX is not the backend, or programs are not kept.
    """
    if keras.config.backend() != "jax":
        return None
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if not jax.config.jax_enable_compilation_cache:
        return None
    if jax.config.jax_compilation_cache_dir:
        return pathlib.Path(jax.config.jax_compilation_cache_dir)
    home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = home / "encoder_zoo" / "jax" / _processor()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # a home that cannot be written to
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)
    compilation_cache.reset_cache()  # JAX looks once whether there is one
    return folder


def _processor() -> str:
    """Return a name of this processor and its instructions."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
        names = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    except OSError:
        names = [platform.processor()]
    digest = hashlib.sha256("\n".join(sorted(set(names))).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:12]}"


# Packages whose metrics take weights.
KNOWN = ("keras.", "encoder_zoo.")
# Keras's metrics that compare the rows of a batch.
OF_WHOLE_BATCHES = (keras.metrics.PearsonCorrelation, keras.metrics.ConcordanceCorrelation)


def can_be_filled(task: TextModel) -> bool:
    """Return whether rows that only fill a batch can be left out of a task's loss and metrics."""
    if not (task.record.fills_batches and computes_rows(task.loss)):
        return False
    return all(map(_takes_weights, compiled_metrics(task)))


def _takes_weights(metric) -> bool:
    if isinstance(metric, str) or getattr(metric, "__module__", "").startswith("keras."):
        return True  # Keras's by name, or a function of its
    inner = getattr(metric, "metric", metric)
    if isinstance(inner, OF_WHOLE_BATCHES) or not isinstance(metric, keras.metrics.Metric):
        return False
    own = type(metric).__module__.startswith(KNOWN)
    return own and "sample_weight" in inspect.signature(metric.update_state).parameters


def real_rows(x):
    """Return which rows of a batch are examples, (B,) bool; None if all are."""
    return x.get(REAL_ROWS) if isinstance(x, Mapping) else None


def without(x, name: str):
    """Return inputs without one of them.

    Example:
        >>> without({"token_ids": 1, "real_rows": 2}, REAL_ROWS)
        {'token_ids': 1}
    """
    if not isinstance(x, Mapping) or name not in x:
        return x
    return {other: values for other, values in x.items() if other != name}


def is_long(inputs) -> bool:
    """Return whether attention goes part by part through examples (B, L), in any structure."""
    shapes = [examples.shape for examples in keras.tree.flatten(inputs)]
    return any(len(shape) > 1 and shape[-1] > long_attention.SHORT for shape in shapes)


def of_texts(long: bool | None, function: Callable) -> Callable:
    """Return a function of one argument traced for long examples alone, or short; None is both."""

    def traced(argument):
        with long_attention.trace_for_length(long), trace_blocks_once():
            return function(argument)

    return traced


def weights_of_metrics(real, y_pred, sample_weight):
    """Return sample weights that are 0 in rows that do not count.

    Args:
        real: (B,) bool.
        y_pred: outputs (B, ...), or (B * M, C) of M tokens in each row.
        sample_weight: (B, ...), (B * M,) or None.
    """
    y_pred = ops.convert_to_tensor(y_pred)
    real = ops.cast(real, "float32")
    rows, count = ops.shape(real)[0], ops.shape(y_pred)[0]
    real = ops.reshape(ops.broadcast_to(real[:, None], (rows, count // rows)), (-1,))
    rank = len(y_pred.shape) - 1 if sample_weight is None else len(sample_weight.shape)
    real = ops.reshape(real, (-1, *[1] * (rank - 1)))
    return real if sample_weight is None else real * ops.cast(sample_weight, "float32")


class GraphCache:
    """The graphs that a task has traced: of batches, steps and answers.

    Args:
        task: whose preprocessor and steps are traced.
    """

    def __init__(self, task: TextModel):
        self._task = task
        self._graphs = {}
        self._lengths = None  # that batches are padded to where every shape is compiled
        self._packings = {}  # {batch size: [(length, numbers of packed sequences)]}
        self._reported = set()

    def get(self, name, make: Callable):
        """Return the graph of this name, made once per precision and setting of the preprocessor.

        Args:
            name: anything hashable.
            make: makes the graph, called without arguments.
        """
        task = self._task
        settings = vars(task.preprocessor) if task.preprocessor is not None else {}
        plain = [(n, v) for n, v in settings.items() if not n.startswith("_") and n != "tokenizer"]
        plain.append(id(settings.get("tokenizer")))
        key = name, self._compiles(), self._lengths, task.dtype_policy.name, repr(plain)
        if key not in self._graphs:
            self._graphs[key] = make()
        return self._graphs[key]

    def _compiles(self) -> bool:
        return bool(self._task.compiled and self._task.jit_compile)

    def has_one_graph(self) -> bool:
        """Return whether one graph predicts all batches, not a program for each of their shapes."""
        task = self._task
        if keras.config.backend() != "tensorflow" or task.distribution.strategy:
            return False
        several = task.compiled and (task.run_eagerly or task.steps_per_execution > 1)
        return not (several or task.jit_compile)

    def lengths_vary(self) -> bool:
        """Return whether batches have different lengths, by their texts."""
        preprocessor = self._task.preprocessor
        return preprocessor is None or preprocessor.sequence_length is None

    # -- batches -------------------------------------------------------------------------------

    def compiles_shapes(self) -> bool:
        """Return whether a program is compiled for every shape of a batch."""
        return keras.config.backend() == "jax" or self._compiles()

    def fills(self) -> bool:
        """Return whether batches for `fit` and `evaluate` are filled to one number of rows."""
        task = self._task
        if not self.compiles_shapes() or task.distribution.strategy:
            return False
        return can_be_filled(task)

    def report_compiling(self, examples: dict, batch_size: int) -> None:
        """Log, once for each set of shapes, why the first steps of each take long."""
        if not self.compiles_shapes() or not self.lengths_vary():
            return
        if packing := self._packing(examples, batch_size):
            length, counts = packing
            text = (
                f"Short texts are packed into sequences of {length} tokens, "
                f"{_alternatives(counts)} of them in a batch."
            )
            shapes = "numbers of sequences"
        else:
            self._choose_lengths(examples)
            lengths = _alternatives(self._lengths)
            text, shapes = f"Batches are padded to {lengths} tokens.", "lengths"
        if text in self._reported:
            return
        self._reported.add(text)
        kept = enable_compilation_cache()
        logger.warning(
            "%s The step is compiled once for each of these %s that occurs, in some seconds%s. "
            "With sequence_length=... there is one length.",
            text,
            shapes,
            f", and kept in {kept} for other processes" if kept else "",
        )

    def _choose_lengths(self, examples: dict) -> None:
        longest = int(array_ops.reduce_max(examples["token_ids"].row_lengths()))
        self._lengths = choose_lengths(longest, self._lengths)

    def _packing(self, examples: dict, batch_size: int) -> tuple[int, tuple] | None:
        """Return the length and the possible numbers of packed sequences, where batches are packed.

        Whether they are depends on the examples alone, so that a training that is resumed has the
        same batches. Of packings that fit about as well, the known one is compiled already.
        """
        packs = self._task.record.packs_batches
        if not (packs and _is_on_one_jax_device() and self.lengths_vary()):
            return None
        if any(name.startswith(CANDIDATE) for name in examples):
            return None
        lengths = np.asarray(examples["token_ids"].row_lengths())
        length = choose_lengths(int(lengths.max()))[-1]
        length = min(length, self._task.preprocessor.max_sequence_length)
        counts = (
            choose_sequence_counts(lengths, length, batch_size)
            if length <= THREE_LENGTHS_UP_TO
            else None
        )
        if counts is None:
            return None
        known, needed = self._packings.setdefault(batch_size, []), length * counts[0]
        for packing in known:
            tokens = packing[0] * packing[1][0]
            if packing[0] >= length and 0.9 * needed <= tokens <= 1.5 * needed:
                return packing
        known.append((length, counts))
        return known[-1]

    def collate(self, lengths: tuple[int, ...] | None = None) -> Callable:
        """Return the preprocessor's `collate`.

        Args:
            lengths: that batches are padded to where every shape is compiled; None: those known.
        """
        # Where every new shape is compiled, few shapes are worth some padding.
        bucketed, lengths = self.compiles_shapes(), lengths or self._lengths
        preprocessor = self._task.preprocessor

        def collate(examples, seed=None):
            with padding_to(lengths):
                return preprocessor.collate(examples, seed, bucketed=bucketed)

        return collate

    def batcher(self, examples: dict, batch_size: int, fills: bool) -> LengthGroupedBatcher:
        """Return the batcher of encoded examples.

        Args:
            examples: to be batched.
            batch_size: B.
            fills: whether batches are filled to one number of rows.
        """
        multiple = data_parallel_devices() if fills else None
        if packing := self._packing(examples, batch_size):
            length, counts = packing
            return self.get(
                ("batches", multiple, packing),
                lambda: LengthGroupedBatcher(self.collate((length,)), multiple, counts),
            )
        if self.compiles_shapes() and self.lengths_vary():
            self._choose_lengths(examples)
        return self.get(
            ("batches", multiple), lambda: LengthGroupedBatcher(self.collate(), multiple)
        )

    # -- steps ---------------------------------------------------------------------------------

    def step_function(self, step: Callable) -> Callable | None:
        """Return the function of an iterator that runs a step of `fit` or `evaluate`, or None.

        None means Keras's own: a graph that takes the batch from the iterator and calls another
        graph. TensorFlow traces and optimizes both.

        Args:
            step: `train_step` or `test_step`.
        """
        if not self.has_one_graph():
            return None
        graphs = {
            long: tf.function(of_texts(long, step), autograph=False) for long in (False, True)
        }
        lock = weights_lock(self._task)
        trains = step == self._task.train_step
        hold = lock.exclusive if trains else lock.shared
        # With gradients written out, a step of `fit` runs on a CPU as fast as its graph is traced;
        # one of `evaluate` has operations that TensorFlow merges.
        as_traced = trains and not tf.config.list_logical_devices("GPU")

        def function(iterator):
            batch = next(iterator)
            long = is_long(keras.utils.unpack_x_y_sample_weight(batch)[0])
            graph = graphs[long]
            in_graphs = not tf.config.functions_run_eagerly()
            if in_graphs and isinstance(iterator, tf.data.Iterator):
                # Found, once it is there, for every batch that it fits.
                graph.get_concrete_function(iterator.element_spec)
            with hold(), graphs_as_traced(as_traced and not long):
                return graph(batch)

        return function

    def predict_function(self) -> Callable:
        """Return the function of a list of one batch that `predict` calls."""

        def predict(batches):
            inputs = keras.utils.unpack_x_y_sample_weight(batches[0])[0]
            return self._forward(is_long(inputs))(inputs)

        return predict

    def _forward(self, long: bool | None) -> ShapePolymorphicFunction:
        """Return the graph from inputs to outputs, for batches of all sizes."""
        step = self._task.predict_step
        return self.get(
            ("forward", self._weights, long),
            lambda: ShapePolymorphicFunction(of_texts(long, step), 3),
        )

    def renew_weights(self) -> None:
        """Note which variables the next graphs read; other variables need other graphs."""
        self._weights = tuple((id(weight), weight.dtype) for weight in self._task.variables)

    def forget(self) -> None:
        """Forget all graphs, as after a change of the backbone's layers."""
        self._graphs.clear()

    # -- answers -------------------------------------------------------------------------------

    def predict_few(self, texts: tuple, encode: Callable | None = None) -> np.ndarray:
        """Return the outputs of one batch of texts.

        Keras's loop over a dataset takes longer than the model.

        Args:
            texts: one or two (B,) string tensors.
            encode: makes examples of the texts; None is the preprocessor's `encode`.
        """
        preprocessor = self._task.preprocessor
        encode, collate = encode or preprocessor.encode, self.collate()
        quick = preprocessor.tokenizer.library_is_equal
        with in_numpy() if quick else contextlib.nullcontext():
            texts = tuple(as_array(np.asarray(part)) for part in texts) if quick else texts
            batch = collate(encode(texts))
        return self._outputs(keras.utils.unpack_x_y_sample_weight(batch)[0])

    def predict_chosen(self, examples: dict, indices: np.ndarray) -> np.ndarray:
        """Return the outputs of some encoded examples.

        Args:
            examples: encoded, tensors with N examples.
            indices: (B,) of those that make the batch.
        """
        collate = self.collate()

        def inputs_of(arguments):
            examples, indices = arguments
            batch = collate(take_examples(examples, indices))
            return keras.utils.unpack_x_y_sample_weight(batch)[0]

        make = self.get("chosen", lambda: ShapePolymorphicFunction(inputs_of))
        return self._outputs(make((examples, indices)))

    def _outputs(self, inputs: dict) -> np.ndarray:
        """Return the outputs of one batch of inputs."""
        task = self._task
        task._warn_new_head()
        with weights_lock(task).shared():
            if not self.has_one_graph():
                inputs = {name: np.asarray(values) for name, values in inputs.items()}
                return task.predict_on_batch(inputs)
            task.make_predict_function()
            outputs = self._forward(is_long(inputs))(inputs)
            return keras.tree.map_structure(lambda output: output.numpy(), outputs)


def _alternatives(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers))


def _is_on_one_jax_device() -> bool:
    return keras.config.backend() == "jax" and keras.distribution.distribution() is None
