"""Documents and the search among them: from queries to hits, changes, files.

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
from encoder_zoo.tasks.retrieval.documents import DocumentColumns, Documents, Where
from encoder_zoo.tasks.retrieval.evaluation import (
    by_position,
    check_by_query,
    checked_cutoffs,
    judged,
    ranking_metrics,
    search_metrics,
)
from encoder_zoo.tasks.retrieval.index_files import Types, read_index, write_index
from encoder_zoo.tasks.retrieval.ranking import Hit, checked_texts, order_and_scores, reranked

if TYPE_CHECKING:
    from typing import Self

RERANKED = 50  # documents that a reranker scores
GROUPED = 4  # documents looked at for each group, and so many times more if these are too few
CHOOSING = ("where", "min_score", "group_by", "offset")  # options of a search
# The vectors of these tell embedders apart: other weights, pooling, prompts, tokenizers.
FINGERPRINT_TEXTS = ("Where is the key?", "A naïve 东西 of 12.5 kg, isn't it?")
MAX_APART = 0.05  # of a vector's length; bfloat16 in place of float32 changes 0.01
SAME = 1e-4  # of a vector's length, by which one embedder's vectors differ in one process


class Store(Protocol):
    """The documents of an index in memory, as vectors or words, in which a search looks.

    Attributes:
        arrays: by name, for a file.
        nbytes: of memory.
    """

    arrays: dict[str, np.ndarray]
    nbytes: int

    def __len__(self) -> int:
        """Return N."""
        ...

    def joined(self, vectors: Any) -> Store:
        """Return a store with further documents behind these."""
        ...

    def taken(self, indices: np.ndarray) -> Store:
        """Return a store of some of the documents, in the order of their indices."""
        ...

    def nearest(
        self, queries: Any, k: int, among: np.ndarray | None = None
    ) -> tuple[Sequence, Sequence]:
        """Return for each query the indices of the `k` nearest documents, the nearest first, of
        equal ones the earlier, and for each query their scores; of those `among` some indices
        alone, if these are given."""
        ...


class QueryOptions(TypedDict, total=False):
    """Keyword arguments of an embedder's `embed`, for queries; `max_terms` of a `SparseEncoder`."""

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
    """Queries that are vectors already.

    Attributes:
        vectors: As the store of the index takes them.
        count: Their number.
        single: Whether one vector was given, and not a list of vectors.
    """

    vectors: Any
    count: int
    single: bool


