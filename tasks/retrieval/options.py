"""Options of the indexes, as types for editors and checks. They are read without the indexes."""

from __future__ import annotations

from typing import Literal, TypedDict

from encoder_zoo.common.validation import PositiveInt

Precision = Literal["float32", "int8", "binary"]
Engine = Literal["faiss", "hnsw"]


class DocumentColumns(TypedDict, total=False):
    """Keyword arguments with the columns of documents, or with names of columns."""

    ids: object
    metadata: object
    text_column: str | None


class VectorOptions(TypedDict, total=False):
    """Keyword arguments of `from_vectors`. Each kind of index accepts some of them."""

    prompt: str | None
    engine: Engine | None
    pool_factor: PositiveInt
    max_terms: PositiveInt | None


class BuildOptions(VectorOptions, total=False):
    """Keyword arguments of `build`. Each kind of index accepts some of them."""

    dim: PositiveInt | None


class IndexOptions(BuildOptions, DocumentColumns, total=False):
    """Keyword arguments of `build` of the indexes. Each kind of index accepts some of them."""

    precision: Precision
    batch_size: int | None
    keep_texts: bool


class OpenOptions(TypedDict, total=False):
    """Keyword arguments of `load` of the indexes. Only `VectorIndex` accepts `engine`."""

    engine: Engine | None
    verify: bool
