"""XLNet: relative attention as in Transformer-XL, with two streams.

Comments use these letters for shapes: B batch, L sequence, D hidden, H heads, d head size.
"""

from collections.abc import Mapping
from typing import ClassVar

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import Rate, one_of, validate_arguments
from encoder_zoo.encoders.attention_masks import convert_mask
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.core import Embeddings, EncoderBlock
from encoder_zoo.encoders.families import electra
from encoder_zoo.encoders.family import BEAM_RULES, BeamHead, Family, Head, remove_head_width
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.kernels.attention import FastAttention
from encoder_zoo.encoders.layers import (
    NO_VALUE,
    Activation,
    Dropout,
    QuantizableMixin,
    ReversibleEmbedding,
    make_initializer,
)
from encoder_zoo.encoders.low_rank import LowRankMixin
from encoder_zoo.encoders.positions import align_distance_scores, take_last_tokens
from encoder_zoo.encoders.tokenizers import XLNET_SENTENCEPIECE


def compute_distance_encodings(length: int, hidden_dim: int) -> keras.KerasTensor:
    """Compute sinusoidal encodings of the distances L - 1, L - 2, ..., -L.

    Args:
        length: Positive integer. The sequence length L.
        hidden_dim: Positive integer. The encoding width D.

    Returns:
        Float32 tensor of shape (2 L, D).

    Source: Dai et al. 2019, Transformer-XL, section 3.3; Vaswani et al. 2017, section 3.5.

    Example:
        >>> compute_distance_encodings(2, 2).numpy().round(2).tolist()[1:3]  # of 0 and of -1
        [[0.0, 1.0], [-0.8399999737739563, 0.5400000214576721]]
    """
    distances = length - 1 - ops.arange(2 * length, dtype="int32")
    speeds = 10_000.0 ** (-ops.arange(0, hidden_dim, 2, dtype="float32") / hidden_dim)
    angles = ops.expand_dims(ops.cast(distances, "float32"), 1) * speeds
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EinsumDense(LowRankMixin, QuantizableMixin, keras.layers.EinsumDense):
    """Keras `EinsumDense` with low-rank updates. Its class name is a path in `.keras` files."""


