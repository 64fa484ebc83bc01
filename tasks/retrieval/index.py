"""The base class of the indexes: search, evaluation, changes and files.

Comment letters: N documents, Q queries, D width.
"""

from __future__ import annotations

import copy
import functools
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    TypedDict,
    Unpack,
    overload,
)

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
    by_position,
    check_by_query,
    checked_cutoffs,
    judged,
    ranking_metrics,
    search_metrics,
)
from encoder_zoo.tasks.retrieval.index_files import Types, read_index, write_index
from encoder_zoo.tasks.retrieval.options import DocumentColumns
from encoder_zoo.tasks.retrieval.ranking import Hit, checked_texts, order_and_scores, reranked

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
    """The searchable data of an index in memory: vectors or words of N documents.

    Attributes:
        arrays: Dict of the arrays to save, by name.
        nbytes: Integer. Size in memory.
    """

    arrays: dict[str, np.ndarray]
    nbytes: int

    def __len__(self) -> int:
        """Return the number of documents."""
        ...

    def joined(self, vectors: Any) -> Store:
        """Return a store with more documents at the end."""
        ...

    def taken(self, indices: np.ndarray) -> Store:
        """Return a store with the documents at the given indices, in this order."""
        ...

    def nearest(
        self, queries: Any, k: int, among: np.ndarray | None = None
    ) -> tuple[Sequence, Sequence]:
        """Find the `k` nearest documents of each query.

        Returns the indices and the scores for each query, nearest document first. Documents with
        equal scores keep their order. If `among` is given, only these indices are searched.
        """
        ...


