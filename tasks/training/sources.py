"""Convert the inputs of `fit` and `evaluate` to a `Source`: data in memory, datasets and streams.

Other kinds of data, such as a `PretrainingCorpus`, have a method `make_training_data(plan, maker)`
that returns a `Source`.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np

from encoder_zoo.common.lazy import tf, use_numpy, xp
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.tasks.preprocessing.array_batches import ArrayBatches
from encoder_zoo.tasks.preprocessing.batch_shapes import (
    drop_padding_rows,
    fill_batch,
    take_examples,
)
from encoder_zoo.tasks.preprocessing.batching import (
    FIXED_SEED,
    LengthGroupedBatcher,
    Plan,
    count_tokens,
    get_megabatch_size,
    group_batches,
    shuffle_by_length,
)
from encoder_zoo.tasks.preprocessing.checks import check_no_iterator
from encoder_zoo.tasks.preprocessing.columns import (
    describe_columns,
    list_table_columns,
    materialize,
)
from encoder_zoo.tasks.preprocessing.given_labels import Labels, check_not_missing
from encoder_zoo.tasks.preprocessing.prepared import (
    check_arrays,
    check_dataset,
    get_inputs,
    is_prepared,
    make_prepared_batch,
    make_prepared_examples,
)
from encoder_zoo.tasks.preprocessing.preprocessor import (
    log_truncation_once,
    report_truncation_in_datasets,
)
from encoder_zoo.tasks.preprocessing.token_files import TokenFiles
from encoder_zoo.tasks.training.data import BatchMaker, Source, check_no_separate_labels
from encoder_zoo.tasks.training.distribution import check_divisible, count_batches, count_to_end
from encoder_zoo.tasks.training.streams import Stream, count_rows, describe_settings, is_stream


@dataclass(frozen=True)
class InputData:
    """Inputs and labels for `fit`, `evaluate` or `predict`. Every kind of inputs is a subclass.

    Attributes:
        x: Inputs.
        y: Labels, or None if there are no labels or if `x` contains them.
        sample_weight: Optional weights of the examples.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    # Whether the inputs are a dataset or a stream, which contain the labels.
    is_read_in_batches: ClassVar[bool] = False

    @property
    def element(self) -> tuple:
        """Return `(x, y, sample_weight)`. For a dataset or stream, return its `element_spec`."""
        return self.x, self.y, self.sample_weight

    @property
    def is_prepared(self) -> bool:
        """Return whether the inputs are preprocessed. For a dataset, check its elements."""
        return is_prepared(self.element[0])

    def check_can_learn_labels(self) -> None:
        """Raise a ValueError if the set of labels cannot be read from the data."""
        check_not_empty(self.x)
        check_no_iterator(self.y, "y")

    def make_source(self, plan: Plan, maker: BatchMaker) -> Source:
        """Check the inputs, and create the `Source` of their batches.

        Args:
            plan: `Plan` with the batch size, epochs and steps.
            maker: The task's `BatchMaker`.
        """
        raise NotImplementedError


class TextData(InputData):
    """Raw inputs in memory."""

    def make_source(self, plan, maker):
        check_preprocessor(maker.model, self.x)
        check_not_empty(self.x)
        with log_truncation_once():
            return ExampleBatches(plan, maker, maker.encode(self.x, self.y, self.sample_weight))


class ArrayData(InputData):
    """Preprocessed inputs in memory."""

    def make_source(self, plan, maker):
        x = check_arrays(maker.model, self.x)
        return ExampleBatches(plan, maker, make_prepared_examples(x, self.y, self.sample_weight))


class CorpusData(InputData):
    """Object with a method `make_training_data`, such as a `PretrainingCorpus`."""

    def make_source(self, plan, maker):
        check_no_separate_labels(self.y, self.sample_weight)
        return self.x.make_training_data(plan, maker)


