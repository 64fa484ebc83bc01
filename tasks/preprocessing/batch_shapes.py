"""Create batches with few different shapes, because a program is compiled for every shape.

A batch with fewer examples is filled with copies of its last example. The input `REAL_ROWS` marks
the rows with real examples. Losses and metrics ignore all other rows.

Comments use these letters for shapes: N (examples), B (rows in a batch).
"""

from __future__ import annotations

import bisect
import collections
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated

import numpy as np

from encoder_zoo.common.lazy import keras, xp
from encoder_zoo.common.validation import Rule
from encoder_zoo.encoders.inputs import CANDIDATE

REAL_ROWS = "real_rows"  # (B,) bool
ABSENT_SCORE = float("-inf")  # score of a column without a text
PACKED_TOKENS = "packed_tokens"  # (S, L) int32, several examples per row, see `encode_packed`


def pack_batch(x: dict, y=None, sample_weight=None):
    """Convert a batch to the format of Keras: `x`, `(x, y)` or `(x, y, sample_weight)`.

    Example:
        >>> pack_batch({"a": 1}), pack_batch({"a": 1}, 2)
        ({'a': 1}, ({'a': 1}, 2))
    """
    if y is None:
        return x
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def fill_batch(collate: Callable, examples: dict, seed, rows, multiple: int | None):
    """Collate examples, and fill the batch to a fixed number of rows.

    Args:
        collate: Function of `(examples, seed)` that creates a batch.
        examples: Dict. One or more encoded examples.
        seed: Integer tensor of shape (2,).
        rows: Positive integer. Number of rows in the batch. If there are more examples, their
            number is rounded up to a multiple of `8 * multiple`.
        multiple: Optional positive integer. The number of rows is rounded up to a multiple of this
            value. If None, the batch is not filled.
    """
    if multiple is None:
        return collate(examples, seed)
    count = count_examples(examples)
    rows = xp.cast(rows, count.dtype)
    multiple = xp.where(count > rows, 8 * multiple, multiple)
    rows = -(-xp.maximum(rows, count) // multiple) * multiple
    return mark_real_rows(collate(repeat_last_example(examples, rows), seed), count)


def repeat_last_example(examples: dict, rows) -> dict:
    """Append copies of the last example until there are `rows` examples.

    Args:
        examples: Dict of tensors and ragged tensors with one or more examples.
        rows: Positive integer. Number of rows B. If there are more examples, they are returned
            unchanged.

    Example:
        >>> import tensorflow as tf
        >>> examples = {"token_ids": tf.ragged.constant([[2, 5, 3], [2, 3]])}
        >>> repeat_last_example(examples, 3)["token_ids"].to_list()
        [[2, 5, 3], [2, 3], [2, 3]]
    """
    count = count_examples(examples)
    rows = xp.maximum(xp.cast(rows, count.dtype), count)
    indices = xp.minimum(xp.range(rows), count - 1)
    return take_examples(examples, indices)


def count_examples(examples: dict):
    """Return the number of examples as an int32 tensor."""
    return xp.size(examples["token_ids"].row_lengths(), xp.int32)


def mark_real_rows(batch, count):
    """Add the input `REAL_ROWS`, which marks the first `count` rows of a batch as real.

    Args:
        batch: `x`, `(x, y)` or `(x, y, sample_weight)` with B rows.
        count: Integer. Number of rows with real examples.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    real = xp.range(xp.shape(x["token_ids"])[0]) < count
    return pack_batch({**x, REAL_ROWS: real}, y, sample_weight)


def drop_padding_rows(*batch):
    """Remove the rows that only pad a batch."""
    marks = batch[0].get(REAL_ROWS) if isinstance(batch[0], dict) else None
    if marks is not None:
        inputs = {name: v for name, v in batch[0].items() if name != PACKED_TOKENS}
        batch = inputs, *batch[1:]
        batch = xp.nest.map_structure(lambda rows: xp.boolean_mask(rows, marks), batch)
    return batch if len(batch) > 1 else batch[0]


def pack_examples(lengths: np.ndarray, capacity: int) -> xp.RaggedTensor:
    """Assign examples to sequences, so that the sequences contain little padding.

    Every example is assigned to the fullest sequence with enough free tokens. If the examples are
    sorted by length, this is the best-fit decreasing heuristic for bin packing.

    Args:
        lengths: Integer array of shape (N,). Number of tokens per example in descending order. Each
            length must be at most the capacity.
        capacity: Positive integer. Number of tokens per sequence.

    Returns:
        Ragged int64 tensor of shape (R, None). Example indices per sequence. Every example occurs
        exactly once.

    Source: Krell et al. 2021, Efficient Sequence Packing without Cross-contamination, section 3.

    Example:
        >>> pack_examples(np.array([7, 5, 4, 2, 1]), capacity=10).to_list()
        [[0, 3, 4], [1, 2]]
    """
    members, rows_with_room, rooms = [], collections.defaultdict(list), []
    for example, length in enumerate(lengths.tolist()):
        index = bisect.bisect_left(rooms, length)
        if index == len(rooms):
            row, room = len(members), capacity
            members.append([])
        else:
            room = rooms[index]
            row = rows_with_room[room].pop()
            if not rows_with_room[room]:
                rooms.pop(index)
        members[row].append(example)
        if not rows_with_room[room - length]:
            bisect.insort(rooms, room - length)
        rows_with_room[room - length].append(row)
    sizes = np.array([len(row) for row in members], np.int64)
    flat = np.array([example for row in members for example in row], np.int64)
    return xp.RaggedTensor.from_row_lengths(flat, sizes)


def make_packed_order(
    lengths: xp.Tensor, plan: xp.RaggedTensor, seed: xp.Tensor
) -> xp.RaggedTensor:
    """Shuffle the packed sequences, and randomly exchange examples of equal length between them.

    Args:
        lengths: Integer tensor of shape (N,). Number of tokens per example.
        plan: Ragged tensor of shape (R, None), from `pack_examples` with the sorted lengths.
        seed: Integer tensor of shape (2,). The same seed gives the same order.

    Returns:
        Ragged int64 tensor of shape (R, None). Every example occurs exactly once.
    """
    order = xp.random.experimental.stateless_shuffle(xp.range(xp.size(lengths, xp.int64)), seed)
    order = xp.gather(order, xp.argsort(-xp.gather(lengths, order), stable=True))
    examples = xp.random.experimental.stateless_shuffle(xp.range(plan.nrows()), seed + 1)
    return xp.gather(plan.with_values(xp.gather(order, plan.values)), examples)


LENGTH_SAMPLE = 1000  # number of lengths in the sample to estimate the number of sequences
SPARE_SEQUENCES = 1.1  # sequences per batch, relative to the average number needed
MAX_PACKED_RATIO = 0.75  # with more sequences, relative to B, examples are not packed


def choose_sequence_counts(
    lengths: np.ndarray, length: int, batch_size: int
) -> tuple[int, ...] | None:
    """Choose up to three numbers of packed sequences per batch.

    The first number is enough for most batches, the second is twice the first, and the last is B.

    Args:
        lengths: Integer array of shape (N,). Number of tokens per example.
        length: Positive integer. Length L.
        batch_size: Positive integer. Batch size B.

    Returns:
        Tuple of ascending integers, or None if packing would save too little padding.

    Example:
        >>> choose_sequence_counts(np.array([5, 7, 9, 20]), 32, 16)
        (9, 16)
    """
    sample = np.sort(lengths)[:: -max(1, len(lengths) // LENGTH_SAMPLE)]
    needed = int(pack_examples(sample, length).nrows()) / len(sample) * batch_size
    least = int(np.ceil(SPARE_SEQUENCES * needed))
    if least > MAX_PACKED_RATIO * batch_size:
        return None
    return tuple(sorted({least, min(2 * least, batch_size), batch_size}))


def add_packed_tokens(batch, counts: tuple[int, ...]):
    """Add the input `PACKED_TOKENS` to a batch, with as few sequences as possible.

    Examples that are only used to fill the batch are not packed.

    Args:
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`.
        counts: Tuple of ascending integers. Allowed numbers of packed sequences. The last number
            is at least B.

    Example:
        >>> x = {"token_ids": np.array([[2, 3, 0], [2, 0, 0]])}
        >>> x["padding_mask"] = x["token_ids"] > 0
        >>> add_packed_tokens(x, (1, 2))["packed_tokens"].tolist()
        [[0, 1, 3]]
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    mask = np.asarray(x["padding_mask"], bool)  # (B, L)
    (texts, length), real = mask.shape, x.get(REAL_ROWS)
    lengths = mask.sum(axis=1) if real is None else mask.sum(axis=1) * np.asarray(real)
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    plan = pack_examples(lengths[order], length)
    count = next(n for n in counts if n >= int(plan.nrows()))
    tokens = np.full((count, length), texts * length, np.int32)
    numbers = np.arange(texts * length, dtype=np.int32).reshape(texts, length)
    for sequence, members in zip(tokens, plan.to_list(), strict=False):
        packed = np.concatenate([numbers[i][mask[i]] for i in order[members]])
        sequence[: len(packed)] = packed
    return pack_batch({**x, PACKED_TOKENS: tokens}, y, sample_weight)


Bucketed = Annotated[
    bool | tuple[int, ...],
    Rule(lambda v: type(v) is bool or isinstance(v, tuple), "True, False or a tuple of lengths"),
]
LENGTHS = tuple(2**i for i in range(3, 14))  # 8 to 8,192
SHORTEST = 32  # the maximum length is at least this value
MAX_LENGTH_WITH_THREE = 128  # up to this maximum length, batches are padded to three lengths


def choose_lengths(longest: int, known: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Choose the lengths that batches are padded to. They are powers of two.

    Every length needs a compiled program, which takes seconds. For this reason, only three lengths
    are used for short texts, although this leads to more padding.

    Args:
        longest: Positive integer. Number of tokens in the longest example.
        known: Optional tuple of integers. Lengths whose programs are already compiled. They are
            kept.

    Example:
        >>> choose_lengths(59), choose_lengths(300), choose_lengths(59, known=(8, 16, 32))
        ((16, 32, 64), (32, 64, 128, 256, 512), (8, 16, 32, 64))
    """
    last = next((n for n in LENGTHS if n >= max(longest, SHORTEST)), LENGTHS[-1])
    if known:
        return known + tuple(n for n in LENGTHS if known[-1] < n <= last)
    return tuple(n for n in LENGTHS if min(last, MAX_LENGTH_WITH_THREE) // 4 <= n <= last)


def take_examples(examples: Mapping, indices) -> dict:
    """Select the examples at the given indices.

    Example:
        >>> import tensorflow as tf
        >>> take_examples({"labels": tf.constant([5, 6, 7])}, [2, 0])["labels"].numpy().tolist()
        [7, 5]
    """
    return xp.nest.map_structure(lambda values: xp.gather(values, indices), examples)


def iterate_by_length(
    examples: Mapping, batch_size: int, max_padding: float = math.inf
) -> Iterator[np.ndarray]:
    """Yield the example indices of each batch, starting with the longest examples.

    The largest batch is the first, so a batch that does not fit into memory fails immediately.

    Args:
        examples: Dict with the ragged "token_ids", (N, None).
        batch_size: Positive integer. Maximum number of examples per batch.
        max_padding: Float. Maximum number of padding tokens per batch. Defaults to infinity.

    Example:
        >>> from encoder_zoo.common.ragged_array import RaggedArray
        >>> ids = RaggedArray.from_row_lengths(np.arange(10), np.array([1, 5, 4]))
        >>> [indices.tolist() for indices in iterate_by_length({"token_ids": ids}, 3)]
        [[1, 2, 0]]
        >>> [indices.tolist() for indices in iterate_by_length({"token_ids": ids}, 3, 1)]
        [[1, 2], [0]]
    """
    lengths = np.asarray(examples["token_ids"].row_lengths())
    order = np.argsort(-lengths, kind="stable")
    lengths = lengths[order]
    start, padding = 0, 0
    for end in range(len(order)):
        padding += lengths[start] - lengths[end]
        if end - start == batch_size or padding > max_padding:
            yield order[start:end]
            start, padding = end, 0
    if len(order):
        yield order[start:]


def join_batches(batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Concatenate the outputs of at least one batch, in the order of the examples.

    Args:
        batches: Iterable of tuples with the example indices (B,) and the outputs (B, ...).

    Example:
        >>> join_batches([(np.array([1, 2]), np.array([0.5, 0.6])), (np.array([0]), np.ones(1))])
        array([1. , 0.5, 0.6])
    """
    indices, outputs = zip(*batches, strict=True)
    return np.concatenate(outputs)[np.argsort(np.concatenate(indices))]


def combine_candidates(examples: dict, firsts: xp.Tensor, others: xp.RaggedTensor) -> dict:
    """Combine examples of single texts into rows with a first text and candidate texts.

    Args:
        examples: Dict. Encoded examples of all texts.
        firsts: Integer tensor of shape (N,). First text index in each row.
        others: Ragged integer tensor of shape (N, None). Candidate indices in each row.
            Their examples are named "candidate_...".
    """
    further = take_examples(examples, others)
    renamed = {CANDIDATE + name: values for name, values in further.items()}
    return take_examples(examples, firsts) | renamed


def add_candidate_ranges(ranges: dict, names: Iterable[str] | None = None) -> dict:
    """Add the valid ranges of the inputs for candidate texts.

    Args:
        ranges: Dict. Input ranges for one text (see `Task.input_ranges`).
        names: Optional iterable of strings. Names of the inputs that candidates have. If None,
            candidates have all inputs.

    Example:
        >>> add_candidate_ranges({"token_ids": (0, 9), "segment_ids": (0, 1)}, ["token_ids"])
        {'token_ids': (0, 9), 'segment_ids': (0, 1), 'candidate_token_ids': (0, 9)}
    """
    return ranges | {
        CANDIDATE + name: ranges[name] for name in (ranges if names is None else names)
    }


def pad_candidates(
    pad: Callable[[dict, bool], dict], examples: dict, pad_token_id: int, bucketed: Bucketed
) -> dict[str, xp.Tensor]:
    """Pad rows with candidate texts, and return the model inputs. All texts get the same length.

    Args:
        pad: Function of `(examples, bucketed)` that pads examples of single texts.
        examples: Dict. Encoded examples with "token_ids" and "first_length" for the first text in
            each row, and the same names with the prefix "candidate_" for candidates, ragged (N,
            None, ...).
        pad_token_id: Integer. Token id in columns without a text.
        bucketed: See `Preprocessor.collate`.

    Returns:
        Dict with inputs (N, L), and inputs (N, K - 1, L) with the prefix "candidate_". The padding
        mask has one token for a column without a text.
    """
    others = examples[CANDIDATE + "token_ids"]
    both = {
        name: xp.concat([examples[name], examples[CANDIDATE + name].values], axis=0)
        for name in ("token_ids", "first_length")
    }
    padded = pad(both, bucketed)  # (N + T, L)
    count, inputs = others.nrows(), {}
    for name, values in padded.items():
        empty = pad_token_id if name == "token_ids" else 0
        inputs[name] = values[:count]
        ragged = others.with_values(values[count:])
        inputs[CANDIDATE + name] = ragged.to_tensor(xp.cast(empty, values.dtype))
    # The first token in every column is not masked, because attention without tokens returns NaN.
    first = xp.range(xp.shape(inputs["token_ids"])[1]) == 0
    inputs[CANDIDATE + "padding_mask"] |= first
    return inputs
