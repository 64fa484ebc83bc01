"""Sparse query embeddings without a model, with one weight for each term.

Comments use these letters for shapes: B batch, L sequence, N texts, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, Unpack

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.lazy import require, use_numpy, xp
from encoder_zoo.common.model_configuration import check_file_size
from encoder_zoo.common.ragged_array import make_array
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.embedding.pair_columns import convert_single_texts
from encoder_zoo.tasks.embedding.sparse_pooling import pool_term_weights
from encoder_zoo.tasks.preprocessing.packing import truncate_tokens
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor, report_truncated
from encoder_zoo.tasks.retrieval.terms import sparse

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TermTable(ConfigFromSignature, keras.layers.Layer):
    """Query encoder that looks up one trainable weight per term instead of running a model.

        table = ez.TermTable.from_documents(tokenizer, documents)  # rare terms weigh more
        encoder = ez.SparseEncoder.from_preset("bert_base_en_uncased", query_encoder=table)
        encoder.compile(query_learning_rate=1e-3)
        encoder.fit((queries, documents))  # set `table.trainable = False` to keep the weights

    Args:
        tokenizer: Tokenizer of this package for the queries.
        max_length: Integer. Maximum number of tokens per query. Longer queries are truncated. If
            None, queries are not truncated.
        vocabulary_size: Integer. The vocabulary size in the document vectors (V). If None, the
            tokenizer's vocabulary size will be used.

    Call arguments:
        inputs: Dict with "token_ids" and "padding_mask" (B, L), without special tokens.

    Returns:
        Float32 tensor of shape (B, V).

    Source: Geng et al. 2024, Towards Competitive Search Relevance For Inference-Free Learned Sparse
    Retrievers, section 3.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> table = TermTable(BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
        >>> _ = table.weight.assign([0.0, 0.1, 0.0, 0.0, 0.0, 0.5])
        >>> table.embed(["a b a"]).toarray().round(1).tolist()
        [[0.0, 0.10000000149011612, 0.0, 0.0, 0.0, 0.5]]
    """

    truncation_advice = Preprocessor.truncation_advice

    @validate_arguments
    def __init__(
        self,
        tokenizer,
        max_length: PositiveInt | None = None,
        vocabulary_size: PositiveInt | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.vocabulary_size = vocabulary_size or tokenizer.vocabulary_size
        if self.vocabulary_size < tokenizer.vocabulary_size:
            raise invalid(
                "vocabulary_size",
                vocabulary_size,
                f"at least {tokenizer.vocabulary_size}, the number of tokens of the tokenizer",
            )
        shape = (self.vocabulary_size,)
        self.weight = self.add_weight(shape=shape, initializer="ones", name="weight")
        self.built = True

    @classmethod
    def count_min_weights(cls, config: dict) -> int:
        """Return the number of weights of a table with this configuration."""
        return config["vocabulary_size"]

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> Self:
        check_file_size(cls, config)
        return super().from_config(config, custom_objects)

    @classmethod
    @validate_arguments
    def from_documents(
        cls, tokenizer, documents: object, max_length: PositiveInt | None = None
    ) -> Self:
        """Create a table with the inverse document frequency (IDF) of each term.

        A term that occurs in n of N documents has the weight log(1 + (N - n + 0.5) / (n + 0.5)).

        Args:
            tokenizer, max_length: See the class.
            documents: List, array or column of texts to compute the weights from.

        Source: Robertson and Zaragoza 2009, The Probabilistic Relevance Framework: BM25 and Beyond,
        section 3.1, with 1 added so that no weight is negative.
        """
        ids = tokenizer.tokenize(convert_single_texts(documents))
        rows = np.asarray(ids.value_rowids())
        terms = np.unique(rows * tokenizer.vocabulary_size + np.asarray(ids.flat_values))
        terms, count = terms % tokenizer.vocabulary_size, int(ids.nrows())
        n = np.bincount(terms, minlength=tokenizer.vocabulary_size)
        table = cls(tokenizer, max_length)
        table.weight.assign(np.log1p((count - n + 0.5) / (n + 0.5)))
        return table

    def encode_queries(self, texts: xp.Tensor) -> dict:
        """Tokenize texts (N,) without adding special tokens."""
        most = self.max_length
        tokens = self.tokenizer.tokenize(texts, most and most + 1)
        if most:
            part = "the beginning" if self.tokenizer.truncation_side == "left" else "the end"
            what = f"queries are longer than {most} tokens, so {part} is truncated."
            report_truncated(tokens.row_lengths() > most, self, what)
            tokens = truncate_tokens(tokens, most, self.tokenizer.truncation_side)
        return {"token_ids": tokens}

    def call(self, inputs):
        ids = inputs["token_ids"]
        real = ops.cast(inputs.get("padding_mask", ops.ones_like(ids)), "float32")
        return self.weight * pool_term_weights(real, ids, self.vocabulary_size)

    def embed(self, texts: object) -> csr_array:
        """Compute the term weights for queries, (N, V) as a `scipy.sparse.csr_array`.

        Args:
            texts: The query or queries to embed, as a string or a list, array, tensor or column of
                strings.
        """
        require(sparse)
        texts = [texts] if isinstance(texts, str | bytes) else texts
        with use_numpy():  # for a few texts, tracing a graph would take longer
            column = make_array(np.asarray(convert_single_texts(texts)))
            return self.look_up_rows(self.encode_queries(column)["token_ids"])

    def look_up_rows(self, ids: xp.RaggedTensor) -> csr_array:
        """Look up the term weights (N, V) for tokens (N, None)."""
        rows, columns = np.asarray(ids.value_rowids()), np.asarray(ids.flat_values)
        places = np.unique(rows.astype("int64") * self.vocabulary_size + columns)
        rows, columns = np.divmod(places, self.vocabulary_size)
        weights = ops.convert_to_numpy(self.weight)[columns]
        shape = (int(ids.nrows()), self.vocabulary_size)
        found = sparse.csr_array((weights, (rows, columns)), shape=shape)
        found.eliminate_zeros()
        return found
