"""RoBERTa: the architecture and what its checkpoints call the heads."""

import pathlib

import keras
from keras import ops

from encoder_zoo.encoders.backbone import Backbone, Family
from encoder_zoo.encoders.embeddings import Embeddings
from encoder_zoo.encoders.positions import positions_in_texts


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RobertaEmbeddings(Embeddings):
    """`Embeddings` whose positions skip the padding.

    Real tokens count from `pad_token_id + 1`, padding stands at `pad_token_id`, as in fairseq,
    where RoBERTa was trained.

    Args:
        pad_token_id: id of the padding token.

    Example:
        >>> import numpy as np
        >>> layer = RobertaEmbeddings(10, 4, max_positions=8, pad_token_id=1)
        >>> np.array(layer.position_ids(np.array([[5, 6, 1]]), np.array([[1, 1, 0]]))).tolist()
        [[2, 3, 1]]
    """

    def __init__(self, *args, pad_token_id: int = 1, **kwargs):
        super().__init__(*args, **kwargs)
        self.pad_token_id = pad_token_id

    def position_ids(self, token_ids, padding_mask, text_starts=None):
        """(B, L): positions of real tokens count from `pad_token_id + 1`."""
        real = ops.cast(padding_mask, "int32")
        if text_starts is None:
            return ops.cumsum(real, axis=1) * real + self.pad_token_id
        position = positions_in_texts(text_starts, ops.shape(token_ids)[1])
        return (position + 1) * real + self.pad_token_id

    @property
    def max_sequence_length(self) -> int:
        """The most tokens that the position table serves."""
        return self.max_positions - self.pad_token_id - 1


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RobertaBackbone(Backbone):
    """RoBERTa's encoder; arguments, inputs and outputs as for `Backbone`, with its own defaults.

    Args:
        vocabulary_size: number of token ids.
        layer_norm_epsilon: added to the variance in every LayerNorm.
        num_segments: number of segment ids; RoBERTa was trained with a single one.
        pad_token_id: id of the padding token; the positions count from the number after it.
        **kwargs: the other arguments of `Backbone`.

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

    def __init__(
        self,
        vocabulary_size: int,
        *args,
        layer_norm_epsilon: float = 1e-5,
        num_segments: int = 1,
        pad_token_id: int = 1,
        **kwargs,
    ):
        super().__init__(
            vocabulary_size,
            *args,
            layer_norm_epsilon=layer_norm_epsilon,
            num_segments=num_segments,
            **kwargs,
        )
        self.pad_token_id = pad_token_id

    def make_embeddings(self) -> RobertaEmbeddings:
        return RobertaEmbeddings(
            self.vocabulary_size,
            self.hidden_dim,
            self.max_sequence_length + self.pad_token_id + 1,
            self.num_segments,
            self.dropout,
            self.layer_norm_epsilon,
            pad_token_id=self.pad_token_id,
            name="embeddings",
            dtype=self.dtype_policy,
        )


def _load_tokenizer(folder: pathlib.Path):
    from encoder_zoo.presets.tokenizer_files import read_roberta_tokenizer

    return read_roberta_tokenizer(folder)


FAMILY = Family(
    name="roberta",
    backbone=RobertaBackbone,
    load_tokenizer=_load_tokenizer,
    pair_separators=2,
    uses_segments=False,
    positions_skip_padding=True,
    pooled_classifier=False,
    masked_lm_activation="gelu",
    checkpoint_class_prefix="Roberta",
    head_tensors={
        "sequence_classifier": {
            "hidden_dense": "classifier.dense",
            "output_dense": "classifier.out_proj",
        },
        "token_classifier": {"output_dense": "classifier"},
        "span_qa": {"output_dense": "qa_outputs"},
        "masked_lm": {
            "head.dense": "lm_head.dense",
            "head.norm": "lm_head.layer_norm",
            "head.bias": "lm_head.bias",
        },
    },
)
RobertaBackbone.family = FAMILY