class DatasetData(InputData):
    """A `tf.data.Dataset` of single raw inputs, raw batches or preprocessed batches."""

    is_read_in_batches = True

    @property
    def element(self) -> tuple:
        return keras.utils.unpack_x_y_sample_weight(self.x.element_spec)

    def check_can_learn_labels(self) -> None:
        if int(self.x.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise ValueError("The dataset is infinite. Pass the labels: labels=[...].")

    def make_source(self, plan, maker):
        prepared, x = self.is_prepared, self.x
        if prepared:
            x = check_dataset(maker.model, x)
        else:
            check_preprocessor(maker.model, x)
        check_no_separate_labels(self.y, self.sample_weight)
        check_has_elements(x)
        return DatasetBatches(plan, maker, x, prepared)


class StreamData(DatasetData):
    """A `Stream`, which has an `element_spec` like a dataset."""

    def check_can_learn_labels(self) -> None:
        raise ValueError("The labels of a stream are not known in advance. Pass labels=[...].")

    def make_source(self, plan, maker):
        if not self.is_prepared:  # every preprocessed batch is checked when it is read
            check_preprocessor(maker.model, self.x)
        check_no_separate_labels(self.y, self.sample_weight)
        return StreamBatches(plan, maker, self.x, self.is_prepared)


def read_data(task, x, y, sample_weight=None) -> InputData:
    """Check the inputs and labels of `fit` or `evaluate`, and convert them to an `InputData`.

    Raises:
        ValueError: If the inputs or labels are missing or have the wrong type.
    """
    maker = task.batch_maker
    x, y = materialize(x), materialize(y)
    _check_arguments(task, x, y)
    check_not_missing(y, x, maker.none_is_answer)
    given = make_input_data(maker, x, y, sample_weight)
    _check_labels(task, given)
    return given


def read_examples(task, x, y) -> tuple:
    """Check labelled examples in memory, and separate inputs and labels.

    Raises:
        ValueError: If the inputs or labels are missing or have the wrong type.
    """
    _check_arguments(task, x, y)
    x, y = task.batch_maker.separate(x, y)
    _check_labels(task, TextData(x, y))
    return x, y


def _check_arguments(task, x, y) -> None:
    """Raise a ValueError if `x` is a string, path or dict of splits, or if `y` is a string."""
    if isinstance(x, str | bytes | os.PathLike):
        raise ValueError(
            f"`x` is {str(x)!r:.60}. Expected several texts, not a single text or a file name. "
            f"{task.record.file_advice.format(str(x))}"
        )
    if isinstance(x, Mapping) and any(list_table_columns(v) is not None for v in x.values()):
        splits = ", ".join(map(repr, x))
        raise ValueError(
            f"`x` contains the splits {splits}. Pass a single split: fit(x[{next(iter(x))!r}])."
        )
    if isinstance(y, str | bytes):
        raise ValueError(
            f"`y` is {y!r:.60}. Expected labels, not a column name.{describe_columns(x)}"
        )


def _check_labels(task, given: InputData) -> None:
    """Raise a ValueError if labels are missing and the task's preprocessor requires labels."""
    values = task.record.preprocessor_class.label_values
    if values is None or (isinstance(values, Labels) and values.are_in(given.x)):
        return
    if given.y is None and given.element[1] is None:
        raise ValueError(
            f"The {values.name}s are missing. Expected y: {values.expected}."
            f"{describe_columns(given.x)}"
        )


def make_input_data(maker: BatchMaker, x, y=None, sample_weight=None) -> InputData:
    """Separate inputs and labels, and select the class for this kind of inputs."""
    if is_stream(x):  # the labels of each batch are separated when it is read
        return StreamData(Stream(x, maker), y, sample_weight)
    x, y = maker.separate(x, y)
    # A table can have a column with the name of this method.
    if callable(getattr(x, "make_training_data", None)):
        kind = CorpusData
    elif hasattr(x, "element_spec"):
        _check_ranks(x)
        kind = DatasetData
    else:
        kind = ArrayData if is_prepared(x) else TextData
    return kind(x, y, sample_weight)


def _check_ranks(dataset) -> None:
    """Raise a ValueError if the inputs of a `tf.data.Dataset` have an unknown number of axes."""
    x = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0]
    shapes = [getattr(spec, "shape", None) for spec in keras.tree.flatten(x)]
    if any(shape is not None and shape.rank is None for shape in shapes):
        raise ValueError(
            f"The shape of the inputs in the dataset is unknown: {quote(x)}. Pass an "
            "output_signature to from_generator, or set the shapes after a tf.py_function: "
            "set_shape([]) for a single text, set_shape([None]) for a batch of texts, or "
            "set_shape([None, None]) for preprocessed inputs."
        )


