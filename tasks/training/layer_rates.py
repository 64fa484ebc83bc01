"""Layer-wise learning rates, and layers that do not learn."""

from collections.abc import Callable

import keras

from encoder_zoo.encoders.backbone import Backbone


def layerwise(backbone: Backbone, decay: float) -> Callable[[keras.Variable], float] | None:
    """Return the layer-wise learning-rate decay multiplier of each weight.

    Args:
        backbone: whose last block has one step less than the layers above it, and so on down to
            the embeddings.
        decay: of the learning rate, from each layer to the one below.

    Returns:
        For `fine_tuning_optimizer`; None where all weights have the same learning rate.

    Source: Howard and Ruder 2018, Universal Language Model Fine-tuning, section 3.2; Clark et al.
    2020, ELECTRA, appendix B.

    Example:
        >>> from encoder_zoo import ElectraBackbone
        >>> backbone = ElectraBackbone(30, num_layers=2, num_heads=1, hidden_dim=4,
        ...                            intermediate_dim=4)
        >>> share = layerwise(backbone, 0.8)
        >>> [round(share(layer.weights[0]), 3) for layer in (*backbone.blocks, backbone.embeddings)]
        [0.64, 0.8, 0.512]
    """
    if decay == 1:
        return None
    layers = [backbone.embeddings, *backbone.blocks]
    shares = {
        id(weight): decay ** (len(layers) - i)
        for i, layer in enumerate(layers)
        for weight in layer.weights
    }
    return lambda weight: shares.get(id(weight), 1.0)


def freeze_lower(backbone: Backbone, count: int) -> None:
    """Freeze the lowest blocks of a backbone, and the embeddings below them.

    Args:
        backbone: whose other layers learn from now on.
        count: of blocks; with 0 all layers learn.

    Raises:
        ValueError: "frozen_layers=13. Expected a whole number from 0 to 12 ...", "One block of this
            AlbertBackbone is used at several depths, ..."

    Source: Lee, Tang and Lin 2019, What Would Elsa Do? Freezing Layers During Transformer
    Fine-Tuning.

    Example:
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=3, num_heads=1, hidden_dim=4,
        ...                         intermediate_dim=4)
        >>> freeze_lower(backbone, 2)
        >>> [layer.trainable for layer in (backbone.embeddings, *backbone.blocks)]
        [False, False, False, True]
    """
    blocks = backbone.blocks
    if count > len(blocks):
        raise ValueError(
            f"frozen_layers={count!r}. Expected a whole number from 0 to {len(blocks)}, the "
            "number of blocks."
        )
    if not {id(block) for block in blocks[:count]}.isdisjoint(map(id, blocks[count:])):
        raise ValueError(
            f"One block of this {type(backbone).__name__} is used at several depths, also above "
            f"the first {count}, so it cannot be frozen below them alone."
        )
    backbone.embeddings.trainable = not count
    for i, block in enumerate(blocks):
        block.trainable = i >= count
