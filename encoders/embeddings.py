"""The embeddings of tokens, positions and segments.

Comment letters: B batch, L sequence, D hidden.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.encoders.layers import Dropout, LayerNorm, initializer
from encoder_zoo.encoders.positions import positions_in_texts


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Embeddings(ConfigFromSignature, keras.layers.Layer):
    """Sum of token, position and segment embeddings, then LayerNorm, dropout and a projection.

    Args:
        vocabulary_size: number of token ids.
        hidden_dim: width of the embeddings.
        max_positions: rows of the position table; 0 for a family that has none.
        num_segments: rows of the segment table; 0 for a family that has none. With 1 every token
            is in the only segment and `segment_ids` are not read.
        dropout: share of the normalised sum dropped in training.
        layer_norm_epsilon: added to the variance.
        output_dim: D, width of the outputs, which a dense layer makes of the embeddings'; None:
            there is no such layer, and D is `hidden_dim`.

    Call arguments:
        token_ids: (B, L) int.
        segment_ids: (B, L) int, or None for segment 0 throughout.
        padding_mask: (B, L); used by families whose positions skip the padding.
        text_starts: (B, K) int, for packed rows, see `text_numbers`: positions count anew in
            every text.

    Returns:
        (B, L, D).

    Source: Devlin et al. 2019, BERT, section 3 and figure 2; the projection is that of Lan et al.
    2020, ALBERT, section 3.1, and of ELECTRA.

    Example:
        >>> import numpy as np
        >>> layer = Embeddings(vocabulary_size=10, hidden_dim=4, max_positions=8, output_dim=6)
        >>> keras.ops.shape(layer(np.array([[1, 2, 3]])))
        (1, 3, 6)
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        max_positions: int = 512,
        num_segments: int = 2,
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-12,
        output_dim: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.max_positions = max_positions
        self.num_segments = num_segments
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.output_dim = output_dim

    def share_tables(self, other: Embeddings) -> None:
        """Takes the tables and the LayerNorm of other embeddings instead of having its own.

        To be called before it is built; the projection stays its own.
        """
        for name in ("token_embedding", "position_embedding", "segment_embedding", "norm"):
            setattr(self, name, getattr(other, name))

    def build(self, input_shape=None):
        if not hasattr(self, "token_embedding"):
            self._make_tables()
        self.dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy)
        self.projection = None
        if self.output_dim is not None:
            self.projection = keras.layers.Dense(
                self.output_dim,
                kernel_initializer=initializer(),
                name="projection",
                dtype=self.dtype_policy,
            )
            self.projection.build((None, self.hidden_dim))

    @property
    def output_shape(self) -> tuple[None, None, int]:
        """(B, L, D), for `summary()`."""
        return (None, None, self.output_dim or self.hidden_dim)

    def _make_tables(self) -> None:
        # Reversible: a masked language model projects back onto the same table.
        self.token_embedding = keras.layers.ReversibleEmbedding(
            self.vocabulary_size,
            self.hidden_dim,
            embeddings_initializer=initializer(),
            name="token_embedding",
            dtype=self.dtype_policy,
        )
        self.token_embedding.build((None, None))
        self.position_embedding = self._table(self.max_positions, "position_embedding")
        self.segment_embedding = self._table(self.num_segments, "segment_embedding")
        self.norm = self.make_norm()
        self.norm.build((None, self.hidden_dim))

    def make_norm(self) -> LayerNorm:
        """The LayerNorm of the sum, which a family may replace by one of its own."""
        return LayerNorm(epsilon=self.layer_norm_epsilon, name="norm", dtype=self.dtype_policy)

    def _table(self, rows: int, name: str) -> keras.layers.Embedding | None:
        if not rows:
            return None
        table = keras.layers.Embedding(
            rows, self.hidden_dim, initializer(), name=name, dtype=self.dtype_policy
        )
        table.build((None, None))
        return table

    def call(self, token_ids, segment_ids=None, padding_mask=None, text_starts=None, training=None):
        self._check_length(token_ids)
        batch, length = ops.shape(token_ids)
        x = self.token_embedding(token_ids)  # (B, L, hidden_dim)
        if self.position_embedding is not None:
            x = x + self.position_embedding(self.position_ids(token_ids, padding_mask, text_starts))
        if self.segment_embedding is not None:
            if segment_ids is None or self.num_segments == 1:
                segment_ids = ops.zeros((1, 1), "int32")
            x = x + self.segment_embedding(segment_ids)
        x = self.norm(ops.reshape(x, (-1, self.hidden_dim)), training=training)
        x = self.dropout_layer(x, training=training)
        if self.projection is not None:
            x = self.projection(x)
        return ops.reshape(x, (batch, length, x.shape[-1]))

    def position_ids(self, token_ids, padding_mask=None, text_starts=None):
        """(1 or B, L): positions count from 0."""
        length = ops.shape(token_ids)[1]
        if text_starts is not None:
            return positions_in_texts(text_starts, length)
        return ops.arange(length)[None, :]

    @property
    def max_sequence_length(self) -> int | None:
        """The most tokens that the position table serves; None without one."""
        return self.max_positions or None

    def _check_length(self, token_ids):
        length, most = token_ids.shape[1], self.max_sequence_length
        # JAX has symbols for lengths that are not known yet.
        if most and isinstance(length, int) and length > most:
            raise ValueError(
                f"Received a sequence of {length} tokens, but there are positions for "
                f"{most}. Truncate the input, for example with the "
                "preprocessor's `sequence_length`."
            )
