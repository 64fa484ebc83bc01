"""Base class for indexes: search, evaluation, adding and removing documents, and files.

Comments use these letters for shapes: N documents, Q queries, D width.
"""

from __future__ import annotations

import copy
import functools
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypedDict, Unpack, overload

import numpy as np

from encoder_zoo.common import validation
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.retrieval import evaluation
from encoder_zoo.tasks.retrieval.documents import Documents, Where
from encoder_zoo.tasks.retrieval.index_files import Types, read_index, write_index
from encoder_zoo.tasks.retrieval.options import DocumentColumns
from encoder_zoo.tasks.retrieval.ranking import Hit, check_texts, rerank, rerank_texts

DEFAULT_CANDIDATES = 50  # number of documents that a reranker scores
# Documents to search per group. If there are too few groups, the number is multiplied by it again.
DOCUMENTS_PER_GROUP = 4
SELECTION_OPTIONS = ("where", "min_score", "group_by", "offset")  # options of a search
# The vectors of these texts identify an embedder: its weights, pooling, prompts and tokenizer.
FINGERPRINT_TEXTS = ("Where is the key?", "A naïve 东西 of 12.5 kg, isn't it?")
MAX_VECTOR_DISTANCE = 0.05  # fraction of a vector's norm. bfloat16 instead of float32 changes 0.01.
# Fraction of a vector's norm. Vectors of the same embedder in the same process differ less.
MAX_ROUNDING_DISTANCE = 1e-4


class Store(Protocol):
    """Protocol for the data of an index in memory: vectors or words of N documents.

    Attributes:
        arrays: Dict mapping names to the arrays that are saved.
        nbytes: Integer. Size in memory, in bytes.
    """

    arrays: dict[str, np.ndarray]
    nbytes: int

    def __len__(self) -> int:
        """Return the number of documents."""
        ...

    def join(self, vectors: Any) -> Store:
        """Return a store with more documents at the end."""
        ...

    def take(self, indices: np.ndarray) -> Store:
        """Return a store with only the documents at the given indices, in this order."""
        ...

    def find_nearest(
        self, queries: Any, k: int, among: np.ndarray | None = None
    ) -> tuple[Sequence, Sequence]:
        """Find the `k` nearest documents for each query.

        Return the indices and the scores for each query, from nearest to farthest. Ties keep their
        order. If `among` is given, only the documents with these indices are searched.
        """
        ...


class QueryOptions(TypedDict, total=False):
    """Types of the `embed` arguments for queries. `max_terms` is only for `SparseEncoder`."""

    prompt: str | None
    batch_size: int | None
    max_terms: int | None


class SearchOptions(QueryOptions, total=False):
    """Types of the keyword arguments of `Index.search` after `top_k`."""

    reranker: object
    candidates: int | None
    where: Where | None
    min_score: float | None
    group_by: str | None
    offset: int


class QueryVectors(NamedTuple):
    """Query vectors that were passed to `search` instead of texts.

    Attributes:
        vectors: Vectors in the format of the store.
        count: Integer. Number of vectors.
        single: Boolean. Whether a single vector was passed.
    """

    vectors: Any
    count: int
    single: bool


def has_numbers(values: object) -> bool:
    """Return whether the values are numbers, or lists or arrays of numbers.

    Example:
        >>> has_numbers([0.5, 1.0]), has_numbers(np.zeros((2, 3))), has_numbers(["a"])
        (True, True, False)
    """
    while isinstance(values, list | tuple) and len(values):
        values = values[0]
    if isinstance(values, float | int):
        return True
    return getattr(getattr(values, "dtype", None), "kind", None) in ("f", "i", "u")


