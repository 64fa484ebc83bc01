"""Layers of `EntityExtractor` that map token embeddings to span logits, with a loss and a metric.

Comments use these letters for shapes: B batch, L tokens, W words, K widths of spans, C labels, D
dimensions of token embeddings, H dimensions of word embeddings, F = 4 H.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import HigherIsBetter
from encoder_zoo.common.validation import NonNegativeFloat, Probability, validate_arguments
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.encoders.positions import take_positions
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows
from encoder_zoo.tasks.training.metrics import compute_f1_scores

SpanMode = Literal["markerV0", "markerV1", "marker"]
SubtokenPooling = Literal["first", "last", "mean", "max"]
# Width of the hidden layer of a projection, as a multiple of its output width, by span mode.
_WIDENING = {"markerV0": 4, "markerV1": 4, "marker": 2}


class Affine(keras.layers.Layer):
    """Linear layer with bias. `SpanHead` also multiplies vectors by slices of the kernel.

    Args:
        units: Positive integer. Output width.
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.kernel = self.add_weight(
            shape=(input_shape[-1], self.units), initializer="glorot_uniform", name="kernel"
        )
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, x):
        return ops.matmul(x, self.kernel) + self.bias


class TwoAffine(keras.layers.Layer):
    """Linear layer, ReLU, dropout and linear layer, from (..., D) to (..., units).

    Args:
        units: Positive integer. Output width.
        widening: Positive integer. Hidden layer width, as a multiple of `units`.
        dropout: Float between 0 and 1. Dropout rate to apply to the hidden layer.
    """

    def __init__(self, units: int, widening: int, dropout: float, **kwargs):
        super().__init__(**kwargs)
        options = {"dtype": self.dtype_policy}
        self.inner = Affine(widening * units, name="inner", **options)
        self.outer = Affine(units, name="outer", **options)
        self.dropout_layer = keras.layers.Dropout(dropout, **options)

    def build(self, input_shape):
        self.inner.build(input_shape)
        self.outer.build((*input_shape[:-1], self.inner.units))

    def call(self, x, training=None):
        return self.outer(self.dropout_layer(ops.relu(self.inner(x)), training=training))


