"""The embeddings. Comment letters: B batch, L sequence, D hidden."""

import keras
from keras import ops

from encoder_zoo.encoders.base_layers import EmbeddingsBase
from encoder_zoo.encoders.positions import positions_in_texts


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Embeddings(EmbeddingsBase):
    """Return LayerNorm(token + position + segment), (B, L, D); arguments: `EmbeddingsBase`.

    Devlin et al. 2019, BERT, section 3 and figure 2.
    """

    def build(self, input_shape=None):
        if not hasattr(self, "token_embedding"):  # else these are another's, see `share_tables`
            kind = keras.layers.ReversibleEmbedding  # masked language models multiply by it again
            self.token_embedding = self.make_table("token_embedding", self.vocabulary_size, kind)
            self.position_embedding = self.make_table("position_embedding", self.max_positions)
            self.segment_embedding = self.make_table("segment_embedding", self.num_segments)
            self.norm = self.make_norm("norm")
        self.dropout_layer = self.make_dropout(self.dropout)
        # To another width: Lan et al. 2020, ALBERT, section 3.1.
        self.projection = self.output_dim and self.make_dense("projection", self.output_dim)

    def call(self, token_ids, segment_ids=None, padding_mask=None, text_starts=None, training=None):
        self.check_length(token_ids)
        batch, length = ops.shape(token_ids)
        x = self.token_embedding(token_ids)  # (B, L, D)
        if self.position_embedding is not None:
            x = x + self.position_embedding(self.position_ids(token_ids, padding_mask, text_starts))
        if self.segment_embedding is not None:
            if segment_ids is None or self.num_segments == 1:
                segment_ids = ops.zeros((1, 1), "int32")
            x = x + self.segment_embedding(segment_ids)
        x = self.norm(ops.reshape(x, (-1, self.hidden_dim)), training=training)  # (B L, D)
        x = self.dropout_layer(x, training=training)
        x = x if self.projection is None else self.projection(x)
        return ops.reshape(x, (batch, length, x.shape[-1]))

    def position_ids(self, token_ids, padding_mask=None, text_starts=None):
        """Return 0, 1, 2, ..., (1 or B, L); in packed examples they restart in every text."""
        return positions_in_texts(text_starts, ops.shape(token_ids)[1])
