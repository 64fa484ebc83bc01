"""Base class for indexes, with search, evaluation, changes and files.

Comments use these letters for shapes: N documents, Q queries, D width.
"""

from __future__ import annotations

import copy
import functools
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypedDict, Unpack, overload

import numpy as np

from encoder_zoo.common.validation import (
    Name,
    NonNegativeInt,
    Number,
    PositiveInt,
    Rule,
    validate_arguments,
)
from encoder_zoo.common.weights_lock import reads_weights
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.retrieval.documents import Documents, Where
from encoder_zoo.tasks.retrieval.evaluation import (
    check_by_query,
    check_cutoffs,
    convert_to_columns,
    merge_judgements,
    ranking_metrics,
    search_metrics,
)
from encoder_zoo.tasks.retrieval.index_files import Types, read_index, write_index
from encoder_zoo.tasks.retrieval.options import DocumentColumns
from encoder_zoo.tasks.retrieval.ranking import Hit, check_texts, order_and_scores, rerank

if TYPE_CHECKING:
    from typing import Self

RERANKED = 50  # documents that a reranker scores
GROUPED = 4  # documents to search per group, and the factor of growth if there are too few groups
CHOOSING = ("where", "min_score", "group_by", "offset")  # options of a search
# Vectors of these texts differ between embedders with other weights, pooling, prompts or tokenizers
FINGERPRINT_TEXTS = ("Where is the key?", "A naïve 东西 of 12.5 kg, isn't it?")
MAX_APART = 0.05  # fraction of a vector's length; bfloat16 instead of float32 changes 0.01
SAME = 1e-4  # fraction of a vector's length; vectors of one embedder in one process differ less


class Store(Protocol):
    """The data in memory to search in: vectors or words for N documents.

    Attributes:
        arrays: Dict mapping names to the arrays to be saved.
        nbytes: Integer. The size in memory, in bytes.
    """

    arrays: dict[str, np.ndarray]
    nbytes: int

    def __len__(self) -> int:
        """Return the number of documents."""
        ...

    def join(self, vectors: Any) -> Store:
        """Return a store with additional documents at the end."""
        ...

    def take(self, indices: np.ndarray) -> Store:
        """Return a store with only the documents at the given indices, in this order."""
        ...

    def nearest(
        self, queries: Any, k: int, among: np.ndarray | None = None
    ) -> tuple[Sequence, Sequence]:
        """Find the `k` nearest documents for each query.

        This returns the indices and the scores for each query, from nearest to farthest. In case of
        ties, the original order is kept. If `among` is given, only these indices are searched.
        """
        ...


class QueryOptions(TypedDict, total=False):
    """Keyword arguments of `embed` for queries. `max_terms` is for `SparseEncoder` only."""

    prompt: str | None
    batch_size: int | None
    max_terms: int | None


class SearchOptions(QueryOptions, total=False):
    """Keyword arguments of `Index.search` after `top_k`."""

    reranker: object
    candidates: int | None
    where: Where | None
    min_score: float | None
    group_by: str | None
    offset: int


class GivenVectors(NamedTuple):
    """Vectors passed to `search` instead of texts.

    Attributes:
        vectors: Vectors in the same format as in the store.
        count: Integer. The number of vectors.
        single: Boolean. Whether a single vector was passed.
    """

    vectors: Any
    count: int
    single: bool


def are_numbers(values: object) -> bool:
    """Return whether the values are numbers, or lists or arrays of numbers.

    Example:
        >>> are_numbers([0.5, 1.0]), are_numbers(np.zeros((2, 3))), are_numbers(["a"])
        (True, True, False)
    """
    while isinstance(values, list | tuple) and len(values):
        values = values[0]
    if isinstance(values, float | int):
        return True
    return getattr(getattr(values, "dtype", None), "kind", None) in ("f", "i", "u")


