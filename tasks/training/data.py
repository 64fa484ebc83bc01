"""Interface to the data for `fit` and `evaluate`, independent of the task.

A `Source` yields batches from texts in memory, datasets, streams or corpora. A `BatchMaker`
contains the functions and settings used by a task to make these batches, and the `GraphCache` with
the graphs for them. `sources.as_source` is used to select the source.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import logging
import os
import pathlib
import platform
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

logger = logging.getLogger("encoder_zoo")

# Programs that are compiled faster than this will not be stored.
MIN_SECONDS = 0.1


@functools.cache
def enable_compilation_cache() -> pathlib.Path | None:
    """Make JAX store compiled programs in the user's cache folder.

    Set `JAX_COMPILATION_CACHE_DIR` to use another folder, or `JAX_ENABLE_COMPILATION_CACHE=false`
    to disable the cache. There is a separate folder for every kind of processor, because the
    instructions can differ.

    Returns:
        Path to the folder, or None when JAX is not the backend or when the cache is disabled.
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
    except OSError:  # the home folder is not writable
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)
    compilation_cache.reset_cache()  # JAX only checks once whether a cache exists
    return folder


def _processor() -> str:
    """Return a name for this processor and its instruction set."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
        names = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    except OSError:
        names = [platform.processor()]
    digest = hashlib.sha256("\n".join(sorted(set(names))).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:12]}"


class GraphCache:
    """Cache for a task's graphs and batch shapes.

    Attributes:
        lengths: Optional tuple with the lengths to pad batches to when every shape is compiled.
        packings: A dict from batch sizes to lists of (length, numbers of packed sequences).
        reported: A set with the messages that have already been logged.
    """

    def __init__(self):
        self._graphs = {}
        self.lengths: tuple[int, ...] | None = None
        self.packings: dict[int, list[tuple]] = {}
        self.reported: set[str] = set()

    def get(self, key, make: Callable):
        """Return the graph for a hashable key. If it is missing, call `make` to create it."""
        if key not in self._graphs:
            self._graphs[key] = make()
        return self._graphs[key]

    def forget(self) -> None:
        """Delete all graphs, for example after the backbone layers have changed."""
        self._graphs.clear()


@dataclasses.dataclass(frozen=True)
class BatchMaker:
    """Functions and settings used by a task to make batches from its data.

    Attributes:
        task: String. The task's class name.
        preprocessor: Preprocessor, or None when the task only accepts preprocessed inputs.
        encode: A function of `(x, y, sample_weight)` to encode examples in memory.
        separate: A function of `(x, y)` to separate the inputs from the labels.
        check_given: A function of `(y, x)` to raise an error for missing labels.
        check: A function to check preprocessed inputs. It returns inputs of any kind.
        graphs: The task's `GraphCache`, with the lengths used in previous batches.
        labels_tokens: Boolean. Whether to expect a label for every word in a text.
        compiles: Boolean. Whether a program will be compiled for every batch shape.
        fills: Boolean. Whether to pad all batches to the same number of rows.
        packs: Boolean. Whether to allow packing short texts into sequences.
        worker: A tuple with the index for this worker and the number of workers.
        dtype: String. The task's dtype policy name.
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
        """Return a graph from the cache, or make it when the cache has no graph for these settings.

        Args:
            name: Hashable. Graph name.
            make: A function to be called without arguments to make the graph.
        """
        settings = vars(self.preprocessor) if self.preprocessor is not None else {}
        plain = [(n, v) for n, v in settings.items() if not n.startswith("_") and n != "tokenizer"]
        plain.append(id(settings.get("tokenizer")))
        key = name, self.compiles, self.graphs.lengths, self.dtype, repr(plain)
        return self.graphs.get(key, make)

    @property
    def lengths_vary(self) -> bool:
        """Return whether the length of a batch depends on its texts."""
        return self.preprocessor is None or self.preprocessor.sequence_length is None

    @property
    def multiple(self) -> int | None:
        """Multiple to round the number of rows in a padded batch up to, or None."""
        return data_parallel_devices() if self.fills else None

    def collate(self, lengths: tuple[int, ...] | None = None) -> Callable:
        """Return the preprocessor's `collate` as a function of `(examples, seed=None)`.

        Args:
            lengths: A tuple with the lengths to pad to when every shape is compiled. Defaults to
                the lengths used in previous batches.
        """
        # When every shape is compiled, additional padding is cheaper than additional shapes.
        bucketed = self.compiles and (lengths or self.graphs.lengths or True)
        return functools.partial(self.preprocessor.collate, bucketed=bucketed)

    def batcher(self, examples: dict, batch_size: int, fills: bool) -> LengthGroupedBatcher:
        """Return a batcher to be used for encoded examples.

        Args:
            examples: A dict of encoded examples.
            batch_size: Integer. Number of examples per batch.
            fills: Boolean. Whether to pad all batches to the same number of rows.
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
        """Log, once for each set of shapes, that the first step for each shape will be compiled."""
        if not self.compiles or not self.lengths_vary:
            return
        if packing := self._packing(examples, batch_size):
            length, counts = packing
            text = (
                f"Short texts are packed into sequences of {length} tokens, with "
                f"{_alternatives(counts)} sequences per batch."
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
            "%s The training step is compiled once for each of these %s, which takes some "
            "seconds%s. Set sequence_length=... to use a single length.",
            text,
            shapes,
            f"and is cached in {kept}" if kept else "",
        )

    def _choose_lengths(self, examples: dict) -> None:
        longest = int(array_ops.reduce_max(examples["token_ids"].row_lengths()))
        self.graphs.lengths = choose_lengths(longest, self.graphs.lengths)

    def _packing(self, examples: dict, batch_size: int) -> tuple[int, tuple] | None:
        """Return the length and the possible numbers of packed sequences, or None.

        Packing only depends on the examples, so that a resumed training will use the same batches.
        If several packings are about equally good, a known packing is used because it is already
        compiled.
        """
        on_one_device = keras.distribution.distribution() is None
        on_one_device = on_one_device and keras.config.backend() == "jax"
        if not (self.packs and on_one_device and self.lengths_vary):
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


@contextlib.contextmanager
def own_errors(*sources: Source | None) -> Iterator[None]:
    """Return a context to raise the original errors from sources.

    TensorFlow reads streams in a thread and replaces their errors by graph errors.
    """
    try:
        yield
    except Exception as error:
        found = next((s.error for s in sources if s is not None and s.error is not None), None)
        if found is None or not isinstance(error, tf.errors.OpError):
            raise
        raise found from None


class Source:
    """Base class for data to train or evaluate on.

    Args:
        plan: `Plan` with the batch size, epochs and steps.
        maker: The task's `BatchMaker`.

    Attributes:
        steps: Integer. Number of batches in one pass, or per epoch when the former is unknown.
        window_sizes: A list with plain data, to be extended while reading. It is used to find later
            batches quickly and is stored in backups.
        class_weights: Optional list with the weights for all classes.
        error: Optional exception that was raised while reading the data. TensorFlow replaces this
            exception by its own error.
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
        """Number of batches per epoch."""
        return self.plan.steps_per_epoch or self.steps

    @property
    def total_steps(self) -> int:
        """Number of batches for all epochs."""
        return len(self.plan.epochs) * self.steps_per_epoch

    def count_examples(self) -> int:
        """Return the number of examples for one pass."""
        return self.steps * self.plan.batch_size

    def check(self) -> None:
        """Raise an error if `fit` does not support this data, and log messages about its cost."""
        if self.maker.preprocessor is not None and self.maker.preprocessor.packed_length:
            raise ValueError(
                "pack_texts requires all texts in memory. Pass lists instead of a dataset or "
                "stream."
            )

    def batches(self, seed: int, start: int = 0) -> tf.data.Dataset:
        """Return the batches for all epochs from an index on, without making earlier batches.

        Args:
            seed: Integer. Random seed used for the example order and for masking.
            start: Integer. Index of the batch to start with. Defaults to 0.
        """
        batches = self._batches(seed, start)
        for change in self._changes:
            batches = batches.map(change)
        return batches

    def _batches(self, seed: int, start: int) -> tf.data.Dataset:
        raise NotImplementedError

    def one_pass(self) -> tf.data.Dataset:
        """Return the batches for one pass to count the labels."""
        return self.batches(0).take(self.steps).map(real_examples)

    def in_order(self):
        """Return the batches for one pass to be used by Keras's `evaluate`."""
        raise NotImplementedError

    def describe(self) -> dict:
        """Return plain values to identify this data."""
        raise NotImplementedError

    def split(self, share: float, batch_size: int) -> tuple[Source, Source]:
        """Split off the last examples to be used for validation, and return both parts.

        Args:
            share: Float between 0 and 1. Fraction of examples to use for validation.
            batch_size: Integer. Number of examples per validation batch.
        """
        check_dataset_alone(validation_split=share)

    def weighted(self, weigh: Callable, weights: np.ndarray) -> Source:
        """Return the same data with different sample weights.

        Args:
            weigh: A function of `(x, y)` or `(x, y, sample_weight)` and a keyword argument
                `weights` that returns `(x, y, sample_weight)`.
            weights: An array with a weight per class.
        """
        source = copy.copy(self)
        source._changes = [*self._changes, functools.partial(weigh, weights=weights)]
        source.class_weights = weights.tolist()
        return source


def uncounted(batches):
    """Return batches whose number is unknown to Keras.

    When the number is known, Keras only runs full executions with several steps. If the last
    execution in an epoch is shorter, Keras would continue with the first batch before the epoch has
    ended.

    Args:
        batches: `tf.data.Dataset` or `ArrayBatches`. Any other object will be returned unchanged.
    """
    if isinstance(batches, ArrayBatches):
        return batches.uncounted()
    return batches.filter(lambda *_: True) if hasattr(batches, "filter") else batches


def check_dataset_alone(y=None, sample_weight=None, validation_split: float = 0.0) -> None:
    """Raise a ValueError if labels, weights or a split are passed together with a dataset."""
    given = {"y": y, "sample_weight": sample_weight, "validation_split": validation_split or None}
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ValueError(
            f"Received {', '.join(names)} with a dataset. Put labels and weights into its "
            "elements, (x, y) or (x, y, sample_weight), and pass held-out examples as "
            "`validation_data`."
        )
