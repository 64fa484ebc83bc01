"""The head that computes end positions of answers after each of the likeliest start positions.

Comment letters: B batch, L sequence, D hidden, n start_n_top, m end_n_top, W windows.
"""

from __future__ import annotations

from typing import Annotated

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import Rule
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import INITIALIZER_RANGE, MAX_TOP, TOP, BeamHead
from encoder_zoo.encoders.layers import initializer
from encoder_zoo.encoders.positions import take_positions
from encoder_zoo.tasks.base.head import HiddenLayer
from encoder_zoo.tasks.question_answering.answers import COLUMNS, IMPOSSIBLE

NO_START = (
    "The inputs have no answer_start, the position of each answer's first token, (B, 1). The "
    "preprocessor makes it of the answers."
)


def _are_counts(value: object) -> bool:
    two = isinstance(value, list | tuple) and len(value) == 2
    return two and all(TOP.holds(count) for count in value)


_EXPECTED = f"two integers from 1 to {MAX_TOP}, (start_n_top, end_n_top), such as (5, 5)"
Beam = Annotated[tuple, Rule(_are_counts, _EXPECTED)]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanBeam(ConfigFromSignature, keras.layers.Layer):
    """From vectors of tokens to the likeliest start positions, and end positions after each.

    Args:
        units: D.
        beam: (start_n_top, end_n_top): n start positions, and m end positions after each.
        layer_norm_epsilon: of the layers for end positions.
        stddev: of new weights, see `layers.initializer`.

    Call arguments:
        x: (B, L, D).
        no_answer_vector: (B, D), that of the token that says "no answer".
        answer_mask: (B, L), true or 1 at the tokens of contexts and at that one.
        answer_start: (B, 1) int, start positions of the answers to learn; None: they are searched.

    Returns:
        (B, 1 + n m, 4) float32: a span in each row, those of the likeliest start position first,
        each as start position, end position, and the logarithms of the start's probability and of
        the end's after it; row 0 has the logit of "no answer" in its third column. With
        `answer_start` (B, 3, L): the log-probability of each position to be the start, and to be
        the end after the given start; and the logit of "no answer", repeated.

    The logit of "no answer" reads the mean of the tokens' vectors, weighted by their probabilities
    to be the start, in training too. transformers' loss gives it the vector of the answer's own
    start instead, which is that of the token for "no answer" where there is none: the label itself.

    Source: Yang et al. 2019, XLNet, the code released with it (function_builder.py,
    `get_qa_outputs`).

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
        # The loss is taken in float32 also under mixed precision.
        return keras.layers.Dense(
            1,
            use_bias=use_bias,
            kernel_initializer=initializer(self.stddev),
            name=name,
            dtype="float32",
        )

    def build(self, input_shape):
        for hidden in (self.end_hidden, self.no_answer_hidden):
            hidden.build((*input_shape[:-1], 2 * self.units))
        for dense in (self.start_dense, self.end_dense, self.no_answer_dense):
            dense.build((*input_shape[:-1], self.units))

    def compute_output_shape(self, input_shape):
        """Return the shape without `answer_start`."""
        n, m = self.beam
        return (input_shape[0], 1 + n * m, COLUMNS)

    def call(self, x, no_answer_vector, answer_mask, answer_start=None):
        starts = log_probabilities(self.start_dense(x), answer_mask)  # (B, L)
        no_answer = self._no_answer(x, starts, no_answer_vector)  # (B, 1)
        if answer_start is None:
            row = ops.pad(no_answer[:, None], [[0, 0], [0, 0], [2, COLUMNS - 3]])  # (B, 1, 4)
            return ops.concatenate([row, self._spans(x, starts, answer_mask)], axis=1)
        first = take_positions(x, answer_start)[:, 0]  # (B, D)
        no_answer = no_answer + ops.zeros_like(starts)  # (B, L)
        return ops.stack([starts, self._ends(x, first, answer_mask), no_answer], axis=1)

    def _spans(self, x, starts, answer_mask):
        """Return the end positions after each of the likeliest start positions, (B, n m, 4)."""
        n, m = self.beam
        start, first = best_positions(starts, n)  # (B, n)
        vectors = take_positions(x, ops.minimum(first, ops.shape(x)[1] - 1))  # (B, n, D)
        # One after the other: all at once would be (B, n, L, 2 D).
        ends = ops.stack([self._ends(x, vectors[:, i], answer_mask) for i in range(n)], axis=1)
        end, last = best_positions(ends, m)  # (B, n, m)
        first, start = (ops.repeat(value[..., None], m, axis=-1) for value in (first, start))
        columns = [ops.cast(value, "float32") for value in (first, last, start, end)]
        return ops.reshape(ops.stack(columns, axis=-1), (-1, n * m, COLUMNS))

    def _ends(self, x, first, answer_mask):
        """Return (B, L): of each position to be the end after the start, of the vector (B, D)."""
        both = ops.concatenate([x, ops.broadcast_to(first[:, None], ops.shape(x))], axis=-1)
        return log_probabilities(self.end_dense(self.end_hidden(both)), answer_mask)

    def _no_answer(self, x, starts, vector):
        """Return the logit of "no answer", (B, 1), from the expected vector of the start."""
        shares = ops.cast(ops.exp(starts), x.dtype)[:, None]  # (B, 1, L)
        expected = ops.matmul(shares, x)[:, 0]  # (B, D)
        hidden = self.no_answer_hidden(ops.concatenate([expected, vector], axis=-1))
        return self.no_answer_dense(hidden)


def log_probabilities(logits: keras.KerasTensor, mask: keras.KerasTensor) -> keras.KerasTensor:
    """Return the logarithms of the tokens' probabilities, `IMPOSSIBLE` where the mask is 0.

    Args:
        logits: (B, L, 1).
        mask: (B, L).

    Example:
        >>> import numpy as np
        >>> log_probabilities(np.zeros((1, 2, 1)), np.array([[1, 0]])).numpy().tolist()
        [[0.0, -1000000000.0]]
    """
    logits = ops.where(ops.cast(mask, "bool"), ops.cast(logits[..., 0], "float32"), IMPOSSIBLE)
    return ops.log_softmax(logits, axis=-1)


def best_positions(values: keras.KerasTensor, count: int) -> tuple:
    """Return the largest values of the last axis, and their positions, L or more beyond its end.

    Args:
        values: (..., L).
        count: how many; L may be less.

    Example:
        >>> import numpy as np
        >>> best, index = best_positions(np.array([[1.0, 3.0]], "float32"), 3)
        >>> best.numpy().tolist(), index.numpy().tolist()
        ([[3.0, 1.0, -2000000000.0]], [[1, 0, 2]])
    """
    width = [[0, 0]] * (len(values.shape) - 1) + [[0, count]]
    best, index = ops.top_k(ops.pad(values, width, constant_values=2 * IMPOSSIBLE), count)
    return best, ops.cast(index, "int32")


def make_span_beam(
    head: BeamHead, backbone: Backbone, beam: tuple[int, int], dtype: keras.DTypePolicy
) -> SpanBeam:
    """Return a head with a beam, built.

    Args:
        head: the family's record of it.
        backbone: whose outputs it reads, (B, L, D).
        beam: (start_n_top, end_n_top), n and m.
        dtype: of the task.

    Returns:
        From (B, L, D) to (B, 1 + n m, 4), see `SpanBeam`.

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
    layer = SpanBeam(width, beam, epsilon, head.stddev(backbone), name="head", dtype=dtype)
    layer.build((None, None, width))
    return layer
