"""RoBERTa: the blocks of BERT. Positions, tokenizer and heads are different."""

from collections.abc import Mapping
from typing import ClassVar

import keras
from keras import ops

from encoder_zoo.common.validation import NonNegativeInt, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.core import Embeddings
from encoder_zoo.encoders.families import bert
from encoder_zoo.encoders.family import Family, Head, Hidden
from encoder_zoo.encoders.positions import compute_text_positions
from encoder_zoo.encoders.tokenizers import BYTE_BPE


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RobertaEmbeddings(Embeddings):
    """`Embeddings` for RoBERTa. Positions are counted without padding.

    As in fairseq, which was used for the training of RoBERTa, the positions of tokens start at
    `pad_token_id + 1`. Padding has the position `pad_token_id`.

    Args:
        pad_token_id: Non-negative integer. Id of the padding token. Defaults to 1.

    Example:
        >>> import numpy as np
        >>> layer = RobertaEmbeddings(10, 4, max_positions=8, pad_token_id=1)
        >>> inputs = np.array([[5, 6, 1]]), np.array([[1, 1, 0]])
        >>> np.array(layer.compute_position_ids(*inputs)).tolist()
        [[2, 3, 1]]
    """

    def __init__(self, *args, pad_token_id: int = 1, **kwargs):
        super().__init__(*args, **kwargs)
        self.pad_token_id = pad_token_id

    def compute_position_ids(self, token_ids, padding_mask, text_starts=None):
        """Compute positions (B, L) starting from `pad_token_id + 1`. Padding is not counted."""
        real = ops.cast(padding_mask, "int32")
        if text_starts is None:
            return ops.cumsum(real, axis=1) * real + self.pad_token_id
        position = compute_text_positions(text_starts, ops.shape(token_ids)[1])
        return (position + 1) * real + self.pad_token_id

    @property
    def max_sequence_length(self) -> int:
        """The maximum number of tokens that have a row in the position table."""
        return self.max_positions - self.pad_token_id - 1


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RobertaBackbone(Backbone):
    """RoBERTa encoder. See `Backbone` for arguments and outputs.

    Args:
        pad_token_id: Non-negative integer. Id of the padding token. The positions of tokens start
            at the next integer. Defaults to 1.
        **kwargs: Additional arguments for `Backbone`. `num_segments` defaults to 1.

    Source: Liu et al. 2019, RoBERTa: A Robustly Optimized BERT Pretraining Approach, section 4.

    Example:
        >>> import numpy as np
        >>> backbone = RobertaBackbone(
        ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[0, 7, 2, 1]]),
        ...                     "padding_mask": np.array([[1, 1, 1, 0]])})
        >>> keras.ops.shape(outputs["sequence_output"])
        (1, 4, 8)
    """

    defaults: ClassVar = {"layer_norm_epsilon": 1e-5, "num_segments": 1}

    @validate_arguments
    def __init__(self, *args, pad_token_id: NonNegativeInt = 1, **kwargs):
        super().__init__(*args, **kwargs)
        self.pad_token_id = pad_token_id

    def make_embeddings(self) -> RobertaEmbeddings:
        return super().make_embeddings(
            RobertaEmbeddings,
            max_positions=self.max_sequence_length + self.pad_token_id + 1,
            pad_token_id=self.pad_token_id,
        )


def read_config(config: Mapping) -> dict:
    """Return a configuration with `layer_norm_eps`, using the default value of transformers.

    Args:
        config: Dictionary with the contents of config.json.

    Example:
        >>> read_config({}), read_config({"layer_norm_eps": 1e-5})
        ({'layer_norm_eps': 1e-12}, {'layer_norm_eps': 1e-05})
    """
    return {"layer_norm_eps": 1e-12, **config}


def make_heads(dropout: str) -> dict[str, Head]:
    """Return the heads of RoBERTa, which several families use.

    Args:
        dropout: String. The key in config.json of the dropout rate of sequence and token
            classifiers.
    """
    return {
        "ForSequenceClassification": Head(
            "classifier.out_proj",
            Hidden("classifier.dense", "tanh", after_dropout=True),
            dropout=dropout,
        ),
        "ForMultipleChoice": Head("classifier", pooled=True, dropout="hidden_dropout_prob"),
        "ForTokenClassification": Head("classifier", dropout=dropout),
        "ForQuestionAnswering": Head("qa_outputs"),
        "ForMaskedLM": Head(
            "lm_head.decoder",
            Hidden("lm_head.dense", "gelu", norm="lm_head.layer_norm"),
            tied_bias="lm_head.bias",
        ),
    }


FAMILY = Family(
    name="roberta",
    backbone=RobertaBackbone,
    class_prefix="Roberta",
    prefix="roberta",
    tensors=bert.TENSORS,
    pooler="pooler.dense",
    config_keys={**bert.KEYS_WITH_SEGMENTS, "pad_token_id": "pad_token_id"},
    read_config=read_config,
    rules=bert.BERT_RULES,
    constants=bert.CONSTANTS,
    token_ids=bert.TOKEN_IDS,
    positions_skip_padding=True,
    tokenizer=BYTE_BPE,
    heads=make_heads("classifier_dropout"),
)
RobertaBackbone.family = FAMILY
