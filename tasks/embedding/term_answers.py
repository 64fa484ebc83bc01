"""Sparse embeddings with term weights for texts.

Comments use these letters for shapes: N texts, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from encoder_zoo.common.lazy import array_ops, require
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.base.answers import Runner, prepares_in_numpy
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.embedding.embedding_answers import EmbeddingAnswers
from encoder_zoo.tasks.embedding.pair_columns import only_column
from encoder_zoo.tasks.embedding.sparse_encoder_preprocessor import SparseEncoderPreprocessor
from encoder_zoo.tasks.retrieval.terms import as_rows, best_first, sparse

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Term = tuple[str, float]


@dataclasses.dataclass(frozen=True)
class TermAnswers(EmbeddingAnswers):
    """Answers from `SparseEncoder` models. See there for the settings.

    Attributes:
        similarity_function: Function to use for comparing vectors.
        max_terms: Optional positive integer. Maximum number of terms to keep per text.
        query_runner: Runner for the query model. If None, the same model is used for queries and
            documents.
        query_rows: Function to compute sparse vectors from a column of queries (N,) without a
            model, or None.
    """

    preprocessor_class = SparseEncoderPreprocessor
    methods = ("embed", "top_terms")
    index_kind = "sparse_index"
    similarity_function: Literal["dot", "cosine"] = "dot"
    max_terms: PositiveInt | None = None
    query_runner: Runner | None = None
    query_rows: Callable[[array_ops.Tensor], csr_array] | None = None

    @property
    def terms(self) -> list[str]:
        """Return the terms in the vocabulary (V,), with "" for rows not used by the tokenizer."""
        tokens = self.preprocessor.tokenizer.get_vocabulary()
        return tokens + [""] * (self.embedding_dim - len(tokens))

    @validate_arguments
    @prepares_in_numpy
    @skips_missing("texts")
    def embed(
        self,
        texts: Any,
        prompt: str | None = None,
        max_terms: PositiveInt | None = None,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> csr_array:
        """Compute the term weights. See `SparseEncoder.embed` for details."""
        column = only_column([texts] if isinstance(texts, str | bytes) else texts)
        most = max_terms or self.max_terms
        require(sparse)
        if not column.shape[0]:
            return sparse.csr_array((0, self.embedding_dim), dtype="float32")
        is_query = self.preprocessor.is_query(prompt)
        if is_query and self.query_rows is not None:
            text = self.preprocessor.prompt_text(prompt)
            rows = self.query_rows(array_ops.strings.join([text, column]) if text else column)
            return rows if most is None else as_rows(rows.toarray(), most)
        runner = self.query_runner if is_query and self.query_runner else self.runner
        examples = self.preprocessor.encode(column, prompt=prompt)
        parts, order = [], []
        for indices, weights in runner.run_examples(examples, batch_size):
            parts.append(as_rows(np.asarray(weights), most))
            order.append(indices)
        return sparse.vstack(parts, format="csr")[np.argsort(np.concatenate(order))]

    @validate_arguments
    def top_terms(
        self,
        texts: Any,
        k: PositiveInt = 10,
        prompt: str | None = None,
        batch_size: PositiveInt | None = None,
    ) -> list[Term] | list[list[Term]]:
        """Return the terms with the largest weights. See `SparseEncoder.top_terms` for details."""
        if isinstance(texts, str | bytes):
            return self.top_terms([texts], k, prompt, batch_size)[0]
        vectors, terms = self.embed(texts, prompt, None, batch_size), self.terms
        found = []
        for begin, end in zip(vectors.indptr[:-1], vectors.indptr[1:], strict=True):
            weights, indices = vectors.data[begin:end], vectors.indices[begin:end]
            best = best_first(weights, indices, min(k, len(weights)))
            names = [terms[i] for i in indices[best].tolist()]
            found.append(list(zip(names, weights[best].tolist(), strict=True)))
        return found
