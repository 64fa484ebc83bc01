"""Token embedding table that is used instead of an encoder.

Comments use these letters for shapes: B batch, L sequence, V vocabulary, D width, N texts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.families.bert import CONFIG_KEYS, FAMILY


class _TokenTableLayer(keras.layers.Layer):
    """Layer that contains the token table, at the attribute path used by all other encoders."""

    def call(self, token_ids):
        is_token = ops.expand_dims(token_ids < self.token_embedding.input_dim, -1)
        x = self.token_embedding(ops.minimum(token_ids, self.token_embedding.input_dim - 1))
        return x * ops.cast(is_token, x.dtype)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TokenTable(Backbone):
    """Encoder with static embeddings. The vector of a token is the same in all texts.

    Args:
        vocabulary_size: Positive integer. The number of tokens V. The token id V is used for texts
            without tokens, and has a zero vector.
        hidden_dim: Positive integer. The embedding width D.
        **arguments: Arguments for `Backbone` that have no effect here.

    Returns:
        Dictionary with "sequence_output", a tensor of shape (B, L, D).

    Example:
        >>> table = TokenTable(vocabulary_size=9, hidden_dim=4)
        >>> keras.ops.shape(table({"token_ids": np.array([[2, 7, 3]])})["sequence_output"])
        (1, 3, 4)
    """

    defaults: ClassVar = {
        **dict.fromkeys(("num_layers", "num_heads", "intermediate_dim", "num_segments"), 1),
        **dict.fromkeys(("dropout", "attention_dropout"), 0.0),
        "max_sequence_length": 2**20,
        "pooler": False,
    }

    def build(self, input_shape=None):
        self.embeddings = _TokenTableLayer(name="embeddings", dtype=self.dtype_policy)
        table = self.make_table("token_embedding", self.vocabulary_size)
        self.embeddings.token_embedding = table
        self.embeddings.built = True
        self.blocks, self.final_layer = [], None

    def call(self, inputs, training=None, return_hidden_states=False, return_projections=False):
        if return_hidden_states or return_projections:
            raise ValueError(
                "TokenTable does not support return_hidden_states and return_projections. "
                "Call it without these arguments."
            )
        return {"sequence_output": self.embeddings(inputs["token_ids"])}

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        return {**super().input_ranges(length), "token_ids": (0, self.vocabulary_size)}

    @classmethod
    def count_min_weights(cls, config: Mapping) -> int:
        return config["vocabulary_size"] * config["hidden_dim"]

    @functools.cached_property
    def _tables(self) -> dict[int, np.ndarray]:
        return {}

    def get_table(self) -> np.ndarray:
        """Return all embeddings as a float32 array (V, D), cached until weights change."""
        version = self.weights_version
        if version not in self._tables:
            self._tables.clear()
            found = ops.convert_to_numpy(self.embeddings.token_embedding.embeddings)
            self._tables[version] = np.asarray(found, "float32")
        return self._tables[version]


TokenTable.family = dataclasses.replace(
    FAMILY,
    name="static",
    backbone=TokenTable,
    class_prefix="Static",
    prefix="static",
    tensors={"embeddings.token_embedding": "embedding"},
    pooler=None,
    config_keys={
        name: CONFIG_KEYS[name]
        for name in ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim")
    },
    blocks="",
    rules={},
    constants={},
    heads={},
    aliases={},
    uses_segments=False,
    learning_rate=5e-3,
    weight_decay=0.0,
)