class Index:
    """Base class for semantic search indexes.

    Subclasses should implement `build` and convert texts to the format used by the store.

    Args:
        embedder: Embedder to use for queries and for documents added later. None if the store
            contains texts.
        store: The store to search for documents.
        documents: `Documents`, or a list of texts without ids and fields. If None, there are no
            texts in the index.
        fingerprint: Array with the vectors for `FINGERPRINT_TEXTS` at the time when the index was
            built. If None, these will be computed. Defaults to None.
        **settings: Options to use for documents added later, for example `prompt`. These are set as
            attributes.

    Attributes:
        embedder, documents: See the arguments.
        kind: String. Name for the kind of index in the manifest.
        types: Dict mapping each precision to the array types in the store.
        optional_types: Types for optional arrays. Either all or no optional arrays are stored in a
            file.
        rules: Dict with validation rules for the attributes saved in the manifest.
        of_documents: Names of the attributes to pass to `_embed` for documents added later.

    Example:
        >>> class Longest(Index):
        ...     def __init__(self, texts):
        ...         self.documents = Documents(texts)
        ...     def __len__(self):
        ...         return len(self.texts)
        ...     def _find(self, queries, top_k, among=None):
        ...         best = sorted(range(len(self)), key=lambda i: -len(self.texts[i]))[:top_k]
        ...         return [(best, [float(len(self.texts[i])) for i in best]) for _ in queries]
        >>> Longest(["a", "abc"]).search("any", top_k=1)
        [{'index': 1, 'score': 3.0, 'text': 'abc'}]
    """

    kind: ClassVar[str]
    types: ClassVar[Mapping[str | None, Types]] = {None: {}}
    optional_types: ClassVar[Types] = {}
    rules: ClassVar[Mapping[str, Rule]] = {}
    of_documents: ClassVar[tuple[str, ...]] = ("prompt",)
    embedder: Any = None
    documents: Documents
    prompt: str | None

    @reads_weights
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
            self._known = weights_version(embedder), fingerprint

    def __len__(self) -> int:
        return len(self._store)

    def __getstate__(self) -> dict:
        """Return the attributes to copy. A new lock will be created for the copy."""
        return {name: value for name, value in vars(self).items() if name != "_changing"}

    @property
    def _lock(self) -> threading.RLock:
        """Return the lock to use for changes and copies."""
        return vars(self).setdefault("_changing", threading.RLock())

    def _snapshot(self) -> Self:
        """Return a copy to search in. It will not be affected by changes in other threads."""
        with self._lock:
            return copy.copy(self)

    @property
    def _asked_models(self) -> list:
        """Return the models used to embed queries."""
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
        """Return the vector size in bytes, either in memory or in a memory-mapped file."""
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
    @validate_arguments
    @reads_weights
    def search(
        self,
        queries: object,
        top_k: PositiveInt | None = 10,
        reranker: Any = None,
        candidates: PositiveInt | None = None,
        where: Any = None,
        min_score: Number | None = None,
        group_by: Name | None = None,
        offset: NonNegativeInt = 0,
        **options: Unpack[QueryOptions],
    ) -> list[Hit] | list[list[Hit]]:
        """Search for the nearest documents to each query.

        Args:
            queries: The query or queries to search for, as a string or a list, array or column of
                strings. Vectors from this embedder can also be used. For example, pass
                `index.vectors[3]` to search for documents similar to the fourth document. The shape
                should be (D,) or (N, D). For a `MultiVectorIndex`, use an array (tokens, D) or a
                list of arrays. For a `SparseIndex`, use a sparse matrix (N, V).
            top_k: Integer. The number of documents to return per query. For sparse and word-based
                search, only documents that share a term with the query are returned. If None, all
                documents are returned. Defaults to 10.
            reranker: `Reranker`, or any object with `rank(query, texts, top_k)`, to be used for
                rescoring and sorting the nearest documents. Defaults to None.
            candidates: Integer. The number of documents to pass to the reranker, at least `top_k`.
                Defaults to 50.
            where: Dict or function, to only search in documents that match this filter. For
                example, {"year": {"$gte": 2023}, "lang": ["en", "de"]}. All conditions must be
                true. Use a list to match any value in the list. The supported operators are "$gt",
                "$gte", "$lt", "$lte", "$eq", "$ne", "$in" and "$nin". Several operators can be used
                in the same dict. It is also possible to use a function of the value as a condition,
                or to set `where` to a function of the dict with all fields. Documents without the
                field will not match. Dates are compared as strings in the ISO 8601 format. Defaults
                to None.
            min_score: Float. Minimum score for a document to be returned. If a reranker is used,
                this applies to the reranker score. If None, this filter is disabled. Defaults to
                None.
            group_by: String. Name of the field to group by. Only the best document is returned for
                each value, for example the best chunk per book. Defaults to None.
            offset: Integer. The number of hits to skip at the beginning. This can be used for
                pagination. Defaults to 0.
            **options: Additional options to pass to `embed`: `prompt`, which defaults to "query",
                and `batch_size`. For a `SparseEncoder`, this can also be `max_terms`. For a
                `HybridIndex`, only `batch_size` is supported.

        Returns:
            List of hits for a single query, or a list with a list of hits per query. Each hit is a
            dict `{"index", "score", "text"}`. "id" and "metadata" are also included if available.
            The score is computed with the `similarity_function` from the embedder. Higher scores
            are returned for nearer documents, so distances are negative. For ties, the
            original order is kept.

        Raises:
            ValueError: If any query is empty, if any field in `where` or `group_by` is unknown, if
                the embedder has changed since the index was built, or if a reranker is used on an
                index without texts.


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
        if (given := self._read_vectors(queries)) is None:
            texts = check_texts(queries, "queries", least=0)
        elif reranker is not None or options:
            unfit = "reranker" if reranker is not None else ", ".join(options)
            raise ValueError(f"queries are vectors, but {unfit} requires texts. Pass texts.")
        else:
            single, texts, options = given.single, [""] * given.count, {"vectors": given.vectors}
        self._check_unchanged()
        now, last = self._snapshot(), offset + (top_k or len(self))
        among = None if where is None else now.documents.where(where)
        hits: list[list[Hit]] = [[] for _ in texts]
        if texts and (among is None or len(among)):
            wanted = last if reranker is None else max(last, candidates or RERANKED)
            hits = now._best_hits(texts, wanted, among, group_by, options)
        if reranker is not None:
            pairs = zip(texts, hits, strict=True)
            hits = [rerank(reranker, *one, last) if one[1] else [] for one in pairs]
        if min_score is not None:
            hits = [[hit for hit in found if hit["score"] >= min_score] for found in hits]
        found = [some[offset:last] for some in hits]
        return found[0] if single else found

    def _read_vectors(self, queries: object) -> GivenVectors | None:
        """Check queries passed as vectors and return them. For texts, None is returned."""
        if are_numbers(queries):
            raise invalid(
                "queries",
                queries,
                f"texts, because a {type(self).__name__} does not support vectors",
            )
        return None

    def _best_hits(
        self,
        texts: list[str],
        wanted: int,
        among: np.ndarray | None,
        group_by: str | None,
        options: Mapping[str, Any],
    ) -> list[list[Hit]]:
        """Find the best documents for each query, or the best document per group.

        Args:
            texts: List of queries to search for.
            wanted: Integer. The number of documents or groups to return.
            among, options: See `_find` for details.
            group_by: Optional name of the field to group by.
        """
        count = len(self) if among is None else len(among)
        options = options if among is None else {**options, "among": among}
        if group_by is None:
            return [self._hits(*one) for one in self._find(texts, min(wanted, count), **options)]
        groups, depth = self.documents.groups(group_by, among), wanted
        while True:  # search more documents until there are enough groups
            depth = min(GROUPED * depth, count)
            found = [self._hits(*one) for one in self._find(texts, depth, **options)]
            best = []
            for hits in found:
                firsts = {}
                for hit in hits:
                    firsts.setdefault(groups[hit["index"]], hit)
                best.append(list(firsts.values())[:wanted])
            # A query with fewer hits than `depth` has no further hits.
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
                f"candidates is {candidates}, but reranker is None. Pass reranker=..., too."
            )
        if reranker is not None and self.texts is None:
            raise ValueError(
                "The index has no texts, but the reranker needs texts. Build the index from texts."
            )

    def _find(
        self,
        queries: list[str],
        top_k: int,
        among: np.ndarray | None = None,
        vectors: Any = None,
        **options: Any,
    ) -> Iterable[tuple[Sequence[int], Sequence[float]]]:
        """Yield the indices and the scores of the nearest documents for each query.

        Args:
            queries: List of texts to search for. At least one text is required.
            top_k: Integer. The number of documents to find, at most N.
            among: Integer array. Indices of the documents to search in. If None, all documents are
                searched. Defaults to None.
            vectors: Vectors for the queries. If None, the queries will be embedded. Defaults to
                None.
            **options: Additional options to pass to `embed`.
        """
        vectors = self._embed_queries(queries, **options) if vectors is None else vectors
        return zip(*self._store.nearest(vectors, top_k, among), strict=True)

    def _hits(self, indices: Sequence[int], scores: Sequence[float]) -> list[Hit]:
        pairs = zip(np.asarray(indices).tolist(), np.asarray(scores).tolist(), strict=True)
        return [{"index": i, "score": s, **self.documents.described(i)} for i, s in pairs]

    @validate_arguments
    @reads_weights
    def evaluate(
        self,
        queries: object,
        relevant: Sequence[object],
        cutoffs: Sequence[int] = (1, 5, 10),
        **options: Unpack[SearchOptions],
    ) -> dict[str, float]:
        """Evaluate the search on queries with known relevant documents.

        Duplicate documents are merged. For ties, each metric is averaged over all possible
        orders.

        Args:
            queries: List, array or column of texts to evaluate on. For the BEIR format, pass
                `queries` as {id: text} and `relevant` as {query id: {document id: grade}}.
            relevant: For each query, the index of the relevant document, a list of indices, or a
                dict {index: grade}. For documents with ids, pass ids instead of indices. With
                `group_by`, pass the values for this field, for example the original document ids
                for chunks.
            cutoffs: Sequence of integers. Numbers of top documents to evaluate. Defaults to (1, 5,
                10).
            **options: Additional options to pass to `search`, for example `reranker` or
                `group_by="document"`. If a reranker is used, documents not passed to the reranker
                are treated as not found.

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
        cutoffs = check_cutoffs(cutoffs)
        queries, relevant, _ = convert_to_columns(queries, relevant)
        group_by = options.get("group_by")
        if self.ids is not None or group_by is not None:
            check_by_query(relevant)
            relevant = [self._find_relevant(entry, group_by) for entry in relevant]
        if group_by is not None:
            firsts = self.documents.find_group_starts(group_by)
            names = [str(firsts[value]) for value in self.documents.groups(group_by)]
        else:
            names = [str(i) for i in range(len(self))] if self.texts is None else self.texts
        texts = merge_judgements(queries, names, relevant)
        number_of = {name: number for number, name in enumerate(texts.documents)}
        reranker, candidates = options.pop("reranker", None), options.pop("candidates", None)
        chosen = {name: options.pop(name) for name in CHOOSING if name in options}
        self._check_options(reranker, candidates, options)

        def search(
            some: Sequence[int], k: int, **reranking: Any
        ) -> Iterator[tuple[list[int], list[float]]]:
            asked = [texts.queries[i] for i in some]
            for hits in self.search(asked, k, **reranking, **chosen, **options):
                numbers = [number_of[names[hit["index"]]] for hit in hits]
                yield numbers, [hit["score"] for hit in hits]

        if reranker is None:
            return search_metrics(search, texts.relevant, cutoffs, len(number_of), len(names))
        every, candidates = range(len(texts.queries)), candidates or RERANKED
        if group_by is not None:  # the reranker reads the best document of each group
            found = search(every, candidates, reranker=reranker, candidates=candidates)
            rankings, scores = zip(*found, strict=True)
            return ranking_metrics(rankings, texts.relevant, cutoffs, scores)
        read = search(every, candidates)
        rankings, scores = [], []
        for query, (numbers, _) in zip(texts.queries, read, strict=True):
            documents = [texts.documents[number] for number in numbers]
            order, ordering = order_and_scores(reranker, query, documents)
            rankings.append([numbers[i] for i in order])
            scores.append(ordering)
        return ranking_metrics(rankings, texts.relevant, cutoffs, scores)

    def _find_relevant(self, relevant: object, group_by: str | None) -> object:
        """Convert ids or group values in an entry in `relevant` to indices."""
        find = self.documents.find_indices
        if group_by is not None:
            find = functools.partial(self.documents.find_group_indices, group_by)
        if isinstance(relevant, Mapping):
            return dict(zip(find(relevant), relevant.values(), strict=True))
        return find(relevant)

    # -- vectors -------------------------------------------------------------------------------

    @staticmethod
    def _embed(embedder: Any, texts: list[str] | Documents, name: str, **options: Any) -> Any:
        """Embed texts and check the vectors. The result is in the store format.

        Args:
            embedder: The embedder to use, or None if the store contains texts.
            texts: List of queries or documents, or `Documents` for chunks with contexts.
            name: String. Name to use for the vectors in error messages.
            **options: Additional options to pass to `embed`.
        """
        raise NotImplementedError

    def _embed_queries(self, queries: list[str], **options: Any) -> Any:
        """Embed queries and check the vectors. The result can be passed to `Store.nearest`."""
        options = {"prompt": "query", **options}
        return self._embed(self.embedder, queries, "The vectors of queries", **options)

    @classmethod
    def _embed_documents(cls, embedder: Any, documents: Documents, **options: Any) -> Any:
        """Embed documents and check the vectors. The result is in the store format."""
        late = embedder is not None and documents.contexts is not None
        texts = documents if late else documents.texts
        return cls._embed(embedder, texts, "vectors", **options)

    @classmethod
    def _compute_fingerprint(cls, embedder: Any, width: int) -> np.ndarray:
        """Compute the vectors for `FINGERPRINT_TEXTS` to identify the embedder."""
        raise NotImplementedError

    def _check_unchanged(self) -> None:
        """Check the embedder if the weights might have changed since the last check."""
        if self.embedder is not None and weights_version(self.embedder) != self._known[0]:
            self._check_embedder()

    def _check_embedder(self) -> None:
        """Check that the embedder still computes the same vectors as in the index."""
        if self.embedder is None:
            return
        version = weights_version(self.embedder)
        now = self._compute_fingerprint(self.embedder, self._store.width)
        # After training, even small differences are not due to rounding.
        most = MAX_APART if version == self._known[0] else SAME
        if not are_close(now, self._known[1], most):
            raise ValueError(
                "The embedder has changed since the index was built, for example by training. "
                "Build the index again."
            )
        self._known = version, now

    # -- changes and files ---------------------------------------------------------------------

    @validate_arguments
    @reads_weights
    def add(
        self,
        documents: object,
        batch_size: PositiveInt | None = None,
        **columns: Unpack[DocumentColumns],
    ) -> None:
        """Add documents to the end of the index.

        All vectors are copied on each call. For better performance, add many documents at once.

        Args:
            documents: The documents to index, as a list, array or column of texts, a table, or a
                list of dicts.
            batch_size: Integer. The batch size used for the computation. Defaults to 32.
            **columns: `ids`, a string or an integer per document, with the same type as the
                existing ids in the index. `metadata`, a dict with fields per document, or a table.
                `text_column`, the name of the text column in a table, which defaults to "text".

        Raises:
            ValueError: If `documents` is empty or contains an empty text, if any id is already in
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
        self._putting(new, batch_size)()

    @validate_arguments
    @reads_weights
    def update(
        self,
        documents: object,
        batch_size: PositiveInt | None = None,
        **columns: Unpack[DocumentColumns],
    ) -> None:
        """Replace documents by id, in place.

        Args:
            documents, batch_size, **columns: See `add` for details. If no metadata is given, the
                existing fields are kept. For chunks from `embedder.chunks`, all existing chunks for
                the same documents are removed, and the new chunks are added to the end of the
                index.

        Raises:
            ValueError: If any id is unknown. See also `add`.
        """
        new = Documents.create(documents, **columns)
        if new.ids is None:
            raise invalid("ids", None, "the ids of the documents to replace")
        owners = new.chunks_of if self.documents.chunks_of else ()
        indices = self.documents.find_indices(owners or new.ids, chunks=bool(owners))
        self._putting(new, batch_size, indices, bool(owners))()

    def _putting(
        self,
        new: Documents,
        batch_size: int | None = None,
        indices: list[int] | None = None,
        chunks: bool = False,
    ) -> Callable[[], None]:
        """Embed documents and return a function to put them into the index.

        Args:
            new: The documents to embed.
            batch_size: Integer. The batch size used for the computation.
            indices: List with the indices of the documents to replace. If None, the new documents
                are added to the end.
            chunks: Boolean. Whether to replace all existing chunks for the same documents.
        """
        self._check_embedder()
        own = {name: getattr(self, name) for name in self.of_documents}
        vectors = self._embed_documents(self.embedder, new, batch_size=batch_size, **own)
        behind = np.arange(len(new))

        def put() -> None:
            with self._lock:
                if indices is None:
                    documents, store = self.documents.join(new), self._store.join(vectors)
                elif chunks:
                    at = indices
                    if self.documents.chunks_of and new.chunks_of:
                        at = self.documents.find_indices(new.chunks_of, chunks=True)
                    documents = self.documents.exchange(at, new)
                    kept = np.delete(np.arange(len(self)), at)
                    order = np.concatenate([kept, len(self) + behind])
                    store = self._store.join(vectors).take(order)
                else:
                    at = indices if self.ids is None else self.documents.find_indices(new.ids)
                    order = np.arange(len(self))
                    order[at] = len(self) + behind
                    documents = self.documents.replaced(at, new)
                    store = self._store.join(vectors).take(order)
                self._store, self.documents = store, documents

        return put

    @validate_arguments
    def remove(self, ids: object = None, where: Any = None) -> None:
        """Remove documents by id or by field. This will change the indices of later documents.

        Args:
            ids: The id or ids to remove. For a chunked document, all chunks will be removed.
                Defaults to None.
            where: Filter to use instead of ids, as in `search`. Defaults to None.

        Raises:
            ValueError: If any id is unknown, if no documents would be left, or if `ids` and `where`
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
            raise ValueError("remove takes either ids or where. Pass one of them.")
        removed = False
        while not removed:  # the lookup is outside of the lock, so that other threads need not wait
            documents = self.documents
            if where is None:
                indices = documents.find_indices(ids, chunks=True)
            else:
                indices = documents.where(where)
            with self._lock:
                if removed := self.documents is documents:
                    self._keep(np.delete(np.arange(len(self)), indices))

    def _keep(self, indices: np.ndarray) -> None:
        """Remove all documents except for the given indices."""
        if not len(indices):
            raise ValueError("remove would leave no documents. Build a new index instead.")
        with self._lock:
            documents = self.documents.take(indices)
            self._store, self.documents = self._store.take(indices), documents

    @reads_weights
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the index to a folder. Use `load_index` to load it again.

        Args:
            folder: Path to the folder to save to. If there is already an index, it will be replaced
                atomically, and programs can continue to read the old index while it is open. Other
                files are not changed.

        Raises:
            ValueError: If there are other files in the folder, or if the embedder has changed since
                the index was built.
            OSError: If writing to a file fails, for example because the disk is full.
        """
        self._check_embedder()
        now = self._snapshot()
        settings, arrays = {name: getattr(now, name) for name in self.rules}, now._store.arrays
        if self.embedder is not None:
            settings["prompt"] = self.prompt
            settings["similarity_function"] = self.embedder.similarity_function
            arrays = {**arrays, "fingerprint": self._fingerprint}
        write_index(folder, self.kind, arrays, now.documents, settings)

    @classmethod
    @validate_arguments
    @reads_weights
    def load(cls, folder: str | os.PathLike[str], embedder: Any, verify: bool = True) -> Self:
        """Load an index from a folder, as written by `save`. The vectors are memory-mapped.

        Args:
            folder: Path to the folder to load from, as written by `save`.
            embedder: The embedder used to build the index, or an equal embedder.
            verify: Boolean. Whether to verify the file checksums before loading. Defaults to True.

        Raises:
            FileNotFoundError: If the folder does not exist.
            ValueError: If the index in the folder is damaged or has a different kind. This is also
                raised when a different embedder was used to build the index.
        """
        found = read_index(folder, cls.kind, cls.types, cls.optional_types, cls.rules, verify)
        path, arrays, documents, manifest = found
        function = manifest.get("similarity_function")
        if function != embedder.similarity_function:  # the store depends on the function
            reason = f"it was built for {function!r:.40}, but this embedder uses "
            reason += repr(embedder.similarity_function)
            raise _make_embedder_error(folder, reason)
        store = cls._open(path, arrays, manifest.get("precision"), function)
        columns = documents.texts, documents.ids, documents.metadata
        if any(column is not None and len(column) != len(store) for column in columns):
            raise ValueError(
                f"{folder} is damaged: it has {len(documents)} documents, but vectors for "
                f"{len(store)} documents. Build the index again."
            )
        if store.width > embedder.embedding_dim:
            dims = f"{store.width} dimensions, but this embedder has {embedder.embedding_dim}"
            raise _make_embedder_error(folder, f"its vectors have {dims}")
        now = cls._compute_fingerprint(embedder, store.width)
        if not are_close(now, arrays["fingerprint"]):
            raise _make_embedder_error(folder, "its vectors of the same texts differ")
        settings = {name: manifest.get(name) for name in (*cls.rules, "prompt")}
        settings.pop("precision", None)
        index = cls(embedder, store, documents, arrays["fingerprint"], **settings)
        index._known = weights_version(embedder), now
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
            path: Path to the file. This is only used in error messages.
            arrays: Dict with the arrays for the store, with the correct types, and "fingerprint".
            precision: The precision to use in the store.
            function: Name of the similarity function to use.
        """
        raise NotImplementedError

    @validate_arguments
    @reads_weights
    def export(self, path: str | os.PathLike[str], top_k: PositiveInt = 10) -> None:
        """Export the embedder and the documents to a single SavedModel for search.

        The signature "serving_default" maps "query" (Q,) to "index" and "score" (Q, K). For an
        index with texts and ids, "text" and "id" (Q, K) are also returned. The results are the same
        as from `search` with the prompt "query", up to float32 rounding. Ids are int64 or strings.

        Args:
            path: Path to the version folder (e.g. "served/1"). This folder is written atomically,
                and other files are not changed.
            top_k: Integer. The number of documents to return per query. This must not be larger
                than the index. Defaults to 10.

        Raises:
            ValueError: If the backend is not TensorFlow, if there is no preprocessor for the
                embedder, or if the index is too large for a SavedModel.

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

        export_index(self._snapshot(), path, top_k)


def _make_embedder_error(folder: str | os.PathLike[str], reason: str) -> ValueError:
    return ValueError(
        f"{os.fspath(folder)} was built with another embedder: {reason}. Build the index again "
        "with embedder.index(documents), or load the other embedder."
    )


def weights_version(embedder: object) -> int:
    """Return a number that is increased when weights may change, and 0 for other embedders."""
    return getattr(getattr(embedder, "backbone", None), "weights_version", 0)


def are_close(vectors: np.ndarray, expected: np.ndarray, most: float = MAX_APART) -> bool:
    """Return whether vectors are equal to the expected vectors up to rounding.

    Args:
        vectors: Array of shape (N, D) to compare.
        expected: Array of shape (N, D).
        most: Float. Maximum distance, relative to the vector length. Defaults to 0.05.

    Example:
        >>> are_close(np.array([[1.02, 0.0]]), np.array([[1.0, 0.0]]))
        True
        >>> are_close(np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]))
        False
    """
    if vectors.shape != expected.shape:
        return False
    # In float64, because squares of large float32 values overflow.
    vectors, expected = (array.astype("float64") for array in (vectors, expected))
    apart, lengths = (np.linalg.norm(array, axis=1) for array in (vectors - expected, expected))
    return bool((np.isfinite(lengths) & (apart <= most * lengths)).all())
