"""Index classes for dense vectors, token vectors, sparse vectors and words.

Comments use these letters for shapes: N documents, D width, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, Unpack, get_type_hints

import numpy as np

from encoder_zoo.common import validation
from encoder_zoo.common.lazy import require
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.common.wording import describe_unknown_argument, invalid
from encoder_zoo.presets.files.manifest import MANIFEST_NAME
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.tasks.retrieval import engines, index_files, similarity, token_vectors
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.index import (
    FINGERPRINT_TEXTS,
    Index,
    QueryVectors,
    Store,
    has_numbers,
)
from encoder_zoo.tasks.retrieval.options import BuildOptions, Precision, SearchEngine, VectorOptions
from encoder_zoo.tasks.retrieval.ranking import check_texts
from encoder_zoo.tasks.retrieval.terms import Postings, WordCounts, bm25s, normalize_rows, sparse
from encoder_zoo.tasks.retrieval.token_vectors import TOKEN_STORES, TokenVectors
from encoder_zoo.tasks.retrieval.vectors import VECTOR_STORES, Float32Vectors, check_shape

if TYPE_CHECKING:
    from scipy.sparse import csr_array


Embedder = Annotated[
    Any,
    validation.Rule(
        lambda v: hasattr(v, "embed") and hasattr(v, "similarity_function"),
        "an embedder, with the attributes `embed` and `similarity_function`",
    ),
]


OPTION_RULES = {
    name: validation.get_rule(kind)
    for name, kind in get_type_hints(BuildOptions, include_extras=True).items()
}


class EmbeddedIndex(Index):
    """Base class for indexes of vectors from an embedder.

    Attributes:
        defaults: Dict mapping the `build` options of this kind of index to their defaults.
    """

    defaults: ClassVar[Mapping[str, object]]

    @classmethod
    @validation.validate_arguments
    @lock_weights
    def build(
        cls,
        embedder: Embedder,
        documents: object,
        precision: Precision | None = None,
        *,
        batch_size: validation.PositiveInt | None = None,
        keep_texts: bool = True,
        ids: object = None,
        metadata: object = None,
        text_column: validation.Name | None = None,
        **options: Unpack[BuildOptions],
    ) -> Self:
        """Embed documents and build an index.

        Args:
            embedder: The embedder for documents and queries.
            documents: The documents to index, as a list, array or column of texts, a table, or a
                list of dicts.
            precision: String. "float32", "int8" or "binary". Precision of the vectors in a
                `VectorIndex` or a `MultiVectorIndex`, described in these classes. The centroids of
                a `MultiVectorIndex` are computed from the documents, and also used for documents
                that are added later. Defaults to "float32".
            batch_size: Integer. The batch size used for the computation. Defaults to 32.
            keep_texts: Boolean. Whether to store the texts in the index. If False, "text" is None
                in the results. Defaults to True.
            ids: Optional list of unique strings or integers. Document ids. For a table, also the
                name of a column. By default, the column "id" is used if it exists.
            metadata: List of dicts with the fields for each document, or a table. If `documents` is
                a table, this can also be a list of columns to use as fields. By default, all other
                columns are used.
            text_column: String. Name of the text column, for tables. Defaults to "text".
            **options: Additional options. `prompt` is passed to `embed` and defaults to "document".
                For a `VectorIndex`, `dim` is passed to `embed`, and `engine` is the search engine.
                If None, NumPy compares the query with all vectors. "faiss" does the same in float32
                with faiss-cpu. "hnsw" is an approximate search in a graph, for a million documents
                or more, which finds most of the nearest documents. For a `MultiVectorIndex`,
                `pool_factor` is the number of tokens that are merged into one vector, and defaults
                to 1. For a `SparseIndex`, `max_terms` is passed to `embed`.

        Raises:
            ValueError: If `documents` is empty or contains an empty text, or if the engine does not
                support `precision` or the similarity function.
            ImportError: If faiss-cpu is not installed and the engine needs it, or if scipy is not
                installed and `pool_factor` is greater than 1.
        """
        options = cls._complete_options(embedder, precision, options)
        given = Documents.create(documents, ids, metadata, text_column)
        embedding = {name: options[name] for name in cls.of_documents}
        vectors = cls._embed_documents(embedder, given, batch_size=batch_size, **embedding)
        return cls._from_embedded(
            embedder, vectors, given if keep_texts else given.drop_texts(), options
        )

    @classmethod
    @validation.validate_arguments
    def from_vectors(
        cls,
        embedder: Embedder,
        vectors: Any,
        texts: object = None,
        precision: Precision | None = None,
        *,
        ids: object = None,
        metadata: object = None,
        **options: Unpack[VectorOptions],
    ) -> Self:
        """Build an index from precomputed vectors.

        Args:
            embedder: The embedder that computed the vectors.
            vectors: Float array of shape (N, D), a list of N arrays of shape (tokens, D) for a
                `MultiVectorIndex`, or a scipy sparse matrix of shape (N, V) for a `SparseIndex`.
                The vectors are copied.
            texts: Optional list of N strings. Texts that are returned in the results.
            precision: String. Precision of the vectors, as in `build`.
            ids, metadata: Optional lists of N ids, and of N dicts with fields. Default to None.
            **options: Additional options, as in `build`, except for `dim`.

        Raises:
            ValueError: If a value in `vectors` is not finite, if the embedder does not support the
                dimension of the vectors, or if `vectors`, `texts`, `ids` and `metadata` differ in
                length.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> vectors = embedder.embed(["A cat.", "A dog."], prompt="document")
            >>> [hit] = VectorIndex.from_vectors(embedder, vectors).search("A dog.", top_k=1)
            >>> hit["index"], hit["text"]
            (1, None)
        """
        options = cls._complete_options(embedder, precision, options)
        vectors = cls._check_vectors(embedder, vectors, options)
        is_list = isinstance(vectors, list)
        count, name = (len(vectors), "documents") if is_list else (vectors.shape[0], "vectors")
        texts = None if texts is None else check_texts(texts, "texts")
        documents = Documents.from_columns(texts, ids, metadata, count, name)
        return cls._from_embedded(embedder, vectors, documents, options)

    @classmethod
    def _complete_options(
        cls, embedder: Any, precision: str | None, options: Mapping
    ) -> dict[str, Any]:
        """Check the options, and add the defaults of this kind of index."""
        if precision is not None:
            options = {**options, "precision": precision}
        for name, value in options.items():
            if name not in cls.defaults:
                raise TypeError(
                    describe_unknown_argument(f"{cls.__name__}.build", name, cls.defaults)
                )
            if rule := OPTION_RULES.get(name):
                validation.check_argument(name, value, rule)
        found = {**cls.defaults, **options}
        engines.check_engine(
            found.get("engine"), found.get("precision"), embedder.similarity_function
        )
        return found

    @classmethod
    def _from_embedded(
        cls, embedder: Any, vectors: Any, documents: Documents, options: Mapping
    ) -> Self:
        """Create an index from documents and the vectors from `_embed`."""
        store = cls._make_store(vectors, embedder.similarity_function, options)
        names = {"prompt", *cls.rules} - {"precision"}
        return cls(embedder, store, documents, **{name: options[name] for name in names})

    @staticmethod
    def _check_vectors(embedder: Any, vectors: Any, options: Mapping) -> Any:
        """Check vectors, and return a copy in the format of `_embed`."""
        raise NotImplementedError

    @staticmethod
    def _make_store(vectors: Any, function: str, options: Mapping) -> Store:
        """Create the store from the vectors from `_embed`."""
        raise NotImplementedError


class DenseIndex(EmbeddedIndex):
    """Base class for indexes of float vectors, which can be stored with less precision."""

    @property
    def dim(self) -> int:
        """Return the vector dimension."""
        return self._store.width

    @property
    def precision(self) -> str:
        """Return the vector precision."""
        return self._store.precision


class VectorIndex(DenseIndex):
    """Semantic search with a single vector per document. Created by `TextEmbedder.index`.

        index = embedder.index(documents)
        index.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]
        index.save("index")
        index = embedder.load_index("index")

    By default, the query is compared with all documents. The comparison runs block by block, so its
    memory usage does not depend on the size of the index, and no training is required. Queries are
    always float32. Documents are stored with one of these precisions:

    - "float32": exact search with 4 bytes per dimension, or 150 MB for 100,000 vectors with 384
      dimensions.
    - "int8": a quarter of this size, with 256 steps per dimension over the range of its values.
    - "binary": a sign bit per dimension, in addition to int8. Only the signs are compared with all
      documents, which is many times faster for a single query. The 20 nearest documents per result
      (and at least 200 in total) are then sorted by their int8 vectors.

    For a million or more documents, use `engine="hnsw"` to build a graph on the vectors in float32
    or int8. Building the graph takes minutes, but a search only compares a few thousand vectors. It
    misses a few of the nearest documents.

    Args:
        embedder: Embedder for the queries: a `TextEmbedder`, or any object with `embed`,
            `embedding_dim`, `dim` and `similarity_function`.
        store: The vectors of the documents. See `tasks.retrieval.vectors`.
        documents: `Documents`, or list of strings. The N documents to search in.
        prompt: Optional string. Prompt for documents that are added later.
        fingerprint: Optional array. Vectors of `index.FINGERPRINT_TEXTS`, computed by the embedder.

    Attributes:
        embedder, documents, prompt: See the arguments.

    Example:
        >>> from encoder_zoo import TextEmbedder
        >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
        >>> index = VectorIndex.build(embedder, ["A cat.", "Tax law.", "A dog."], "int8")
        >>> index
        <VectorIndex: 3 texts; vectors of 256, int8; cosine>
        >>> [hit["text"] for hit in index.search("Tax law.", top_k=1)]
        ['Tax law.']
    """

    kind = "vector_index"
    types: ClassVar = {precision: store.types for precision, store in VECTOR_STORES.items()}
    optional_types: ClassVar = engines.GRAPH_TYPES
    rules: ClassVar = {"precision": validation.one_of(*VECTOR_STORES)}
    of_documents = ("prompt", "dim")
    defaults: ClassVar = {"precision": "float32", "prompt": "document", "dim": None, "engine": None}

    @staticmethod
    def _check_vectors(embedder, vectors, options) -> np.ndarray:
        vectors = similarity.check_vectors(vectors, embedder.embedding_dim)
        return similarity.check_and_normalize(vectors, embedder.similarity_function, "vectors")

    @staticmethod
    def _make_store(vectors, function, options) -> Float32Vectors:
        store = VECTOR_STORES[options["precision"]].create(vectors, function)
        return engines.add_engine(store, options["engine"])

    def __repr__(self) -> str:
        kind = "vectors" if self.texts is None else "texts"
        engine = "" if self._store.engine is None else f", {self._store.engine}"
        return (
            f"<VectorIndex: {len(self):,} {kind}; vectors of {self.dim}, {self.precision}{engine}; "
            f"{self.embedder.similarity_function}>"
        )

    @property
    def vectors(self) -> np.ndarray:
        """The vectors that are searched, float32 (N, D).

        They are normalized to unit length if the similarity is "cosine", and rounded if the
        precision is lower than float32.
        """
        return self._store.rows(slice(None))

    @staticmethod
    def _embed(embedder, texts, name, dim=None, **options) -> np.ndarray:
        found = np.asarray(embedder.embed(texts, dim=dim, **options))
        vectors = np.array(similarity.check_embedded(texts, found, dim), "float32")
        return similarity.check_and_normalize(vectors, embedder.similarity_function, name)

    def _embed_queries(self, queries: list[str], **options: Any) -> np.ndarray:
        return super()._embed_queries(queries, dim=self.dim, **options)

    def _get_query_vectors(self, queries: object) -> QueryVectors | None:
        if not has_numbers(queries):
            return None
        found = np.asarray(queries)
        if not found.size and found.ndim < 2:
            return None  # an empty list of queries
        if found.ndim not in (1, 2) or found.shape[-1] != self.dim:
            raise ValueError(
                f"`queries` has shape {found.shape}. Expected texts, or vectors with {self.dim} "
                "dimensions."
            )
        vectors = np.array(np.atleast_2d(found), "float32")
        vectors = similarity.check_and_normalize(
            vectors, self.embedder.similarity_function, "queries"
        )
        return QueryVectors(vectors, len(vectors), found.ndim == 1)

    @classmethod
    def _open(cls, path, arrays, precision, function) -> Float32Vectors:
        store = VECTOR_STORES[precision].open(path, arrays, function=function)
        shape = len(FINGERPRINT_TEXTS), store.width
        check_shape(path, "fingerprint", arrays["fingerprint"].shape, shape)
        if "links" not in arrays:
            return store
        require(engines.faiss)
        return engines.GraphVectors.open_graph(path, store, arrays)

    @classmethod
    @validation.validate_arguments
    def load(
        cls,
        folder: str | os.PathLike[str],
        embedder: Embedder,
        engine: SearchEngine | None = None,
        verify: bool = True,
    ) -> Self:
        """Load an index from a folder, as written by `save`. The vectors are memory-mapped.

        Args:
            folder: String or path. Folder written by `save`.
            embedder: The embedder used to build the index, or an equal embedder.
            engine: Optional string. Search engine, as in `build`. If None, a saved graph is loaded
                into memory, if there is one.
            verify: Boolean. Whether to verify the file checksums before loading. Defaults to True.

        Raises:
            FileNotFoundError: If `folder` does not exist.
            ValueError: If the index is damaged, belongs to another index class, or was built with
                another embedder.
        """
        index = super().load(folder, embedder, verify)
        engines.check_engine(engine, index.precision, embedder.similarity_function)
        index._store = engines.add_engine(index._store, engine)
        return index


class MultiVectorIndex(DenseIndex):
    """Search with a vector per token. Created by `LateInteraction.index`.

        index = colbert.index(documents, pool_factor=2)
        index.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]
        index.save("index")
        index = colbert.load_index("index")

    Documents are scored with MaxSim: the sum over the query tokens of the maximum dot product with
    a document token. Queries are always float32. Documents are stored with one of these precisions.
    The sizes are for a document with 180 tokens and 128 dimensions:

    - "float32": 92 kB. Exact search over all tokens of all documents. No training is required.
    - "int8": 24 kB. Each vector is stored as the index of the nearest centroid and the difference
      to the centroid, in 255 steps. A search first compares the query with the centroids of all
      documents. The 16 best documents per result (and at least 512 in total) are then scored with
      their vectors.
    - "binary": 4 kB. Like "int8", but with a single bit per dimension for the difference, so the
      scores are coarse. Use `search(..., reranker=model)` to embed the best 50 texts again and sort
      them by exact scores.

    With `pool_factor=2`, tokens with similar meanings are merged into a single vector. This halves
    the index size and the search time.

    Args:
        embedder: Embedder for the queries: a `LateInteraction`, or any object with `embed`,
            `embedding_dim` and `similarity_function`.
        store: The token vectors of the documents. See `tasks.retrieval.token_vectors`.
        documents: `Documents`, or list of strings. The N documents to search in.
        prompt: Optional string. Prompt for documents that are added later.
        pool_factor: Positive integer. Pool factor for documents that are added later.
        fingerprint: Optional array. Vectors of `index.FINGERPRINT_TEXTS`, computed by the embedder.

    Attributes:
        embedder, documents, prompt, pool_factor: See the arguments.

    Source: Khattab and Zaharia 2020, ColBERT, section 3; Santhanam et al. 2022, PLAID, section 4,
    for the search with centroids.

    Example:
        >>> class Letters:  # a simple embedder: one vector per letter
        ...     embedding_dim, similarity_function = 256, "maxsim"
        ...     def embed(self, texts, prompt=None, batch_size=None):
        ...         return [np.eye(256, dtype="float32")[list(text.encode())] for text in texts]
        >>> index = MultiVectorIndex.build(Letters(), ["A cat.", "Tax law."])
        >>> index
        <MultiVectorIndex: 2 texts, 14 vectors of 256, float32>
        >>> index.search("Tax", top_k=1)
        [{'index': 1, 'score': 3.0, 'text': 'Tax law.'}]
    """

    kind = "multi_vector_index"
    types: ClassVar = {
        p: {**store.types, "ends": ("int64", 1)} for p, store in TOKEN_STORES.items()
    }
    rules: ClassVar = {
        "precision": validation.one_of(*TOKEN_STORES),
        "pool_factor": validation.min_integer(1),
    }
    of_documents = ("prompt", "pool_factor")
    defaults: ClassVar = {"precision": "float32", "prompt": "document", "pool_factor": 1}
    pool_factor: int

    @staticmethod
    def _check_vectors(embedder, vectors, options) -> list[np.ndarray]:
        return token_vectors.prepare_tokens(vectors, embedder.embedding_dim, options["pool_factor"])

    @staticmethod
    def _make_store(vectors, function, options) -> TokenVectors:
        return TokenVectors.create(vectors, options["precision"])

    def __repr__(self) -> str:
        kind = "documents" if self.texts is None else "texts"
        return (
            f"<MultiVectorIndex: {len(self):,} {kind}, {len(self._store.store):,} vectors of "
            f"{self.dim}, {self.precision}>"
        )

    @property
    def vectors(self) -> list[np.ndarray]:
        """The vectors that are searched, a list of float32 arrays (tokens, D).

        The vectors are pooled, and rounded if the precision is lower than float32.
        """
        return [self._store.get_document_vectors(i) for i in range(len(self))]

    @staticmethod
    def _embed(embedder, texts, name, pool_factor=1, **options) -> list[np.ndarray]:
        if pool_factor > 1:
            require(token_vectors.hierarchy)
        found = similarity.check_embedded(texts, list(embedder.embed(texts, **options)))
        return token_vectors.prepare_tokens(found, embedder.embedding_dim, pool_factor)

    def _embed_queries(self, queries: list[str], **options: Any) -> Sequence[np.ndarray]:
        vectors = super()._embed_queries(queries, **options)
        return similarity.scale_queries(vectors, self.embedder.similarity_function)

    def _get_query_vectors(self, queries: object) -> QueryVectors | None:
        if not has_numbers(queries):
            return None
        single = np.ndim(queries[0]) < 2
        documents = [queries] if single else list(queries)
        try:
            vectors = token_vectors.prepare_tokens(documents, self.dim)
        except ValueError as error:
            raise ValueError(f"`queries` contains neither texts nor vectors: {error}") from None
        vectors = similarity.scale_queries(vectors, self.embedder.similarity_function)
        return QueryVectors(vectors, len(vectors), single)

    @classmethod
    def _open(cls, path, arrays, precision, function) -> TokenVectors:
        return TokenVectors.open(path, arrays, precision)


class SparseIndex(EmbeddedIndex):
    """Search with sparse vectors. Created by `SparseEncoder.index`.

        index = encoder.index(documents)
        index.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]
        index.save("index")
        index = encoder.load_index("index")

    A sparse index is an inverted index. For each term in the vocabulary, it stores the documents
    with this term, and the weight of the term in each document. A search only reads the lists of
    the query terms. The scores are exact.

    Args:
        embedder: Embedder for the queries, usually a `SparseEncoder`.
        store: The inverted index, `Postings`.
        documents: `Documents`, or list of strings. The N documents to search in.
        prompt: Optional string. Prompt for documents that are added later.
        max_terms: Optional positive integer. Maximum number of terms for documents that are added
            later.
        fingerprint: Optional array. Vectors of `index.FINGERPRINT_TEXTS`, computed by the encoder.

    Attributes:
        embedder, documents, prompt, max_terms: See the arguments.

    Example:
        >>> from encoder_zoo import SparseEncoder
        >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased", max_terms=50)
        >>> index = SparseIndex.build(encoder, ["A cat.", "Tax law.", "A dog."])
        >>> index
        <SparseIndex: 3 texts; 50 terms each; dot>
        >>> len(index.search("Tax law.", top_k=1))
        1
    """

    kind = "sparse_index"
    types: ClassVar = {None: Postings.types}
    rules: ClassVar = {"max_terms": validation.get_rule(validation.PositiveInt | None)}
    of_documents = ("prompt", "max_terms")
    defaults: ClassVar = {"prompt": "document", "max_terms": None}
    max_terms: int | None

    @staticmethod
    def _check_vectors(embedder, vectors, options) -> csr_array:
        width = embedder.embedding_dim
        known = sparse.issparse(vectors)
        if not known or vectors.shape[1:] != (width,) or not vectors.shape[0]:
            raise invalid(
                "vectors", vectors, f"a sparse matrix of shape (N, {width}), as returned by `embed`"
            )
        return normalize_rows(vectors, embedder.similarity_function)

    @staticmethod
    def _make_store(vectors, function, options) -> Postings:
        return Postings.create(vectors)

    def __repr__(self) -> str:
        kind = "vectors" if self.texts is None else "texts"
        return (
            f"<SparseIndex: {len(self):,} {kind}; {self.mean_terms:.0f} terms each; "
            f"{self.embedder.similarity_function}>"
        )

    @property
    def mean_terms(self) -> float:
        """The mean number of terms per document."""
        return self._store.weights.nnz / len(self)

    @property
    def vectors(self) -> csr_array:
        """The vectors (N, V). For "cosine", they are normalized to unit length."""
        return self._store.vectors

    @staticmethod
    def _embed(embedder, texts, name, **options) -> csr_array:
        vectors = similarity.check_embedded(
            texts, embedder.embed(texts, **options), embedder.embedding_dim
        )
        return normalize_rows(vectors, embedder.similarity_function)

    def _get_query_vectors(self, queries: object) -> QueryVectors | None:
        if not sparse.issparse(queries):
            return super()._get_query_vectors(queries)
        if queries.shape[-1] != self._store.width:
            raise ValueError(
                f"`queries` has shape {queries.shape}. Expected texts, or a sparse matrix of shape "
                f"(N, {self._store.width})."
            )
        single = len(queries.shape) == 1
        rows = queries.reshape(1, -1) if single else queries
        vectors = normalize_rows(rows, self.embedder.similarity_function)
        return QueryVectors(vectors, vectors.shape[0], single)

    @classmethod
    def _open(cls, path, arrays, precision, function) -> Postings:
        shape = arrays["fingerprint"].shape
        check_shape(path, "fingerprint", shape, (len(FINGERPRINT_TEXTS), shape[1]))
        return Postings.open(path, arrays, width=shape[1])


class BM25Index(Index):
    """Keyword search with BM25, which does not require a model.

        words = ez.BM25Index(documents)
        words.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]

    A word is a sequence of letters (including accents and vowel signs), digits and `_`. Words are
    converted to lower case and to Unicode normalization form C. Each Han or Hiragana character is
    treated as a word. Only documents that share a word with the query are found. This class
    requires the package bm25s.

    Args:
        documents: The documents to index, as a list, array or column of texts, a table, or a list
            of dicts.
        ids, metadata, text_column: See `VectorIndex.build` for details.

    Raises:
        ValueError: If `documents` is empty or contains an empty text.
        ImportError: If bm25s is not installed.

    Source: Robertson and Zaragoza 2009, The Probabilistic Relevance Framework: BM25 and Beyond,
    section 3. Words are similar to the words in Unicode Standard Annex 29, section 4. In contrast,
    apostrophes and periods always separate words, and text in Thai and similar scripts is not
    segmented, because this would require a dictionary.
    """

    kind = "bm25_index"
    of_documents = ()

    @validation.validate_arguments
    def __init__(
        self,
        documents: object,
        ids: object = None,
        metadata: object = None,
        text_column: validation.Name | None = None,
    ):
        require(bm25s)
        given = Documents.create(documents, ids, metadata, text_column)
        super().__init__(None, WordCounts(given.texts), given)

    def __repr__(self) -> str:
        return f"<BM25Index: {len(self):,} texts>"

    @staticmethod
    def _embed(embedder, texts, name, **options) -> list[str]:
        return texts

    @classmethod
    @validation.validate_arguments
    def load(cls, folder: str | os.PathLike[str], verify: bool = True) -> Self:
        """Load an index from a folder written by `save`. The words are counted again.

        Args:
            folder: String or path. Folder written by `save`.
            verify: Boolean. Whether to verify the file checksums before loading. Defaults to True.

        Raises:
            FileNotFoundError: If `folder` does not exist.
            ValueError: If `folder` does not contain a BM25 index, or if a file is damaged.
        """
        with OpenFolder(
            folder, [MANIFEST_NAME, index_files.TEXTS_FILE, index_files.DOCUMENTS]
        ) as files:
            index_files.check_manifest(files, cls.kind, verify)
            documents = index_files.read_documents(files)
            if not documents.texts:
                raise ValueError(
                    f"{files.path / index_files.TEXTS_FILE} is damaged: it contains no texts."
                )
            return cls(documents)
