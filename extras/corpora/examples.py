"""Plan pretraining examples from documents: segment pairs or full sentences.

An example consists of a start token and one or more token spans, each followed by an end token.
Planning only uses positions, so tokens are not read.

Comments use these letters for shapes: R examples, P spans, U units, K slots.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable

import numpy as np

from encoder_zoo.extras.corpora.writing import Shard, compute_splits
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import MaskedLMPreprocessor
from encoder_zoo.tasks.pretraining.pretraining import PretrainingPreprocessor

OTHER_DOCUMENT_RATE = 0.5  # probability that the second segment does not follow the first


@dataclasses.dataclass(frozen=True)
class ShardExamples:
    """The examples that were planned for a shard, without their tokens.

    Attributes:
        spans: Int64 array of shape (P, 2). Start and end of each span.
        example_splits: Array of shape (R + 1,). Index of the first span of each example, followed
            by P.
        labels: Optional int32 array of shape (R,) for segment pairs. 1 if the second segment does
            not follow the first segment, 0 otherwise.
        slot_splits: Array of shape (K + 1,). Index of the first example of each slot, followed by
            R. A slot is one row of a batch, and can contain several short examples.
    """

    spans: np.ndarray
    example_splits: np.ndarray
    labels: np.ndarray | None
    slot_splits: np.ndarray

    def count_slot_tokens(self, slot: int) -> int:
        """Return the number of tokens in a slot."""
        first, behind = self.slot_splits[slot : slot + 2]
        return int(self.lengths[first:behind].sum())

    @property
    def slots(self) -> int:
        """Number of slots, K."""
        return len(self.slot_splits) - 1

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens per example, including special tokens. Shape (R,)."""
        tokens = compute_splits(self.spans[:, 1] - self.spans[:, 0] + 1)
        return np.diff(tokens[self.example_splits]) + 1


def make_planner(
    preprocessor: MaskedLMPreprocessor,
) -> Callable[[Shard, random.Random], ShardExamples]:
    """Create a function that plans examples for a preprocessor.

    Args:
        preprocessor: The `MaskedLMPreprocessor` for single texts or segment pairs.
    """
    length = preprocessor.max_sequence_length
    if isinstance(preprocessor, PretrainingPreprocessor):
        swapped = preprocessor.objective == "sentence_order"
        share = preprocessor.short_share
        return lambda shard, rng: make_segment_pairs(shard, length, swapped, share, rng)
    if preprocessor.across_documents:
        return lambda shard, rng: fill_with_sentences(shard, length)
    return lambda shard, rng: fill_from_documents(shard, length, rng)


def fill_with_sentences(shard: Shard, length: int) -> ShardExamples:
    """Fill each example with as many sentences as possible, also across documents.

    An end token separates two documents. Sentences that are longer than an example are split.

    Args:
        shard: The `Shard` with documents.
        length: Integer. Example length, including start and end tokens.

    Source: Liu et al. 2019, section 4.2, FULL-SENTENCES.

    Example:
        >>> shard = Shard.create([[[1, 2], [3]], [[4, 5], [6, 7, 8]]])
        >>> examples = fill_with_sentences(shard, length=8)
        >>> examples.spans.tolist(), examples.example_splits.tolist(), examples.lengths.tolist()
        ([[0, 3], [3, 5], [5, 8]], [0, 2, 3], [8, 5])
    """
    return _collect_sentences(shard, length - 2, across=True)


def fill_from_documents(shard: Shard, length: int, rng: random.Random) -> ShardExamples:
    """Fill each example with sentences from one document. Short examples share a slot.

    Each example contains as many sentences as possible. The last example in a document is shorter.
    Several short examples share a slot with up to `length` tokens, so that all batches have a
    similar number of tokens.

    Args:
        shard, length: See `fill_with_sentences`.
        rng: `random.Random`. Random generator for combining short examples.

    Source: Liu et al. 2019, section 4.2, DOC-SENTENCES. Examples are combined as in
        `pack_examples`.

    Example:
        >>> shard = Shard.create([[[1, 2], [3]], [[4, 5], [6, 7, 8]]])
        >>> examples = fill_from_documents(shard, 10, random.Random(0))
        >>> sorted(examples.spans.tolist()), examples.slots
        ([[0, 3], [3, 8]], 2)
    """
    from encoder_zoo.tasks.preprocessing.batching import pack_examples

    examples = _collect_sentences(shard, length - 2, across=False)
    order = np.random.default_rng(rng.getrandbits(64)).permutation(len(examples.spans))
    order = order[np.argsort(-examples.lengths[order], kind="stable")]
    plan = pack_examples(examples.lengths[order], length)
    spans = examples.spans[order][plan.values.numpy()]
    return ShardExamples(spans, np.arange(len(spans) + 1), None, plan.row_splits.numpy())


def _collect_sentences(shard: Shard, room: int, across: bool) -> ShardExamples:
    """Divide sentences into examples of up to `room` tokens, plus a start and an end token."""
    starts, ends, documents = _split_into_units(shard, room)
    # Number of tokens up to the end of each unit, including end tokens between documents.
    reached = (ends + documents).tolist()
    # First unit of each document.
    first = np.searchsorted(documents, np.arange(documents[-1] + 2)).tolist()
    starts, ends, documents = starts.tolist(), ends.tolist(), documents.tolist()
    spans, sizes, unit = [], [], 0
    while unit < len(starts):
        document = documents[unit]
        last = len(starts) if across else first[document + 1]
        end = bisect_right(reached, starts[unit] + document + room, unit, last)
        borders = [unit, *(first[d] for d in range(document + 1, documents[end - 1] + 1)), end]
        spans += [(starts[a], ends[b - 1]) for a, b in itertools.pairwise(borders)]
        sizes.append(len(borders) - 1)
        unit = end
    return ShardExamples(np.array(spans), compute_splits(sizes), None, np.arange(len(sizes) + 1))


