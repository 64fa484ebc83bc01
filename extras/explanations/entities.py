"""Explain the prediction of an entity by the surrounding words.

Comments use these letters for shapes: L sequence, C tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from encoder_zoo.extras.explanations.attributions import (
    attributions,
    example_inputs,
    part_of,
    warn_incomplete,
)
from encoder_zoo.tasks.preprocessing.tokenized_texts import TokenizedTexts, word_begins
from encoder_zoo.tasks.preprocessing.windows import Windows
from encoder_zoo.tasks.tagging.entities import Entity, EntityExplanation
from encoder_zoo.tasks.tagging.tags import parse_tags

if TYPE_CHECKING:
    from encoder_zoo.tasks.tagging.token_classifier import TokenClassifier


def explain_entities(
    tagger: TokenClassifier, texts, strategy: str, method: str, batch_size: int | None
) -> list[list[EntityExplanation]]:
    """Return explanations of entities. For the arguments, see `TokenClassifier.explain`."""
    entities = tagger.extract_entities(texts, strategy, batch_size)
    tokens = tagger.preprocessor.tokens(texts, tagger.split_symbols)
    windows = tagger.preprocessor.windows(tokens)
    examples = tagger.preprocessor.examples(tokens, windows)
    found = []
    for row, of_text in enumerate(entities):
        explained = []
        for entity in of_text:
            members = _members(tokens, row, entity, strategy)
            window = _window(windows, row, members[0])
            begin, length = (int(v[window]) for v in (windows.begin, windows.length))
            members = members[(members >= begin) & (members < begin + length)]
            inputs = example_inputs(tagger, examples, window)
            tags = _tags(tagger, entity["label"], strategy)
            column = tagger.preprocessor.tokenizer.first_column
            weights = _weights(tagger, inputs, column + members - begin, tags)
            part = part_of(tokens, row, column, begin, length)
            values = attributions(tagger, inputs, [part], weights, method, batch_size)
            explained.append(EntityExplanation(**entity, **values))
        found.append(explained)
    warn_incomplete([explanation for row in found for explanation in row], method)
    return found


def _members(tokens: TokenizedTexts, row: int, entity: Entity, strategy: str) -> np.ndarray:
    """Return the indices of the tokens that determine an entity."""
    starts, ends = tokens.starts[row].numpy(), tokens.ends[row].numpy()
    inside = (starts < entity["end"]) & (ends > entity["start"])
    if strategy == "first":
        inside &= tokens.ids.with_flat_values(word_begins(tokens))[row].numpy()
    return np.flatnonzero(inside)


def _window(windows: Windows, row: int, token: int) -> int:
    """Return the window from which a token was predicted."""
    begin = windows.begin.numpy()
    owned = (begin + windows.owned_from.numpy() <= token) & (
        token < begin + windows.owned_to.numpy()
    )
    return int(np.flatnonzero(owned & (windows.example.numpy() == row))[0])


def _tags(tagger: TokenClassifier, label: str, strategy: str) -> np.ndarray:
    """Return the indices of the tags for the label of an entity."""
    if strategy == "none":
        return np.array([tagger.tag_names.index(label)])
    parsed = parse_tags(tagger.tag_names)
    return np.flatnonzero(parsed.types == parsed.type_names.index(label))


def _weights(
    tagger: TokenClassifier, inputs: dict, columns: np.ndarray, tags: np.ndarray
) -> np.ndarray:
    """Return weights (1, L, C) whose weighted sum is the mean of the best tag logits."""
    logits = ops.convert_to_numpy(tagger(inputs, training=False)).astype("float32")
    best = tags[logits[0][np.ix_(columns, tags)].argmax(axis=1)]
    weights = np.zeros_like(logits)
    weights[0, columns, best] = 1 / len(columns)
    return weights
