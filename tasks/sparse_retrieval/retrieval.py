"""Methods of `SparseEncoder` on top of its vectors: similarity, ranking, search, evaluation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Unpack

import numpy as np

from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.retrieval.evaluation import checked_cutoffs
from encoder_zoo.tasks.retrieval.judgments import judged
from encoder_zoo.tasks.retrieval.metrics import search_metrics
from encoder_zoo.tasks.retrieval.ranking import RanksTexts
from encoder_zoo.tasks.sparse_retrieval.index import SparseIndex, SparseIndexOptions
from encoder_zoo.tasks.sparse_retrieval.postings import Postings
from encoder_zoo.tasks.sparse_retrieval.sparse_matrices import normalized_for, sparse, unit_rows


class SparseRetrieval(RanksTexts):
    """Mixin of `SparseEncoder`."""

    @validate_arguments
    def similarity(self, a: object, b: object) -> np.ndarray:
        """Return how similar each of some texts is to each of others.

        Args:
            a: texts, or vectors (N, V).
            b: texts, or vectors (M, V).

        Returns:
            (N, M) float32, by the model's `similarity_function`; more is closer. Of a single text
            the axis is left out.

        Example:
            >>> from encoder_zoo import SparseEncoder
            >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased")
            >>> encoder.similarity("A cat.", ["A cat.", "A dog."]).shape
            (2,)
        """
        single = [isinstance(x, str | bytes) for x in (a, b)]
        a, b = (x if sparse.issparse(x) else self.embed(x) for x in (a, b))
        if self.similarity_function == "cosine":
            a, b = (unit_rows(sparse.csr_array(x)) for x in (a, b))
        found = (a @ b.T).toarray()
        return found[tuple(0 if one else slice(None) for one in single)]

    def _scores_of_texts(self, query, texts, batch_size):
        documents = self.embed(texts, "document", batch_size=batch_size)
        return self.similarity(self.embed([query], "query"), documents)[0]

    def index(self, documents: object, **options: Unpack[SparseIndexOptions]) -> SparseIndex:
        """Return an index that finds the documents nearest to a text; see `SparseIndex.build`.

        Args:
            documents: texts.
            **options: of `SparseIndex.build`, such as `max_terms=200`.

        Example:
            >>> from encoder_zoo import SparseEncoder
            >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased")
            >>> len(encoder.index(["A cat.", "Tax law."]))
            2
        """
        return SparseIndex.build(self, documents, **options)

    @validate_arguments
    def load_index(self, folder: str | os.PathLike[str], verify: bool = True) -> SparseIndex:
        """Open an index that `SparseIndex.save` wrote; see `SparseIndex.load`.

        Args:
            folder: of the index.
            verify: whether to verify the checksums of the files.
        """
        return SparseIndex.load(folder, self, verify)

    @validate_arguments
    def evaluate_retrieval(
        self,
        queries: object,
        documents: object,
        relevant: Sequence | None = None,
        cutoffs: Sequence[int] = (1, 5, 10),
        batch_size: PositiveInt | None = None,
        query_prompt: str | None = "query",
        document_prompt: str | None = "document",
    ) -> dict[str, float]:
        """Return how near the top each query has its relevant documents, among all documents.

        Documents with the same text count as one. A document without a term of the query is not
        found. Those of equal scores have no order: a metric is its mean over all orders of them.

        Args:
            queries: texts.
            documents: texts.
            relevant: for each query the index of its document, or a list of indices, or {index:
                grade}; None: the document with the query's own index.
            cutoffs: how many of the nearest documents are looked at.
            batch_size: of `embed`.
            query_prompt: of `embed`, for queries.
            document_prompt: of `embed`, for documents.

        Returns:
            As `TextEmbedder.evaluate_retrieval`; and "query_terms" and "document_terms", the
            mean numbers of terms of a query and of a document, and "flops", the mean number of
            products for the score of a query and a document.

        Raises:
            ValueError: "queries is empty. ...", "relevant has 3 entries for 4 queries. ...",
                "relevant[2] has the document 9. Expected indices from 0 to 8.", "cutoffs is ..."

        Source: `flops` Paria et al. 2020, Minimizing FLOPs to Learn Efficient Sparse
        Representations, section 3.

        Example:
            >>> from encoder_zoo import SparseEncoder
            >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased")
            >>> found = encoder.evaluate_retrieval(["A cat.", "Tax."], ["Tax.", "A cat."], [1, 0])
            >>> found["query_terms"] > 0, found["flops"] > 0
            (True, True)
        """
        cutoffs = checked_cutoffs(cutoffs)
        texts = judged(queries, documents, relevant)
        documents = self.embed(texts.documents, document_prompt, batch_size=batch_size)
        queries = self.embed(texts.queries, query_prompt, batch_size=batch_size)
        compared = [normalized_for(rows, self.similarity_function) for rows in (queries, documents)]
        postings = Postings(compared[1].T.tocsr())

        def search(some: list[int], k: int):
            return postings.nearest(compared[0][some], k)

        shares = [(rows > 0).mean(axis=0) for rows in (queries, documents)]
        return {
            **search_metrics(search, texts.relevant, cutoffs, len(postings)),
            "query_terms": queries.nnz / queries.shape[0],
            "document_terms": documents.nnz / documents.shape[0],
            "flops": float(shares[0] @ shares[1]),
        }
