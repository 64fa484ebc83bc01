"""Token embeddings for late interaction.

Comments use these letters for shapes: D dimensions, K additional texts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.base.answers import prepares_in_numpy
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.embedding.late_interaction_preprocessor import (
    DOCUMENT,
    QUERY,
    LateInteractionPreprocessor,
)
from encoder_zoo.tasks.embedding.pair_columns import PAIR_COLUMNS, convert_single_texts
from encoder_zoo.tasks.embedding.searchable import EmbeddingAnswers
from encoder_zoo.tasks.retrieval.similarity import TokenSimilarity, compute_max_sim, scale_queries


@dataclasses.dataclass(frozen=True)
class TokenAnswers(EmbeddingAnswers):
    """The `Answers` of `LateInteraction`.

    Attributes:
        similarity_function: String. Name of the function that compares the tokens of two texts.
    """

    preprocessor_class = LateInteractionPreprocessor
    methods = ("embed", "embed_with_spans")
    returns_lists = True
    index_kind = "multi_vector_index"
    similarity_prompts = QUERY, DOCUMENT
    similarity_function: TokenSimilarity = "maxsim"

    @prepares_in_numpy
    def predict_texts(self, x: Any, batch_size: int | None = None) -> list[np.ndarray]:
        """Compute the vectors for texts, or scores (K,) for queries with several texts."""
        first, *others = PAIR_COLUMNS.convert(x)
        if not others:
            return self.embed(first, batch_size=batch_size)
        queries = self.embed(first, QUERY, batch_size)
        queries, count = scale_queries(queries, self.similarity_function), len(others)
        documents = xp.reshape(xp.stack(others, axis=1), [-1])
        documents = self.embed(documents, batch_size=batch_size)
        return [
            compute_max_sim([query], documents[i * count : (i + 1) * count])[0]
            for i, query in enumerate(queries)
        ]

    def read_vectors(self, x: Any, name: str) -> tuple[list[np.ndarray], bool] | None:
        single = isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.ndim == 2
        given = [x] if single else x
        is_list = isinstance(given, list | tuple | np.ndarray) and len(given) > 0
        if not (is_list and isinstance(given[0], np.ndarray) and given[0].dtype.kind == "f"):
            return None
        for i, vectors in enumerate(given):
            if np.shape(vectors)[1:] != (self.embedding_dim,) or not len(vectors):
                raise invalid(
                    f"{name}[{i}].shape",
                    np.shape(vectors),
                    f"(tokens, {self.embedding_dim}), with at least one token",
                )
        return list(given), single

    @validate_arguments
    @prepares_in_numpy
    @skips_missing("texts")
    def embed(
        self: Any,
        texts: object,
        prompt: str | None = "document",
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> list[np.ndarray] | np.ndarray:
        """Compute the token embeddings for texts.

        Texts that are too long will be truncated, and a log message reports how many.

        Args:
            texts: A text, or a list, array, tensor or column of texts.
            prompt: "query" or "document". Queries will be padded with [MASK] tokens, which also
                have vectors. For documents, words on the skiplist are ignored. Defaults to
                "document".
            batch_size: Integer. The batch size used for the computation. Defaults to 32.
            missing: "none" or "error". How to handle rows without text (e.g. None, NaN or blank
                strings). "none" returns None for these rows. "error" raises an error with the index
                of the first missing row. Defaults to "error".

        Returns:
            List of float32 arrays (tokens, D), in the same order as the texts. For a single text, a
            single array is returned.

        Raises:
            ValueError: If a text is empty, or if `prompt` is not "query" or "document".

        Example:
            >>> from encoder_zoo import LateInteraction
            >>> model = LateInteraction.from_preset("bert_nano_en_uncased", dim=16)
            >>> [vectors.shape for vectors in model.embed(["Cats sleep.", "Cats"])]
            [(6, 16), (5, 16)]
            >>> model.embed("Cats", prompt="query").shape
            (32, 16)
        """
        if isinstance(texts, str | bytes):
            return self.embed([texts], prompt, batch_size)[0]
        examples = self.preprocessor.encode(convert_single_texts(texts), prompt=prompt)
        return self._embed_examples(examples, batch_size)

    @validate_arguments
    @prepares_in_numpy
    @skips_missing("texts")
    def embed_with_spans(
        self: Any,
        texts: object,
        prompt: str | None = "document",
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> list[tuple[np.ndarray, np.ndarray]] | tuple[np.ndarray, np.ndarray]:
        """Compute the token embeddings for texts, together with the token offsets.

        Args:
            texts, prompt, batch_size: See `embed`.
            missing: "none" or "error". How to handle rows without text (e.g. None, NaN or blank
                strings). "none" returns None for these rows. "error" raises an error with the index
                of the first missing row. Defaults to "error".

        Returns:
            List with a pair of arrays per text, in the same order as the texts. The first array
            contains the token vectors (tokens, D), float32. The second array contains the start and
            end offset for each token (tokens, 2), int32. Offsets are -1 for special tokens, query
            padding and prompts. For a single text, a single pair is returned.

        Example:
            >>> from encoder_zoo import LateInteraction
            >>> model = LateInteraction.from_preset("bert_nano_en_uncased", dim=16)
            >>> vectors, spans = model.embed_with_spans("Cats sleep.")
            >>> ["Cats sleep."[begin:end] for begin, end in spans if end > 0]
            ['Cat', 's', 'sleep']
        """
        if isinstance(texts, str | bytes):
            return self.embed_with_spans([texts], prompt, batch_size)[0]
        column = convert_single_texts(texts)
        examples = self.preprocessor.encode(column, prompt=prompt)
        kept = self.mark_scored_tokens(examples)
        spans = self.preprocessor.find_token_spans(column, prompt) if kept else []
        vectors = self._embed_examples(examples, batch_size)
        return [(v, s[k]) for v, s, k in zip(vectors, spans, kept, strict=True)]

    def _embed_examples(self, examples: dict, batch_size: int | None) -> list[np.ndarray]:
        """Compute the vectors for encoded examples, (tokens, D) float32 for each example."""
        kept = self.mark_scored_tokens(examples)
        found: list[np.ndarray] = [np.zeros((0, self.embedding_dim), "float32")] * len(kept)
        for indices, outputs in self.runner.run_examples(examples, batch_size):
            for i, vectors in zip(indices.tolist(), np.asarray(outputs), strict=True):
                found[i] = vectors[: len(kept[i])][kept[i]]
        return found

    def mark_scored_tokens(self, examples: dict) -> list[np.ndarray]:
        """Return a boolean mask (tokens,) for the tokens with vectors in each example."""
        ids, kept = (
            examples["token_ids"],
            np.asarray(self.preprocessor.mark_scored_tokens(examples)),
        )
        return np.split(kept, np.asarray(ids.row_splits)[1:-1]) if ids.shape[0] else []
