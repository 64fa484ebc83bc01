"""Streams: data that is read sequentially, without TensorFlow datasets.

Supported sources are `keras.utils.PyDataset`, PyTorch's `DataLoader`, Grain, `IterableDataset` of
the library `datasets`, and generators. They yield batches or single rows, and can be larger than
memory.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import itertools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

import keras
import numpy as np

from encoder_zoo.common.lazy import array_ops, in_numpy, tf
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.preprocessing.array_batches import ArrayBatches
from encoder_zoo.tasks.preprocessing.batch_shapes import filled_batch, take_examples
from encoder_zoo.tasks.preprocessing.batching import (
    Plan,
    epoch_order,
    example_lengths,
    megabatch_size,
)
from encoder_zoo.tasks.preprocessing.columns import plain, table_columns
from encoder_zoo.tasks.preprocessing.preprocessor import logged_once
from encoder_zoo.tasks.training.data import BatchMaker, Source
from encoder_zoo.tasks.training.distribution import count_to_end
from encoder_zoo.tasks.training.prepared import inputs_of, is_prepared
from encoder_zoo.tasks.training.token_cache import TokenCache, TokenFiles, settings_of

LIBRARIES = ("torch.utils.data", "grain", "datasets.iterable_dataset")
LABELS, WEIGHTS = ("labels", "label"), "sample_weight"  # columns of a stream of dicts


class Stream:
    """Stream of raw inputs with the `element_spec` of a dataset.

    Args:
        source: Stream, see `is_stream`.
        maker: `BatchMaker` of the task that reads the stream.

    Attributes:
        first: First element, as a tuple `(x, y, sample_weight)`.
        cache: Folder of a `TokenCache`, or None.
        element_spec: First batch or row, as `x`, `(x, y)` or `(x, y, sample_weight)`. All other
            elements have the same structure.

    Raises:
        ValueError: If the stream is empty.
    """

    def __init__(self, source, maker: BatchMaker):
        self.cache = source.folder if isinstance(source, TokenCache) else None
        source = source if self.cache is None else source.source
        if self.cache is not None and (not is_stream(source) or isinstance(source, Iterator)):
            raise invalid(
                "The source of a TokenCache",
                source,
                "a stream that can be read repeatedly, such as a keras.utils.PyDataset or a "
                "DataLoader. Pass texts in memory directly to fit",
            )
        self.source = source
        self.is_read_once = isinstance(source, Iterator)
        self._separate, self._labels_tokens = maker.separate, maker.labels_tokens
        self._elements = self._read()
        self.first = None
        first = next(self._elements, None)
        if first is None:
            raise ValueError(f"The stream is empty: {source!r:.60}. Expected at least one text.")
        if self.is_read_once:
            self._elements = itertools.chain([first], self._elements)
        self.first = first
        self.is_single = _is_single(*first[:2], self._labels_tokens)
        self.element_spec = keras.utils.pack_x_y_sample_weight(
            *self.separated(_together([first]) if self.is_single else first)
        )

    def __repr__(self) -> str:
        return f"a {type(self.source).__name__}"

    @functools.cached_property
    def checksum(self) -> str:
        """Return the SHA-256 of the first element, which changes if the order is random."""
        first = [np.asarray(part).tolist() for part in keras.tree.flatten(self.first)]
        plain = [part for part in first if isinstance(part, str | bytes | int | float | list)]
        return hashlib.sha256(repr(plain).encode()).hexdigest()

    def separated(self, batch: tuple) -> tuple:
        """Return a batch `(x, y, sample_weight)` whose labels are separated from the inputs.

        Raises:
            ValueError: If the batch is empty, or if it has labels or weights and the first batch
                does not, or the reverse.
        """
        x, y, weight = batch
        if not _length(x):
            raise ValueError("The batch is empty. Expected at least one text.")
        for name, part, first in zip(("labels", "weights"), batch[1:], self.first[1:], strict=True):
            if (part is None) != (first is None):
                has, other = ("no", "has") if part is None else ("some", "has none")
                raise ValueError(
                    f"The batch has {has} {name}, but the first batch has {other}. Expected the "
                    "same structure in all batches."
                )
        with in_numpy():
            return *self._separate(x, y), weight

    def _read(self) -> Iterator[tuple]:
        """Yield `(x, y, sample_weight)` for each element of a pass.

        Raises:
            ValueError: If an element has no inputs, or if its inputs have another structure than
                the inputs of the first element.
        """
        for number, element in enumerate(self._parts()):
            form = _form(element[0])
            expected = "texts" if self.first is None else _form(self.first[0])
            if form == "None" or (self.first is not None and form != expected):
                raise ValueError(
                    f"Element {number} of the stream has {form} as inputs. Expected {expected}"
                    f"{', as in the first element' if number else ''}."
                )
            yield element

    def _parts(self) -> Iterator[tuple]:
        source = self.source
        collate = getattr(getattr(source, "collate_fn", None), "__name__", None)
        if collate == "default_convert":  # used with batch_size=None
            source = (_as_tuples(row, self._labels_tokens) for row in source)
        if collate == "default_collate":
            return map(
                functools.partial(_collated_parts, labels_tokens=self._labels_tokens), source
            )
        if isinstance(source, keras.utils.PyDataset):
            source = _batches_of(source)
        return map(functools.partial(_parts, labels_tokens=self._labels_tokens), source)

    def one_pass(self) -> Iterator[tuple]:
        """Yield the elements of a pass, or the remaining elements of a generator."""
        return self._elements if self.is_read_once else self._read()

    def end_pass(self) -> None:
        """Tell a `PyDataset` that an epoch has ended, so that it can change its order."""
        if isinstance(self.source, keras.utils.PyDataset):
            self.source.on_epoch_end()

    def chunks(self, rows: int) -> Iterator[tuple]:
        """Yield the batches of a pass, or combine this number of single rows."""
        elements = self.one_pass()
        if not self.is_single:
            yield from elements
            return
        while chunk := list(itertools.islice(elements, rows)):
            yield _together(chunk)

    def count(self, batch_size: int) -> int:
        """Return the number of batches in a pass. The source may have to be read once."""
        if self.is_read_once:
            raise ValueError(
                f"x is {self}, which can only be read once. Pass steps_per_epoch=..., or a source "
                "that can be read repeatedly: a keras.utils.PyDataset, a DataLoader, or lists such "
                "as `texts, labels = zip(*x)`."
            )
        if getattr(self.source, "num_batches", 0) is None:
            raise ValueError("The PyDataset has no end. Pass steps_per_epoch=...")
        try:
            elements = len(self.source)
        except TypeError:
            elements = count_to_end((1 for _ in self.one_pass()), f"x ({self})")
        if elements == sys.maxsize:  # Grain dataset that repeats infinitely
            raise ValueError("The stream has no end. Pass steps_per_epoch=...")
        return -(-elements // batch_size) if self.is_single else elements

    def batch(self, batch_size: int) -> Iterator:
        """Yield the batches of a pass as `x`, `(x, y)` or `(x, y, sample_weight)`."""
        return itertools.starmap(keras.utils.pack_x_y_sample_weight, self.chunks(batch_size))

    def __iter__(self) -> Iterator:
        return self.batch(1)


def is_stream(x: object) -> bool:
    """Return whether an input is a stream that is read sequentially.

    Example:
        >>> is_stream(iter(["a", "b"])), is_stream(["a", "b"])
        (True, False)
    """
    if isinstance(x, keras.utils.PyDataset | Iterator | TokenCache):
        return True
    modules = (cls.__module__ for cls in type(x).__mro__)
    return hasattr(x, "__iter__") and any(name.startswith(LIBRARIES) for name in modules)


def as_stream(x, maker: BatchMaker):
    """Convert a source to a `Stream`. Other objects are returned unchanged."""
    return Stream(x, maker) if is_stream(x) else x


def check_no_stream(x) -> None:
    """Raise a ValueError if the labels would have to be collected from a stream."""
    if isinstance(x, Stream):
        raise ValueError("The labels of a stream are not known in advance. Pass labels=[...].")


def _batches_of(source: keras.utils.PyDataset) -> Iterator:
    """Yield the batches of a pass in order, with the workers of the dataset if it uses workers."""
    numbers = itertools.count() if source.num_batches is None else range(source.num_batches)
    if source.workers <= 1:
        yield from map(source.__getitem__, numbers)
        return
    numbers = iter(numbers)
    with concurrent.futures.ThreadPoolExecutor(source.workers) as pool:
        ahead = collections.deque()
        while True:
            for number in itertools.islice(numbers, source.max_queue_size - len(ahead)):
                ahead.append(pool.submit(source.__getitem__, number))
            if not ahead:
                return
            yield ahead.popleft().result()


@contextlib.contextmanager
def ending_quietly(x: object) -> Iterator[None]:
    """Return a context that suppresses the warning of Keras that a generator has ended."""
    with warnings.catch_warnings():
        if isinstance(x, Iterator):
            warnings.filterwarnings("ignore", "Your input ran out of data")
        yield


def _parts(element, labels_tokens: bool) -> tuple:
    """Return an element as `(x, y, sample_weight)`."""
    if table_columns(element) is not None:  # such as a chunk of a CSV file from pandas
        element = plain(element)
    if isinstance(element, Mapping) and not is_prepared(element):
        x = dict(element)
        y = next((x.pop(name) for name in LABELS if name in x), None)
        weight = x.pop(WEIGHTS, None)
        element = x, y, weight
    elif isinstance(element, list) and element and isinstance(element[0], str | bytes):
        element = (element,)  # texts. Other lists contain x and y, as PyTorch collates them
    parts = keras.utils.unpack_x_y_sample_weight(element)
    x, y, weight = keras.tree.map_structure(_in_memory, parts)
    is_strings = isinstance(x, tuple) and isinstance(x[0], str | bytes)
    if is_strings and not _is_single(x, y, labels_tokens):
        x = list(x)  # a tuple of texts, not a pair
    return x, y, weight


def _form(x) -> str:
    """Return a description of the structure of inputs, which is equal within a stream."""
    if isinstance(x, Mapping):
        return "the columns " + ", ".join(sorted(map(str, x)))
    if isinstance(x, tuple):
        return f"{len(x)} texts in a tuple"
    if isinstance(x, str | bytes):
        return "a text"
    return "a list or array" if _is_sized(x) else str(x)[:40]


def _as_tuples(row, labels_tokens: bool):
    """Restore the tuples in a row that PyTorch's default conversion turned into lists."""
    if not isinstance(row, list):
        return row
    x, *labels = row
    return (x if labels_tokens or not isinstance(x, list) else tuple(x), *labels)


