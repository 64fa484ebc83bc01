"""Read streams, which are iterable data sources other than TensorFlow datasets.

Supported sources are `keras.utils.PyDataset`, PyTorch's `DataLoader`, Grain, `IterableDataset` from
the library `datasets`, and generators. They yield batches or single rows, and do not have to fit
into memory.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import itertools
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.common.configuration import make_plain_settings
from encoder_zoo.common.lazy import use_numpy
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets.files.atomic import check_folder
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain, list_table_columns
from encoder_zoo.tasks.preprocessing.prepared import is_prepared
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.training.distribution import count_to_end

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.data import BatchMaker

LIBRARIES = ("torch.utils.data", "grain", "datasets.iterable_dataset")
# Columns with labels and sample weights in a stream of dicts.
LABEL_COLUMNS, WEIGHT_COLUMN = ("labels", "label"), "sample_weight"
LABEL_SETTINGS = ("labels", "problem_type")  # attributes for the encoding of labels


class TokenCache:
    """Wrap a stream to tokenize its texts only once. Later epochs read the tokens from a folder.

        cache = ez.TokenCache(stream, "tokens")
        classifier.fit(cache, epochs=3)

    Pass the cache to `fit` or `evaluate` instead of the stream. The batches are the same. The first
    pass writes a file for each batch, or for every 50 batches if single rows are shuffled, with
    about four bytes per token. If the pass is interrupted, the next run only writes the missing
    files. Later passes and later processes only read the first element of the stream. If the stream
    contains single rows, each `batch_size` has its own files. `predict` does not use the files,
    because they contain labels. It tokenizes the stream again.

    Args:
        source: Any stream that `fit` supports. It must return the same elements in every pass.
        folder: String or path. Folder for the files. It is created if it does not exist.

    Raises:
        ValueError: In `fit` or `evaluate`, if the source can only be read once, if the folder
            contains tokens of another task, tokenizer or stream, or if a file is damaged.

    Example:
        >>> import tempfile
        >>> import keras
        >>> from encoder_zoo import SequenceClassifier, TokenCache
        >>> class Reviews(keras.utils.PyDataset):
        ...     def __len__(self):
        ...         return 2
        ...     def __getitem__(self, number):
        ...         return ["Good.", "Bad."], ["good", "bad"]
        >>> classifier = SequenceClassifier.from_preset(
        ...     "bert_nano_en_uncased", labels=["bad", "good"]
        ... )
        >>> cache = TokenCache(Reviews(), tempfile.mkdtemp())
        >>> len(classifier.fit(cache, epochs=2, verbose=0).history["loss"])
        2
    """

    def __init__(self, source: object, folder: str | os.PathLike[str]):
        self.source, self.folder = source, check_folder(folder)


class Stream:
    """Wrapper that reads a stream of batches or examples for `fit` and `evaluate`.

    Args:
        source: Iterator, `PyDataset`, `TokenCache` or data loader. See `is_stream`.
        maker: The task's `BatchMaker`, used to read the stream.

    Attributes:
        first: First element, as a tuple `(x, y, sample_weight)`.
        cache: Optional `TokenCache` folder.
        element_spec: The first batch or example, as `x`, `(x, y)` or `(x, y, sample_weight)`. All
            elements must have the same structure.

    Raises:
        ValueError: If `source` is empty.
    """

    def __init__(self, source, maker: BatchMaker):
        self.cache = source.folder if isinstance(source, TokenCache) else None
        source = source if self.cache is None else source.source
        if self.cache is not None and (not is_stream(source) or isinstance(source, Iterator)):
            raise ValueError(
                f"The source of a TokenCache is {quote(source)}. Expected a stream that can be "
                "read repeatedly, such as a keras.utils.PyDataset or a DataLoader. Texts in memory "
                "do not need a TokenCache."
            )
        self.source = source
        self.is_read_once = isinstance(source, Iterator)
        self._separate, self._labels_tokens = maker.separate, maker.labels_tokens
        self._none_is_answer, self._reads_labels = maker.none_is_answer, maker.reads_labels
        self._elements = self._read()
        self.first = self._first_labels = None
        first = next(self._elements, None)
        if first is None:
            raise ValueError(f"The stream is empty: {source!r:.60}. Expected at least one text.")
        if self.is_read_once:
            self._elements = itertools.chain([first], self._elements)
        self.first = first
        self.is_single = _is_single(*first[:2], self._labels_tokens)
        batch = self.separate_labels(next(self._combine_elements([first], 1)))
        self._first_labels = batch[1:]
        self.element_spec = keras.utils.pack_x_y_sample_weight(*batch)

    def __repr__(self) -> str:
        return f"a {type(self.source).__name__}"

    @functools.cached_property
    def checksum(self) -> str:
        """Return the SHA-256 of the first element.

        If the order of the stream is random, the checksum differs between runs.
        """
        first = [np.asarray(part).tolist() for part in keras.tree.flatten(self.first)]
        plain = [part for part in first if isinstance(part, str | bytes | int | float | list)]
        return hashlib.sha256(repr(plain).encode()).hexdigest()

    def separate_labels(self, batch: tuple) -> tuple:
        """Separate the inputs and the labels of a batch. Return `(x, y, sample_weight)`.

        Raises:
            ValueError: If `batch` is empty, or if only one of `batch` and the first batch has
                labels or sample weights.
        """
        x, y, weight = batch
        if not count_rows(x):
            raise ValueError("The batch is empty. Expected at least one text in each batch.")
        with use_numpy():
            x, y = self._separate(x, y)
        labels = y, weight
        pairs = zip(labels, self._first_labels or labels, strict=True)
        for name, (part, first) in zip(("labels", "weights"), pairs, strict=True):
            if (part is None) != (first is None):
                has, other = ("no", "some") if part is None else ("some", "none")
                raise ValueError(
                    f"The batch has {has} {name}, but the first batch has {other}. Expected the "
                    "same structure in all batches."
                )
        return x, y, weight

    def _read(self) -> Iterator[tuple]:
        """Yield `(x, y, sample_weight)` for each element in one pass.

        Raises:
            ValueError: If the inputs of an element are missing, or if their structure differs from
                the first element.
        """
        for number, element in enumerate(self._split_elements()):
            form = _describe_form(element[0])
            expected = "texts" if self.first is None else _describe_form(self.first[0])
            if form == "None" or (self.first is not None and form != expected):
                raise ValueError(
                    f"Element {number} of the stream contains {form}. Expected {expected}"
                    f"{', as in the first element' if number else ''}."
                )
            yield element

    def _split_elements(self) -> Iterator[tuple]:
        source = self.source
        collate = getattr(getattr(source, "collate_fn", None), "__name__", None)
        if collate == "default_convert":  # used with batch_size=None
            source = (_convert_to_tuples(row, self._labels_tokens) for row in source)
        if collate == "default_collate":
            return map(
                functools.partial(_split_collated, labels_tokens=self._labels_tokens), source
            )
        if isinstance(source, keras.utils.PyDataset):
            source = _iterate_batches(source)
        return map(functools.partial(_split_element, labels_tokens=self._labels_tokens), source)

    def read_one_pass(self) -> Iterator[tuple]:
        """Yield the elements of a pass, or the remaining elements of a generator."""
        return self._elements if self.is_read_once else self._read()

    def end_epoch(self) -> None:
        """Tell a `PyDataset` that an epoch has ended, so that it can change its order."""
        if isinstance(self.source, keras.utils.PyDataset):
            self.source.on_epoch_end()

    def peek(self, rows: int, count: int) -> list[tuple]:
        """Return the first `count` batches as `(x, y, sample_weight)`, without skipping them.

        Single rows are combined into batches of `rows` rows.
        """
        needed = count * rows if self.is_single else count
        read = list(itertools.islice(self.read_one_pass(), needed))
        if self.is_read_once:
            self._elements = itertools.chain(read, self._elements)
        return list(map(self.separate_labels, self._combine_elements(read, rows)))

    def chunks(self, rows: int) -> Iterator[tuple]:
        """Yield the batches in one pass. Single rows are combined into batches of `rows` rows."""
        return self._combine_elements(self.read_one_pass(), rows)

    def _combine_elements(self, elements: Iterable[tuple], rows: int) -> Iterator[tuple]:
        elements = iter(elements)
        if not self._reads_labels:
            elements = ((x, None, None) for x, _, _ in elements)
        if not self.is_single:
            yield from elements
            return
        keeps_none = self._none_is_answer and self.first[1] is not None
        while chunk := list(itertools.islice(elements, rows)):
            yield _combine_rows(chunk, keeps_none)

    @property
    def has_length(self) -> bool:
        """Return whether the stream is finite and its length is known without reading it."""
        is_infinite = getattr(self.source, "num_batches", 0) is None
        try:  # `__length_hint__` is only an estimate
            return not is_infinite and len(self.source) < sys.maxsize
        except TypeError:
            return False

    def count(self, batch_size: int) -> int:
        """Return the number of batches in one pass. If the length is unknown, read one pass."""
        if self.is_read_once:
            raise ValueError(
                f"`x` is {self}, which can only be read once. Pass steps_per_epoch=..., or a "
                "source that can be read repeatedly: a keras.utils.PyDataset, a DataLoader, or "
                "lists such as `texts, labels = zip(*x)`."
            )
        if getattr(self.source, "num_batches", 0) is None:
            raise ValueError("The PyDataset is infinite. Pass steps_per_epoch=...")
        try:
            elements = len(self.source)
        except TypeError:
            elements = count_to_end((1 for _ in self.read_one_pass()), f"x ({self})")
        if elements == sys.maxsize:  # a Grain dataset that repeats infinitely
            raise ValueError("The stream is infinite. Pass steps_per_epoch=...")
        return -(-elements // batch_size) if self.is_single else elements


def is_stream(x: object) -> bool:
    """Return whether an input is a stream.

    Example:
        >>> is_stream(iter(["a", "b"])), is_stream(["a", "b"])
        (True, False)
    """
    if isinstance(x, keras.utils.PyDataset | Iterator | TokenCache):
        return True
    modules = (cls.__module__ for cls in type(x).__mro__)
    return hasattr(x, "__iter__") and any(name.startswith(LIBRARIES) for name in modules)


def _iterate_batches(source: keras.utils.PyDataset) -> Iterator:
    """Yield the batches in order. If the dataset has several workers, use threads."""
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
def suppress_end_warning(x: object) -> Iterator[None]:
    """Context manager that suppresses the Keras warning about a generator that has ended."""
    with warnings.catch_warnings():
        if isinstance(x, Iterator):
            warnings.filterwarnings("ignore", "Your input ran out of data")
        yield


def _split_element(element, labels_tokens: bool) -> tuple:
    """Return an element as `(x, y, sample_weight)`."""
    if list_table_columns(element) is not None:  # such as a CSV chunk from pandas
        element = convert_to_plain(element)
    if isinstance(element, Mapping) and not is_prepared(element):
        x = dict(element)
        y = next((x.pop(name) for name in LABEL_COLUMNS if name in x), None)
        weight = x.pop(WEIGHT_COLUMN, None)
        element = x, y, weight
    elif isinstance(element, list) and element and isinstance(element[0], str | bytes):
        element = (element,)  # a list of texts. Any other list contains x and y, as in PyTorch.
    parts = keras.utils.unpack_x_y_sample_weight(element)
    x, y, weight = keras.tree.map_structure(_convert_to_lists, parts)
    is_strings = isinstance(x, tuple) and isinstance(x[0], str | bytes)
    if is_strings and not _is_single(x, y, labels_tokens):
        x = list(x)  # a tuple of texts, not a pair
    return x, y, weight


def _describe_form(x) -> str:
    """Describe the structure of inputs, which must be the same for all elements of a stream."""
    if isinstance(x, Mapping):
        return "the columns " + ", ".join(sorted(map(str, x)))
    if isinstance(x, tuple):
        return f"{len(x)} texts in a tuple"
    if isinstance(x, str | bytes):
        return "a text"
    return "a list or array" if _is_sized(x) else str(x)[:40]


def _convert_to_tuples(row, labels_tokens: bool):
    """Convert a row and its inputs to tuples, because PyTorch has converted tuples to lists."""
    if not isinstance(row, list):
        return row
    x, *labels = row
    return (x if labels_tokens or not isinstance(x, list) else tuple(x), *labels)


def _split_collated(element, labels_tokens: bool) -> tuple:
    """Split an element that PyTorch combined by column. Return `(x, y, sample_weight)`."""
    x, y, weight = _split_element(element, labels_tokens)
    if labels_tokens and isinstance(x, list) and not isinstance(x[0], str | bytes):
        raise ValueError(
            "The DataLoader combines the first words of all sentences, then the second words, and "
            "so on. Expected a list of sentences. Pass "
            "collate_fn=lambda rows: tuple(map(list, zip(*rows)))."
        )
    if isinstance(x, tuple) and isinstance(x[0], str | bytes):
        x = list(x)  # rows were `(text,)`
    if isinstance(x, list) and not isinstance(x[0], str | bytes):
        # The list contains tuples of texts: the first texts of all rows, then the second texts, and
        # so on.
        x = tuple(
            list(column) if isinstance(column, tuple) else [*map(list, zip(*column, strict=True))]
            for column in x
        )
    if isinstance(y, Mapping):
        y = [dict(zip(y, row, strict=True)) for row in zip(*y.values(), strict=True)]
    elif isinstance(y, list) and isinstance(y[0], np.ndarray):
        y = np.stack(y, axis=-1)
    return x, y, weight


def _convert_to_lists(values):
    return keras.ops.convert_to_numpy(values) if keras.ops.is_tensor(values) else values


def _is_single(x, y, labels_tokens: bool) -> bool:
    """Return whether an element is a single row: a string, or words with their tags."""
    is_texts = isinstance(x, tuple) and all(isinstance(part, str | bytes) for part in x)
    if is_texts and _is_sized(y) and len(x) == len(y):
        return False  # PyTorch's batches of texts are tuples
    while isinstance(x, Mapping | tuple):
        x = next(iter(x.values() if isinstance(x, Mapping) else x))
    if labels_tokens and _is_sized(x) and _is_sized(y) and len(x) and len(y):
        return isinstance(x[0], str | bytes) and not (_is_sized(y[0]) or isinstance(y[0], Mapping))
    return not _is_sized(x)


def _is_sized(values) -> bool:
    """Return whether an object contains several values. Strings and mappings do not count."""
    if isinstance(values, np.ndarray):
        return values.ndim > 0
    return hasattr(values, "__len__") and not isinstance(values, str | bytes | Mapping)


def _combine_rows(rows: list[tuple], keeps_none: bool = False) -> tuple:
    """Combine rows `(x, y, sample_weight)` into a batch.

    Args:
        rows: List of rows.
        keeps_none: Boolean. Whether None is a label, even if all rows have this label.

    Raises:
        ValueError: If only some rows have weights.
    """
    x, y, weight = zip(*rows, strict=True)
    if len({value is None for value in weight}) > 1:
        raise ValueError(
            "Only some rows of the stream have a weight. Expected a weight for all rows, or for "
            "none."
        )
    if isinstance(x[0], Mapping):
        x = {name: [row[name] for row in x] for name in x[0]}
    else:
        x = tuple(map(list, zip(*x, strict=True))) if isinstance(x[0], tuple) else list(x)
    y = list(y) if keeps_none or any(label is not None for label in y) else None
    return x, y, None if weight[0] is None else list(weight)


def count_rows(x) -> int:
    """Return the number of rows in a batch of raw inputs, which can be a dict or tuple of columns.

    Raises:
        ValueError: If `x` has no length.

    Example:
        >>> count_rows({"first": ["a", "b"], "second": ["c", "d"]})
        2
    """
    while isinstance(x, Mapping | tuple):
        x = next(iter(x.values() if isinstance(x, Mapping) else x), ())
    if not hasattr(x, "__len__"):
        raise invalid(
            "An element of the stream",
            x,
            "a batch (texts, labels) or a single example, in the same format as the first element",
        )
    return len(x)


def describe_settings(maker: BatchMaker, first: str) -> dict:
    """Return plain values that identify how a task encodes the examples of a stream.

    Args:
        maker: The task's `BatchMaker`.
        first: String. Checksum of the first element of the stream.
    """
    read = maker.preprocessor
    learner = getattr(read, "student", read)  # a Distillation has two preprocessors
    labels = [getattr(learner, name, None) for name in LABEL_SETTINGS]
    return {
        "task": [type(maker.model).__name__, *labels],
        "preprocessors": [
            [
                make_plain_settings(
                    {n: v for n, v in one.get_config().items() if n != "tokenizer"}
                ),
                one.max_sequence_length,
                make_plain_settings(one.tokenizer.get_config()),
            ]
            for one in (read, *vars(read).values())
            if isinstance(one, Preprocessor)
        ],
        "first": first,
    }