class ExampleBatches(Source):
    """Source for data in memory: encoded texts (grouped by length) or preprocessed inputs.

    Args:
        plan: `Plan` with the batch size, epochs and steps.
        maker: The task's `BatchMaker`.
        examples: Dict of encoded examples, or of preprocessed inputs and their labels.
    """

    def __init__(self, plan: Plan, maker: BatchMaker, examples: dict):
        super().__init__(plan, maker)
        self.examples = examples
        self._is_encoded = hasattr(examples["token_ids"], "row_lengths")

    @functools.cached_property
    def _training_batches(self) -> tuple[int, Callable]:
        capacity = self.maker.preprocessor.packed_length if self._is_encoded else None
        return self._make_batcher(capacity is None).make_training_batches(
            self.examples, self.plan, capacity
        )

    def _make_batcher(self, may_fill: bool) -> LengthGroupedBatcher:
        maker, size = self.maker, self.plan.batch_size
        fills = may_fill and maker.fills and self._is_encoded
        if not fills:
            check_divisible(self.examples, size)
        if self._is_encoded:
            return maker.make_batcher(self.examples, size, fills)
        return maker.get_graph("prepared", lambda: LengthGroupedBatcher(make_prepared_batch))

    @property
    def steps(self) -> int:
        return self._training_batches[0]

    def count_examples(self) -> int:
        return int(self.examples["token_ids"].shape[0])

    def check(self) -> None:
        if self._is_encoded:
            self.maker.log_compiled_shapes(self.examples, self.plan.batch_size)

    def _make_epoch_batches(self, seed: int, start: int) -> tf.data.Dataset:
        return self._training_batches[1](seed, start)

    def read_one_pass(self) -> tf.data.Dataset:
        batcher = self._make_batcher(True)
        batches = batcher.make_ordered_batches(self.examples, self.plan.batch_size).dataset
        return batches.map(drop_padding_rows)

    def read_in_order(self) -> tf.data.Dataset:
        examples, plan = self.examples, self.plan
        if plan.steps_per_epoch:
            # The batches will be sorted by length, so the first examples are selected before.
            count = plan.steps_per_epoch * plan.batch_size
            examples = xp.nest.map_structure(lambda values: values[:count], examples)
        return self._make_batcher(True).make_ordered_batches(examples, plan.batch_size).dataset

    def describe(self) -> dict:
        order = {"batch_size": self.plan.batch_size, "shuffle": self.plan.shuffle}
        return {**compute_examples_checksum(self.examples), **order}

    def split(self, share: float, plan: Plan) -> tuple[ExampleBatches, ExampleBatches]:
        first, held_out = split_examples(self.examples, share)
        return (
            ExampleBatches(self.plan, self.maker, first),
            ExampleBatches(plan, self.maker, held_out),
        )


