"""Vectors of the tokens of texts, for late interaction.

Comment letters: D dimensions.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.base.answers import Answers
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.embedding.pair_columns import only_column


@dataclasses.dataclass(frozen=True)
class TokenAnswers(Answers):
    """Answers of a `LateInteraction`.

    Attributes:
        embedding_dim: Positive integer. Number of dimensions.
    """

    embedding_dim: int

    @validate_arguments
    @skips_missing("texts")
    def embed(
        self,
        texts: Any,
        prompt: str | None = "document",
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> list[np.ndarray] | np.ndarray:
        """Embed the tokens of texts; see `LateInteraction.embed`."""
        if isinstance(texts, str | bytes):
            return self.embed([texts], prompt, batch_size)[0]
        examples = self.preprocessor.encode(only_column(texts), prompt=prompt)
        return self._embed_examples(examples, batch_size)

    @validate_arguments
    @skips_missing("texts")
    def embed_with_spans(
        self,
        texts: Any,
        prompt: str | None = "document",
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> Any:
        """Embed the tokens of texts, and find their characters; see `LateInteraction`."""
        if isinstance(texts, str | bytes):
            return self.embed_with_spans([texts], prompt, batch_size)[0]
        column = only_column(texts)
        examples = self.preprocessor.encode(column, prompt=prompt)
        kept = self.scored_tokens(examples)
        spans = self.preprocessor.spans(column, prompt) if kept else []
        vectors = self._embed_examples(examples, batch_size)
        return [(v, s[k]) for v, s, k in zip(vectors, spans, kept, strict=True)]

    def _embed_examples(self, examples: dict, batch_size: int | None) -> list[np.ndarray]:
        """Compute the vectors of encoded examples, (tokens, D) float32 of each."""
        kept = self.scored_tokens(examples)
        found: list[np.ndarray] = [np.zeros((0, self.embedding_dim), "float32")] * len(kept)
        for indices, outputs in self.runner.run_examples(examples, batch_size):
            for i, vectors in zip(indices.tolist(), np.asarray(outputs), strict=True):
                found[i] = vectors[: len(kept[i])][kept[i]]
        return found

    def scored_tokens(self, examples: dict) -> list[np.ndarray]:
        """Return which tokens of every example get vectors, (tokens,) bool of each."""
        ids, kept = examples["token_ids"], np.asarray(self.preprocessor.scored(examples))
        return np.split(kept, np.asarray(ids.row_splits)[1:-1]) if ids.shape[0] else []
