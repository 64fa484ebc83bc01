"""Distillation objectives: soft labels, hidden states and token relations.

An objective returns a float32 value per text or token. The value is small if the student agrees
with the teacher. `Distillation` computes the weighted mean of the values.

Comments use these letters for shapes: B batch, L sequence, D hidden, H heads, A relation heads, C
classes.
"""

from __future__ import annotations

import math

import keras
from keras import ops

from encoder_zoo.encoders.attention_masks import MASKED_LOGIT, make_attention_mask
from encoder_zoo.encoders.positions import take_positions
from encoder_zoo.tasks.losses.batch_loss import BatchLoss
from encoder_zoo.tasks.losses.score_distillation import compute_kl_divergence


def compare_labels(student, teacher, temperature: float, activation: str):
    """Compute the KL divergence between the softened answers of teacher and student.

    Args:
        student: Float tensor of shape (..., C). Logits of the student.
        teacher: Float tensor of shape (..., C). Logits of the teacher.
        temperature: Float. Both logits are divided by this value. The divergence is multiplied by
            its square, so that the scale of the gradient does not depend on the temperature.
        activation: String. "softmax" for exclusive classes, "sigmoid" for independent classes (the
            mean over the classes is returned), or "linear" for regression (the mean squared
            difference is returned).

    Returns:
        Float32 tensor of shape (...).

    Source: Hinton, Vinyals and Dean 2015, Distilling the Knowledge in a Neural Network, section 2.
    Regression: Jiao et al. 2020, TinyBERT, appendix.

    Example:
        >>> import numpy as np
        >>> student, teacher = np.float32([[0, 0]]), np.float32([[0, 2]])
        >>> round(float(compare_labels(student, teacher, 2.0, "softmax")[0]), 3)
        0.444
    """
    student, teacher = ops.cast(student, "float32"), ops.cast(teacher, "float32")
    if activation == "linear":
        return ops.mean(ops.square(student - teacher), axis=-1)
    student, teacher = student / temperature, teacher / temperature
    if activation == "softmax":
        divergence = compute_kl_divergence(ops.log_softmax(teacher), ops.log_softmax(student))
    else:  # each class is present or absent
        teacher, student = (
            ops.log_sigmoid(ops.stack([logits, -logits], axis=-1)) for logits in (teacher, student)
        )
        divergence = ops.mean(compute_kl_divergence(teacher, student), axis=-1)
    return temperature**2 * divergence


def match_states(student_layers: int, teacher_layers: int) -> list[int]:
    """For each student state, return the index of the teacher state to compare it with.

    Source: Jiao et al. 2020, TinyBERT, section 4.2, the uniform mapping.

    Example:
        >>> match_states(4, 12), match_states(2, 3)
        ([0, 3, 6, 9, 12], [0, 2, 3])
    """
    return [round(i * teacher_layers / student_layers) for i in range(student_layers + 1)]


def compare_hidden_states(student: list, teacher: list, maps: list):
    """Compute the distance between student and teacher hidden states.

    Args:
        student: List of tensors of shape (B, L, D). The embeddings are first, followed by the
            outputs of the blocks.
        teacher: List of tensors of shape (B, L, D), where D is the teacher's width. The states to
            compare with, selected by `match_states`.
        maps: List of two layers that map the student's width to the teacher's width, for the
            embeddings and for all other states. Empty if the widths are equal.

    Returns:
        Float32 tensor of shape (B, L). The mean squared difference per token, summed over the
        states.

    Source: Jiao et al. 2020, TinyBERT, equations 8 and 9.
    """
    total = 0.0
    for i, index in enumerate(match_states(len(student) - 1, len(teacher) - 1)):
        vectors = maps[min(i, 1)](student[i]) if maps else student[i]
        difference = ops.cast(vectors, "float32") - ops.cast(teacher[index], "float32")
        total = total + ops.mean(ops.square(difference), axis=-1)
    return total


