"""Streams: data that are read one after the other, without TensorFlow's datasets.

They come from `keras.utils.PyDataset`, PyTorch's `DataLoader`, Grain, `IterableDataset` of the
library `datasets`, and generators, in batches or as single rows, and may be larger than memory.
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
    """A source of raw inputs, as the dataset that tasks ask for its structure.

    Args:
        source: see `is_stream`.
        maker: `BatchMaker` of the task that reads it.

    Attributes:
        first: the first element, `(x, y, sample_weight)`.
        cache: the folder of a `TokenCache`, or None.
        element_spec: the first batch, `x`, `(x, y)` or `(x, y, sample_weight)`, of single rows the
            first of them: others have its form.

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
                "a stream that can be read again, such as a keras.utils.PyDataset or a DataLoader. "
                "Pass texts in memory to fit themselves",
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
        """Return the SHA-256 of the first element, which is another in a random order."""
        first = [np.asarray(part).tolist() for part in keras.tree.flatten(self.first)]
        plain = [part for part in first if isinstance(part, str | bytes | int | float | list)]
        return hashlib.sha256(repr(plain).encode()).hexdigest()

    def separated(self, batch: tuple) -> tuple:
        """Return a batch `(x, y, sample_weight)` with the labels out of the inputs that hold them.

        Raises:
            ValueError: If the batch is empty, or unlike the first one has no labels or weights.
        """
        x, y, weight = batch
        if not _length(x):
            raise ValueError("The batch is empty. Expected at least one text.")
        for name, part, first in zip(("labels", "weights"), batch[1:], self.first[1:], strict=True):
            if (part is None) != (first is None):
                has, other = ("no", "has") if part is None else ("some", "has none")
                raise ValueError(
                    f"The batch has {has} {name}, and the first one {other}. Expected all alike."
                )
        with in_numpy():
            return *self._separate(x, y), weight

    def _read(self) -> Iterator[tuple]:
        """Yield `(x, y, sample_weight)` of each element of a pass, all of one form.

        Raises:
            ValueError: If an element has no inputs, or inputs of another form than the first one.
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
        if collate == "default_convert":  # of batch_size=None
            source = (_as_tuples(row, self._labels_tokens) for row in source)
        if collate == "default_collate":
            return map(
                functools.partial(_collated_parts, labels_tokens=self._labels_tokens), source
            )
        if isinstance(source, keras.utils.PyDataset):
            source = _batches_of(source)
        return map(functools.partial(_parts, labels_tokens=self._labels_tokens), source)

    def one_pass(self) -> Iterator[tuple]:
        """Yield the elements of a pass; of a generator those that are left."""
        return self._elements if self.is_read_once else self._read()

    def end_pass(self) -> None:
        """Tell a `PyDataset` that an epoch is over, after which it may be in another order."""
        if isinstance(self.source, keras.utils.PyDataset):
            self.source.on_epoch_end()

    def chunks(self, rows: int) -> Iterator[tuple]:
        """Yield the batches of a pass as they are, or single rows together, so many at a time."""
        elements = self.one_pass()
        if not self.is_single:
            yield from elements
            return
        while chunk := list(itertools.islice(elements, rows)):
            yield _together(chunk)

    def count(self, batch_size: int) -> int:
        """Return the number of batches of a pass, for which the source may have to be read."""
        if self.is_read_once:
            raise ValueError(
                f"x is {self}, which can be read only once. Pass steps_per_epoch=..., or what can "
                "be read again: a keras.utils.PyDataset, a DataLoader, or lists, as `texts, labels "
                "= zip(*x)` makes."
            )
        if getattr(self.source, "num_batches", 0) is None:
            raise ValueError("The PyDataset has no end. Pass steps_per_epoch=...")
        try:
            elements = len(self.source)
        except TypeError:
            elements = count_to_end((1 for _ in self.one_pass()), f"x, {self}")
        if elements == sys.maxsize:  # of Grain, repeated without end
            raise ValueError("The stream has no end. Pass steps_per_epoch=...")
        return -(-elements // batch_size) if self.is_single else elements

    def batch(self, batch_size: int) -> Iterator:
        """Return the batches of a pass, as `x`, `(x, y)` or `(x, y, sample_weight)`."""
        return itertools.starmap(keras.utils.pack_x_y_sample_weight, self.chunks(batch_size))

    def __iter__(self) -> Iterator:
        return self.batch(1)


def is_stream(x: object) -> bool:
    """Return whether an input is read one after the other.

    Example:
        >>> is_stream(iter(["a", "b"])), is_stream(["a", "b"])
        (True, False)
    """
    if isinstance(x, keras.utils.PyDataset | Iterator | TokenCache):
        return True
    modules = (cls.__module__ for cls in type(x).__mro__)
    return hasattr(x, "__iter__") and any(name.startswith(LIBRARIES) for name in modules)


def as_stream(x, maker: BatchMaker):
    """Return a source as a `Stream`; all else unchanged."""
    return Stream(x, maker) if is_stream(x) else x


def check_no_stream(x) -> None:
    """Raise a ValueError for a stream whose labels a task would have to learn."""
    if isinstance(x, Stream):
        raise ValueError("The labels of a stream are not known beforehand. Pass labels=[...].")


def _batches_of(source: keras.utils.PyDataset) -> Iterator:
    """Yield the batches of a pass in their order, made by the dataset's workers if it has some."""
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
    """Return a context without Keras's warning that the data have ended, for generators alone."""
    with warnings.catch_warnings():
        if isinstance(x, Iterator):
            warnings.filterwarnings("ignore", "Your input ran out of data")
        yield


