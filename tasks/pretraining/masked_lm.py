"""Masked language modelling, for pretraining and for predicting missing words.

Comments use these letters for shapes: B batch, L sequence, D hidden, M masked positions, V
vocabulary.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Self, Unpack

import keras
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import Fraction, PositiveInt, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.layers import Activation, make_initializer
from encoder_zoo.encoders.positions import take_positions
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
from encoder_zoo.presets.formats.preset_task import FolderFormat, TaskRecord
from encoder_zoo.tasks.base.answers import delegate_to_answers
from encoder_zoo.tasks.base.head import HiddenLayer, make_hidden_layer
from encoder_zoo.tasks.base.task import Task, TaskPresetArguments, TinyData
from encoder_zoo.tasks.preprocessing.batching import map_graph_batches
from encoder_zoo.tasks.pretraining.mask_answers import MaskAnswers
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import MaskedLMPreprocessor
from encoder_zoo.tasks.training.metrics import flatten_tokens
from encoder_zoo.tasks.training.objective import Objective


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaskedLMHead(ConfigFromSignature, keras.layers.Layer):
    """The layers between the backbone and the projection onto the token embedding.

    Args:
        vocabulary_size: Positive integer. Number of tokens V.
        hidden: Optional keras layer. Layer that maps the backbone's width to the width E of
            the token embedding. None if the head has no hidden layer.
        bias_axes: Positive integer. Number of axes of the bias. All axes before the last have size
            1.
        tied: Boolean. Whether the projection is the transposed token embedding. If False, the head
            has an output layer without a bias.

    Call arguments:
        x: Float tensor of shape (B, M, D).

    Returns:
        Float tensor of shape (B, M, E). It is multiplied by the transposed token embedding, and
        `bias` of shape (V,) is added to the product.

    Source: Devlin et al. 2019, BERT, released code, `get_masked_lm_output`.

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
                kernel_initializer=make_initializer(),
                name="output",
                dtype=self.dtype_policy,
            )
            self.output_dense.build((*input_shape[:-1], width))
        self.output_shape = (*input_shape[:-1], width)  # for `summary()`

    def call(self, x):
        return x if self.hidden is None else self.hidden(x)

    @property
    def hidden_settings(self) -> tuple[str | None, float | None]:
        """Return the activation and the LayerNorm epsilon of the hidden layer, if it exists."""
        hidden = self.hidden
        return (None, None) if hidden is None else (hidden.activation, hidden.layer_norm_epsilon)


def make_masked_lm_head(
    task: Task, activation: str | None = None, layer_norm_epsilon: float | None = None
) -> MaskedLMHead:
    """Create and build the masked language model head of a family.

    Args:
        task: Task with a backbone, a `head_record` and a dtype policy.
        activation, layer_norm_epsilon: Optional values that replace the values of the family.
            Default to None.

    Raises:
        ValueError: If `activation` or `layer_norm_epsilon` is passed, and the head of the family
            does not use it.
    """
    record, backbone, dtype, hidden = task.head_record, task.backbone, task.dtype_policy, None
    if record.hidden:
        width = backbone.embeddings.token_embedding.output_dim
        hidden = make_hidden_layer(
            record.hidden, backbone, width, dtype, activation, layer_norm_epsilon
        )
    elif activation or layer_norm_epsilon:
        name, value = "head_activation", activation
        if not activation:
            name, value = "head_layer_norm_epsilon", layer_norm_epsilon
        expected = f"None, because the head of {backbone.family.name} only has an output projection"
        raise invalid(name, value, expected)
    axes = record.tied_bias_axes
    tied = record.tied_bias is not None
    head = MaskedLMHead(backbone.vocabulary_size, hidden, axes, tied, name="head", dtype=dtype)
    head.build((None, None, backbone.hidden_dim))
    return head


def compute_token_logits(backbone: Backbone, head: MaskedLMHead, x, positions=None):
    """Compute float32 logits for all tokens (B, L, V), or at given positions (B, M, V).

    Args:
        backbone: `Backbone` that contains the token embedding.
        head: `MaskedLMHead` of the task.
        x: Float tensor of shape (B, L, D). The backbone's output.
        positions: Optional integer tensor of shape (B, M).
    """
    if positions is not None:
        x = take_positions(x, positions)  # (B, M, D)
    return add_bias(head, project(backbone, head, x))


