"""ELECTRA: BERT's blocks behind embeddings of another width, without a pooler."""

from typing import ClassVar

import keras

from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.embeddings import Embeddings
from encoder_zoo.encoders.families.bert import (
    CONSTANTS,
    KERAS_HUB_BLOCKS,
    KERAS_HUB_EMBEDDINGS,
    KERAS_HUB_WORDPIECE,
    KEYS_WITH_SEGMENTS,
    RULES,
    TENSORS,
)
from encoder_zoo.encoders.family import Family, Head, Hidden, KerasHubNames
from encoder_zoo.encoders.rules import Size
from encoder_zoo.encoders.tokenizers import WORDPIECE


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ElectraBackbone(Backbone):
    """ELECTRA's encoder, discriminator or generator; inputs and outputs as for `Backbone`.

    There is no pooler.

    The discriminator is fine-tuned; the generator fills in masks.

    Args:
        embedding_dim: width of the embeddings; None for `hidden_dim`.
        **kwargs: the other arguments of `Backbone`.

    Source: Clark et al. 2020, ELECTRA: Pre-training Text Encoders as Discriminators Rather Than
    Generators, section 2 and appendix A.

    Example:
        >>> import numpy as np
        >>> backbone = ElectraBackbone(
        ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16,
        ...     embedding_dim=4,
        ... )
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])})
        >>> {name: keras.ops.shape(value) for name, value in outputs.items()}
        {'sequence_output': (1, 3, 8)}
    """

    defaults: ClassVar = {"pooler": False}

    @validate_arguments
    def __init__(self, *args, embedding_dim: Size | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.embedding_dim = embedding_dim or self.hidden_dim

    def make_embeddings(self) -> Embeddings:
        output_dim = None if self.embedding_dim == self.hidden_dim else self.hidden_dim
        return super().make_embeddings(hidden_dim=self.embedding_dim, output_dim=output_dim)


_KERAS_HUB = KerasHubNames(
    backbone="ElectraBackbone",
    built_in={"activation": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-12},
    # Its pooler, which ELECTRA itself does not have, is left where it is.
    groups={**KERAS_HUB_EMBEDDINGS, "embeddings.projection": "dense", **KERAS_HUB_BLOCKS},
    heads={},
    tokenizer="ElectraTokenizer",
    arguments={"vocabulary_size": "vocab_size"},
    **KERAS_HUB_WORDPIECE,
)

FAMILY = Family(
    name="electra",
    backbone=ElectraBackbone,
    class_prefix="Electra",
    prefix="electra",
    tensors={**TENSORS, "embeddings.projection": "embeddings_project"},
    config_keys={**KEYS_WITH_SEGMENTS, "embedding_dim": "embedding_size"},
    rules=RULES,
    constants=CONSTANTS,
    tokenizer=WORDPIECE,
    uses_segments=True,
    # Clark et al. 2020, appendix B, of base; they take 3e-4 for small, 5e-5 and 0.9 for large.
    learning_rate=1e-4,
    weight_decay=0.0,
    layer_decay=0.8,
    heads={
        "ForSequenceClassification": Head(
            "classifier.out_proj",
            Hidden("classifier.dense", "gelu", after_dropout=True),
            dropout="classifier_dropout",
        ),
        "ForMultipleChoice": Head(
            "classifier",
            Hidden("sequence_summary.summary", "gelu"),
            dropout="summary_last_dropout",
            default_dropout=0.1,
        ),
        "ForTokenClassification": Head("classifier", dropout="classifier_dropout"),
        "ForQuestionAnswering": Head("qa_outputs"),
        "ForPreTraining": Head(
            "discriminator_predictions.dense_prediction",
            Hidden("discriminator_predictions.dense", "gelu"),
        ),
        "ForMaskedLM": Head(
            "generator_lm_head",
            Hidden("generator_predictions.dense", "gelu", norm="generator_predictions.LayerNorm"),
            tied_bias="generator_lm_head.bias",
        ),
    },
    keras_hub=_KERAS_HUB,
    tiny={"embedding_dim": 6},
)
ElectraBackbone.family = FAMILY
