"""The results of search and reranking, and the keyword arguments of the methods of an embedder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

Precision = Literal["float32", "int8", "binary"]  # of a text's vector
TokenPrecision = Literal["float32", "int8", "binary"]  # of the vectors of its tokens
Engine = Literal["faiss"]


class Hit(TypedDict):
    """A document of an index: its number, its score, and its text if the index holds texts."""

    index: int
    score: float
    text: str | None


class RankedText(TypedDict):
    """One of the texts that a reranker was given: its number among them, its score, itself."""

    index: int
    score: float
    text: str


class RerankOptions(TypedDict, total=False):
    """Keyword arguments of the `search` of all indexes after `top_k`."""

    reranker: object
    candidates: int | None


class SearchOptions(RerankOptions, total=False):
    """Keyword arguments of `VectorIndex.search` after `top_k`."""

    prompt: str | None


class IndexOptions(TypedDict, total=False):
    """Keyword arguments of `VectorIndex.build` after `documents`."""

    precision: Precision
    prompt: str | None
    batch_size: int | None
    dim: int | None
    engine: Engine | None
    keep_texts: bool


class MultiVectorIndexOptions(TypedDict, total=False):
    """Keyword arguments of `MultiVectorIndex.build` after `documents`."""

    precision: TokenPrecision
    pool_factor: int
    prompt: str | None
    batch_size: int | None
    keep_texts: bool


class OpenOptions(TypedDict, total=False):
    """Keyword arguments of `VectorIndex.load` after the embedder."""

    engine: Engine | None
    verify: bool


class SimilarityOptions(TypedDict, total=False):
    """Keyword arguments of `evaluate_similarity`."""

    batch_size: int | None
    dim: int | None
    prompt: str | None


class RetrievalOptions(TypedDict, total=False):
    """Keyword arguments of `evaluate_retrieval`."""

    cutoffs: Sequence[int]
    batch_size: int | None
    dim: int | None
    query_prompt: str | None
    document_prompt: str | None


class MiningOptions(TypedDict, total=False):
    """Keyword arguments of `mine_negatives`."""

    relevant: Sequence[object] | None
    num_negatives: int
    skip_top: int
    top_k: int
    max_score: float | None
    absolute_margin: float | None
    relative_margin: float | None
    reranker: object
    batch_size: int | None
    query_prompt: str | None
    document_prompt: str | None
