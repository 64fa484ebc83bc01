"""CamemBERT: a RoBERTa model for French."""

import dataclasses

import keras

from encoder_zoo.encoders.families import roberta
from encoder_zoo.encoders.tokenizers import CAMEMBERT_SENTENCEPIECE


@keras.saving.register_keras_serializable(package="encoder_zoo")
class CamembertBackbone(roberta.RobertaBackbone):
    """CamemBERT encoder. See `RobertaBackbone` for arguments and outputs.

    Source: Martin et al. 2020, CamemBERT: a Tasty French Language Model, section 4.

    Example:
        >>> import numpy as np
        >>> backbone = CamembertBackbone(
        ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[5, 7, 6]])})
        >>> keras.ops.shape(outputs["sequence_output"])
        (1, 3, 8)
    """


FAMILY = dataclasses.replace(
    roberta.FAMILY,
    name="camembert",
    backbone=CamembertBackbone,
    class_prefix="Camembert",
    tokenizer=CAMEMBERT_SENTENCEPIECE,
    # The value of RoBERTa, which has the same architecture: Liu et al. 2019, table 10.
    learning_rate=2e-5,
    weight_decay=0.1,
)
CamembertBackbone.family = FAMILY
