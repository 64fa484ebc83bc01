"""Examples of a shard's documents: pairs of segments, or full sentences.

An example is a start token and some spans of tokens, each followed by an end token. Planning an
example does not read its tokens.

Comment letters: R examples, P spans, U units, K slots.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable

import numpy as np

from encoder_zoo.extras.corpora.writing import Shard, splits
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import MaskedLMPreprocessor
from encoder_zoo.tasks.pretraining.pretraining import PretrainingPreprocessor

OTHER = 0.5  # share of the pairs whose second segment does not follow the first


@dataclasses.dataclass(frozen=True)
class ShardExamples:
    """Examples of one shard, before their tokens are read.

    Attributes:
        spans: (P, 2) int64, first token and the one after the last.
        example_splits: (R + 1,) offsets in `spans` of each example.
        labels: (R,) int32 for pairs: 1 where the second segment does not follow the first; None
            where examples have no label.
        slot_splits: (K + 1,) offsets of the examples that count as one in a batch: short examples
            share a slot.
    """

    spans: np.ndarray
    example_splits: np.ndarray
    labels: np.ndarray | None
    slot_splits: np.ndarray

    def slot_length(self, slot: int) -> int:
        """Return the tokens of a slot's examples."""
        first, behind = self.slot_splits[slot : slot + 2]
        return int(self.lengths[first:behind].sum())

    @property
    def slots(self) -> int:
        """Return the number of slots, K."""
        return len(self.slot_splits) - 1

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Return (R,) the number of tokens of every example, special tokens included."""
        tokens = splits(self.spans[:, 1] - self.spans[:, 0] + 1)
        return np.diff(tokens[self.example_splits]) + 1


def planner(preprocessor: MaskedLMPreprocessor) -> Callable[[Shard, random.Random], ShardExamples]:
    """Return what makes the examples that a preprocessor's task learns from, of a shard.

    Args:
        preprocessor: of pairs or of single texts.
    """
    length = preprocessor.max_sequence_length
    if isinstance(preprocessor, PretrainingPreprocessor):
        swapped = preprocessor.objective == "sentence_order"
        share = preprocessor.short_share
        return lambda shard, rng: segment_pairs(shard, length, swapped, share, rng)
    if preprocessor.across_documents:
        return lambda shard, rng: full_sentences(shard, length)
    return lambda shard, rng: document_sentences(shard, length, rng)


def full_sentences(shard: Shard, length: int) -> ShardExamples:
    """Return examples of as many sentences as fit, also of several documents.

    An end token separates two documents. A sentence that is longer than an example is cut.

    Args:
        shard: to take them from.
        length: of an example, with its start token and end tokens.

    Source: Liu et al. 2019, section 4.2, FULL-SENTENCES.

    Example:
        >>> examples = full_sentences(Shard.of([[[1, 2], [3]], [[4, 5], [6, 7, 8]]]), length=8)
        >>> examples.spans.tolist(), examples.example_splits.tolist(), examples.lengths.tolist()
        ([[0, 3], [3, 5], [5, 8]], [0, 2, 3], [8, 5])
    """
    return _sentences(shard, length - 2, across=True)


def document_sentences(shard: Shard, length: int, rng: random.Random) -> ShardExamples:
    """Return examples of as many sentences of one document as fit; short examples share a slot.

    Examples at the end of a document are short. As many of them as fit into `length` tokens share a
    slot of a batch, so that all batches have about as many tokens.

    Args:
        shard, length: as for `full_sentences`.
        rng: chooses which short examples are packed together.

    Source: Liu et al. 2019, section 4.2, DOC-SENTENCES; put together as `pack_examples` does.

    Example:
        >>> shard = Shard.of([[[1, 2], [3]], [[4, 5], [6, 7, 8]]])
        >>> examples = document_sentences(shard, 10, random.Random(0))
        >>> sorted(examples.spans.tolist()), examples.slots
        ([[0, 3], [3, 8]], 2)
    """
    from encoder_zoo.tasks.preprocessing.batching import pack_examples

    examples = _sentences(shard, length - 2, across=False)
    order = np.random.default_rng(rng.getrandbits(64)).permutation(len(examples.spans))
    order = order[np.argsort(-examples.lengths[order], kind="stable")]
    plan = pack_examples(examples.lengths[order], length)
    spans = examples.spans[order][plan.values.numpy()]
    return ShardExamples(spans, np.arange(len(spans) + 1), None, plan.row_splits.numpy())


def _sentences(shard: Shard, room: int, across: bool) -> ShardExamples:
    """Return examples of at most `room` tokens, without the start token and the last end token."""
    starts, ends, documents = _units(shard, room)
    # Tokens up to a unit's end, where an end token between documents counts as one.
    reached = (ends + documents).tolist()
    first = np.searchsorted(documents, np.arange(documents[-1] + 2)).tolist()  # unit of a document
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
    return ShardExamples(np.array(spans), splits(sizes), None, np.arange(len(sizes) + 1))


def _units(shard: Shard, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return first token, the one after the last, and document of each sentence (U,); sentences
    of more than `most` tokens are cut."""
    lengths = np.diff(shard.sentences)
    pieces = -(-lengths // most)
    sentence = np.repeat(np.arange(len(lengths)), pieces)
    piece = np.arange(len(sentence)) - np.repeat(splits(pieces)[:-1], pieces)
    starts = shard.sentences[sentence] + piece * most
    ends = np.minimum(starts + most, shard.sentences[sentence + 1])
    document = np.repeat(np.arange(len(shard.documents) - 1), np.diff(shard.documents))
    return starts, ends, document[sentence]


def segment_pairs(
    shard: Shard, length: int, swapped: bool, short_share: float, rng: random.Random
) -> ShardExamples:
    """Return pairs of segments, each of one or more sentences; half do not follow each other.

    Consecutive sentences fill an example, and are split into two segments. In half of the examples
    the second one does not follow: for BERT it is from another document, and the sentences that
    would have followed are used for the next example; for ALBERT the two are swapped. If both are
    too long, tokens of the longer segment are removed, at its front or its end at random.

    Args:
        shard: to take them from.
        length: of an example, with its three special tokens.
        swapped: whether the other half is swapped, rather than from another document.
        short_share: of the examples that are made for a smaller length, of two tokens and more.
        rng: makes all random choices.

    Source: Devlin et al. 2019, appendix A.2, and `create_pretraining_data.py`, released with it,
    where a whole document has one length; Lan et al. 2020, section 3.1.

    Example:
        >>> shard = Shard.of([[[1, 2], [3, 4], [5]], [[6], [7, 8]]])
        >>> examples = segment_pairs(shard, 20, True, 0.0, random.Random(0))
        >>> np.diff(examples.example_splits).tolist(), examples.lengths.tolist()
        ([2, 2], [8, 6])
    """
    room = length - 3
    make = _swapped_pair if swapped else _next_pair
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
                spans += _truncated(first, second, room, rng)
                labels.append(label)
    count = len(labels)
    return ShardExamples(
        np.array(spans, "int64").reshape(-1, 2),
        np.arange(count + 1) * 2,
        np.array(labels, "int32"),
        np.arange(count + 1),
    )


def _next_pair(offsets, documents, document, chunk, goal, rng) -> tuple:
    """Return the next sentence, both segments as spans, and 1 if the second is from elsewhere."""
    start, behind = chunk
    middle = _middle(chunk, rng)
    first = offsets[start], offsets[middle]
    alone = len(documents) == 2  # in its shard: there is no other document
    if behind - start > 1 and (alone or rng.random() >= OTHER):
        return behind, first, (offsets[middle], offsets[behind]), 0
    if alone:
        return behind, first, None, 0
    other = int(rng.random() * (len(documents) - 2))
    other += other >= document
    begin, end = documents[other : other + 2]
    begin += int(rng.random() * (end - begin))
    wanted = offsets[begin] + goal - (first[1] - first[0])
    return middle, first, (offsets[begin], offsets[bisect_left(offsets, wanted, begin + 1, end)]), 1


def _swapped_pair(offsets, documents, document, chunk, goal, rng) -> tuple:
    """Return as `_next_pair`, with half of the pairs swapped; a single sentence is split."""
    start, behind = chunk
    if behind - start > 1:
        middle = offsets[_middle(chunk, rng)]
    else:
        middle = offsets[start] + 1 + int(rng.random() * (offsets[behind] - offsets[start] - 1))
    first, second = (offsets[start], middle), (middle, offsets[behind])
    if second[0] == second[1]:
        return behind, first, None, 0
    if rng.random() < OTHER:
        return behind, second, first, 1
    return behind, first, second, 0


def _middle(chunk: tuple[int, int], rng: random.Random) -> int:
    """Return the sentence at which the second segment begins, at random."""
    start, behind = chunk
    return start + 1 + int(rng.random() * max(1, behind - start - 1))


def _truncated(first: tuple, second: tuple, room: int, rng: random.Random) -> list[tuple]:
    """Return both segments truncated to so many tokens in all, the longer one first."""
    lengths = first[1] - first[0], second[1] - second[0]
    if sum(lengths) <= room:
        return [first, second]
    kept_second = min(lengths[1], max(room // 2, room - lengths[0]))
    kept = room - kept_second, kept_second
    spans = []
    for (start, _), length, left in zip((first, second), lengths, kept, strict=True):
        cut = length - left
        start += rng.getrandbits(cut).bit_count() if cut else 0  # front or end for each token
        spans.append((start, start + left))
    return spans
