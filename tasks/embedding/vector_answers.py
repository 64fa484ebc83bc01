"""Dense embeddings from whole texts or from windows.

Comments use these letters for shapes: N texts, W windows, D dimensions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.tokenizers.file_tokenizer import FileTokenizer
from encoder_zoo.tasks.base.answers import prepares_in_numpy
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.embedding.pair_columns import convert_single_texts
from encoder_zoo.tasks.embedding.searchable import EmbeddingAnswers
from encoder_zoo.tasks.embedding.text_embedder_preprocessor import TextEmbedderPreprocessor
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE
from encoder_zoo.tasks.retrieval.similarity import Similarity, scale_to_unit_length


@dataclasses.dataclass(frozen=True)
class VectorAnswers(EmbeddingAnswers):
    """The `Answers` of `TextEmbedder`. See `TextEmbedder` for the settings.

    Attributes:
        similarity_function: String. Name of the function that compares vectors.
        normalize: Boolean. Whether to normalize vectors to unit length.
        dim: Optional positive integer. Number of dimensions to which embeddings are truncated.
        average_rows: Optional function that computes the vectors of a static embedder without the
            model. Its arguments are texts (N,), a prompt, and whether long texts are not truncated.
    """

    preprocessor_class = TextEmbedderPreprocessor
    methods = ("embed",)
    index_kind = "vector_index"
    similarity_function: Similarity = "cosine"
    normalize: bool = True
    dim: PositiveInt | None = None
    average_rows: Callable[..., np.ndarray] | None = None

    def copy_with_model(self) -> Self:
        return dataclasses.replace(self, average_rows=None)

    @validate_arguments
    @prepares_in_numpy
    @skips_missing("texts")
    def embed(
        self,
        texts: Any,
        prompt: str | None = None,
        dim: PositiveInt | None = None,
        batch_size: PositiveInt | None = None,
        windows: Literal["mean"] | None = None,
        missing: Missing = "error",
    ) -> np.ndarray:
        """Compute the embeddings. See `TextEmbedder.embed` for details."""
        if isinstance(texts, str | bytes):
            return self.embed([texts], prompt, dim, batch_size, windows)[0]
        check_dim(dim, self.embedding_dim)
        column = convert_single_texts(texts)
        if self.average_rows is not None:
            return self.truncate(self.scale(self.average_rows(column, prompt, bool(windows))), dim)
        embed = self.embed_windows if windows else self.embed_whole
        return self.truncate(embed(column, prompt, batch_size or BATCH_SIZE), dim)

    def embed_whole(self, texts: xp.Tensor, prompt: str | None, batch_size: int):
        """Compute the vectors (N, D) for texts (N,), truncated to the model's maximum length."""
        if not texts.shape[0]:
            return np.zeros((0, self.embedding_dim), "float32")
        encode = functools.partial(self.preprocessor.encode, prompt=prompt)
        return self.runner.run_texts((texts,), batch_size, encode)

    def embed_windows(self, texts: xp.Tensor, prompt: str | None, batch_size: int):
        """Compute the vectors (N, D) for texts (N,) by averaging windows, weighted by tokens."""
        if isinstance(self.preprocessor.tokenizer, FileTokenizer):
            raise invalid("windows", "mean", "None for an export of static embeddings")
        examples = self.preprocessor.encode_windows(texts, prompt)
        lengths = examples["token_ids"].row_lengths().numpy()[:, None]  # (W, 1)
        specials = float(self.preprocessor.count_specials())
        weights = np.maximum(lengths - specials, 1)  # a text without tokens has one window
        if "pooled_from" in examples:  # the tokens of the prompt are not pooled
            before = np.asarray(examples["pooled_from"])[:, None]
            prompts = np.maximum(before - self.preprocessor.tokenizer.first_column, 0)
            weights = np.maximum(lengths - specials - prompts, 1)
        index = examples.pop("text_index").numpy()
        parts = np.zeros((len(index), self.embedding_dim), "float32")  # (W, D)
        for indices, values in self.runner.run_examples(examples, batch_size):
            parts[indices] = values
        total, vectors = np.zeros((len(texts), 1)), np.zeros((len(texts), parts.shape[1]))
        np.add.at(total, index, weights)
        np.add.at(vectors, index, parts * weights)
        return self.scale((vectors / np.maximum(total, 1)).astype("float32"))

    def scale(self, vectors: np.ndarray) -> np.ndarray:
        """Normalize vectors (N, D) to unit length if `normalize` is True."""
        return scale_to_unit_length(vectors) if self.normalize else vectors

    def truncate(self, vectors: np.ndarray, dim: int | None = None) -> np.ndarray:
        """Truncate vectors to `dim` dimensions. If `dim` is None, the model's `dim` is used."""
        dim = dim or self.dim
        if dim is None or dim == vectors.shape[1]:
            return vectors
        return self.scale(np.ascontiguousarray(vectors[:, :dim]))


def check_dim(dim: int | None, embedding_dim: int) -> None:
    """Check that `dim` is not larger than the embedding dimension."""
    if dim is not None and dim > embedding_dim:
        raise invalid("dim", dim, f"at most {embedding_dim}")
