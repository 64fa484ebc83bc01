"""Vectors of the tokens of texts in memory, in the order of the texts.

Comment letters: N texts, B batch, L sequence, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.late_interaction.preprocessor import DOCUMENT, QUERY
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.training.inference import example_outputs

if TYPE_CHECKING:
    from encoder_zoo.tasks.late_interaction.task import LateInteraction


def embed(model: LateInteraction, examples: dict, batch_size: int | None) -> list[np.ndarray]:
    """Return the vectors of encoded examples, (tokens, D) float32 of each.

    Args:
        model: that makes them.
        examples: of queries, or of documents.
        batch_size: default 32.
    """
    kept = scored_tokens(model, examples)
    found: list[np.ndarray] = [np.zeros((0, model.embedding_dim), "float32")] * len(kept)
    for indices, outputs in example_outputs(model, examples, batch_size):
        for i, vectors in zip(indices.tolist(), np.asarray(outputs), strict=True):
            found[i] = vectors[: len(kept[i])][kept[i]]
    return found


def scored_tokens(model: LateInteraction, examples: dict) -> list[np.ndarray]:
    """Return which tokens of every example get vectors, (tokens,) bool of each."""
    ids = examples["token_ids"]
    kept = np.ones(len(ids.flat_values), bool)
    if "text_length" not in examples:
        kept = ~np.asarray(model.preprocessor.skipped(ids.flat_values))
    return np.split(kept, np.asarray(ids.row_splits)[1:-1]) if ids.shape[0] else []


def signatures(model: LateInteraction) -> dict[str, Callable]:
    """Return the functions of an export; see `LateInteraction.signatures`."""
    preprocessor, width = model.preprocessor, model.embedding_dim

    def vectors_of(examples):
        inputs = preprocessor.pad(examples)
        vectors = keras.ops.reshape(model(inputs, training=False), (-1, width))
        return tf.boolean_mask(vectors, tf.reshape(inputs["scored_mask"], [-1]))

    def answer(text, prompt):
        examples = preprocessor.encode(text, prompt=prompt)
        lengths = examples["token_ids"].row_lengths()
        if prompt == DOCUMENT:
            ids = examples["token_ids"]
            kept = tf.cast(~preprocessor.skipped(ids.flat_values), tf.int64)
            lengths = tf.reduce_sum(ids.with_flat_values(kept), axis=1)
        vectors = in_graph_batches(vectors_of, examples, lengths, width)
        return {
            "embedding": vectors.to_tensor(shape=(None, None, width)),
            "length": tf.cast(lengths, tf.int32),
        }

    return {
        "serving_default": lambda text: answer(text, DOCUMENT),
        "query": lambda text: answer(text, QUERY),
        "document": lambda text: answer(text, DOCUMENT),
    }
