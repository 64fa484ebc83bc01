"""BERT: the architecture, and the names in its checkpoints."""

import dataclasses

import keras

from encoder_zoo.common.validation import one_of
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import (
    Family,
    Head,
    HeadAlias,
    Hidden,
    KerasHubHead,
    KerasHubNames,
    PairHead,
    Tf1Names,
)
from encoder_zoo.encoders.tokenizers import WORDPIECE


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


TENSORS = {
    "embeddings.token_embedding": "embeddings.word_embeddings",
    "embeddings.position_embedding": "embeddings.position_embeddings",
    "embeddings.segment_embedding": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "blocks.{}.attention.query_dense": "encoder.layer.{}.attention.self.query",
    "blocks.{}.attention.key_dense": "encoder.layer.{}.attention.self.key",
    "blocks.{}.attention.value_dense": "encoder.layer.{}.attention.self.value",
    "blocks.{}.attention.output_dense": "encoder.layer.{}.attention.output.dense",
    "blocks.{}.attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "blocks.{}.intermediate_dense": "encoder.layer.{}.intermediate.dense",
    "blocks.{}.output_dense": "encoder.layer.{}.output.dense",
    "blocks.{}.output_norm": "encoder.layer.{}.output.LayerNorm",
}
CONFIG_KEYS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "activation": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
    "max_sequence_length": "max_position_embeddings",
}
KEYS_WITH_SEGMENTS = {**CONFIG_KEYS, "num_segments": "type_vocab_size"}
TOKEN_IDS = {  # of families whose config.json has those of the first and the last token, too
    "pad_token_id": "pad_token_id",
    "bos_token_id": "start_token_id",
    "eos_token_id": "end_token_id",
}
RULES = {"position_embedding_type": one_of(None, "absolute")}
CONSTANTS = {"position_embedding_type": "absolute", "initializer_range": 0.02}


def keras_hub_blocks(block: str, projection: str, blocks: str = "blocks") -> dict[str, str]:
    """Return {attribute path in the backbone: group in KerasHub's h5 file} of the blocks.

    Args:
        block: group of a block, with {} for its number.
        projection: that of the attention's dense layers, with {} for "query" and the like.
        blocks: attribute of the backbone with their list.
    """
    layers = ("query", "key", "value", "output")
    paths = {
        **{f"attention.{name}_dense": projection.format(name) for name in layers},
        "attention_norm": "_self_attention_layer_norm",
        "intermediate_dense": "_feedforward_intermediate_dense",
        "output_dense": "_feedforward_output_dense",
        "output_norm": "_feedforward_layer_norm",
    }
    return {f"{blocks}.{{}}.{ours}": f"{block}/{theirs}" for ours, theirs in paths.items()}


KERAS_HUB_BLOCKS = keras_hub_blocks("transformer_encoder_{}", "_self_attention_layer/{}_dense")
KERAS_HUB_TWO_TABLES = {  # without segments
    "embeddings.token_embedding": "token_and_position_embedding/token_embedding",
    "embeddings.position_embedding": "token_and_position_embedding/position_embedding",
    "embeddings.norm": "layer_normalization",
}
# Of a classifier with a hidden layer.
KERAS_HUB_HIDDEN = {"head.hidden.dense": "dense", "head.output_dense": "dense_1"}
KERAS_HUB_EMBEDDINGS = {
    "embeddings.token_embedding": "reversible_embedding",
    "embeddings.position_embedding": "position_embedding",
    "embeddings.segment_embedding": "embedding",
    "embeddings.norm": "layer_normalization",
}
# In every family the head's GELU is the exact one and its epsilon this, whatever the blocks have.
KERAS_HUB_MASKED_LM = {
    "groups": {
        "head.hidden.dense": "masked_lm_head/_intermediate_dense",
        "head.hidden.norm": "masked_lm_head/_intermediate_layer_norm",
        "head.bias": "masked_lm_head",
    },
    "built_in": {"head_activation": "gelu", "head_layer_norm_epsilon": 1e-5},
}
KERAS_HUB_WORDPIECE = {
    "tokenizer_file_names": {"vocab.txt": "vocabulary.txt"},
    "tokenizer_settings": {
        "do_lower_case": ("lowercase", False),
        "strip_accents": ("strip_accents", False),
        "unk_token": ("oov_token", "[UNK]"),
    },
    "tokenizer_arguments": {
        "vocabulary": "vocabulary",
        "lowercase": "lowercase",
        "strip_accents": "strips_accents",
        "oov_token": "unknown_token",
    },
    "tokenizer_built_in": {"split_chinese_characters": True},  # its files have no word for it
}
_KERAS_HUB = KerasHubNames(
    backbone="BertBackbone",
    # KerasHub's BERT has the tanh GELU also where the original weights had the exact one.
    built_in={"activation": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-12},
    groups={**KERAS_HUB_EMBEDDINGS, **KERAS_HUB_BLOCKS, "pooler_dense": "dense"},
    heads={
        "ForSequenceClassification": KerasHubHead(
            "BertTextClassifier", {"head.output_dense": "dense"}
        ),
        "ForMaskedLM": KerasHubHead("BertMaskedLM", **KERAS_HUB_MASKED_LM),
    },
    tokenizer="BertTokenizer",
    **KERAS_HUB_WORDPIECE,
)
_TF1 = Tf1Names(
    config_file="bert_config.json",
    parts=(
        (r"^cls/predictions/output_bias$", "cls/predictions/bias"),
        (r"^cls/seq_relationship/output_weights$", "cls/seq_relationship/weight"),
        (r"^cls/seq_relationship/output_bias$", "cls/seq_relationship/bias"),
        # Fine-tuned by the same code, `run_squad.py` and `run_classifier.py`.
        (r"^cls/squad/output_weights$", "qa_outputs/weight"),
        (r"^cls/squad/output_bias$", "qa_outputs/bias"),
        (r"^output_weights$", "classifier/weight"),
        (r"^output_bias$", "classifier/bias"),
    ),
)

MASKED_LM = Head(
    "cls.predictions.decoder",
    Hidden("cls.predictions.transform.dense", norm="cls.predictions.transform.LayerNorm"),
    tied_bias="cls.predictions.bias",
)
_CLASSIFIER = Head("classifier", pooled=True, dropout="classifier_dropout")

FAMILY = Family(
    name="bert",
    backbone=BertBackbone,
    class_prefix="Bert",
    prefix="bert",
    tensors=TENSORS,
    pooler="pooler.dense",
    config_keys=KEYS_WITH_SEGMENTS,
    rules=RULES,
    constants=CONSTANTS,
    tokenizer=WORDPIECE,
    uses_segments=True,
    heads={
        "ForSequenceClassification": _CLASSIFIER,
        "ForMultipleChoice": _CLASSIFIER,
        "ForTokenClassification": Head("classifier", dropout="classifier_dropout"),
        "ForQuestionAnswering": Head("qa_outputs"),
        "ForMaskedLM": MASKED_LM,
        "ForPreTraining": dataclasses.replace(
            MASKED_LM, pooled=True, pair=PairHead("cls.seq_relationship", "next_sentence")
        ),
    },
    # Next-sentence prediction is a classification of pairs.
    aliases={
        "ForNextSentencePrediction": HeadAlias(
            "ForSequenceClassification", "cls.seq_relationship", ("is_next", "is_not_next")
        )
    },
    keras_hub=_KERAS_HUB,
    tf1=_TF1,
)
BertBackbone.family = FAMILY