def _parts(element, labels_tokens: bool) -> tuple:
    """Return an element as `(x, y, sample_weight)`."""
    if table_columns(element) is not None:  # such as a part of a CSV file, as pandas reads it
        element = plain(element)
    if isinstance(element, Mapping) and not is_prepared(element):
        x = dict(element)
        y = next((x.pop(name) for name in LABELS if name in x), None)
        weight = x.pop(WEIGHTS, None)
        element = x, y, weight
    elif isinstance(element, list) and element and isinstance(element[0], str | bytes):
        element = (element,)  # texts; other lists are the parts, as PyTorch puts them together
    parts = keras.utils.unpack_x_y_sample_weight(element)
    x, y, weight = keras.tree.map_structure(_in_memory, parts)
    is_strings = isinstance(x, tuple) and isinstance(x[0], str | bytes)
    if is_strings and not _is_single(x, y, labels_tokens):
        x = list(x)  # texts, not a pair
    return x, y, weight


def _form(x) -> str:
    """Return a description of inputs, by which those of one stream are alike."""
    if isinstance(x, Mapping):
        return "the columns " + ", ".join(sorted(map(str, x)))
    if isinstance(x, tuple):
        return f"{len(x)} texts in a tuple"
    if isinstance(x, str | bytes):
        return "a text"
    return "a list or array" if _is_sized(x) else str(x)[:40]


def _as_tuples(row, labels_tokens: bool):
    """Return a row with the tuples of which PyTorch's own conversion makes lists."""
    if not isinstance(row, list):
        return row
    x, *labels = row
    return (x if labels_tokens or not isinstance(x, list) else tuple(x), *labels)


def _collated_parts(element, labels_tokens: bool) -> tuple:
    """Return an element of PyTorch's own collation, which puts rows together by their columns."""
    x, y, weight = _parts(element, labels_tokens)
    if labels_tokens and isinstance(x, list) and not isinstance(x[0], str | bytes):
        raise ValueError(
            "The DataLoader puts the first words of all sentences together, then the second ones. "
            "Expected sentences: pass it collate_fn=lambda rows: tuple(map(list, zip(*rows)))."
        )
    if isinstance(x, tuple) and isinstance(x[0], str | bytes):
        x = list(x)  # of rows `(text,)`
    if isinstance(x, list) and not isinstance(x[0], str | bytes):
        # Texts in tuples, and lists of the first, the second, ... text of every row.
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
    """Return whether an element is one row: its texts are strings, or words with a tag each."""
    is_texts = isinstance(x, tuple) and all(isinstance(part, str | bytes) for part in x)
    if is_texts and _is_sized(y) and len(x) == len(y):
        return False  # of PyTorch, whose batches of texts are tuples
    while isinstance(x, Mapping | tuple):
        x = next(iter(x.values() if isinstance(x, Mapping) else x))
    if labels_tokens and _is_sized(x) and _is_sized(y) and len(x) and len(y):
        return isinstance(x[0], str | bytes) and not (_is_sized(y[0]) or isinstance(y[0], Mapping))
    return not _is_sized(x)


