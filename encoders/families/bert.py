"""BERT: the architecture and what its checkpoints call the heads."""

import pathlib

import keras

from encoder_zoo.encoders.backbone import Backbone, Family


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BertBackbone(Backbone):
    """BERT's encoder; arguments, inputs and outputs as for `Backbone`.

    The pooler is a tanh layer over the first token, trained with next-sentence prediction.

    Source: Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers for
    Language Understanding, section 3.

    Example:
        >>> import numpy as np
        >>> backbone = BertBackbone(
        ...     vocabulary_size=30, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3, 0]]),
        ...                     "padding_mask": np.array([[1, 1, 1, 0]])})
        >>> keras.ops.shape(outputs["sequence_output"]), keras.ops.shape(outputs["pooled_output"])
        ((1, 4, 8), (1, 8))
    """


def _load_tokenizer(folder: pathlib.Path):
    from encoder_zoo.presets.tokenizer_files import read_bert_tokenizer

    return read_bert_tokenizer(folder)


FAMILY = Family(
    name="bert",
    backbone=BertBackbone,
    load_tokenizer=_load_tokenizer,
    pair_separators=1,
    uses_segments=True,
    positions_skip_padding=False,
    pooled_classifier=True,
    masked_lm_activation=None,
    checkpoint_class_prefix="Bert",
    head_tensors={
        "sequence_classifier": {"output_dense": "classifier"},
        "token_classifier": {"output_dense": "classifier"},
        "span_qa": {"output_dense": "qa_outputs"},
        "masked_lm": {
            "head.dense": "cls.predictions.transform.dense",
            "head.norm": "cls.predictions.transform.LayerNorm",
            "head.bias": "cls.predictions.bias",
        },
    },
)
BertBackbone.family = FAMILY
