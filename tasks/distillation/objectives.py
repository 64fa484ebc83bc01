"""Objectives of distillation: answers, hidden states, relations between tokens.

Each objective is one number for every text or token, in float32, small where the student
agrees with its teacher; `Distillation` takes their weighted means.

Comment letters: B batch, L sequence, D hidden, H heads, A relation heads, C classes.
"""

from __future__ import annotations

import math

import keras
from keras import ops

from encoder_zoo.encoders.attention_masks import MASKED_LOGIT, make_attention_mask
from encoder_zoo.encoders.positions import take_positions
from encoder_zoo.tasks.losses.score_distillation import kl_divergence
from encoder_zoo.tasks.training.batch_loss import BatchLoss


def soft_labels(student, teacher, temperature: float, activation: str):
    """Compute the KL divergence of the student's from the teacher's answers, both softened.

    Args:
        student: (..., C) logits.
        teacher: (..., C) logits.
        temperature: T, by which both are divided. The divergence is multiplied by T squared, so
            that its gradient is as large at any temperature.
        activation: "softmax" for classes that exclude each other; "sigmoid" for others, with the
            mean over them; "linear" for numbers, whose squared difference is the result.

    Returns:
        (...) float32.

    Source: Hinton, Vinyals and Dean 2015, Distilling the Knowledge in a Neural Network, section 2;
    for numbers Jiao et al. 2020, TinyBERT, appendix.

    Example:
        >>> import numpy as np
        >>> student, teacher = np.float32([[0, 0]]), np.float32([[0, 2]])
        >>> round(float(soft_labels(student, teacher, 2.0, "softmax")[0]), 3)
        0.444
    """
    student, teacher = ops.cast(student, "float32"), ops.cast(teacher, "float32")
    if activation == "linear":
        return ops.mean(ops.square(student - teacher), axis=-1)
    student, teacher = student / temperature, teacher / temperature
    if activation == "softmax":
        divergence = kl_divergence(ops.log_softmax(teacher), ops.log_softmax(student))
    else:  # yes or no for every class
        teacher, student = (
            ops.log_sigmoid(ops.stack([logits, -logits], axis=-1)) for logits in (teacher, student)
        )
        divergence = ops.mean(kl_divergence(teacher, student), axis=-1)
    return temperature**2 * divergence


def matched_states(student_layers: int, teacher_layers: int) -> list[int]:
    """Return which of the teacher's hidden states, 0 the embeddings, each of the student's learns.

    Source: Jiao et al. 2020, section 4.2, the uniform mapping.

    Example:
        >>> matched_states(4, 12), matched_states(2, 3)
        ([0, 3, 6, 9, 12], [0, 2, 3])
    """
    return [round(i * teacher_layers / student_layers) for i in range(student_layers + 1)]


def hidden_states(student: list, teacher: list, maps: list):
    """Compute the distance of the student's hidden states, mapped to their width, from the
    teacher's.

    Args:
        student: tensors (B, L, D), the embeddings' first.
        teacher: tensors (B, L, D of the teacher), see `matched_states`.
        maps: two layers from the student's width to the teacher's, for the embeddings and for all
            the other states, or None where the widths are equal.

    Returns:
        (B, L) float32, the mean squared difference of a token's vectors, summed over the states.

    Source: Jiao et al. 2020, TinyBERT, equations 8 and 9.
    """
    total = 0.0
    for i, index in enumerate(matched_states(len(student) - 1, len(teacher) - 1)):
        vectors = maps[min(i, 1)](student[i]) if maps else student[i]
        difference = ops.cast(vectors, "float32") - ops.cast(teacher[index], "float32")
        total = total + ops.mean(ops.square(difference), axis=-1)
    return total


def relations(student: tuple, teacher: tuple, heads: int, inputs: dict):
    """Compute the divergence of the relations between tokens in the last attention layers.

    Relations are attention probabilities, and likenesses of values, which a softmax makes
    probabilities too. They are as many for any width and, in `heads` equal parts of queries, keys
    and values, for any number of heads.

    Args:
        student: queries, keys and values, (B, L, H, D/H).
        teacher: the same, of other H and D.
        heads: A.
        inputs: with "padding_mask" and perhaps "text_starts", as for a backbone.

    Returns:
        (B, L) float32, for every token the KL divergences of both kinds of relations, the mean
        over the heads.

    Source: Wang et al. 2020, MiniLM, section 3.1 and 3.2; parts of other number than the attention
    heads: Wang et al. 2021, MiniLMv2, section 3.1.
    """
    allowed = make_attention_mask(inputs["padding_mask"], inputs.get("text_starts")).matrix()
    total = 0.0
    for first, second in ((0, 1), (2, 2)):  # queries and keys, values and values
        true, found = (
            _log_relations(parts[first], parts[second], heads, allowed)
            for parts in (teacher, student)
        )
        total = total + ops.mean(kl_divergence(true, found), axis=1)
    return total


def _log_relations(first, second, heads: int, allowed):
    """Return (B, A, L, L), the logarithm of how much each token relates to each other."""
    first, second = _in_heads(first, heads), _in_heads(second, heads)  # (B, A, L, D/A)
    scores = ops.matmul(first, ops.transpose(second, (0, 1, 3, 2))) * first.shape[-1] ** -0.5
    return ops.log_softmax(ops.where(allowed, scores, MASKED_LOGIT))


def _in_heads(x, heads: int):
    """Return (B, L, H, D/H) as (B, A, L, D/A) float32."""
    batch, length = ops.shape(x)[:2]
    width = x.shape[2] * x.shape[3]
    x = ops.reshape(ops.cast(x, "float32"), (batch, length, heads, width // heads))
    return ops.transpose(x, (0, 2, 1, 3))


def make_maps(width: int, teacher_width: int, dtype) -> list[keras.layers.Dense]:
    """Build the linear maps for `hidden_states`; none if the widths are equal."""
    if width == teacher_width:
        return []
    maps = [
        keras.layers.Dense(teacher_width, use_bias=False, name=f"{name}_map", dtype=dtype)
        for name in ("embeddings", "blocks")
    ]
    for layer in maps:
        layer.build((None, None, width))
    return maps


def as_labels(logits, activation: str):
    """Return a teacher's logits in the form of labels.

    Example:
        >>> as_labels(ops.convert_to_tensor([[0.0, 2.0]]), "softmax").numpy().tolist()
        [1]
    """
    if activation == "softmax":
        return ops.argmax(logits, axis=-1)
    return logits if activation == "linear" else ops.cast(logits > 0, "float32")


# The mean of values with a weight.
MEAN = BatchLoss(lambda y_true, y_pred: y_pred, of_tokens=True)


def known_tokens(inputs: dict, positions=None):
    """Return (B, L) bool: true at tokens that the teacher has too.

    Args:
        inputs: the student's.
        positions: (B, L) int, of the tokens in the teacher's example, less than 0 where there is
            none; None if both have the same tokens.
    """
    mask = inputs.get("padding_mask")
    mask = ops.cast(ops.ones_like(inputs["token_ids"]) if mask is None else mask, "bool")
    return mask if positions is None else ops.logical_and(mask, positions >= 0)


def take_aligned(x, positions):
    """Gather from the teacher's (B, T, ...) the values at the student's tokens, (B, L, ...)."""
    batch, length, *rest = ops.shape(x)
    flat = ops.reshape(x, (batch, length, math.prod(x.shape[2:])))
    found = take_positions(flat, ops.maximum(positions, 0))
    return ops.reshape(found, (*ops.shape(positions), *rest))