class QueryOptions(TypedDict, total=False):
    """Keyword arguments of `embed` for queries. Only `SparseEncoder` accepts `max_terms`."""

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
    """Vectors that are passed to `search` in place of texts.

    Attributes:
        vectors: Vectors in the format of the store.
        count: Integer. Number of vectors.
        single: Boolean. Whether a single vector was given.
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
    """Base class of the indexes for semantic search.

    A subclass implements `build` and converts texts to the format of its store.

    Args:
        embedder: Embedder for the queries and for documents that are added later, or None if the
            store contains texts.
        store: The store of the documents.
        documents: `Documents`, or a list of texts without ids and fields. None means that the index
            has no texts.
        fingerprint: Array. The embedder's vectors of `FINGERPRINT_TEXTS` when the index was built.
            Defaults to None, which computes them.
        **settings: Options for documents that are added later, such as `prompt`. They become
            attributes.

    Attributes:
        embedder, documents: See the arguments.
        kind: String. Name of the kind of index in the manifest.
        types: Dict that maps each precision to the types of the arrays in the store.
        optional_types: Types of optional arrays. A file contains all or none of them.
        rules: Dict of validation rules for the attributes that are saved in the manifest.
        of_documents: Names of the attributes that are passed to `_embed` for documents that are
            added later.

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
                fingerprint = self._fingerprint_of(embedder, store.width)
            self._fingerprint = fingerprint
            self._known = weights_version(embedder), fingerprint

    def __len__(self) -> int:
        return len(self._store)

    def __getstate__(self) -> dict:
        """Return the attributes to copy. A copy gets its own lock."""
        return {name: value for name, value in vars(self).items() if name != "_changing"}

    @property
    def _lock(self) -> threading.RLock:
        """Return the lock for changes and copies."""
        return vars(self).setdefault("_changing", threading.RLock())

    def _snapshot(self) -> Self:
        """Return a copy for a search. Changes by other threads do not affect it."""
        with self._lock:
            return copy.copy(self)

    @property
    def _asked_models(self) -> list:
        """Return the models that embed the queries."""
        return [self.embedder]

    @property
    def texts(self) -> list[str] | None:
        """Return the texts of the documents, or None."""
        return self.documents.texts

    @property
    def ids(self) -> list[str | int] | None:
        """Return the ids of the documents, or None."""
        return self.documents.ids

    @property
    def metadata(self) -> list[dict[str, Any]] | None:
        """Return the fields of the documents, or None."""
        return self.documents.metadata

    @property
    def nbytes(self) -> int:
        """Return the size of the vectors in bytes, in memory or in a memory-mapped file."""
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
        """Search the documents that are nearest to each query.

        Args:
            queries: A text, or a list, array or column of texts. Also accepts vectors of this
                embedder: `index.vectors[3]` finds documents that are similar to the fourth
                document. The shape is (D,) or (N, D). A `MultiVectorIndex` expects an array
                (tokens, D) or a list of such arrays, and a `SparseIndex` a sparse matrix (N, V).
            top_k: Integer. Number of documents per query. Sparse and word-based searches return
                fewer documents if fewer share a term with the query. None returns all documents.
                Defaults to 10.
            reranker: `Reranker`, or another object with `rank(query, texts, top_k)`. It scores and
                sorts the nearest documents again. Defaults to None.
            candidates: Integer. Number of documents that the reranker reads, at least `top_k`.
                Defaults to 50.
            where: Dict or function. Only documents that match this filter are searched. An example
                is {"year": {"$gte": 2023}, "lang": ["en", "de"]}. All conditions must hold, and a
                list matches any of its values. The operators are "$gt", "$gte", "$lt", "$lte",
                "$eq", "$ne", "$in" and "$nin". One dict can contain several of them. A condition
                can also be a function of the value, and `where` itself can be a function of the
                dict of fields. Documents without the field do not match. Dates are compared as
                strings in ISO 8601 format. Defaults to None.
            min_score: Float. Minimum score of a hit. If a reranker is passed, this is the
                reranker's score. If None, this filter is disabled. Defaults to None.
            group_by: String. Name of a field. Only the best document for each value of the field
                is returned, for example the best chunk of each book. Defaults to None.
            offset: Integer. Number of first hits to skip, for pagination. Defaults to 0.
            **options: Options of `embed`: `prompt`, which defaults to "query", and `batch_size`. A
                `SparseEncoder` also accepts `max_terms`. A `HybridIndex` only accepts
                `batch_size`.

        Returns:
            List of `{"index", "score", "text"}` for a single query, and a list of such lists for
            several queries. Hits also contain "id" and "metadata" if the documents have them. The
            score is computed with the embedder's `similarity_function`. A higher score means a
            nearer document, so distances are negative. Documents with equal scores keep their
            order.

        Raises:
            ValueError: If a query is empty, if a field of `where` or `group_by` is unknown, if the
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
        if (given := self._given_vectors(queries)) is None:
            texts = checked_texts(queries, "queries", least=0)
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
            hits = [reranked(reranker, *one, last) if one[1] else [] for one in pairs]
        if min_score is not None:
            hits = [[hit for hit in found if hit["score"] >= min_score] for found in hits]
        found = [some[offset:last] for some in hits]
        return found[0] if single else found

    def _given_vectors(self, queries: object) -> GivenVectors | None:
        """Check and return queries that are vectors. Return None if the queries are texts."""
        if are_numbers(queries):
            raise invalid("queries", queries, f"texts: a {type(self).__name__} takes no vectors")
        return None

    def _best_hits(
        self,
        texts: list[str],
        wanted: int,
        among: np.ndarray | None,
        group_by: str | None,
        options: Mapping[str, Any],
    ) -> list[list[Hit]]:
        """Find the best documents of each query, or the best document of each group.

        Args:
            texts: List of queries.
            wanted: Integer. Number of documents or groups to return.
            among, options: See `_find`.
            group_by: Name of a field, or None.
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
                f"{type(self).__name__} embeds no queries. Remove {', '.join(options)}."
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
                "A reranker reads texts, but the index has no texts. Build it with texts."
            )

    def _find(
        self,
        queries: list[str],
        top_k: int,
        among: np.ndarray | None = None,
        vectors: Any = None,
        **options: Any,
    ) -> Iterable[tuple[Sequence[int], Sequence[float]]]:
        """Yield the indices and the scores of the nearest documents of each query.

        Args:
            queries: List of one or more texts.
            top_k: Integer. Number of documents to find, at most N.
            among: Integer array. Indices of the documents to search in. If None, all documents are
                searched. Defaults to None.
            vectors: Vectors of the queries. Defaults to None, which embeds the queries.
            **options: Options of `embed`.
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
        """Evaluate how high a search ranks the relevant documents of each query.

        Documents with the same text count as one document. For documents with equal scores, each
        metric is averaged over all orders of these documents.

        Args:
            queries: List, array or column of texts. In the format of BEIR, `queries` is {id: text}
                and `relevant` is {query id: {document id: grade}}.
            relevant: For each query, the index of its document, a list of indices, or {index:
                grade}. If the documents have ids, pass ids instead of indices. With `group_by`,
                pass values of this field, such as the ids of the documents that were chunked.
            cutoffs: Sequence of integers. Numbers of top documents to evaluate. Defaults to (1, 5,
                10).
            **options: Options of `search`, such as `reranker` or `group_by="document"`. A reranker
                only ranks the documents that it reads. Other documents count as not found.

        Returns:
            Dict with "ndcg@k", "mrr@k", "recall@k" and "accuracy@k" for each cutoff k, and
            "map@100".

        Raises:
            ValueError: For the same reasons as in `TextEmbedder.evaluate_retrieval`.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> index = embedder.index(["A cat.", "Tax law.", "A dog."])
            >>> index.evaluate(["Tax law.", "A cat."], [1, 2], cutoffs=[1, 2])["recall@1"]
            0.5
        """
        cutoffs = checked_cutoffs(cutoffs)
        queries, relevant, _ = by_position(queries, relevant)
        group_by = options.get("group_by")
        if self.ids is not None or group_by is not None:
            check_by_query(relevant)
            relevant = [self._indices_in(entry, group_by) for entry in relevant]
        if group_by is not None:
            firsts = self.documents.first_of_groups(group_by)
            names = [str(firsts[value]) for value in self.documents.groups(group_by)]
        else:
            names = [str(i) for i in range(len(self))] if self.texts is None else self.texts
        texts = judged(queries, names, relevant)
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

    def _indices_in(self, relevant: object, group_by: str | None) -> object:
        """Convert the ids or the group values in an entry of `relevant` to indices."""
        find = self.documents.indices_of
        if group_by is not None:
            find = functools.partial(self.documents.indices_of_groups, group_by)
        if isinstance(relevant, Mapping):
            return dict(zip(find(relevant), relevant.values(), strict=True))
        return find(relevant)

    # -- vectors -------------------------------------------------------------------------------

    @staticmethod
    def _embed(embedder: Any, texts: list[str] | Documents, name: str, **options: Any) -> Any:
        """Embed texts and check the vectors. Return them in the format of the store.

        Args:
            embedder: The embedder, or None if the store contains texts.
            texts: List of queries or documents, or `Documents` if these are chunks with contexts.
            name: String. Name to use for the vectors in error messages.
            **options: Options of `embed`.
        """
        raise NotImplementedError

    def _embed_queries(self, queries: list[str], **options: Any) -> Any:
        """Embed queries and check the vectors. Return them in the format of `Store.nearest`."""
        options = {"prompt": "query", **options}
        return self._embed(self.embedder, queries, "The vectors of queries", **options)

    @classmethod
    def _embed_documents(cls, embedder: Any, documents: Documents, **options: Any) -> Any:
        """Embed documents and check the vectors. Return them in the format of the store."""
        late = embedder is not None and documents.contexts is not None
        texts = documents if late else documents.texts
        return cls._embed(embedder, texts, "vectors", **options)

    @classmethod
    def _fingerprint_of(cls, embedder: Any, width: int) -> np.ndarray:
        """Compute the vectors of `FINGERPRINT_TEXTS`, which identify the embedder."""
        raise NotImplementedError

    def _check_unchanged(self) -> None:
        """Check the embedder if its weights may have changed since the last check."""
        if self.embedder is not None and weights_version(self.embedder) != self._known[0]:
            self._check_embedder()

    def _check_embedder(self) -> None:
        """Raise an error if the embedder no longer computes the vectors of the index."""
        if self.embedder is None:
            return
        version = weights_version(self.embedder)
        now = self._fingerprint_of(self.embedder, self._store.width)
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
        """Add documents at the end of the index.

        Each call copies all vectors, so add many documents at once.

        Args:
            documents: List, array or column of texts, a table, or a list of dicts.
            batch_size: Integer. The batch size used for the computation. Defaults to 32.
            **columns: `ids`, a string or an integer per document, of the same type as the ids in
                the index. `metadata`, a dict of fields per document, or a table. `text_column`, the
                name of the column that contains the texts of a table. It defaults to "text".

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
        new = Documents.of(documents, **columns)
        self.documents.joined(new)  # raises errors before the documents are embedded
        self._putting(new, batch_size)()

    @validate_arguments
    @reads_weights
    def update(
        self,
        documents: object,
        batch_size: PositiveInt | None = None,
        **columns: Unpack[DocumentColumns],
    ) -> None:
        """Replace the documents that have the given ids, in place.

        Args:
            documents, batch_size, **columns: See `add`. Documents keep their fields if no metadata
                is given. Chunks that `embedder.chunks` returned replace all chunks of their
                documents and are placed at the end of the index.

        Raises:
            ValueError: If an id is unknown, or for the same reasons as in `add`.
        """
        new = Documents.of(documents, **columns)
        if new.ids is None:
            raise invalid("ids", None, "the ids of the documents to replace")
        owners = new.chunks_of if self.documents.chunks_of else ()
        indices = self.documents.indices_of(owners or new.ids, chunks=bool(owners))
        self._putting(new, batch_size, indices, bool(owners))()

    def _putting(
        self,
        new: Documents,
        batch_size: int | None = None,
        indices: list[int] | None = None,
        chunks: bool = False,
    ) -> Callable[[], None]:
        """Embed documents and return the function that puts them into the index.

        Args:
            new: The documents.
            batch_size: Integer. Number of texts per batch.
            indices: List of the indices of the documents to replace. None adds the new documents
                at the end.
            chunks: Boolean. Whether the new documents replace all chunks of their documents.
        """
        self._check_embedder()
        own = {name: getattr(self, name) for name in self.of_documents}
        vectors = self._embed_documents(self.embedder, new, batch_size=batch_size, **own)
        behind = np.arange(len(new))

        def put() -> None:
            with self._lock:
                if indices is None:
                    documents, store = self.documents.joined(new), self._store.joined(vectors)
                elif chunks:
                    at = indices
                    if self.documents.chunks_of and new.chunks_of:
                        at = self.documents.indices_of(new.chunks_of, chunks=True)
                    documents = self.documents.exchanged(at, new)
                    kept = np.delete(np.arange(len(self)), at)
                    order = np.concatenate([kept, len(self) + behind])
                    store = self._store.joined(vectors).taken(order)
                else:
                    at = indices if self.ids is None else self.documents.indices_of(new.ids)
                    order = np.arange(len(self))
                    order[at] = len(self) + behind
                    documents = self.documents.replaced(at, new)
                    store = self._store.joined(vectors).taken(order)
                self._store, self.documents = store, documents

        return put

    @validate_arguments
    def remove(self, ids: object = None, where: Any = None) -> None:
        """Remove documents by id or by field. Later documents move up.

        Args:
            ids: One id or several ids. The id of a chunked document removes all of its chunks.
                Defaults to None.
            where: Filter as in `search`, instead of ids. Defaults to None.

        Raises:
            ValueError: If an id is unknown, if no document would remain, or if both or neither of
                `ids` and `where` are passed.

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
                indices = documents.indices_of(ids, chunks=True)
            else:
                indices = documents.where(where)
            with self._lock:
                if removed := self.documents is documents:
                    self._keep(np.delete(np.arange(len(self)), indices))

    def _keep(self, indices: np.ndarray) -> None:
        """Remove all documents except the ones at the given indices."""
        if not len(indices):
            raise ValueError("remove would leave no documents. Build a new index instead.")
        with self._lock:
            documents = self.documents.taken(indices)
            self._store, self.documents = self._store.taken(indices), documents

    @reads_weights
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the index in a folder. Use `load_index` to open it.

        Args:
            folder: Path. The files of an existing index are replaced atomically, and programs that
                have opened it can continue to read it. Other files are not changed.

        Raises:
            ValueError: If the folder contains other files, or if the embedder has changed since the
                index was built.
            OSError: If a file cannot be written, for example because the disk is full.
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
        """Load an index that `save` wrote. Its vectors are memory-mapped.

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
            raise _of_another_embedder(folder, reason)
        store = cls._opened(path, arrays, manifest.get("precision"), function)
        columns = documents.texts, documents.ids, documents.metadata
        if any(column is not None and len(column) != len(store) for column in columns):
            raise ValueError(
                f"{folder} is damaged: it has {len(documents)} documents, but vectors of "
                f"{len(store)} documents. Build the index again."
            )
        if store.width > embedder.embedding_dim:
            dims = f"{store.width} dimensions, this embedder's have {embedder.embedding_dim}"
            raise _of_another_embedder(folder, f"its vectors have {dims}")
        now = cls._fingerprint_of(embedder, store.width)
        if not are_close(now, arrays["fingerprint"]):
            raise _of_another_embedder(folder, "its vectors of the same texts differ")
        settings = {name: manifest.get(name) for name in (*cls.rules, "prompt")}
        settings.pop("precision", None)
        index = cls(embedder, store, documents, arrays["fingerprint"], **settings)
        index._known = weights_version(embedder), now
        return index

    @classmethod
    def _opened(
        cls,
        path: pathlib.Path,
        arrays: Mapping[str, np.ndarray],
        precision: str | None,
        function: str,
    ) -> Any:
        """Create the store from the arrays of a file and check their values.

        Args:
            path: Path to the file. This is only used in error messages.
            arrays: Dict of the arrays of the store, with the right types, and "fingerprint".
            precision: Precision of the store.
            function: Name of the similarity function.
        """
        raise NotImplementedError

    @validate_arguments
    @reads_weights
    def export(self, path: str | os.PathLike[str], top_k: PositiveInt = 10) -> None:
        """Export the embedder and the documents as one SavedModel for search.

        The signature "serving_default" takes "query" (Q,) and returns "index" and "score" (Q, K).
        If the index has texts and ids, it also returns "text" and "id" (Q, K). The results are the
        same as in `search` with the prompt "query", up to float32 rounding. Ids are int64 or
        strings.

        Args:
            path: Path to the version folder, such as "served/1". It is written atomically, and
                other files are not changed.
            top_k: Integer. Number of documents per query, at most the number of documents in the
                index. Defaults to 10.

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

        export_index(self._snapshot(), path, top_k)


def _of_another_embedder(folder: str | os.PathLike[str], reason: str) -> ValueError:
    return ValueError(
        f"{os.fspath(folder)} is the index of another embedder: {reason}. Build it again with this "
        "embedder, embedder.index(documents), or load the embedder that built it."
    )


def weights_version(embedder: object) -> int:
    """Return a number that increases when the weights may change, or 0 for other embedders."""
    return getattr(getattr(embedder, "backbone", None), "weights_version", 0)


def are_close(vectors: np.ndarray, expected: np.ndarray, most: float = MAX_APART) -> bool:
    """Return whether vectors differ from the expected vectors only by rounding.

    Args:
        vectors: Array of shape (N, D).
        expected: Array of shape (N, D).
        most: Float. Maximum distance, as a fraction of a vector's length. Defaults to 0.05.

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
