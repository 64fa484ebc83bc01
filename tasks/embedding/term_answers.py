"""Sparse embeddings with term weights for texts.

Comments use these letters for shapes: N texts, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from encoder_zoo.common.lazy import require, xp
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.base.answers import Runner, prepares_in_numpy
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.embedding.pair_columns import convert_single_texts
from encoder_zoo.tasks.embedding.searchable import EmbeddingAnswers
from encoder_zoo.tasks.embedding.sparse_encoder_preprocessor import SparseEncoderPreprocessor
from encoder_zoo.tasks.retrieval.terms import convert_to_sparse_rows, find_largest_weights, sparse

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Term = tuple[str, float]


@dataclasses.dataclass(frozen=True)
class TermAnswers(EmbeddingAnswers):
    """The `Answers` of `SparseEncoder`. See `SparseEncoder` for the settings.

    Attributes:
        similarity_function: String. Name of the function that compares vectors.
        max_terms: Optional positive integer. Maximum number of terms to keep per text.
        query_runner: Runner for the query model. If None, the same model is used for queries and
            documents.
        query_rows: Optional function that computes sparse vectors from a column of queries (N,)
            without a model.
    """

    preprocessor_class = SparseEncoderPreprocessor
    methods = ("embed", "top_terms")
    index_kind = "sparse_index"
    similarity_function: Literal["dot", "cosine"] = "dot"
    max_terms: PositiveInt | None = None
    query_runner: Runner | None = None
    query_rows: Callable[[xp.Tensor], csr_array] | None = None

    @property
    def terms(self) -> list[str]:
        """Return the terms of the vocabulary (V,), or "" for rows without a token."""
        tokens = self.preprocessor.tokenizer.get_vocabulary()
        return tokens + [""] * (self.embedding_dim - len(tokens))

    @validate_arguments
    @prepares_in_numpy
    @skips_missing("texts")
    def embed(
        self: Any,
        texts: object,
        prompt: str | None = None,
        max_terms: PositiveInt | None = None,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> csr_array:
        """Compute the sparse embeddings for texts.

        Args:
            texts: A text, or a list, array, tensor or column of texts.
            prompt: String. The prompt to use for encoding: either a prompt name (e.g. "query" or
                "document") or a prompt text. The prompt will be prepended to each text. These names
                have no effect on models without prompts. If None, the model's default prompt will
                be used. See also `TextEmbedder.embed`.
            max_terms: Integer. Maximum number of terms to keep per text, based on the largest
                weights. If None, the model's `max_terms` will be used.
            batch_size: Integer. The batch size used for the computation. Defaults to 32.
            missing: "none" or "error". How to handle rows without text (e.g. None, NaN or blank
                strings). "none" returns a row without terms. "error" raises an error with the index
                of the first missing row. Defaults to "error".

        Returns:
            Float32 `scipy.sparse.csr_array` of shape (N, V), in the same order as the texts. For a
            single text, the result has a single row.

        Raises:
            ValueError: If a text is empty, or if `prompt` is unknown.
            ImportError: If scipy is not installed.

        Example:
            >>> from encoder_zoo import SparseEncoder
            >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased")
            >>> vectors = encoder.embed(["A text.", "Another one."], max_terms=20)
            >>> vectors.shape[0], vectors.nnz
            (2, 40)
        """
        column = convert_single_texts([texts] if isinstance(texts, str | bytes) else texts)
        most = max_terms or self.max_terms
        require(sparse)
        if not column.shape[0]:
            return sparse.csr_array((0, self.embedding_dim), dtype="float32")
        is_query = self.preprocessor.is_query(prompt)
        if is_query and self.query_rows is not None:
            text = self.preprocessor.get_prompt_text(prompt)
            rows = self.query_rows(xp.strings.join([text, column]) if text else column)
            return rows if most is None else convert_to_sparse_rows(rows.toarray(), most)
        runner = self.query_runner if is_query and self.query_runner else self.runner
        examples = self.preprocessor.encode(column, prompt=prompt)
        parts, order = [], []
        for indices, weights in runner.run_examples(examples, batch_size):
            parts.append(convert_to_sparse_rows(np.asarray(weights), most))
            order.append(indices)
        return sparse.vstack(parts, format="csr")[np.argsort(np.concatenate(order))]

    @overload
    def top_terms(
        self: Any, texts: str, k: int = 10, prompt: str | None = None, batch_size: int | None = None
    ) -> list[Term]: ...
    @overload
    def top_terms(
        self: Any,
        texts: object,
        k: int = 10,
        prompt: str | None = None,
        batch_size: int | None = None,
    ) -> list[list[Term]]: ...
    @validate_arguments
    def top_terms(
        self,
        texts: object,
        k: PositiveInt = 10,
        prompt: str | None = None,
        batch_size: PositiveInt | None = None,
    ) -> list[Term] | list[list[Term]]:
        """Return the terms with the largest weights for each text, in descending order.

        Args:
            texts: The text or texts to embed, as in `embed`.
            k: Integer. Maximum number of terms to return per text. Only terms with a weight are
                returned. Defaults to 10.
            prompt, batch_size: See `embed`.

        Returns:
            List of (term, weight) tuples for each text, with terms as written by the tokenizer. For
            a single text, a single list is returned.

        Example:
            >>> from encoder_zoo import SparseEncoder
            >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased")
            >>> len(encoder.top_terms("A good film.", k=3))
            3
        """
        if isinstance(texts, str | bytes):
            return self.top_terms([texts], k, prompt, batch_size)[0]
        vectors, terms = self.embed(texts, prompt, None, batch_size), self.terms
        found = []
        for begin, end in zip(vectors.indptr[:-1], vectors.indptr[1:], strict=True):
            weights, indices = vectors.data[begin:end], vectors.indices[begin:end]
            best = find_largest_weights(weights, indices, min(k, len(weights)))
            names = [terms[i] for i in indices[best].tolist()]
            found.append(list(zip(names, weights[best].tolist(), strict=True)))
        return found
