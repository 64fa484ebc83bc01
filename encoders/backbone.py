"""What every backbone shares: embeddings, a stack of encoder blocks, an optional pooler."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras
from keras import ops

from encoder_zoo.encoders.configured import Configured
from encoder_zoo.encoders.gradient_checkpointing import recomputed
from encoder_zoo.encoders.layers import (
    Embeddings,
    EncoderBlock,
    initializer,
    make_attention_mask,
    take_positions,
)
from encoder_zoo.encoders.preset_door import presets

if TYPE_CHECKING:
    from typing_extensions import Self

    from encoder_zoo.encoders.family import Family
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Backbone(Configured, keras.Model):
    """A stack of post-norm encoder blocks over token, position and segment embeddings.

    The base of `BertBackbone` and `RobertaBackbone`; `Backbone.from_preset` picks the right one.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of encoder blocks.
        num_heads: H, attention heads of each block.
        hidden_dim: D, width of the model; a multiple of `num_heads`.
        intermediate_dim: F, width of the feed-forward nets.
        dropout: share of embeddings and sublayer outputs dropped in training.
        attention_dropout: share of attention probabilities dropped in training.
        activation: of the feed-forward nets; "gelu" is the exact one, see `layers.ACTIVATIONS`.
        layer_norm_epsilon: added to the variance in every LayerNorm.
        max_sequence_length: the most tokens the model takes.
        num_segments: number of segment ids.
        pooler: whether there is a pooler; without one there is no `pooled_output`.

    Call arguments:
        inputs: `{"token_ids", "padding_mask", "segment_ids"}`, each (B, L) int or bool.
            `padding_mask` is 1 at real tokens; without it every token is real.
            Without `segment_ids` every token is in segment 0.
            Rows that hold several texts have "text_starts", (B, K) int, the positions where the
            texts begin; rows with fewer than K are filled up with L. The outputs are those of the
            texts in rows of their own.

    Returns:
        `{"sequence_output": (B, L, D), "pooled_output": (B, D)}`; with "text_starts"
        `pooled_output` is (B, K, D).
    """

    family: Family

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        pooler: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.pooler = pooler
        self._checkpoints_gradients = False

        self.embeddings = self._make_embeddings()
        self.blocks = [
            EncoderBlock(
                hidden_dim,
                num_heads,
                intermediate_dim,
                dropout,
                attention_dropout,
                activation,
                layer_norm_epsilon,
                name=f"block_{i}",
                dtype=self.dtype_policy,
            )
            for i in range(num_layers)
        ]
        if pooler:
            self.pooler_dense = keras.layers.Dense(
                hidden_dim,
                activation="tanh",
                kernel_initializer=initializer(),
                name="pooler",
                dtype=self.dtype_policy,
            )
        self.build()

    def _make_embeddings(self) -> Embeddings:
        return Embeddings(
            self.vocabulary_size,
            self.hidden_dim,
            self.max_sequence_length,
            self.num_segments,
            self.dropout,
            self.layer_norm_epsilon,
            name="embeddings",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape=None):
        self.embeddings.build()
        for block in self.blocks:
            block.build()
        if self.pooler:
            self.pooler_dense.build((None, self.hidden_dim))
        self.built = True

    def call(self, inputs, training=None):
        sequence_output, _ = self._encode(inputs, training=training)  # (B, L, D)
        outputs = {"sequence_output": sequence_output}
        if self.pooler:
            first = sequence_output[:, 0]  # (B, D)
            if (starts := inputs.get("text_starts")) is not None:
                last = ops.shape(sequence_output)[1] - 1
                first = take_positions(sequence_output, ops.minimum(starts, last))  # (B, K, D)
            outputs["pooled_output"] = self.pooler_dense(first)
        return outputs

    def attention_probabilities(self, inputs: Mapping) -> keras.KerasTensor:
        """How much every token attends to every other one, to look at or to draw.

        Args:
            inputs: as for calling the backbone.

        Returns:
            (B, num_layers, H, L, L) float; each last axis sums to 1.
        """
        _, probabilities = self._encode(inputs, return_probabilities=True)
        return ops.stack(probabilities, axis=1)

    def _encode(self, inputs, training=False, return_probabilities=False):
        token_ids = inputs["token_ids"]
        padding_mask = inputs.get("padding_mask")
        if padding_mask is None:
            padding_mask = ops.ones_like(token_ids)
        text_starts = inputs.get("text_starts")
        x = self.embeddings(
            token_ids, inputs.get("segment_ids"), padding_mask, text_starts, training=training
        )
        attention_mask = make_attention_mask(padding_mask, text_starts)
        probabilities = []
        for block in self.blocks:
            if return_probabilities:
                x, p = block(x, attention_mask, training=training, return_probabilities=True)
                probabilities.append(p)
            elif training and self._checkpoints_gradients:
                x = recomputed(block, x, attention_mask)
            else:
                x = block(x, attention_mask, training=training)
        return x, probabilities

    def enable_gradient_checkpointing(self) -> None:
        """Trains with less memory, in more time: blocks keep their inputs only.

        What a block computes inside is computed a second time for its gradients; the results are
        the same. Call it before `fit`.

        Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, section 4.

        Example:
            >>> from encoder_zoo import Classifier
            >>> classifier = Classifier.from_preset("bert_nano_en_uncased", num_classes=2)
            >>> classifier.backbone.enable_gradient_checkpointing()
            >>> history = classifier.fit(["good", "bad"], [1, 0], verbose=0)
        """
        self._checkpoints_gradients = True

    def enable_lora(self, rank: int) -> None:
        """Freezes the backbone and trains low-rank updates of its attention instead.

        The query and value projections of every block get the updates, as in the paper.

        Args:
            rank: of the updates.

        Source: Hu et al. 2022, LoRA, sections 4.2 and 7.1.
        """
        for layer in self._flatten_layers(include_self=False):
            if not list(layer._flatten_layers(include_self=False)):
                layer.trainable = False
        for block in self.blocks:
            for dense in (block.attention.query_dense, block.attention.value_dense):
                dense.trainable = True
                dense.enable_lora(rank)

    @classmethod
    def from_preset(cls, source: str | os.PathLike, **overrides) -> Self:
        """Loads a backbone from a bundled preset or a checkpoint folder.

        Args:
            source: a name of `list_presets()`, a folder in the Hugging Face format, of KerasHub or
                of Google's BERT code, `hf://organisation/name[@revision]`, or `kaggle://...`.
            **overrides: constructor arguments that leave the weights' shapes alone, such as
                `dropout=0.0` or `dtype="mixed_bfloat16"`; and how much to check: `verify`,
                `max_bytes`, `allow_nonfinite`, see `presets.opening.Safeguards`.

        Returns:
            A backbone of the checkpoint's family.

        Raises:
            ValueError: if the checkpoint is of another family than the class it is asked of,
                lacks a weight or holds one that nothing here takes.
        """
        return presets("load_backbone")(cls, source, **overrides)

    def save_to_preset(
        self,
        directory: str | os.PathLike,
        tokenizer: Tokenizer | None = None,
        dtype: str | None = None,
        **options,
    ) -> None:
        """Writes a folder in the Hugging Face format, whole or not at all.

        Args:
            directory: folder to write or to replace; files of other kinds in it are kept.
            tokenizer: to be saved along, so that tasks load from the folder too.
            dtype: "float32", "float16" or "bfloat16"; None stores every weight as it is.
            **options: `shard_bytes`, the largest weights file; what is more is split.

        Raises:
            ValueError: for quantized weights, which the format does not hold.
            OSError: "The disk is full: ... was not saved."
        """
        presets("save_backbone")(self, directory, tokenizer, dtype, **options)
