"""Export an index to a SavedModel, which only needs TensorFlow for search.

Vectors are exported in float32, regardless of the index precision, and each query is compared with
all vectors. With sparse vectors, documents that do not share a term with the query are returned
last, with a score of 0.

Comments use these letters for shapes: Q queries, K results or terms of a query, L tokens of a
query, N documents, T tokens of all documents, D width, V vocabulary, P weights above 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from encoder_zoo.common.lazy import keras, tf
from encoder_zoo.tasks.retrieval.terms import Postings
from encoder_zoo.tasks.retrieval.token_vectors import TokenVectors
from encoder_zoo.tasks.retrieval.vectors import Float32Vectors

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

MAX_BYTES = 2**31 - 1  # maximum size of the vectors
# Number of vectors beyond `k` whose Euclidean distances are computed again, with higher precision.
SPARE_VECTORS = 16


def export_index(index, path: str | os.PathLike, top_k: int = 10) -> None:
    """Write the embedder and the documents to a SavedModel. See also `Index.export`.

    Args:
        index: `Index` to export. The embedder must have a preprocessor.
        path: String or path. Version folder to write.
        top_k: Integer. Number of documents to return per query, K. Defaults to 10.
    """
    # imported here, because it needs Keras
    from encoder_zoo.tasks.serving.export import write_saved_model

    store, model = getattr(index, "_store", None), index.embedder
    kinds = {
        Float32Vectors: _make_vector_search,
        TokenVectors: _make_token_search,
        Postings: _make_term_search,
    }
    making = next((make for kind, make in kinds.items() if isinstance(store, kind)), None)
    if making is None:
        raise ValueError(
            f"A {type(index).__name__} has no embedder to export. Export a VectorIndex, "
            "MultiVectorIndex or SparseIndex."
        )
    _check_exportable(model)
    variables, compute_scores = making(store, model.similarity_function)
    options = {"dim": store.width} if isinstance(store, Float32Vectors) else {}
    embed = model.signatures(**options)["query"]
    k = min(top_k, len(index))
    columns = {}
    if index.texts is not None:
        columns["text"] = _make_variable(index.texts, "texts")
    if index.ids is not None:
        columns["id"] = _make_variable(_convert_ids(index.ids), "ids")

    def search(query):
        score, found = compute_scores(embed(query), k)
        answer = {"index": found, "score": score}
        for name, column in columns.items():
            answer[name] = tf.gather(column.read_value(), found)
        return answer

    variables = [*(variable.value for variable in model.variables), *variables, *columns.values()]
    write_saved_model(path, {"serving_default": search}, model.served_tokenizers, variables)


def _convert_ids(ids: list[str | int]) -> np.ndarray:
    """Convert ids to an int64 array, or to strings if they are strings or exceed int64."""
    fits = isinstance(ids[0], int) and all(abs(one) < 2**63 for one in ids)
    return np.array(ids, "int64") if fits else np.array([str(one).encode() for one in ids], object)


def _make_variable(values: Any, name: str) -> tf.Variable:
    return tf.Variable(values, trainable=False, name=name)


def _check_exportable(model: Task) -> None:
    """Raise a ValueError if the embedder cannot be exported."""
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise ValueError(
            f"The embedder uses the backend {backend!r}, but an export requires TensorFlow. Save "
            "the embedder and the index. Then load and export them in a process with "
            "KERAS_BACKEND=tensorflow (`pip install tensorflow`)."
        )
    if model.preprocessor is None:
        raise ValueError(
            "The embedder of the index has no preprocessor, so it cannot read texts. Create the "
            "embedder with preprocessor=..., or load it with from_preset."
        )


def _check_size(size: int, what: str, advice: str) -> None:
    """Raise a ValueError if the arrays are too large for a SavedModel."""
    if size > MAX_BYTES:
        raise ValueError(
            f"The {what} take {size / 1e9:.1f} GB. Expected at most {MAX_BYTES / 1e9:.1f} GB. "
            f"Build the index with a {advice}, or split the documents into several indexes."
        )


def _make_vector_search(store: Float32Vectors, function: str) -> tuple[list[tf.Variable], Callable]:
    """Return the variables and the search function for vectors (N, D).

    The function takes the output of the embedder and k, and returns scores (Q, K) and indices (Q,
    K).
    """
    _check_size(4 * len(store) * store.width, "vectors in float32", "smaller dim")
    rows = store.rows(slice(None))
    # Subtract the mean, because otherwise the rounding of squares hides small distances.
    center = np.zeros(store.width, "float32")
    if function == "euclidean":
        center = rows.mean(axis=0, dtype="float64").astype("float32")
    corpus = _make_variable(rows - center, "vectors")
    count, spare = len(store), SPARE_VECTORS if function == "euclidean" else 0

    def compute_ordering(vectors):
        """Compute scores (Q, N) with the same order as the similarities."""
        if function == "manhattan":
            one = tf.TensorSpec([count], tf.float32)
            distances = tf.map_fn(
                lambda v: tf.reduce_sum(tf.abs(v - corpus), axis=1),
                vectors,
                fn_output_signature=one,
            )
            return -distances
        products = tf.matmul(vectors, corpus, transpose_b=True)
        if function == "euclidean":
            products -= tf.reduce_sum(tf.square(corpus), axis=1) / 2
        return products

    def find_nearest(answer, k: int):
        vectors = answer["embedding"]  # (Q, D)
        if function == "cosine":
            vectors = tf.math.l2_normalize(vectors, axis=1)
        if function == "euclidean":
            vectors -= center
        # For ties, the first index wins.
        scores, found = tf.math.top_k(compute_ordering(vectors), min(k + spare, count))
        if function == "euclidean":
            scores = -tf.norm(vectors[:, None] - tf.gather(corpus, found), axis=2)
            scores, best = tf.math.top_k(scores, k)
            found = tf.gather(found, best, batch_dims=1)
        return scores, found

    return [corpus], find_nearest


def _make_token_search(store: TokenVectors, function: str) -> tuple[list[tf.Variable], Callable]:
    """Return the variables and the search function for token vectors (T, D)."""
    _check_size(4 * len(store.store) * store.width, "vectors in float32", "larger pool_factor")
    corpus = _make_variable(store.store.rows(slice(None)), "vectors")
    counts = np.diff(store.ends, prepend=0)
    # (T,)
    owners = _make_variable(np.repeat(np.arange(len(store), dtype="int32"), counts), "documents")

    def compute_max_sim(query):
        """Compute the MaxSim scores (N,) for a query (L, D)."""
        products = tf.matmul(corpus, query, transpose_b=True)  # (T, L)
        return tf.reduce_sum(tf.math.segment_max(products, owners), axis=1)

    def find_nearest(answer, k: int):
        # (Q, L, D), padded with zeros after the last token.
        one = tf.TensorSpec([len(store)], tf.float32)
        scores = tf.map_fn(compute_max_sim, answer["embedding"], fn_output_signature=one)
        if function == "meanmaxsim":
            scores /= tf.cast(answer["length"], scores.dtype)[:, None]
        return tf.math.top_k(scores, k)

    return [corpus, owners], find_nearest


def _make_term_search(store: Postings, function: str) -> tuple[list[tf.Variable], Callable]:
    """Return the variables and the search function for sparse vectors."""
    postings, count = store.weights, len(store)
    _check_size(8 * postings.nnz, f"{postings.nnz:,} terms of all documents", "smaller max_terms")
    weights = _make_variable(postings.data, "weights")  # (P,)
    documents = _make_variable(postings.indices.astype("int32"), "documents")  # (P,)
    starts = _make_variable(postings.indptr.astype("int64"), "starts")  # (V + 1,)

    def compute_scores(terms, values):
        """Compute the scores (Q, N). Documents that share no term with the query have the score 0.

        Args:
            terms: Integer tensor of shape (Q, K).
            values: Float tensor of shape (Q, K). Weights of the terms, 0 for padding.
        """
        queries = tf.shape(terms, tf.int64)[0]
        used = tf.where(values > 0)  # (pairs of a query and a term, 2)
        terms, values = tf.gather_nd(terms, used), tf.gather_nd(values, used)
        begins, ends = (tf.gather(starts, terms + i) for i in (0, 1))
        positions = tf.ragged.range(begins, ends).values  # in the posting lists of the terms
        products = tf.gather(weights, positions) * tf.repeat(values, ends - begins)
        found = tf.cast(tf.gather(documents, positions), tf.int64)
        cells = tf.repeat(used[:, 0] * count, ends - begins) + found
        scores = tf.math.unsorted_segment_sum(products, cells, queries * count)
        return tf.reshape(scores, [queries, count])

    def find_nearest(answer, k: int):
        values = answer["weight"]
        if function == "cosine":
            values = tf.math.l2_normalize(values, axis=1)
        return tf.math.top_k(compute_scores(answer["index"], values), k)

    return [weights, documents, starts], find_nearest
