"""Longformer: RoBERTa with local attention, and global attention for some tokens.

Comments use these letters for shapes: B batch, L sequence, D hidden, H heads, d = D/H, S slots for
global tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import keras
from keras import ops

from encoder_zoo.common.context import use_context
from encoder_zoo.common.validation import NonNegativeInt, Rule, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.attention_masks import AttentionMask
from encoder_zoo.encoders.core import Encoder, EncoderBlock
from encoder_zoo.encoders.families import roberta
from encoder_zoo.encoders.family import Head
from encoder_zoo.encoders.kernels.attention import FastAttention, attend_fast, attend_heads
from encoder_zoo.encoders.kernels.long_attention import is_long_text
from encoder_zoo.encoders.positions import (
    compute_text_positions,
    select_first_tokens,
    take_positions,
)

MAX_LINEAR_GLOBAL_TOKENS = 64  # maximum number of global tokens per example for a cost of O(L)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LongformerAttention(FastAttention):
    """Local attention, (B, L, D). Some tokens use global attention with separate projections.

    A global token attends to all tokens, and all tokens attend to it. See `SelfAttention` for the
    arguments.

    Call arguments:
        attention_mask: An `AttentionMask` with a `max_distance`. If its `global_keys` are None, all
            tokens use local attention.
        has_few_global: Boolean tensor. Whether the mask's `global_positions` contain all global
            tokens. Only needed with `global_keys`.

    Source: Beltagy et al. 2020, Longformer: The Long-Document Transformer, section 3.1.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo.encoders.attention_masks import AttentionMask
        >>> attention = LongformerAttention(hidden_dim=8, num_heads=2)
        >>> mask = AttentionMask(np.ones((1, 3), "bool"), max_distance=1)
        >>> keras.ops.shape(attention(np.zeros((1, 3, 8), "float32"), attention_mask=mask))
        (1, 3, 8)
    """

    def build(self, input_shape=None):
        super().build(input_shape)
        for part in ("query", "key", "value"):
            layer = self.make_dense(f"global_{part}", self.hidden_dim)
            setattr(self, f"global_{part}_dense", layer)

    def call(
        self,
        x,
        attention_mask=None,
        training=None,
        return_probabilities=False,
        has_few_global=None,
        **context,
    ):
        mask = attention_mask
        if getattr(mask, "global_keys", None) is None:
            if training:
                x = self._add_zero_gradients(x)
            return super().call(x, mask, training, return_probabilities, **context)
        if return_probabilities:
            return self._attend_with_probabilities(x, mask, training)
        drawing = self.dropout_layer.share_seed(training)
        query_key_value = self.project(x, **context)

        def attend_globally_to_all():
            with drawing():
                by_chunks = dataclasses.replace(mask, global_positions=None)
                mixed = attend_fast(self, *query_key_value, by_chunks, training)
                everywhere = self._project_globally(x, x)
                of_all = attend_fast(self, *everywhere, _remove_max_distance(mask), training)
                return ops.where(ops.expand_dims(mask.global_keys, (2, 3)), of_all, mixed)

        def attend_globally_to_few():
            with drawing():
                mixed = attend_fast(self, *query_key_value, mask, training)
                return self._replace_global_outputs(mixed, x, mask, training)

        is_long = is_long_text(ops.shape(x)[1])
        if is_long is False:
            return self.join_heads(attend_globally_to_all(), x)
        # Both functions use the method for long texts, because TensorFlow has no gradient for
        # selections within a selection. It is correct for all lengths.
        with use_context(is_long=True):
            mixed = ops.cond(
                is_long & has_few_global, attend_globally_to_few, attend_globally_to_all
            )
        return self.join_heads(mixed, x)

    def _project_globally(self, queried, x):
        """Compute global queries (B, Q, H, d), keys and values (B, L, H, d)."""
        layers = (self.global_query_dense, self.global_key_dense, self.global_value_dense)
        heads = self.num_heads, self.hidden_dim // self.num_heads
        return tuple(
            ops.reshape(
                layer(ops.reshape(given, (-1, self.hidden_dim))), (*ops.shape(given)[:2], *heads)
            )
            for layer, given in zip(layers, (queried, x, x), strict=True)
        )

    def _replace_global_outputs(self, mixed, x, mask, training):
        """Replace the outputs of global tokens, (B, L, H, d), with those of global attention."""
        last = ops.minimum(mask.global_positions, ops.shape(x)[1] - 1)  # (B, S)
        heads = self._project_globally(take_positions(x, last), x)
        texts = None if mask.texts is None else take_positions(mask.texts, last)
        allowed = _remove_max_distance(mask).compare_pairs(mask.real, texts, mask.texts)
        heads = (ops.transpose(part, (0, 2, 1, 3)) for part in heads)
        of_slots = ops.transpose(attend_heads(self, *heads, allowed, training), (0, 2, 1, 3))
        slots = ops.cumsum(ops.cast(mask.global_keys, "int32"), axis=1) - 1  # (B, L)
        of_tokens = take_positions(of_slots, ops.clip(slots, 0, ops.shape(of_slots)[1] - 1))
        return ops.where(ops.expand_dims(mask.global_keys, (2, 3)), of_tokens, mixed)

    def _attend_with_probabilities(self, x, mask, training):
        """Compute the output (B, L, D) and the attention probabilities (B, H, L, L)."""

        def attend(heads, mask):
            heads = (ops.transpose(part, (0, 2, 1, 3)) for part in heads)  # (B, H, L, d)
            return self.attend(*heads, mask.make_matrix(), training)

        local = attend(self.project(x), mask)
        everywhere = attend(self._project_globally(x, x), _remove_max_distance(mask))
        is_global = ops.expand_dims(mask.global_keys, (1, 3))
        mixed, probabilities = (
            ops.where(is_global, a, b) for a, b in zip(everywhere, local, strict=True)
        )
        return self.join_heads(ops.transpose(mixed, (0, 2, 1, 3)), x), probabilities

    def _add_zero_gradients(self, x):
        """Return x unchanged. The global weights get zero gradients, which Keras requires."""
        unused = sum(ops.sum(part) for part in self._project_globally(x[:1, :1], x[:1, :1]))
        return x + 0 * unused


def _remove_max_distance(mask: AttentionMask) -> AttentionMask:
    return AttentionMask(mask.real, mask.texts, has_unattended=mask.has_unattended)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LongformerBlock(EncoderBlock):
    """`EncoderBlock` with `LongformerAttention`.

    Example:
        >>> import numpy as np
        >>> block = LongformerBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    attention_class = LongformerAttention