def _split_into_units(shard: Shard, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split sentences into units of up to `most` tokens.

    Returns:
        Three arrays of shape (U,): the start, the end and the document of each unit.
    """
    lengths = np.diff(shard.sentences)
    pieces = -(-lengths // most)
    sentence = np.repeat(np.arange(len(lengths)), pieces)
    piece = np.arange(len(sentence)) - np.repeat(compute_splits(pieces)[:-1], pieces)
    starts = shard.sentences[sentence] + piece * most
    ends = np.minimum(starts + most, shard.sentences[sentence + 1])
    document = np.repeat(np.arange(len(shard.documents) - 1), np.diff(shard.documents))
    return starts, ends, document[sentence]


def make_segment_pairs(
    shard: Shard, length: int, swapped: bool, short_share: float, rng: random.Random
) -> ShardExamples:
    """Create segment pairs with a label for next-sentence or sentence-order prediction.

    Consecutive sentences fill an example, which is then split into two segments. In half of all
    examples, the second segment does not follow the first segment. For BERT, the second segment is
    taken from another document, and the original sentences are used for the next example. For
    ALBERT, the two segments are swapped. If a pair is too long, tokens are randomly removed from
    the start or end of the longer segment.

    Args:
        shard: The `Shard` with documents.
        length: Integer. Example length, including three special tokens.
        swapped: Boolean. Whether to swap the segments instead of using another document.
        short_share: Float between 0 and 1. Fraction of examples that get a random, shorter length
            of at least two tokens.
        rng: `random.Random`. Random generator.

    Source: Devlin et al. 2019, appendix A.2, and the released code, `create_pretraining_data.py`,
    which uses one length for a whole document. Lan et al. 2020, section 3.1.

    Example:
        >>> shard = Shard.create([[[1, 2], [3, 4], [5]], [[6], [7, 8]]])
        >>> examples = make_segment_pairs(shard, 20, True, 0.0, random.Random(0))
        >>> np.diff(examples.example_splits).tolist(), examples.lengths.tolist()
        ([2, 2], [8, 6])
    """
    room = length - 3
    make = _make_swapped_pair if swapped else _make_next_pair
    offsets, documents = shard.sentences.tolist(), shard.documents.tolist()
    spans, labels = [], []
    for document in range(len(documents) - 1):
        sentence, end = documents[document : document + 2]
        while sentence < end:
            goal = room
            if rng.random() < short_share:
                goal = 2 + int(rng.random() * (room - 1))
            behind = bisect_left(offsets, offsets[sentence] + goal, sentence + 1, end)
            sentence, first, second, label = make(
                offsets, documents, document, (sentence, behind), goal, rng
            )
            if second is not None:
                spans += _truncate_pair(first, second, room, rng)
                labels.append(label)
    count = len(labels)
    return ShardExamples(
        np.array(spans, "int64").reshape(-1, 2),
        np.arange(count + 1) * 2,
        np.array(labels, "int32"),
        np.arange(count + 1),
    )


def _make_next_pair(offsets, documents, document, chunk, goal, rng) -> tuple:
    """Create a segment pair for BERT from consecutive sentences.

    Returns:
        A tuple (index of the next sentence, first segment, second segment, label). The second
        segment is None if no pair can be created.
    """
    start, behind = chunk
    middle = _choose_middle(chunk, rng)
    first = offsets[start], offsets[middle]
    alone = len(documents) == 2  # no other document in this shard
    if behind - start > 1 and (alone or rng.random() >= OTHER_DOCUMENT_RATE):
        return behind, first, (offsets[middle], offsets[behind]), 0
    if alone:
        return behind, first, None, 0
    other = int(rng.random() * (len(documents) - 2))
    other += other >= document
    begin, end = documents[other : other + 2]
    begin += int(rng.random() * (end - begin))
    wanted = offsets[begin] + goal - (first[1] - first[0])
    return middle, first, (offsets[begin], offsets[bisect_left(offsets, wanted, begin + 1, end)]), 1


def _make_swapped_pair(offsets, documents, document, chunk, goal, rng) -> tuple:
    """Create a segment pair for ALBERT, swapped or not. See `_make_next_pair`."""
    start, behind = chunk
    if behind - start > 1:
        middle = offsets[_choose_middle(chunk, rng)]
    else:
        middle = offsets[start] + 1 + int(rng.random() * (offsets[behind] - offsets[start] - 1))
    first, second = (offsets[start], middle), (middle, offsets[behind])
    if second[0] == second[1]:
        return behind, first, None, 0
    if rng.random() < OTHER_DOCUMENT_RATE:
        return behind, second, first, 1
    return behind, first, second, 0


def _choose_middle(chunk: tuple[int, int], rng: random.Random) -> int:
    """Choose a random start for the second segment."""
    start, behind = chunk
    return start + 1 + int(rng.random() * max(1, behind - start - 1))


def _truncate_pair(first: tuple, second: tuple, room: int, rng: random.Random) -> list[tuple]:
    """Truncate two segments to `room` tokens in total. The longer segment is truncated first."""
    lengths = first[1] - first[0], second[1] - second[0]
    if sum(lengths) <= room:
        return [first, second]
    kept_second = min(lengths[1], max(room // 2, room - lengths[0]))
    kept = room - kept_second, kept_second
    spans = []
    for (start, _), length, left in zip((first, second), lengths, kept, strict=True):
        cut = length - left
        start += rng.getrandbits(cut).bit_count() if cut else 0  # from the start or the end
        spans.append((start, start + left))
    return spans