@keras.saving.register_keras_serializable(package="encoder_zoo")
class JoinedHeads(LowRankMixin, keras.layers.EinsumDense):
    """`EinsumDense` with a kernel (D, H, d) for heads that are concatenated, (N, H d).

    Example:
        >>> import numpy as np
        >>> layer = JoinedHeads("nhd,ohd->no", output_shape=(6,))
        >>> layer.build((None, 2, 3))
        >>> keras.ops.shape(layer(np.ones((5, 6), "float32"))), tuple(layer.kernel.shape)
        ((5, 6), (6, 2, 3))
    """

    def build(self, input_shape):
        super().build(input_shape)
        self.input_spec = None  # it expects heads on a separate axis

    def call(self, inputs, training=None):
        return super().call(ops.reshape(inputs, (-1, *self.kernel.shape[1:])), training)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RelativeTerms(ConfigFromSignature, keras.layers.Layer):
    """Learned vectors to add to queries, before computing attention scores.

    Args:
        heads: Tuple of integers (H, d). The number of heads and the head size.

    Attributes:
        content: Weight of shape (H, d). Added to the queries for the contents of tokens.
        distance: Weight of shape (H, d). Added to the queries for distances.
        segment: Weight of shape (H, d). Added to the queries for segments.
        embeddings: Weight of shape (2, H, d). Keys for tokens of the same and of other segments.

    Source: Dai et al. 2019, Transformer-XL, section 3.3; Yang et al. 2019, XLNet, section 2.5.
    """

    without_weight_decay = ("content", "distance", "segment")  # they are biases

    def __init__(self, heads: tuple[int, int], **kwargs):
        super().__init__(**kwargs)
        self.heads = heads

    def build(self, input_shape=None):
        shapes = dict.fromkeys(("content", "distance", "segment"), tuple(self.heads))
        for name, shape in {**shapes, "embeddings": (2, *self.heads)}.items():
            setattr(
                self, name, self.add_weight(shape=shape, initializer=make_initializer(), name=name)
            )


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RelativeAttention(FastAttention):
    """`SelfAttention` with additional scores for distances and segments.

    Args:
        dropout: Float between 0 and 1. The dropout rate for the distance encodings. Defaults to
            0.0.
        **kwargs: Additional arguments for `SelfAttention`.

    Call arguments:
        content: Tensor of shape (B, L, D). The input of keys and values. Defaults to None, the
            input `x`.
        distances: Tensor of shape (2 L, D). See `compute_distance_encodings`.
        other_segment: Boolean tensor of shape (B, L, L). Whether two tokens are in different
            segments. Defaults to None, which means that all tokens are in one segment. In this case
            the segment term is skipped, because it does not change the probabilities.

    Source: Yang et al. 2019, XLNet, sections 2.4 and 2.5. Dai et al. 2019, Transformer-XL, 3.3.

    Example:
        >>> import numpy as np
        >>> attention = RelativeAttention(hidden_dim=8, num_heads=2)
        >>> x = np.zeros((1, 3, 8), "float32")
        >>> keras.ops.shape(attention(x, distances=compute_distance_encodings(3, 8)))
        (1, 3, 8)
    """

    def __init__(self, *args, dropout: float = 0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.dropout = dropout

    def build(self, input_shape=None):
        heads = (self.num_heads, self.hidden_dim // self.num_heads)
        options = {"kernel_initializer": make_initializer(), "dtype": self.dtype_policy}
        for part in ("query", "key", "value", "distance"):  # kernels are (D, H, d), without bias
            dense = EinsumDense("nc,chd->nhd", heads, name=part, **options)
            dense.build((None, self.hidden_dim))
            setattr(self, f"{part}_dense", dense)
        width = (self.hidden_dim,)
        self.output_dense = JoinedHeads("nhd,chd->nc", width, name="output", **options)
        self.output_dense.build((None, *heads))
        self.terms = RelativeTerms(heads, name="terms", dtype=self.dtype_policy)
        self.terms.build()
        self.dropout_layer = self.make_dropout(self.attention_dropout)
        self.distance_dropout_layer = self.make_dropout(self.dropout)

    def project(self, x, content=None, **context):
        return self.project_inputs(x, x if content is None else content)

    def scores(self, query, key, training=None, *, distances, other_segment=None, content=None):
        whole, distance, segment = (
            query + ops.cast(term, query.dtype)[:, None]  # (B, H, Q, d) + (H, 1, d)
            for term in (self.terms.content, self.terms.distance, self.terms.segment)
        )
        scale = query.shape[-1] ** -0.5
        scores = super().scores(whole, key, training=training)  # (B, H, L, L)
        table = self.distance_dropout_layer(ops.cast(distances, query.dtype), training=training)
        keys = ops.transpose(self.distance_dense(table), (1, 2, 0))  # (H, d, 2 L)
        scores = scores + align_distance_scores(ops.matmul(distance * scale, keys))
        if other_segment is None:
            return scores
        keys = ops.transpose(ops.cast(self.terms.embeddings, query.dtype), (1, 2, 0))  # (H, d, 2)
        same, other = ops.split(ops.matmul(segment * scale, keys), 2, axis=-1)  # (B, H, L, 1)
        return scores + ops.where(ops.expand_dims(other_segment, 1), other, same)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class XLNetBlock(EncoderBlock):
    """`EncoderBlock` with relative attention and dropout inside the feed-forward network.

    Source: Yang et al. 2019, XLNet, section 2.4.

    Example:
        >>> import numpy as np
        >>> block = XLNetBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> x = np.zeros((1, 3, 8), "float32")
        >>> keras.ops.shape(block(x, distances=compute_distance_encodings(3, 8)))
        (1, 3, 8)
    """

    attention_class = RelativeAttention

    def build(self, input_shape=None):
        super().build(input_shape)
        self.inner_dropout_layer = self.make_dropout(self.dropout)

    def compute_intermediate(self, x, training=None):
        return self.inner_dropout_layer(
            super().compute_intermediate(x, training), training=training
        )


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TokenDropout(Dropout):
    """`Dropout` for tensors of shape (B, L, D).

    Example:
        >>> import numpy as np
        >>> keras.ops.shape(TokenDropout(0.5)(np.ones((1, 3, 8), "float32"), training=True))
        (1, 3, 8)
    """

    def call(self, inputs, training=False):
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))
        return ops.reshape(super().call(rows, training=training), ops.shape(inputs))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class XLNetEmbeddings(Embeddings):
    """Token embeddings without LayerNorm. A separate embedding is used for tokens to predict.

    Attributes:
        mask_embedding: Weight of shape (1, 1, D). It replaces the tokens to predict in pretraining.

    Source: Yang et al. 2019, XLNet, section 2.3.

    Example:
        >>> import numpy as np
        >>> layer = XLNetEmbeddings(10, 4)
        >>> keras.ops.shape(layer(np.array([[5, 6, 1]])))
        (1, 3, 4)
    """

    def build(self, input_shape=None):
        kind = ReversibleEmbedding
        self.token_embedding = self.make_table("token_embedding", self.vocabulary_size, kind)
        mask_embedding = keras.Variable(
            make_initializer(), (1, 1, self.hidden_dim), self.variable_dtype, name="mask_embedding"
        )
        # TensorFlow needs a variable that was created as trainable, because `MaskedLM` trains it.
        mask_embedding.trainable = False
        self.mask_embedding = mask_embedding
        self.dropout_layer = TokenDropout(self.dropout, dtype=self.dtype_policy)

    def call(self, token_ids, segment_ids=None, padding_mask=None, text_starts=None, training=None):
        return self.dropout_layer(self.token_embedding(token_ids), training=training)

    def make_queries(self, x, training=None):
        """Compute the input for the query stream, (B, L, D)."""
        queries = ops.broadcast_to(ops.cast(self.mask_embedding, x.dtype), ops.shape(x))
        return self.dropout_layer(queries, training=training)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class XLNetBackbone(Backbone):
    """XLNet encoder. See `Backbone` for inputs and outputs.

    The value of "sequence_output" is the output of the content stream. The method
    `compute_query_stream` also runs the query stream.

    Positions are relative, so padding can be on either side, and texts can be longer than in
    pretraining. Segment ids only determine whether two tokens are in the same segment. The model
    has no pooler. Classifiers read the last token that is not padding, <cls>.

    Args:
        attention_dropout: Float between 0 and 1. The dropout rate for the attention probabilities.
            Defaults to None, the value of `dropout`, as in all checkpoints.
        summary_activation: String. The activation of the dense layer before the output layer of
            `SequenceClassifier` and `MultipleChoice`. Defaults to "tanh".
        **kwargs: Additional arguments for `Backbone`.

    Source: Yang et al. 2019, XLNet: Generalized Autoregressive Pretraining for Language
    Understanding, sections 2.3 to 2.5.

    Example:
        >>> import numpy as np
        >>> backbone = XLNetBackbone(
        ...     vocabulary_size=30, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[7, 8, 4, 3]]),
        ...                     "segment_ids": np.array([[0, 0, 0, 2]])})
        >>> {name: keras.ops.shape(value) for name, value in outputs.items()}
        {'sequence_output': (1, 4, 8)}
    """

    # Separate segments are used for two texts, for <cls> and (in transformers) for padding.
    defaults: ClassVar = {"num_segments": 4, "pooler": False}
    predicts_in_order = True

    @validate_arguments
    def __init__(
        self,
        *args,
        attention_dropout: Rate | None = None,
        summary_activation: Activation = "tanh",
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.attention_dropout = attention_dropout
        self.summary_activation = summary_activation

    def make_embeddings(self) -> XLNetEmbeddings:
        return super().make_embeddings(XLNetEmbeddings, max_positions=0, num_segments=0)

    def make_block(self, i: int) -> XLNetBlock:
        own = self.attention_dropout
        own = self.dropout if own is None else own
        return super().make_block(i, XLNetBlock, attention_dropout=own)

    def make_final_layer(self) -> TokenDropout:
        return TokenDropout(self.dropout, dtype=self.dtype_policy)

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        segments, length = inputs.get("segment_ids"), ops.shape(inputs["token_ids"])[1]
        context = {"distances": compute_distance_encodings(length, self.hidden_dim)}
        if segments is not None:
            segments = ops.convert_to_tensor(segments)
            pairs = ops.expand_dims(segments, 2), ops.expand_dims(segments, 1)
            context["other_segment"] = ops.not_equal(*pairs)
        return [{**given, **context} for given in super().block_contexts(inputs)]

    @validate_arguments
    def compute_query_stream(self, inputs: Mapping, training: bool | None = None):
        """Compute the output of the query stream, in which no token can attend to itself.

        Args:
            inputs: Dictionary of tensors, the inputs of the backbone. The integer tensor
                "prediction_order" of shape (B, L) is optional. Tokens with the value 0 are visible
                to all tokens. Other tokens are only visible to tokens with a larger value. Without
                this input, each token is predicted from all other tokens of the content stream.
            training: Optional boolean. Whether to apply dropout.

        Returns:
            Tensor of shape (B, L, D).

        Source: Yang et al. 2019, XLNet, section 2.3 and figure 1.

        Example:
            >>> import numpy as np
            >>> backbone = XLNetBackbone(
            ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
            ... )
            >>> inputs = {"token_ids": np.array([[7, 8, 9, 4, 3]]),
            ...           "prediction_order": np.array([[0, 2, 1, 0, 0]])}
            >>> keras.ops.shape(backbone.compute_query_stream(inputs))
            (1, 5, 8)
        """
        inputs = add_padding_mask(inputs)
        x = self._embed(inputs, training)  # content stream (B, L, D)
        y = self.embeddings.make_queries(x, training)  # query stream (B, L, D)
        of_contents, of_queries = self._make_order_masks(inputs)
        for block, context in zip(self.blocks, self.block_contexts(inputs), strict=True):
            query = {**context, "attention_mask": of_queries, "content": x}
            y = self._run([block], [query], y, training)[0][-1]
            x = self._run([block], [{**context, "attention_mask": of_contents}], x, training)[0][-1]
        return self.final_layer(y, training=training)

    def _make_order_masks(self, inputs: Mapping) -> tuple:
        """Return boolean masks for the content stream and the query stream, both (B, 1, L, L)."""
        mask, order = convert_mask(self.attention_mask(inputs)), inputs.get("prediction_order")
        numbers = ops.arange(ops.shape(inputs["token_ids"])[1])
        itself = numbers[:, None] == numbers
        if order is None:
            return mask, mask & ~itself
        order = ops.convert_to_tensor(order)
        of_queries, of_contents = order[:, None, :, None], order[:, None, None, :]
        read = (of_queries > of_contents) | (of_contents == 0)  # (B, 1, L, L)
        return mask & (read | itself), mask & read

    def text_vectors(self, sequence_output, inputs: Mapping):
        """Return the output for the last token that is not padding, (B, D)."""
        return take_last_tokens(sequence_output, inputs.get("padding_mask"))


def read_config(config: Mapping) -> dict:
    """Remove a redundant `d_head`, and convert an empty `summary_activation` to "linear".

    Args:
        config: Dictionary with the contents of config.json.

    Example:
        >>> read_config({"d_model": 8, "n_head": 2, "d_head": 4})
        {'d_model': 8, 'n_head': 2}
    """
    config = electra.normalize_summary(config)
    remove_head_width(config, "d_head", "d_model", "n_head")
    return config


_SUMMARY = electra.make_summary_head("logits_proj")
_BLOCK = "layer.{}"
_ATTENTION = f"{_BLOCK}.rel_attn"
FAMILY = Family(
    name="xlnet",
    backbone=XLNetBackbone,
    class_prefix="XLNet",
    prefix="transformer",
    tensors={
        "embeddings.token_embedding": "word_embedding",
        "embeddings.mask_embedding": "mask_emb",
        "blocks.{}.output_dense": f"{_BLOCK}.ff.layer_2",
        "blocks.{}.intermediate_dense": f"{_BLOCK}.ff.layer_1",
        "blocks.{}.output_norm": f"{_BLOCK}.ff.layer_norm",
        "blocks.{}.attention.query_dense.kernel": f"{_ATTENTION}.q",
        "blocks.{}.attention.key_dense.kernel": f"{_ATTENTION}.k",
        "blocks.{}.attention.value_dense.kernel": f"{_ATTENTION}.v",
        "blocks.{}.attention.output_dense.kernel": f"{_ATTENTION}.o",
        "blocks.{}.attention.distance_dense.kernel": f"{_ATTENTION}.r",
        "blocks.{}.attention.terms.content": f"{_ATTENTION}.r_w_bias",
        "blocks.{}.attention.terms.distance": f"{_ATTENTION}.r_r_bias",
        "blocks.{}.attention.terms.segment": f"{_ATTENTION}.r_s_bias",
        "blocks.{}.attention.terms.embeddings": f"{_ATTENTION}.seg_embed",
        "blocks.{}.attention_norm": f"{_ATTENTION}.layer_norm",
    },
    config_keys={
        "vocabulary_size": "vocab_size",
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "hidden_dim": "d_model",
        "intermediate_dim": "d_inner",
        "dropout": "dropout",
        "activation": "ff_activation",
        "layer_norm_epsilon": "layer_norm_eps",
        "summary_activation": "summary_activation",
        "max_sequence_length": "max_sequence_length",  # transformers ignores this field
    },
    key_aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "n_token": "vocab_size",
    },
    read_config=read_config,
    rules={
        "attn_type": one_of(None, "bi"),
        "bi_data": one_of(None, False),
        "clamp_len": one_of(None, -1),
        "same_length": one_of(None, False),
        "untie_r": one_of(None, True),
        "d_head": NO_VALUE,
        **BEAM_RULES,
        **electra.make_summary_rules("last"),
    },
    constants={
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "same_length": False,
        "untie_r": True,
        **electra.make_summary_constants("last"),
        "initializer_range": 0.02,
    },
    tokenizer=XLNET_SENTENCEPIECE,
    uses_segments=True,
    # Yang et al. 2019, appendix A.4: 2e-5 or 3e-5.
    learning_rate=2e-5,
    heads={
        "ForSequenceClassification": _SUMMARY,
        "ForTokenClassification": Head("classifier"),
        "ForQuestionAnswering": Head(
            "qa_outputs",
            beam=BeamHead("start_logits.dense", end="end_logits", answer_class="answer_class"),
            class_suffix="ForQuestionAnsweringSimple",
        ),
        "ForMultipleChoice": _SUMMARY,
        "ForMaskedLM": Head("lm_loss", tied_bias="lm_loss.bias", class_suffix="LMHeadModel"),
    },
)
XLNetBackbone.family = FAMILY
