"""Index options as types for editors and checks, to be imported without the indexes."""

from __future__ import annotations

from typing import Literal, TypedDict

from encoder_zoo.common.validation import PositiveInt

Precision = Literal["float32", "int8", "binary"]
SearchEngine = Literal["faiss", "hnsw"]


class DocumentColumns(TypedDict, total=False):
    """Keyword arguments for document columns, or for column names."""

    ids: object
    metadata: object
    text_column: str | None


class VectorOptions(TypedDict, total=False):
    """Keyword arguments of `from_vectors`. Not all options are supported by every index."""

    prompt: str | None
    engine: SearchEngine | None
    pool_factor: PositiveInt
    max_terms: PositiveInt | None


class BuildOptions(VectorOptions, total=False):
    """Keyword arguments of `build`. Not all options are supported by every index."""

    dim: PositiveInt | None


class IndexOptions(BuildOptions, DocumentColumns, total=False):
    """Keyword arguments of `build` with columns. Not all options are supported by every index."""

    precision: Precision
    batch_size: int | None
    keep_texts: bool


class OpenOptions(TypedDict, total=False):
    """Keyword arguments of `load`. The option `engine` is for `VectorIndex` only."""

    engine: SearchEngine | None
    verify: bool