def are_numbers(values: object) -> bool:
    """Return whether these are numbers, or lists or arrays of numbers, and no texts.

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
    """Documents, and the search among them: the base of all indexes.

    A subclass has its own way to be built, and turns texts into what its store takes.

    Args:
        embedder: of the queries and of further documents; None: the store takes texts.
        store: of the documents.
        documents: N of them; texts alone, or None, are documents without ids and fields.
        fingerprint: the embedder's vectors of `FINGERPRINT_TEXTS` when the index was built; None:
            those that it makes now.
        **settings: of further documents, such as `prompt`; they become attributes.

    Attributes:
        embedder, documents: as given.
        kind: its name in the manifest, where that of a preset names the task.
        types: {precision: types of the arrays of the store}.
        optional_types: of arrays of which a file has all or none.
        rules: of the attributes that stand in the manifest.
        of_documents: the attributes that are options of `_embed` for further documents.

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
        """Return the attributes that a copy has: it changes by itself."""
        return {name: value for name, value in vars(self).items() if name != "_changing"}

    @property
    def _lock(self) -> threading.RLock:
        """Return the lock of changes: one at a time, and no copy is made in the middle of one."""
        return vars(self).setdefault("_changing", threading.RLock())

    def _snapshot(self) -> Self:
        """Return the index as it is now, for a search that other threads' changes leave alone."""
        with self._lock:
            return copy.copy(self)

    @property
    def _asked_models(self) -> list:
        """Return the embedders of the queries."""
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
        """Return the bytes of memory that the vectors take, or of the file they are mapped from."""
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
        """Return the documents nearest to each query, the nearest first, of equal ones the earlier.

        Args:
            queries: a text, or a list, array or column of texts; or vectors of this embedder, such
                as `index.vectors[3]` for documents like the fourth: an array (D,) or (N, D), of a
                `MultiVectorIndex` (tokens, D) or a list of such arrays, of a `SparseIndex` a sparse
                matrix (N, V).
            top_k: how many documents, None for all; fewer if there are fewer, or if fewer share a
                term or a word with the query where terms or words are compared.
            reranker: an object with `rank(query, texts, top_k)`, such as a `Reranker`. It puts
                the nearest documents in its own order, with its own scores.
            candidates: how many documents the reranker reads, default 50; `top_k` if that is more.
            where: only documents whose fields meet it: {"year": {"$gte": 2023}, "lang": ["en",
                "de"]}, where all must hold and one of a list. Comparisons are "$gt", "$gte", "$lt",
                "$lte", "$eq", "$ne", "$in" and "$nin", several in one dict; or pass a function of a
                value; or a function of a document's fields. Documents without a field do not meet
                it. Dates are compared by their texts in ISO 8601, as the fields hold them.
            min_score: only hits of this score or more; of a reranker's scores, if there is one.
            group_by: a field, of whose values each has its best document alone: of the chunks of a
                book, say, the one that is nearest.
            offset: leave out so many of the first, for the pages after the first.
            **options: of the embedder's `embed`: `prompt`, default "query", `batch_size`, and of a
                `SparseEncoder` `max_terms`; of a `HybridIndex` `batch_size` alone.

        Returns:
            Of a single query a list of `{"index", "score", "text"}`, with "id" and "metadata" where
            the documents have these; otherwise a list of these for each query. Scores are the
            embedder's `similarity_function`, more is nearer: distances are negative.

        Raises:
            ValueError: If a query is empty, if a field of `where` or `group_by` is unknown, if the
                embedder has changed since the index was built, or if a reranker is passed and there
                are no texts.

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
            raise ValueError(f"queries are vectors. Expected texts, for {unfit}.")
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
        """Return queries that are vectors already, checked; None if they are texts."""
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
        """Return the best documents of each query, of each group the best one.

        Args:
            texts: of the queries.
            wanted: how many documents, or groups.
            among, options: of `_find`.
            group_by: a field, or None.
        """
        count = len(self) if among is None else len(among)
        options = options if among is None else {**options, "among": among}
        if group_by is None:
            return [self._hits(*one) for one in self._find(texts, min(wanted, count), **options)]
        groups, depth = self.documents.groups(group_by, among), wanted
        while True:  # deeper, until there are enough groups
            depth = min(GROUPED * depth, count)
            found = [self._hits(*one) for one in self._find(texts, depth, **options)]
            best = []
            for hits in found:
                firsts = {}
                for hit in hits:
                    firsts.setdefault(groups[hit["index"]], hit)
                best.append(list(firsts.values())[:wanted])
            # A query that found less than it might finds no more.
            enough = [len(b) >= wanted or len(h) < depth for b, h in zip(best, found, strict=True)]
            if depth == count or all(enough):
                return best

    def _check_options(self, reranker: Any, candidates: int | None, options: Mapping) -> None:
        if options and self.embedder is None:
            raise TypeError(
                f"{type(self).__name__} embeds no queries. Leave out {', '.join(options)}."
            )
        if reranker is not None and not hasattr(reranker, "rank"):
            raise invalid(
                "reranker", reranker, "an object with rank(query, texts, top_k), such as a Reranker"
            )
        if candidates is not None and reranker is None:
            raise ValueError(
                f"candidates is {candidates}, without a reranker. Pass reranker=..., too."
            )
        if reranker is not None and self.texts is None:
            raise ValueError("A reranker reads texts, and the index has none. Build it with texts.")

    def _find(
        self,
        queries: list[str],
        top_k: int,
        among: np.ndarray | None = None,
        vectors: Any = None,
        **options: Any,
    ) -> Iterable[tuple[Sequence[int], Sequence[float]]]:
        """Return for each query the indices of its documents, the nearest first, and their scores.

        Args:
            queries: one or more texts.
            top_k: how many documents, at most N.
            among: the indices of those that may be found; None: all.
            vectors: of the queries; None: they are embedded.
            **options: of `embed`.
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
        """Return how near the top a search has each query's relevant documents.

        Documents with the same text count as one. Those of equal scores have no order: a metric is
        its mean over all orders of them.

        Args:
            queries: texts; or {id: text}, with {id of a query: {id of a document: grade}} as
                `relevant`, as BEIR has them.
            relevant: for each query the index of its document, or a list of indices, or {index:
                grade}; where documents have ids, ids in place of indices; and with `group_by` the
                values of that field, such as the documents of chunks.
            cutoffs: how many of the first documents are looked at.
            **options: of its `search`, such as `reranker`, or `group_by="document"`. Documents
                that a reranker does not read are not found.

        Returns:
            For each cutoff k "ndcg@k", "mrr@k", "recall@k" and "accuracy@k", and "map@100".

        Raises:
            ValueError: As for `TextEmbedder.evaluate_retrieval`.

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
        if group_by is not None:  # the best of a group is read in place of all of it
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
        """Return an entry of `relevant` with the indices of ids, or of the firsts of groups."""
        find = self.documents.indices_of
        if group_by is not None:
            find = functools.partial(self.documents.indices_of_groups, group_by)
        if isinstance(relevant, Mapping):
            return dict(zip(find(relevant), relevant.values(), strict=True))
        return find(relevant)

    # -- vectors -------------------------------------------------------------------------------

    @staticmethod
    def _embed(embedder: Any, texts: list[str] | Documents, name: str, **options: Any) -> Any:
        """Return the vectors of texts as the store takes them, checked.

        Args:
            embedder: None where the store takes texts.
            texts: queries or documents; the documents themselves if they are chunks with contexts.
            name: of the vectors, for errors.
            **options: of `embed`.
        """
        raise NotImplementedError

    def _embed_queries(self, queries: list[str], **options: Any) -> Any:
        """Return the vectors of queries as `Store.nearest` takes them, checked."""
        options = {"prompt": "query", **options}
        return self._embed(self.embedder, queries, "The vectors of queries", **options)

    @classmethod
    def _embed_documents(cls, embedder: Any, documents: Documents, **options: Any) -> Any:
        """Return the vectors of documents as the store takes them, checked."""
        late = embedder is not None and documents.contexts is not None
        texts = documents if late else documents.texts
        return cls._embed(embedder, texts, "vectors", **options)

    @classmethod
    def _fingerprint_of(cls, embedder: Any, width: int) -> np.ndarray:
        """Return the embedder's vectors of `FINGERPRINT_TEXTS`, by which it is recognized."""
        raise NotImplementedError

    def _check_unchanged(self) -> None:
        """Check the embedder if its weights may be others than when it was checked last."""
        if self.embedder is not None and weights_version(self.embedder) != self._known[0]:
            self._check_embedder()

    def _check_embedder(self) -> None:
        """Raise an error if the embedder makes other vectors now than those of the index."""
        if self.embedder is None:
            return
        version = weights_version(self.embedder)
        now = self._fingerprint_of(self.embedder, self._store.width)
        # After a training small differences are no rounding.
        most = MAX_APART if version == self._known[0] else SAME
        if not are_close(now, self._known[1], most):
            raise ValueError(
                "The embedder has changed since the index was built, such as by training. Build "
                "the index again."
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
        """Add documents behind those that are there. A call copies all vectors: add many at once.

        Args:
            documents: a list, array or column of texts, a table, or rows that are dicts.
            batch_size: of `embed`.
            **columns: `ids`, one for each document, a text or an integer, as those of the index;
                `metadata`, a dict of fields for each document, or a table of them; of a table
                `text_column`, the column of texts, if that is not "text".

        Raises:
            ValueError: If `documents` or one of them is empty, if an id is in the index already, or
                if the embedder has changed since the index was built.

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
        self.documents.joined(new)  # an error before any work
        self._putting(new, batch_size)()

    @validate_arguments
    @reads_weights
    def update(
        self,
        documents: object,
        batch_size: PositiveInt | None = None,
        **columns: Unpack[DocumentColumns],
    ) -> None:
        """Replace the documents that have these ids, in their places.

        Args:
            documents, batch_size, **columns: as of `add`. Without metadata the documents keep
                their fields. Chunks, as of `embedder.chunks`, replace all chunks of their
                documents, and are put behind the documents that stay.

        Raises:
            ValueError: If an id is unknown, and as for `add`.
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
        """Embed documents, and return the function that puts them into the index.

        Args:
            new: the documents.
            batch_size: of `embed`.
            indices: of the documents that they replace; None: they go behind those that are there.
            chunks: whether they replace all chunks of their documents, and not one document each.
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
        """Remove documents by their ids or their fields; those behind them move up.

        Args:
            ids: one, or several. The id of a document that was cut into chunks removes all of them.
            where: as for `search`, in place of ids.

        Raises:
            ValueError: If an id is unknown, if no document would be left, or if not exactly one of
                `ids` and `where` is passed.

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
        while not removed:  # the documents are looked up outside of the lock, in which others wait
            documents = self.documents
            if where is None:
                indices = documents.indices_of(ids, chunks=True)
            else:
                indices = documents.where(where)
            with self._lock:
                if removed := self.documents is documents:
                    self._keep(np.delete(np.arange(len(self)), indices))

    def _keep(self, indices: np.ndarray) -> None:
        """Remove all documents but those of some indices."""
        if not len(indices):
            raise ValueError("remove would leave no document. Make another index instead.")
        with self._lock:
            documents = self.documents.taken(indices)
            self._store, self.documents = self._store.taken(indices), documents

    @reads_weights
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index into a folder, atomically; `load_index` opens it.

        Args:
            folder: to write. Of an older index in it all files are replaced, and a program that
                reads it is not disturbed; all other files stay.

        Raises:
            ValueError: If the folder holds other files, or if the embedder has changed since the
                index was built.
            OSError: If a file cannot be written, such as to a full disk.
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
        """Return the index that `save` wrote. Its vectors are read from the file when needed.

        Args:
            folder: written by `save`.
            embedder: the one that the index was built with, or an equal one.
            verify: whether to verify the checksums of the files.

        Raises:
            FileNotFoundError: If the folder does not exist.
            ValueError: If the folder does not hold such an index or is damaged, or if the index was
                built with another embedder.
        """
        found = read_index(folder, cls.kind, cls.types, cls.optional_types, cls.rules, verify)
        path, arrays, documents, manifest = found
        function = manifest.get("similarity_function")
        if function != embedder.similarity_function:  # by which the store is opened
            reason = f"it was built for {function!r:.40}, this one compares by "
            reason += repr(embedder.similarity_function)
            raise _of_another_embedder(folder, reason)
        store = cls._opened(path, arrays, manifest.get("precision"), function)
        columns = documents.texts, documents.ids, documents.metadata
        if any(column is not None and len(column) != len(store) for column in columns):
            raise ValueError(
                f"{folder} is damaged: it has {len(documents)} documents and vectors of "
                f"{len(store)}. Build the index again."
            )
        if store.width > embedder.embedding_dim:
            reason = f"its vectors are {store.width} wide, this one's {embedder.embedding_dim}"
            raise _of_another_embedder(folder, reason)
        now = cls._fingerprint_of(embedder, store.width)
        if not are_close(now, arrays["fingerprint"]):
            raise _of_another_embedder(folder, "its vectors of the same texts are others")
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
        """Return the store of the arrays of a file, which have the right types, checked.

        Args:
            path: of the file, for errors.
            arrays: of the store, and "fingerprint".
            precision: of the store.
            function: the similarity.
        """
        raise NotImplementedError

    @validate_arguments
    @reads_weights
    def export(self, path: str | os.PathLike[str], top_k: PositiveInt = 10) -> None:
        """Write the embedder and the documents as one SavedModel.

        Its signature "serving_default" takes "query" (Q,) and returns "index", "score" and, if the
        index has texts and ids, "text" and "id", each (Q, K): those of `search` with the prompt
        "query", to float32's rounding. Ids are int64, or texts. See
        `tasks/retrieval/index_export.py`.

        Args:
            path: the version folder, such as "served/1", written atomically; other files stay.
            top_k: K, how many documents of each query; all if there are fewer.

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
        "one, embedder.index(documents), or load the embedder that it was built with."
    )


def weights_version(embedder: object) -> int:
    """Return a number that grows whenever an embedder's weights may change; 0 of a stranger's."""
    return getattr(getattr(embedder, "backbone", None), "weights_version", 0)


def are_close(vectors: np.ndarray, expected: np.ndarray, most: float = MAX_APART) -> bool:
    """Return whether vectors (N, D) differ from others by rounding alone.

    Args:
        vectors: (N, D).
        expected: likewise.
        most: how far apart they may be, as a share of a vector's length.

    Example:
        >>> are_close(np.array([[1.02, 0.0]]), np.array([[1.0, 0.0]]))
        True
        >>> are_close(np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]))
        False
    """
    if vectors.shape != expected.shape:
        return False
    vectors, expected = (array.astype("float64") for array in (vectors, expected))  # 3e38 squared
    apart, lengths = (np.linalg.norm(array, axis=1) for array in (vectors - expected, expected))
    return bool((np.isfinite(lengths) & (apart <= most * lengths)).all())
