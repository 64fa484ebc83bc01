"""Export of a multi-vector index: from a query to texts in one SavedModel, with TensorFlow alone.

Comment letters: Q queries, L tokens of a query, N documents, T tokens of all documents, D width.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.retrieval.index_export import check_exportable, write_search

if TYPE_CHECKING:
    from encoder_zoo.tasks.retrieval.multi_vector_index import MultiVectorIndex


def export_multi_vector_index(
    index: MultiVectorIndex, path: str | os.PathLike, top_k: int = 10
) -> None:
    """Write the embedder and the documents of an index as a SavedModel.

    Its signature "serving_default" takes "query" (Q,) and returns "index", "score" and, if the
    index has texts, "text", each (Q, K): those of `search` with the prompt "query", to float32's
    rounding. The vectors are in it as float32, whatever the precision of the index, and a query is
    compared with all of them.

    Args:
        index: whose embedder has a preprocessor.
        path: the version folder, such as "served/1", written atomically; other files stay.
        top_k: K, how many documents of each query; all if there are fewer.

    Raises:
        ValueError: as `export_index`.
    """
    embedder, documents = index.embedder, index._store
    check_exportable(embedder, len(documents.store), index.dim)
    corpus = tf.Variable(documents.store.rows(slice(None)), trainable=False, name="vectors")
    counts = np.diff(documents.ends, prepend=0)
    numbers = np.repeat(np.arange(len(documents), dtype="int32"), counts)
    owners = tf.Variable(numbers, trainable=False, name="documents")  # (T,)
    embed = embedder.signatures()["query"]
    best = _best(corpus, owners, min(top_k, len(index)))
    write_search(
        path, embedder, lambda query: best(embed(query)["embedding"]), [corpus, owners], index.texts
    )


def _best(corpus: tf.Variable, owners: tf.Variable, k: int) -> Callable:
    """Return the function from vectors (Q, L, D), zeros behind the last token, to scores (Q, K) and
    indices (Q, K), in a graph."""

    def scores_of(query):
        """Return the MaxSim (N,) of a query (L, D)."""
        products = tf.matmul(corpus, query, transpose_b=True)  # (T, L)
        return tf.reduce_sum(tf.math.segment_max(products, owners), axis=1)

    def best(queries):
        scores = tf.map_fn(scores_of, queries)
        return tf.math.top_k(scores, k)  # of equal ones the earlier

    return best
