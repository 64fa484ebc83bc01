"""Decode entities from the probabilities of tokens.

Comment letters: P tokens of all texts, U units (tokens or words), G entities, C tags.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypedDict

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import one_of
from encoder_zoo.tasks.preprocessing.tokenized_texts import (
    TokenizedTexts,
    following,
    previous,
    row_begins,
    word_begins,
)
from encoder_zoo.tasks.tagging.tags import BEGIN, END, INSIDE, OUTSIDE, SINGLE, TagSet, begins_span

FORBIDDEN = -1e9  # added to the score of a sequence that cannot be
LEAST = 1e-30  # probability that stands for 0, whose logarithm is not finite


class Transitions(NamedTuple):
    """The tags that may begin a text, follow each other, and end a text.

    Attributes:
        first: (C,) bool.
        between: (C, C) bool; whether the second tag may follow the first.
        last: (C,) bool.
    """

    first: np.ndarray
    between: np.ndarray
    last: np.ndarray


def transitions(tags: TagSet) -> Transitions:
    """Return which tags may follow each other.

    A tag I or E continues an entity of its type, where the type has a tag B. Where there are tags
    E and S (or L and U), an entity that was begun is also ended. All else is allowed.

    Args:
        tags: the C tags, taken apart.

    Source: Ratinov and Roth 2009, Design Challenges and Misconceptions in Named Entity Recognition,
    section 3.2, for the schemes.

    Example:
        >>> from encoder_zoo.tasks.tagging.tags import parse_tags
        >>> allowed = transitions(parse_tags(["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]))
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


def is_possible(labels: np.ndarray, row: np.ndarray, allowed: Transitions) -> bool:
    """Return whether tags (U,) of words, with the text of each, are sequences that can be."""
    return bool(tf.reduce_all(_fits(tf.constant(labels), tf.constant(row), allowed)))


def best_tags(probabilities: tf.Tensor, row: tf.Tensor, allowed: Transitions | None) -> tf.Tensor:
    """Return the tags whose product of probabilities is the largest, text by text.

    Args:
        probabilities: (U, C) float.
        row: (U,) int64, the text of each unit, ascending.
        allowed: which tags may follow each other; None: any.

    Returns:
        (U,) int32.

    Source: Forney 1973, The Viterbi Algorithm.

    Example:
        >>> import tensorflow as tf
        >>> from encoder_zoo.tasks.tagging.tags import parse_tags
        >>> allowed = transitions(parse_tags(["O", "B-LOC", "I-LOC"]))
        >>> probabilities = tf.constant([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
        >>> best_tags(probabilities, tf.constant([0, 0], tf.int64), None).numpy().tolist()
        [0, 2]
        >>> best_tags(probabilities, tf.constant([0, 0], tf.int64), allowed).numpy().tolist()
        [1, 2]
    """
    best = tf.argmax(probabilities, axis=1, output_type=tf.int32)
    if allowed is None or allowed.between.all():
        return best
    # The most probable tags of a text are the answer, unless they cannot be.
    number = tf.cumsum(tf.cast(row != previous(row, -1), tf.int64)) - 1
    wrong = tf.math.segment_max(tf.cast(~_fits(best, row, allowed), tf.int32), number) > 0
    chosen = tf.gather(wrong, number)  # (U,)
    row = tf.boolean_mask(row, chosen)
    number = tf.cumsum(tf.cast(row != previous(row, -1), tf.int64)) - 1
    scores = tf.cast(tf.boolean_mask(probabilities, chosen), tf.float32)
    scores = tf.math.log(tf.maximum(scores, LEAST))
    scores = tf.RaggedTensor.from_value_rowids(scores, number)
    lengths = scores.row_lengths()
    found = tf.RaggedTensor.from_tensor(_viterbi(scores.to_tensor(), lengths, allowed), lengths)
    return tf.tensor_scatter_nd_update(best, tf.where(chosen), found.flat_values)


def _fits(labels: tf.Tensor, row: tf.Tensor, allowed: Transitions) -> tf.Tensor:
    """Return (U,) bool: whether each tag may stand behind the one before, or begin its text; and
    at its end."""
    begins = row != previous(row, -1)
    ends = following(begins, True)
    pairs = tf.stack([previous(labels, 0), labels], axis=1)
    right = tf.where(begins, tf.gather(allowed.first, labels), tf.gather_nd(allowed.between, pairs))
    return right & (tf.gather(allowed.last, labels) | ~ends)


def _viterbi(scores: tf.Tensor, lengths: tf.Tensor, allowed: Transitions) -> tf.Tensor:
    """Return the tags (N, L + 1) of the sequences with the largest sums of scores (N, L, C)."""
    first, between, last = (tf.where(a, 0.0, tf.constant(FORBIDDEN)) for a in allowed)
    scores = tf.pad(scores, [[0, 0], [0, 1], [0, 0]])  # loops have a step also where L is 0
    shape = tf.shape(scores)
    scores, same = tf.transpose(scores, (1, 0, 2)), tf.range(shape[2])  # (L, N, C)
    stay = tf.where(same[:, None] == same, 0.0, tf.constant(FORBIDDEN))

    def forward(i, total, pointers):
        """Add the unit i: (N, C) the best sum that ends with each tag, and the tag before it."""
        inside = (i < tf.cast(lengths, tf.int32))[:, None]
        sums = total[:, :, None] + tf.where(i == 0, stay, between)  # (N, C, C)
        pointer = tf.where(inside, tf.argmax(sums, axis=1, output_type=tf.int32), same)
        total = tf.where(inside, tf.reduce_max(sums, axis=1) + scores[i], total)
        return i + 1, total, pointers.write(i, pointer)

    def backward(i, tag, tags):
        before = tf.gather(pointers.read(i), tag, batch_dims=1)
        return i - 1, before, tags.write(i, tag)

    total = tf.broadcast_to(first, (shape[0], shape[2]))
    pointers, tags = (tf.TensorArray(tf.int32, shape[1], clear_after_read=False) for _ in range(2))
    loop = (0, total, pointers)
    _, total, pointers = tf.while_loop(lambda i, *_: i < shape[1], forward, loop)
    tag = tf.argmax(total + last, axis=1, output_type=tf.int32)
    _, _, tags = tf.while_loop(lambda i, *_: i >= 0, backward, (shape[1] - 1, tag, tags))
    return tf.transpose(tf.reshape(tags.stack(), (shape[1], shape[0])))


Strategy = Annotated[str, one_of("simple", "first", "average", "max", "none")]


class Entity(TypedDict):
    """An entity of a text, whose characters it has from `start` to before `end`."""

    label: str
    text: str
    start: int
    end: int
    score: float


class Units(NamedTuple):
    """Tokens or words (U,) of some texts.

    Attributes:
        row: int64, the text.
        start: int32, the first character.
        end: int32, the character after the last.
        first: bool, whether it is the first of its text.
        probabilities: (U, C) float32.
    """

    row: tf.Tensor
    start: tf.Tensor
    end: tf.Tensor
    first: tf.Tensor
    probabilities: tf.Tensor


class Entities(NamedTuple):
    """Entities (G,) of some texts, in the order of the texts.

    Attributes:
        row: int64, the text.
        label: int32, an index into the tags' `type_names`; with the strategy "none" a tag.
        start: int32, the first character.
        end: int32, the character after the last.
        score: float32.
    """

    row: tf.Tensor
    label: tf.Tensor
    start: tf.Tensor
    end: tf.Tensor
    score: tf.Tensor


def find_entities(
    probabilities: tf.Tensor,
    tokens: TokenizedTexts,
    tags: TagSet,
    strategy: str = "simple",
    allowed: Transitions | None = None,
) -> Entities:
    """Decode entities from the probabilities of tokens, by the strategies of transformers.

    Args:
        probabilities: (P, C) float.
        tokens: that they belong to.
        tags: the C tags, taken apart.
        strategy: "simple" tags every token and joins neighbours of one entity; "first", "average"
            and "max" tag whole words, by their first token, by the mean over their tokens and by
            the most probable token; "none" returns every tagged token.
        allowed: which tags may follow each other, not with the strategy "none"; None: any.

    Returns:
        The entities; the score is the mean of their tokens', or words', probabilities.
    """
    row, starts, ends = tokens.ids.value_rowids(), tokens.starts, tokens.ends
    first = row_begins(tokens.ids)
    units = Units(row, starts.flat_values, ends.flat_values, first, probabilities)
    if strategy in ("first", "average", "max"):
        units = _words(units, tokens, strategy)
    label = best_tags(units.probabilities, units.row, None if strategy == "none" else allowed)
    score = tf.gather(units.probabilities, label, batch_dims=1)
    prefix, kind = tf.gather(tags.prefixes, label), tf.gather(tags.types, label)
    inside = prefix != OUTSIDE
    if strategy == "none":
        fields = units.row, label, units.start, units.end, score
        return Entities(*(tf.boolean_mask(field, inside) for field in fields))
    before = tf.where(units.first, OUTSIDE, previous(prefix, OUTSIDE))
    begins = begins_span(prefix, kind, before, previous(kind, -1))
    group = tf.boolean_mask(tf.cumsum(tf.cast(begins, tf.int32)) - 1, inside)
    return Entities(
        tf.boolean_mask(units.row, begins),
        tf.boolean_mask(kind, begins),
        tf.boolean_mask(units.start, begins),
        tf.math.segment_max(tf.boolean_mask(units.end, inside), group),
        tf.math.segment_mean(tf.boolean_mask(score, inside), group),
    )


def above(found: Entities, threshold: float | None) -> Entities:
    """Return the entities whose score is not lower than a threshold; None: all."""
    if threshold is None:
        return found
    return Entities(*(tf.boolean_mask(field, found.score >= threshold) for field in found))


def entity_columns(
    found: Entities, texts: tf.Tensor, names: tf.Tensor
) -> dict[str, tf.RaggedTensor]:
    """Return "label", "text", "start", "end" and "score" of the entities, each ragged (N, None).

    Args:
        found: in texts.
        texts: (N,) strings.
        names: of the labels.

    Example:
        >>> import tensorflow as tf
        >>> found = Entities(*map(tf.constant, ([1], [0], [4], [7], [0.5])))
        >>> columns = entity_columns(found, tf.constant(["", "Hi, Zoé!"]), tf.constant(["PER"]))
        >>> columns["text"][1, 0].numpy().decode(), columns["label"].to_list()
        ('Zoé', [[], [b'PER']])
    """
    row = tf.cast(found.row, tf.int64)
    text = tf.strings.substr(
        tf.gather(texts, row), found.start, found.end - found.start, unit="UTF8_CHAR"
    )
    fields = {"label": tf.gather(names, found.label), "text": text}
    fields |= {"start": found.start, "end": found.end, "score": found.score}
    return {
        name: tf.RaggedTensor.from_value_rowids(values, row, tf.size(texts, tf.int64))
        for name, values in fields.items()
    }


def _words(units: Units, tokens: TokenizedTexts, strategy: str) -> Units:
    """Return the words (U,) of tokens."""
    begins, probabilities = word_begins(tokens), units.probabilities
    word = tf.cumsum(tf.cast(begins, tf.int32)) - 1  # (P,)
    indices = tf.where(begins)[:, 0]  # (U,) first tokens
    if strategy == "average":
        probabilities = tf.math.segment_mean(probabilities, word)
    elif strategy == "first":
        probabilities = tf.gather(probabilities, indices)
    else:
        score = tf.reduce_max(probabilities, axis=1)
        best = tf.gather(tf.math.segment_max(score, word), word)
        here = tf.range(tf.size(word))
        surest = tf.math.segment_min(tf.where(score == best, here, tf.size(word)), word)
        probabilities = tf.gather(probabilities, surest)
    return Units(
        tf.gather(units.row, indices),
        tf.gather(units.start, indices),
        tf.math.segment_max(units.end, word),
        tf.boolean_mask(units.first, begins),
        probabilities,
    )
