"""ESM-2: pre-norm blocks with rotary positions, trained on protein sequences.

Comments use these letters for shapes: B batch, L sequence, D hidden, H heads, N blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.validation import NonNegativeInt, one_of, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.families.bert import CONFIG_KEYS, TENSORS
from encoder_zoo.encoders.families.eurobert import TokenEmbeddings
from encoder_zoo.encoders.families.roberta import make_heads
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.layers import NO_VALUE, LayerNorm, make_initializer
from encoder_zoo.encoders.positions import compute_text_lengths, compute_text_positions
from encoder_zoo.encoders.pre_norm_block import PreNormBlock
from encoder_zoo.encoders.tokenizers import ESM_RESIDUES

KEPT_IN_TRAINING = 1 - 0.15 * 0.8  # fraction of tokens that were not masked in pretraining
ROPE_THETA = 10_000.0  # base of the rotary positions


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EsmEmbeddings(TokenEmbeddings):
    """Compute token embeddings, (B, L, D). Embeddings of masks and padding are zero.

    All other embeddings are scaled such that their sum does not depend on the number of masks, as
    with dropout. Without masks, the factor is 0.88, the share of tokens that were kept in training.

    Args:
        token_dropout: Boolean. Whether masks have zero embeddings, and all other embeddings are
            scaled. If False, masks have a learned embedding. Defaults to True.
        mask_token_id: Non-negative integer. Id of the mask token. Defaults to 32.
        **kwargs: Additional arguments for `Embeddings`.

    Source: Lin et al. 2023, Evolutionary-scale prediction of atomic-level protein structure with a
        language model, the released code.

    Example:
        >>> import numpy as np
        >>> layer = EsmEmbeddings(vocabulary_size=10, hidden_dim=1, mask_token_id=9)
        >>> layer.build()
        >>> layer.token_embedding.set_weights([np.ones((10, 1))])
        >>> x = layer(np.array([[5, 6, 7, 8], [5, 9, 7, 8]]), padding_mask=np.ones((2, 4)))
        >>> print(np.array(x)[..., 0].round(2))
        [[0.88 0.88 0.88 0.88]
         [1.17 0.   1.17 1.17]]
    """

    def __init__(self, *args, token_dropout: bool = True, mask_token_id: int = 32, **kwargs):
        super().__init__(*args, **kwargs)
        self.token_dropout = token_dropout
        self.mask_token_id = mask_token_id

    def call(self, token_ids, segment_ids=None, padding_mask=None, text_starts=None, training=None):
        x = self.token_embedding(token_ids)
        real = ops.cast(padding_mask, "bool")
        scales = ops.cast(real, "float32")  # (B, L)
        if self.token_dropout:
            masked = real & (token_ids == self.mask_token_id)
            lengths, masks = (compute_text_lengths(part, text_starts) for part in (real, masked))
            kept = ops.maximum(lengths - masks, 1)  # (B, 1 or L)
            factors = KEPT_IN_TRAINING * ops.cast(lengths, "float32") / ops.cast(kept, "float32")
            scales = ops.where(masked, 0.0, scales * factors)
        return x * ops.cast(ops.expand_dims(scales, -1), x.dtype)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EsmBackbone(Backbone):
    """ESM-2 encoder for protein sequences. See `Backbone` for inputs and outputs.

    Each token is a residue. The model uses rotary positions and has no segments. The frequencies of
    the positions are weights, because released checkpoints contain rounded values. These weights
    and the weights of `predict_contacts` are not trained.

    Args:
        token_dropout: Boolean. Whether masks have an embedding of zeros, and all other embeddings
            are scaled. See `EsmEmbeddings`. Defaults to True.
        mask_token_id: Non-negative integer. Id of the mask token. Defaults to 32.
        **kwargs: Additional arguments for `Backbone`.

    Source: Lin et al. 2023, Evolutionary-scale prediction of atomic-level protein structure with a
        language model, supplementary section A.1.1.

    Example:
        >>> import numpy as np
        >>> backbone = EsmBackbone(
        ...     vocabulary_size=33, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16,
        ...     pooler=False,
        ... )
        >>> outputs = backbone({"token_ids": np.array([[0, 20, 15, 2]])})
        >>> {name: keras.ops.shape(value) for name, value in outputs.items()}
        {'sequence_output': (1, 4, 8)}
    """

    defaults: ClassVar = {
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "layer_norm_epsilon": 1e-5,
        "max_sequence_length": 1026,
        "num_segments": 0,
    }

    @validate_arguments
    def __init__(
        self, *args, token_dropout: bool = True, mask_token_id: NonNegativeInt = 32, **kwargs
    ):
        super().__init__(*args, **kwargs)
        self.token_dropout = token_dropout
        self.mask_token_id = mask_token_id

    def build(self, input_shape=None):
        super().build(input_shape)
        width, probabilities = self.hidden_dim // self.num_heads, self.num_layers * self.num_heads
        frequencies = ROPE_THETA ** (-np.arange(0, width, 2) / width)
        self.inverse_frequencies = self._add_fixed_weight(
            "inverse_frequencies", (width // 2,), lambda *_, **__: frequencies
        )
        self.contact_weight = self._add_fixed_weight(
            "contact_weight", (1, probabilities), make_initializer()
        )
        self.contact_bias = self._add_fixed_weight("contact_bias", (1,), "zeros")

    def _add_fixed_weight(self, name: str, shape: tuple, initializer) -> keras.Variable:
        """Add a float32 weight that is not trainable."""
        return self.add_weight(
            shape, initializer, dtype="float32", trainable=False, autocast=False, name=name
        )

    def make_embeddings(self) -> EsmEmbeddings:
        return super().make_embeddings(EsmEmbeddings, max_positions=0)

    def make_block(self, i: int) -> PreNormBlock:
        return super().make_block(i, PreNormBlock, rotary=True)

    def make_final_layer(self) -> LayerNorm:
        return self.make_norm("norm")

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        length = ops.shape(inputs["token_ids"])[1]
        positions = ops.cast(compute_text_positions(inputs.get("text_starts"), length), "float32")
        angles = positions[:, :, None, None] * self.inverse_frequencies  # (1 or B, L, 1, D/2H)
        rotation = ops.cos(angles), ops.sin(angles)
        return [{**context, "rotation": rotation} for context in super().block_contexts(inputs)]

    def predict_contacts(self, inputs: Mapping) -> keras.KerasTensor:
        """Predict contacts between residues in the folded protein.

        This is a logistic regression on the attention probabilities of all heads.

        Args:
            inputs: Dictionary of tensors. Each sequence has a start and an end token.

        Returns:
            Float tensor of shape (B, L - 2, L - 2), without the start and the end token. It
            contains the probability that two residues are in contact. The values of padding are
            undefined.

        Source: Rao et al. 2021, Transformer protein language models are unsupervised structure
            learners, section 3.3.

        Example:
            >>> import numpy as np
            >>> backbone = EsmBackbone(33, 1, num_heads=2, hidden_dim=8, intermediate_dim=16)
            >>> contacts = backbone.predict_contacts({"token_ids": np.array([[0, 20, 15, 5, 2]])})
            >>> keras.ops.shape(contacts)
            (1, 3, 3)
        """
        probabilities = ops.cast(self.attention_probabilities(inputs), "float32")
        batch, length = ops.shape(inputs["token_ids"])
        real = ops.cast(add_padding_mask(inputs)["padding_mask"], "float32")
        residues = real[:, 2:]  # tokens before another token, without the start token
        pairs = residues[:, None, :, None] * residues[:, None, None, :]
        x = ops.reshape(probabilities, (batch, -1, length, length))  # (B, N H, L, L)
        x = x[:, :, 1:-1, 1:-1] * pairs
        x = x + ops.transpose(x, (0, 1, 3, 2))
        rows = ops.sum(x, axis=-1, keepdims=True)  # (B, N H, L - 2, 1)
        total = ops.maximum(ops.sum(rows, axis=-2, keepdims=True), keras.config.epsilon())
        x = x - rows * ops.transpose(rows, (0, 1, 3, 2)) / total  # average product correction
        return ops.sigmoid(ops.einsum("bcij,c->bij", x, self.contact_weight[0]) + self.contact_bias)


def read_config(config: Mapping) -> dict:
    """Add missing fields to a configuration, using the default values from transformers.

    Args:
        config: Dictionary with the contents of config.json.

    Example:
        >>> read_config({"token_dropout": True})["position_embedding_type"]
        'absolute'
    """
    missing = {"layer_norm_eps": 1e-12, "position_embedding_type": "absolute"}
    return {**missing, "token_dropout": False, **config}


_ROTATION = "rotary_embeddings.inv_freq"

FAMILY = Family(
    name="esm",
    backbone=EsmBackbone,
    class_prefix="Esm",
    prefix="esm",
    tensors={
        "embeddings.token_embedding": "embeddings.word_embeddings",
        **{ours: theirs for ours, theirs in TENSORS.items() if ours.startswith("blocks.")},
        "blocks.{}.attention_norm": "encoder.layer.{}.attention.LayerNorm",
        "blocks.{}.output_norm": "encoder.layer.{}.LayerNorm",
        "final_layer": "encoder.emb_layer_norm_after",
        "inverse_frequencies": _ROTATION,
        "contact_weight": "contact_head.regression.weight",
        "contact_bias": "contact_head.regression.bias",
    },
    # Older versions of transformers store the frequencies for each of up to 48 blocks, and version
    # 5 stores them once with an asterisk.
    copies={f"encoder.layer.{i}.attention.self.{_ROTATION}": _ROTATION for i in (*range(48), "*")},
    # A table that released checkpoints contain although the positions are rotary.
    pretraining_only=("embeddings.position_embeddings.weight",),
    pooler="pooler.dense",
    config_keys={
        **{ours: theirs for ours, theirs in CONFIG_KEYS.items() if ours != "activation"},
        "token_dropout": "token_dropout",
        "mask_token_id": "mask_token_id",
    },
    read_config=read_config,
    rules={
        "position_embedding_type": one_of("rotary"),
        "emb_layer_norm_before": NO_VALUE,
        "is_folding_model": NO_VALUE,
        "rope_theta": one_of(None, ROPE_THETA),
    },
    constants={
        "position_embedding_type": "rotary",
        "emb_layer_norm_before": False,
        "rope_theta": ROPE_THETA,
        "initializer_range": 0.02,
        "pad_token_id": 1,  # required by transformers, also without a tokenizer
    },
    tokenizer=ESM_RESIDUES,
    heads=make_heads("hidden_dropout_prob"),
    tiny={"mask_token_id": 29},
)
EsmBackbone.family = FAMILY
