"""Layer-wise learning rates, and layers that do not learn."""

from collections.abc import Callable

import keras

from encoder_zoo.common.keras_private import layers_in
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


class FrozenLayers:
    """The lowest layers of a backbone that `compile(frozen_layers=...)` froze.

    All other layers stay as they are: what the user froze, stays frozen.

    Source: Lee, Tang and Lin 2019, What Would Elsa Do? Freezing Layers During Transformer
    Fine-Tuning.

    Example:
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=3, num_heads=1, hidden_dim=4,
        ...                         intermediate_dim=4)
        >>> backbone.blocks[2].trainable = False
        >>> frozen = FrozenLayers()
        >>> for count in (2, 1, 0):
        ...     frozen.freeze(backbone, count)
        ...     print([layer.trainable for layer in (backbone.embeddings, *backbone.blocks)])
        [False, False, False, False]
        [False, False, True, False]
        [True, True, True, False]
    """

    def __init__(self):
        # {id of a layer: the layer, and its parts and weights with whether they were trained}
        self._before = {}

    def freeze(self, backbone: Backbone, count: int) -> None:
        """Freeze the lowest blocks, and the embeddings below them; thaw what was frozen here above.

        Args:
            backbone: of the layers, always the same.
            count: of blocks; with 0 all that was frozen here is thawed.

        Raises:
            ValueError: "frozen_layers=13. Expected an integer from 0 to 12 ...", "One block of
                this AlbertBackbone is used at several depths, ..."
        """
        _check_count(backbone, count)
        lower = [backbone.embeddings, *backbone.blocks[:count]] if count else []
        for layer, parts in list(self._before.values()):
            if layer not in lower:
                del self._before[id(layer)]
                if backbone.trainable and not layer.trainable:  # else the user has changed it since
                    for part, was_trained in parts:
                        part.trainable = was_trained
        for layer in lower:
            if id(layer) not in self._before or layer.trainable:
                parts = [*layers_in(layer), *layer.weights]  # the outer first, as it sets the inner
                self._before[id(layer)] = layer, [(part, part.trainable) for part in parts]
                for part in parts:
                    part.trainable = False


def _check_count(backbone: Backbone, count: int) -> None:
    blocks = backbone.blocks
    if count > len(blocks):
        raise ValueError(
            f"frozen_layers={count!r}. Expected an integer from 0 to {len(blocks)}, the "
            "number of blocks."
        )
    if not {id(block) for block in blocks[:count]}.isdisjoint(map(id, blocks[count:])):
        raise ValueError(
            f"One block of this {type(backbone).__name__} is used at several depths, also above "
            f"the first {count}, so it cannot be frozen below them alone."
        )
