"""DistilBERT: BERT with half as many blocks, without segments and without a pooler."""

from typing import ClassVar

import keras
import numpy as np

from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Family, Head, Hidden, map_attention_names
from encoder_zoo.encoders.tokenizers import WORDPIECE


@keras.saving.register_keras_serializable(package="encoder_zoo")
class DistilBertBackbone(Backbone):
    """DistilBERT encoder. See `Backbone` for inputs and outputs.

    The model has no segments and no pooler.

    Args:
        sinusoidal_positions: Boolean. Whether to use fixed sinusoidal position embeddings (Vaswani
            et al. 2017, section 3.5) instead of learned position embeddings. Defaults to False.
        **kwargs: Additional arguments for `Backbone`.

    Source: Sanh et al. 2019, DistilBERT, a distilled version of BERT: smaller, faster, cheaper and
    lighter, section 3.

    Example:
        >>> import numpy as np
        >>> backbone = DistilBertBackbone(
        ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])})
        >>> {name: keras.ops.shape(value) for name, value in outputs.items()}
        {'sequence_output': (1, 3, 8)}
    """

    defaults: ClassVar = {"num_segments": 0, "pooler": False}

    @validate_arguments
    def __init__(self, *args, sinusoidal_positions: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.sinusoidal_positions = sinusoidal_positions

    def build(self, input_shape=None):
        super().build(input_shape)
        if self.sinusoidal_positions:
            table = self.embeddings.position_embedding
            table.embeddings.assign(compute_sinusoids(self.max_sequence_length, self.hidden_dim))
            table.trainable = False


def compute_sinusoids(rows: int, width: int) -> np.ndarray:
    """Compute sinusoidal position embeddings as a float32 array of shape (rows, width).

    Args:
        rows: Positive integer. The number of positions.
        width: Positive integer. The width of the embeddings.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.5.

    Example:
        >>> compute_sinusoids(2, 4).round(2).tolist()
        [[0.0, 1.0, 0.0, 1.0], [0.8399999737739563, 0.5400000214576721, 0.009999999776482582, 1.0]]
    """
    column = np.arange(width)
    angles = np.arange(rows)[:, None] / 10000 ** (2 * (column // 2) / width)
    return np.where(column % 2, np.cos(angles), np.sin(angles)).astype("float32")


_CLASSIFIER = Head(
    "classifier",
    Hidden("pre_classifier", "relu"),
    dropout="seq_classif_dropout",
    default_dropout=0.2,
)

FAMILY = Family(
    name="distilbert",
    backbone=DistilBertBackbone,
    class_prefix="DistilBert",
    prefix="distilbert",
    tensors={
        "embeddings.token_embedding": "embeddings.word_embeddings",
        "embeddings.position_embedding": "embeddings.position_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        **map_attention_names("blocks.{}.attention", "transformer.layer.{}.attention.*_lin", "out"),
        "blocks.{}.attention_norm": "transformer.layer.{}.sa_layer_norm",
        "blocks.{}.intermediate_dense": "transformer.layer.{}.ffn.lin1",
        "blocks.{}.output_dense": "transformer.layer.{}.ffn.lin2",
        "blocks.{}.output_norm": "transformer.layer.{}.output_layer_norm",
    },
    config_keys={
        "vocabulary_size": "vocab_size",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "hidden_dim": "dim",
        "intermediate_dim": "hidden_dim",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation": "activation",
        "max_sequence_length": "max_position_embeddings",
        "sinusoidal_positions": "sinusoidal_pos_embds",
    },
    key_aliases={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    },
    constants={"initializer_range": 0.02, "tie_weights_": True},
    tokenizer=WORDPIECE,
    # The learning rate is the same as for BERT. The dropout rates of the heads are from
    # transformers, where the authors released their code.
    heads={
        "ForSequenceClassification": _CLASSIFIER,
        "ForMultipleChoice": _CLASSIFIER,
        # The config.json has no separate field, so the dropout rate of the encoder is used.
        "ForTokenClassification": Head("classifier", dropout="dropout"),
        "ForQuestionAnswering": Head("qa_outputs", dropout="qa_dropout", default_dropout=0.1),
        "ForMaskedLM": Head(
            "vocab_projector",
            Hidden("vocab_transform", norm="vocab_layer_norm"),
            tied_bias="vocab_projector.bias",
        ),
    },
)
DistilBertBackbone.family = FAMILY
