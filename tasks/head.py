"""What stands between a backbone and a task's logits, built as the family's `Head` says.

Comment letters: B batch, L sequence, D hidden, C outputs.
"""

from __future__ import annotations

import keras

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head, Hidden
from encoder_zoo.encoders.layers import activation_function, initializer


class HiddenLayer(keras.layers.Layer):
    """A dense layer, its activation and, where the family has one, a LayerNorm.

    Args:
        hidden: the family's record of it.
        backbone: whose outputs it reads, and whose activation and epsilon it may share.
        units: width of the outputs; None is the backbone's.

    Call arguments:
        x: (..., D).

    Returns:
        (..., units).
    """

    def __init__(self, hidden: Hidden, backbone: Backbone, units: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.input_dim = backbone.hidden_dim
        self.units = units or backbone.hidden_dim
        self.activation_function = activation_function(hidden.activation or backbone.activation)
        self.dense = keras.layers.Dense(
            self.units,
            use_bias=hidden.bias,
            kernel_initializer=initializer(),
            name="dense",
            dtype=self.dtype_policy,
        )
        self.norm = None
        if hidden.norm:
            self.norm = keras.layers.LayerNormalization(
                epsilon=backbone.layer_norm_epsilon,
                center=hidden.bias,
                name="norm",
                dtype=self.dtype_policy,
            )

    def build(self, input_shape=None):
        self.dense.build((None, None, self.input_dim))
        if self.norm is not None:
            self.norm.build((None, None, self.units))

    def call(self, x):
        x = self.activation_function(self.dense(x))
        return x if self.norm is None else self.norm(x)


class TaskHead(keras.layers.Layer):
    """From a backbone's output to float32 logits: dropout, hidden layer, output layer.

    Args:
        head: the family's record of it.
        backbone: whose outputs it reads.
        units: C.
        dropout: share of what the layers read dropped in training, in heads that have a dropout;
            None is the backbone's.

    Call arguments:
        x: (B, D) or (B, L, D).

    Returns:
        (B, C) or (B, L, C) float32.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import RobertaBackbone
        >>> backbone = RobertaBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                            intermediate_dim=16)
        >>> record = backbone.family.heads["ForSequenceClassification"]
        >>> record.hidden.activation
        'tanh'
        >>> keras.ops.shape(TaskHead(record, backbone, units=3)(np.zeros((1, 8), "float32")))
        (1, 3)
    """

    def __init__(
        self,
        head: Head,
        backbone: Backbone,
        units: int,
        dropout: float | None = None,
        **kwargs,
    ):
        super().__init__(**{"name": "head", "dtype": backbone.dtype_policy, **kwargs})
        self.input_dim = backbone.hidden_dim
        self.units = units
        self.after_dropout = bool(head.hidden and head.hidden.after_dropout)
        self.dropout_layer = keras.layers.Dropout(
            head_dropout(head, backbone, dropout), dtype=self.dtype_policy
        )
        self.hidden = None
        if head.hidden:
            self.hidden = HiddenLayer(head.hidden, backbone, dtype=self.dtype_policy)
        # The loss is taken in float32 also under mixed precision.
        self.output_dense = keras.layers.Dense(
            units, kernel_initializer=initializer(), name="logits", dtype="float32"
        )

    def build(self, input_shape=None):
        if self.hidden is not None:
            self.hidden.build()
        self.output_dense.build((None, None, self.input_dim))

    def call(self, x, training=None):
        if self.hidden is not None:
            if self.after_dropout:
                x = self.dropout_layer(x, training=training)
            x = self.hidden(x)
        return self.output_dense(self.dropout_layer(x, training=training))


def head_dropout(head: Head, backbone: Backbone, dropout: float | None) -> float:
    """The share that a head drops in training.

    Args:
        head: the family's record of it.
        backbone: whose share is the default.
        dropout: the share asked for, or None.

    Example:
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16, dropout=0.2)
        >>> heads = backbone.family.heads
        >>> [head_dropout(heads[n], backbone, None) for n in ("ForTokenClassification",
        ...                                                   "ForQuestionAnswering")]
        [0.2, 0.0]
    """
    if head.dropout is None:
        return 0.0
    return backbone.dropout if dropout is None else dropout
