"""The indexes by what they hold: vectors, vectors of tokens, sparse vectors, or words.

Comment letters: N documents, D width, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypedDict, Unpack, get_type_hints

import numpy as np

from encoder_zoo.common.lazy import require
from encoder_zoo.common.validation import (
    Name,
    PositiveInt,
    Rule,
    check_argument,
    integer_from,
    one_of,
    rule_of,
    validate_arguments,
)
from encoder_zoo.common.weights_lock import reads_weights
from encoder_zoo.common.wording import invalid, unknown_argument
from encoder_zoo.presets.files.manifest import NAME
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.engines import (
    GRAPH_TYPES,
    Engine,
    GraphVectors,
    check_engine,
    faiss,
    with_engine,
)
from encoder_zoo.tasks.retrieval.index import (
    FINGERPRINT_TEXTS,
    GivenVectors,
    Index,
    Store,
    are_numbers,
)
from encoder_zoo.tasks.retrieval.index_files import (
    DOCUMENTS,
    TEXTS,
    checked_manifest,
    read_documents,
)
from encoder_zoo.tasks.retrieval.similarity import (
    checked_and_normalized,
    checked_vectors,
    made_of,
    queries_for,
)
from encoder_zoo.tasks.retrieval.terms import Postings, WordCounts, bm25s, normalized_for, sparse
from encoder_zoo.tasks.retrieval.token_vectors import (
    TOKEN_STORES,
    TokenVectors,
    hierarchy,
    prepared_tokens,
)
from encoder_zoo.tasks.retrieval.vectors import (
    VECTOR_STORES,
    Float32Vectors,
    Precision,
    check_shape,
)

if TYPE_CHECKING:
    from typing import Self

    from scipy.sparse import csr_array


Embedder = Annotated[
    Any,
    Rule(
        lambda v: hasattr(v, "embed") and hasattr(v, "similarity_function"),
        "an embedder, with its embed and similarity_function",
    ),
]


class VectorOptions(TypedDict, total=False):
    """Keyword arguments of `from_vectors`; each kind of index has some of them."""

    prompt: str | None
    engine: Engine | None
    pool_factor: PositiveInt
    max_terms: PositiveInt | None


class BuildOptions(VectorOptions, total=False):
    """Keyword arguments of `build`; each kind of index has some of them."""

    dim: PositiveInt | None


RULES = {
    name: rule_of(kind) for name, kind in get_type_hints(BuildOptions, include_extras=True).items()
}


class EmbeddedIndex(Index):
    """Documents as an embedder's vectors: the base of the indexes of `TextEmbedder.index`,
    `LateInteraction.index` and `SparseEncoder.index`.

    Attributes:
        defaults: Dict. The options of `build` that a kind of index has, and their defaults.
    """

    defaults: ClassVar[Mapping[str, object]]

    @classmethod
    @validate_arguments
    @reads_weights
    def build(
        cls,
        embedder: Embedder,
        documents: object,
        precision: Precision | None = None,
        *,
        batch_size: PositiveInt | None = None,
        keep_texts: bool = True,
        ids: object = None,
        metadata: object = None,
        text_column: Name | None = None,
        **options: Unpack[BuildOptions],
    ) -> Self:
        """Return an index of texts.

        Args:
            embedder: The embedder of the documents and of queries.
            documents: A list, array or column of texts, a table, or a list of dicts.
            precision: String. Precision of the vectors of a `VectorIndex` or a `MultiVectorIndex`,
                "float32", "int8" or "binary", see there. Centroids of tokens are learned from these
                documents, and used for those that are added later, too. Defaults to "float32".
            batch_size: Integer. Batch size of `embed`.
            keep_texts: Boolean. Whether results have the text itself; without it, "text" is None.
                Defaults to True.
            ids: List of different texts or integers, one for each document; of a table the name of
                a column, "id" if it has that.
            metadata: List of dicts with the fields of each document, or a table of them; of a table
                of documents the names of columns, in place of all others.
            text_column: String. The column of texts of a table. Defaults to "text".
            **options: `prompt` of `embed`, default "document"; of a `VectorIndex` also `dim` of
                `embed` and `engine`: None compares all vectors, in NumPy; "faiss" the same by
                faiss-cpu, in float32; "hnsw" finds most of the nearest by faiss-cpu's graph, for a
                million documents and more; of a `MultiVectorIndex` also `pool_factor`, the number
                of tokens that become one vector, default 1; of a `SparseIndex` also `max_terms` of
                `embed`.

        Raises:
            ValueError: If `documents` or one of them is empty, or if the engine does not search in
                this precision or by the embedder's similarity.
            ImportError: If the engine's package faiss-cpu is not installed, or scipy for a
                `pool_factor` above 1.
        """
        options = cls._checked(embedder, precision, options)
        given = Documents.of(documents, ids, metadata, text_column)
        embedding = {name: options[name] for name in cls.of_documents}
        vectors = cls._embed_documents(embedder, given, batch_size=batch_size, **embedding)
        return cls._of(embedder, vectors, given if keep_texts else given.without_texts(), options)

    @classmethod
    @validate_arguments
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
        """Return an index of vectors that the embedder made before.

        Args:
            embedder: The embedder of the vectors.
            vectors: Floats, which are copied: an array (N, D); for a `MultiVectorIndex` a list of N
                arrays (tokens, D); for a `SparseIndex` a sparse matrix (N, V) of scipy.
            texts: N texts to return with the results, or None.
            precision: As for `build`.
            ids, metadata: N of each to return with the results, or None.
            **options: As for `build`, without `dim`.

        Raises:
            ValueError: If `vectors` does not consist of vectors of finite numbers as wide as the
                embedder's, or if the numbers of vectors, texts, ids and metadata differ.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> vectors = embedder.embed(["A cat.", "A dog."], prompt="document")
            >>> [hit] = VectorIndex.from_vectors(embedder, vectors).search("A dog.", top_k=1)
            >>> hit["index"], hit["text"]
            (1, None)
        """
        options = cls._checked(embedder, precision, options)
        vectors = cls._given(embedder, vectors, options)
        is_list = isinstance(vectors, list)
        count, name = (len(vectors), "documents") if is_list else (vectors.shape[0], "vectors")
        documents = Documents.of_vectors(texts, ids, metadata, count, name)
        return cls._of(embedder, vectors, documents, options)

    @classmethod
    def _checked(cls, embedder: Any, precision: str | None, options: Mapping) -> dict[str, Any]:
        """Return the options of a kind of index, checked, with its defaults."""
        if precision is not None:
            options = {**options, "precision": precision}
        for name, value in options.items():
            if name not in cls.defaults:
                raise TypeError(unknown_argument(f"{cls.__name__}.build", name, cls.defaults))
            if rule := RULES.get(name):
                check_argument(name, value, rule)
        found = {**cls.defaults, **options}
        check_engine(found.get("engine"), found.get("precision"), embedder.similarity_function)
        return found

    @classmethod
    def _of(cls, embedder: Any, vectors: Any, documents: Documents, options: Mapping) -> Self:
        """Return an index of vectors as `_embed` returns them, and of their documents."""
        store = cls._stored(vectors, embedder.similarity_function, options)
        names = {"prompt", *cls.rules} - {"precision"}
        return cls(embedder, store, documents, **{name: options[name] for name in names})

    @staticmethod
    def _given(embedder: Any, vectors: Any, options: Mapping) -> Any:
        """Return vectors of N documents as `_embed` returns them, checked and copied."""
        raise NotImplementedError

    @staticmethod
    def _stored(vectors: Any, function: str, options: Mapping) -> Store:
        """Return the store of vectors as `_embed` returns them, compared by a similarity."""
        raise NotImplementedError


class VectorIndex(EmbeddedIndex):
    """Find the documents that are nearest to a text. Made by `TextEmbedder.index`.

        index = embedder.index(documents)
        index.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]
        index.save("index")
        index = embedder.load_index("index")

    The search compares a query with all documents, in blocks: no training, memory that does not
    grow with the index. `precision` is that of the documents' vectors, the query is always float32:

    - "float32": exact. 4 bytes for a number, 150 MB for 100,000 vectors of 384.
    - "int8": a quarter of that. 256 steps for each dimension over its range in the corpus.
    - "binary": int8, and the signs, one bit for a number. Only the signs are compared with all
      documents, many times faster for a single query; the order of the 20 nearest for each result,
      200 at least, is that of int8.

    For a million documents and more `engine="hnsw"` makes a graph of their vectors, in float32 or
    int8, which takes minutes; a search then compares a few thousand of them. A few of the nearest
    are missed.

    Args:
        embedder: of the queries; a `TextEmbedder`, or an object with its `embed`,
            `embedding_dim`, `dim` and `similarity_function`.
        store: the vectors, see `tasks.retrieval.vectors`.
        documents: N of them.
        prompt: of further documents.
        fingerprint: the embedder's vectors of `index.FINGERPRINT_TEXTS`.

    Attributes:
        embedder, documents, prompt: as given.

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
    optional_types: ClassVar = GRAPH_TYPES
    rules: ClassVar = {"precision": one_of(*VECTOR_STORES)}
    of_documents = ("prompt", "dim")
    defaults: ClassVar = {
        "precision": "float32",
        "prompt": "document",
        "dim": None,
        "engine": None,
    }

    @staticmethod
    def _given(embedder, vectors, options) -> np.ndarray:
        vectors = checked_vectors(vectors, embedder.embedding_dim)
        return checked_and_normalized(vectors, embedder.similarity_function, "vectors")

    @staticmethod
    def _stored(vectors, function, options) -> Float32Vectors:
        store = VECTOR_STORES[options["precision"]].of(vectors, function)
        return with_engine(store, options["engine"])

    def __repr__(self) -> str:
        kind = "vectors" if self.texts is None else "texts"
        engine = "" if self._store.engine is None else f", {self._store.engine}"
        return (
            f"<VectorIndex: {len(self):,} {kind}; vectors of {self.dim}, {self.precision}{engine}; "
            f"{self.embedder.similarity_function}>"
        )

    @property
    def dim(self) -> int:
        """Return the width of the vectors."""
        return self._store.width

    @property
    def precision(self) -> str:
        """Return the precision of the vectors."""
        return self._store.precision

    @property
    def vectors(self) -> np.ndarray:
        """Return the vectors (N, D) float32, as the search sees them: of unit length where the
        similarity is "cosine", and rounded where the precision is lower."""
        return self._store.rows(slice(None))

    @staticmethod
    def _embed(embedder, texts, name, dim=None, **options) -> np.ndarray:
        found = np.asarray(embedder.embed(texts, dim=dim, **options))
        vectors = np.array(made_of(texts, found, dim), "float32")
        return checked_and_normalized(vectors, embedder.similarity_function, name)

    def _embed_queries(self, queries: list[str], **options: Any) -> np.ndarray:
        return super()._embed_queries(queries, dim=self.dim, **options)

    def _given_vectors(self, queries: object) -> GivenVectors | None:
        if not are_numbers(queries):
            return None
        found = np.asarray(queries)
        if not found.size and found.ndim < 2:
            return None  # no queries
        if found.ndim not in (1, 2) or found.shape[-1] != self.dim:
            raise invalid(
                "queries.shape", found.shape, f"texts, or vectors of {self.dim} dimensions"
            )
        vectors = np.array(np.atleast_2d(found), "float32")
        vectors = checked_and_normalized(vectors, self.embedder.similarity_function, "queries")
        return GivenVectors(vectors, len(vectors), found.ndim == 1)

    @staticmethod
    def _fingerprint_of(embedder: Any, width: int) -> np.ndarray:
        found = embedder.embed(list(FINGERPRINT_TEXTS), prompt="query", dim=width)
        return np.array(found, "float32")

    @classmethod
    def _opened(cls, path, arrays, precision, function) -> Float32Vectors:
        store = VECTOR_STORES[precision].opened(path, arrays, function=function)
        shape = len(FINGERPRINT_TEXTS), store.width
        check_shape(path, "fingerprint", arrays["fingerprint"].shape, shape)
        if "links" not in arrays:
            return store
        require(faiss)
        return GraphVectors.opened_on(path, store, arrays)

    @classmethod
    @validate_arguments
    def load(
        cls,
        folder: str | os.PathLike[str],
        embedder: Embedder,
        engine: Engine | None = None,
        verify: bool = True,
    ) -> Self:
        """Return the index that `save` wrote. Its vectors are read from the file when needed.

        Args:
            folder: written by `save`.
            embedder: the one that the index was built with, or an equal one.
            engine: as for `build`; None: a graph if one was saved, which is read into memory.
            verify: whether to verify the checksums of the files.

        Raises:
            FileNotFoundError: If the folder does not exist.
            ValueError: If the folder does not hold such an index or is damaged, or if the index was
                built with another embedder.
        """
        index = super().load(folder, embedder, verify)
        check_engine(engine, index.precision, embedder.similarity_function)
        index._store = with_engine(index._store, engine)
        return index


