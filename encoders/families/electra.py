"""ELECTRA: BERT without a pooler, and with embeddings that can be narrower than the blocks."""

from collections.abc import Mapping
from typing import ClassVar

import keras

from encoder_zoo.common.validation import Rule, one_of, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.core import Embeddings
from encoder_zoo.encoders.families.bert import BERT_RULES, CONSTANTS, KEYS_WITH_SEGMENTS, TENSORS
from encoder_zoo.encoders.family import Family, Head, Hidden
from encoder_zoo.encoders.layers import Activation, Size
from encoder_zoo.encoders.tokenizers import WORDPIECE


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ElectraBackbone(Backbone):
    """ELECTRA discriminator or generator. See `Backbone` for inputs and outputs.

    Use the discriminator for fine-tuning and the generator to fill masks. The model has no pooler.

    Args:
        embedding_dim: Positive integer. The width of the embeddings. Defaults to None, the value of
            `hidden_dim`.
        summary_activation: String. The activation of the dense layer before the output layer of
            `MultipleChoice`. Defaults to "gelu".
        **kwargs: Additional arguments for `Backbone`.

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
    def __init__(
        self,
        *args,
        embedding_dim: Size | None = None,
        summary_activation: Activation = "gelu",
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.embedding_dim = embedding_dim or self.hidden_dim
        self.summary_activation = summary_activation

    def make_embeddings(self) -> Embeddings:
        output_dim = None if self.embedding_dim == self.hidden_dim else self.hidden_dim
        return super().make_embeddings(hidden_dim=self.embedding_dim, output_dim=output_dim)


# -- config.json -------------------------------------------------------------------------------


def normalize_summary(config: Mapping) -> dict:
    """Return a copy of a configuration, with "linear" instead of an empty `summary_activation`.

    Args:
        config: Dictionary with the contents of config.json.

    Example:
        >>> normalize_summary({"summary_activation": None}), normalize_summary({})
        ({'summary_activation': 'linear'}, {})
    """
    config = dict(config)
    if config.get("summary_activation", True) in (None, ""):
        config["summary_activation"] = "linear"
    return config


def make_summary_rules(vector: str) -> dict[str, Rule]:
    """Return the validation rules for the summary fields in config.json.

    A summary is the vector of one token with a dense layer on top.

    Args:
        vector: String, "first" or "last". The `summary_type` of the family.
    """
    return {
        "summary_type": one_of(None, vector),
        "summary_use_proj": one_of(True),
        "summary_proj_to_labels": one_of(None, False),
        "summary_first_dropout": one_of(None, 0),
    }


def make_summary_constants(vector: str) -> dict[str, object]:
    """Return the summary fields to write to config.json. See `make_summary_rules`."""
    return {"summary_type": vector, "summary_use_proj": True}


def make_summary_head(output: str) -> Head:
    """Return a classification head for the summary of a text. See `make_summary_rules`.

    Args:
        output: String. Name of the output layer in the checkpoint.
    """
    hidden = Hidden("sequence_summary.summary", activation_argument="summary_activation")
    return Head(output, hidden, dropout="summary_last_dropout", default_dropout=0.1)


FAMILY = Family(
    name="electra",
    backbone=ElectraBackbone,
    class_prefix="Electra",
    prefix="electra",
    tensors={**TENSORS, "embeddings.projection": "embeddings_project"},
    config_keys={
        **KEYS_WITH_SEGMENTS,
        "embedding_dim": "embedding_size",
        "summary_activation": "summary_activation",
    },
    read_config=normalize_summary,
    rules={**BERT_RULES, **make_summary_rules("first")},
    constants={**CONSTANTS, **make_summary_constants("first")},
    tokenizer=WORDPIECE,
    uses_segments=True,
    # Clark et al. 2020, appendix B, for base models. The authors use 3e-4 for small models, and
    # 5e-5 with a layer decay of 0.9 for large models.
    learning_rate=1e-4,
    weight_decay=0.0,
    layer_decay=0.8,
    heads={
        "ForSequenceClassification": Head(
            "classifier.out_proj",
            Hidden("classifier.dense", "gelu", after_dropout=True),
            dropout="classifier_dropout",
        ),
        "ForMultipleChoice": make_summary_head("classifier"),
        "ForTokenClassification": Head("classifier", dropout="classifier_dropout"),
        "ForQuestionAnswering": Head("qa_outputs"),
        "ForPreTraining": Head(
            "discriminator_predictions.dense_prediction", Hidden("discriminator_predictions.dense")
        ),
        "ForMaskedLM": Head(
            "generator_lm_head",
            Hidden("generator_predictions.dense", "gelu", norm="generator_predictions.LayerNorm"),
            tied_bias="generator_lm_head.bias",
        ),
    },
    tiny={"embedding_dim": 6, "summary_activation": "tanh"},
)
ElectraBackbone.family = FAMILY
