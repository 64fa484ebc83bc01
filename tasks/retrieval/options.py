"""Types of index options, for editors and type checkers."""

from __future__ import annotations

from typing import Literal, TypedDict

from encoder_zoo.common.validation import PositiveInt

Precision = Literal["float32", "int8", "binary"]
SearchEngine = Literal["faiss", "hnsw"]


class DocumentColumns(TypedDict, total=False):
    """Types of the keyword arguments for ids, fields and the text column."""

    ids: object
    metadata: object
    text_column: str | None


class VectorOptions(TypedDict, total=False):
    """Types of the keyword arguments of `from_vectors`. Each index supports some of the options."""

    prompt: str | None
    engine: SearchEngine | None
    pool_factor: PositiveInt
    max_terms: PositiveInt | None


class BuildOptions(VectorOptions, total=False):
    """Types of the keyword arguments of `build`. Each index supports some of the options."""

    dim: PositiveInt | None


class IndexOptions(BuildOptions, DocumentColumns, total=False):
    """Keyword arguments for `index`: the options of `build`, ids and fields."""

    precision: Precision
    batch_size: int | None
    keep_texts: bool


class OpenOptions(TypedDict, total=False):
    """Types of the keyword arguments of `load`. The option `engine` is only for `VectorIndex`."""

    engine: SearchEngine | None
    verify: bool
