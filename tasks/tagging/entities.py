"""Find the best tag sequences, with rules or learned scores, and decode entities.

Comments use these letters for shapes: B batch, L tokens, P tokens of all texts, U units (tokens or
words), G entities, C tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple, TypedDict

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import one_of
from encoder_zoo.tasks.base.explanation import Attributions
from encoder_zoo.tasks.preprocessing.character_bounds import trim_spans
from encoder_zoo.tasks.preprocessing.tokenized_texts import (
    TokenizedTexts,
    mark_row_starts,
    mark_word_starts,
    shift_left,
    shift_right,
    slice_texts,
)
from encoder_zoo.tasks.tagging.tags import (
    BEGIN,
    END,
    INSIDE,
    OUTSIDE,
    SINGLE,
    TagSet,
    mark_span_starts,
)

FORBIDDEN = -1e9  # added to the score of an invalid sequence
MIN_PROBABILITY = 1e-30  # replaces the probability 0, whose logarithm is infinite


class Transitions(NamedTuple):
    """Valid first tags, tag pairs and last tags, or scores for them.

    Attributes:
        first: Array of shape (C,). Booleans, or float scores that are added to log-probabilities.
        between: Array of shape (C, C). Whether the second tag can follow the first tag, or the
            score of this transition.
        last: Array of shape (C,). Whether a text can end with the tag, or its score.
    """

    first: np.ndarray
    between: np.ndarray
    last: np.ndarray


def make_transitions(tags: TagSet) -> Transitions:
    """Create the rules of a tagging scheme, which determine the tags that can follow a tag.

    If a type has a tag B, its tags I and E must continue an entity of this type. If there are tags
    E and S (or L and U), every entity must end with one of them. All other sequences are allowed.

    Args:
        tags: `TagSet` of the C tags.

    Source: Ratinov and Roth 2009, Design Challenges and Misconceptions in Named Entity Recognition,
    section 3.2, for the schemes.

    Example:
        >>> from encoder_zoo.tasks.tagging.tags import parse_tags
        >>> allowed = make_transitions(parse_tags(["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]))
        >>> allowed.between.astype(int).tolist()[1]  # after B-LOC
        [1, 1, 1, 1, 0]
        >>> allowed.first.astype(int).tolist()
        [1, 1, 0, 1, 0]
    """
    prefixes, types = tags.prefixes, tags.types
    has_begin, has_end = (np.isin(types, types[prefixes == p]) for p in (BEGIN, END))
    is_open = np.isin(prefixes, (BEGIN, INSIDE))
    continues = np.isin(prefixes, (INSIDE, END)) & has_begin
    must_end = np.any(prefixes == END) & np.any(prefixes == SINGLE) & is_open & has_end
    same = types[:, None] == types
    goes_on = same & is_open[:, None] & np.isin(prefixes, (INSIDE, END))
    between = (goes_on | ~continues) & (goes_on | ~must_end[:, None])
    return Transitions(~continues, between, ~must_end)


def add_scores(rules: Transitions | None, learned: Sequence[np.ndarray]) -> Transitions:
    """Combine rules and learned scores. Transitions that the rules forbid get the lowest score."""
    if rules is None:
        return Transitions(*learned)
    pairs = zip(rules, learned, strict=True)
    return Transitions(*(np.where(may, scores, np.float32(FORBIDDEN)) for may, scores in pairs))


def is_possible(tags: xp.RaggedTensor, allowed: Transitions) -> bool:
    """Return whether the tags (N, None) of every text are a valid sequence."""
    return bool(xp.reduce_all(_mark_valid(tags.flat_values, tags.value_rowids(), allowed)))


def find_best_tags(
    probabilities: xp.Tensor, row: xp.Tensor, allowed: Transitions | None
) -> xp.Tensor:
    """Find the most probable valid tag sequence for each text.

    Args:
        probabilities: Float tensor of shape (U, C). Tag probabilities for each unit.
        row: Int64 tensor of shape (U,). Text index for each unit, in ascending order.
        allowed: Optional `Transitions`. Valid transitions between tags, or transition scores. If
            None, all transitions are allowed.

    Returns:
        Int32 tensor of shape (U,). Tag of each unit.

    Source: Forney 1973, The Viterbi Algorithm.

    Example:
        >>> import tensorflow as tf
        >>> from encoder_zoo.tasks.tagging.tags import parse_tags
        >>> allowed = make_transitions(parse_tags(["O", "B-LOC", "I-LOC"]))
        >>> probabilities = tf.constant([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
        >>> find_best_tags(probabilities, tf.constant([0, 0], tf.int64), None).numpy().tolist()
        [0, 2]
        >>> find_best_tags(probabilities, tf.constant([0, 0], tf.int64), allowed).numpy().tolist()
        [1, 2]
    """
    best = xp.argmax(probabilities, axis=1, output_type=xp.int32)
    if allowed is None or (_has_rules(allowed) and allowed.between.all()):
        return best
    chosen = xp.ones_like(best) > 0
    if _has_rules(allowed):
        # If the most probable tags of a text are a valid sequence, they are the best sequence.
        number = _number_texts(row)
        wrong = xp.cast(~_mark_valid(best, row, allowed), xp.int32)
        chosen = xp.gather(xp.math.segment_max(wrong, number) > 0, number)  # (U,)
    scores = _compute_logarithms(
        xp.boolean_mask(probabilities, chosen), xp.boolean_mask(row, chosen)
    )
    lengths = scores.row_lengths()
    found = xp.RaggedTensor.from_tensor(_run_viterbi(scores.to_tensor(), lengths, allowed), lengths)
    return xp.tensor_scatter_nd_update(best, xp.where(chosen), found.flat_values)


def compute_marginals(probabilities: xp.Tensor, row: xp.Tensor, scores: Transitions) -> xp.Tensor:
    """Compute the marginal probability (U, C) of each tag over all tag sequences of a text.

    Args:
        probabilities: Float tensor of shape (U, C). Tag probabilities of each unit, without
            transitions.
        row: Int64 tensor of shape (U,). Text index for each unit, in ascending order.
        scores: `Transitions`. Scores of tag transitions.

    Source: Rabiner 1989, A Tutorial on Hidden Markov Models, section III: forward and backward.

    Example:
        >>> import tensorflow as tf
        >>> scores = Transitions(np.zeros(2), np.array([[0.0, -9.0], [-9.0, 0.0]]), np.zeros(2))
        >>> alone = tf.constant([[0.5, 0.5], [0.1, 0.9]])
        >>> found = compute_marginals(alone, tf.constant([0, 0], tf.int64), scores)
        >>> [round(float(p), 2) for p in found[0]]
        [0.1, 0.9]
    """
    rows = _compute_logarithms(probabilities, row)
    lengths, (first, between, last) = (
        rows.row_lengths(),
        map(xp.constant, convert_to_scores(scores)),
    )
    logits = xp.pad(rows.to_tensor(), [[0, 0], [0, 1], [0, 0]])
    shape = xp.shape(logits)
    logits = xp.transpose(logits, (1, 0, 2))  # (L + 1, N, C)
    edge = xp.zeros_like(logits[0])
    ahead, behind = (xp.TensorArray(xp.float32, shape[1], clear_after_read=False) for _ in range(2))

    def forward(i, total, totals):
        """Compute the sums (N, C) over all sequences up to unit i, for each tag of unit i."""
        longer = xp.reduce_logsumexp(total[:, :, None] + between, axis=1)
        total = xp.where(i == 0, first + edge, longer) + logits[i]
        return i + 1, total, totals.write(i, total)

    def backward(i, rest, rests):
        """Compute the sums (N, C) over all sequences after unit i, for each tag of unit i."""
        follows = (i + 1 < xp.cast(lengths, xp.int32))[:, None]
        after = logits[xp.minimum(i + 1, shape[1] - 1)] + rest
        longer = xp.reduce_logsumexp(between + after[:, None], axis=2)
        rest = xp.where(follows, longer, last + edge)
        return i - 1, rest, rests.write(i, rest)

    _, _, ahead = xp.while_loop(lambda i, *_: i < shape[1], forward, (0, edge, ahead))
    loop = (shape[1] - 1, edge, behind)
    _, _, behind = xp.while_loop(lambda i, *_: i >= 0, backward, loop)
    found = xp.nn.softmax(ahead.stack() + behind.stack())
    found = xp.transpose(found, (1, 0, 2))
    return xp.RaggedTensor.from_tensor(found, lengths).values


def _compute_logarithms(probabilities: xp.Tensor, row: xp.Tensor) -> xp.RaggedTensor:
    """Convert probabilities (U, C) to ragged log-probabilities (N, None, C)."""
    values = xp.cast(probabilities, xp.float32)
    values = xp.math.log(xp.maximum(values, MIN_PROBABILITY))
    return xp.RaggedTensor.from_value_rowids(values, _number_texts(row))


def _number_texts(row: xp.Tensor) -> xp.Tensor:
    """Number the texts of units (U,) without gaps, because texts without units are left out."""
    return xp.cumsum(xp.cast(row != shift_right(row, -1), xp.int64)) - 1


def _has_rules(allowed: Transitions) -> bool:
    return allowed.between.dtype == bool


def convert_to_scores(allowed: Transitions) -> Iterator[np.ndarray]:
    """Yield float32 scores to add to log-probabilities. For rules, valid transitions have 0."""
    for part in allowed:
        scores = np.where(part, 0.0, FORBIDDEN) if _has_rules(allowed) else part
        yield scores.astype("float32")


def _mark_valid(labels: xp.Tensor, row: xp.Tensor, allowed: Transitions) -> xp.Tensor:
    """Return whether each tag (U,) is allowed after the previous tag, or as first or last tag."""
    begins = row != shift_right(row, -1)
    ends = shift_left(begins, True)
    pairs = xp.stack([shift_right(labels, 0), labels], axis=1)
    right = xp.where(begins, xp.gather(allowed.first, labels), xp.gather_nd(allowed.between, pairs))
    return right & (xp.gather(allowed.last, labels) | ~ends)


def _run_viterbi(scores: xp.Tensor, lengths: xp.Tensor, allowed: Transitions) -> xp.Tensor:
    """Return the tags (N, L + 1) with the highest total score, from tag scores (N, L, C)."""
    first, between, last = map(xp.constant, convert_to_scores(allowed))
    # The loops need at least one step, also if L is 0.
    scores = xp.pad(scores, [[0, 0], [0, 1], [0, 0]])
    shape = xp.shape(scores)
    scores, same = xp.transpose(scores, (1, 0, 2)), xp.range(shape[2])  # (L, N, C)
    stay = xp.where(same[:, None] == same, 0.0, xp.constant(FORBIDDEN))

    def forward(i, total, pointers):
        """Compute the best scores (N, C) up to unit i for each tag of unit i.

        The previous tag in each of these sequences is stored in `pointers`.
        """
        inside = (i < xp.cast(lengths, xp.int32))[:, None]
        sums = total[:, :, None] + xp.where(i == 0, stay, between)  # (N, C, C)
        pointer = xp.where(inside, xp.argmax(sums, axis=1, output_type=xp.int32), same)
        total = xp.where(inside, xp.reduce_max(sums, axis=1) + scores[i], total)
        return i + 1, total, pointers.write(i, pointer)

    def backward(i, tag, tags):
        before = xp.gather(pointers.read(i), tag, batch_dims=1)
        return i - 1, before, tags.write(i, tag)

    total = xp.broadcast_to(first, (shape[0], shape[2]))
    pointers, tags = (xp.TensorArray(xp.int32, shape[1], clear_after_read=False) for _ in range(2))
    loop = (0, total, pointers)
    _, total, pointers = xp.while_loop(lambda i, *_: i < shape[1], forward, loop)
    tag = xp.argmax(total + last, axis=1, output_type=xp.int32)
    _, _, tags = xp.while_loop(lambda i, *_: i >= 0, backward, (shape[1] - 1, tag, tags))
    return xp.transpose(xp.reshape(tags.stack(), (shape[1], shape[0])))


Strategy = Annotated[str, one_of("simple", "first", "average", "max", "none")]


class Entity(TypedDict):
    """An entity in a text, with start and end offsets."""

    label: str
    text: str
    start: int
    end: int
    score: float


class EntityExplanation(Entity, Attributions):
    """An entity, with the contribution of each word in the text to its logit."""


class Units(NamedTuple):
    """The units that get tags: tokens or words of all texts. All tensors have shape (U, ...).

    Attributes:
        row: Int64. Index of the text.
        start: Int32. Offset of the first character.
        end: Int32. Offset after the last character.
        first: Boolean. Whether the unit is the first of its text.
        probabilities: Float32 tensor of shape (U, C).
    """

    row: xp.Tensor
    start: xp.Tensor
    end: xp.Tensor
    first: xp.Tensor
    probabilities: xp.Tensor


class ScoredSpans(NamedTuple):
    """Spans (P,) of texts or windows with labels and scores, in the order of the texts.

    Attributes:
        row: Int64. Index of the text, or of the window.
        start: Int32. Offset of the first character, or index of the first word.
        end: Int32. Offset after the last character, or index of the last word.
        label: Int32. Index of the label, or of the type in `TagSet.type_names`. With the strategy
            "none", index of the tag.
        score: Float32.
    """

    row: xp.Tensor
    start: xp.Tensor
    end: xp.Tensor
    label: xp.Tensor
    score: xp.Tensor

    def select(self, kept: xp.Tensor) -> ScoredSpans:
        """Return the spans selected by the boolean mask `kept` (P,)."""
        return ScoredSpans(*(xp.boolean_mask(field, kept) for field in self))

    def reorder(self, order: xp.Tensor) -> ScoredSpans:
        """Return the spans at the given indices, in the given order."""
        return ScoredSpans(*(xp.gather(field, order) for field in self))


# Example of two texts with the tags O, B-PER and I-PER, and the strategy "simple". With "first",
# "average" or "max", the units are words.
#
#   texts         A n n a   m e t   J o   L e e     B o
#   units         ann ##a   met     jo    lee       bo
#     row         0   0     0       0     0         1
#     first       T   .     .       .     .         T     first unit of a text
#   label         B   I     O       B     I         I     most probable tags
#   begins        T   .     .       T     .         T     a span begins, also with I
#   inside        T   T     .       T     T         T
#   group         0   0             1     1         2     the entity of each unit inside of spans
#
#   found.row     0                 0               1
#   start, end    0-4               9-15            0-2   start of the first, end of the last unit
def find_entities(
    probabilities: xp.Tensor,
    tokens: TokenizedTexts,
    tags: TagSet,
    strategy: str = "simple",
    allowed: Transitions | None = None,
) -> ScoredSpans:
    """Decode entities from token probabilities, using the same strategies as in transformers.

    Args:
        probabilities: Float tensor of shape (P, C). Probabilities of the tokens.
        tokens: `TokenizedTexts`. The tokens of the texts.
        tags: `TagSet` of the C tags.
        strategy: String. How to combine tokens into entities. Use "simple" to tag each token and
            join adjacent tokens of an entity. Use "first", "average" or "max" to tag whole words
            based on the first token, the mean over tokens, or the token with the highest score. Use
            "none" to return all tagged tokens with visible characters. Defaults to "simple".
        allowed: Optional `Transitions`. Valid transitions between tags, or transition scores. The
            strategy "none" ignores it. If None, all transitions are allowed.

    Returns:
        `ScoredSpans`. The score is the mean probability of the entity's tokens or words. If
        `allowed` contains transition scores, marginal probabilities are used (see
        `compute_marginals`).

    Example:
        >>> import tensorflow as tf
        >>> from encoder_zoo.tasks.tagging.tags import parse_tags
        >>> make = tf.ragged.constant
        >>> tokens = TokenizedTexts(
        ...     texts=tf.constant(["Anna met Jo Lee", "Bo"]),
        ...     ids=make([[5, 6, 7, 8, 9], [4]]),
        ...     starts=make([[0, 3, 5, 9, 12], [0]]),
        ...     ends=make([[3, 4, 8, 11, 15], [2]]),
        ...     words=make([[0, 0, 1, 2, 3], [0]]),
        ... )
        >>> probabilities = tf.one_hot([1, 2, 0, 1, 2, 2], 3)
        >>> found = find_entities(probabilities, tokens, parse_tags(["O", "B-PER", "I-PER"]))
        >>> [field.numpy().tolist() for field in (found.row, found.start, found.end)]
        [[0, 0, 1], [0, 9, 0], [4, 15, 2]]
    """
    row, starts, ends = tokens.ids.value_rowids(), tokens.starts, tokens.ends
    first = mark_row_starts(tokens.ids)
    units = Units(row, starts.flat_values, ends.flat_values, first, probabilities)
    if strategy in ("first", "average", "max"):
        units = _merge_words(units, tokens, strategy)
    label = find_best_tags(units.probabilities, units.row, None if strategy == "none" else allowed)
    probabilities = units.probabilities
    if strategy != "none" and allowed is not None and not _has_rules(allowed):
        probabilities = compute_marginals(probabilities, units.row, allowed)
    score = xp.gather(probabilities, label, batch_dims=1)
    prefix, kind = xp.gather(tags.prefixes, label), xp.gather(tags.types, label)
    inside = prefix != OUTSIDE
    if strategy == "none":
        found = ScoredSpans(units.row, units.start, units.end, label, score).select(inside)
        return _trim_entities(found, tokens.texts)
    before = xp.where(units.first, OUTSIDE, shift_right(prefix, OUTSIDE))
    begins = mark_span_starts(prefix, kind, before, shift_right(kind, -1))
    group = xp.boolean_mask(xp.cumsum(xp.cast(begins, xp.int32)) - 1, inside)
    found = ScoredSpans(
        xp.boolean_mask(units.row, begins),
        xp.boolean_mask(units.start, begins),
        xp.math.segment_max(xp.boolean_mask(units.end, inside), group),
        xp.boolean_mask(kind, begins),
        xp.math.segment_mean(xp.boolean_mask(score, inside), group),
    )
    return _trim_entities(found, tokens.texts)


def _trim_entities(found: ScoredSpans, texts: xp.Tensor) -> ScoredSpans:
    """Trim entities to visible characters, and drop entities without visible characters.

    Some tokenizers have tokens for whitespace, which can be tagged like other tokens.
    """
    start, end, is_seen = trim_spans(texts, found.row, found.start, found.end)
    return found._replace(start=start, end=end).select(is_seen)


def select_above_threshold(found: ScoredSpans, thresholds: np.ndarray | None) -> ScoredSpans:
    """Return the entities that reach the threshold of their label, or all without thresholds."""
    if thresholds is None:
        return found
    kept = found.score >= xp.gather(xp.constant(thresholds), found.label)
    return found.select(kept)


def make_entity_columns(
    found: ScoredSpans, texts: xp.Tensor, names: xp.Tensor
) -> dict[str, xp.RaggedTensor]:
    """Convert entities to ragged columns (N, None): "label", "text", "start", "end" and "score".

    Args:
        found: `ScoredSpans` in the texts.
        texts: String tensor of shape (N,).
        names: String tensor. Names of the labels.

    Example:
        >>> import tensorflow as tf
        >>> found = ScoredSpans(*map(tf.constant, ([1], [4], [7], [0], [0.5])))
        >>> texts, labels = tf.constant(["", "Hi, Zoé!"]), tf.constant(["PER"])
        >>> columns = make_entity_columns(found, texts, labels)
        >>> columns["text"][1, 0].numpy().decode(), columns["label"].to_list()
        ('Zoé', [[], [b'PER']])
    """
    row = xp.cast(found.row, xp.int64)
    text = slice_texts(texts, row, found.start, found.end)
    fields = {"label": xp.gather(names, found.label), "text": text}
    fields |= {"start": found.start, "end": found.end, "score": found.score}
    return {
        name: xp.RaggedTensor.from_value_rowids(values, row, xp.size(texts, xp.int64))
        for name, values in fields.items()
    }


def _merge_words(units: Units, tokens: TokenizedTexts, strategy: str) -> Units:
    """Combine tokens into words (U,)."""
    begins, probabilities = mark_word_starts(tokens), units.probabilities
    word = xp.cumsum(xp.cast(begins, xp.int32)) - 1  # (P,)
    indices = xp.where(begins)[:, 0]  # (U,) first tokens
    if strategy == "average":
        probabilities = xp.math.segment_mean(probabilities, word)
    elif strategy == "first":
        probabilities = xp.gather(probabilities, indices)
    else:
        score = xp.reduce_max(probabilities, axis=1)
        best = xp.gather(xp.math.segment_max(score, word), word)
        here = xp.range(xp.size(word))
        surest = xp.math.segment_min(xp.where(score == best, here, xp.size(word)), word)
        probabilities = xp.gather(probabilities, surest)
    return Units(
        xp.gather(units.row, indices),
        xp.gather(units.start, indices),
        xp.math.segment_max(units.end, word),
        xp.boolean_mask(units.first, begins),
        probabilities,
    )