def project(backbone: Backbone, head: MaskedLMHead, x) -> keras.KerasTensor:
    """Compute logits (B, M, V) for all tokens from the backbone output, without bias."""
    if not head.tied:
        return head.output_dense(head(x))
    return backbone.embeddings.token_embedding(head(x), reverse=True)


def add_bias(head: MaskedLMHead, logits) -> keras.KerasTensor:
    """Add the head's bias (if any) to logits (..., V) and convert to float32."""
    # The loss is computed in float32, also with mixed precision.
    logits = ops.cast(logits, "float32")
    return logits + ops.cast(head.bias, "float32") if head.tied else logits


def check_head_representable(task: keras.Model) -> None:
    """Check that the task's head can be saved in the Hugging Face format.

    Args:
        task: Task with a `MaskedLMHead`, `head_activation` and `head_layer_norm_epsilon`.

    Raises:
        ValueError: If the Hugging Face format does not support a setting of the head.
    """
    if task.head.hidden is None:
        return
    default = make_hidden_layer(task.head_record.hidden, task.backbone, 1, task.dtype_policy)
    for name in ("activation", "layer_norm_epsilon"):
        found, expected = getattr(task, f"head_{name}"), getattr(default, name)
        if found != expected:
            raise ValueError(
                f"head_{name} is {found!r}, but the Hugging Face format only supports "
                f'{expected!r}. Save with format="keras_hub", or load with '
                f"from_preset(..., head_{name}={expected!r})."
            )


def make_masked_lm_loss() -> keras.losses.Loss:
    """Return the cross-entropy loss for masked tokens. Padding is ignored."""
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )


def make_token_metrics() -> list[keras.metrics.Metric]:
    """Return loss and accuracy metrics for a single output."""
    loss = keras.metrics.SparseCategoricalCrossentropy("loss", from_logits=True)
    return [loss, keras.metrics.SparseCategoricalAccuracy("accuracy")]


class _MaskedLMFolderFormat(FolderFormat):
    """Folder format of transformers, for heads that config.json can describe."""

    def make_config_fields(self, task: MaskedLM) -> dict[str, object]:
        check_head_representable(task)
        return {}


class MaskingPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments for all pretraining preprocessors."""

    mask_rate: float
    whole_words: bool
    dynamic: bool
    pack_texts: bool
    across_documents: bool
    seed: int


class MaskedLMPresetArguments(MaskingPresetArguments, total=False):
    """Keyword arguments for `MaskedLM.from_preset`."""

    head_activation: str | None
    head_layer_norm_epsilon: float | None


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaskedLM(Task):
    """Predict masked tokens, as in pretraining for BERT and RoBERTa, or permuted tokens for XLNet.

    In XLNet, tokens are not replaced. Instead, a separate stream is used to predict each selected
    token from all unselected tokens, and from the selected tokens before it in a random order. This
    order is passed as "prediction_order" (B, L) (see `XLNetBackbone.compute_query_stream`). In
    `fill_mask`, all masks are predicted at once.

    Args:
        backbone: The `Backbone` to use.
        preprocessor: Optional `MaskedLMPreprocessor` for raw text.
        head_activation: Optional string. Activation to use in the layer before the output
            projection. In KerasHub, the head has a separate activation. If None, the default for
            the family will be used, which is the backbone's activation in most cases.
        head_layer_norm_epsilon: Optional float. Epsilon for layer normalization in the head. If
            None, the backbone's epsilon will be used.

    Call arguments:
        inputs: Dict. The inputs to the model, as returned from the preprocessor. Without
            "mask_positions", logits will be computed for all positions.

    Returns:
        Float32 tensor of shape (B, M, V) or (B, L, V). The logits for masked positions, or for all
        positions.

    Source: Devlin et al. 2019, BERT, section 3.1.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16, pooler=False)
        >>> inputs = {"token_ids": np.array([[2, 4, 7, 3]]), "mask_positions": np.array([[1]])}
        >>> keras.ops.shape(MaskedLM(backbone)(inputs))
        (1, 1, 30)
    """

    record = TaskRecord(
        "masked_lm",
        MaskedLMPreprocessor,
        head="ForMaskedLM",
        pipeline_tag="fill-mask",
        text_method="fill_mask",
        instead_of_predict=MaskAnswers.instead_of_predict,
        folder=_MaskedLMFolderFormat(),
        labels_tokens=True,
        pretrains=True,
        learns_soft_labels=True,
        predicts_tokens=True,
    )
    objective = Objective(
        make_masked_lm_loss,
        lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        "softmax",
        of_tokens=True,
        inputs_of_metrics=lambda x, *given: flatten_tokens(*given),
    )

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: MaskedLMPreprocessor | None = None,
        head_activation: Activation | None = None,
        head_layer_norm_epsilon: Fraction | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.head = make_masked_lm_head(self, head_activation, head_layer_norm_epsilon)
        self.head_activation, self.head_layer_norm_epsilon = self.head.hidden_settings
        if self._predicts_in_order:
            backbone.embeddings.mask_embedding.trainable = True  # other tasks do not use it
        self._finish_building()

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[MaskedLMPresetArguments]
    ) -> Self:
        """Load a masked language model. See `Task.from_preset`.

        Args:
            source: String or path. The preset to load: a name from `list_presets()`, a folder,
                `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: Keyword arguments to pass to the model: `head_activation`,
                `head_layer_norm_epsilon`. Arguments for the preprocessor: `sequence_length`,
                `mask_rate`, `whole_words`, `dynamic`, `pack_texts`, `across_documents`, `seed`.
                Arguments for the backbone, e.g. `dropout` and `dtype`. `added_tokens` for the
                tokenizer. Options for file checks: `verify`, `max_bytes`, `allow_nonfinite`.
        """
        return super().from_preset(source, **arguments)

    @classmethod
    def tiny_data(cls) -> TinyData:
        x = super().tiny_data().x

        def questions(task: MaskedLM) -> tuple:
            return ([f"{text} {task.served_tokenizers[0].mask_token}" for text in x],)

        return TinyData({}, x, questions=questions)

    def logits_of(self, encoded, inputs, training=None):
        name = "predictions" if self._predicts_in_order else "sequence_output"
        if name not in encoded:
            raise ValueError(
                f"A MaskedLM of {self.backbone.family.name} predicts with a separate stream, which "
                "Distillation does not support. Use another objective or family."
            )
        return compute_token_logits(
            self.backbone, self.head, encoded[name], inputs.get("mask_positions")
        )

    def compute_output_spec(self, inputs, training=None):
        positions = inputs.get("mask_positions", inputs["token_ids"])
        return keras.KerasTensor((*positions.shape, self.backbone.vocabulary_size), "float32")

    fill_mask = delegate_to_answers(MaskAnswers.fill_mask)

    @property
    def _answers(self) -> MaskAnswers:
        # The object is cached, because it contains the texts of all tokens.
        make = functools.partial(MaskAnswers, self.preprocessor, self._runner)
        return self.batch_maker.get_graph("answers", make)

    @property
    def served_tokenizers(self) -> list[Tokenizer]:
        return [self._answers.tokenizer]

    @validate_arguments
    def signatures(self, top_k: PositiveInt = 5) -> dict[str, Callable]:
        """Return the export signature for running `fill_mask` on "text".

        Args:
            top_k: Positive integer. See `fill_mask`. Defaults to 5.

        Returns:
            Dict with a single function. This function returns "count" of shape (N,) with the number
            of masks per text, and "token", "text" and "score" of shape (N, M, top_k), with M the
            maximum number of masks per text. Masks beyond the model's maximum length will not be
            counted.
        """

        def run(examples, counts):
            size = self.backbone.vocabulary_size
            return map_graph_batches(self._mask_logits, examples, counts, size).flat_values

        return {"serving_default": self._answers.make_fill_mask_function(run, top_k)}

    def _mask_logits(self, examples: dict) -> xp.Tensor:
        """Compute logits (masks, V) for the masks in all examples."""
        inputs, real = self._answers.mask_inputs(examples)
        return xp.boolean_mask(self(inputs, training=False), real)

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        ranges = {**super().input_ranges(length), "mask_positions": (0, length - 1)}
        return ranges | ({"prediction_order": (0, length)} if self._predicts_in_order else {})

    def list_input_names(self) -> list[str]:
        order = ["prediction_order"] if self._predicts_in_order else []
        return [*super().list_input_names(), "mask_positions", *order]

    @property
    def _predicts_in_order(self) -> bool:
        return self.backbone.predicts_in_order