def _collated_parts(element, labels_tokens: bool) -> tuple:
    """Return the parts of an element that PyTorch's default collation combined by columns."""
    x, y, weight = _parts(element, labels_tokens)
    if labels_tokens and isinstance(x, list) and not isinstance(x[0], str | bytes):
        raise ValueError(
            "The DataLoader combines the first words of all sentences, then the second words. "
            "Expected sentences. Pass collate_fn=lambda rows: tuple(map(list, zip(*rows)))."
        )
    if isinstance(x, tuple) and isinstance(x[0], str | bytes):
        x = list(x)  # rows were `(text,)`
    if isinstance(x, list) and not isinstance(x[0], str | bytes):
        # The list contains tuples of texts: the first text of all rows, the second text, and so on.
        x = tuple(
            list(column) if isinstance(column, tuple) else [*map(list, zip(*column, strict=True))]
            for column in x
        )
    if isinstance(y, Mapping):
        y = [dict(zip(y, row, strict=True)) for row in zip(*y.values(), strict=True)]
    elif isinstance(y, list) and isinstance(y[0], np.ndarray):
        y = np.stack(y, axis=-1)
    return x, y, weight


def _in_memory(values):
    return keras.ops.convert_to_numpy(values) if keras.ops.is_tensor(values) else values


