"""The layers between a backbone and the projection onto its token embedding.

Comment letters: B batch, D hidden, E embedding, M masked positions, V vocabulary.
"""

from __future__ import annotations

import keras

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head
from encoder_zoo.tasks.head import HiddenLayer


class MaskedLMHead(keras.layers.Layer):
    """The layers between the backbone and the projection onto the token embedding.

    Args:
        head: the family's record of it.
        backbone: whose outputs it reads and whose token embedding comes after it.

    Call arguments:
        x: (B, M, D).

    Returns:
        (B, M, E), to be multiplied by the token embedding's transpose; `bias` (V,) comes on top.

    Source: Devlin et al. 2019, released code, `get_masked_lm_output`.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(11, num_layers=1, num_heads=2, hidden_dim=4,
        ...                         intermediate_dim=8)
        >>> head = MaskedLMHead(backbone.family.heads["ForMaskedLM"], backbone)
        >>> keras.ops.shape(head(np.zeros((1, 2, 4), "float32"))), tuple(head.bias.shape)
        ((1, 2, 4), (11,))
    """

    def __init__(self, head: Head, backbone: Backbone, **kwargs):
        super().__init__(**{"name": "head", "dtype": backbone.dtype_policy, **kwargs})
        self.vocabulary_size = backbone.vocabulary_size
        width = backbone.embeddings.token_embedding.output_dim
        self.hidden = HiddenLayer(head.hidden, backbone, width, dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.hidden.build()
        self.bias = self.add_weight(shape=(self.vocabulary_size,), initializer="zeros", name="bias")

    def call(self, x):
        return self.hidden(x)
