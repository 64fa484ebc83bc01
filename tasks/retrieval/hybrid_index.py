"""Combine several indexes in a hybrid index, and load indexes of any kind."""

from __future__ import annotations

import copy
import functools
import math
import operator
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self, Unpack

import numpy as np

from encoder_zoo.common import validation
from encoder_zoo.common.reading import convert_load_errors
from encoder_zoo.common.wording import invalid
from encoder_zoo.presets.files.atomic import replace_folder
from encoder_zoo.presets.files.manifest import MANIFEST_NAME, write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.index import Index
from encoder_zoo.tasks.retrieval.index_files import INDEX_KIND, check_manifest, read_kind
from encoder_zoo.tasks.retrieval.index_kinds import (
    BM25Index,
    MultiVectorIndex,
    SparseIndex,
    VectorIndex,
)
from encoder_zoo.tasks.retrieval.options import OpenOptions
from encoder_zoo.tasks.retrieval.ranking import Hit


def _has_weights(value: object) -> bool:
    is_list = isinstance(value, list | tuple)
    return value is None or (is_list and all(validation.is_number(v) and v >= 0 for v in value))


IndexWeights = Annotated[
    Sequence[float] | None,
    validation.Rule(_has_weights, "a number of 0 or more for each index, or None"),
]


class HybridIndex(Index):
    """Index that combines several indexes for the same documents with reciprocal rank fusion.

        index = ez.HybridIndex([embedder.index(documents), ez.BM25Index(documents)])
        index.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]

    A document's score is the sum of `1 / (rank_constant + rank)` over all indexes that find
    the document, with ranks starting at 1. The scores of the indexes therefore do not have to be
    comparable. For ties, results of earlier indexes are first.

    With `weights`, for example `HybridIndex([dense, sparse], weights=[1, 0.3])`, the score of a
    document is the weighted sum of its scores in all indexes. The best documents of each index are
    also scored by the other indexes. A document that is not found in an index has the score 0.

    Args:
        indexes: List of indexes to combine, with the same documents in the same order:
            `VectorIndex`, `MultiVectorIndex`, `SparseIndex`, `BM25Index`, or other objects with
            `search` and `len`.
        rank_constant: Integer. With larger values, the first ranks have less weight. Defaults to
            60.
        depth: Integer. Number of documents to find in each index. If `top_k` is larger, `top_k`
            documents are found. Defaults to 100.
        weights: Optional list of floats. Weight of the scores of each index. Requires indexes from
            this package, but not a `HybridIndex`. If None, ranks are used instead of scores.

    Attributes:
        indexes, rank_constant, depth, weights: See the arguments.
        texts: Optional list of texts from the first index with texts.

    Raises:
        ValueError: If `indexes` is empty, if the indexes have different documents, or if `weights`
            and `indexes` differ in length.

    Source: Cormack et al. 2009, Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank
    Learning Methods. Weighted scores: Bruch et al. 2023, An Analysis of Fusion Functions for Hybrid
    Retrieval, section 4.

    Example:
        >>> from encoder_zoo import TextEmbedder
        >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
        >>> documents = ["A cat.", "Tax law of 1990.", "A dog."]
        >>> index = HybridIndex([embedder.index(documents), embedder.index(documents, dim=64)])
        >>> index
        <HybridIndex: VectorIndex, VectorIndex; 3 documents>
        >>> [hit] = index.search("Tax law of 1990.", top_k=1)
        >>> hit["index"], round(hit["score"], 4)  # 2 / 61
        (1, 0.0328)
    """

    kind = "hybrid_index"
    rules: ClassVar = {
        "rank_constant": validation.min_integer(1),
        "depth": validation.min_integer(1),
        "weights": validation.get_rule(IndexWeights),
    }

    @validation.validate_arguments
    def __init__(
        self,
        indexes: Sequence[Any],
        rank_constant: validation.PositiveInt = 60,
        depth: validation.PositiveInt = 100,
        weights: IndexWeights = None,
    ):
        self.indexes = list(indexes)
        self.rank_constant = rank_constant
        self.depth = depth
        self.weights = None if weights is None else list(weights)
        self._check()

    def _check(self) -> None:
        """Check the weights, and that all indexes have the same documents."""
        if not self.indexes:
            raise ValueError("`indexes` is empty. Expected one or more indexes.")
        if self.weights is not None:
            if len(self.weights) != len(self.indexes):
                raise ValueError(
                    f"Received {len(self.weights)} weights for {len(self.indexes)} indexes. "
                    "Expected one weight per index."
                )
            self._check_own("weights")
        self._check_counts()
        for name, what in (("texts", "text"), ("ids", "id")):
            columns = (getattr(index, name, None) for index in self.indexes)
            columns = [column for column in columns if column is not None]
            for i, values in enumerate(zip(*columns, strict=True)):
                if len(set(values)) > 1:
                    raise ValueError(
                        f"The indexes differ in the {what} of document {i}. Expected indexes for "
                        "the same documents in the same order."
                    )

    @property
    def documents(self) -> Documents:
        """The documents. Each column comes from the first index that has it."""
        columns = []
        for name in ("texts", "ids", "metadata"):
            found = (getattr(index, name, None) for index in self.indexes)
            columns.append(next((column for column in found if column is not None), None))
        known = vars(self).get("_documents")
        if known is None or any(map(operator.is_not, known.columns, columns)):
            known = vars(self)["_documents"] = Documents(*columns)
        return known

    def _copy_for_search(self) -> Self:
        with self._lock:
            _ = self.documents  # snapshots share the documents and the caches of the documents
            now = copy.copy(self)
            now.indexes = [
                i._copy_for_search() if isinstance(i, Index) else i for i in self.indexes
            ]
            return now

    def _check_unchanged(self) -> None:
        for index in self.indexes:
            if isinstance(index, Index):
                index._check_unchanged()

    def __len__(self) -> int:
        return len(self.indexes[0])

    def __repr__(self) -> str:
        names = ", ".join(type(index).__name__ for index in self.indexes)
        return f"<HybridIndex: {names}; {len(self):,} documents>"

    @property
    def _models_to_lock(self) -> list:
        """Return the embedders of all indexes."""
        return [model for index in self.indexes for model in getattr(index, "_models_to_lock", ())]

    @property
    def nbytes(self) -> int:
        """The total size of all indexes, in bytes."""
        return sum(getattr(index, "nbytes", 0) for index in self.indexes)

    def _check_options(self, reranker: Any, candidates: int | None, options: Mapping) -> None:
        others = {name: value for name, value in options.items() if name != "batch_size"}
        super()._check_options(reranker, candidates, others)

    def _find_documents(self, queries, top_k, among=None, **options) -> Iterator[tuple]:
        self._check_counts()
        depth, found = max(top_k, self.depth), []
        if self.weights is not None:
            yield from self._find_by_scores(queries, top_k, depth, among, **options)
            return
        for index in self.indexes:
            if not isinstance(index, Index):
                if among is not None:
                    self._check_own("where")
                found.append(index.search(queries, depth))
                continue
            most = min(depth, len(index) if among is None else len(among))
            rankings = index._find_documents(queries, most, among, **options)
            found.append([index._make_hits(*ranking) for ranking in rankings])
        for rankings in zip(*found, strict=True):
            best = fuse_rankings(*rankings, k=self.rank_constant)[:top_k]
            yield [hit["index"] for hit in best], [hit["score"] for hit in best]

    def _find_by_scores(self, queries, top_k, depth, among, **options) -> Iterator[tuple]:
        """Yield the documents with the highest weighted scores, like `_find_documents`."""
        stores = [index._store for index in self.indexes]
        asked = [index._embed_queries(queries, **options) for index in self.indexes]
        most = min(depth, len(self) if among is None else len(among))
        best = [s.find_nearest(q, most, among)[0] for s, q in zip(stores, asked, strict=True)]
        for i, rankings in enumerate(zip(*best, strict=True)):
            candidates = np.unique(np.concatenate(rankings)).astype("int64")
            scores = np.zeros(len(candidates))
            for weight, store, vectors in zip(self.weights, stores, asked, strict=True):
                own, values = store.find_nearest(vectors[i : i + 1], len(candidates), candidates)
                scores[np.searchsorted(candidates, own[0])] += weight * np.asarray(values[0])
            order = np.argsort(-scores, kind="stable")[:top_k]
            yield candidates[order], scores[order]

    def _check_counts(self) -> None:
        """Raise a ValueError if documents were added or removed in only one of the indexes."""
        counts = [len(index) for index in self.indexes]
        if len(set(counts)) > 1:
            raise ValueError(
                f"The indexes have {', '.join(map(str, counts[:-1]))} and {counts[-1]} documents. "
                "Expected indexes for the same documents."
            )

    def _check_own(self, what: str) -> None:
        """Raise a ValueError if an index does not support a method or argument.

        An index from another package may lack a method. A nested HybridIndex does not support
        weights.
        """
        for i, index in enumerate(self.indexes):
            if not isinstance(index, Index):
                raise ValueError(
                    f"{what} requires indexes from this package, but indexes[{i}] is a "
                    f"{type(index).__name__}."
                )
            if what == "weights" and isinstance(index, HybridIndex):
                raise ValueError(
                    f"weights does not support nested indexes, but indexes[{i}] is a HybridIndex."
                )

    def _prepare_update(
        self,
        new: Documents,
        batch_size: int | None = None,
        indices: list[int] | None = None,
        chunks: bool = False,
    ) -> Callable[[], None]:
        """Embed documents, and return a function that puts the documents into all indexes."""
        if indices is not None:
            self._check_own("update")
        for i, index in enumerate(self.indexes):
            if not hasattr(index, "add"):
                raise ValueError(
                    f"indexes[{i}] is a {type(index).__name__}, which has no method add. Create a "
                    "HybridIndex from indexes that contain all documents."
                )
        others = [index for index in self.indexes if not isinstance(index, Index)]
        steps = [functools.partial(index.add, new.texts) for index in others]
        own = [index for index in self.indexes if isinstance(index, Index)]
        parts = [(index, new.match_columns(index.documents)) for index in own]
        steps += [index._prepare_update(some, batch_size, indices, chunks) for index, some in parts]
        return functools.partial(self._apply_steps, steps)

    def _keep_documents(self, indices: np.ndarray) -> None:
        self._check_own("remove")
        self._apply_steps([functools.partial(i._keep_documents, indices) for i in self.indexes])

    def _apply_steps(self, steps: Sequence[Callable[[], None]]) -> None:
        """Change all indexes before another search can start."""
        with self._lock:
            for step in steps:
                step()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save all indexes to a folder. Use `load` to load them again.

        Args:
            folder: String or path. Folder to write. An existing index in the folder is replaced
                atomically.

        Raises:
            ValueError: If a file from another program would be replaced, or if an index cannot be
                saved as part of a hybrid index.
        """
        for i, index in enumerate(self.indexes):
            if isinstance(index, HybridIndex) or not hasattr(index, "save"):
                raise ValueError(
                    f"indexes[{i}] is a {type(index).__name__}, which cannot be saved as part of "
                    "a HybridIndex. Save the other indexes separately, and combine them after "
                    "loading."
                )
        now = self._copy_for_search()
        names = [f"{i}_{type(index).__name__}" for i, index in enumerate(self.indexes)]
        settings = {name: getattr(self, name) for name in self.rules}
        with replace_folder(folder, INDEX_KIND) as new:
            for name, index in zip(names, now.indexes, strict=True):
                index.save(new / name)
            write_manifest(new, {"task": self.kind, "indexes": names, **settings})

    @classmethod
    @validation.validate_arguments
    def load(
        cls, folder: str | os.PathLike[str], models: Sequence[Any], verify: bool = True
    ) -> Self:
        """Load an index from a folder written by `save`.

        Args:
            folder: String or path. Folder written by `save`.
            models: List with the model of each index, or None for a `BM25Index`.
            verify: Boolean. Whether to verify the file checksums before loading. Defaults to True.

        Raises:
            FileNotFoundError: If `folder` does not exist.
            ValueError: If `folder` does not contain a HybridIndex, if a file is damaged or is
                replaced during loading, or if there is not one model per index.
        """
        manifest = read_hybrid_manifest(folder, verify)
        names = manifest["indexes"]
        if len(models) != len(names):
            raise ValueError(
                f"Received {len(models)} models for {len(names)} indexes: {', '.join(names)}. "
                "Expected one model per index, or None for a BM25Index."
            )
        parts = zip(names, models, strict=True)
        indexes = [
            load_index(pathlib.Path(folder) / name, model, verify=verify) for name, model in parts
        ]
        if read_hybrid_manifest(folder, verify=False) != manifest:
            raise ValueError(f"{folder} was replaced while it was loaded. Load it again.")
        try:
            return cls(indexes, **{name: manifest.get(name) for name in cls.rules})
        except ValueError as error:
            raise ValueError(f"{folder} is damaged: {error}") from None


def read_hybrid_manifest(folder: str | os.PathLike, verify: bool) -> dict:
    """Read and check the manifest of a hybrid index. Each index checks its own files.

    The field "indexes" contains the names of the subfolders.

    Raises:
        FileNotFoundError: If `folder` does not exist.
        ValueError: If `folder` does not contain a HybridIndex, or if a field is invalid.
    """
    # Only files in the manifest belong to the index.
    with OpenFolder(folder, [MANIFEST_NAME]) as files:
        manifest = check_manifest(files, HybridIndex.kind, verify, HybridIndex.rules)
        names = manifest.get("indexes")
        folders = {name.split("/")[0] for name in manifest["files"]}
        is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not is_list or not names or set(names) != folders or folders & {"", ".", ".."}:
            raise invalid(
                f"{files.path / MANIFEST_NAME}: indexes",
                names,
                "the subfolders of all paths in files",
            )
        return manifest


def fuse_rankings(*rankings: Sequence[Hit], k: int = 60) -> list[Hit]:
    """Fuse several rankings into one list of hits, sorted by the fused score.

    Args:
        *rankings: Lists of hits for the same query, from several indexes of the same documents.
        k: Integer. Rank constant, as in `HybridIndex`. Defaults to 60.

    Example:
        >>> first, second = ({"index": i, "score": 0.9, "text": None} for i in (7, 3))
        >>> [(hit["index"], hit["score"]) for hit in fuse_rankings([first, second], [second], k=1)]
        [(3, 0.8333333333333333), (7, 0.5)]
    """
    hits: dict[int, Hit] = {}
    parts: dict[int, list[float]] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            hits.setdefault(hit["index"], hit)
            parts.setdefault(hit["index"], []).append(1 / (k + rank))
    # `fsum` rounds only once, so the score does not depend on the order of the ranks.
    found: list[Hit] = [{**hits[i], "score": math.fsum(terms)} for i, terms in parts.items()]
    return sorted(found, key=lambda hit: -hit["score"])


INDEXES = {
    cls.kind: cls for cls in (VectorIndex, MultiVectorIndex, SparseIndex, BM25Index, HybridIndex)
}


@validation.validate_arguments
def load_index(
    folder: str | os.PathLike[str], embedder: Any = None, **options: Unpack[OpenOptions]
) -> Index:
    """Load an index of any kind from a folder written by `save`.

    Args:
        folder: String or path. Folder written by `save`.
        embedder: The embedder that the index was built with, or an equal embedder. None for a
            `BM25Index`. For a `HybridIndex`, the `HybridEmbedder`, or a list with the embedder of
            each index.
        **options: Additional options to pass to `load`: `verify`, whether to verify the file
            checksums, and `engine` (e.g. "faiss"), which is only supported for a `VectorIndex`.

    Raises:
        FileNotFoundError: If `folder` does not exist.
        ValueError: If `folder` does not contain an index, if a file is damaged, or if the index was
            built with another embedder.

    Example:
        >>> import tempfile
        >>> from encoder_zoo import TextEmbedder
        >>> embedder, folder = TextEmbedder.from_preset("bert_nano_en_uncased"), tempfile.mkdtemp()
        >>> embedder.index(["A cat.", "Tax law."]).save(folder)
        >>> load_index(folder, embedder).search("Tax law.", top_k=1)[0]["text"]
        'Tax law.'
    """
    with convert_load_errors(folder):
        return _load_index(folder, embedder, options)


def _load_index(folder: str | os.PathLike[str], embedder: Any, options: OpenOptions) -> Index:
    cls = INDEXES.get(kind := read_kind(folder))
    if cls is None:
        raise ValueError(f"{os.fspath(folder)} contains a {kind}. Expected {', '.join(INDEXES)}.")
    expected = getattr(embedder, "index_class", cls)
    if expected is not cls and cls is BM25Index:
        raise ValueError(
            f"{os.fspath(folder)} contains a BM25Index, which does not use an embedder. Call "
            "load_index(folder) without an embedder."
        )
    if expected is not cls and cls is not HybridIndex:
        raise ValueError(
            f"{os.fspath(folder)} contains a {cls.__name__}, but a {type(embedder).__name__} "
            f"requires a {expected.__name__}. Pass the embedder that the index was built with."
        )
    if cls is BM25Index:
        return cls.load(folder, **options)
    if cls is HybridIndex and hasattr(embedder, "_make_index_embedders"):
        embedder = embedder._make_index_embedders()  # one embedder for each of the three indexes
    if cls is HybridIndex and not isinstance(embedder, list | tuple):
        raise ValueError(
            f"{os.fspath(folder)} contains a HybridIndex. Expected a list with the embedder for "
            "each index, or None for a BM25Index."
        )
    if embedder is None:
        raise ValueError(
            f"{os.fspath(folder)} contains a {cls.__name__}. Pass the embedder that the index was "
            "built with: load_index(folder, embedder)."
        )
    return cls.load(folder, embedder, **options)
