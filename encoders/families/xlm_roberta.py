"""XLM-RoBERTa: RoBERTa with a vocabulary for one hundred languages."""

import dataclasses

import keras

from encoder_zoo.encoders.families import roberta
from encoder_zoo.encoders.tokenizers import XLM_SENTENCEPIECE


@keras.saving.register_keras_serializable(package="encoder_zoo")
class XLMRobertaBackbone(roberta.RobertaBackbone):
    """XLM-RoBERTa encoder. See `RobertaBackbone` for arguments and outputs.

    Source: Conneau et al. 2020, Unsupervised Cross-lingual Representation Learning at Scale,
    section 3.

    Example:
        >>> import numpy as np
        >>> backbone = XLMRobertaBackbone(
        ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[0, 7, 2]])})
        >>> keras.ops.shape(outputs["sequence_output"])
        (1, 3, 8)
    """


FAMILY = dataclasses.replace(
    roberta.FAMILY,
    name="xlm-roberta",
    backbone=XLMRobertaBackbone,
    class_prefix="XLMRoberta",
    tokenizer=XLM_SENTENCEPIECE,
    # The value of RoBERTa, which has the same architecture: Liu et al. 2019, table 10.
    learning_rate=2e-5,
    weight_decay=0.1,
)
XLMRobertaBackbone.family = FAMILY
