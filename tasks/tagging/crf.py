"""Conditional random field (CRF) in Keras, which learns scores of tag transitions.

Comments use these letters for shapes: B batch, L tokens, C tags.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows
from encoder_zoo.tasks.tagging.entities import MIN_PROBABILITY


def move_to_front(weight, *values) -> tuple:
    """Move the tokens with weight to the front of their row, so that they are adjacent.

    Args:
        weight: Tensor of shape (B, L). Tokens with the weight 0 are moved to the end.
        *values: Tensors of shape (B, L) or (B, L, C) to return in the new order.

    Example:
        >>> import numpy as np
        >>> weight, tags = np.array([[0, 1, 0, 1]]), np.array([[5, 6, 7, 8]])
        >>> [ops.convert_to_numpy(v).tolist() for v in move_to_front(weight, weight, tags)]
        [[[1, 1, 0, 0]], [[6, 8, 5, 7]]]
    """
    length = ops.shape(weight)[1]
    column = ops.arange(length)[None]
    order = ops.argsort(ops.where(weight > 0, column, column + length), axis=1)  # (B, L)

    orders = {2: order, 3: order[..., None]}
    return tuple(ops.take_along_axis(v, orders[len(v.shape)], axis=1) for v in values)


def find_best_sequences(logits, mask, transitions: Sequence[keras.Variable]):
    """Find the best tag sequences with Keras ops, as in `find_best_tags`.

    Args:
        logits: Float tensor of shape (B, L, C).
        mask: Boolean tensor of shape (B, L). True for real tokens, followed by padding.
        transitions: List of variables. Scores of the first tag (C,), of transitions between tags
            (C, C), and of the last tag (C,).

    Returns:
        Int32 tensor of shape (B, L).
    """
    first, between, last = (ops.convert_to_tensor(scores) for scores in transitions)
    logits = ops.log(ops.maximum(ops.softmax(ops.cast(logits, "float32")), MIN_PROBABILITY))
    # Tags are floats, because on TensorFlow the Keras scan returns the dtype of its inputs.
    same = ops.arange(ops.shape(last)[0], dtype=logits.dtype) + ops.zeros_like(logits[:, 0])
    real = ops.cast(mask, logits.dtype)[..., None]
    rest = ops.concatenate([logits, real], axis=-1)[:, 1:]
    # one more step, because PyTorch cannot scan zero steps
    rest = ops.transpose(ops.pad(rest, [[0, 0], [0, 1], [0, 0]]), (1, 0, 2))

    def forward(total, given):
        """Compute the best score of a sequence for each last tag, and the previous tag, (B, C)."""
        is_real = given[..., -1:] > 0
        sums = total[:, :, None] + between
        before = ops.where(is_real, ops.cast(ops.argmax(sums, axis=1), logits.dtype), same)
        return ops.where(is_real, ops.max(sums, axis=1) + given[..., :-1], total), before

    def backward(tag, before):
        tag = ops.take_along_axis(before, ops.cast(tag, "int32"), axis=1)
        return tag, tag

    total, pointers = ops.scan(forward, logits[:, 0] + first, rest)
    tag = ops.cast(ops.argmax(total + last, axis=-1), logits.dtype)[:, None]
    _, tags = ops.scan(backward, tag, pointers, reverse=True)  # (L, B, 1)
    return ops.cast(ops.transpose(tags[..., 0]), "int32")


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TagTransitions(ConfigFromSignature, keras.layers.Layer):
    """Layer with learned scores for the first tag, for tag transitions, and for the last tag.

    The score of a sequence of tags is the sum of its logits and its transition scores. The
    probability of a sequence is exp(score), divided by the sum of exp(score) over all sequences.

    Args:
        units: Positive integer. Number of tags C.

    Attributes:
        first: Float32 variable of shape (C,).
        between: Float32 variable of shape (C, C). Scores of transitions from the first index to the
            second index.
        last: Float32 variable of shape (C,).

    Source: Lafferty et al. 2001, Conditional Random Fields. Lample et al. 2016, Neural
    Architectures for Named Entity Recognition, section 2.2.
    """

    without_weight_decay = (
        "first",
        "between",
        "last",
    )  # these weights are biases, so they have no weight decay

    def __init__(self, units: int, **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.units = units

    def build(self, input_shape=None):
        def add_scores(name: str, *shape: int):
            return self.add_weight(shape=shape, initializer="zeros", name=f"{name}_bias")

        self.first = add_scores("first", self.units)
        self.between = add_scores("between", self.units, self.units)
        self.last = add_scores("last", self.units)

    def score(self, logits, tags, mask):
        """Compute the scores (B,) of tag sequences.

        Args:
            logits: Float32 tensor of shape (B, L, C).
            tags: Integer tensor of shape (B, L).
            mask: Boolean tensor of shape (B, L). Mask for real tokens, followed by padding.
        """
        chosen = ops.one_hot(tags, self.units, dtype=logits.dtype)
        real = ops.cast(mask, logits.dtype)
        of_tags = ops.sum(ops.sum(chosen * logits, axis=-1) * real, axis=1)
        pairs = ops.sum(ops.matmul(chosen[:, :-1], self.between) * chosen[:, 1:], axis=-1)
        ends = real - ops.pad(real[:, 1:], [[0, 0], [0, 1]])  # 1 at the last real token
        edges = ops.take(self.first, tags[:, 0]) * real[:, 0]
        edges += ops.sum(ops.take(self.last, tags) * ends, axis=1)
        return of_tags + ops.sum(pairs * real[:, 1:], axis=1) + edges

    def compute_log_partition(self, logits, mask):
        """Compute the logarithm (B,) of the sum of exp(score) over all sequences.

        For the arguments, see `score`.
        """
        between = ops.convert_to_tensor(self.between)
        total = logits[:, 0] + self.first  # sums over sequences that end with each tag (B, C)
        # A single tensor, because Keras's scan on TensorFlow rejects two tensors of unknown length.
        real = ops.cast(mask, logits.dtype)[..., None]
        rest = ops.concatenate([logits, real], axis=-1)[:, 1:]

        def step(total, given):
            logit, is_real = given[..., :-1], given[..., -1:] > 0
            longer = ops.logsumexp(total[:, :, None] + between, axis=1) + logit
            total = ops.where(is_real, longer, total)
            return total, total

        total, _ = ops.scan(step, total, ops.transpose(rest, (1, 0, 2)))
        return ops.logsumexp(total + self.last, axis=-1)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class CrfLoss(keras.losses.Loss):
    """Compute the negative log-likelihood of tag sequences, divided by the number of tags.

    Tokens with the sample weight 0 are removed, so that the tokens before and after them are
    adjacent. The weight of a text is the mean weight of its tokens.

    Args:
        transitions: `TagTransitions`.

    Call arguments:
        y_true: Integer tensor of shape (B, L). Tags.
        y_pred: Float tensor of shape (B, L, C). Logits.
        tokens: Optional float tensor of shape (B, L). Weights of tokens. If None, all tokens are
            used.

    Returns:
        `call` returns a float tensor of shape (B, L). The loss of each text is distributed equally
        over its real tokens.
    """

    def __init__(self, transitions: TagTransitions):
        super().__init__(name="crf", reduction="mean_with_sample_weight")
        self.transitions = transitions

    @ignores_padding_rows
    def call(self, y_true, y_pred, tokens=None):
        logits, tags = ops.cast(y_pred, "float32"), ops.cast(y_true, "int32")
        counted = ops.ones_like(tags) if tokens is None else ops.cast(tokens > 0, "int32")
        counts, tags, logits = move_to_front(counted, counted, tags, logits)
        mask, tags = counts > 0, ops.maximum(tags, 0)
        loss = self.transitions.compute_log_partition(logits, mask)
        loss = loss - self.transitions.score(logits, tags, mask)  # (B,)
        counted = ops.cast(counted, "float32")
        return loss[:, None] * counted / ops.maximum(ops.sum(counted, 1, keepdims=True), 1.0)
