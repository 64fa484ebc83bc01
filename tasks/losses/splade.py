"""Loss for sparse vectors that adds the expected search cost to another loss.

Comments use these letters for shapes: B (batch size), K (other texts in a row), V (vocabulary
size), R (replicas).
"""

from __future__ import annotations

import copy

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import NonNegativeFloat, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.losses import replicas
from encoder_zoo.tasks.losses.info_nce import InfoNCE
from encoder_zoo.tasks.losses.vectors import check_rows


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SPLADE(ConfigFromSignature, keras.losses.Loss):
    """Add the FLOPS penalty for queries and documents to a loss for sparse vectors.

    For each term, the mean weight in the batch is squared. The FLOPS penalty is the sum of these
    squares. It is a smooth estimate of the number of products needed to score a query and a
    document. The penalty makes vectors sparse, and lowers the weights of terms that occur in many
    texts. `SparseEncoder.fit` increases `query_weight` and `document_weight` quadratically from 0
    to the given values during the first third of all steps. With `tf.distribute`, the mean includes
    all replicas.

    Args:
        loss: Optional loss from `encoder_zoo.losses` that compares the texts in a batch. If None,
            `InfoNCE(scale=1.0, similarity="dot")` is used.
        query_weight: Non-negative float. Weight of the penalty for queries, which are the first
            texts in the rows. Defaults to 5e-5.
        document_weight: Non-negative float. Weight of the penalty for documents, which are all
            other texts. Defaults to 1e-3.
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Tensor. Targets of `loss`.
        y_pred: Tensor of shape (B, 1 + K, V). Term weights of the texts.

    Returns:
        Tensor of shape (B,).

    Raises:
        ValueError: If `loss` is not from `encoder_zoo.losses`, or if `y_pred` does not have the
            expected shape.

    Source: Paria et al. 2020, Minimizing FLOPs to Learn Efficient Sparse Representations, equation
    4. Formal et al. 2021, SPLADE v2, equation 4 and section 4. In the papers, the weights are tuned
    for each data set. The default for queries comes from examples of sentence-transformers, which
    use 3e-5 for documents. The default for documents is larger and makes vectors sparser.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo.tasks.losses import MarginMSE
        >>> y_pred = np.array([[[2.0, 0.0], [3.0, 0.0], [1.0, 0.0]]])  # scores 6 and 2
        >>> loss = SPLADE(MarginMSE(), query_weight=0.1, document_weight=0.01)
        >>> round(float(loss(np.array([4.0]), y_pred)), 3)  # 0.1 * 2 ** 2 + 0.01 * 2 ** 2
        0.44
    """

    _share = 1.0  # factor for both weights, see `scale_weights`

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
            raise invalid("loss", loss, "a loss from `encoder_zoo.losses`")
        self.loss = InfoNCE(1.0, "dot") if loss is None else loss
        self.query_weight = query_weight
        self.document_weight = document_weight

    @replicas.ignores_padding_rows
    def call(self, y_true, y_pred, rows=None):
        check_rows(self, y_pred, 2, "a query, its positive, and optional hard negatives")
        y_pred = ops.convert_to_tensor(y_pred)
        of_queries = self.query_weight * _compute_flops(y_pred[:, :1], rows)
        of_documents = self.document_weight * _compute_flops(y_pred[:, 1:], rows)
        values = replicas.compute_loss_values(self.loss, y_true, y_pred, rows)
        return values + self._share * (of_queries + of_documents)

    def scale_weights(self, share) -> SPLADE:
        """Return a copy of the loss with both penalty weights multiplied by `share`."""
        loss = copy.copy(self)
        loss._share = share
        return loss


def _compute_flops(x: keras.KerasTensor, rows: keras.KerasTensor | None) -> keras.KerasTensor:
    """Compute the FLOPS penalty of vectors (B, K, V)."""
    count = ops.cast(ops.shape(x)[0], x.dtype)
    if rows is not None:
        rows = ops.cast(rows, x.dtype)
        count, x = ops.sum(rows), x * rows[:, None, None]
    totals = ops.sum(x, axis=(0, 1))[None]  # (1, V)
    count = count * ops.cast(ops.shape(x)[1], x.dtype) * ops.ones_like(totals[:, :1])
    totals, count, _ = replicas.gather_replicas(totals, count)  # (R, V), (R, 1)
    means = ops.sum(totals, axis=0) / ops.maximum(ops.sum(count), 1)
    return ops.sum(ops.square(means))
