"""Replaced-token detection. A generator replaces tokens, and the backbone detects the new tokens.

Comments use these letters for shapes: B batch, L sequence, D hidden, M masked positions, V
vocabulary.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Self, Unpack

import keras
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.model_configuration import LAYER_STATES
from encoder_zoo.common.validation import NonNegativeFloat, Ratio, validate_arguments
from encoder_zoo.common.weights_lock import share_weights_lock
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.positions import select_first_tokens
from encoder_zoo.presets.formats.preset_task import FolderFormat, TaskRecord
from encoder_zoo.tasks.base.answers import delegate_to_answers
from encoder_zoo.tasks.base.head import make_head
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.tasks.losses.batch_loss import BatchLoss
from encoder_zoo.tasks.pretraining import masked_lm
from encoder_zoo.tasks.pretraining.detection_answers import DetectionAnswers, ReplacedToken
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import MaskedLMPreprocessor
from encoder_zoo.tasks.pretraining.replaced_tokens_preprocessor import (
    ReplacedTokenDetectionPreprocessor,
)
from encoder_zoo.tasks.training.metrics import flatten_tokens
from encoder_zoo.tasks.training.objective import Objective


class ReplacedTokensPresetArguments(masked_lm.MaskingPresetArguments, total=False):
    """Keyword arguments for `ReplacedTokenDetection.from_preset`."""

    generator_size: float | None
    generator_depth: float | None
    detection_weight: float


class _ReplacedTokensFolderFormat(FolderFormat):
    """Folder layout used by transformers. The generator is only used for training and not saved."""

    def list_additional_weights(self, task: ReplacedTokenDetection) -> list[keras.Variable]:
        return task.generator.weights


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ReplacedTokenDetection(Task):
    """Detect replaced tokens, as in pretraining for ELECTRA and DeBERTa-v3.

    The generator is a small masked language model with shared embeddings. This model is trained to
    predict the original tokens, and masks are replaced with tokens sampled from the predictions.
    The backbone is used as the discriminator and is trained to detect replaced tokens. After
    pretraining, the discriminator can be fine-tuned:

        pretraining.fit(texts, epochs=10)
        pretraining.save_to_preset("my_electra")
        pretraining.generator.save_to_preset("my_electra_generator")
        SequenceClassifier.from_preset("my_electra", labels=labels).fit(...)

    Args:
        backbone: An `ElectraBackbone` or a `DebertaV2Backbone` for the discriminator.
        preprocessor: Optional `ReplacedTokenDetectionPreprocessor` for raw text.
        generator_size: Optional float. Generator width, as a fraction of the backbone's width. This
            is used for hidden layers, attention heads and feed-forward layers. If None, the
            family's fraction is used: 1/4 for ELECTRA (the paper uses 1/3 for base models) and 1
            for DeBERTa-v3.
        detection_weight: Float. Weight for the discriminator loss, relative to the generator loss.
            Defaults to 50.0.
        generator_depth: Optional float. Number of blocks in the generator, as a fraction of the
            backbone's blocks. If None, the family's fraction is used: 1 for ELECTRA and 1/2 for
            DeBERTa-v3.

    Call arguments:
        inputs: Dict. The inputs to the model, as returned from the preprocessor. Without
            "mask_positions", no tokens will be replaced.

    Returns:
        Without "mask_positions", a float32 tensor of shape (B, L) with a replacement logit per
        token. With "mask_positions", `{"generator": (B, M, V) float32 logits, "detection": (B, L)
        float32 logits, "token_ids": (B, L) int32}`. "token_ids" contains the token ids after
        replacement.

    Source: Clark et al. 2020, ELECTRA: Pre-training Text Encoders as Discriminators Rather Than
    Generators, sections 2 and 3.2, appendix A. The head and generator of DeBERTa-v3 follow He et
    al. 2023, DeBERTaV3, section 3.1, and its released code. However, the embeddings are shared as
    in ELECTRA. Section 3.3 of DeBERTaV3 stops the discriminator's gradients at the generator's
    embeddings.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import ElectraBackbone
        >>> backbone = ElectraBackbone(30, num_layers=1, num_heads=4, hidden_dim=8,
        ...                            intermediate_dim=16, pooler=False)
        >>> pretraining = ReplacedTokenDetection(backbone)
        >>> pretraining.generator.backbone.hidden_dim
        2
        >>> keras.ops.shape(pretraining({"token_ids": np.array([[2, 4, 7, 3]])}))
        (1, 4)
    """

    record = TaskRecord(
        "replaced_token_detection",
        ReplacedTokenDetectionPreprocessor,
        head="ForPreTraining",
        text_method="detect",
        answer_type=ReplacedToken,
        instead_of_predict=DetectionAnswers.instead_of_predict,
        folder=_ReplacedTokensFolderFormat(),
        pretrains=True,
        of_pairs=False,
    )

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: ReplacedTokenDetectionPreprocessor | None = None,
        generator_size: Ratio | None = None,
        detection_weight: NonNegativeFloat = 50.0,
        generator_depth: Ratio | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        if self.head_record.pair:
            raise ValueError(
                f"The family {backbone.family.name!r} has no head for replaced-token detection. "
                "Pretrain it with Pretraining or MaskedLM."
            )
        default = backbone.family.generator
        self.generator_size = default.width if generator_size is None else generator_size
        self.generator_depth = default.depth if generator_depth is None else generator_depth
        self.detection_weight = detection_weight
        self.head = make_head(self.head_record, backbone, 1, 0.0, self.dtype_policy, of_tokens=True)
        smaller = make_generator_backbone(backbone, self.generator_size, self.generator_depth)
        settings = preprocessor and MaskedLMPreprocessor(**preprocessor.get_config())
        self.generator = masked_lm.MaskedLM(smaller, settings)
        share_weights_lock(self.generator, self)
        self.draws = keras.random.SeedGenerator(name="draws")
        self._finish_building()

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[ReplacedTokensPresetArguments]
    ) -> Self:
        """Load a model for replaced-token detection. See `Task.from_preset`.

        Args:
            source: String or path. See `MaskedLM.from_preset`.
            **arguments: `generator_size`, `generator_depth`, `detection_weight`, and the keyword
                arguments of `MaskedLM.from_preset`, except `head_activation` and
                `head_layer_norm_epsilon`.
        """
        return super().from_preset(source, **arguments)

    def call(self, inputs, training=None):
        if "mask_positions" not in inputs:
            return super().call(inputs, training)
        masked = {n: values for n, values in inputs.items() if n != "masked_token_ids"}
        masked["token_ids"] = inputs["masked_token_ids"]
        logits = self.generator(masked, training=training)  # (B, M, V)
        token_ids = self._fill_masks(inputs, self._sample_tokens(logits))
        detection = super().call({**inputs, "token_ids": token_ids}, training)
        return {"generator": logits, "detection": detection, "token_ids": token_ids}

    def logits_of(self, encoded, inputs, training=None):
        x = encoded["sequence_output"]  # (B, L, D)
        first = None
        if self.head.first_norm is not None:
            first = select_first_tokens(x, inputs.get("text_starts"))
        return ops.squeeze(self.head(x, training=training, first=first), -1)  # (B, L)

    def _sample_tokens(self, logits):
        """Sample tokens (B, M) from the generator's predictions, without a gradient."""
        batch, count, size = ops.shape(logits)
        flat = ops.reshape(ops.stop_gradient(logits), (-1, size))
        drawn = keras.random.categorical(flat, 1, dtype="int32", seed=self.draws)
        return ops.reshape(drawn, (batch, count))

    def _fill_masks(self, inputs, drawn):
        """Return the token ids (B, L) of the texts, with sampled tokens in place of the masks."""
        positions = ops.cast(inputs["mask_positions"], "int32")  # (B, M)
        own = ops.cast(inputs["token_ids"], "int32")
        masked = ops.cast(inputs["masked_token_ids"], "int32")
        own_there, masked_there = (ops.take_along_axis(x, positions, 1) for x in (own, masked))
        # Examples with fewer than M masks are padded with positions that are not masked.
        new = ops.where(own_there != masked_there, drawn, own_there)
        examples = ops.arange(ops.shape(own)[0], dtype="int32")[:, None]
        indices = ops.stack([ops.broadcast_to(examples, ops.shape(positions)), positions], -1)
        return ops.scatter_update(own, ops.reshape(indices, (-1, 2)), ops.reshape(new, (-1,)))

    def compute_output_spec(self, inputs, training=None):
        detection = keras.KerasTensor(inputs["token_ids"].shape, "float32")
        if "mask_positions" not in inputs:
            return detection
        logits = (*inputs["mask_positions"].shape, self.backbone.vocabulary_size)
        return {
            "generator": keras.KerasTensor(logits, "float32"),
            "detection": detection,
            "token_ids": keras.KerasTensor(inputs["token_ids"].shape, "int32"),
        }

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        ranges = super().input_ranges(length)
        masked = {"masked_token_ids": ranges["token_ids"], "mask_positions": (0, length - 1)}
        return {**ranges, **masked}

    # -- training ------------------------------------------------------------------------------

    @property
    def objective(self) -> Objective:
        """The objective of the generator. `compute_loss` adds the loss of the discriminator."""
        return Objective(
            masked_lm.make_masked_lm_loss,
            _make_metrics,
            "softmax",
            of_tokens=True,
            fills_batches=False,
            names_outputs=True,
            inputs_of_metrics=_flatten_outputs,
        )

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Compute the generator loss plus the discriminator loss, times `detection_weight`.

        The generator loss is averaged over the masked tokens, and the discriminator loss over all
        tokens. The preprocessor converts text weights to token weights, which are used in the two
        losses. Weights with shape (B, M) are only used in the generator loss.
        """
        masked, weights = split_weights(sample_weight)
        loss = super().compute_loss(x, y, y_pred["generator"], masked, training)
        replaced, real = find_replaced_tokens(x, y_pred, weights)
        logits = y_pred["detection"]
        detection = BatchLoss(keras.losses.BinaryCrossentropy(from_logits=True), of_tokens=True)
        # An axis of size 1, because the Keras loss averages over the last axis.
        detection = detection(replaced[..., None], logits[..., None], real)[0]
        return loss + self.detection_weight * detection

    # -- answering -----------------------------------------------------------------------------

    detect = delegate_to_answers(DetectionAnswers.detect)

    @property
    def _answers(self) -> DetectionAnswers:
        # The object is cached, because it contains the names of all tokens.
        make = functools.partial(DetectionAnswers, self.preprocessor, self._runner)
        return self.batch_maker.get_graph("answers", make)

    def signatures(self) -> dict[str, Callable]:
        """Return the export signature for running `detect` on "text".

        Returns:
            Dict with a single function. This function returns "count" of shape (N,) with the number
            of tokens per text, and "token", "start", "end" and "score" of shape (N, T), with T the
            maximum number of tokens per text.
        """

        def run(examples):
            return self(self.preprocessor.pad(examples), training=False)

        return {"serving_default": self._answers.make_detect_function(run)}


def split_weights(sample_weight) -> tuple:
    """Return weights for the generator loss (B, M) and the detection loss (B, L), or None.

    Args:
        sample_weight: Dict with the keys "generator" and "detection", as returned from the
            preprocessor. This can also be a tensor of shape (B, M) for the generator loss only, or
            None.

    Raises:
        ValueError: If `sample_weight` does not contain a weight per token.
    """
    if isinstance(sample_weight, Mapping):
        return sample_weight["generator"], sample_weight["detection"]
    if sample_weight is not None and len(sample_weight.shape) < 2:
        raise ValueError(
            f"`sample_weight` has shape {tuple(sample_weight.shape)}. Expected one weight per "
            "token, as returned by preprocessor(texts, sample_weight=...)."
        )
    return sample_weight, None


def find_replaced_tokens(x: dict, y_pred: dict, weights=None) -> tuple:
    """Return float32 labels (B, L) with 1 for replaced tokens, and token weights (B, L).

    Args:
        x: Dict. Model inputs.
        y_pred: Dict. Model outputs.
        weights: Optional float tensor of shape (B, L). Text weights, repeated for each token.
    """
    token_ids = ops.cast(x["token_ids"], "int32")
    replaced = ops.cast(ops.cast(y_pred["token_ids"], "int32") != token_ids, "float32")
    real = x.get("padding_mask")
    real = ops.ones_like(replaced) if real is None else ops.cast(real, "float32")
    return replaced, real if weights is None else real * ops.cast(weights, "float32")


def _make_metrics() -> dict:
    """Create the metrics for the generator and for the discriminator."""
    return {
        "generator": masked_lm.make_token_metrics(),
        "detection": [
            keras.metrics.BinaryCrossentropy("loss"),
            keras.metrics.BinaryAccuracy("accuracy"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.Recall(name="recall"),
        ],
    }


def _flatten_outputs(x: dict, y, y_pred: dict, sample_weight) -> tuple:
    """Return labels, predictions and weights for both models, with one row per token."""
    masked, weights = split_weights(sample_weight)
    replaced, real = find_replaced_tokens(x, y_pred, weights)
    scores = ops.sigmoid(y_pred["detection"])
    parts = {
        "generator": flatten_tokens(y, y_pred["generator"], masked),
        "detection": flatten_tokens(replaced[..., None], scores[..., None], real),
    }
    return tuple({name: values[i] for name, values in parts.items()} for i in range(3))


def make_generator_backbone(backbone: Backbone, size: float, depth: float) -> Backbone:
    """Create a smaller generator for a discriminator, with the same embeddings.

    Args:
        backbone: The `Backbone` of the discriminator.
        size: Float. Generator width, as a fraction of the discriminator's width.
        depth: Float. Number of blocks, as a fraction of the discriminator's blocks. At least one
            block will be created.

    Raises:
        ValueError: If the resulting width is not a multiple of the number of heads.
    """
    sizes = ("hidden_dim", "num_heads", "intermediate_dim")
    hidden_dim, num_heads, intermediate_dim = (
        max(1, round(size * getattr(backbone, name))) for name in sizes
    )
    if not 0 < size <= 1 or hidden_dim % num_heads:
        raise ValueError(
            f"generator_size is {size}, so the generator has {hidden_dim} dimensions and "
            f"{num_heads} heads. Expected a fraction up to 1, such as 0.25, with a width that is a "
            "multiple of the number of heads."
        )
    arguments = {
        **{n: value for n, value in backbone.get_config().items() if n not in LAYER_STATES},
        "name": "generator_backbone",
        "num_layers": max(1, round(depth * backbone.num_layers)),
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        "intermediate_dim": intermediate_dim,
    }
    return type(backbone).sharing_embeddings(backbone, **arguments)