class MultiVectorIndex(EmbeddedIndex):
    """Find the documents that match a text best, token by token. Made by `LateInteraction.index`.

        index = colbert.index(documents, pool_factor=2)
        index.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]
        index.save("index")
        index = colbert.load_index("index")

    The score of a document is MaxSim: the sum over the query's tokens of the largest product with
    one of the document's. `precision` is that of the documents' vectors, the query is always
    float32. Of a document of 180 tokens and vectors of 128 numbers:

    - "float32": 92 kB. A query is compared with all tokens of all documents: nothing is learned,
      nothing is approximated.
    - "int8": 24 kB. A vector is the number of its nearest centroid, and the difference from it in
      255 steps. The documents are compared by the centroids of their tokens; the
      best of them, 16 for each result, 512 at least, are scored by their vectors.
    - "binary": 4 kB. The same, with one bit for each number of the difference. Scores are coarse:
      `search(..., reranker=model)` embeds the best 50 texts again and orders them by exact ones.

    `pool_factor=2` halves all of these, and the time of a search: tokens with like meanings become
    one.

    Args:
        embedder: of the queries; a `LateInteraction`, or an object with its `embed`,
            `embedding_dim` and `similarity_function`.
        tokens: the vectors.
        documents: N of them.
        prompt: of further documents.
        pool_factor: of further documents.
        fingerprint: the embedder's vectors of `index.FINGERPRINT_TEXTS`.

    Attributes:
        embedder, documents, prompt, pool_factor: as given.

    Source: Khattab and Zaharia 2020, ColBERT, section 3; Santhanam et al. 2022, PLAID, section 4,
    for the search by centroids.

    Example:
        >>> class Letters:  # in place of an embedder: a text as vectors of its letters
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
    rules: ClassVar = {"precision": one_of(*TOKEN_STORES), "pool_factor": integer_from(1)}
    of_documents = ("prompt", "pool_factor")
    defaults: ClassVar = {"precision": "float32", "prompt": "document", "pool_factor": 1}
    pool_factor: int

    @staticmethod
    def _given(embedder, vectors, options) -> list[np.ndarray]:
        return prepared_tokens(vectors, embedder.embedding_dim, options["pool_factor"])

    @staticmethod
    def _stored(vectors, function, options) -> TokenVectors:
        return TokenVectors.of(vectors, options["precision"])

    def __repr__(self) -> str:
        kind = "documents" if self.texts is None else "texts"
        return (
            f"<MultiVectorIndex: {len(self):,} {kind}, {len(self._store.store):,} vectors of "
            f"{self.dim}, {self.precision}>"
        )

    @property
    def dim(self) -> int:
        """Return the width of the vectors."""
        return self._store.width

    @property
    def precision(self) -> str:
        """Return the precision of the vectors."""
        return self._store.precision

    @property
    def vectors(self) -> list[np.ndarray]:
        """Return the vectors of each document, (tokens, D) float32, as the search sees them:
        pooled, and rounded where the precision is lower."""
        return [self._store.document(i) for i in range(len(self))]

    @staticmethod
    def _embed(embedder, texts, name, pool_factor=1, **options) -> list[np.ndarray]:
        if pool_factor > 1:
            require(hierarchy)
        found = list(embedder.embed(texts, **options))
        return prepared_tokens(made_of(texts, found), embedder.embedding_dim, pool_factor)

    def _embed_queries(self, queries: list[str], **options: Any) -> Sequence[np.ndarray]:
        vectors = super()._embed_queries(queries, **options)
        return queries_for(vectors, self.embedder.similarity_function)

    def _given_vectors(self, queries: object) -> GivenVectors | None:
        if not are_numbers(queries):
            return None
        single = np.ndim(queries[0]) < 2
        documents = [queries] if single else list(queries)
        try:
            vectors = prepared_tokens(documents, self.dim)
        except ValueError as error:
            raise ValueError(f"queries are no texts, and of the vectors: {error}") from None
        vectors = queries_for(vectors, self.embedder.similarity_function)
        return GivenVectors(vectors, len(vectors), single)

    @staticmethod
    def _fingerprint_of(embedder: Any, width: int) -> np.ndarray:
        found = embedder.embed(list(FINGERPRINT_TEXTS), prompt="query")
        return np.concatenate(found).astype("float32")

    @classmethod
    def _opened(cls, path, arrays, precision, function) -> TokenVectors:
        return TokenVectors.opened(path, arrays, precision)


class SparseIndex(EmbeddedIndex):
    """Find the documents that share terms with a text. Made by `SparseEncoder.index`.

        index = encoder.index(documents)
        index.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]
        index.save("index")
        index = encoder.load_index("index")

    For each term of the vocabulary it holds the documents that have it, and their weights. A
    search reads the lists of the query's terms alone: no document without any of them is looked
    at, and no score is approximate.

    Args:
        embedder: of the queries; a `SparseEncoder`.
        store: the documents of each term.
        documents: N of them.
        prompt: of further documents.
        max_terms: of further documents.
        fingerprint: the encoder's vectors of `index.FINGERPRINT_TEXTS`.

    Attributes:
        embedder, documents, prompt, max_terms: as given.

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
    rules: ClassVar = {"max_terms": rule_of(PositiveInt | None)}
    of_documents = ("prompt", "max_terms")
    defaults: ClassVar = {"prompt": "document", "max_terms": None}
    max_terms: int | None

    @staticmethod
    def _given(embedder, vectors, options) -> csr_array:
        width = embedder.embedding_dim
        known = sparse.issparse(vectors)
        if not known or vectors.shape[1:] != (width,) or not vectors.shape[0]:
            raise invalid("vectors", vectors, f"a sparse matrix (N, {width}), as of embed")
        return normalized_for(vectors, embedder.similarity_function)

    @staticmethod
    def _stored(vectors, function, options) -> Postings:
        return Postings.of(vectors)

    def __repr__(self) -> str:
        kind = "vectors" if self.texts is None else "texts"
        return (
            f"<SparseIndex: {len(self):,} {kind}; {self.mean_terms:.0f} terms each; "
            f"{self.embedder.similarity_function}>"
        )

    @property
    def mean_terms(self) -> float:
        """Return the mean number of terms of a document."""
        return self._store.weights.nnz / len(self)

    @property
    def vectors(self) -> csr_array:
        """Return the vectors (N, V), of unit length where the similarity is "cosine"."""
        return self._store.vectors

    @staticmethod
    def _embed(embedder, texts, name, **options) -> csr_array:
        vectors = made_of(texts, embedder.embed(texts, **options), embedder.embedding_dim)
        return normalized_for(vectors, embedder.similarity_function)

    def _given_vectors(self, queries: object) -> GivenVectors | None:
        if not sparse.issparse(queries):
            return super()._given_vectors(queries)
        if queries.shape[-1] != self._store.width:
            raise invalid("queries", queries, f"texts, or a sparse matrix (N, {self._store.width})")
        single = len(queries.shape) == 1
        rows = queries.reshape(1, -1) if single else queries
        vectors = normalized_for(rows, self.embedder.similarity_function)
        return GivenVectors(vectors, vectors.shape[0], single)

    @staticmethod
    def _fingerprint_of(embedder: Any, width: int) -> np.ndarray:
        return embedder.embed(list(FINGERPRINT_TEXTS), prompt="query").toarray()

    @classmethod
    def _opened(cls, path, arrays, precision, function) -> Postings:
        shape = arrays["fingerprint"].shape
        check_shape(path, "fingerprint", shape, (len(FINGERPRINT_TEXTS), shape[1]))
        return Postings.opened(path, arrays, width=shape[1])


