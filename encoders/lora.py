"""Low-rank updates (LoRA) of the projections of a backbone's blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import keras

from encoder_zoo.common.keras_private import frozen_kernel, innermost_layers, layers_in

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone


def choose_layers(backbone: Backbone, names: Sequence[str] | None) -> list[keras.layers.Dense]:
    """Return the dense layers of all blocks that have one of some names.

    Args:
        backbone: the encoder.
        names: such as "query" or "output"; None for the attention's query and value projections.

    Raises:
        ValueError: "There is no layer keys. Expected some of intermediate, key, output, ..."

    Example:
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, 2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> [layer.name for layer in choose_layers(backbone, ["intermediate"])]
        ['intermediate', 'intermediate']
    """
    blocks = dict.fromkeys(backbone.blocks)
    if names is None:
        return [layer for block in blocks for layer in block.attention.lora_layers]
    named = [
        (layer.name.removesuffix("_dense"), layer)
        for block in blocks
        for layer in layers_in(block)
        if isinstance(layer, keras.layers.Dense | keras.layers.EinsumDense)
    ]
    known = {name for name, _ in named}
    unknown = sorted(set(names) - known)
    if unknown or not names:
        raise ValueError(
            f"There is no layer {', '.join(unknown) or names}. Expected some of "
            f"{', '.join(sorted(known))}."
        )
    return [layer for name, layer in named if name in names]


def train_updates(
    backbone: Backbone, layers: Iterable[keras.layers.Dense], rank: int, alpha: float | None
) -> None:
    """Freeze a backbone and add low-rank updates, which are trained, to some of its layers.

    Biases are frozen too, as with peft's `bias="none"`.

    Args:
        backbone: the encoder.
        layers: dense layers of its blocks.
        rank: of the updates.
        alpha: the updates are multiplied by alpha / rank; None for the rank.

    Source: Hu et al. 2022, LoRA, sections 4.1 and 4.2.
    """
    for layer in innermost_layers(backbone):
        layer.trainable = False
    for layer in layers:
        layer.trainable = True
        if not layer.lora_enabled:
            layer.enable_lora(rank, lora_alpha=alpha)
        for weight in (frozen_kernel(layer), layer.bias):
            if weight is not None:
                weight.trainable = False
