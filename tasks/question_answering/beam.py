"""Question answering head that predicts end positions for each of the best start positions.

Comments use these letters for shapes: B batch, L sequence, D hidden, n start_n_top, m end_n_top, W
windows.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import BeamHead
from encoder_zoo.encoders.layers import INITIALIZER_RANGE, make_initializer
from encoder_zoo.encoders.positions import take_positions
from encoder_zoo.tasks.base.head import HiddenLayer, compute_head_stddev
from encoder_zoo.tasks.question_answering.answers import COLUMNS, IMPOSSIBLE_LOGIT

NO_START = (
    "The inputs have no answer_start, the position of the first token of each answer, (B, 1). The "
    "preprocessor computes it from the answers."
)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanBeam(ConfigFromSignature, keras.layers.Layer):
    """Predict the best start positions of answers, and the best end positions for each of them.

    Args:
        units: Positive integer. D, the width of the token vectors.
        beam: Tuple of integers (start_n_top, end_n_top). The number n of start positions, and the
            number m of end positions for each start position.
        layer_norm_epsilon: Float. Epsilon of the LayerNorm for end positions. Defaults to 1e-12.
        stddev: Float. Standard deviation of new weights. See `layers.make_initializer`. Defaults to
            0.02.

    Call arguments:
        x: Tensor of shape (B, L, D).
        no_answer_vector: Tensor of shape (B, D). The vector of the token that represents "no
            answer".
        answer_mask: Tensor of shape (B, L). 1 or True for context tokens and for the token that
            represents "no answer".
        answer_start: Integer tensor of shape (B, 1). The start positions of the true answers. If
            None, the best start positions are used.

    Returns:
        Float32 tensor of shape (B, 1 + n m, 4). Row 0 contains the logit of "no answer" in its
        third column, and zeros. Each of the other rows is a span: its start position, its end
        position, the log-probability of the start, and the log-probability of the end given the
        start. Spans are sorted by the log-probability of the start. An end position can be before
        the start. With `answer_start`, the shape is (B, 3, L). The rows contain the
        log-probabilities of the start positions, the log-probabilities of the end positions given
        `answer_start`, and the repeated logit of "no answer".

    The logit of "no answer" depends on the mean of the token vectors, weighted by their start
    probabilities. This also applies to training. In transformers, the loss uses the vector of the
    true start position instead. If there is no answer, this is the vector of the "no answer" token,
    which reveals the label.

    Source: Yang et al. 2019, XLNet, the released code (function_builder.py, `get_qa_outputs`).

    Example:
        >>> import numpy as np
        >>> head, x = SpanBeam(units=8, beam=(3, 2)), np.ones((1, 5, 8), "float32")
        >>> head.build(x.shape)
        >>> keras.ops.shape(head(x, x[:, -1], np.ones((1, 5))))
        (1, 7, 4)
    """

    def __init__(
        self,
        units: int,
        beam: tuple[int, int],
        layer_norm_epsilon: float = 1e-12,
        stddev: float = INITIALIZER_RANGE,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.beam = tuple(beam)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.stddev = stddev
        hidden = {"activation": "tanh", "stddev": stddev, "dtype": self.dtype_policy}
        self.end_hidden = HiddenLayer(
            units, layer_norm_epsilon=layer_norm_epsilon, name="end_hidden", **hidden
        )
        self.no_answer_hidden = HiddenLayer(units, name="no_answer_hidden", **hidden)
        self.start_dense = self._make_output("start")
        self.end_dense = self._make_output("end")
        self.no_answer_dense = self._make_output("no_answer", use_bias=False)

    def _make_output(self, name: str, use_bias: bool = True) -> keras.layers.Dense:
        # Use float32, because the loss is computed in float32 even with mixed precision.
        return keras.layers.Dense(
            1,
            use_bias=use_bias,
            kernel_initializer=make_initializer(self.stddev),
            name=name,
            dtype="float32",
        )

    def build(self, input_shape):
        for hidden in (self.end_hidden, self.no_answer_hidden):
            hidden.build((*input_shape[:-1], 2 * self.units))
        for dense in (self.start_dense, self.end_dense, self.no_answer_dense):
            dense.build((*input_shape[:-1], self.units))

    def compute_output_shape(self, input_shape):
        """Return the output shape without `answer_start`."""
        n, m = self.beam
        return (input_shape[0], 1 + n * m, COLUMNS)

    def call(self, x, no_answer_vector, answer_mask, answer_start=None):
        starts = compute_log_probabilities(self.start_dense(x), answer_mask)  # (B, L)
        no_answer = self._score_no_answer(x, starts, no_answer_vector)  # (B, 1)
        if answer_start is None:
            row = ops.pad(no_answer[:, None], [[0, 0], [0, 0], [2, COLUMNS - 3]])  # (B, 1, 4)
            return ops.concatenate([row, self._find_spans(x, starts, answer_mask)], axis=1)
        first = take_positions(x, answer_start)[:, 0]  # (B, D)
        no_answer = no_answer + ops.zeros_like(starts)  # (B, L)
        return ops.stack([starts, self._score_ends(x, first, answer_mask), no_answer], axis=1)

    def _find_spans(self, x, starts, answer_mask):
        """Compute the best spans (B, n m, 4), sorted by the log-probability of the start."""
        n, m = self.beam
        start, first = find_best_positions(starts, n)  # (B, n)
        vectors = take_positions(x, ops.minimum(first, ops.shape(x)[1] - 1))  # (B, n, D)
        # Process start positions one by one. All together would need memory for (B, n, L, 2 D).
        ends = ops.stack(
            [self._score_ends(x, vectors[:, i], answer_mask) for i in range(n)], axis=1
        )
        end, last = find_best_positions(ends, m)  # (B, n, m)
        first, start = (ops.repeat(value[..., None], m, axis=-1) for value in (first, start))
        columns = [ops.cast(value, "float32") for value in (first, last, start, end)]
        return ops.reshape(ops.stack(columns, axis=-1), (-1, n * m, COLUMNS))

    def _score_ends(self, x, first, answer_mask):
        """Compute log-probabilities (B, L) of end positions, given the start vector (B, D)."""
        both = ops.concatenate([x, ops.broadcast_to(first[:, None], ops.shape(x))], axis=-1)
        return compute_log_probabilities(self.end_dense(self.end_hidden(both)), answer_mask)

    def _score_no_answer(self, x, starts, vector):
        """Compute the logit (B, 1) of "no answer" from the expected start vector."""
        shares = ops.cast(ops.exp(starts), x.dtype)[:, None]  # (B, 1, L)
        expected = ops.matmul(shares, x)[:, 0]  # (B, D)
        hidden = self.no_answer_hidden(ops.concatenate([expected, vector], axis=-1))
        return self.no_answer_dense(hidden)


def compute_log_probabilities(
    logits: keras.KerasTensor, mask: keras.KerasTensor
) -> keras.KerasTensor:
    """Compute the log-probabilities of tokens. Masked tokens have the value `IMPOSSIBLE_LOGIT`.

    Args:
        logits: Tensor of shape (B, L, 1).
        mask: Tensor of shape (B, L).

    Example:
        >>> import numpy as np
        >>> compute_log_probabilities(np.zeros((1, 2, 1)), np.array([[1, 0]])).numpy().tolist()
        [[0.0, -1000000000.0]]
    """
    logits = ops.where(
        ops.cast(mask, "bool"), ops.cast(logits[..., 0], "float32"), IMPOSSIBLE_LOGIT
    )
    return ops.log_softmax(logits, axis=-1)


def find_best_positions(values: keras.KerasTensor, count: int) -> tuple:
    """Find the largest values on the last axis and their positions.

    Args:
        values: Tensor of shape (..., L).
        count: Integer. Number of values. If it is larger than L, the additional positions are L or
            larger.

    Example:
        >>> import numpy as np
        >>> best, index = find_best_positions(np.array([[1.0, 3.0]], "float32"), 3)
        >>> best.numpy().tolist(), index.numpy().tolist()
        ([[3.0, 1.0, -2000000000.0]], [[1, 0, 2]])
    """
    width = [[0, 0]] * (len(values.shape) - 1) + [[0, count]]
    best, index = ops.top_k(ops.pad(values, width, constant_values=2 * IMPOSSIBLE_LOGIT), count)
    return best, ops.cast(index, "int32")


def make_span_beam(
    head: BeamHead, backbone: Backbone, beam: tuple[int, int], dtype: keras.DTypePolicy
) -> SpanBeam:
    """Create and build a head with a beam.

    Args:
        head: `BeamHead`. The record of the family.
        backbone: `Backbone`. Its outputs have the shape (B, L, D).
        beam: Tuple of integers (start_n_top, end_n_top), n and m.
        dtype: The dtype policy of the task.

    Returns:
        A layer that converts (B, L, D) to (B, 1 + n m, 4). See `SpanBeam`.

    Example:
        >>> from encoder_zoo import XLNetBackbone
        >>> backbone = XLNetBackbone(9, num_layers=1, num_heads=2, hidden_dim=8,
        ...                          intermediate_dim=16)
        >>> record = backbone.family.heads["ForQuestionAnswering"].beam
        >>> head = make_span_beam(record, backbone, (3, 2), backbone.dtype_policy)
        >>> head.compute_output_shape((None, 5, 8))
        (None, 7, 4)
    """
    width, epsilon = backbone.hidden_dim, backbone.layer_norm_epsilon
    stddev = compute_head_stddev(head, backbone)
    layer = SpanBeam(width, beam, epsilon, stddev, name="head", dtype=dtype)
    layer.build((None, None, width))
    return layer