def _is_window(value: object) -> bool:
    return type(value) is int and 0 < value < 2**40 and value % 2 == 0


AttentionWindow = Annotated[
    int | Sequence[int],
    Rule(
        lambda v: _is_window(v) or (isinstance(v, list | tuple) and all(map(_is_window, v))),
        "a positive even integer, or a list of positive even integers, one per layer",
    ),
]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LongformerBackbone(roberta.RobertaBackbone):
    """Longformer encoder. See `RobertaBackbone` for other arguments and outputs.

    Each token attends to the tokens in a window. In addition, global tokens, which have the value 1
    in the input "global_mask", (B, L), attend to all tokens, and all tokens attend to them. If this
    input is missing, the global tokens are the first token for classifiers and rerankers, the
    question for `SpanQA`, and the choice for `MultipleChoice`, as in transformers. All other models
    have no global tokens by default.

    The cost is O(L) for up to 64 global tokens, and O(L²) for more. The memory is O(L).

    Args:
        attention_window: Positive even integer, or a list with an integer for each layer. The
            number of tokens in the window, not counting the token itself. Half of them are before
            the token, and half are after it. Defaults to 512.
        sep_token_id: Non-negative integer. Id of the separator, which ends a question. Defaults to
            2.
        **kwargs: Additional arguments for `RobertaBackbone`.

    Raises:
        ValueError: If `attention_window` is a list whose length is not `num_layers`.

    Source: Beltagy et al. 2020, Longformer: The Long-Document Transformer, section 3.

    Example:
        >>> import numpy as np
        >>> backbone = LongformerBackbone(
        ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16,
        ...     attention_window=4,
        ... )
        >>> outputs = backbone({"token_ids": np.array([[0, 7, 8, 9, 2]]),
        ...                     "global_mask": np.array([[1, 0, 0, 0, 0]])})
        >>> keras.ops.shape(outputs["sequence_output"])
        (1, 5, 8)
    """

    defaults: ClassVar = {**roberta.RobertaBackbone.defaults, "max_sequence_length": 4096}

    @validate_arguments
    def __init__(
        self,
        *args,
        attention_window: AttentionWindow = 512,
        sep_token_id: NonNegativeInt = 2,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        is_single = isinstance(attention_window, int)
        self.attention_window = attention_window if is_single else list(attention_window)
        self.sep_token_id = sep_token_id
        if not is_single and len(attention_window) != self.num_layers:
            raise invalid(
                "attention_window",
                attention_window,
                f"one integer, or a list with num_layers={self.num_layers} integers",
            )

    def make_block(self, i: int) -> LongformerBlock:
        return super().make_block(i, LongformerBlock)

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        windows = self.attention_window
        windows = [windows] * self.num_layers if isinstance(windows, int) else windows
        contexts = {
            window: {"attention_mask": Encoder.attention_mask(self, inputs, window // 2)}
            for window in windows
        }
        if inputs.get("global_mask") is not None:
            contexts = {
                w: _add_global_tokens(inputs["global_mask"], **c) for w, c in contexts.items()
            }
        return [contexts[window] for window in windows]

    def add_head_inputs(self, inputs: Mapping, head: Head) -> Mapping:
        if head.global_tokens is None or inputs.get("global_mask") is not None:
            return inputs
        ids, starts = inputs["token_ids"], inputs.get("text_starts")
        positions = compute_text_positions(starts, ops.shape(ids)[1])  # (1 or B, L)
        if head.global_tokens == "first":
            is_global = ops.broadcast_to(positions == 0, ops.shape(ids))
            return {**inputs, "global_mask": ops.cast(is_global, "int32")}
        ends = ops.cast(ids == self.sep_token_id, "int32")
        before = ops.cumsum(ends, axis=1) - ends  # separators before each token
        before = before - select_first_tokens(before[:, :, None], starts)[:, :, 0]
        if head.global_tokens == "first_text":
            is_global = (before == 0) & (ends == 0)
        else:  # the second text begins after two separators
            previous = ops.pad(before, [[0, 0], [1, 0]])[:, :-1]
            is_global = (previous > 0) & (positions > 1)
        return {**inputs, "global_mask": ops.cast(is_global, "int32")}


def _add_global_tokens(global_mask, attention_mask: AttentionMask) -> dict:
    """Return the context of a block with a mask that contains the global tokens."""
    length = ops.shape(global_mask)[1]
    keys = ops.cast(global_mask, "bool") & attention_mask.real
    positions = ops.where(keys, ops.arange(length, dtype="int32"), length)
    positions = ops.sort(positions, axis=1)[:, :MAX_LINEAR_GLOBAL_TOKENS]
    mask = dataclasses.replace(attention_mask, global_keys=keys, global_positions=positions)
    most = ops.max(ops.sum(ops.cast(keys, "int32"), axis=1))
    return {"attention_mask": mask, "has_few_global": most <= MAX_LINEAR_GLOBAL_TOKENS}


_GLOBAL_TOKENS = {  # see `Head.global_tokens`
    "ForSequenceClassification": "first",
    "ForMultipleChoice": "second_text",
    "ForQuestionAnswering": "first_text",
}
_GLOBAL = {
    f"blocks.{{}}.attention.global_{part}_dense": f"encoder.layer.{{}}.attention.self.{part}_global"
    for part in ("query", "key", "value")
}

FAMILY = dataclasses.replace(
    roberta.FAMILY,
    name="longformer",
    backbone=LongformerBackbone,
    class_prefix="Longformer",
    prefix="longformer",
    tensors={**roberta.FAMILY.tensors, **_GLOBAL},
    config_keys={
        **roberta.FAMILY.config_keys,
        "attention_window": "attention_window",
        "sep_token_id": "sep_token_id",
    },
    uses_global_mask=True,
    heads={
        name: dataclasses.replace(head, global_tokens=_GLOBAL_TOKENS.get(name))
        for name, head in roberta.make_heads("hidden_dropout_prob").items()
    },
    tiny={"attention_window": [4, 8]},
)
LongformerBackbone.family = FAMILY
