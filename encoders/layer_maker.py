"""A mixin that makes the parts of layers and models."""

from __future__ import annotations

import keras

from encoder_zoo.common.configuration import argument_names
from encoder_zoo.encoders.kernels.layers import Dense, Dropout, LayerNorm
from encoder_zoo.encoders.layers import INITIALIZER_RANGE, initializer


class MakesLayers:
    """Mixin of layers and models: makes their parts with their own settings.

    It reads the attributes `hidden_dim`, `use_bias` and `layer_norm_epsilon`.
    """

    dtype_policy: keras.DTypePolicy

    def make_dense(
        self,
        name: str,
        units: int,
        input_dim: int | None = None,
        stddev: float = INITIALIZER_RANGE,
        activation: str | None = None,
        use_bias: bool | None = None,
    ) -> Dense:
        """Return a built dense layer.

        Args:
            name: of the layer.
            units: width of its output.
            input_dim: width of its input; None: `hidden_dim`.
            stddev: of its initial weights, see `initializer`.
            activation: of its output, by Keras's name.
            use_bias: whether it has a bias; None: as the attribute says.
        """
        layer = Dense(
            units,
            activation,
            use_bias=self.use_bias if use_bias is None else use_bias,
            kernel_initializer=initializer(stddev),
            name=name,
            dtype=self.dtype_policy,
        )
        layer.build((None, input_dim or self.hidden_dim))
        return layer

    def make_norm(self, name: str) -> LayerNorm:
        """Return a built LayerNorm over `hidden_dim` numbers."""
        layer = LayerNorm(
            epsilon=self.layer_norm_epsilon,
            center=self.use_bias,
            name=name,
            dtype=self.dtype_policy,
        )
        layer.build((None, self.hidden_dim))
        return layer

    def make_table(
        self, name: str, rows: int, kind: type[keras.layers.Embedding] = keras.layers.Embedding
    ) -> keras.layers.Embedding | None:
        """Return a built table of `rows` vectors; None for 0 rows."""
        if not rows:
            return None
        table = kind(
            rows,
            self.hidden_dim,
            embeddings_initializer=initializer(),
            name=name,
            dtype=self.dtype_policy,
        )
        table.build((None, None))
        return table

    def make_dropout(self, rate: float) -> Dropout:
        """Return a dropout layer."""
        return Dropout(rate, dtype=self.dtype_policy)

    def make_layer(
        self, kind: type[keras.layers.Layer], name: str, **arguments
    ) -> keras.layers.Layer:
        """Return a layer whose arguments are the attributes of the same names.

        Args:
            kind: class of the layer, a `ConfigFromSignature`.
            name: of the layer.
            **arguments: others, or other values.
        """
        own = {n: getattr(self, n) for n in argument_names(kind) if hasattr(self, n)}
        return kind(**{**own, **arguments}, name=name, dtype=self.dtype_policy)
