"""Methods of `LateInteraction` on top of its vectors: similarity, ranking, search, evaluation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Unpack

import numpy as np

from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.late_interaction.preprocessor import DOCUMENT, QUERY
from encoder_zoo.tasks.late_interaction.scoring import max_sim
from encoder_zoo.tasks.retrieval.evaluation import checked_cutoffs
from encoder_zoo.tasks.retrieval.judgments import judged
from encoder_zoo.tasks.retrieval.metrics import search_metrics
from encoder_zoo.tasks.retrieval.multi_vector_index import MultiVectorIndex
from encoder_zoo.tasks.retrieval.options import MultiVectorIndexOptions
from encoder_zoo.tasks.retrieval.ranking import RanksTexts
from encoder_zoo.tasks.retrieval.token_vectors import TokenVectors


class TokenVectorRetrieval(RanksTexts):
    """Mixin of `LateInteraction`."""

    def similarity(self, queries: object, documents: object) -> np.ndarray:
        """Return how well each of some queries matches each of some documents (MaxSim).

        Args:
            queries: texts, or their vectors: arrays (tokens, D), as of `embed`.
            documents: likewise.

        Returns:
            (Q, N) float32: the sum over the query's tokens of the largest product with a token of
            the document. Of a single text or array the axis is left out.

        Example:
            >>> from encoder_zoo import LateInteraction
            >>> model = LateInteraction.from_preset("bert_nano_en_uncased", dim=16)
            >>> model.similarity("A cat.", ["A cat.", "A dog."]).shape
            (2,)
        """
        queries, one_query = self._vectors_of(queries, QUERY, "queries")
        documents, one_document = self._vectors_of(documents, DOCUMENT, "documents")
        scores = max_sim(queries, documents)
        scores = scores[0] if one_query else scores
        return scores[..., 0] if one_document else scores

    def _vectors_of(self, x: object, prompt: str, name: str) -> tuple[list[np.ndarray], bool]:
        """Return the vectors of texts, or given ones, checked; and whether it is a single one."""
        if isinstance(x, str | bytes):
            return self.embed([x], prompt), True
        single = isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.ndim == 2
        given = [x] if single else x
        is_list = isinstance(given, list | tuple | np.ndarray) and len(given) > 0
        if not (is_list and isinstance(given[0], np.ndarray) and given[0].dtype.kind == "f"):
            return self.embed(x, prompt), False
        for i, vectors in enumerate(given):
            if np.shape(vectors)[1:] != (self.embedding_dim,) or not len(vectors):
                raise ValueError(
                    f"{name}[{i}] has the shape {np.shape(vectors)}. Expected (tokens, "
                    f"{self.embedding_dim}), of one token or more."
                )
        return list(given), single

    def _scores_of_texts(self, query, texts, batch_size):
        documents = self.embed(texts, DOCUMENT, batch_size)
        return max_sim(self.embed([query], QUERY, batch_size), documents)[0]

    def index(
        self, documents: object, **options: Unpack[MultiVectorIndexOptions]
    ) -> MultiVectorIndex:
        """Return an index that finds the documents that match a text; see `MultiVectorIndex.build`.

        Args:
            documents: texts.
            **options: of `MultiVectorIndex.build`, such as `precision="int8"` or `pool_factor=2`.
        """
        return MultiVectorIndex.build(self, documents, **options)

    @validate_arguments
    def load_index(self, folder: str | os.PathLike[str], verify: bool = True) -> MultiVectorIndex:
        """Open an index that `MultiVectorIndex.save` wrote; see `MultiVectorIndex.load`.

        Args:
            folder: of the index.
            verify: whether to verify the checksums of the files.
        """
        return MultiVectorIndex.load(folder, self, verify)

    @validate_arguments
    def evaluate_retrieval(
        self,
        queries: object,
        documents: object,
        relevant: Sequence[object] | None = None,
        cutoffs: Sequence[int] = (1, 5, 10),
        batch_size: PositiveInt | None = None,
    ) -> dict[str, float]:
        """Return how near the top each query has its relevant documents, among all documents.

        Documents with the same text count as one. Those of equal scores have no order: a metric is
        its mean over all orders of them.

        Args:
            queries: texts.
            documents: texts.
            relevant: for each query the index of its document, or a list of indices, or {index:
                grade}; None: the document with the query's own index.
            cutoffs: how many of the nearest documents are looked at.
            batch_size: of `embed`.

        Returns:
            For each cutoff k "ndcg@k", "mrr@k", "recall@k" and "accuracy@k", and "map@100".

        Raises:
            ValueError: "queries is empty. ...", "relevant has 3 entries for 4 queries. ...",
                "cutoffs is ..."

        Example:
            >>> from encoder_zoo import LateInteraction
            >>> model = LateInteraction.from_preset("bert_nano_en_uncased", dim=16)
            >>> found = model.evaluate_retrieval(["A cat.", "Tax."], ["Tax.", "A cat."], [1, 0])
            >>> sorted(found)[:2]
            ['accuracy@1', 'accuracy@10']
        """
        cutoffs = checked_cutoffs(cutoffs)
        texts = judged(queries, documents, relevant)
        queries = self.embed(texts.queries, QUERY, batch_size)
        documents = TokenVectors.of(self.embed(texts.documents, DOCUMENT, batch_size), "float32")

        def search(some: list[int], k: int):
            return zip(*documents.nearest([queries[i] for i in some], k), strict=True)

        return search_metrics(search, texts.relevant, cutoffs, len(documents))