def compare_relations(student: tuple, teacher: tuple, heads: int, inputs: dict):
    """Compute the divergence between the token relations of the last attention layers.

    The relations are the attention probabilities, and the softmax over the similarities of values.
    Their shape does not depend on the model's width, nor on the number of attention heads,
    because queries, keys and values are split into `heads` equal parts.

    Args:
        student: Tuple of queries, keys and values, tensors of shape (B, L, H, D/H).
        teacher: Tuple of queries, keys and values. H and D can differ between student and teacher.
        heads: Integer. Number of parts.
        inputs: Dict with "padding_mask" and optionally "text_starts", as for a backbone.

    Returns:
        Float32 tensor of shape (B, L). The sum of the KL divergences of both kinds of relations,
        averaged over the heads.

    Source: Wang et al. 2020, MiniLM, sections 3.1 and 3.2. The number of parts: Wang et al. 2021,
    MiniLMv2, section 3.1.
    """
    allowed = make_attention_mask(inputs["padding_mask"], inputs.get("text_starts")).make_matrix()
    total = 0.0
    for first, second in ((0, 1), (2, 2)):  # queries and keys, values and values
        true, found = (
            _compute_log_relations(parts[first], parts[second], heads, allowed)
            for parts in (teacher, student)
        )
        total = total + ops.mean(compute_kl_divergence(true, found), axis=1)
    return total


def _compute_log_relations(first, second, heads: int, allowed):
    """Compute the log probabilities of the relations between tokens, (B, A, L, L)."""
    first, second = _split_heads(first, heads), _split_heads(second, heads)  # (B, A, L, D/A)
    scores = ops.matmul(first, ops.transpose(second, (0, 1, 3, 2))) * first.shape[-1] ** -0.5
    return ops.log_softmax(ops.where(allowed, scores, MASKED_LOGIT))


def _split_heads(x, heads: int):
    """Split the width into relation heads: from (B, L, H, D/H) to float32 (B, A, L, D/A)."""
    batch, length = ops.shape(x)[:2]
    width = x.shape[2] * x.shape[3]
    x = ops.reshape(ops.cast(x, "float32"), (batch, length, heads, width // heads))
    return ops.transpose(x, (0, 2, 1, 3))


def make_linear_maps(width: int, teacher_width: int, dtype) -> list[keras.layers.Dense]:
    """Create the linear maps for `compare_hidden_states`. If the widths are equal, return []."""
    if width == teacher_width:
        return []
    maps = [
        keras.layers.Dense(teacher_width, use_bias=False, name=f"{name}_map", dtype=dtype)
        for name in ("embeddings", "blocks")
    ]
    for layer in maps:
        layer.build((None, None, width))
    return maps


def convert_to_labels(logits, activation: str):
    """Convert teacher logits to labels, for metrics without true labels.

    Example:
        >>> convert_to_labels(ops.convert_to_tensor([[0.0, 2.0]]), "softmax").numpy().tolist()
        [1]
    """
    if activation == "softmax":
        return ops.argmax(logits, axis=-1)
    return logits if activation == "linear" else ops.cast(logits > 0, "float32")


# weighted mean of the values
MEAN = BatchLoss(lambda y_true, y_pred: y_pred, of_tokens=True)


def mark_known_tokens(inputs: dict, positions=None):
    """Return a boolean mask (B, L) of the student tokens that have a corresponding teacher token.

    Args:
        inputs: Dict of tensors. Inputs of the student.
        positions: Optional integer tensor of shape (B, L). Positions of the tokens in the teacher's
            example. Negative for tokens without a position. If None, both models read the same
            tokens.
    """
    mask = inputs.get("padding_mask")
    mask = ops.cast(ops.ones_like(inputs["token_ids"]) if mask is None else mask, "bool")
    return mask if positions is None else ops.logical_and(mask, positions >= 0)


def gather_aligned(x, positions):
    """Gather teacher values (B, T, ...) at the positions of the student tokens, (B, L, ...)."""
    batch, length, *rest = ops.shape(x)
    flat = ops.reshape(x, (batch, length, math.prod(x.shape[2:])))
    found = take_positions(flat, ops.maximum(positions, 0))
    return ops.reshape(found, (*ops.shape(positions), *rest))