class DatasetBatches(Source):
    """Source for a `tf.data.Dataset` of single raw inputs, raw batches or preprocessed batches.

    Args:
        plan: `Plan` with the batch size, epochs and steps.
        maker: The task's `BatchMaker`.
        dataset: Dataset of `x`, `(x, y)` or `(x, y, sample_weight)`.
        is_prepared: Boolean. Whether the elements are preprocessed batches.
    """

    def __init__(self, plan: Plan, maker: BatchMaker, dataset: tf.data.Dataset, is_prepared: bool):
        super().__init__(plan, maker)
        self._is_prepared = is_prepared
        self._dataset = dataset
        self._batched = self._make_batches(plan.batch_size)

    def _make_batches(self, batch_size: int) -> tf.data.Dataset:
        if self._is_prepared:
            return self._dataset
        return self.maker.preprocessor.batch_examples(self._dataset, batch_size)

    @property
    def _is_single(self) -> bool:
        return self._batched is not self._dataset

    @functools.cached_property
    def steps(self) -> int:
        return self.plan.steps_per_epoch or count_batches(self._batched)

    def count_examples(self) -> int:
        """Return the number of examples in one pass, or a maximum for `steps_per_epoch` batches.

        To find the sizes of the batches, the dataset is read, unless it contains single examples
        and `steps_per_epoch` is set.
        """
        steps, batched = self.plan.steps_per_epoch, self._batched
        if steps and self._is_single:
            return steps * self.plan.batch_size
        sizes = batched.map(lambda *data: tf.shape(keras.tree.flatten(data)[0])[0])
        if steps:
            sizes = sizes.repeat().take(steps * max(len(self.plan.epochs), 1))
            return steps * int(sizes.reduce(0, tf.maximum))
        if sizes.cardinality() == tf.data.INFINITE_CARDINALITY:
            return self._get_batch_size()  # Keras raises an error about the missing steps
        return count_to_end(map(int, sizes), "The dataset")

    def _make_epoch_batches(self, seed: int, start: int) -> tf.data.Dataset:
        plan = self.plan
        passes = None if plan.steps_per_epoch else len(plan.epochs)
        raw = self._batched.repeat(passes)
        if plan.shuffle and self._is_single:
            megabatches = self._make_batches(get_megabatch_size(plan.batch_size))
            megabatches = megabatches.repeat(passes)
            raw = group_batches(megabatches, plan.batch_size, seed)
        return self._preprocess_batches(raw, seed, start)

    def read_one_pass(self) -> tf.data.Dataset:
        if self._batched.cardinality() < 0:  # unknown or infinite
            return super().read_one_pass()
        return self.read_in_order().map(drop_padding_rows)

    def read_in_order(self) -> tf.data.Dataset:
        check_is_finite(self._batched, self.plan.steps_per_epoch)
        return self._preprocess_batches(self._batched, FIXED_SEED)

    def _preprocess_batches(self, batched, seed: int, start: int = 0) -> tf.data.Dataset:
        """Preprocess a dataset of batches, starting at index `start`."""
        if self._is_prepared:
            return batched.skip(start) if start else batched
        encode, collate = self.maker.encode, self.maker.collate()
        multiple = self.maker.multiple
        rows = self._get_batch_size() if multiple else 0

        @tf.autograph.experimental.do_not_convert  # converting the preprocessor takes seconds
        def prepare(data, number):
            examples = encode(*keras.utils.unpack_x_y_sample_weight(data))
            seeds = xp.stack([xp.cast(seed, xp.int64), number])
            return fill_batch(collate, examples, seeds, rows, multiple)

        numbered = tf.data.Dataset.zip(batched, tf.data.Dataset.counter()).skip(start)
        with report_truncation_in_datasets():
            prepared = numbered.map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
        return prepared.prefetch(tf.data.AUTOTUNE)

    def _get_batch_size(self) -> int:
        """Return the batch size. For a dataset of batches, return the size of the first batch."""
        if self._is_single:
            return self.plan.batch_size
        first = next(iter(self._batched.map(lambda *data: keras.tree.flatten(get_inputs(data))[0])))
        return int(first.shape[0])

    def describe(self) -> dict:
        order = {"batch_size": self.plan.batch_size, "shuffle": self.plan.shuffle}
        return {"dataset": str(self._batched.element_spec), **(order if self._is_single else {})}


