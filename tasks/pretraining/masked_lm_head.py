"""The layers between a backbone and the projection onto its token embedding.

Comment letters: B batch, L sequence, D hidden, E embedding, M masked positions, V vocabulary.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head
from encoder_zoo.encoders.layers import initializer
from encoder_zoo.encoders.positions import take_positions
from encoder_zoo.tasks.base.head import HiddenLayer, make_hidden


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaskedLMHead(ConfigFromSignature, keras.layers.Layer):
    """The layers between the backbone and the projection onto the token embedding.

    Args:
        vocabulary_size: V.
        hidden: the layer that makes the token embedding's width of the backbone's; None: there is
            none, and the widths are equal.
        bias_axes: number of the bias's axes; those before the last have size 1.
        tied: whether the projection is the token embedding's transpose; else it is a layer of the
            head, without a bias.

    Call arguments:
        x: (B, M, D).

    Returns:
        (B, M, E), to be multiplied by the token embedding's transpose; `bias` (V,) is then added.

    Source: Devlin et al. 2019, released code, `get_masked_lm_output`.

    Example:
        >>> import numpy as np
        >>> head = MaskedLMHead(11, HiddenLayer(4, "gelu", layer_norm_epsilon=1e-12))
        >>> keras.ops.shape(head(np.zeros((1, 2, 6), "float32"))), tuple(head.bias.shape)
        ((1, 2, 4), (11,))
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden: HiddenLayer | None,
        bias_axes: int = 1,
        tied: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden = hidden
        self.bias_axes = bias_axes
        self.tied = tied

    def build(self, input_shape):
        width = input_shape[-1]
        if self.hidden is not None:
            self.hidden.build(input_shape)
            width = self.hidden.units
        shape = (*[1] * (self.bias_axes - 1), self.vocabulary_size)
        if self.tied:
            self.bias = self.add_weight(shape=shape, initializer="zeros", name="bias")
        else:
            self.output_dense = keras.layers.Dense(
                self.vocabulary_size,
                use_bias=False,
                kernel_initializer=initializer(),
                name="output",
                dtype=self.dtype_policy,
            )
            self.output_dense.build((*input_shape[:-1], width))
        self.output_shape = (*input_shape[:-1], width)  # for `summary()`

    def call(self, x):
        return x if self.hidden is None else self.hidden(x)


def make_masked_lm_head(
    record: Head,
    backbone: Backbone,
    dtype: keras.DTypePolicy,
    activation: str | None = None,
    layer_norm_epsilon: float | None = None,
) -> MaskedLMHead:
    """Return a family's head, built.

    Args:
        record: the family's of it.
        backbone: whose tokens it fills in.
        dtype: of the task.
        activation, layer_norm_epsilon: instead of the family's.

    Raises:
        ValueError: "The head of bart has no layer before the output projection. ..."
    """
    hidden = None
    if record.hidden:
        width = backbone.embeddings.token_embedding.output_dim
        hidden = make_hidden(record.hidden, backbone, width, dtype, activation, layer_norm_epsilon)
    elif activation or layer_norm_epsilon:
        raise ValueError(
            f"The head of {backbone.family.name} has no layer before the output projection. "
            f"Received: head_activation={activation!r}, "
            f"head_layer_norm_epsilon={layer_norm_epsilon!r}."
        )
    axes = record.tied_bias_axes
    tied = record.tied_bias is not None
    head = MaskedLMHead(backbone.vocabulary_size, hidden, axes, tied, name="head", dtype=dtype)
    head.build((None, None, backbone.hidden_dim))
    return head


def token_logits(backbone: Backbone, head: MaskedLMHead, x, positions=None):
    """Return logits of all tokens, float32 (B, L, V), or at some positions (B, M, V).

    Args:
        backbone: with the token embedding.
        head: of the task.
        x: (B, L, D), the backbone's output.
        positions: (B, M) int, or None.
    """
    if positions is not None:
        x = take_positions(x, positions)  # (B, M, D)
    return with_bias(head, project(backbone, head, x))


def project(backbone: Backbone, head: MaskedLMHead, x) -> keras.KerasTensor:
    """Return logits of all tokens without their bias, (B, M, V), of the backbone's output."""
    if not head.tied:
        return head.output_dense(head(x))
    return backbone.embeddings.token_embedding(head(x), reverse=True)


def with_bias(head: MaskedLMHead, logits) -> keras.KerasTensor:
    """Return logits (..., V) plus the head's bias, if it has one, float32."""
    # The loss is taken in float32 also under mixed precision.
    logits = ops.cast(logits, "float32")
    return logits + ops.cast(head.bias, "float32") if head.tied else logits


def check_head_representable(task: keras.Model) -> None:
    """Raise an error if the Hugging Face format has no field for a setting of a task's head.

    Args:
        task: with a `MaskedLMHead`, and `head_activation` and `head_layer_norm_epsilon`.

    Raises:
        ValueError: "head_activation is 'relu', for which the Hugging Face format has no field: ..."
    """
    if task.head.hidden is None:
        return
    default = make_hidden(task.head_record.hidden, task.backbone, 1, task.dtype_policy)
    for name in ("activation", "layer_norm_epsilon"):
        found, expected = getattr(task, f"head_{name}"), getattr(default, name)
        if found != expected:
            raise ValueError(
                f"head_{name} is {found!r}, for which the Hugging Face format has no field: "
                f"there it is {expected!r}. If these other numbers are wanted, load the task "
                f"with from_preset(..., head_{name}={expected!r}) and save that; or save with "
                'format="keras_hub".'
            )


def masked_lm_loss() -> keras.losses.Loss:
    """Return the cross-entropy over real predictions: examples have different numbers of them."""
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )


def token_metrics() -> list[keras.metrics.Metric]:
    """Return loss and accuracy of one of several outputs."""
    loss = keras.metrics.SparseCategoricalCrossentropy("loss", from_logits=True)
    return [loss, keras.metrics.SparseCategoricalAccuracy("accuracy")]
