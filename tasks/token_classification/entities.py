"""Decode entities from the probabilities of tokens.

Comment letters: P tokens of all texts, U units (tokens or words), G entities, C tags.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypedDict

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import one_of
from encoder_zoo.tasks.preprocessing.tokenized_texts import (
    TokenizedTexts,
    previous,
    row_begins,
    word_begins,
)
from encoder_zoo.tasks.token_classification.decoding import Transitions, best_tags
from encoder_zoo.tasks.token_classification.tags import OUTSIDE, TagSet, begins_span

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
