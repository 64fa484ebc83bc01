"""Explain entity predictions by the surrounding words.

Comments use these letters for shapes: L sequence, C tags, W windows, T tokens of a text.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from encoder_zoo.extras.explanations import attributions
from encoder_zoo.tasks.preprocessing.tokenized_texts import ROW_STRIDE, mark_word_starts
from encoder_zoo.tasks.preprocessing.windows import Windows
from encoder_zoo.tasks.tagging.entities import Entity, EntityExplanation
from encoder_zoo.tasks.tagging.tags import parse_tags

if TYPE_CHECKING:
    from encoder_zoo.tasks.tagging.token_classifier import TokenClassifier


def explain_entities(
    tagger: TokenClassifier, texts, strategy: str, method: str, batch_size: int | None
) -> list[list[EntityExplanation]]:
    """Explain entities in texts. See `TokenClassifier.explain` for the arguments."""
    entities = tagger.extract_entities(texts, strategy, batch_size)
    tokens = tagger.preprocessor.tokenize(texts, tagger.split_symbols)
    windows = tagger.preprocessor.split_into_windows(tokens)
    examples = tagger.preprocessor.make_examples(tokens, windows)
    windows = Windows(*(field.numpy() for field in windows))
    first_tokens = windows.example * ROW_STRIDE + windows.begin + windows.owned_from  # (W,)
    begins = tokens.ids.with_flat_values(mark_word_starts(tokens))
    tags = _find_label_tags(tagger, strategy)
    column = tagger.preprocessor.tokenizer.first_column

    @functools.lru_cache(maxsize=1)  # entities are sorted, so windows rarely alternate
    def compute_inputs_and_logits(window: int) -> tuple[dict, np.ndarray]:
        inputs = attributions.make_example_inputs(tagger, examples, window)
        return inputs, ops.convert_to_numpy(tagger(inputs, training=False)).astype("float32")

    found = []
    for row, of_text in enumerate(entities):
        starts, ends = tokens.starts[row].numpy(), tokens.ends[row].numpy()  # (T,)
        is_used = begins[row].numpy() if strategy == "first" else np.full(len(starts), True)
        text, explained = attributions.select_tokens(tokens, row), []
        for entity in of_text:
            members = _find_overlapping_tokens(starts, ends, entity)
            members = members[is_used[members]]
            window = np.searchsorted(first_tokens, row * ROW_STRIDE + members[0], side="right") - 1
            begin, length = windows.begin[window], windows.length[window]
            members = members[(members >= begin) & (members < begin + length)]
            inputs, logits = compute_inputs_and_logits(window)
            weights = _make_weights(logits, column + members - begin, tags[entity["label"]])
            part = attributions.select_window(text, column, begin, length)
            values = attributions.compute_attributions(
                tagger, inputs, [part], weights, method, batch_size
            )
            explained.append(EntityExplanation(**entity, **values))
        found.append(explained)
    attributions.warn_if_incomplete([explanation for row in found for explanation in row], method)
    return found


def _find_label_tags(tagger: TokenClassifier, strategy: str) -> dict[str, np.ndarray]:
    """Return a dict that maps each entity label to the indices of its tags."""
    if strategy == "none":
        return {tag: np.array([index]) for index, tag in enumerate(tagger.tag_names)}
    parsed = parse_tags(tagger.tag_names)
    return {
        name: np.flatnonzero(parsed.types == index) for index, name in enumerate(parsed.type_names)
    }


def _find_overlapping_tokens(starts: np.ndarray, ends: np.ndarray, entity: Entity) -> np.ndarray:
    """Find all tokens that overlap an entity. Token starts and ends must be sorted."""
    first = np.searchsorted(ends, entity["start"], side="right")
    return np.arange(first, np.searchsorted(starts, entity["end"]))


def _make_weights(logits: np.ndarray, columns: np.ndarray, tags: np.ndarray) -> np.ndarray:
    """Create weights of shape (1, L, C) that average the highest tag logits of several tokens."""
    best = tags[logits[0][np.ix_(columns, tags)].argmax(axis=1)]
    weights = np.zeros_like(logits)
    weights[0, columns, best] = 1 / len(columns)
    return weights
