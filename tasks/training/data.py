"""Base classes for the data of `fit` and `evaluate`, which do not depend on the task.

A `Source` yields batches from texts in memory, datasets, streams or corpora. It is created by
`InputData.make_source` (`sources.py`). A `BatchMaker` contains the functions and settings that a
task uses to create batches. It has a `GraphCache` with the traced graphs.
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

from encoder_zoo.common.lazy import tf, xp
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.preprocessing import batch_shapes
from encoder_zoo.tasks.preprocessing.array_batches import ArrayBatches
from encoder_zoo.tasks.preprocessing.batching import LengthGroupedBatcher, Plan
from encoder_zoo.tasks.preprocessing.prepared import SupportsInputs
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.training.distribution import count_data_parallel_devices

logger = logging.getLogger("encoder_zoo")

# Programs that compile in fewer seconds are not stored.
MIN_SECONDS = 0.1


@functools.cache
def enable_compilation_cache() -> pathlib.Path | None:
    """Make JAX store compiled programs in the user's cache folder.

    Set `JAX_COMPILATION_CACHE_DIR` to use another folder, or `JAX_ENABLE_COMPILATION_CACHE=false`
    to disable the cache. Every processor model has its own folder, because instruction sets differ.

    Returns:
        Path of the folder, or None if the backend is not JAX or the cache is disabled.
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
    folder = home / "encoder_zoo" / "jax" / _make_processor_name()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # the home folder is not writable
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)
    compilation_cache.reset_cache()  # JAX checks only once whether a cache exists
    return folder