def _is_single(x, y, labels_tokens: bool) -> bool:
    """Return whether an element is a single row, with a string or with words and their tags."""
    is_texts = isinstance(x, tuple) and all(isinstance(part, str | bytes) for part in x)
    if is_texts and _is_sized(y) and len(x) == len(y):
        return False  # PyTorch's batches of texts are tuples
    while isinstance(x, Mapping | tuple):
        x = next(iter(x.values() if isinstance(x, Mapping) else x))
    if labels_tokens and _is_sized(x) and _is_sized(y) and len(x) and len(y):
        return isinstance(x[0], str | bytes) and not (_is_sized(y[0]) or isinstance(y[0], Mapping))
    return not _is_sized(x)


def _is_sized(values) -> bool:
    """Return whether an object contains several values. Strings and mappings do not."""
    if isinstance(values, np.ndarray):
        return values.ndim > 0
    return hasattr(values, "__len__") and not isinstance(values, str | bytes | Mapping)


def _together(rows: list[tuple]) -> tuple:
    """Combine rows `(x, y, sample_weight)` to a batch."""
    x, y, weight = zip(*rows, strict=True)
    if isinstance(x[0], Mapping):
        x = {name: [row[name] for row in x] for name in x[0]}
    else:
        x = tuple(map(list, zip(*x, strict=True))) if isinstance(x[0], tuple) else list(x)
    return x, *(None if part[0] is None else list(part) for part in (y, weight))