def _is_sized(values) -> bool:
    """Return whether values are several: no string, mapping, number or array of a single one."""
    if isinstance(values, np.ndarray):
        return values.ndim > 0
    return hasattr(values, "__len__") and not isinstance(values, str | bytes | Mapping)


def _together(rows: list[tuple]) -> tuple:
    """Return rows `(x, y, sample_weight)` as a batch."""
    x, y, weight = zip(*rows, strict=True)
    if isinstance(x[0], Mapping):
        x = {name: [row[name] for row in x] for name in x[0]}
    else:
        x = tuple(map(list, zip(*x, strict=True))) if isinstance(x[0], tuple) else list(x)
    return x, *(None if part[0] is None else list(part) for part in (y, weight))


class StreamBatches(Source):
    """A stream of raw inputs or of prepared batches, encoded as it is read.

    Single rows are shuffled in a buffer of 50 batches, which are of like length. Batches come as
    they are.

    Args:
        plan: `Plan`. How the stream is read.
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
                "A TokenCache stores the tokens of texts, and this stream has prepared inputs. "
                "Pass the stream itself."
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
                f"The labels are counted in a pass of their own, and {self._stream} can be read "
                "only once. Pass class_weight={...}, or what can be read again: a "
                "keras.utils.PyDataset or a DataLoader."
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
        """Yield the batches of all epochs from a number on; those before are read, not encoded."""
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
        """Return how many single rows `fit` reads at a time."""
        size = self.plan.batch_size
        return megabatch_size(size) if self._shuffles else size

    def _files(self, rows: int) -> TokenFiles | None:
        """Return the files of a cache, for so many single rows at a time."""
        stream = self._stream
        if stream.cache is None:
            return None
        folder = stream.cache / (f"rows-{rows}" if stream.is_single else "batches")
        return TokenFiles(folder, self._settings)

    @functools.cached_property
    def _settings(self) -> dict:
        return settings_of(self.maker, self._stream.checksum)

    def _chunks(self, rows: int) -> Iterator[tuple[int, Callable[[], object]]]:
        """Yield for each batch of a pass, or for so many single rows, their number and what makes
        examples of them."""
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
        """Yield chunks whose examples are kept in files.

        A chunk is read ahead: an epoch asks for nothing after its last chunk, with whose examples
        the files are complete. An error of the source is raised after the chunk before it.
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
        """Return encoded examples of a chunk; prepared batches as they are."""
        if self._is_prepared:
            x, *labels = chunk
            return keras.utils.pack_x_y_sample_weight(self.maker.check(x), *labels)
        with in_numpy(), logged_once(self._logged):
            x, y, weight = self._stream.separated(chunk)
            self.maker.check_given(y, x)
            return self.maker.encode(x, y, weight)

    def _cut(self, examples: Callable, make: Callable, seed, number: int, shuffles: bool):
        """Yield the batches of a chunk's examples, the first of which has that number."""
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
        """Return batches as the trainer of Keras's backend takes them."""
        if keras.config.backend() != "tensorflow":
            return ArrayBatches(batches, range(total))
        dataset = self._as_dataset([batches(0)], lambda: map(batches, range(total)))
        return dataset.apply(tf.data.experimental.assert_cardinality(total))

    def _as_dataset(
        self, batches: Iterable, again: Callable[[], Iterator] | None = None
    ) -> tf.data.Dataset:
        """Return batches of any sizes as a dataset, which notes the error of the stream.

        Args:
            batches: Iterable of batches. Its first batch tells the structure.
            again: Function that returns an iterator from the first batch on. Defaults to None:
                the dataset can be read once.
        """
        batches = iter(batches)
        first = next(batches)
        # Keras's own adapter would fix the sizes that the first two batches have in common.
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
    """The batches of a stream by their number, where one is asked after the other.

    Args:
        begin: makes an iterator of the batches from a number on.
        total: number of batches.

    Raises:
        ValueError: If the stream ends before `total` batches.
    """

    def __init__(self, begin: Callable[[int], Iterator], total: int):
        self._begin, self._total = begin, total
        self._iterator, self._last = None, (-1, None)

    def __call__(self, number: int):
        last, batch = self._last
        if number == last:  # Keras looks at the first batch before it reads it
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
