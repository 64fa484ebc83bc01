"""Methods of backbones that change how they are trained."""

from __future__ import annotations

from encoder_zoo.common.validation import PositiveInt, validate_arguments


class BackboneTraining:
    """Mixin of `Backbone`: gradient checkpointing and low-rank updates."""

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

    @validate_arguments
    def enable_lora(self, rank: PositiveInt) -> None:
        """Freezes the backbone and trains low-rank updates of its attention instead.

        The query and value projections of every block get the updates, as in the paper.

        Args:
            rank: of the updates.

        Source: Hu et al. 2022, LoRA, sections 4.2 and 7.1.
        """
        for layer in self._flatten_layers(include_self=False):
            if not list(layer._flatten_layers(include_self=False)):
                layer.trainable = False
        for block in dict.fromkeys(self.blocks):
            for dense in block.attention.lora_layers:
                dense.trainable = True
                dense.enable_lora(rank)
