"""Decode entities from the probabilities of tokens.

Comment letters: P tokens of all texts, U units (tokens or words), G entities, C tags.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import one_of
from encoder_zoo.tasks.preprocessing.tokenized_texts import (
    TokenizedTexts,
    previous,
    row_begins,
    word_begins,
)
from encoder_zoo.tasks.token_classification.tags import OUTSIDE, TagSet, begins_span

Strategy = Annotated[str, one_of("simple", "first", "average", "max", "none")]


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
    probabilities: tf.Tensor, tokens: TokenizedTexts, tags: TagSet, strategy: str = "simple"
) -> Entities:
    """Decode entities from the probabilities of tokens, by the strategies of transformers.

    Args:
        probabilities: (P, C) float.
        tokens: that they belong to.
        tags: the C tags, taken apart.
        strategy: "simple" tags every token and joins neighbours of one entity; "first", "average"
            and "max" tag whole words, by their first token, by the mean over their tokens and by
            the most probable token; "none" returns every tagged token.

    Returns:
        The entities; the score is the mean of their tokens', or words', probabilities.
    """
    units = Entities(
        tokens.ids.value_rowids(),
        tf.argmax(probabilities, axis=1, output_type=tf.int32),
        tokens.starts.flat_values,
        tokens.ends.flat_values,
        tf.reduce_max(probabilities, axis=1),
    )
    first = row_begins(tokens.ids)
    if strategy in ("first", "average", "max"):
        units, first = _words(probabilities, tokens, units, strategy)
    prefix, kind = tf.gather(tags.prefixes, units.label), tf.gather(tags.types, units.label)
    inside = prefix != OUTSIDE
    if strategy == "none":
        return Entities(*(tf.boolean_mask(field, inside) for field in units))
    before = tf.where(first, OUTSIDE, previous(prefix, OUTSIDE))
    begins = begins_span(prefix, kind, before, previous(kind, -1))
    group = tf.boolean_mask(tf.cumsum(tf.cast(begins, tf.int32)) - 1, inside)
    return Entities(
        tf.boolean_mask(units.row, begins),
        tf.boolean_mask(kind, begins),
        tf.boolean_mask(units.start, begins),
        tf.math.segment_max(tf.boolean_mask(units.end, inside), group),
        tf.math.segment_mean(tf.boolean_mask(units.score, inside), group),
    )


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


def _words(
    probabilities: tf.Tensor, tokens: TokenizedTexts, units: Entities, strategy: str
) -> tuple[Entities, tf.Tensor]:
    """Return the words (U,) as units, and which of them is the first of a text."""
    begins = word_begins(tokens)
    word = tf.cumsum(tf.cast(begins, tf.int32)) - 1  # (P,)
    indices = tf.where(begins)[:, 0]  # (U,) first tokens
    if strategy == "average":
        probabilities = tf.math.segment_mean(probabilities, word)
    elif strategy == "first":
        probabilities = tf.gather(probabilities, indices)
    else:
        best = tf.gather(tf.math.segment_max(units.score, word), word)
        here = tf.range(tf.size(word))
        surest = tf.math.segment_min(tf.where(units.score == best, here, tf.size(word)), word)
        probabilities = tf.gather(probabilities, surest)
    words = Entities(
        tf.gather(units.row, indices),
        tf.argmax(probabilities, axis=1, output_type=tf.int32),
        tf.gather(units.start, indices),
        tf.math.segment_max(units.end, word),
        tf.reduce_max(probabilities, axis=1),
    )
    return words, tf.boolean_mask(row_begins(tokens.ids), begins)
