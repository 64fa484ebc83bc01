"""What tasks are trained on: raw inputs in memory, datasets of them, and prepared inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.preprocessing.batching import grouped_batches, window_size
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.training.distribution import count_batches
from encoder_zoo.tasks.training.prepared import is_prepared


@dataclasses.dataclass(frozen=True)
class Stream:
    """What `fit` trains on, from any place on.

    Attributes:
        steps: number of batches in one pass.
        batches: `batches(seed, done)` are the batches behind so many that are done; the seed is
            of order and masking.
        describe: says in plain data what it holds.
        memory: what makes a place far behind quick to find, plain data that grows as batches are
            made; a backup keeps it.
    """

    steps: int
    batches: Callable[[int, int], tf.data.Dataset]
    describe: Callable[[], dict]
    memory: list = dataclasses.field(default_factory=list)


def is_dataset(x) -> bool:
    """Whether an input is a `tf.data.Dataset`."""
    return hasattr(x, "element_spec")


def check_dataset_alone(y, sample_weight, validation_split: float = 0.0) -> None:
    """Refuses what belongs into a dataset, where it is passed beside one.

    Raises:
        ValueError: "Labels and weights belong into the dataset, ... Received also: y."
    """
    beside = {"y": y, "sample_weight": sample_weight, "validation_split": validation_split or None}
    names = [name for name, value in beside.items() if value is not None]
    if names:
        raise ValueError(
            "Labels and weights belong into the dataset, as elements (x, y) or (x, y, "
            "sample_weight); examples held out for validation are a dataset of their own, "
            f"`validation_data`. Received also: {', '.join(names)}."
        )


def size_or_default(batch_size: int | None, default: int = 32) -> int:
    """Examples of a batch."""
    return default if batch_size is None else int(batch_size)


def check_not_empty(x) -> None:
    """Raises ValueError where there are no texts to train or evaluate on."""
    first = x[0] if isinstance(x, tuple) and x else x
    if hasattr(first, "__len__") and not len(first):
        raise ValueError(f"x is empty: {x!r}. Expected at least one text.")


def split(examples: dict, share: float) -> tuple[dict, dict]:
    """The examples of the first examples and, the share from the end, those of the last.

    Raises:
        ValueError: "validation_split=1.5. Expected ...", "... leaves no example to train on. ..."
    """
    if not 0 < share < 1:
        raise ValueError(
            f"validation_split={share}. Expected a share of the examples between 0 and 1."
        )
    if "text_index" in examples:  # in order, and perhaps with several examples each
        count = int(tf.reduce_max(examples["text_index"])) + 1
        first = int(np.searchsorted(examples["text_index"], int(count * (1 - share))))
    else:
        first = int(examples["token_ids"].shape[0] * (1 - share))
    if not first:
        raise ValueError(
            f"validation_split={share} leaves no example to train on. Expected a smaller share, "
            "or more examples."
        )
    return {k: v[:first] for k, v in examples.items()}, {k: v[first:] for k, v in examples.items()}


def dataset_stream(
    dataset: tf.data.Dataset,
    preprocessor: Preprocessor | None,
    collate: Callable,
    batch_size: int,
    passes: int,
    steps: int | None,
    shuffle: bool = True,
) -> Stream:
    """A dataset, to train on: so many passes of it, or as many as so many steps take.

    Args:
        dataset: of raw inputs, single or in batches, or of prepared batches.
        preprocessor: of raw inputs.
        collate: as for `LengthGroupedBatcher`.
        batch_size: of single inputs.
        passes: over the dataset.
        steps: of an epoch, or None.
        shuffle: whether single inputs are shuffled.
    """
    if preprocessor is not None and preprocessor.packed_length:
        raise ValueError("pack_texts needs all texts in memory. Received: a dataset.")
    batched = _batched(dataset, preprocessor, batch_size)
    passes = None if steps else passes
    single = batched is not dataset

    def batches(seed, done):
        raw = batched.repeat(passes)
        if shuffle and single:
            windows = _batched(dataset, preprocessor, window_size(batch_size))
            raw = grouped_batches(windows.repeat(passes), batch_size, seed)
        return _preprocessed(raw, preprocessor, collate, seed, done)

    def describe():
        order = {"batch_size": batch_size, "shuffle": shuffle} if single else {}
        return {"dataset": str(batched.element_spec), **order}

    return Stream(steps or count_batches(batched), batches, describe)


def preprocessed(
    dataset: tf.data.Dataset, preprocessor: Preprocessor | None, collate: Callable, batch_size: int
) -> tf.data.Dataset:
    """A dataset of raw inputs, single or in batches, as the model's; one of prepared inputs as it
    is."""
    return _preprocessed(_batched(dataset, preprocessor, batch_size), preprocessor, collate)


def _holds_prepared(dataset: tf.data.Dataset) -> bool:
    return is_prepared(keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0])


def _batched(dataset, preprocessor: Preprocessor | None, batch_size: int) -> tf.data.Dataset:
    return dataset if _holds_prepared(dataset) else preprocessor.batched(dataset, batch_size)


def _preprocessed(
    batched: tf.data.Dataset,
    preprocessor: Preprocessor | None,
    collate: Callable,
    seed: int = 0,
    done: int = 0,
) -> tf.data.Dataset:
    """Batches of raw inputs preprocessed, from the batch behind those that are done."""
    if _holds_prepared(batched):
        return batched.skip(done) if done else batched

    def prepare(data, number):
        examples = preprocessor.encode(*keras.utils.unpack_x_y_sample_weight(data))
        return collate(examples, tf.stack([tf.cast(seed, tf.int64), number]))

    numbered = tf.data.Dataset.zip(batched, tf.data.Dataset.counter()).skip(done)
    return numbered.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
