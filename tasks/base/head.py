"""Task heads: the layers that compute logits from the outputs of a backbone.

Comments use these letters for shapes: B (batch size), L (sequence length), D (hidden dimension), C
(outputs).
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.encoders import layers
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head, Hidden
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.positions import average_tokens


@keras.saving.register_keras_serializable(package="encoder_zoo")
class HiddenLayer(ConfigFromSignature, keras.layers.Layer):
    """Dense layer with an activation and an optional LayerNorm.

    Args:
        units: Positive integer. Output dimension.
        activation: String. See `layers.ACTIVATIONS`.
        layer_norm_epsilon: Optional float. LayerNorm epsilon. If None, there is no LayerNorm.
        use_bias: Boolean. Whether the dense layer and the LayerNorm have a bias. Defaults to True.
        stddev: Float. Standard deviation of new weights (see `layers.make_initializer`).

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
        stddev: float = layers.INITIALIZER_RANGE,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self.stddev = stddev
        self.activation_function = layers.get_activation(activation)
        self.dense = keras.layers.Dense(
            units,
            use_bias=use_bias,
            kernel_initializer=layers.make_initializer(stddev),
            name="dense",
            dtype=self.dtype_policy,
        )
        self.norm = None
        if layer_norm_epsilon is not None:
            self.norm = layers.LayerNorm(
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
        dropout: Float between 0 and 1. Dropout rate before the output layer. Defaults to 0.0.
        hidden: Optional Keras layer before the output layer.
        hidden_after_dropout: Boolean. Whether dropout is also applied before the hidden layer.
            Defaults to False.
        stddev: Float. Standard deviation of new weights in the output layer (see
            `layers.make_initializer`).
        first_norm_epsilon: Optional float. Epsilon of a LayerNorm that is applied to `x + first`
            before all other layers. If None, there is no such LayerNorm.
        use_bias: Boolean. Whether the output layer has a bias. Defaults to True.

    Call arguments:
        x: Float tensor of shape (B, D) or (B, L, D).
        first: Float tensor of shape (B, L, D) or (B, 1, D), for heads with `first_norm_epsilon`
            (see `positions.select_first_tokens`).

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
        stddev: float = layers.INITIALIZER_RANGE,
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
            self.first_norm = layers.LayerNorm(
                epsilon=first_norm_epsilon, name="first_norm", dtype=self.dtype_policy
            )
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        # Logits are float32, also with mixed precision, because the loss is computed in float32.
        self.output_dense = keras.layers.Dense(
            units,
            use_bias=use_bias,
            kernel_initializer=layers.make_initializer(stddev),
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
        head: The family's `Head`.
        backbone: `Backbone`. The head reads its outputs.
        units: Positive integer. Number of outputs C.
        dropout: Float. Dropout rate. See `get_head_dropout`.
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
    hidden = head.hidden and make_hidden_layer(head.hidden, backbone, backbone.hidden_dim, dtype)
    after_dropout = bool(head.hidden and head.hidden.after_dropout)
    stddev = compute_head_stddev(head, backbone)
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


def compute_head_stddev(record: Head | Hidden, backbone: Backbone) -> float:
    """Return the standard deviation of new weights in a head."""
    return record.stddev(backbone) if record.stddev else layers.INITIALIZER_RANGE


def make_hidden_layer(
    hidden: Hidden,
    backbone: Backbone,
    units: int,
    dtype: keras.DTypePolicy,
    activation: str | None = None,
    layer_norm_epsilon: float | None = None,
) -> HiddenLayer:
    """Create the hidden layer of a head.

    Args:
        hidden: The family's `Hidden`.
        backbone: `Backbone`. If the activation or the epsilon is missing in `hidden`, the value of
            the backbone is used.
        units: Positive integer. Output dimension.
        dtype: The task's Keras dtype policy.
        activation, layer_norm_epsilon: Optional values that replace the family's values.
            Default to None.
    """
    return HiddenLayer(
        units,
        activation or hidden.activation or getattr(backbone, hidden.activation_argument),
        (layer_norm_epsilon or backbone.layer_norm_epsilon) if hidden.norm else None,
        hidden.bias,
        compute_head_stddev(hidden, backbone),
        name="hidden",
        dtype=dtype,
    )


def compute_text_logits(
    task: keras.Model, encoded: Mapping, inputs: Mapping, training: bool | None = None
) -> keras.KerasTensor:
    """Compute the logits of texts, shape (B, C).

    Args:
        task: Task with a backbone and a head.
        encoded: Dict. Backbone outputs.
        inputs: Dict. Backbone inputs.
        training: Optional boolean, as in Keras.
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
        task: Task with a backbone.
        name: String. Kind of task for the error message, such as "reranker".

    Raises:
        ValueError: If the head reads the pooler output, but the backbone has no pooler.
    """
    if task.head_record.pooled and not task.backbone.pooler:
        raise ValueError(
            f"This {task.backbone.family.class_prefix} {name} requires a backbone with a pooler. "
            "Create the backbone with pooler=True, or use "
            f"{type(task).__name__}.from_preset, which adds a pooler."
        )


def get_head_dropout(head: Head, backbone: Backbone, dropout: float | None) -> float:
    """Return the dropout rate of a head: the given rate, or the family's default.

    Args:
        head: The family's `Head`.
        backbone: `Backbone`. Its dropout rate is the default of most families.
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
        ValueError: If the layer changes any dimension except for the last.

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
            raise ValueError(
                f"`head` has the output shape {outputs.shape} for inputs with the shape "
                f"{tuple(input_shape)}. Expected {expected}."
            )
        self.units = outputs.shape[-1]

    def call(self, x, training=None):
        return ops.cast(self.layer(x, training=training), "float32")
