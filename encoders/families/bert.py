"""BERT: the architecture, and the names of its weights in checkpoints."""

import dataclasses

import keras

from encoder_zoo.common.validation import one_of
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Family, Head, HeadAlias, Hidden, PairHead
from encoder_zoo.encoders.tokenizers import WORDPIECE


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BertBackbone(Backbone):
    """BERT encoder. See `Backbone` for arguments and outputs.

    The pooler applies a dense layer with tanh to the first token. It was trained with next-sentence
    prediction.

    Source: Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding, section 3.

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
TOKEN_IDS = {  # for families whose config.json also contains the ids of the first and last token
    "pad_token_id": "pad_token_id",
    "bos_token_id": "start_token_id",
    "eos_token_id": "end_token_id",
}
BERT_RULES = {"position_embedding_type": one_of(None, "absolute")}
CONSTANTS = {"position_embedding_type": "absolute", "initializer_range": 0.02}


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
    rules=BERT_RULES,
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
)
BertBackbone.family = FAMILY