class BM25Index(Index):
    """Find the documents that share the rarest words with a text, without any model.

        words = ez.BM25Index(documents)
        words.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]

    Words are runs of letters, their accents and vowel signs, digits and `_`, in lower case and
    Unicode's form NFC; of Chinese and Japanese, each Han or Hiragana character is one. Documents
    that share none with a query are not found. Needs the package bm25s.

    Args:
        documents: a list, array or column of texts, a table, or rows that are dicts.
        ids, metadata, text_column: as of `VectorIndex.build`.

    Raises:
        ValueError: If `documents` or one of them is empty.
        ImportError: If the package bm25s is not installed.

    Source: Robertson and Zaragoza 2009, The Probabilistic Relevance Framework: BM25 and Beyond,
    section 3. Words: as in Unicode Standard Annex 29, section 4, but for Katakana and Hangul, whose
    runs are words, and text of Thai and its like, which would need a dictionary.
    """

    kind = "bm25_index"
    of_documents = ()

    @validate_arguments
    def __init__(
        self,
        documents: object,
        ids: object = None,
        metadata: object = None,
        text_column: Name | None = None,
    ):
        require(bm25s)
        given = Documents.of(documents, ids, metadata, text_column)
        super().__init__(None, WordCounts(given.texts), given)

    def __repr__(self) -> str:
        return f"<BM25Index: {len(self):,} texts>"

    @staticmethod
    def _embed(embedder, texts, name, **options) -> list[str]:
        return texts

    @classmethod
    @validate_arguments
    def load(cls, folder: str | os.PathLike[str], verify: bool = True) -> Self:
        """Return an index of the texts that `save` wrote, whose words are counted again.

        Args:
            folder: written by `save`.
            verify: whether to verify the checksums of the files.

        Raises:
            FileNotFoundError: If the folder does not exist.
            ValueError: If the folder does not hold such an index, or is damaged.
        """
        with OpenFolder(folder, [NAME, TEXTS, DOCUMENTS]) as files:
            checked_manifest(files, cls.kind, verify)
            documents = read_documents(files)
            if not documents.texts:
                raise ValueError(f"{files.path / TEXTS} is damaged: it has no texts.")
            return cls(documents)
