"""BART: an encoder, and a decoder that attends to the encoder output.

Comments use these letters for shapes: B batch, L sequence, D hidden.
"""

from collections.abc import Mapping
from typing import ClassVar

import keras
from keras import ops

from encoder_zoo.common.validation import NonNegativeInt, Rate, one_of, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.core import Embeddings, EncoderBlock
from encoder_zoo.encoders.families.bert import TOKEN_IDS
from encoder_zoo.encoders.family import Family, Head, Hidden, map_attention_names
from encoder_zoo.encoders.kernels.attention import FastAttention
from encoder_zoo.encoders.layers import Size
from encoder_zoo.encoders.positions import (
    compute_text_indices,
    compute_text_positions,
    take_last_tokens,
)
from encoder_zoo.encoders.tokenizers import BYTE_BPE

UNUSED_POSITIONS = 2  # fairseq reserves two rows at the start of the position table


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BartEmbeddings(Embeddings):
    """`Embeddings` with two unused rows at the start of the position table.

    Example:
        >>> import numpy as np
        >>> layer = BartEmbeddings(10, 4, max_positions=8)
        >>> np.array(layer.compute_position_ids(np.array([[5, 6, 1]]))).tolist()
        [[2, 3, 4]]
    """

    def share_tokens(self, other: Embeddings) -> None:
        """Share the token table with another layer, but create a separate position table.

        This method must be called before the layer is built.
        """
        self.token_embedding = other.token_embedding
        self.position_embedding = self.make_table("position_embedding", self.max_positions)
        self.segment_embedding, self.norm = None, self.make_norm("norm")

    def compute_position_ids(self, token_ids, padding_mask=None, text_starts=None):
        return super().compute_position_ids(token_ids, padding_mask, text_starts) + UNUSED_POSITIONS

    @property
    def max_sequence_length(self) -> int:
        """The maximum number of tokens that have a row in the position table."""
        return self.max_positions - UNUSED_POSITIONS


