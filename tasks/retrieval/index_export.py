"""Export of an index: from a query to texts in one SavedModel, with TensorFlow alone.

Comment letters: Q queries, N documents, D width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import keras

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.serving.export import write_saved_model

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task
    from encoder_zoo.tasks.retrieval.vector_index import VectorIndex

MAX_BYTES = 2**31 - 1  # of the vectors


def export_index(index: VectorIndex, path: str | os.PathLike, top_k: int = 10) -> None:
    """Write the embedder and the documents of an index as a SavedModel.

    Its signature "serving_default" takes "query" (Q,) and returns "index", "score" and, if the
    index has texts, "text", each (Q, K): those of `search` with the prompt "query", to float32's
    rounding. The vectors are in it as float32, whatever the precision of the index.

    Args:
        index: whose embedder has a preprocessor.
        path: the version folder, such as "served/1", written atomically; other files stay.
        top_k: K, how many documents of each query; all if there are fewer.

    Raises:
        ValueError: "Export needs Keras's TensorFlow backend. ...", "... has no preprocessor ...",
            "The vectors take 3.1 GB as float32. ..."

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
    embedder = index.embedder
    check_exportable(embedder, len(index), index.dim)
    corpus = tf.Variable(index.vectors, trainable=False, name="vectors")
    embed = embedder.signatures(dim=index.dim)["query"]
    nearest = _nearest(embedder.similarity_function, corpus, min(top_k, len(index)))
    write_search(
        path, embedder, lambda query: nearest(embed(query)["embedding"]), [corpus], index.texts
    )


def write_search(
    path: str | os.PathLike,
    model: Task,
    find: Callable,
    variables: Sequence[tf.Variable],
    texts: Sequence[str] | None,
) -> None:
    """Write a SavedModel whose only signature takes "query" and returns "index", "score", "text".

    Args:
        path: the version folder.
        model: of the queries.
        find: the function from queries (Q,) to scores (Q, K) and indices (Q, K), in a graph.
        variables: that it uses beside the model's.
        texts: N of them, or None: then there is no "text".
    """
    held = [] if texts is None else [tf.Variable(texts, trainable=False, name="texts")]

    def search(query):
        score, found = find(query)
        answer = {"index": found, "score": score}
        for column in held:
            answer["text"] = tf.gather(column.read_value(), found)
        return answer

    variables = [*(variable.value for variable in model.variables), *variables, *held]
    write_saved_model(path, {"serving_default": search}, model.served_tokenizer, variables)


def check_exportable(model: Task, count: int, width: int) -> None:
    """Raise an error if an index with so many vectors of this width cannot be exported."""
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise ValueError(
            "Export needs Keras's TensorFlow backend. Received: an index whose embedder is on the "
            f"backend {backend!r}. Save both, then load and export them with TensorFlow "
            "(`pip install tensorflow`), in a process started with KERAS_BACKEND=tensorflow."
        )
    if model.preprocessor is None:
        raise ValueError(
            "The index's embedder has no preprocessor, so it cannot take text. Pass "
            "preprocessor=..., or load it with from_preset."
        )
    size = 4 * count * width
    if size > MAX_BYTES:
        raise ValueError(
            f"The vectors take {size / 1e9:.1f} GB as float32. An export holds at most "
            f"{MAX_BYTES / 1e9:.1f} GB: build the index with a smaller dim, or divide the "
            "documents among several."
        )


def _nearest(function: str, corpus: tf.Variable, k: int) -> Callable:
    """Return the function from vectors (Q, D) to scores (Q, K) and indices (Q, K), in a graph."""

    def scores_of(vectors):
        """Return scores (Q, N) that order the documents as the similarity does."""
        if function == "manhattan":
            return tf.map_fn(lambda v: -tf.reduce_sum(tf.abs(v - corpus), axis=1), vectors)
        products = tf.matmul(vectors, corpus, transpose_b=True)
        if function == "euclidean":
            products -= tf.reduce_sum(tf.square(corpus), axis=1) / 2
        return products

    def nearest(vectors):
        if function == "cosine":
            vectors = tf.math.l2_normalize(vectors, axis=1)
        scores, found = tf.math.top_k(scores_of(vectors), k)  # of equal ones the earlier
        if function == "euclidean":
            scores = -tf.norm(vectors[:, None] - tf.gather(corpus, found), axis=2)
        return scores, found

    return nearest