def _make_processor_name() -> str:
    """Return a folder name for this processor and its instruction set."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
        names = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    except OSError:
        names = [platform.processor()]
    digest = hashlib.sha256("\n".join(sorted(set(names))).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:12]}"


class GraphCache:
    """Cache for the traced graphs and the batch shapes of a task.

    Attributes:
        lengths: Optional tuple of integers. If every shape is compiled, each batch is padded to one
            of these lengths.
        packings: Dict mapping batch sizes to lists of tuples. A tuple contains the length of the
            packed sequences, and the possible numbers of sequences per batch.
        reported: Set of strings. Messages that have already been logged.
        layers_version: Integer. The `layers_version` of the backbone in the graphs.
    """

    def __init__(self):
        self._graphs = {}
        self.lengths: tuple[int, ...] | None = None
        self.packings: dict[int, list[tuple]] = {}
        self.reported: set[str] = set()
        self.layers_version = 0

    def get(self, key, make: Callable):
        """Return the graph for a hashable key. If the graph is missing, create it with `make`."""
        if key not in self._graphs:
            self._graphs[key] = make()
        return self._graphs[key]

    def delete_graphs(self, layers_version: int) -> None:
        """Delete all graphs after the backbone layers have changed."""
        self._graphs.clear()
        self.layers_version = layers_version


@dataclasses.dataclass(frozen=True)
class BatchMaker:
    """Functions and settings that a task uses to create batches.

    Attributes:
        model: Task that the batches are for. Preprocessed inputs are checked with its ranges.
        preprocessor: Preprocessor, or None if the task only accepts preprocessed inputs.
        encode: Function of `(x, y, sample_weight)` that encodes examples in memory.
        separate: Function of `(x, y)` that separates the inputs from the labels.
        none_is_answer: Boolean. Whether None is a valid label. See `Labels`.
        graphs: `GraphCache` of the task, with the lengths of previous batches.
        labels_tokens: Boolean. Whether every word in a text has a label.
        compiles: Boolean. Whether a program is compiled for every batch shape.
        fills: Boolean. Whether all batches are padded to the same number of rows.
        packs: Boolean. Whether short texts can be packed into sequences.
        worker: Tuple of two integers. The index of this worker and the number of workers.
        dtype: String. Name of the task's dtype policy.
        reads_labels: Boolean. Whether the labels and weights in a stream are read. `predict` only
            reads the inputs. Defaults to True.
    """

    model: SupportsInputs
    preprocessor: Preprocessor | None
    encode: Callable
    separate: Callable
    none_is_answer: bool
    graphs: GraphCache
    labels_tokens: bool
    compiles: bool
    fills: bool
    packs: bool
    worker: tuple[int, int]
    dtype: str
    reads_labels: bool = True

    def get_graph(self, name, make: Callable):
        """Return the graph for the current settings. If it is not in the cache, create it.

        Args:
            name: Hashable. Name of the graph.
            make: Function without arguments that creates the graph.
        """
        settings = vars(self.preprocessor) if self.preprocessor is not None else {}
        plain = [(n, v) for n, v in settings.items() if not n.startswith("_") and n != "tokenizer"]
        plain.append(id(settings.get("tokenizer")))
        key = name, self.compiles, self.graphs.lengths, self.dtype, repr(plain)
        return self.graphs.get(key, make)

    @property
    def lengths_vary(self) -> bool:
        """Return whether a batch's length depends on the lengths of its texts."""
        return self.preprocessor is None or self.preprocessor.sequence_length is None

    @property
    def multiple(self) -> int | None:
        """Return the number of devices if batches are padded to a multiple of it, else None."""
        return count_data_parallel_devices() if self.fills else None

    def collate(self, lengths: tuple[int, ...] | None = None) -> Callable:
        """Return the preprocessor's `collate` as a function of `(examples, seed=None)`.

        Args:
            lengths: Optional tuple of integers. If every shape is compiled, each batch is padded to
                one of these lengths. Defaults to the lengths of previous batches.
        """
        # If every shape is compiled, more padding is cheaper than more shapes.
        bucketed = self.compiles and (lengths or self.graphs.lengths or True)
        return functools.partial(self.preprocessor.collate, bucketed=bucketed)

    def make_batcher(self, examples: dict, batch_size: int, fills: bool) -> LengthGroupedBatcher:
        """Create a batcher for encoded examples.

        Args:
            examples: Dict of encoded examples.
            batch_size: Integer. Number of examples per batch.
            fills: Boolean. Whether all batches are padded to the same number of rows.
        """
        multiple = count_data_parallel_devices() if fills else None
        if packing := self._find_packing(examples, batch_size):
            length, counts = packing
            return self.get_graph(
                ("batches", multiple, packing),
                lambda: LengthGroupedBatcher(self.collate((length,)), multiple, counts),
            )
        if self.compiles and self.lengths_vary:
            self._choose_lengths(examples)
        return self.get_graph(
            ("batches", multiple), lambda: LengthGroupedBatcher(self.collate(), multiple)
        )

    def log_compiled_shapes(self, examples: dict, batch_size: int) -> None:
        """Log that the training step is compiled for each shape. Log the same shapes only once."""
        if not self.compiles or not self.lengths_vary:
            return
        if packing := self._find_packing(examples, batch_size):
            length, counts = packing
            text = (
                f"Short texts are packed into sequences of {length} tokens, with "
                f"{_format_alternatives(counts)} sequences per batch."
            )
            shapes = "numbers of sequences"
        else:
            self._choose_lengths(examples)
            lengths = _format_alternatives(self.graphs.lengths)
            text, shapes = f"Batches are padded to {lengths} tokens.", "lengths"
        if text in self.graphs.reported:
            return
        self.graphs.reported.add(text)
        kept = enable_compilation_cache()
        logger.warning(
            "%s The training step is compiled once for each of these %s, which takes a few "
            "seconds%s. To use a single length, set sequence_length=....",
            text,
            shapes,
            f", and is cached in {kept}" if kept else "",
        )

    def _choose_lengths(self, examples: dict) -> None:
        longest = int(xp.reduce_max(examples["token_ids"].row_lengths()))
        self.graphs.lengths = batch_shapes.choose_lengths(longest, self.graphs.lengths)

    def _find_packing(self, examples: dict, batch_size: int) -> tuple[int, tuple] | None:
        """Return the length and the possible numbers of packed sequences, or None without packing.

        If a previous packing is about as good, it is used again, because its program is already
        compiled. Otherwise, the packing only depends on the examples, so that a resumed training
        uses the same batches.
        """
        on_one_device = keras.distribution.distribution() is None
        on_one_device = on_one_device and keras.config.backend() == "jax"
        if not (self.packs and on_one_device and self.lengths_vary):
            return None
        if any(name.startswith(CANDIDATE) for name in examples):
            return None
        lengths = np.asarray(examples["token_ids"].row_lengths())
        length = batch_shapes.choose_lengths(int(lengths.max()))[-1]
        length = min(length, self.preprocessor.max_sequence_length)
        counts = (
            batch_shapes.choose_sequence_counts(lengths, length, batch_size)
            if length <= batch_shapes.MAX_LENGTH_WITH_THREE
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


def _format_alternatives(numbers: tuple[int, ...]) -> str:
    return " or ".join(map(str, numbers))


@contextlib.contextmanager
def raise_original_errors(*sources: Source | None) -> Iterator[None]:
    """Context manager that raises the original error if reading a source fails.

    TensorFlow reads streams in a thread, and replaces the original error by a TensorFlow error.
    """
    try:
        yield
    except Exception as error:
        found = next((s.error for s in sources if s is not None and s.error is not None), None)
        if found is None or not isinstance(error, tf.errors.OpError):
            raise
        raise found from None


class Source:
    """Base class for the data of `fit` and `evaluate`.

    Args:
        plan: `Plan` with the batch size, epochs and steps.
        maker: The task's `BatchMaker`.

    Attributes:
        steps: Integer. Number of batches in one pass over the data, or per epoch if the size of the
            data is unknown.
        window_sizes: List of integers. If the data is a corpus, the number of examples in each
            shuffle window that has been read. Backups store these sizes, so that a resumed training
            can skip whole windows.
        class_weights: Optional list with one weight per class.
        error: Optional exception that was raised while reading the data. TensorFlow replaces this
            exception by a TensorFlow error.
    """

    def __init__(self, plan: Plan, maker: BatchMaker):
        self.plan, self.maker = plan, maker
        self.window_sizes: list = []
        self.class_weights: list | None = None
        self.error: Exception | None = None
        self._weigh: Callable | None = None

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
        """Return the number of examples in one pass. All batches are counted as full batches."""
        return self.steps * self.plan.batch_size

    def check(self) -> None:
        """Raise an error if `fit` does not support this data.

        For data in memory, also log the batch shapes that will be compiled.
        """
        if self.maker.preprocessor is not None and self.maker.preprocessor.packed_length:
            raise ValueError(
                "`pack_texts` requires that all texts are in memory. Pass lists instead of a "
                "dataset or stream."
            )

    def make_batches(self, seed: int, start: int = 0) -> tf.data.Dataset:
        """Return the batches of all epochs, starting at index `start`.

        Args:
            seed: Integer. Random seed used for the example order and for masking.
            start: Integer. Index of the first batch. Earlier batches are skipped without creating
                them. Defaults to 0.
        """
        batches = self._make_epoch_batches(seed, start)
        return batches if self._weigh is None else batches.map(self._weigh)

    def _make_epoch_batches(self, seed: int, start: int) -> tf.data.Dataset:
        raise NotImplementedError

    def read_one_pass(self) -> tf.data.Dataset:
        """Return the batches of one pass over the data. They are used to count the labels.

        With `steps_per_epoch`, the size of the data can be unknown. In this case, return the
        batches of all epochs, because a single epoch can be a small part of the data.
        """
        count = self.total_steps if self.plan.steps_per_epoch else self.steps
        return self.make_batches(0).take(count).map(batch_shapes.drop_padding_rows)

    def read_in_order(self):
        """Return the batches of one pass in the order of the data, for `keras.Model.evaluate`."""
        raise NotImplementedError

    def describe(self) -> dict:
        """Return a dict of plain values that identify this data in a backup."""
        raise NotImplementedError

    def split(self, share: float, plan: Plan) -> tuple[Source, Source]:
        """Split the data into training examples and, at the end, validation examples.

        Args:
            share: Float between 0 and 1. Fraction of the examples for validation.
            plan: `Plan` with the size and number of validation batches.

        Raises:
            ValueError: If the data is not in memory, or if `share` is invalid.
        """
        check_no_separate_labels(validation_split=share)

    def change_weights(self, weigh: Callable, weights: np.ndarray) -> Source:
        """Return a copy of this source with different sample weights.

        Args:
            weigh: Function of `(x, y)` or `(x, y, sample_weight)` and a keyword argument `weights`,
                which returns `(x, y, sample_weight)`.
            weights: Array with one weight per class.
        """
        source = copy.copy(self)
        source._weigh = functools.partial(weigh, weights=weights)
        source.class_weights = weights.tolist()
        return source


def hide_num_batches(batches):
    """Hide the number of batches from Keras.

    If the number of batches is known and several steps are executed together, Keras always executes
    the full number of steps. The last execution of an epoch would then include the first batches of
    the next epoch.

    Args:
        batches: `tf.data.Dataset` or `ArrayBatches`. Any other object is returned unchanged.
    """
    if isinstance(batches, ArrayBatches):
        return batches.make_endless()
    return batches.filter(lambda *_: True) if hasattr(batches, "filter") else batches


def check_no_separate_labels(y=None, sample_weight=None, validation_split: float = 0.0) -> None:
    """Raise a ValueError if labels, weights or a split are passed together with a dataset."""
    given = {"y": y, "sample_weight": sample_weight, "validation_split": validation_split or None}
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ValueError(
            f"Received {', '.join(names)} with a dataset. Labels and weights must be part of its "
            "elements, (x, y) or (x, y, sample_weight). To use held-out examples, pass "
            "`validation_data`."
        )