@keras.saving.register_keras_serializable(package="encoder_zoo")
class CrossAttention(FastAttention):
    """Attention to a second sequence, from which keys and values are computed.

    See `SelfAttention` for the arguments.

    Call arguments:
        encoded: Tensor of shape (B, L, D). The sequence for keys and values.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.3.

    Example:
        >>> import numpy as np
        >>> attention = CrossAttention(hidden_dim=8, num_heads=2)
        >>> x = np.ones((1, 3, 8), "float32")
        >>> keras.ops.shape(attention(x, encoded=2 * x))
        (1, 3, 8)
    """

    def project(self, x, *, encoded, **context):
        return self.project_inputs(x, encoded)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BartBlock(EncoderBlock):
    """`EncoderBlock` with dropout inside the feed-forward network.

    Args:
        activation_dropout: Float between 0 and 1. The dropout rate after the activation of the
            feed-forward network. Defaults to 0.0.
        **kwargs: Additional arguments for `EncoderBlock`.

    Example:
        >>> import numpy as np
        >>> block = BartBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    def __init__(self, *args, activation_dropout: float = 0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.activation_dropout = activation_dropout

    def build(self, input_shape=None):
        super().build(input_shape)
        self.activation_dropout_layer = self.make_dropout(self.activation_dropout)

    def compute_intermediate(self, x, training=None):
        inner = super().compute_intermediate(x, training)  # (B L, F)
        return self.activation_dropout_layer(inner, training=training)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BartDecoderBlock(BartBlock):
    """Decoder block: `BartBlock` with cross-attention to the encoder output.

    Call arguments:
        encoded: Tensor of shape (B, L, D). The encoder output.
        cross_mask: Attention mask for the cross-attention. See `SelfAttention`.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.1, decoder.

    Example:
        >>> import numpy as np
        >>> block = BartDecoderBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> x = np.zeros((1, 3, 8), "float32")
        >>> keras.ops.shape(block(x, encoded=x))
        (1, 3, 8)
    """

    def build(self, input_shape=None):
        super().build(input_shape)
        self.cross_attention = self.make_layer(CrossAttention, "cross_attention")
        self.cross_attention.build((None, None, self.hidden_dim))
        self.cross_norm = self.make_norm("cross_norm")
        self.cross_dropout_layer = self.make_dropout(self.dropout)

    def call(
        self,
        x,
        attention_mask=None,
        training=None,
        return_probabilities=False,
        *,
        encoded,
        cross_mask=None,
    ):
        options = {"training": training, "return_probabilities": return_probabilities}
        attended = self.attention(x, attention_mask=attention_mask, **options)
        attended, *probabilities = attended if return_probabilities else (attended,)
        shape, rows = ops.shape(x), (-1, self.hidden_dim)
        x, attended = ops.reshape(x, rows), ops.reshape(attended, rows)  # (B L, D)
        x = self.attention_dropout_layer(attended, training=training, residual=x)
        x = self.attention_norm(x, training=training)
        read = self.cross_attention(
            ops.reshape(x, shape), attention_mask=cross_mask, training=training, encoded=encoded
        )
        read = ops.reshape(read, rows)
        x = self.cross_dropout_layer(read, training=training, residual=x)
        x = self.cross_norm(x, training=training)
        update = self.output_dense(self.compute_intermediate(x, training))
        x = self.output_dropout_layer(update, training=training, residual=x)
        x = ops.reshape(self.output_norm(x, training=training), shape)
        return (x, *probabilities) if return_probabilities else x


@keras.saving.register_keras_serializable(package="encoder_zoo")
class BartBackbone(Backbone):
    """BART encoder and decoder. See `Backbone` for inputs and outputs.

    The decoder reads the tokens of the encoder, shifted by one, and attends to the output of the
    encoder. The value of "sequence_output" is the decoder output. The output of each token depends
    on the previous tokens in the decoder and, through the encoder, on the whole text. For this
    reason, classifiers read the last token. The model has no segments and no pooler. The list
    "hidden_states" contains the encoder hidden states, followed by the decoder hidden states.
    Attention probabilities are returned for the self-attention of the encoder and of the decoder.

    Args:
        num_decoder_layers: Positive integer. The number of decoder blocks. They are the last blocks
            in `blocks`. Defaults to None, the number of encoder blocks.
        activation_dropout: Float between 0 and 1. The dropout rate after the activation of the
            feed-forward networks. Defaults to 0.0.
        decoder_start_token_id: Non-negative integer. The token id that the decoder reads before the
            first token of a text. Defaults to 2.
        **kwargs: Additional arguments for `Backbone`. `num_layers` is the number of encoder blocks.

    Source: Lewis et al. 2020, BART: Denoising Sequence-to-Sequence Pre-training for Natural
    Language Generation, Translation, and Comprehension, sections 2 and 3.

    Example:
        >>> import numpy as np
        >>> backbone = BartBackbone(
        ...     vocabulary_size=30, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16,
        ...     num_decoder_layers=1,
        ... )
        >>> outputs = backbone({"token_ids": np.array([[0, 7, 2]])}, return_hidden_states=True)
        >>> keras.ops.shape(outputs["sequence_output"]), len(outputs["hidden_states"])
        ((1, 3, 8), 5)
    """

    defaults: ClassVar = {
        "attention_dropout": 0.0,
        "layer_norm_epsilon": 1e-5,
        "max_sequence_length": 1024,
        "num_segments": 0,
        "pooler": False,
    }

    @validate_arguments
    def __init__(
        self,
        *args,
        num_decoder_layers: Size | None = None,
        activation_dropout: Rate = 0.0,
        decoder_start_token_id: NonNegativeInt = 2,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.num_decoder_layers = num_decoder_layers or self.num_layers
        self.activation_dropout = activation_dropout
        self.decoder_start_token_id = decoder_start_token_id

    def build(self, input_shape=None):
        super().build(input_shape)
        rows = self.max_sequence_length + UNUSED_POSITIONS
        self.decoder_embeddings = self.make_layer(
            BartEmbeddings, "decoder_embeddings", max_positions=rows
        )
        self.decoder_embeddings.share_tokens(self.embeddings)
        self.decoder_blocks = [
            self.make_layer(BartDecoderBlock, f"decoder_block_{i}")
            for i in range(self.num_decoder_layers)
        ]
        for layer in (self.decoder_embeddings, *self.decoder_blocks):
            layer.build((None, None, self.hidden_dim))
        self.blocks = [*self.blocks, *self.decoder_blocks]

    def make_embeddings(self) -> BartEmbeddings:
        rows = self.max_sequence_length + UNUSED_POSITIONS
        return super().make_embeddings(BartEmbeddings, max_positions=rows)

    def make_block(self, i: int) -> BartBlock:
        return super().make_block(i, BartBlock)

    def _encode(self, inputs, training=False, return_probabilities=False, embedded=None):
        options = (training, return_probabilities)
        x = self._embed(inputs, training) if embedded is None else embedded  # (B, L, D)
        contexts = self.block_contexts(inputs)
        encoder, decoder = self.blocks[: self.num_layers], self.decoder_blocks
        states, probabilities = self._run(encoder, contexts, x, *options)
        y = self.decoder_embeddings(
            self._shift_tokens(inputs), text_starts=inputs.get("text_starts"), training=training
        )
        contexts = [self._make_decoder_context(inputs, states[-1])] * len(decoder)
        more = self._run(decoder, contexts, y, *options)
        return states + more[0], probabilities + more[1], contexts

    def _shift_tokens(self, inputs: Mapping):
        """Shift the tokens of each text by one position, (B, L)."""
        ids, starts = ops.convert_to_tensor(inputs["token_ids"]), inputs.get("text_starts")
        begin = ops.full_like(ids[:, :1], self.decoder_start_token_id)
        before = ops.concatenate([begin, ids[:, :-1]], axis=1)
        if starts is None:
            return before
        return ops.where(compute_text_positions(starts, ops.shape(ids)[1]) == 0, begin, before)

    def _make_decoder_context(self, inputs: Mapping, encoded) -> Mapping:
        """Create the context for decoder blocks, with a causal mask."""
        starts = inputs.get("text_starts")
        numbers = ops.arange(ops.shape(encoded)[1], dtype="int32")
        mask = (numbers[:, None] >= numbers)[None, None]  # (1, 1, L, L)
        if starts is not None:
            texts = compute_text_indices(starts, ops.shape(encoded)[1])
            mask = mask & (texts[:, None, :, None] == texts[:, None, None, :])
        cross_mask = self.attention_mask(inputs)
        return {"attention_mask": mask, "encoded": encoded, "cross_mask": cross_mask}

    def text_vectors(self, sequence_output, inputs: Mapping):
        """Return the output for the last token, (B, D), which classifiers use."""
        return take_last_tokens(sequence_output, inputs.get("padding_mask"))


_BLOCK = {
    **map_attention_names("attention", "self_attn.*_proj", "out"),
    "attention_norm": "self_attn_layer_norm",
    "intermediate_dense": "fc1",
    "output_dense": "fc2",
    "output_norm": "final_layer_norm",
}
_DECODER_BLOCK = {
    **_BLOCK,
    **map_attention_names("cross_attention", "encoder_attn.*_proj", "out"),
    "cross_norm": "encoder_attn_layer_norm",
}


def read_config(config: Mapping) -> dict:
    """Add missing fields to a configuration, using the default values from transformers.

    Args:
        config: Dictionary with the contents of config.json.

    Example:
        >>> read_config({"decoder_layers": 6})["decoder_layers"], read_config({})["decoder_layers"]
        (6, 12)
    """
    return {**_DECODER_DEFAULTS, **config}


# Default values in transformers that differ from the defaults for the encoder.
_DECODER_DEFAULTS = {
    "encoder_ffn_dim": 4096,
    "decoder_layers": 12,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
}

FAMILY = Family(
    name="bart",
    backbone=BartBackbone,
    class_prefix="Bart",
    prefix="model",
    tensors={
        "embeddings.token_embedding": "shared",
        "embeddings.position_embedding": "encoder.embed_positions",
        "embeddings.norm": "encoder.layernorm_embedding",
        "decoder_embeddings.position_embedding": "decoder.embed_positions",
        "decoder_embeddings.norm": "decoder.layernorm_embedding",
        **{f"blocks.{{}}.{o}": f"encoder.layers.{{}}.{t}" for o, t in _BLOCK.items()},
        **{
            f"decoder_blocks.{{}}.{o}": f"decoder.layers.{{}}.{t}"
            for o, t in _DECODER_BLOCK.items()
        },
    },
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
    # Version numbers for the fairseq file format.
    pretraining_only=("encoder.version", "decoder.version"),
    config_keys={
        "vocabulary_size": "vocab_size",
        "num_layers": "encoder_layers",
        "num_decoder_layers": "decoder_layers",
        "num_heads": "encoder_attention_heads",
        "hidden_dim": "d_model",
        "intermediate_dim": "encoder_ffn_dim",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "activation_dropout",
        "activation": "activation_function",
        "max_sequence_length": "max_position_embeddings",
        "decoder_start_token_id": "decoder_start_token_id",
    },
    repeated_keys={
        "decoder_attention_heads": "encoder_attention_heads",
        "decoder_ffn_dim": "encoder_ffn_dim",
    },
    read_config=read_config,
    key_aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    },
    rules={
        "is_encoder_decoder": one_of(None, True),
        "scale_embedding": one_of(None, False),
        "normalize_before": one_of(None, False),
        "normalize_embedding": one_of(None, True),
        "add_final_layer_norm": one_of(None, False),
        "static_position_embeddings": one_of(None, False),
    },
    constants={"is_encoder_decoder": True, "scale_embedding": False, "init_std": 0.02},
    token_ids=TOKEN_IDS,
    unused_positions=UNUSED_POSITIONS,
    tokenizer=BYTE_BPE,
    # Lewis et al. 2020 fine-tune with the settings of RoBERTa. Liu et al. 2019, table 10: 1e-5 to
    # 3e-5.
    learning_rate=2e-5,
    heads={
        "ForSequenceClassification": Head(
            "classification_head.out_proj",
            Hidden("classification_head.dense", "tanh", after_dropout=True),
            dropout="classifier_dropout",
            default_dropout=0.0,
        ),
        "ForQuestionAnswering": Head("qa_outputs"),
        "ForMaskedLM": Head(
            "lm_head",
            tied_bias="final_logits_bias",
            tied_bias_axes=2,
            tied_bias_may_be_absent=True,
            class_suffix="ForConditionalGeneration",
        ),
    },
    tiny={"num_decoder_layers": 1},
)
BartBackbone.family = FAMILY