class LstmWeights(keras.layers.Layer):
    """Weights of a single LSTM direction, in the layout of PyTorch (gates i, f, g, o).

    Args:
        units: Positive integer. State width.
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        gates, width = 4 * self.units, input_shape[-1]
        limit = self.units**-0.5
        uniform = keras.initializers.RandomUniform(-limit, limit)
        self.weight_ih = self.add_weight(shape=(gates, width), initializer=uniform, name="ih")
        self.weight_hh = self.add_weight(shape=(gates, self.units), initializer=uniform, name="hh")
        self.bias_ih = self.add_weight(shape=(gates,), initializer=uniform, name="bias_ih")
        self.bias_hh = self.add_weight(shape=(gates,), initializer=uniform, name="bias_hh")


class BidirectionalLstm(keras.layers.Layer):
    """Bidirectional LSTM over words. Padding at the end is ignored.

    Args:
        units: Positive integer. Output width. Each direction has half of the units.

    Call arguments:
        x: Float tensor of shape (B, W, D).
        mask: Boolean tensor of shape (B, W).

    Returns:
        Float tensor of shape (B, W, units), with zeros for padding.

    Source: Hochreiter and Schmidhuber 1997, Long Short-Term Memory. `torch.nn.LSTM`.
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        options = {"dtype": self.dtype_policy}
        self.directions = [
            LstmWeights(units // 2, name=name, **options) for name in ("ahead", "back")
        ]

    def build(self, input_shape):
        for weights in self.directions:
            weights.build(input_shape)

    def call(self, x, mask):
        gates = [  # (B, W, 4 H / 2) of each direction
            ops.matmul(x, ops.transpose(one.weight_ih)) + one.bias_ih + one.bias_hh
            for one in self.directions
        ]
        # The time axis comes first. The second direction is reversed, so its padding comes first
        # and leaves the state at 0.
        real = ops.cast(mask, gates[0].dtype)[..., None]
        # A single tensor, because Keras's scan on TensorFlow rejects two tensors of unknown length.
        ahead, back = (ops.concatenate([gate, real], axis=-1) for gate in gates)
        inputs = ops.stack([ahead, ops.flip(back, axis=1)])  # (2, B, W, ...)
        inputs = ops.transpose(inputs, (2, 0, 1, 3))  # (W, 2, B, ...)
        recurrent = ops.stack([ops.transpose(one.weight_hh) for one in self.directions])
        recurrent = ops.cast(recurrent, x.dtype)  # (2, H / 2, 4 H / 2)

        def step(state, given):
            (hidden, cell), gate, real = state, given[..., :-1], given[..., -1:]
            i, f, g, o = ops.split(gate + ops.matmul(hidden, recurrent), 4, axis=-1)
            cell = real * (ops.sigmoid(f) * cell + ops.sigmoid(i) * ops.tanh(g))
            hidden = real * ops.sigmoid(o) * ops.tanh(cell)
            return (hidden, cell), (hidden, cell)

        start = ops.zeros_like(inputs[0, ..., : self.units // 2])  # (2, B, H / 2)
        _, (states, _) = ops.scan(step, (start, start), inputs)  # (W, 2, B, H / 2)
        ahead, back = ops.transpose(states[:, 0], (1, 0, 2)), ops.transpose(states[:, 1], (1, 0, 2))
        return ops.concatenate([ahead, ops.flip(back, axis=1)], axis=-1)


class SpanInputs(NamedTuple):
    """Inputs of `SpanHead`, in addition to the token embeddings.

    Attributes:
        word_index: Integer tensor of shape (B, L). Index of the word of each token, starting at 1,
            or 0 for tokens that belong to no word.
        word_mask: Boolean tensor of shape (B, W). True for words, False for padding.
        label_positions: Integer tensor of shape (B, C). Token position of each label, or -1 for
            padding.
    """

    word_index: object
    word_mask: object
    label_positions: object


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanHead(ConfigFromSignature, keras.layers.Layer):
    """Compute a logit for each span of up to K words and each label, as in GLiNER.

    The word embeddings w are pooled from token embeddings, followed by LSTM layers. The label
    embedding p is the embedding at the label marker. Each F is a linear layer, a ReLU and a linear
    layer. The logit of the span from word i to word j is

        F_o(relu([F_s(w_i); F_e(w_j)])) . F_p(p)

    The first linear layer of F_o is computed once per word, and the second linear layer is
    multiplied by the label embeddings once. Each span only needs F additions, and a product with
    these label vectors of size F.

    Args:
        hidden_dim: Positive integer. Width H for word embeddings.
        max_width: Positive integer. Maximum number of words K per span.
        span_mode: String. The span mode to use. "markerV0" is the formula above. In "markerV1", the
            mean over all words is concatenated to [F_s(w_i); F_e(w_j)]. In "marker", a single
            linear layer is used for F_o.
        num_rnn_layers: Integer. Number of LSTM layers. Use 0 for no LSTM.
        subtoken_pooling: String. How to pool token embeddings for each word.
        dropout: Float between 0 and 1. Dropout rate to apply to the hidden layer in each F.

    Call arguments:
        x: Float tensor of shape (B, L, D). Token embeddings.
        inputs: `SpanInputs`.

    Returns:
        Float32 tensor of shape (B, W, K, C). Logits for all spans and labels, with -1e9 for missing
        spans and labels.

    Source: Zaratiana et al. 2024, GLiNER, sections 2.2 and 2.3.
    """

    def __init__(
        self,
        hidden_dim: int,
        max_width: int = 12,
        span_mode: SpanMode = "markerV0",
        num_rnn_layers: int = 1,
        subtoken_pooling: SubtokenPooling = "first",
        dropout: float = 0.4,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.max_width = max_width
        self.span_mode = span_mode
        self.num_rnn_layers = num_rnn_layers
        self.subtoken_pooling = subtoken_pooling
        self.dropout = dropout
        options = {"dtype": self.dtype_policy}
        self.projection = None
        self.lstms = [
            BidirectionalLstm(hidden_dim, name=f"lstm_{i}", **options)
            for i in range(num_rnn_layers)
        ]
        widening = _WIDENING[span_mode]

        def make_projection(name: str) -> TwoAffine:
            return TwoAffine(hidden_dim, widening, dropout, name=name, **options)

        self.start, self.end = make_projection("start"), make_projection("end")
        self.out = make_projection("out") if span_mode != "marker" else None
        self.out_affine = Affine(hidden_dim, name="out", **options) if self.out is None else None
        self.label = TwoAffine(hidden_dim, 4, dropout, name="label", **options)

    def build(self, input_shape):
        shape = (*input_shape[:-1], self.hidden_dim)
        if input_shape[-1] != self.hidden_dim:
            self.projection = Affine(self.hidden_dim, name="projection", dtype=self.dtype_policy)
            self.projection.build(input_shape)
        for layer in (*self.lstms, self.start, self.end, self.label):
            layer.build(shape)
        parts = 3 if self.span_mode == "markerV1" else 2
        joined = (*input_shape[:-1], parts * self.hidden_dim)
        (self.out or self.out_affine).build(joined)

    def call(self, x, inputs: SpanInputs, training=None):
        word_index, word_mask, label_positions = inputs
        word_mask = ops.cast(word_mask, "bool")
        if self.projection is not None:
            x = self.projection(x)
        labels = take_positions(x, ops.maximum(label_positions, 0))  # (B, C, H)
        words = pool_words(x, word_index, ops.shape(word_mask)[1], self.subtoken_pooling)
        for lstm in self.lstms:
            words = lstm(words, word_mask)
        labels = self.label(labels, training=training)
        logits = self._compute_span_logits(words, word_mask, labels, training)  # K of (B, W, C)
        logits = ops.cast(ops.stack(logits, axis=2), "float32")  # (B, W, K, C)
        ends = ops.stack([shift_words(word_mask, k) for k in range(self.max_width)], axis=2)
        is_label = ops.cast(label_positions, "int32") >= 0
        valid = (word_mask[:, :, None] & ends)[..., None] & is_label[:, None, None]
        return ops.where(valid, logits, MASKED_LOGIT)

    def _compute_span_logits(self, words, word_mask, labels, training) -> list:
        """Return a list with the span logits (B, W, C) for each width from 1 to K."""
        out, width = self.out.inner if self.out else self.out_affine, self.hidden_dim
        kernel = ops.cast(out.kernel, self.compute_dtype)

        def compute_part(vectors, i: int):
            return ops.matmul(ops.relu(vectors), kernel[i * width : (i + 1) * width])

        starts = compute_part(self.start(words, training=training), 0)
        starts += ops.cast(out.bias, self.compute_dtype)
        ends = compute_part(self.end(words, training=training), 1)
        if self.span_mode == "markerV1":
            mask = ops.cast(word_mask, words.dtype)[..., None]
            count = ops.maximum(ops.sum(mask, axis=1, keepdims=True), 1.0)
            mean = ops.sum(words * mask, axis=1, keepdims=True) / count  # (B, 1, H)
            starts += compute_part(mean, 2)
        columns = ops.transpose(labels, (0, 2, 1))  # (B, H, C)
        if self.out is None:  # the sum of two products
            starts, ends = ops.matmul(starts, columns), ops.matmul(ends, columns)
            return [starts + shift_words(ends, k) for k in range(self.max_width)]
        outer = self.out.outer
        columns = ops.matmul(ops.cast(outer.kernel, self.compute_dtype), columns)  # (B, F, C)
        constant = ops.matmul(labels, ops.cast(outer.bias, self.compute_dtype))[:, None]
        dropout = self.out.dropout_layer
        return [
            ops.matmul(dropout(ops.relu(starts + shift_words(ends, k)), training=training), columns)
            + constant
            for k in range(self.max_width)
        ]


def shift_words(x, steps: int):
    """Shift x (B, W, ...) to the left by `steps` words, and pad it with zeros.

    Example:
        >>> import numpy as np
        >>> ops.convert_to_numpy(shift_words(np.array([[1, 2, 3]]), 1)).tolist()
        [[2, 3, 0]]
    """
    if not steps:
        return ops.convert_to_tensor(x)
    padded = ops.pad(x, [[0, 0], [0, steps], *[[0, 0]] * (len(x.shape) - 2)])
    return padded[:, steps:]


def pool_words(x, word_index, count, pooling: SubtokenPooling):
    """Pool token embeddings to word embeddings (B, W, D). Words without tokens get zeros.

    Args:
        x: Float tensor of shape (B, L, D). Token embeddings.
        word_index: Integer tensor of shape (B, L). See `SpanInputs`.
        count: Integer. Number of words W.
        pooling: String. "mean" or "max" pools all tokens of a word. With any other value,
            `word_index` must have a single token per word.
    """
    batch = ops.shape(x)[0]
    rows = ops.arange(batch, dtype="int32")[:, None] * (count + 1)
    flat = ops.reshape(rows + ops.cast(word_index, "int32"), (-1,))
    tokens = ops.reshape(x, (-1, x.shape[-1]))
    size = batch * (count + 1)
    if pooling == "max":
        words = ops.segment_max(tokens, flat, num_segments=size)
        present = ops.segment_sum(ops.ones_like(tokens[:, :1]), flat, num_segments=size)
        words = ops.where(present > 0, words, 0.0)
    else:
        words = ops.segment_sum(tokens, flat, num_segments=size)
    if pooling == "mean":
        number = ops.segment_sum(ops.ones_like(tokens[:, :1]), flat, num_segments=size)
        words = words / ops.maximum(number, 1.0)
    return ops.reshape(words, (batch, count + 1, x.shape[-1]))[:, 1:]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanFocalLoss(ConfigFromSignature, keras.losses.Loss):
    """Compute the focal loss of span logits, summed over all spans of an example.

    Args:
        gamma: Float. Focusing parameter. Spans are weighted by (1 - p) ** gamma, where p is the
            probability of the correct answer. Use 0 for binary cross-entropy. Defaults to 0.0.
        alpha: Optional float between 0 and 1. Weight of spans with the label. All other spans have
            the weight 1 - alpha. If None, all spans have the same weight.

    Call arguments:
        y_true: Tensor of shape (B, W, K, C). 1 for spans with the label, and 0 otherwise.
        y_pred: Float tensor of shape (B, W, K, C). Logits. For missing spans (with logit -1e9), the
            loss is 0.

    Source: Lin et al. 2017, Focal Loss for Dense Object Detection, section 3.

    Example:
        >>> import numpy as np
        >>> y_true, logits = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1, 1), "float32")
        >>> round(float(SpanFocalLoss(gamma=0.0)(y_true, logits)), 4)  # log 2
        0.6931
    """

    @validate_arguments
    def __init__(self, gamma: NonNegativeFloat = 0.0, alpha: Probability | None = None, **kwargs):
        super().__init__(**kwargs)
        self.gamma = gamma
        self.alpha = alpha

    @ignores_padding_rows
    def call(self, y_true, y_pred):
        y_pred = ops.cast(y_pred, "float32")
        y_true = ops.cast(y_true, "float32")
        logits = ops.where(y_true > 0, y_pred, -y_pred)  # logits of the correct answers
        logits = ops.where(y_pred > MASKED_LOGIT / 2, logits, -MASKED_LOGIT)
        loss = ops.softplus(-logits)
        if self.gamma:
            loss = loss * ops.sigmoid(-logits) ** self.gamma
        if self.alpha is not None:
            loss = loss * ops.where(y_true > 0, self.alpha, 1.0 - self.alpha)
        return ops.sum(loss, axis=(1, 2, 3))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanF1(HigherIsBetter, ConfigFromSignature, keras.metrics.Metric):
    """Compute precision, recall and F1 of all pairs of a span and a label above a threshold.

    All overlapping spans are counted. In contrast, `extract_entities` only selects some of the
    overlapping spans.

    Args:
        threshold: Float between 0 and 1. Minimum score. Defaults to 0.5.

    Call arguments:
        y_true: Tensor of shape (B, W, K, C). 1 for spans with the label, and 0 otherwise.
        y_pred: Float tensor of shape (B, W, K, C). Logits.
        sample_weight: Optional float tensor of shape (B,).

    Returns:
        `result()` is `{"precision", "recall", "f1"}`.

    Example:
        >>> import numpy as np
        >>> metric = SpanF1()
        >>> metric.update_state(np.array([[[[1, 0]]]]), np.array([[[[2.0, 1.0]]]]))
        >>> {name: round(float(value), 2) for name, value in metric.result().items()}
        {'precision': 0.5, 'recall': 1.0, 'f1': 0.67}
    """

    @validate_arguments
    def __init__(self, threshold: Probability = 0.5, **kwargs):
        super().__init__(**{"name": "f1", **kwargs})
        self.threshold = threshold
        self.counts = self.add_variable(shape=(3,), initializer="zeros", name="counts")

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        true = ops.cast(y_true, self.dtype)
        found = ops.cast(ops.sigmoid(ops.cast(y_pred, "float32")) > self.threshold, self.dtype)
        axes = (1, 2, 3)
        counts = [ops.sum(values, axis=axes) for values in (true * found, found, true)]
        counts = ops.stack(counts)  # (3, B)
        if sample_weight is not None:
            counts = counts * ops.reshape(ops.cast(sample_weight, self.dtype), (1, -1))
        self.counts.assign_add(ops.sum(counts, axis=1))

    def result(self) -> dict:
        return compute_f1_scores(*(self.counts[i] for i in range(3)))
