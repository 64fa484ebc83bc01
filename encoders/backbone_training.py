"""Methods of backbones that change how they are trained."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from encoder_zoo.common.validation import PositiveFloat, PositiveInt, validate_arguments
from encoder_zoo.encoders.lora import choose_layers, train_updates
from encoder_zoo.encoders.sharding import megatron_layout


class BackboneTraining:
    """Mixin of `Backbone`: gradient checkpointing, low-rank updates, freezing, sharding.

    Attributes:
        pooler_is_new: whether the pooler has its first, random weights beside those of a checkpoint
            without one; `fit` trains it, and sets this to False.
    """

    pooler_is_new = False

    @property
    def trainable(self) -> bool:
        """Return whether the weights are trained; those of a new pooler are in any case.

        A frozen random layer would leave little of what the layers below have learned.
        """
        return super().trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        keras.Model.trainable.fset(self, value)
        if self.pooler_is_new:
            self.pooler_dense.trainable = True

    def enable_gradient_checkpointing(self) -> None:
        """Train with less memory, in more time: blocks keep their inputs only.

        Values inside a block are computed a second time for its gradients; the results are the
        same. Call it before `fit`.

        Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, section 4.

        Example:
            >>> from encoder_zoo import Classifier
            >>> classifier = Classifier.from_preset("bert_nano_en_uncased", num_classes=2)
            >>> classifier.backbone.enable_gradient_checkpointing()
            >>> history = classifier.fit(["good", "bad"], [1, 0], verbose=0)
        """
        self._checkpoints_gradients = True

    @classmethod
    @validate_arguments
    def layout_map(
        cls, mesh: keras.distribution.DeviceMesh, vocabulary_size: PositiveInt | None = None
    ) -> keras.distribution.LayoutMap:
        """Return where each weight lies, for `keras.distribution.ModelParallel` on JAX.

        Attention is split by heads and the feed-forward net by its inner width, so that in each of
        them devices add up once; the table of tokens is split by tokens, the rest is on every
        device. Set the distribution before the model is made. Widths must be multiples of the
        mesh's second axis.

        Args:
            mesh: of two axes: for the rows of a batch, and for the weights.
            vocabulary_size: of the backbone. If it is not given, or no multiple of the second axis,
                the table of tokens is split by its width.

        Raises:
            ValueError: "The mesh must have two axes, ..."

        Source: Shoeybi et al. 2019, Megatron-LM, section 3.

        Example:
            >>> from encoder_zoo import Backbone
            >>> mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
            >>> layout = Backbone.layout_map(mesh, vocabulary_size=30522)
            >>> layout["bert_backbone/block_0/attention/query/kernel"].axes
            (None, 'model')
        """
        return megatron_layout(mesh, vocabulary_size)

    @validate_arguments
    def enable_lora(
        self,
        rank: PositiveInt,
        layers: Sequence[str] | None = None,
        alpha: PositiveFloat | None = None,
    ) -> None:
        """Freeze the backbone and train low-rank updates of some of its layers instead.

        Args:
            rank: of the updates.
            layers: names of dense layers in every block; in BERT's "query", "key", "value",
                "intermediate" and "output", of the attention and of the block. None for the
                attention's query and value projections, as in the paper.
            alpha: the updates are multiplied by alpha / rank; None for the rank.

        Raises:
            ValueError: "There is no layer keys. Expected some of intermediate, key, output, ..."

        Source: Hu et al. 2022, LoRA, sections 4.2 and 7.1.
        """
        train_updates(self, choose_layers(self, layers), rank, alpha)