class Index:
    """Base class for semantic search indexes.

    A subclass implements `build`, and converts texts to the format of the store.

    Args:
        embedder: Embedder for queries, and for documents that are added later. None if the store
            contains texts.
        store: `Store` that finds the documents.
        documents: `Documents`, or a list of texts without ids and fields. If None, there are no
            texts in the index.
        fingerprint: Optional array. Vectors of `FINGERPRINT_TEXTS`, computed when the index was
            built. If None, the vectors are computed.
        **settings: Options for documents that are added later, for example `prompt`. They are set
            as attributes.

    Attributes:
        embedder, documents: See the arguments.
        kind: String. Kind of index in the manifest.
        types: Dict mapping precisions to the types of the arrays in the store.
        optional_types: Types of the optional arrays. A file contains either all or none of them.
        rules: Dict of validation rules for the attributes in the manifest.
        of_documents: Names of the attributes that are passed to `_embed` for documents that are
            added later.

    Example:
        >>> class Longest(Index):
        ...     def __init__(self, texts):
        ...         self.documents = Documents(texts)
        ...     def __len__(self):
        ...         return len(self.texts)
        ...     def _find_documents(self, queries, top_k, among=None):
        ...         best = sorted(range(len(self)), key=lambda i: -len(self.texts[i]))[:top_k]
        ...         return [(best, [float(len(self.texts[i])) for i in best]) for _ in queries]
        >>> Longest(["a", "abc"]).search("any", top_k=1)
        [{'index': 1, 'score': 3.0, 'text': 'abc'}]
    """

    kind: ClassVar[str]
    types: ClassVar[Mapping[str | None, Types]] = {None: {}}
    optional_types: ClassVar[Types] = {}
    rules: ClassVar[Mapping[str, validation.Rule]] = {}
    of_documents: ClassVar[tuple[str, ...]] = ("prompt",)
    embedder: Any = None
    documents: Documents
    prompt: str | None

    @lock_weights
    def __init__(
        self,
        embedder: Any,
        store: Any,
        documents: Documents | list[str] | None,
        fingerprint: np.ndarray | None = None,
        **settings: object,
    ):
        self.embedder = embedder
        self.documents = documents if isinstance(documents, Documents) else Documents(documents)
        self._store = store
        vars(self).update(settings)
        if embedder is not None:
            if fingerprint is None:
                fingerprint = self._compute_fingerprint(embedder, store.width)
            self._fingerprint = fingerprint
            self._known = get_weights_version(embedder), fingerprint

    def __len__(self) -> int:
        return len(self._store)

    def __getstate__(self) -> dict:
        """Return the attributes to copy. The copy gets a new lock."""
        return {name: value for name, value in vars(self).items() if name != "_changing"}

    @property
    def _lock(self) -> threading.RLock:
        """The lock for changes and copies."""
        return vars(self).setdefault("_changing", threading.RLock())

    def _copy_for_search(self) -> Self:
        """Return a copy for a search. Changes in other threads do not affect the copy."""
        with self._lock:
            return copy.copy(self)

    @property
    def _models_to_lock(self) -> list:
        """Return the models that embed queries."""
        return [self.embedder]

    @property
    def texts(self) -> list[str] | None:
        """Return the document texts, or None."""
        return self.documents.texts

    @property
    def ids(self) -> list[str | int] | None:
        """Return the document ids, or None."""
        return self.documents.ids

    @property
    def metadata(self) -> list[dict[str, Any]] | None:
        """Return the document fields, or None."""
        return self.documents.metadata

    @property
    def nbytes(self) -> int:
        """Return the size of the vectors or BM25 statistics in bytes, in memory or in a file."""
        return self._store.nbytes

    # -- search --------------------------------------------------------------------------------

    @overload
    def search(
        self, queries: str, top_k: int | None = 10, **options: Unpack[SearchOptions]
    ) -> list[Hit]: ...
    @overload
    def search(
        self, queries: object, top_k: int | None = 10, **options: Unpack[SearchOptions]
    ) -> list[list[Hit]]: ...
    @validation.validate_arguments
    @lock_weights
    def search(
        self,
        queries: object,
        top_k: validation.PositiveInt | None = 10,
        reranker: Any = None,
        candidates: validation.PositiveInt | None = None,
        where: Any = None,
        min_score: validation.Number | None = None,
        group_by: validation.Name | None = None,
        offset: validation.NonNegativeInt = 0,
        **options: Unpack[QueryOptions],
    ) -> list[Hit] | list[list[Hit]]:
        """Search for the nearest documents to each query.

        Args:
            queries: String, or list, array or column of strings. Vectors of the same embedder are
                also accepted: an array of shape (D,) or (Q, D), for a `MultiVectorIndex` an array
                of shape (tokens, D) or a list of such arrays, and for a `SparseIndex` a sparse
                matrix of shape (Q, V). For example, `index.vectors[3]` finds documents similar to
                the fourth document.
            top_k: Optional integer. Number of documents to return per query. Sparse and keyword
                search only return documents that share a term with the query. If None, all
                documents are returned. Defaults to 10.
            reranker: Optional `Reranker`, or any object with `rank(query, texts, top_k)`. It scores
                and sorts the nearest documents.
            candidates: Optional integer. Number of documents that are passed to the reranker, at
                least `top_k`. Defaults to 50.
            where: Optional dict or function. Only documents that match this filter are searched,
                for example {"year": {"$gte": 2023}, "lang": ["en", "de"]}. All conditions must be
                true. A list matches any of its values. The operators are "$gt", "$gte", "$lt",
                "$lte", "$eq", "$ne", "$in" and "$nin", and one dict can contain several operators.
                A condition can also be a function of the value, and `where` can be a function of
                the dict with all fields. Documents without the field do not match. Dates are
                compared as strings in the ISO 8601 format.
            min_score: Optional float. Minimum score of the returned documents. With a reranker,
                this is the minimum score from the reranker. If None, this filter is disabled.
            group_by: Optional string. Name of a field. For each value of this field, only the best
                document is returned, for example the best chunk of each book.
            offset: Integer. Number of hits to skip at the beginning, for pagination. Defaults to 0.
            **options: Options of `embed`: `prompt`, which defaults to "query", `batch_size` and,
                for a `SparseEncoder`, `max_terms`. A `HybridIndex` only supports `batch_size`.

        Returns:
            List of hits for a single query, or one list of hits per query. A hit is a dict
            `{"index", "score", "text"}`, with "id" and "metadata" if the documents have them. The
            score is computed by the reranker, if there is one, or with the `similarity_function` of
            the embedder. Nearer documents have higher scores, so distances are negative. Documents
            with equal scores keep their order.

        Raises:
            ValueError: If a query is empty, if a field in `where` or `group_by` is unknown, if the
                embedder has changed since the index was built, or if a reranker is passed and the
                index has no texts.


        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> laws = [{"id": "a", "text": "Tax law.", "year": 1990},
            ...         {"id": "b", "text": "Tax law, amended.", "year": 2024}]
            >>> [hit] = embedder.index(laws).search("Tax law.", where={"year": 2024})
            >>> hit["id"], hit["text"], hit["metadata"]
            ('b', 'Tax law, amended.', {'year': 2024})
            >>> index = embedder.index(["A cat.", "Tax law."])
            >>> [[hit["index"] for hit in hits] for hits in index.search(["Tax law.", "A cat."])]
            [[1, 0], [0, 1]]
        """
        self._check_options(reranker, candidates, options)
        single = isinstance(queries, str | bytes)
        queries = [queries] if single else queries
        if (given := self._get_query_vectors(queries)) is None:
            texts = check_texts(queries, "queries", least=0)
        elif reranker is not None or options:
            unfit = "reranker" if reranker is not None else ", ".join(options)
            raise ValueError(f"`queries` contains vectors, but {unfit} requires texts. Pass texts.")
        else:
            single, texts, options = given.single, [""] * given.count, {"vectors": given.vectors}
        self._check_unchanged()
        now, last = self._copy_for_search(), offset + (top_k or len(self))
        among = None if where is None else now.documents.where(where)
        hits: list[list[Hit]] = [[] for _ in texts]
        if texts and (among is None or len(among)):
            wanted = last if reranker is None else max(last, candidates or DEFAULT_CANDIDATES)
            hits = now._find_best_hits(texts, wanted, among, group_by, options)
        if reranker is not None:
            pairs = zip(texts, hits, strict=True)
            hits = [rerank(reranker, *one, last) if one[1] else [] for one in pairs]
        if min_score is not None:
            hits = [[hit for hit in found if hit["score"] >= min_score] for found in hits]
        found = [some[offset:last] for some in hits]
        return found[0] if single else found

    def _get_query_vectors(self, queries: object) -> QueryVectors | None:
        """Return queries that were passed as vectors, or None if the queries are texts."""
        if has_numbers(queries):
            raise ValueError(
                f"`queries` contains vectors, but a {type(self).__name__} only supports texts. "
                "Pass texts."
            )
        return None

    def _find_best_hits(
        self,
        texts: list[str],
        wanted: int,
        among: np.ndarray | None,
        group_by: str | None,
        options: Mapping[str, Any],
    ) -> list[list[Hit]]:
        """Find the best documents for each query, or the best document of each group.

        Args:
            texts: List of strings. Queries.
            wanted: Integer. Number of documents or groups to return.
            among, options: See `_find_documents`.
            group_by: Optional string. Name of the field to group by.
        """
        count = len(self) if among is None else len(among)
        options = options if among is None else {**options, "among": among}
        if group_by is None:
            return [
                self._make_hits(*one)
                for one in self._find_documents(texts, min(wanted, count), **options)
            ]
        groups, depth = self.documents.get_group_values(group_by, among), wanted
        while True:  # search for more documents until there are enough groups
            depth = min(DOCUMENTS_PER_GROUP * depth, count)
            found = [self._make_hits(*one) for one in self._find_documents(texts, depth, **options)]
            best = []
            for hits in found:
                firsts = {}
                for hit in hits:
                    firsts.setdefault(groups[hit["index"]], hit)
                best.append(list(firsts.values())[:wanted])
            # A query with fewer hits than `depth` has no more hits.
            enough = [len(b) >= wanted or len(h) < depth for b, h in zip(best, found, strict=True)]
            if depth == count or all(enough):
                return best

    def _check_options(self, reranker: Any, candidates: int | None, options: Mapping) -> None:
        if options and self.embedder is None:
            raise TypeError(
                f"{type(self).__name__} does not embed queries. Remove {', '.join(options)}."
            )
        if reranker is not None and not hasattr(reranker, "rank"):
            raise invalid(
                "reranker", reranker, "an object with rank(query, texts, top_k), such as a Reranker"
            )
        if candidates is not None and reranker is None:
            raise ValueError(
                f"`candidates` is {candidates}, but `reranker` is None. Pass reranker=..., too."
            )
        if reranker is not None and self.texts is None:
            raise ValueError(
                "The index has no texts, but `reranker` requires texts. Build the index from texts."
            )

    def _find_documents(
        self,
        queries: list[str],
        top_k: int,
        among: np.ndarray | None = None,
        vectors: Any = None,
        **options: Any,
    ) -> Iterable[tuple[Sequence[int], Sequence[float]]]:
        """Yield the indices and the scores of the nearest documents for each query.

        Args:
            queries: Non-empty list of strings.
            top_k: Integer. Number of documents to find, at most N.
            among: Integer array. Indices of the documents to search in. If None, all documents are
                searched.
            vectors: Optional vectors of the queries. If None, the queries are embedded.
            **options: Options of `embed`.
        """
        vectors = self._embed_queries(queries, **options) if vectors is None else vectors
        return zip(*self._store.find_nearest(vectors, top_k, among), strict=True)

    def _make_hits(self, indices: Sequence[int], scores: Sequence[float]) -> list[Hit]:
        pairs = zip(np.asarray(indices).tolist(), np.asarray(scores).tolist(), strict=True)
        return [{"index": i, "score": s, **self.documents.describe_document(i)} for i, s in pairs]

    @validation.validate_arguments
    @lock_weights
    def evaluate(
        self,
        queries: object,
        relevant: Sequence[object],
        cutoffs: Sequence[int] = (1, 5, 10),
        **options: Unpack[SearchOptions],
    ) -> dict[str, float]:
        """Evaluate search on queries with known relevant documents.

        Duplicate documents are merged. For ties, each metric is averaged over all possible
        orders.

        Args:
            queries: List, array or column of strings. In the BEIR format, `queries` is a dict {id:
                text}, and `relevant` is a dict {query id: {document id: grade}}.
            relevant: List with one entry per query: the index of the relevant document, a list of
                indices, or a dict {index: grade}. If the documents have ids, pass ids instead of
                indices. With `group_by`, pass values of the field, for example the ids of the
                original documents of chunks.
            cutoffs: Sequence of integers. Values of k, the number of top documents that count.
                Defaults to (1, 5, 10).
            **options: Options of `search`, for example `reranker` or `group_by="document"`. With a
                reranker, documents that are not passed to the reranker count as not found.

        Returns:
            Dict with "ndcg@k", "mrr@k", "recall@k" and "accuracy@k" for each cutoff k, and
            "map@100".

        Raises:
            ValueError: See `TextEmbedder.evaluate_retrieval`.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> index = embedder.index(["A cat.", "Tax law.", "A dog."])
            >>> index.evaluate(["Tax law.", "A cat."], [1, 2], cutoffs=[1, 2])["recall@1"]
            0.5
        """
        cutoffs = evaluation.check_cutoffs(cutoffs)
        queries, relevant, _ = evaluation.convert_to_columns(queries, relevant)
        group_by = options.get("group_by")
        if self.ids is not None or group_by is not None:
            evaluation.check_by_query(relevant)
            relevant = [self._find_relevant(entry, group_by) for entry in relevant]
        if group_by is not None:
            firsts = self.documents.find_group_starts(group_by)
            names = [str(firsts[value]) for value in self.documents.get_group_values(group_by)]
        else:
            names = [str(i) for i in range(len(self))] if self.texts is None else self.texts
        texts = evaluation.merge_judgements(queries, names, relevant)
        number_of = {name: number for number, name in enumerate(texts.documents)}
        reranker, candidates = options.pop("reranker", None), options.pop("candidates", None)
        chosen = {name: options.pop(name) for name in SELECTION_OPTIONS if name in options}
        self._check_options(reranker, candidates, options)

        def search(
            some: Sequence[int], k: int, **reranking: Any
        ) -> Iterator[tuple[list[int], list[float]]]:
            asked = [texts.queries[i] for i in some]
            for hits in self.search(asked, k, **reranking, **chosen, **options):
                numbers = [number_of[names[hit["index"]]] for hit in hits]
                yield numbers, [hit["score"] for hit in hits]

        if reranker is None:
            return evaluation.compute_search_metrics(
                search, texts.relevant, cutoffs, len(number_of), len(names)
            )
        every, candidates = range(len(texts.queries)), candidates or DEFAULT_CANDIDATES
        if group_by is not None:  # the reranker reads the best document of each group
            found = search(every, candidates, reranker=reranker, candidates=candidates)
            rankings, scores = zip(*found, strict=True)
            return evaluation.compute_ranking_metrics(rankings, texts.relevant, cutoffs, scores)
        read = search(every, candidates)
        rankings, scores = [], []
        for query, (numbers, _) in zip(texts.queries, read, strict=True):
            documents = [texts.documents[number] for number in numbers]
            order, ordering = rerank_texts(reranker, query, documents)
            rankings.append([numbers[i] for i in order])
            scores.append(ordering)
        return evaluation.compute_ranking_metrics(rankings, texts.relevant, cutoffs, scores)

    def _find_relevant(self, relevant: object, group_by: str | None) -> object:
        """Convert the ids or group values in an entry of `relevant` to indices."""
        find = self.documents.find_indices
        if group_by is not None:
            find = functools.partial(self.documents.find_group_indices, group_by)
        if isinstance(relevant, Mapping):
            return dict(zip(find(relevant), relevant.values(), strict=True))
        return find(relevant)

    # -- vectors -------------------------------------------------------------------------------

    @staticmethod
    def _embed(embedder: Any, texts: list[str] | Documents, name: str, **options: Any) -> Any:
        """Embed texts, check the vectors, and convert them to the format of the store.

        Args:
            embedder: The embedder, or None if the store contains texts.
            texts: List of queries or documents, or `Documents` for chunks with contexts.
            name: String. Name of the vectors for error messages.
            **options: Options of `embed`.
        """
        raise NotImplementedError

    def _embed_queries(self, queries: list[str], **options: Any) -> Any:
        """Embed queries, check the vectors, and convert them for `Store.find_nearest`."""
        options = {"prompt": "query", **options}
        return self._embed(self.embedder, queries, "The vectors of `queries`", **options)

    @classmethod
    def _embed_documents(cls, embedder: Any, documents: Documents, **options: Any) -> Any:
        """Embed documents, check the vectors, and convert them to the format of the store."""
        late = embedder is not None and documents.contexts is not None
        texts = documents if late else documents.texts
        return cls._embed(embedder, texts, "vectors", **options)

    @classmethod
    def _compute_fingerprint(cls, embedder: Any, width: int) -> np.ndarray:
        """Compute the vectors of `FINGERPRINT_TEXTS`, which identify the embedder."""
        options = {"dim": width} if "dim" in cls.of_documents else {}
        found = embedder.embed(list(FINGERPRINT_TEXTS), prompt="query", **options)
        found = found.toarray() if hasattr(found, "toarray") else found
        if np.ndim(found[0]) == 2:  # an array of token vectors for each text
            found = np.concatenate(found)
        return np.array(found, "float32")

    def _check_unchanged(self) -> None:
        """Check the embedder again if its weights may have changed since the last check."""
        if self.embedder is not None and get_weights_version(self.embedder) != self._known[0]:
            self._check_embedder()

    def _check_embedder(self) -> None:
        """Raise a ValueError if the embedder no longer computes the vectors of the index."""
        if self.embedder is None:
            return
        version = get_weights_version(self.embedder)
        now = self._compute_fingerprint(self.embedder, self._store.width)
        # After training, even small differences are not rounding errors.
        most = MAX_VECTOR_DISTANCE if version == self._known[0] else MAX_ROUNDING_DISTANCE
        if not is_close(now, self._known[1], most):
            raise ValueError(
                "The embedder has changed since the index was built, for example by training. "
                "Build the index again."
            )
        self._known = version, now

    # -- changes and files ---------------------------------------------------------------------

    @validation.validate_arguments
    @lock_weights
    def add(
        self,
        documents: object,
        batch_size: validation.PositiveInt | None = None,
        **columns: Unpack[DocumentColumns],
    ) -> None:
        """Add documents to the end of the index.

        Each call copies all vectors, so it is faster to add many documents at once.

        Args:
            documents: List, array or column of strings, a table, or a list of dicts.
            batch_size: Optional integer. Batch size for `embed`. If None, 32 is used.
            **columns: `ids`, a list with a string or an integer per document, as in the index.
                `metadata`, a list with a dict of fields per document, or a table. `text_column`,
                the name of the text column in a table, which defaults to "text".

        Raises:
            ValueError: If `documents` is empty or contains an empty text, if an id is already in
                the index, or if the embedder has changed since the index was built.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> index = embedder.index(["A cat.", "A dog."], ids=["cat", "dog"])
            >>> index.add(["Tax law."], ids=["law"])
            >>> index.update(["A red cat."], ids=["cat"])
            >>> index.remove(["dog"])
            >>> index.ids, index.texts
            (['cat', 'law'], ['A red cat.', 'Tax law.'])
        """
        new = Documents.create(documents, **columns)
        self.documents.join(new)  # raises errors before the documents are embedded
        self._prepare_update(new, batch_size)()

    @validation.validate_arguments
    @lock_weights
    def update(
        self,
        documents: object,
        batch_size: validation.PositiveInt | None = None,
        **columns: Unpack[DocumentColumns],
    ) -> None:
        """Replace documents by id, in place.

        Args:
            documents, batch_size, **columns: See `add`. Without `metadata`, the documents keep
                their fields. For chunks from `embedder.chunks`, all existing chunks of the same
                documents are removed, and the new chunks are added at the end of the index.

        Raises:
            ValueError: If an id is unknown, or if an argument is invalid. See `add`.
        """
        new = Documents.create(documents, **columns)
        if new.ids is None:
            raise invalid("ids", None, "the ids of the documents to replace")
        owners = new.chunk_indices if self.documents.chunk_indices else ()
        indices = self.documents.find_indices(owners or new.ids, chunks=bool(owners))
        self._prepare_update(new, batch_size, indices, bool(owners))()

    def _prepare_update(
        self,
        new: Documents,
        batch_size: int | None = None,
        indices: list[int] | None = None,
        chunks: bool = False,
    ) -> Callable[[], None]:
        """Embed documents, and return a function that puts the documents into the index.

        Args:
            new: The documents to embed.
            batch_size: Integer. Batch size for `embed`.
            indices: Optional list of integers. Indices of the documents to replace. If None, the
                new documents are added at the end.
            chunks: Boolean. Whether to replace all existing chunks of the same documents.
        """
        self._check_embedder()
        own = {name: getattr(self, name) for name in self.of_documents}
        vectors = self._embed_documents(self.embedder, new, batch_size=batch_size, **own)
        behind = np.arange(len(new))

        def apply_update() -> None:
            with self._lock:
                if indices is None:
                    documents, store = self.documents.join(new), self._store.join(vectors)
                elif chunks:
                    at = indices
                    if self.documents.chunk_indices and new.chunk_indices:
                        at = self.documents.find_indices(new.chunk_indices, chunks=True)
                    documents = self.documents.remove_and_append(at, new)
                    kept = np.delete(np.arange(len(self)), at)
                    order = np.concatenate([kept, len(self) + behind])
                    store = self._store.join(vectors).take(order)
                else:
                    at = indices if self.ids is None else self.documents.find_indices(new.ids)
                    order = np.arange(len(self))
                    order[at] = len(self) + behind
                    documents = self.documents.replace_documents(at, new)
                    store = self._store.join(vectors).take(order)
                self._store, self.documents = store, documents

        return apply_update

    @validation.validate_arguments
    def remove(self, ids: object = None, where: Any = None) -> None:
        """Remove documents by id or by field. The indices of later documents change.

        Args:
            ids: Optional id or list of ids. For a chunked document, all chunks are removed.
            where: Optional filter, as in `search`, instead of ids.

        Raises:
            ValueError: If an id is unknown, if no document would be left, or if `ids` and `where`
                are both passed or both missing.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> books = [{"id": "a", "text": "A cat sleeps. A dog barks.", "year": 1990},
            ...          {"id": "b", "text": "Tax law.", "year": 2024},
            ...          {"id": "c", "text": "A red bird.", "year": 2020}]
            >>> index = embedder.index(embedder.chunks(books, length=4))
            >>> index.ids
            ['a#0', 'a#1', 'a#2', 'b#0', 'c#0']
            >>> index.remove("a")
            >>> index.remove(where={"year": {"$lt": 2024}})
            >>> index.ids
            ['b#0']
        """
        if (ids is None) == (where is None):
            raise ValueError("`remove` requires exactly one of the arguments `ids` and `where`.")
        removed = False
        while not removed:  # the lookup is outside of the lock, so that other threads do not wait
            documents = self.documents
            if where is None:
                indices = documents.find_indices(ids, chunks=True)
            else:
                indices = documents.where(where)
            with self._lock:
                if removed := self.documents is documents:
                    self._keep_documents(np.delete(np.arange(len(self)), indices))

    def _keep_documents(self, indices: np.ndarray) -> None:
        """Remove all documents except for the given indices."""
        if not len(indices):
            raise ValueError("`remove` would remove all documents. Build a new index instead.")
        with self._lock:
            documents = self.documents.take(indices)
            self._store, self.documents = self._store.take(indices), documents

    @lock_weights
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the index to a folder. Use `load_index` to load it again.

        Args:
            folder: String or path. Folder to write. An existing index in the folder is replaced
                atomically. Programs that have opened the old index can still read it. Other files
                are not changed.

        Raises:
            ValueError: If `folder` contains a preset, if a file from another program would be
                replaced, or if the embedder has changed since the index was built.
            OSError: If writing fails, for example because the disk is full.
        """
        self._check_embedder()
        now = self._copy_for_search()
        settings, arrays = {name: getattr(now, name) for name in self.rules}, now._store.arrays
        if self.embedder is not None:
            settings["prompt"] = self.prompt
            settings["similarity_function"] = self.embedder.similarity_function
            arrays = {**arrays, "fingerprint": self._fingerprint}
        write_index(folder, self.kind, arrays, now.documents, settings)

    @classmethod
    @validation.validate_arguments
    @lock_weights
    def load(cls, folder: str | os.PathLike[str], embedder: Any, verify: bool = True) -> Self:
        """Load an index from a folder, as written by `save`. The vectors are memory-mapped.

        Args:
            folder: String or path. Folder written by `save`.
            embedder: The embedder used to build the index, or an equal embedder.
            verify: Boolean. Whether to verify the file checksums before loading. Defaults to True.

        Raises:
            FileNotFoundError: If `folder` does not exist.
            ValueError: If the index is damaged, belongs to another index class, or was built with
                another embedder.
        """
        found = read_index(folder, cls.kind, cls.types, cls.optional_types, cls.rules, verify)
        path, arrays, documents, manifest = found
        function = manifest.get("similarity_function")
        if function != embedder.similarity_function:  # the store depends on the similarity function
            reason = f"the index uses the similarity {function!r:.40}, but this embedder uses "
            reason += repr(embedder.similarity_function)
            raise _make_embedder_error(folder, reason)
        store = cls._open(path, arrays, manifest.get("precision"), function)
        if any(column is not None and len(column) != len(store) for column in documents.columns):
            raise ValueError(
                f"{folder} contains {len(documents)} documents, but vectors for {len(store)} "
                "documents. Build the index again."
            )
        if store.width > embedder.embedding_dim:
            dims = f"{store.width} dimensions, but this embedder has {embedder.embedding_dim}"
            raise _make_embedder_error(folder, f"the stored vectors have {dims}")
        now = cls._compute_fingerprint(embedder, store.width)
        if not is_close(now, arrays["fingerprint"]):
            raise _make_embedder_error(folder, "this embedder computes different vectors")
        settings = {name: manifest.get(name) for name in (*cls.rules, "prompt")}
        settings.pop("precision", None)
        index = cls(embedder, store, documents, arrays["fingerprint"], **settings)
        index._known = get_weights_version(embedder), now
        return index

    @classmethod
    def _open(
        cls,
        path: pathlib.Path,
        arrays: Mapping[str, np.ndarray],
        precision: str | None,
        function: str,
    ) -> Any:
        """Create the store from the arrays in a file and check the values.

        Args:
            path: String or path. File path for error messages.
            arrays: Dict with the arrays for the store, with the correct types, and "fingerprint".
            precision: String. Precision of the store.
            function: Name of the similarity function to use.
        """
        raise NotImplementedError

    @validation.validate_arguments
    @lock_weights
    def export(self, path: str | os.PathLike[str], top_k: validation.PositiveInt = 10) -> None:
        """Export the embedder and the documents to a SavedModel for search.

        The signature "serving_default" maps "query" (Q,) to "index" and "score" (Q, K). For an
        index with texts and ids, "text" and "id" (Q, K) are also returned. Ids are int64 or
        strings.

        The export compares the query with all documents, using the prompt "query". The results are
        the same as from an exact `search`, up to float32 rounding. For a `SparseIndex`, documents
        that do not share a term with the query are returned last, with a score of 0.

        Args:
            path: String or path. Version folder to write, e.g. "served/1". It is written
                atomically. Other files are not changed.
            top_k: Integer. Number of documents to return per query. At most the number of documents
                in the index. Defaults to 10.

        Raises:
            ValueError: If the backend is not TensorFlow, if the embedder has no preprocessor, or if
                the index is too large for a SavedModel.

        Example:
            >>> import tempfile
            >>> import tensorflow as tf
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> index = embedder.index(["A cat.", "Tax law."])
            >>> folder = tempfile.mkdtemp() + "/1"
            >>> index.export(folder, top_k=1)
            >>> search = tf.saved_model.load(folder).signatures["serving_default"]
            >>> search(query=tf.constant(["Tax law."]))["text"].numpy().tolist()
            [[b'Tax law.']]
        """
        from encoder_zoo.tasks.retrieval.index_export import export_index

        export_index(self._copy_for_search(), path, top_k)


def _make_embedder_error(folder: str | os.PathLike[str], reason: str) -> ValueError:
    return ValueError(
        f"{os.fspath(folder)} was built with another embedder: {reason}. Build the index again "
        "with embedder.index(documents), or load the other embedder."
    )


def get_weights_version(embedder: object) -> int:
    """Return a counter that increases when the weights may have changed, or 0 if it is unknown."""
    return getattr(getattr(embedder, "backbone", None), "weights_version", 0)


def is_close(vectors: np.ndarray, expected: np.ndarray, most: float = MAX_VECTOR_DISTANCE) -> bool:
    """Return whether vectors are equal to the expected vectors, up to a tolerance.

    Args:
        vectors: Array of shape (N, D) to compare.
        expected: Array of shape (N, D).
        most: Float. Maximum distance, relative to the norm of the vector. Defaults to 0.05.

    Example:
        >>> is_close(np.array([[1.02, 0.0]]), np.array([[1.0, 0.0]]))
        True
        >>> is_close(np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]))
        False
    """
    if vectors.shape != expected.shape:
        return False
    # float64, because squares of large float32 values overflow
    vectors, expected = (array.astype("float64") for array in (vectors, expected))
    apart, lengths = (np.linalg.norm(array, axis=1) for array in (vectors - expected, expected))
    return bool((np.isfinite(lengths) & (apart <= most * lengths)).all())
