"""ALBERT: all layers share one block, and the embeddings can be narrower than the blocks."""

import dataclasses
from typing import Annotated, ClassVar

import keras

from encoder_zoo.common.validation import Rule, one_of, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.core import Embeddings
from encoder_zoo.encoders.families.bert import BERT_RULES, CONSTANTS, KEYS_WITH_SEGMENTS, TOKEN_IDS
from encoder_zoo.encoders.family import Family, Head, HeadAlias, Hidden, PairHead
from encoder_zoo.encoders.layers import Size
from encoder_zoo.encoders.tokenizers import ALBERT_SENTENCEPIECE

# Shared blocks add computation but no weights, so the weights do not limit their number.
NumLayers = Annotated[
    int, Rule(lambda v: type(v) is int and 0 < v <= 1000, "a positive integer up to 1000")
]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class AlbertBackbone(Backbone):
    """ALBERT encoder. See `Backbone` for inputs and outputs.

    All layers share the weights of one block. With `num_groups > 1`, each group of layers shares
    one block. Training a block trains all layers that share it. This also applies to `enable_lora`.

    Args:
        vocabulary_size: Positive integer. The number of token ids.
        num_layers: Positive integer. The number of layers.
        embedding_dim: Positive integer. The width of the embeddings. A dense layer projects them to
            `hidden_dim`. Defaults to 128.
        num_groups: Positive integer. The number of blocks with their own weights. Defaults to 1.
        **kwargs: Additional arguments for `Backbone`.

    Raises:
        ValueError: If `num_groups` is less than 1 or more than `num_layers`.

    Source: Lan et al. 2020, ALBERT: A Lite BERT for Self-supervised Learning of Language
    Representations, section 3.1. Version 2 follows the released code.

    Example:
        >>> import numpy as np
        >>> backbone = AlbertBackbone(
        ...     vocabulary_size=30, num_layers=3, num_heads=2, hidden_dim=8, intermediate_dim=16,
        ...     embedding_dim=4,
        ... )
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])}, return_hidden_states=True)
        >>> len(outputs["hidden_states"]), len(set(backbone.blocks))
        (4, 1)
    """

    # These are the values of version 2. Version 1 uses "gelu" and 0.1 for both dropout rates.
    defaults: ClassVar = {"dropout": 0.0, "attention_dropout": 0.0, "activation": "gelu_new"}

    @validate_arguments
    def __init__(
        self,
        vocabulary_size: Size,
        num_layers: NumLayers,
        *args,
        embedding_dim: Size = 128,
        num_groups: Size = 1,
        **kwargs,
    ):
        super().__init__(vocabulary_size, num_layers, *args, **kwargs)
        if not 1 <= num_groups <= num_layers:
            raise invalid("num_groups", num_groups, f"1 to num_layers={num_layers}")
        self.embedding_dim = embedding_dim
        self.num_groups = num_groups

    def make_embeddings(self) -> Embeddings:
        return super().make_embeddings(hidden_dim=self.embedding_dim, output_dim=self.hidden_dim)

    def make_block(self, i: int) -> keras.layers.Layer:
        group = self._find_block_index(i)
        return (
            self.blocks[-1]
            if i and group == self._find_block_index(i - 1)
            else super().make_block(group)
        )

    def _find_block_index(self, i: int) -> int:
        """Return the index of the block that layer i uses, as in the original code."""
        return int(i / (self.num_layers / self.num_groups))


_LAYER = "encoder.albert_layer_groups.{}.albert_layers.0"

# Lan et al. 2020, table 14: The classifier uses a dropout rate of 0.1, even if the encoder does not
# use dropout.
_CLASSIFIER = Head("classifier", dropout="classifier_dropout_prob", default_dropout=0.1)
_POOLED_CLASSIFIER = dataclasses.replace(_CLASSIFIER, pooled=True)
_MASKED_LM = Head(
    "predictions.decoder",
    Hidden("predictions.dense", norm="predictions.LayerNorm"),
    tied_bias="predictions.bias",
)

FAMILY = Family(
    name="albert",
    backbone=AlbertBackbone,
    class_prefix="Albert",
    prefix="albert",
    tensors={
        "embeddings.token_embedding": "embeddings.word_embeddings",
        "embeddings.position_embedding": "embeddings.position_embeddings",
        "embeddings.segment_embedding": "embeddings.token_type_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "embeddings.projection": "encoder.embedding_hidden_mapping_in",
        "blocks.{}.attention.query_dense": f"{_LAYER}.attention.query",
        "blocks.{}.attention.key_dense": f"{_LAYER}.attention.key",
        "blocks.{}.attention.value_dense": f"{_LAYER}.attention.value",
        "blocks.{}.attention.output_dense": f"{_LAYER}.attention.dense",
        "blocks.{}.attention_norm": f"{_LAYER}.attention.LayerNorm",
        "blocks.{}.intermediate_dense": f"{_LAYER}.ffn",
        "blocks.{}.output_dense": f"{_LAYER}.ffn_output",
        "blocks.{}.output_norm": f"{_LAYER}.full_layer_layer_norm",
    },
    pooler="pooler",
    blocks="num_groups",
    config_keys={
        **KEYS_WITH_SEGMENTS,
        "embedding_dim": "embedding_size",
        "num_groups": "num_hidden_groups",
    },
    rules={**BERT_RULES, "inner_group_num": one_of(None, 1)},
    constants={**CONSTANTS, "inner_group_num": 1},
    token_ids=TOKEN_IDS,
    tokenizer=ALBERT_SENTENCEPIECE,
    uses_segments=True,
    # Lan et al. 2020, table 14: 1e-5 to 5e-5.
    learning_rate=2e-5,
    heads={
        "ForSequenceClassification": _POOLED_CLASSIFIER,
        "ForMultipleChoice": _POOLED_CLASSIFIER,
        "ForTokenClassification": _CLASSIFIER,
        "ForQuestionAnswering": Head("qa_outputs"),
        "ForMaskedLM": _MASKED_LM,
        "ForPreTraining": dataclasses.replace(
            _MASKED_LM,
            pooled=True,
            dropout="classifier_dropout_prob",
            default_dropout=0.1,
            pair=PairHead("sop_classifier.classifier", "sentence_order"),
        ),
    },
    # Sentence order prediction is a classification of pairs, see `sentence_order_pairs`.
    aliases={
        "ForPreTraining": HeadAlias(
            "ForSequenceClassification", "sop_classifier.classifier", ("in_order", "swapped")
        )
    },
    tiny={"embedding_dim": 6},
)
AlbertBackbone.family = FAMILY
