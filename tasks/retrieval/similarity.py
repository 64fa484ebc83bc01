"""Compute similarities of vectors in NumPy.

Comments use these letters for shapes: N and M vectors or texts, P pairs, B vectors of a block, Q
queries, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, Literal

import numpy as np

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
TokenSimilarity = Literal["maxsim", "meanmaxsim"]
SIMILARITY_BLOCK = 2**20  # number of products in memory at a time, 4 MB
# In float32, the sum of several thousand squares of this value does not overflow.
LARGEST_VALUE = 1e17


def compute_similarity_matrix(a: np.ndarray, b: np.ndarray, function: Similarity) -> np.ndarray:
    """Compute the similarity of each row of `a` and each row of `b`.

    Args:
        a: Array of shape (N, D).
        b: Array of shape (M, D).
        function: "cosine", "dot", "euclidean" or "manhattan". For "euclidean" and "manhattan",
            negative distances are used.

    Returns:
        Float32 array of shape (N, M). More similar vectors have higher scores.

    Example:
        >>> a, b = np.array([[3.0, 4.0]]), np.array([[3.0, 4.0], [0.0, 2.0]])
        >>> compute_similarity_matrix(a, b, "cosine").round(1).tolist()
        [[1.0, 0.800000011920929]]
        >>> compute_similarity_matrix(a, b, "manhattan").tolist()
        [[0.0, -5.0]]
    """
    a, b = np.asarray(a, "float32"), np.asarray(b, "float32")
    if function == "cosine":
        a, b = scale_to_unit_length(a), scale_to_unit_length(b)
    if function in ("cosine", "dot"):
        return a @ b.T
    if function == "euclidean":
        a, b = a.astype("float64"), b.astype("float64")  # the distance of equal vectors must be 0
        squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * (a @ b.T)
        return -np.sqrt(np.maximum(squares, 0)).astype("float32")
    found = np.empty((len(a), len(b)), "float32")
    for i, row in enumerate(a):
        found[i] = 0 - np.abs(row - b).sum(1)
    return found


def compute_paired_similarities(a: np.ndarray, b: np.ndarray, function: str) -> np.ndarray:
    """Compute the similarity of row `i` of `a` and row `i` of `b`, float64 (P,).

    Args:
        a: Array of shape (P, D).
        b: Array of shape (P, D).
        function: String. Name of a `Similarity`. For "cosine", the vectors must have unit length.

    Example:
        >>> a, b = np.array([[3.0, 4.0]]), np.array([[0.0, 0.0]])
        >>> names = "dot", "euclidean", "manhattan"
        >>> [compute_paired_similarities(a, b, name).tolist() for name in names]
        [[0.0], [-5.0], [-7.0]]
    """
    if function in ("cosine", "dot"):
        found = np.multiply(a, b, dtype="float64").sum(axis=1)
    elif function == "euclidean":
        found = 0 - np.sqrt(np.square(np.subtract(a, b, dtype="float64")).sum(axis=1))
    else:
        found = 0 - np.abs(np.subtract(a, b, dtype="float64")).sum(axis=1)
    return found


def compute_ordering_scores(queries: np.ndarray, vectors: np.ndarray, function: str) -> np.ndarray:
    """Compute scores (Q, B) that sort vectors (B, D) in the same order as their similarity.

    Example:
        >>> vectors = np.array([[3.0, 4.0], [1.0, 0.0]], "float32")
        >>> query = np.array([[1.0, 1.0]], "float32")
        >>> compute_ordering_scores(query, vectors, "euclidean").tolist()
        [[-5.5, 0.5]]
    """
    if function == "manhattan":
        return np.stack([-np.abs(query - vectors).sum(axis=1) for query in queries])
    products = queries @ vectors.T
    # Half of the negative squared distance, without the norm of the query.
    if function == "euclidean":
        products -= 0.5 * np.einsum("nd,nd->n", vectors, vectors)
    return products


def compute_max_sim(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray]) -> np.ndarray:
    """Compute the MaxSim score of each query and each document.

    The MaxSim score is the sum over the query tokens of the maximum dot product with a document
    token.

    Args:
        queries: Sequence of Q arrays of shape (tokens, D).
        documents: Sequence of N arrays of shape (tokens, D), with at least one token each.

    Returns:
        Float32 array of shape (Q, N).

    Source: Khattab and Zaharia 2020, ColBERT, equation 3.

    Example:
        >>> queries = [np.array([[1.0, 0.0], [0.0, 2.0]])]
        >>> documents = [np.array([[3.0, -1.0]]), np.array([[4.0, 5.0], [9.0, 0.0]])]
        >>> compute_max_sim(queries, documents).tolist()
        [[1.0, 19.0]]
    """
    scores = np.zeros((len(queries), len(documents)), "float32")
    if not len(documents):
        return scores
    longest = max((len(query) for query in queries), default=0)
    ends = np.cumsum([len(document) for document in documents])
    first = 0
    while first < len(documents):
        begin = ends[first] - len(documents[first])
        last = int(np.searchsorted(ends, begin + SIMILARITY_BLOCK // max(longest, 1), "right"))
        last = max(last, first + 1)
        part = np.concatenate(documents[first:last])
        starts = ends[first:last] - [len(document) for document in documents[first:last]] - begin
        for i, query in enumerate(queries):
            scores[i, first:last] = np.maximum.reduceat(query @ part.T, starts, axis=1).sum(axis=0)
        first = last
    return scores


def scale_queries(queries: Sequence[np.ndarray], function: str) -> Sequence[np.ndarray]:
    """Scale the token vectors of queries, so that MaxSim computes the similarity function.

    Args:
        queries: Sequence of Q arrays of shape (tokens, D).
        function: String. Name of a `TokenSimilarity`. For "meanmaxsim", the vectors are divided by
            the number of tokens.

    Example:
        >>> [query] = scale_queries([np.ones((2, 1), "float32")], "meanmaxsim")
        >>> query.tolist()
        [[0.5], [0.5]]
    """
    if function != "meanmaxsim":
        return queries
    return [query / np.float32(max(len(query), 1)) for query in queries]


def scale_to_unit_length(vectors: np.ndarray) -> np.ndarray:
    """Normalize rows (N, D) to unit length. Zero rows are not changed.

    Example:
        >>> rows = np.array([[3.0, 4.0], [3e-30, 4e-30], [0.0, 0.0]], "float32")
        >>> scale_to_unit_length(rows).round(6)
        array([[0.6, 0.8],
               [0.6, 0.8],
               [0. , 0. ]], dtype=float32)
    """
    return vectors / _compute_lengths(vectors)


def _compute_lengths(vectors: np.ndarray) -> np.ndarray:
    """Compute the Euclidean norm of each row, (N, 1). The norm of a zero row is set to 1.

    Squares are summed in float64, because small values would be rounded to 0 in float32.
    """
    lengths = np.empty((len(vectors), 1), vectors.dtype)
    step = max(1, SIMILARITY_BLOCK // max(vectors.shape[1], 1))
    for i in range(0, len(vectors), step):
        part = vectors[i : i + step].astype("float64")
        lengths[i : i + step, 0] = np.sqrt(np.einsum("nd,nd->n", part, part))
    return np.where(lengths > 0, lengths, 1)


def compute_group_means(vectors: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute one vector per group, with the mean direction and the mean norm of its vectors.

    Args:
        vectors: Array of shape (N, D).
        groups: Integer array of shape (N,). Group of each vector.

    Returns:
        Tuple of the sorted groups (G,) and their vectors (G, D).

    Example:
        >>> vectors = np.array([[2.0, 0.0], [0.0, 3.0], [0.0, 5.0]])
        >>> groups, means = compute_group_means(vectors, np.array([7, 4, 4]))
        >>> groups.tolist(), means.tolist()
        ([4, 7], [[0.0, 4.0], [2.0, 0.0]])
    """
    order = np.argsort(groups, kind="stable")
    present, starts = np.unique(groups[order], return_index=True)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)[order]
    counts = np.diff(starts, append=len(groups))[:, None]
    means = np.add.reduceat(lengths, starts, axis=0) / counts
    means = scale_to_unit_length(np.add.reduceat(vectors[order], starts, axis=0)) * means
    return present, means.astype(vectors.dtype)