class StreamBatches(Source):
    """Stream of raw inputs or preprocessed batches that is encoded while it is read.

    Single rows are shuffled in a buffer of 50 batches and grouped by length. Batches are used
    unchanged.

    Args:
        plan: `Plan` with the batch size, epochs and steps.
        maker: `BatchMaker` of the task.
        stream: Stream of `x`, `(x, y)` or `(x, y, sample_weight)`.
    """

    def __init__(self, plan: Plan, maker: BatchMaker, stream: Stream):
        super().__init__(plan, maker)
        self._stream = stream
        self._is_prepared = is_prepared(inputs_of(stream.element_spec))
        self._shuffles = plan.shuffle and stream.is_single
        self._logged: set[str] = set()
        if stream.cache is not None and self._is_prepared:
            raise ValueError(
                "A TokenCache stores the tokens of texts, but this stream has prepared inputs. "
                "Pass the stream without a TokenCache."
            )

    @functools.cached_property
    def steps(self) -> int:
        if self.plan.steps_per_epoch:
            return self.plan.steps_per_epoch
        size, files = self.plan.batch_size, self._files(self._rows)
        if files is None or files.sizes is None:
            return self._stream.count(size)
        if not self._stream.is_single:
            return len(files.sizes)
        return sum(-(-count // size) for count in files.sizes)

    def describe(self) -> dict:
        order = {"batch_size": self.plan.batch_size, "shuffle": self._shuffles}
        source, first = type(self._stream.source).__name__, self._stream.checksum[:12]
        return {"stream": source, "first_batch": first, **order}

    def one_pass(self) -> Iterator:
        if self._stream.is_read_once:
            raise ValueError(
                f"Counting the labels requires a separate pass, but {self._stream} can only be "
                "read once. Pass class_weight={...}, or use a keras.utils.PyDataset or a "
                "DataLoader."
            )
        yield from super().one_pass()

    def _batches(self, seed: int, start: int):
        total = self.total_steps - start
        batches = InOrder(lambda first: self._from(first + start, seed), total)
        return self._for_keras(batches, total)

    def in_order(self):
        def batches(first: int = 0) -> Iterator:
            chunks = itertools.islice(self._chunks(self.plan.batch_size), first, None)
            for number, (_, examples) in enumerate(chunks, first):
                yield from self._cut(examples, self._collated(), 0, number, shuffles=False)

        if not self._stream.is_read_once:
            return self._for_keras(InOrder(batches, self.steps), self.steps)
        if keras.config.backend() == "tensorflow":
            return self._as_dataset(batches())
        return (batch if isinstance(batch, tuple) else (batch,) for batch in batches())

    def _from(self, first: int, seed: int) -> Iterator:
        """Yield the batches of all epochs from an index on. Earlier batches are not encoded."""
        plan, make, number = self.plan, self._collated(), 0
        for _ in itertools.count():
            before = number
            for size, examples in self._chunks(self._rows):
                count = -(-size // plan.batch_size) if self._shuffles else 1
                if number + count > first:
                    cut = self._cut(examples, make, seed, number, self._shuffles)
                    yield from itertools.islice(cut, max(0, first - number), None)
                number += count
            self._stream.end_pass()
            if self._stream.is_read_once or number == before:
                return

    @property
    def _rows(self) -> int:
        """Return the number of single rows that `fit` reads at a time."""
        size = self.plan.batch_size
        return megabatch_size(size) if self._shuffles else size

    def _files(self, rows: int) -> TokenFiles | None:
        """Return the files of the cache for chunks of this number of rows, or None."""
        stream = self._stream
        if stream.cache is None:
            return None
        folder = stream.cache / (f"rows-{rows}" if stream.is_single else "batches")
        return TokenFiles(folder, self._settings)

    @functools.cached_property
    def _settings(self) -> dict:
        return settings_of(self.maker, self._stream.checksum)

    def _chunks(self, rows: int) -> Iterator[tuple[int, Callable[[], object]]]:
        """Yield a row count and a function that encodes the examples, for every chunk of a pass.

        A chunk is a batch or the given number of single rows.
        """
        files = self._files(rows)
        if files is not None and files.sizes is not None:
            for number, size in enumerate(files.sizes):
                yield size, functools.partial(files.examples, number)
            return
        chunks = self._stream.chunks(rows)
        if files is None:
            for chunk in chunks:
                yield _length(chunk[0]), functools.partial(self._encoded, chunk)
            return
        yield from self._kept_chunks(files, chunks)

    def _kept_chunks(self, files: TokenFiles, chunks: Iterator) -> Iterator:
        """Yield chunks whose examples are stored in files.

        One chunk is read ahead to recognize the last chunk, because the files are complete as soon
        as its examples are stored. An error of the source is raised after the previous chunk.
        """
        sizes, chunk, error = [], next(chunks, None), None
        while chunk is not None:
            number = len(sizes)
            try:
                following = next(chunks, None)
            except Exception as raised:
                following, error = None, raised
            sizes.append(_length(chunk[0]))
            encode = functools.partial(self._encoded, chunk)

            def examples(number=number, encode=encode, is_last=following is None and error is None):
                found = files.examples(number, encode)
                if is_last:
                    files.finish(sizes)
                return found

            yield sizes[-1], examples
            chunk = following
        if error is not None:
            raise error

    def _encoded(self, chunk: tuple):
        """Encode the examples of a chunk. Preprocessed batches are returned unchanged."""
        if self._is_prepared:
            x, *labels = chunk
            return keras.utils.pack_x_y_sample_weight(self.maker.check(x), *labels)
        with in_numpy(), logged_once(self._logged):
            x, y, weight = self._stream.separated(chunk)
            self.maker.check_given(y, x)
            return self.maker.encode(x, y, weight)

    def _cut(self, examples: Callable, make: Callable, seed, number: int, shuffles: bool):
        """Yield the batches of a chunk. `number` is the index of the first batch."""
        try:
            examples = examples()
        except ValueError as error:
            where = f"Batch {number} of the stream" + " and those after it" * shuffles
            raise ValueError(f"{where}: {error}") from error
        if self._is_prepared:
            yield examples
            return
        if not shuffles:
            yield self._padded(examples, make, seed, number)
            return
        size, plan = self.plan.batch_size, self.plan
        with in_numpy():
            lengths = array_ops.cast(example_lengths(examples), array_ops.int32)
            order = epoch_order(lengths, size, np.array([seed, number]), plan.group_lengths)
        for start in range(0, len(order), size):
            with in_numpy():
                chosen = take_examples(examples, order[start : start + size])
            yield self._padded(chosen, make, seed, number + start // size)

    def _padded(self, examples: dict, make: Callable, seed, number: int):
        with in_numpy():
            batch = make(examples, np.array([seed, number]))
        return keras.tree.map_structure(np.asarray, batch)

    def _collated(self) -> Callable:
        multiple, rows, collate = self.maker.multiple, self.plan.batch_size, self.maker.collate()
        return lambda examples, seed: filled_batch(collate, examples, seed, rows, multiple)

    def _for_keras(self, batches: InOrder, total: int):
        """Return batches in the format that the trainer of the Keras backend expects."""
        if keras.config.backend() != "tensorflow":
            return ArrayBatches(batches, range(total))
        dataset = self._as_dataset([batches(0)], lambda: map(batches, range(total)))
        return dataset.apply(tf.data.experimental.assert_cardinality(total))

    def _as_dataset(
        self, batches: Iterable, again: Callable[[], Iterator] | None = None
    ) -> tf.data.Dataset:
        """Convert batches of any sizes to a dataset that stores errors of the stream.

        Args:
            batches: Iterable of batches. The first batch determines the structure.
            again: Function that returns a new iterator over the batches. If None, the dataset can
                only be read once. Defaults to None.
        """
        batches = iter(batches)
        first = next(batches)
        # The adapter of Keras would fix all sizes that are equal in the first two batches.
        spec = keras.tree.map_structure(
            lambda part: tf.TensorSpec([None] * np.ndim(part), part.dtype), first
        )
        read = again or (lambda: itertools.chain([first], batches))

        def noting_errors() -> Iterator:
            try:
                yield from read()
            except Exception as error:
                self.error = error
                raise

        return tf.data.Dataset.from_generator(noting_errors, output_signature=spec).prefetch(
            tf.data.AUTOTUNE
        )


class InOrder:
    """Batches of a stream by index. The indices must be requested in order.

    Args:
        begin: Function of an index that returns an iterator over the batches from this index on.
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
                    f"The stream ended after {number} batches. Expected {self._total} for all "
                    "epochs."
                ) from None
        self._last = number, batch
        return batch


def _length(x) -> int:
    while isinstance(x, Mapping | tuple):
        x = next(iter(x.values() if isinstance(x, Mapping) else x), ())
    if not hasattr(x, "__len__"):
        raise invalid(
            "An element of the stream", x, "batches, (texts, labels), or single examples, all alike"
        )
    return len(x)