class StreamBatches(Source):
    """Source for a stream of raw inputs or preprocessed batches.

    Raw inputs are encoded while the stream is read. Single rows are shuffled and grouped by length
    within windows of 50 batches. If the stream contains batches, they are used unchanged.

    Args:
        plan: `Plan` with the batch size, epochs and steps.
        maker: The task's `BatchMaker`.
        stream: Stream of `x`, `(x, y)` or `(x, y, sample_weight)`.
        is_prepared: Boolean. Whether the elements are preprocessed batches.
    """

    def __init__(self, plan: Plan, maker: BatchMaker, stream: Stream, is_prepared: bool):
        super().__init__(plan, maker)
        self._stream = stream
        self._is_prepared = is_prepared
        self._shuffles = plan.shuffle and stream.is_single
        self._logged: set[str] = set()
        if stream.cache is not None and self._is_prepared:
            raise ValueError(
                "A TokenCache stores the tokens of texts, but this stream contains preprocessed "
                "inputs. Pass the stream without a TokenCache."
            )

    @functools.cached_property
    def steps(self) -> int:
        if self.plan.steps_per_epoch:
            return self.plan.steps_per_epoch
        size, files = self.plan.batch_size, self._get_token_files(self._rows)
        if files is None or files.sizes is None:
            return self._stream.count(size)
        if not self._stream.is_single:
            return len(files.sizes)
        return sum(-(-count // size) for count in files.sizes)

    def describe(self) -> dict:
        order = {"batch_size": self.plan.batch_size, "shuffle": self._shuffles}
        source, first = type(self._stream.source).__name__, self._stream.checksum[:12]
        return {"stream": source, "first_batch": first, **order}

    def read_one_pass(self) -> Iterator:
        if self._stream.is_read_once:
            raise ValueError(
                f"Counting the labels requires a separate pass, but {self._stream} can only be "
                "read once. Pass class_weight={...}, or use a keras.utils.PyDataset or a "
                "DataLoader."
            )
        if not self._stream.has_length:
            yield from super().read_one_pass()
            return
        count = self._stream.count(self.plan.batch_size)
        yield from self._make_batch_range(0, 0, count).map(drop_padding_rows)

    def _make_epoch_batches(self, seed: int, start: int):
        return self._make_batch_range(seed, start, self.total_steps - start)

    def _make_batch_range(self, seed: int, start: int, count: int):
        """Return `count` batches, starting at index `start`."""
        batches = StreamReader(lambda first: self._iterate_batches(first + start, seed), count)
        return self._convert_for_keras(batches, count)

    def read_in_order(self):
        def iterate_batches(first: int = 0) -> Iterator:
            chunks = itertools.islice(self._iterate_chunks(self.plan.batch_size), first, None)
            for number, (_, examples) in enumerate(chunks, first):
                yield from self._split_into_batches(
                    examples, self._make_collate(), 0, number, shuffles=False
                )

        if not self._stream.is_read_once:
            return self._convert_for_keras(StreamReader(iterate_batches, self.steps), self.steps)
        if keras.config.backend() == "tensorflow":
            return self._make_dataset(iterate_batches())
        return (batch if isinstance(batch, tuple) else (batch,) for batch in iterate_batches())

    def _iterate_batches(self, first: int, seed: int) -> Iterator:
        """Yield the batches of all epochs, starting at index `first`.

        Earlier batches are skipped without encoding them.
        """
        plan, make, number = self.plan, self._make_collate(), 0
        for _ in itertools.count():
            before = number
            for size, examples in self._iterate_chunks(self._rows):
                count = -(-size // plan.batch_size) if self._shuffles else 1
                if number + count > first:
                    cut = self._split_into_batches(examples, make, seed, number, self._shuffles)
                    yield from itertools.islice(cut, max(0, first - number), None)
                number += count
            self._stream.end_epoch()
            if self._stream.is_read_once or number == before:
                return

    @property
    def _rows(self) -> int:
        """Return the number of single rows that `fit` reads and encodes together, as a chunk."""
        size = self.plan.batch_size
        return get_megabatch_size(size) if self._shuffles else size

    def _get_token_files(self, rows: int) -> TokenFiles | None:
        """Return the cache files for chunks of `rows` rows, or None if the stream has no cache."""
        stream = self._stream
        if stream.cache is None:
            return None
        folder = stream.cache / (f"rows-{rows}" if stream.is_single else "batches")
        return TokenFiles(folder, self._settings)

    @functools.cached_property
    def _settings(self) -> dict:
        return describe_settings(self.maker, self._stream.checksum)

    def _iterate_chunks(self, rows: int) -> Iterator[tuple[int, Callable[[], object]]]:
        """Yield, for every chunk, the number of rows and a function that encodes the chunk.

        A chunk is a batch, or consists of `rows` single rows.
        """
        files = self._get_token_files(rows)
        if files is not None and files.sizes is not None:
            for number, size in enumerate(files.sizes):
                yield size, functools.partial(files.read_examples, number)
            return
        chunks = self._stream.chunks(rows)
        if files is None:
            for chunk in chunks:
                yield count_rows(chunk[0]), functools.partial(self._encode_chunk, chunk)
            return
        yield from self._read_chunks(files, chunks)

    def _read_chunks(self, files: TokenFiles, chunks: Iterator) -> Iterator:
        """Yield chunks of a stream, and store their encoded examples in the cache files.

        One chunk is read ahead to recognize the last chunk. When the last chunk is stored, the
        cache is marked as complete. If reading a chunk fails, the error is raised after the
        previous chunk.
        """
        sizes, chunk, error = [], next(chunks, None), None
        while chunk is not None:
            number = len(sizes)
            try:
                following = next(chunks, None)
            except Exception as raised:
                following, error = None, raised
            sizes.append(count_rows(chunk[0]))
            encode = functools.partial(self._encode_chunk, chunk)

            def read_chunk(
                number=number, encode=encode, is_last=following is None and error is None
            ):
                found = files.read_examples(number, encode)
                if is_last:
                    files.finish(sizes)
                return found

            yield sizes[-1], read_chunk
            chunk = following
        if error is not None:
            raise error

    def _encode_chunk(self, chunk: tuple):
        """Encode the examples in a chunk. Preprocessed batches are only checked."""
        if self._is_prepared:
            x, *labels = chunk
            return keras.utils.pack_x_y_sample_weight(check_arrays(self.maker.model, x), *labels)
        with use_numpy(), log_truncation_once(self._logged):
            x, y, weight = self._stream.separate_labels(chunk)
            check_not_missing(y, x, self.maker.none_is_answer)
            return self.maker.encode(x, y, weight)

    def _split_into_batches(
        self, examples: Callable, make: Callable, seed, number: int, shuffles: bool
    ):
        """Divide a chunk into batches. `number` is the index of the first batch."""
        try:
            examples = examples()
        except ValueError as error:
            where = f"Batch {number} of the stream" + " and the batches after it" * shuffles
            raise ValueError(f"{where}: {error}") from error
        if self._is_prepared:
            yield examples
            return
        if not shuffles:
            yield self._make_padded_batch(examples, make, seed, number)
            return
        size = self.plan.batch_size
        with use_numpy():
            lengths = xp.cast(count_tokens(examples), xp.int32)
            order = shuffle_by_length(lengths, size, np.array([seed, number]))
        for start in range(0, len(order), size):
            with use_numpy():
                chosen = take_examples(examples, order[start : start + size])
            yield self._make_padded_batch(chosen, make, seed, number + start // size)

    def _make_padded_batch(self, examples: dict, make: Callable, seed, number: int):
        with use_numpy():
            batch = make(examples, np.array([seed, number]))
        return keras.tree.map_structure(np.asarray, batch)

    def _make_collate(self) -> Callable:
        multiple, rows, collate = self.maker.multiple, self.plan.batch_size, self.maker.collate()
        return lambda examples, seed: fill_batch(collate, examples, seed, rows, multiple)

    def _convert_for_keras(self, batches: StreamReader, total: int):
        """Convert batches to the type that Keras expects on this backend."""
        if keras.config.backend() != "tensorflow":
            return ArrayBatches(batches, range(total))
        dataset = self._make_dataset([batches(0)], lambda: map(batches, range(total)))
        return dataset.apply(tf.data.experimental.assert_cardinality(total))

    def _make_dataset(
        self, batches: Iterable, again: Callable[[], Iterator] | None = None
    ) -> tf.data.Dataset:
        """Convert batches of any sizes to a dataset. Errors of the stream are stored in `error`.

        Args:
            batches: Iterable of batches. The first batch defines the structure.
            again: Optional function that returns a new iterator over the batches. If None, the
                dataset can only be read once.
        """
        batches = iter(batches)
        first = next(batches)
        # The Keras adapter would fix all sizes that are equal in the first two batches.
        spec = keras.tree.map_structure(
            lambda part: tf.TensorSpec([None] * np.ndim(part), part.dtype), first
        )
        read = again or (lambda: itertools.chain([first], batches))

        def store_errors() -> Iterator:
            try:
                yield from read()
            except Exception as error:
                self.error = error
                raise

        return tf.data.Dataset.from_generator(store_errors, output_signature=spec).prefetch(
            tf.data.AUTOTUNE
        )


class StreamReader:
    """Callable that returns a batch of a stream by its index.

    The indices should increase. For a smaller index, the stream is read again.

    Args:
        begin: Function that returns an iterator over the batches, starting at a given index.
        total: Integer. Number of batches.

    Raises:
        ValueError: If the stream ends before `total` batches.
    """

    def __init__(self, begin: Callable[[int], Iterator], total: int):
        self._begin, self._total = begin, total
        self._iterator, self._last = None, (-1, None)

    def __call__(self, number: int):
        last, batch = self._last
        if number == last:  # Keras requests the first batch twice
            return batch
        if self._iterator is None or number <= last:
            self._iterator, last = self._begin(number), number - 1
        for _ in range(last, number):
            try:
                batch = next(self._iterator)
            except StopIteration:
                raise ValueError(
                    f"The stream ended after {number} batches. Expected {self._total} batches for "
                    "all epochs."
                ) from None
        self._last = number, batch
        return batch


def make_validation_data(task, data, y) -> tuple | None:
    """Convert the `validation_data` of `fit` to a tuple `(x, y, sample_weight)`, or None.

    Args:
        task: `TextModel`.
        data: Optional dataset, or tuple or list `(x, y)` or `(x, y, sample_weight)`.
        y: Labels of `fit`. If None, a list is read as a list of texts instead of `[x, y]`.

    Raises:
        ValueError: If labels are missing, or if the data can only be read once.
    """
    if data is None:
        return None
    is_list = isinstance(data, list) and len(data) in (2, 3) and y is not None
    if is_list and not isinstance(data[0], str | bytes | Mapping):
        data = tuple(data)
    data = data if isinstance(data, tuple) else (data,)
    if isinstance(data[0], Iterator):
        raise invalid(
            "validation_data",
            data[0],
            "data that can be read in every epoch: lists, a keras.utils.PyDataset or a DataLoader",
        )
    if data[1:]:
        check_not_missing(data[1], data[0], task.batch_maker.none_is_answer)
    return keras.utils.unpack_x_y_sample_weight(data)


def check_preprocessor(task, x) -> None:
    """Raise a ValueError if raw inputs are passed to a task without a preprocessor."""
    if task.preprocessor is None:
        raise ValueError(
            f"x is {quote(x)}, but this {type(task).__name__} has no preprocessor. Expected "
            "preprocessed inputs, {'token_ids': ..., 'padding_mask': ...}."
        )


def check_has_elements(dataset) -> None:
    """Raise a ValueError if a `tf.data.Dataset` is empty."""
    if not isinstance(dataset, tf.data.Dataset):
        return
    count = int(dataset.cardinality())
    if count > 0 or next(iter(dataset.take(count != 0)), None) is not None:
        return
    raise ValueError(
        f"The dataset is empty: {quote(dataset)}. Expected at least one text. Note that a dataset "
        "with drop_remainder=True does not contain a smaller last batch."
    )


def check_is_finite(dataset, steps: int | None) -> None:
    """Raise a ValueError if all batches of an infinite `tf.data.Dataset` would be read."""
    if steps is None and dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            f"The dataset is infinite: {quote(dataset)}. Pass the number of batches, "
            "validation_steps=... to `fit`, or steps=... to `evaluate` and `predict`."
        )


def check_not_empty(x) -> None:
    """Raise a ValueError if there are no texts to train or evaluate on."""
    first = x[0] if isinstance(x, tuple) and x else x
    sized = hasattr(first, "__len__") and not hasattr(first, "nnz")  # scipy.sparse has no len()
    if sized and not len(first):
        raise invalid("x", x, "at least one text")


def split_examples(examples: dict, share: float) -> tuple[dict, dict]:
    """Split examples into training examples and held-out examples, which are taken from the end.

    Raises:
        ValueError: If `share` is invalid. See `count_training_examples`.
    """
    if "text_index" in examples:  # Text indices are sorted. A text can have several examples.
        count = int(xp.reduce_max(examples["text_index"])) + 1
        first = int(np.searchsorted(examples["text_index"], count_training_examples(count, share)))
    else:
        first = count_training_examples(examples["token_ids"].shape[0], share)
    parts = (lambda values: values[:first]), (lambda values: values[first:])
    return tuple(xp.nest.map_structure(part, examples) for part in parts)


def count_training_examples(count: int, share: float) -> int:
    """Return the number of training examples if a fraction at the end is held out.

    Raises:
        ValueError: If `share` is not between 0 and 1, or if no training example is left.

    Example:
        >>> count_training_examples(10, 0.2)
        8
    """
    if not 0 < share < 1:
        raise invalid("validation_split", share, "a fraction of the examples between 0 and 1")
    first = int(count * (1 - share))
    if not first:
        raise ValueError(
            f"validation_split is {share}, but this leaves no examples for training. Pass a "
            "smaller fraction."
        )
    return first


def compute_examples_checksum(examples: dict) -> dict:
    """Return a dict with the number of encoded examples and their SHA-256 checksum."""
    digest = hashlib.sha256()
    for name in sorted(examples):
        for part in _list_arrays(examples[name]):
            digest.update(f"{part.dtype} {part.shape}".encode())
            digest.update(np.ascontiguousarray(part))
    return {"examples": int(examples["token_ids"].shape[0]), "sha256": digest.hexdigest()}


def _list_arrays(values) -> list[np.ndarray]:
    """List the arrays in a tensor, a ragged tensor or a dict of tensors."""
    if isinstance(values, Mapping):
        return [array for name in sorted(values) for array in _list_arrays(values[name])]
    if hasattr(values, "row_splits"):
        return [*_list_arrays(values.values), np.asarray(values.row_splits)]
    return [np.asarray(values)]
