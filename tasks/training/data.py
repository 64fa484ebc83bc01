"""The interface of the data of `fit` and `evaluate`, which does not know the task.

A `Source` yields batches of texts in memory, datasets, streams or corpora. A `BatchMaker` has the
functions and settings of a task that make these batches. `sources.as_source` chooses the source.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator

import keras
import numpy as np

from encoder_zoo.common.lazy import array_ops, tf
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.preprocessing.array_batches import ArrayBatches
from encoder_zoo.tasks.preprocessing.batch_shapes import (
    THREE_LENGTHS_UP_TO,
    choose_lengths,
    choose_sequence_counts,
    real_examples,
)
from encoder_zoo.tasks.preprocessing.batching import LengthGroupedBatcher, Plan
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.training.distribution import data_parallel_devices
from encoder_zoo.tasks.training.graphs import GraphCache, enable_compilation_cache

logger = logging.getLogger("encoder_zoo")


@dataclasses.dataclass(frozen=True)
class BatchMaker:
    """The functions and settings of a task that make batches of its data.

    Attributes:
        task: Class name of the task.
        preprocessor: Preprocessor. None if the task only takes prepared inputs.
        encode: Function of `(x, y, sample_weight)` in memory that returns encoded examples.
        separate: Function of `(x, y)` that returns inputs and labels.
        check_given: Function of `(y, x)` that raises an error if some labels are missing.
        check: Function that returns inputs of any kind, with checks of prepared inputs.
        graphs: `GraphCache` of the task, with the lengths of batches so far.
        labels_tokens: Boolean. Whether the labels of a text are those of its words.
        compiles: Boolean. Whether a program is compiled for every shape of a batch.
        fills: Boolean. Whether batches are filled to one number of rows.
        packs: Boolean. Whether short texts may be packed into sequences.
        worker: Index of this worker, and the number of workers.
        dtype: Name of the task's dtype policy.
    """

    task: str
    preprocessor: Preprocessor | None
    encode: Callable
    separate: Callable
    check_given: Callable
    check: Callable
    graphs: GraphCache
    labels_tokens: bool
    compiles: bool
    fills: bool
    packs: bool
    worker: tuple[int, int]
    dtype: str

    def cached(self, name, make: Callable):
        """Return a graph, made once for each combination of these settings.

        Args:
            name: Hashable name of the graph.
            make: Function without arguments that makes the graph.
        """
        settings = vars(self.preprocessor) if self.preprocessor is not None else {}
        plain = [(n, v) for n, v in settings.items() if not n.startswith("_") and n != "tokenizer"]
        plain.append(id(settings.get("tokenizer")))
        key = name, self.compiles, self.graphs.lengths, self.dtype, repr(plain)
        return self.graphs.get(key, make)

    @property
    def lengths_vary(self) -> bool:
        """Return whether batches have different lengths, by their texts."""
        return self.preprocessor is None or self.preprocessor.sequence_length is None

    @property
    def multiple(self) -> int | None:
        """Return the number that the rows of a filled batch are a multiple of, or None."""
        return data_parallel_devices() if self.fills else None

    def collate(self, lengths: tuple[int, ...] | None = None) -> Callable:
        """Return the preprocessor's `collate`, as a function of `(examples, seed=None)`.

        Args:
            lengths: Tuple of the lengths to pad to if every shape is compiled. Defaults to the
                lengths so far.
        """
        # If every new shape is compiled, few shapes are worth some padding.
        bucketed = self.compiles and (lengths or self.graphs.lengths or True)
        return functools.partial(self.preprocessor.collate, bucketed=bucketed)

    def batcher(self, examples: dict, batch_size: int, fills: bool) -> LengthGroupedBatcher:
        """Return the batcher of encoded examples.

        Args:
            examples: Encoded examples.
            batch_size: Number of examples in a batch.
            fills: Boolean. Whether batches are filled to one number of rows.
        """
        multiple = data_parallel_devices() if fills else None
        if packing := self._packing(examples, batch_size):
            length, counts = packing
            return self.cached(
                ("batches", multiple, packing),
                lambda: LengthGroupedBatcher(self.collate((length,)), multiple, counts),
            )
        if self.compiles and self.lengths_vary:
            self._choose_lengths(examples)
        return self.cached(
            ("batches", multiple), lambda: LengthGroupedBatcher(self.collate(), multiple)
        )

    def report_compiling(self, examples: dict, batch_size: int) -> None:
        """Log, once for each set of shapes, why the first steps of each take long."""
        if not self.compiles or not self.lengths_vary:
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
            lengths = _alternatives(self.graphs.lengths)
            text, shapes = f"Batches are padded to {lengths} tokens.", "lengths"
        if text in self.graphs.reported:
            return
        self.graphs.reported.add(text)
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
        self.graphs.lengths = choose_lengths(longest, self.graphs.lengths)

    def _packing(self, examples: dict, batch_size: int) -> tuple[int, tuple] | None:
        """Return the length and the possible numbers of packed sequences, or None.

        Whether batches are packed depends on the examples alone, so that a training that is resumed
        has the same batches. Of packings that fit about as well, the known one is compiled already.
        """
        if not (self.packs and _is_on_one_jax_device() and self.lengths_vary):
            return None
        if any(name.startswith(CANDIDATE) for name in examples):
            return None
        lengths = np.asarray(examples["token_ids"].row_lengths())
        length = choose_lengths(int(lengths.max()))[-1]
        length = min(length, self.preprocessor.max_sequence_length)
        counts = (
            choose_sequence_counts(lengths, length, batch_size)
            if length <= THREE_LENGTHS_UP_TO
            else None
        )
        if counts is None:
            return None
        known, needed = self.graphs.packings.setdefault(batch_size, []), length * counts[0]
        for packing in known:
            tokens = packing[0] * packing[1][0]
            if packing[0] >= length and 0.9 * needed <= tokens <= 1.5 * needed:
                return packing
        known.append((length, counts))
        return known[-1]


def _alternatives(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers))


def _is_on_one_jax_device() -> bool:
    return keras.config.backend() == "jax" and keras.distribution.distribution() is None


@contextlib.contextmanager
def own_errors(*sources: Source | None) -> Iterator[None]:
    """Return a context in which an error of a source is raised itself.

    TensorFlow reads streams in a thread, and ends in an error of its graph.
    """
    try:
        yield
    except Exception as error:
        found = next((s.error for s in sources if s is not None and s.error is not None), None)
        if found is None or not isinstance(error, tf.errors.OpError):
            raise
        raise found from None


class Source:
    """Base class of the data that a task is trained or evaluated on.

    Args:
        plan: `Plan`. How the data are read.
        maker: `BatchMaker`. What makes batches of the data.

    Attributes:
        steps: Number of batches of one pass, or of an epoch if only that is known.
        window_sizes: List of plain data that grows with reading and finds a late batch quickly. A
            backup keeps it.
        class_weights: List of the weights of all classes, or None.
        error: The exception that reading the data has raised, or None. TensorFlow replaces it by
            an error of its own.
    """

    def __init__(self, plan: Plan, maker: BatchMaker):
        self.plan, self.maker = plan, maker
        self.window_sizes: list = []
        self.class_weights: list | None = None
        self.error: Exception | None = None
        self._changes: list[Callable] = []

    steps: int

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of batches of an epoch."""
        return self.plan.steps_per_epoch or self.steps

    @property
    def total_steps(self) -> int:
        """Return the number of batches of all epochs."""
        return len(self.plan.epochs) * self.steps_per_epoch

    def count_examples(self) -> int:
        """Return the number of examples of one pass."""
        return self.steps * self.plan.batch_size

    def check(self) -> None:
        """Raise an error if `fit` cannot take these data, and log their costs."""
        if self.maker.preprocessor is not None and self.maker.preprocessor.packed_length:
            raise ValueError(
                "pack_texts needs all texts in memory. Pass lists, not a dataset or stream."
            )

    def batches(self, seed: int, start: int = 0) -> tf.data.Dataset:
        """Return the batches of all epochs from a number on. Earlier batches are never made.

        Args:
            seed: Integer that decides order and masking.
            start: Number of the first batch. Defaults to 0.
        """
        batches = self._batches(seed, start)
        for change in self._changes:
            batches = batches.map(change)
        return batches

    def _batches(self, seed: int, start: int) -> tf.data.Dataset:
        raise NotImplementedError

    def one_pass(self) -> tf.data.Dataset:
        """Return the batches of one pass, to count labels in."""
        return self.batches(0).take(self.steps).map(real_examples)

    def in_order(self):
        """Return the batches of one pass for Keras's `evaluate`."""
        raise NotImplementedError

    def describe(self) -> dict:
        """Return plain data that identifies these data."""
        raise NotImplementedError

    def split(self, share: float, batch_size: int) -> tuple[Source, Source]:
        """Return the data without the share at their end, and that share to evaluate on.

        Args:
            share: Float between 0 and 1. Share of the examples.
            batch_size: Number of examples in a batch of the evaluation.
        """
        check_dataset_alone(validation_split=share)

    def weighted(self, weigh: Callable, weights: np.ndarray) -> Source:
        """Return the same data with other sample weights.

        Args:
            weigh: Function of `(x, y)` or `(x, y, sample_weight)`, and `weights=`, that returns
                `(x, y, sample_weight)`.
            weights: Array of the weights of the classes.
        """
        source = copy.copy(self)
        source._changes = [*self._changes, functools.partial(weigh, weights=weights)]
        source.class_weights = weights.tolist()
        return source


def uncounted(batches):
    """Return batches that Keras does not know the number of.

    It counts full executions of several steps, also where the last of an epoch is shorter, and
    would begin with the first batch again before it has seen the last.

    Args:
        batches: a `tf.data.Dataset` or `ArrayBatches`; anything else is returned as it is.
    """
    if isinstance(batches, ArrayBatches):
        return batches.uncounted()
    return batches.filter(lambda *_: True) if hasattr(batches, "filter") else batches


def check_dataset_alone(y=None, sample_weight=None, validation_split: float = 0.0) -> None:
    """Raise a ValueError if something that belongs into a dataset is passed with one."""
    given = {"y": y, "sample_weight": sample_weight, "validation_split": validation_split or None}
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ValueError(
            f"Received {', '.join(names)} with a dataset. Put labels and weights into its "
            "elements, (x, y) or (x, y, sample_weight), and pass held-out examples as "
            "`validation_data`."
        )
