"""Decode entities from the probabilities of tokens.

Comment letters: P tokens of all texts, U units (tokens or words), G entities, C tags.
"""

from __future__ import annotations

from typing import NamedTuple

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.preprocessing.tokenized_texts import TokenizedTexts, row_begins, word_begins
from encoder_zoo.tasks.token_classification.tags import OUTSIDE, TagSet, begins_span

STRATEGIES = ("simple", "first", "average", "max", "none")


def checked_strategy(strategy: str) -> str:
    """Return the strategy, or raise an error if it is unknown.

    Raises:
        ValueError: "Unknown strategy 'last'. Expected one of simple, first, average, max, none."
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"Unknown strategy {strategy!r}. Expected one of {', '.join(STRATEGIES)}.")
    return strategy


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
            the token that is surest; "none" gives back every tagged token.

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
    before = tf.where(first, OUTSIDE, _shifted(prefix))
    begins = begins_span(prefix, kind, before, _shifted(kind))
    group = tf.boolean_mask(tf.cumsum(tf.cast(begins, tf.int32)) - 1, inside)
    return Entities(
        tf.boolean_mask(units.row, begins),
        tf.boolean_mask(kind, begins),
        tf.boolean_mask(units.start, begins),
        tf.math.segment_max(tf.boolean_mask(units.end, inside), group),
        tf.math.segment_mean(tf.boolean_mask(units.score, inside), group),
    )


def entity_lists(found: Entities, texts: tf.Tensor, names: list[str]) -> list[list[dict]]:
    """Return for every text its entities as `{"label", "text", "start", "end", "score"}`.

    Args:
        found: entities.
        texts: (N,) strings.
        names: of the labels.
    """
    strings = [text.decode() for text in texts.numpy()]
    entities = [[] for _ in strings]
    for row, label, start, end, score in zip(*(f.numpy().tolist() for f in found), strict=True):
        text = strings[row][start:end]
        entity = {"label": names[label], "text": text, "start": start, "end": end}
        entities[row].append(entity | {"score": score})
    return entities


def padded_entities(found: Entities, texts: tf.Tensor, names: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the entities of every text in a row of their own.

    Args:
        found: in texts.
        texts: (N,) strings.
        names: of the labels.

    Returns:
        "count" (N,) int32; "label", "text", "start", "end" and "score", each (N, most entities),
        with "" and 0 behind the last.

    Example:
        >>> import tensorflow as tf
        >>> found = Entities(*map(tf.constant, ([1], [0], [4], [7], [0.5])))
        >>> rows = padded_entities(found, tf.constant(["", "Hi, Zoé!"]), tf.constant(["PER"]))
        >>> rows["count"].numpy().tolist(), rows["text"].numpy()[1, 0].decode()
        ([0, 1], 'Zoé')
    """
    row = tf.cast(found.row, tf.int64)
    text = tf.strings.substr(
        tf.gather(texts, row), found.start, found.end - found.start, unit="UTF8_CHAR"
    )
    fields = {"label": tf.gather(names, found.label), "text": text}
    fields |= {"start": found.start, "end": found.end, "score": found.score}
    rows = {
        name: tf.RaggedTensor.from_value_rowids(values, row, tf.size(texts, tf.int64))
        for name, values in fields.items()
    }
    count = tf.cast(rows["label"].row_lengths(), tf.int32)
    return {"count": count, **{name: values.to_tensor() for name, values in rows.items()}}


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


def _shifted(values: tf.Tensor) -> tf.Tensor:
    """Return the value before each unit, and a default before the first."""
    return tf.concat([values[:1], values], 0)[: tf.size(values)]
