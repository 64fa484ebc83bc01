"""Task heads: the layers that compute logits from a backbone's outputs.

Comments use these letters for shapes: B batch, L sequence, D hidden, C outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import INITIALIZER_RANGE, Head, Hidden
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.layers import LayerNorm, get_activation, make_initializer
from encoder_zoo.encoders.positions import average_tokens


@keras.saving.register_keras_serializable(package="encoder_zoo")
class HiddenLayer(ConfigFromSignature, keras.layers.Layer):
    """A dense layer with an activation and an optional LayerNorm.

    Args:
        units: Positive integer. Output width.
        activation: String. See `layers.ACTIVATIONS`.
        layer_norm_epsilon: Optional float. LayerNorm epsilon. Pass None to omit the LayerNorm.
        use_bias: Boolean. Whether to use a bias in the dense layer and the LayerNorm.
        stddev: Float. Standard deviation for new weights (see `layers.make_initializer`).

    Call arguments:
        x: Float tensor of shape (..., D).

    Returns:
        Float tensor of shape (..., units).

    Example:
        >>> import numpy as np
        >>> keras.ops.shape(HiddenLayer(3, "tanh")(np.zeros((1, 4), "float32")))
        (1, 3)
    """

    def __init__(
        self,
        units: int,
        activation: str,
        layer_norm_epsilon: float | None = None,
        use_bias: bool = True,
        stddev: float = INITIALIZER_RANGE,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self.stddev = stddev
        self.activation_function = get_activation(activation)
        self.dense = keras.layers.Dense(
            units,
            use_bias=use_bias,
            kernel_initializer=make_initializer(stddev),
            name="dense",
            dtype=self.dtype_policy,
        )
        self.norm = None
        if layer_norm_epsilon is not None:
            self.norm = LayerNorm(
                epsilon=layer_norm_epsilon, center=use_bias, name="norm", dtype=self.dtype_policy
            )

    def build(self, input_shape):
        self.dense.build(input_shape)
        if self.norm is not None:
            self.norm.build((*input_shape[:-1], self.units))

    def call(self, x):
        x = self.activation_function(self.dense(x))
        return x if self.norm is None else self.norm(x)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TaskHead(ConfigFromSignature, keras.layers.Layer):
    """Task head that computes float32 logits with an optional hidden layer and an output layer.

    Args:
        units: Positive integer. Number of outputs C.
        dropout: Float between 0 and 1. Dropout rate to use before the output layer.
        hidden: Optional Keras layer to use before the output layer.
        hidden_after_dropout: Boolean. Whether to also apply dropout before the hidden layer.
        stddev: Float. Standard deviation for new weights in the output layer (see
            `layers.make_initializer`).
        first_norm_epsilon: Optional float. Epsilon for a LayerNorm over `x + first`, applied before
            all other layers. Pass None to omit this LayerNorm.
        use_bias: Boolean. Whether to use a bias in the output layer. Defaults to True.

    Call arguments:
        x: Float tensor of shape (B, D) or (B, L, D).
        first: Float tensor of shape (B, L or 1, D), for heads with the first LayerNorm (see
            `positions.select_first_tokens`).

    Returns:
        Float32 tensor of shape (B, C) or (B, L, C).

    Example:
        >>> import numpy as np
        >>> head = TaskHead(units=3, hidden=HiddenLayer(8, "tanh"))
        >>> keras.ops.shape(head(np.zeros((1, 8), "float32")))
        (1, 3)
    """

    def __init__(
        self,
        units: int,
        dropout: float = 0.0,
        hidden: HiddenLayer | None = None,
        hidden_after_dropout: bool = False,
        stddev: float = INITIALIZER_RANGE,
        first_norm_epsilon: float | None = None,
        use_bias: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.dropout = dropout
        self.hidden = hidden
        self.hidden_after_dropout = hidden_after_dropout
        self.stddev = stddev
        self.first_norm_epsilon = first_norm_epsilon
        self.use_bias = use_bias
        self.first_norm = None
        if first_norm_epsilon is not None:
            self.first_norm = LayerNorm(
                epsilon=first_norm_epsilon, name="first_norm", dtype=self.dtype_policy
            )
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        # The loss is computed in float32, also with mixed precision.
        self.output_dense = keras.layers.Dense(
            units,
            use_bias=use_bias,
            kernel_initializer=make_initializer(stddev),
            name="logits",
            dtype="float32",
        )

    def build(self, input_shape):
        if self.first_norm is not None:
            self.first_norm.build(input_shape)
        if self.hidden is not None:
            self.hidden.build(input_shape)
            input_shape = (*input_shape[:-1], self.hidden.units)
        self.output_dense.build(input_shape)
        self.output_shape = (*input_shape[:-1], self.units)  # needed by `summary()`

    def call(self, x, training=None, first=None):
        if self.first_norm is not None:
            x = self.first_norm(x + first)
        if self.hidden is not None:
            if self.hidden_after_dropout:
                x = self.dropout_layer(x, training=training)
            x = self.hidden(x)
        return self.output_dense(self.dropout_layer(x, training=training))


def make_head(
    head: Head,
    backbone: Backbone,
    units: int,
    dropout: float,
    dtype: keras.DTypePolicy,
    of_tokens: bool = False,
) -> TaskHead:
    """Create and build the head that the family uses for a task.

    Args:
        head: `Head`. The family's head record.
        backbone: `Backbone` whose outputs the head reads.
        units: Positive integer. Number of outputs C.
        dropout: Float. See `get_head_dropout`.
        dtype: The task's Keras dtype policy.
        of_tokens: Boolean. Whether the head reads all token vectors (B, L, D) instead of one vector
            per text (B, D). Defaults to False.

    Example:
        >>> from encoder_zoo import RobertaBackbone
        >>> backbone = RobertaBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                            intermediate_dim=16)
        >>> record = backbone.family.heads["ForSequenceClassification"]
        >>> head = make_head(record, backbone, 3, dropout=0.1, dtype=backbone.dtype_policy)
        >>> head.hidden.activation, head.hidden_after_dropout
        ('tanh', True)
    """
    hidden = head.hidden and make_hidden(head.hidden, backbone, backbone.hidden_dim, dtype)
    after_dropout = bool(head.hidden and head.hidden.after_dropout)
    stddev = head.stddev(backbone)
    epsilon = backbone.layer_norm_epsilon if head.first_norm else None
    layer = TaskHead(
        units,
        dropout,
        hidden,
        after_dropout,
        stddev,
        epsilon,
        head.output_bias,
        name="head",
        dtype=dtype,
    )
    layer.build((None, None, backbone.hidden_dim) if of_tokens else (None, backbone.hidden_dim))
    return layer


def make_hidden(
    hidden: Hidden,
    backbone: Backbone,
    units: int,
    dtype: keras.DTypePolicy,
    activation: str | None = None,
    layer_norm_epsilon: float | None = None,
) -> HiddenLayer:
    """Create the hidden layer of a head. Settings missing in the record are read from the backbone.

    Args:
        hidden: `Hidden`. The family's layer record.
        backbone: `Backbone` to read the activation and epsilon from when they are not in the
            record.
        units: Positive integer. Output width.
        dtype: The task's Keras dtype policy.
        activation, layer_norm_epsilon: Optional values that replace the values of the family.
            Default to None.
    """
    return HiddenLayer(
        units,
        activation or hidden.activation or getattr(backbone, hidden.activation_argument),
        (layer_norm_epsilon or backbone.layer_norm_epsilon) if hidden.norm else None,
        hidden.bias,
        hidden.stddev(backbone),
        name="hidden",
        dtype=dtype,
    )


def compute_text_logits(
    task: keras.Model, encoded: Mapping, inputs: Mapping, training: bool | None = None
) -> keras.KerasTensor:
    """Compute the logits for texts, with shape (B, C).

    Args:
        task: A task with a backbone and a head.
        encoded: Dict. Backbone outputs.
        inputs: Dict. Backbone inputs.
        training: See `Task.call`. Defaults to None.
    """
    if task.head_record.pooled:
        return task.head(encoded["pooled_output"], training=training)
    backbone, x = task.backbone, encoded["sequence_output"]  # (B, L, D)
    if backbone.pools_logits and isinstance(task.head, TaskHead):
        logits = task.head(x, training=training)  # (B, L, C)
        return average_tokens(logits, add_padding_mask(inputs)["padding_mask"])
    return task.head(backbone.text_vectors(x, inputs), training=training)


def check_pooler(task: keras.Model, name: str) -> None:
    """Check that the backbone has a pooler if the head of the task reads the pooler output.

    Args:
        task: A task with a backbone.
        name: String. Kind of task for the error message, such as "reranker".

    Raises:
        ValueError: If the head reads the pooler's output and the backbone has no pooler.
    """
    if task.head_record.pooled and not task.backbone.pooler:
        raise ValueError(
            f"A {task.backbone.family.class_prefix} {name} requires a backbone with a pooler. "
            f"Create it with pooler=True, or use {type(task).__name__}.from_preset, which adds one."
        )


def get_head_dropout(head: Head, backbone: Backbone, dropout: float | None) -> float:
    """Return the dropout rate of a head: the given rate, or the default of the family.

    Args:
        head: `Head`. The family's head record.
        backbone: `Backbone`. Its dropout rate is the default for most families.
        dropout: Optional float. Dropout rate that replaces the default.

    Example:
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16, dropout=0.2)
        >>> heads = backbone.family.heads
        >>> [get_head_dropout(heads[n], backbone, None) for n in ("ForTokenClassification",
        ...                                                   "ForQuestionAnswering")]
        [0.2, 0.0]
    """
    if head.dropout is None:
        return 0.0
    shares = (dropout, head.default_dropout, backbone.dropout)
    return next(share for share in shares if share is not None)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class CustomHead(ConfigFromSignature, keras.layers.Layer):
    """Task head that wraps a custom Keras layer and returns float32 logits.

    Args:
        layer: Keras layer that maps (B, D) to (B, C), or (B, L, D) to (B, L, C).

    Attributes:
        units: Integer. Number of outputs C.

    Raises:
        ValueError: If the layer changes a dimension other than the last.

    Example:
        >>> import numpy as np
        >>> layers = [keras.layers.Dense(16, "relu"), keras.layers.Dense(3)]
        >>> head = CustomHead(keras.Sequential(layers))
        >>> keras.ops.shape(head(np.zeros((1, 8), "float32"))), head.units
        ((1, 3), 3)
    """

    def __init__(self, layer: keras.layers.Layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = layer

    def build(self, input_shape):
        outputs = self.layer(keras.KerasTensor(input_shape, self.compute_dtype))
        if outputs.shape[:-1] != tuple(input_shape[:-1]) or outputs.shape[-1] is None:
            expected = str((*input_shape[:-1], "classes")).replace("'", "")
            raise invalid(
                "The output shape of `head`", outputs.shape, f"{expected} for {tuple(input_shape)}"
            )
        self.units = outputs.shape[-1]

    def call(self, x, training=None):
        return ops.cast(self.layer(x, training=training), "float32")
