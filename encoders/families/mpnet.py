"""MPNet: BERT with relative attention biases, and with the positions of RoBERTa.

Comments use these letters for shapes: B batch, L sequence, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.validation import one_of
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.core import EncoderBlock
from encoder_zoo.encoders.families.bert import CONFIG_KEYS, TENSORS, TOKEN_IDS
from encoder_zoo.encoders.families.roberta import RobertaEmbeddings, make_heads
from encoder_zoo.encoders.family import Family, map_attention_names
from encoder_zoo.encoders.kernels.attention import FastAttention
from encoder_zoo.encoders.positions import align_distance_scores
from encoder_zoo.encoders.tokenizers import MPNET_WORDPIECE

BUCKETS, MAX_DISTANCE = 32, 128  # the same values in all checkpoints


def compute_distance_buckets() -> np.ndarray:
    """Compute a bucket for each distance.

    Distances below 8 have their own bucket. From 8, buckets are logarithmic.

    Returns:
        Int32 array of shape (129,) with values from 0 to 15. All larger distances are assigned to
        the last bucket.

    Source: Raffel et al. 2020, T5, section 2.1. Song et al. 2020, MPNet, the released code.

    Example:
        >>> compute_distance_buckets()[[0, 7, 8, 11, 12, 64, 128]].tolist()
        [0, 7, 8, 8, 9, 14, 15]
    """
    side = BUCKETS // 2
    exact = side // 2
    distances = np.arange(MAX_DISTANCE + 1)
    # Use float32 as in training, because rounding affects the bucket for some distances.
    logs = np.log(np.maximum(distances, exact).astype("float32") / np.float32(exact))
    wide = exact + logs / np.float32(math.log(MAX_DISTANCE / exact)) * np.float32(side - exact)
    buckets = np.where(distances < exact, distances, wide.astype("int32"))
    return np.minimum(buckets, side - 1).astype("int32")


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MPNetAttention(FastAttention):
    """`SelfAttention` with an additional bias for attention scores.

    Call arguments:
        position_bias: Tensor of shape (1, H, L, L). The bias for each head and pair of positions.

    Source: Song et al. 2020, MPNet, the released code. Raffel et al. 2020, T5, section 2.1.

    Example:
        >>> import numpy as np
        >>> attention = MPNetAttention(hidden_dim=8, num_heads=2)
        >>> bias = np.zeros((1, 2, 3, 3), "float32")
        >>> keras.ops.shape(attention(np.zeros((1, 3, 8), "float32"), position_bias=bias))
        (1, 3, 8)
    """

    def scores(self, query, key, training=None, *, position_bias):
        return super().scores(query, key, training=training) + position_bias


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MPNetBlock(EncoderBlock):
    """`EncoderBlock` with `MPNetAttention`. See `EncoderBlock` for the arguments.

    Example:
        >>> import numpy as np
        >>> block = MPNetBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> bias = np.zeros((1, 2, 3, 3), "float32")
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32"), position_bias=bias))
        (1, 3, 8)
    """

    attention_class = MPNetAttention


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MPNetBackbone(Backbone):
    """MPNet encoder. See `Backbone` for inputs and outputs.

    Positions start at 2, as in RoBERTa. A single bias table is shared between all blocks, with one
    value per head for each of 32 distance buckets. This model does not use segments.

    Args:
        **kwargs: Arguments for `Backbone`. See the signature for the default values.

    Source: Song et al. 2020, MPNet: Masked and Permuted Pre-training for Language Understanding,
    section 3.

    Example:
        >>> import numpy as np
        >>> backbone = MPNetBackbone(
        ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[0, 7, 2, 1]]),
        ...                     "padding_mask": np.array([[1, 1, 1, 0]])})
        >>> keras.ops.shape(outputs["sequence_output"]), keras.ops.shape(outputs["pooled_output"])
        ((1, 4, 8), (1, 8))
    """

    defaults: ClassVar = {"num_segments": 0}
    without_weight_decay = ("relative_bias",)
    pad_token_id = 1  # MPNet's own code also ignores the value in config.json

    def build(self, input_shape=None):
        super().build(input_shape)
        self.relative_bias = self.make_table("relative_bias", BUCKETS, width=self.num_heads)

    def make_embeddings(self) -> RobertaEmbeddings:
        return super().make_embeddings(
            RobertaEmbeddings, max_positions=self.max_sequence_length + self.pad_token_id + 1
        )

    def make_block(self, i: int) -> MPNetBlock:
        return super().make_block(i, MPNetBlock)

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        bias = self._compute_position_bias(ops.shape(inputs["token_ids"])[1])
        return [{**context, "position_bias": bias} for context in super().block_contexts(inputs)]

    def _compute_position_bias(self, length):
        """Compute the bias of each head for all pairs of positions, (1, H, L, L)."""
        distances = length - 1 - ops.arange(2 * length, dtype="int32")  # query minus key position
        buckets = ops.take(
            compute_distance_buckets(), ops.minimum(ops.abs(distances), MAX_DISTANCE)
        )
        buckets = ops.where(distances < 0, buckets + BUCKETS // 2, buckets)
        biases = ops.transpose(self.relative_bias(buckets))[None, :, None]  # (1, H, 1, 2 L)
        shape = (1, self.num_heads, length, 2 * length)
        return align_distance_scores(ops.broadcast_to(biases, shape))


FAMILY = Family(
    name="mpnet",
    backbone=MPNetBackbone,
    class_prefix="MPNet",
    prefix="mpnet",
    tensors={
        **{name: tensor for name, tensor in TENSORS.items() if "segment" not in name},
        **map_attention_names("blocks.{}.attention", "encoder.layer.{}.attention.attn.*"),
        "blocks.{}.attention_norm": "encoder.layer.{}.attention.LayerNorm",
        "relative_bias": "encoder.relative_attention_bias",
    },
    pooler="pooler.dense",
    config_keys=CONFIG_KEYS,
    rules={
        "pad_token_id": one_of(None, 1),
        "relative_attention_num_buckets": one_of(None, BUCKETS),
    },
    constants={"relative_attention_num_buckets": BUCKETS, "initializer_range": 0.02},
    token_ids=TOKEN_IDS,
    positions_skip_padding=True,
    tokenizer=MPNET_WORDPIECE,
    # The config.json has no separate field, so the dropout rate of the encoder is used.
    heads=make_heads("hidden_dropout_prob"),
)
MPNetBackbone.family = FAMILY
