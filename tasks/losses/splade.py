"""Loss of sparse vectors: another loss, and how many products a search with them takes.

Comment letters: B batch, K further texts of a row, V vocabulary, R replicas.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import NonNegativeFloat, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.losses.info_nce import InfoNCE
from encoder_zoo.tasks.losses.replicas import leaves_out_rows, of_all_replicas, rows_that_count
from encoder_zoo.tasks.losses.vectors import check_rows

_share = contextvars.ContextVar("share of the weights of SPLADE", default=1.0)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SPLADE(ConfigFromSignature, keras.losses.Loss):
    """Computes a loss of sparse vectors, and adds the FLOPS of queries and documents.

    FLOPS are the sum, over the terms, of the squared mean weight in the batch: near the number of
    products that the score of a random query and document takes, and smooth. They keep the vectors
    sparse, and penalize terms that all texts have. While `SparseEncoder.fit` begins,
    for a third of its steps, both weights rise with the square of the steps to their values here.
    Under `tf.distribute` the mean is that of all replicas.

    Args:
        loss: any of `encoder_zoo.losses` that compares the texts of a batch; None is
            `InfoNCE(scale=1.0, similarity="dot")`.
        query_weight: of the FLOPS of queries, the first texts.
        document_weight: of the FLOPS of documents, all other texts.
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: as for the loss.
        y_pred: (B, 1 + K, V), the weights of terms in a text and in its further texts.

    Returns:
        (B,), of `call`.

    Raises:
        ValueError: If `loss` is not one of `encoder_zoo.losses`, or `y_pred` has another shape.

    Source: Paria et al. 2020, Minimizing FLOPs to Learn Efficient Sparse Representations, equation
    4; Formal et al. 2021, SPLADE v2, equation 4 and section 4. The papers search for the weights of
    a data set; here that of queries is the one of sentence-transformers' examples (3e-5 for
    documents there), that of documents makes sparser vectors.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo.tasks.losses import MarginMSE
        >>> y_pred = np.array([[[2.0, 0.0], [3.0, 0.0], [1.0, 0.0]]])  # scores 6 and 2
        >>> loss = SPLADE(MarginMSE(), query_weight=0.1, document_weight=0.01)
        >>> round(float(loss(np.array([4.0]), y_pred)), 3)  # 0.1 * 2 ** 2 + 0.01 * 2 ** 2
        0.44
    """

    @validate_arguments
    def __init__(
        self,
        loss: keras.losses.Loss | None = None,
        query_weight: NonNegativeFloat = 5e-5,
        document_weight: NonNegativeFloat = 1e-3,
        **kwargs,
    ):
        super().__init__(**{"name": "splade", **kwargs})
        if loss is not None and not isinstance(loss, keras.losses.Loss):
            raise invalid("loss", loss, "one of `encoder_zoo.losses`")
        self.loss = InfoNCE(1.0, "dot") if loss is None else loss
        self.query_weight = query_weight
        self.document_weight = document_weight

    @leaves_out_rows
    def call(self, y_true, y_pred):
        check_rows(self, y_pred, 2, "a query, its positive, and perhaps hard negatives")
        y_pred = ops.convert_to_tensor(y_pred)
        of_queries = self.query_weight * _flops(y_pred[:, :1])
        of_documents = self.document_weight * _flops(y_pred[:, 1:])
        return self.loss.call(y_true, y_pred) + _share.get() * (of_queries + of_documents)


@contextlib.contextmanager
def weighted_by(share) -> Iterator[None]:
    """Multiply the weights of `SPLADE` by a share, a number or a tensor, in the block."""
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)


def _flops(x: keras.KerasTensor) -> keras.KerasTensor:
    """Return the sum over the terms of the squared mean weight, of vectors (B, K, V)."""
    if (real := rows_that_count()) is None:
        rows = ops.cast(ops.shape(x)[0], x.dtype)
    else:
        real = ops.cast(real, x.dtype)
        rows, x = ops.sum(real), x * real[:, None, None]
    totals = ops.sum(x, axis=(0, 1))[None]  # (1, V)
    count = rows * ops.cast(ops.shape(x)[1], x.dtype) * ops.ones_like(totals[:, :1])
    totals, count, _ = of_all_replicas(totals, count)  # (R, V), (R, 1)
    means = ops.sum(totals, axis=0) / ops.maximum(ops.sum(count), 1)
    return ops.sum(ops.square(means))