def check_finite(vectors: np.ndarray, name: str) -> None:
    """Raise a ValueError if vectors (N, D) have values that are NaN, infinite or too large.

    Raises:
        ValueError: If a value in `vectors` is NaN, infinite or too large for float32 products.
    """
    if found := find_invalid_row(vectors):
        row, why = found
        raise ValueError(f"{name}[{row}] has a value {why}")


def find_invalid_row(vectors: np.ndarray) -> tuple[int, str] | None:
    """Find the first of N vectors with an invalid value, and return the index and the reason.

    Return None if all values are valid.

    Example:
        >>> find_invalid_row(np.float32([[1, 2], [np.nan, 0]]))
        (1, 'that is NaN or infinite. Expected finite numbers.')
    """
    step = max(1, SIMILARITY_BLOCK // max(vectors.shape[1], 1))
    for i in range(0, len(vectors), step):
        sizes = np.abs(vectors[i : i + step])
        held = (sizes <= np.float32(LARGEST_VALUE)).all(axis=1)  # False if a value is NaN
        if held.all():
            continue
        row = int(held.argmin())
        if np.isfinite(sizes[row]).all():
            return i + row, (
                f"beyond {LARGEST_VALUE:g}, which is too large for products in float32. Divide "
                "all vectors by a constant."
            )
        return i + row, "that is NaN or infinite. Expected finite numbers."
    return None


def check_vectors(vectors, most: int) -> np.ndarray:
    """Check vectors (N, D) and copy them to float32.

    Raises:
        ValueError: If `vectors` is not a finite float array (N, D), or if D is larger than `most`.
    """
    found = np.asarray(vectors)
    if found.ndim != 2 or found.dtype.kind != "f" or not found.size:
        raise ValueError(
            f"`vectors` has shape {found.shape} and dtype {found.dtype}. Expected floats of shape "
            "(N, D), with at least one vector."
        )
    if found.shape[1] > most:
        raise ValueError(
            f"`vectors` has {found.shape[1]} dimensions, but the embedder has {most}. Expected at "
            f"most {most}."
        )
    check_finite(found, "vectors")
    return np.array(found, "float32")


def check_embedded(texts: Sized, vectors: Any, width: int | None = None) -> Any:
    """Check the shape and the dtype of the vectors that an embedder returned.

    Args:
        texts: List of N strings that were passed to the embedder.
        vectors: Array or sparse matrix of shape (N, D), or a list of N arrays.
        width: Optional integer. Expected embedding dimension. If None, any dimension is valid.

    Raises:
        ValueError: If `vectors` does not contain one vector of `width` numbers per text.
    """
    if isinstance(vectors, list):
        found, right = f"shape ({len(vectors)}, ...)", len(vectors) == len(texts)
    else:
        shape, found = vectors.shape, f"shape {vectors.shape} and dtype {vectors.dtype}"
        right = len(shape) == 2 and shape == (len(texts), width or shape[1])
        right = right and vectors.dtype.kind in "fiu"
    if not right:
        raise ValueError(
            f"The embedder returned vectors of {found} for {len(texts)} texts. Expected one vector "
            f"of numbers per text, with {width or 'any number of'} dimensions."
        )
    return vectors


def check_and_normalize(vectors: np.ndarray, function: str, name: str) -> np.ndarray:
    """Check vectors (N, D), and normalize them in place for "cosine".

    Raises:
        ValueError: If a value in `vectors` is NaN, infinite or too large.

    Example:
        >>> vectors = np.array([[3.0, 4.0]], "float32")
        >>> check_and_normalize(vectors, "cosine", "vectors").round(1).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    check_finite(vectors, name)
    if function == "cosine":
        vectors /= _compute_lengths(vectors)
    return vectors
