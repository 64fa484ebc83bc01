"""Export of a sparse index: from a query to texts in one SavedModel, with TensorFlow alone.

Comment letters: Q queries, K terms of each, N documents, V vocabulary, P weights above 0.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.retrieval.index_export import MAX_BYTES, check_exportable, write_search
from encoder_zoo.tasks.sparse_retrieval.inference import terms_in_graph

if TYPE_CHECKING:
    from encoder_zoo.tasks.sparse_retrieval.index import SparseIndex


def export_index(index: SparseIndex, path: str | os.PathLike, top_k: int = 10) -> None:
    """Write the encoder and the documents of an index as a SavedModel.

    Its signature "serving_default" takes "query" (Q,) and returns "index", "score" and, if the
    index has texts, "text", each (Q, `top_k`): those of `search` with the prompt "query", to
    float32's rounding. Documents without a term of the query come last, with the score 0.

    Args:
        index: whose encoder has a preprocessor.
        path: the version folder, such as "served/1", written atomically; other files stay.
        top_k: how many documents of each query; all if there are fewer.

    Raises:
        ValueError: "Export needs Keras's TensorFlow backend. ...", "... has no preprocessor ...",
            "The documents have 300,000,000 terms, which take 2.4 GB. ..."

    Example:
        >>> import tempfile
        >>> import tensorflow as tf
        >>> from encoder_zoo import SparseEncoder
        >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased")
        >>> index = encoder.index(["A cat.", "Tax law."])
        >>> folder = tempfile.mkdtemp() + "/1"
        >>> index.export(folder, top_k=1)
        >>> search = tf.saved_model.load(folder).signatures["serving_default"]
        >>> search(query=tf.constant(["Tax law."]))["score"].shape
        TensorShape([1, 1])
    """
    encoder, postings = index.embedder, index._store.weights
    k = min(top_k, len(index))
    check_exportable(encoder, 0, 0)
    _check_size(postings.nnz)
    arrays = {
        "weights": postings.data,
        "documents": postings.indices.astype("int32"),
        "starts": postings.indptr.astype("int64"),
    }
    parts = {n: tf.Variable(values, trainable=False, name=n) for n, values in arrays.items()}

    def find(query):
        _, terms, weights = terms_in_graph(encoder, query, "query", encoder.max_terms)
        if encoder.similarity_function == "cosine":
            weights = tf.math.l2_normalize(weights, axis=1)
        return tf.math.top_k(_scores(parts, terms, weights, len(index)), k)

    write_search(path, encoder, find, list(parts.values()), index.texts)


def _check_size(count: int) -> None:
    """Raise an error if the terms of all documents, each a weight and a document, are too many.

    Raises:
        ValueError: "The documents have 300,000,000 terms, which take 2.4 GB. An export holds ..."
    """
    size = 8 * count
    if size > MAX_BYTES:
        raise ValueError(
            f"The documents have {count:,} terms, which take {size / 1e9:.1f} GB. An export holds "
            f"at most {MAX_BYTES / 1e9:.1f} GB: build the index with a smaller max_terms, or "
            "divide the documents among several."
        )


def _scores(parts: dict, terms: tf.Tensor, weights: tf.Tensor, count: int) -> tf.Tensor:
    """Return the scores (Q, N), adding up those documents alone that have a term of the query.

    Args:
        parts: "weights" (P,), "documents" (P,) and "starts" (V + 1,) of the postings.
        terms: (Q, K) int32.
        weights: (Q, K), 0 beyond the terms of a query.
        count: N.
    """
    queries = tf.shape(terms, tf.int64)[0]
    used = tf.where(weights > 0)  # (pairs of a query and a term, 2)
    terms, weights = tf.gather_nd(terms, used), tf.gather_nd(weights, used)
    begins, ends = (tf.gather(parts["starts"], terms + i) for i in (0, 1))
    positions = tf.ragged.range(begins, ends).values  # in the lists of these terms
    products = tf.gather(parts["weights"], positions) * tf.repeat(weights, ends - begins)
    documents = tf.cast(tf.gather(parts["documents"], positions), tf.int64)
    cells = tf.repeat(used[:, 0] * count, ends - begins) + documents
    scores = tf.math.unsorted_segment_sum(products, cells, queries * count)
    return tf.reshape(scores, [queries, count])
