"""Learned scores of tags that follow each other: a conditional random field (CRF) in Keras.

Comment letters: B batch, L tokens, C tags.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.tasks.losses.replicas import leaves_out_rows
from encoder_zoo.tasks.tagging.entities import LEAST


def best_sequences(logits, mask, transitions: Sequence[keras.Variable]):
    """Return the tags (B, L) int32 of the best sequences, as `best_tags` but with Keras.

    Args:
        logits: (B, L, C).
        mask: (B, L) bool, those that count, which are the first ones.
        transitions: scores of the tag at the begin (C,), of each tag after each other (C, C), and
            of the tag at the end (C,).
    """
    first, between, last = (ops.convert_to_tensor(scores) for scores in transitions)
    logits = ops.log(ops.maximum(ops.softmax(ops.cast(logits, "float32")), LEAST))
    # Tags are floats here: Keras's scan on TensorFlow has outputs of the dtype of its inputs.
    same = ops.arange(ops.shape(last)[0], dtype=logits.dtype) + ops.zeros_like(logits[:, 0])
    real = ops.cast(mask, logits.dtype)[..., None]
    rest = ops.concatenate([logits, real], axis=-1)[:, 1:]
    # One step more, as PyTorch cannot scan none.
    rest = ops.transpose(ops.pad(rest, [[0, 0], [0, 1], [0, 0]]), (1, 0, 2))

    def forward(total, given):
        """Add a token: (B, C) the best sum that ends with each tag, and the tag before it."""
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
    """The scores of a tag at a text's begin, of each tag after each other, and at the end.

    The score of a sequence of tags y is the sum of the logits of its tags and of these, and its
    probability is exp(score) over the sum of exp(score) of all sequences.

    Args:
        units: C.

    Attributes:
        first: (C,) float32.
        between: (C, C) float32, of the second tag behind the first.
        last: (C,) float32.

    Source: Lafferty et al. 2001, Conditional Random Fields; Lample et al. 2016, Neural
    Architectures for Named Entity Recognition, section 2.2.
    """

    without_weight_decay = ("first", "between", "last")  # they are biases

    def __init__(self, units: int, **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.units = units

    def build(self, input_shape=None):
        def scores(name: str, *shape: int):
            return self.add_weight(shape=shape, initializer="zeros", name=f"{name}_bias")

        self.first = scores("first", self.units)
        self.between = scores("between", self.units, self.units)
        self.last = scores("last", self.units)

    def score(self, logits, tags, mask):
        """Return the scores (B,) of sequences of tags.

        Args:
            logits: (B, L, C) float32.
            tags: (B, L) int.
            mask: (B, L) bool, those that count, which are the first ones.
        """
        chosen = ops.one_hot(tags, self.units, dtype=logits.dtype)
        real = ops.cast(mask, logits.dtype)
        of_tags = ops.sum(ops.sum(chosen * logits, axis=-1) * real, axis=1)
        pairs = ops.sum(ops.matmul(chosen[:, :-1], self.between) * chosen[:, 1:], axis=-1)
        ends = real - ops.pad(real[:, 1:], [[0, 0], [0, 1]])  # 1 at the last one
        edges = ops.take(self.first, tags[:, 0]) * real[:, 0]
        edges += ops.sum(ops.take(self.last, tags) * ends, axis=1)
        return of_tags + ops.sum(pairs * real[:, 1:], axis=1) + edges

    def log_partition(self, logits, mask):
        """Return the logarithm of the sum of exp(score) of all sequences, (B,); args as `score`."""
        between = ops.convert_to_tensor(self.between)
        total = logits[:, 0] + self.first  # of those that end with each tag (B, C)
        # One tensor: Keras's scan on TensorFlow takes no two of unknown length.
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
    """Computes the negative log-likelihood of sequences of tags, over the number of their tags.

    Tokens of sample weight 0 are left out, and the tokens before and after them are neighbours. A
    text has the mean weight of its tokens.

    Args:
        transitions: `TagTransitions`.

    Call arguments:
        y_true: (B, L) int tags.
        y_pred: (B, L, C) logits.
        tokens: (B, L) weights of the tokens. Defaults to None, all tokens.

    Returns:
        (B, L), of `call`: the loss of a text, in equal parts at its tokens that count.
    """

    def __init__(self, transitions: TagTransitions):
        super().__init__(name="crf", reduction="mean_with_sample_weight")
        self.transitions = transitions

    @leaves_out_rows
    def call(self, y_true, y_pred, tokens=None):
        logits, tags = ops.cast(y_pred, "float32"), ops.cast(y_true, "int32")
        counted = ops.ones_like(tags) if tokens is None else ops.cast(tokens > 0, "int32")
        column = ops.arange(ops.shape(tags)[1])[None]
        order = ops.argsort(ops.where(counted > 0, column, column + ops.shape(tags)[1]), axis=1)
        mask = ops.take_along_axis(counted, order, axis=1) > 0
        tags = ops.maximum(ops.take_along_axis(tags, order, axis=1), 0)
        logits = ops.take_along_axis(logits, order[..., None], axis=1)

        loss = self.transitions.log_partition(logits, mask) - self.transitions.score(
            logits, tags, mask
        )  # (B,)
        counted = ops.cast(counted, "float32")
        return loss[:, None] * counted / ops.maximum(ops.sum(counted, 1, keepdims=True), 1.0)
