"""Masked language modelling: pretraining, and filling in missing words.

Comment letters: B batch, L sequence, D hidden, M masked positions, V vocabulary.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.configured import Configured
from encoder_zoo.encoders.layers import activation_function, initializer, take_positions
from encoder_zoo.lazy import tf
from encoder_zoo.tasks.batching import in_graph_batches
from encoder_zoo.tasks.packing import join_texts, pack
from encoder_zoo.tasks.preprocessor import Preprocessor, as_column, as_valid_text
from encoder_zoo.tasks.task import Task

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizer import Tokenizer

# Of the selected tokens: the share that becomes the mask token, and the share (of all) up to
# which one becomes a random token; the rest stays. Devlin et al. 2019, section 3.1.
MASKED, RANDOM = 0.8, 0.9

# What Python's `str.rstrip` takes away.
SPACE_AT_END = r"[\t-\r\x{1c}-\x{1f}\x{85}\pZ]+$"


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaskedLMPreprocessor(Preprocessor):
    """Texts to rows in which some tokens are masked, with those tokens as labels.

    Of every row's ordinary tokens a share is selected (at least one): 80 % of them become the
    mask token, 10 % a random token, 10 % stay. Special tokens are never selected.

    Args:
        tokenizer: a `BertTokenizer` or `RobertaTokenizer`.
        sequence_length: see `Preprocessor`.
        mask_rate: share of the tokens to select.
        whole_words: select whole words instead of single pieces. A word that would exceed the
            share is passed over.
        dynamic: draw a fresh pattern whenever a batch is made, so in every epoch; else one
            pattern for each example.
        pack_texts: in `fit` on texts in memory, put several texts into one row of
            `sequence_length` (default: what the model takes). Attention and positions stay within
            each text, so that outputs are as in rows of their own, but hardly any padding is
            left; a batch of as many rows holds more texts. For accelerators: on a CPU, batches of
            texts of like length are as good.
        seed: of the pattern when the preprocessor is called by itself, and with
            `dynamic=False`. `fit` takes its own from `keras.utils.set_random_seed`.

    Returns:
        When called `(x, y, sample_weight)`: x is `{"token_ids", "padding_mask",
        "mask_positions"}` and, for families with segments, "segment_ids"; y (B, M) int the ids
        that stood there; sample_weight (B, M), 0 where a row has fewer than M selected tokens.

    Source: Devlin et al. 2019, section 3.1 and appendix A.1; dynamic masking: Liu et al. 2019,
    section 4.1; whole words: the BERT repository's README of 2019-05-31.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> words = ["the", "cat", "sat", "on", "mat"]
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        >>> preprocessor = MaskedLMPreprocessor(tokenizer, mask_rate=0.5)
        >>> x, y, sample_weight = preprocessor(["the cat sat on the mat"])
        >>> y.shape, x["token_ids"].shape
        (TensorShape([1, 4]), TensorShape([1, 8]))
    """

    def __init__(
        self,
        tokenizer,
        sequence_length: int | None = None,
        mask_rate: float = 0.15,
        whole_words: bool = False,
        dynamic: bool = True,
        pack_texts: bool = False,
        seed: int = 0,
    ):
        super().__init__(tokenizer, sequence_length)
        if not 0 < mask_rate < 1:
            raise ValueError(f"mask_rate must lie between 0 and 1. Received: {mask_rate}.")
        self.mask_rate = mask_rate
        self.whole_words = whole_words
        self.dynamic = dynamic
        self.pack_texts = pack_texts
        self.seed = seed
        self._calls = 0

    @property
    def shared_row_length(self) -> int | None:
        return self.max_sequence_length if self.pack_texts else None

    def encode(self, x, y=None, sample_weight=None) -> dict:
        if y is not None:
            raise ValueError("MaskedLM makes its labels from the texts. Received: labels as y.")
        rows = super().encode(x, sample_weight=sample_weight)
        if not self.dynamic:
            ids = rows["token_ids"]
            shape = (tf.size(ids.flat_values), 3)
            draws = tf.random.stateless_uniform(shape, [self.seed, 0])
            rows["draws"] = ids.with_flat_values(draws)
        return rows

    def collate(self, rows: dict, seed: tf.Tensor | None = None, bucketed: bool = False):
        if rows["token_ids"].ragged_rank == 2:
            rows = join_texts(rows)
        inputs = self.pad(rows, bucketed)
        token_ids = inputs["token_ids"]  # (B, L)
        length = tf.shape(token_ids)[1]
        if "text_starts" in rows:
            inputs["text_starts"] = self._padded_starts(rows["text_starts"], length)
        if "draws" in rows:
            draws = rows["draws"].to_tensor(shape=(None, token_ids.shape[1], 3))
            draws = tf.pad(draws, [[0, 0], [0, length - tf.shape(draws)[1]], [0, 0]])
        else:
            draws = tf.random.stateless_uniform(
                tf.concat([tf.shape(token_ids), [3]], 0), self._next_seed(seed)
            )  # (B, L, 3)

        order, selected = self._select(token_ids, inputs["padding_mask"], draws[..., 0])
        count = tf.maximum(
            1, tf.cast(tf.round(self.mask_rate * tf.cast(length, "float32")), "int32")
        )
        if self.sequence_length is not None:
            count = max(1, round(self.mask_rate * self.sequence_length))
        positions, weights = order[:, :count], tf.cast(selected[:, :count], "float32")  # (B, M)

        inputs["token_ids"] = self._replace(token_ids, positions, selected[:, :count], draws)
        inputs["mask_positions"] = positions
        labels = tf.gather(token_ids, positions, batch_dims=1)
        if "sample_weight" in rows:
            weights *= self._weights_at(positions, rows["sample_weight"], length)
        return inputs, labels, weights

    def _weights_at(self, positions, weights, length):
        """(B, M) from one weight for each row (B,), or in packed rows for each token (B, None)."""
        if not isinstance(weights, tf.RaggedTensor):
            return weights[:, None]
        shape = tf.stack([weights.nrows(), tf.cast(length, tf.int64)])
        return tf.gather(weights.to_tensor(shape=shape), positions, batch_dims=1)

    def _padded_starts(self, starts: tf.RaggedTensor, length: tf.Tensor) -> tf.Tensor:
        """(B, K) int32: every text has at least its two special tokens, so K = L / 2 suffices."""
        shape = tf.stack([starts.nrows(), tf.cast(length // 2, tf.int64)])
        return starts.to_tensor(length, shape=shape)

    def _next_seed(self, seed):
        if seed is not None:
            return seed
        self._calls += 1
        return [self.seed, self._calls]

    def _select(self, token_ids, padding_mask, draws):
        """(B, L) positions, the selected ones first, and whether each of them is selected."""
        special = tf.reduce_any(token_ids[..., None] == tf.constant(self._special_ids), axis=-1)
        ordinary = padding_mask & ~special
        budget = tf.reduce_sum(tf.cast(ordinary, "float32"), axis=1) * self.mask_rate
        budget = tf.maximum(1, tf.cast(tf.round(budget), "int32"))  # (B,)
        if self.whole_words:
            chosen = self._choose_words(token_ids, ordinary, draws, budget)
        else:
            rank = tf.argsort(tf.argsort(tf.where(ordinary, draws, 2.0), axis=1), axis=1)
            chosen = ordinary & (rank < budget[:, None])
        order = tf.argsort(tf.where(chosen, 0, 1), axis=1, stable=True)
        return order, tf.gather(chosen, order, batch_dims=1)

    def _choose_words(self, token_ids, ordinary, draws, budget):
        """(B, L) tokens of randomly chosen words, no more than the budget in a row."""
        starts = tf.gather(tf.constant(self._word_starts), token_ids)
        previous = tf.pad(ordinary[:, :-1], [[0, 0], [1, 0]])
        starts = ordinary & (starts | ~previous)
        word = tf.cumsum(tf.cast(starts, "int32"), axis=1)  # (B, L), 0 before the first word
        length = tf.shape(token_ids)[1]
        is_word = tf.one_hot(tf.where(ordinary, word, 0), length + 1, dtype="int32")  # (B, L, W)
        sizes = tf.reduce_sum(is_word, axis=1)[:, 1:]  # (B, W)
        order = tf.argsort(tf.where(sizes > 0, draws, 2.0), axis=1)
        shuffled = tf.transpose(tf.gather(sizes, order, batch_dims=1))  # (W, B)

        def add(state, size):
            fits = (size > 0) & (state[0] + size <= budget)
            return tf.where(fits, state[0] + size, state[0]), fits

        empty = (tf.zeros_like(budget), tf.zeros_like(budget, "bool"))
        _, fits = tf.scan(add, shuffled, empty)
        fits = tf.gather(tf.transpose(fits), tf.argsort(order, axis=1), batch_dims=1)  # (B, W)
        return ordinary & tf.gather(fits, tf.maximum(word - 1, 0), batch_dims=1)

    def _replace(self, token_ids, positions, selected, draws):
        kind = tf.gather(draws[..., 1], positions, batch_dims=1)  # (B, M)
        which = tf.gather(draws[..., 2], positions, batch_dims=1)
        ordinary = tf.constant(self._ordinary_ids)
        drawn = tf.gather(ordinary, tf.cast(which * len(self._ordinary_ids), "int32"))
        kept = tf.gather(token_ids, positions, batch_dims=1)
        new = tf.where(
            kind < MASKED, self.tokenizer.mask_token_id, tf.where(kind < RANDOM, drawn, kept)
        )
        new = tf.where(selected, new, kept)
        rows = tf.repeat(tf.range(tf.shape(positions)[0])[:, None], tf.shape(positions)[1], axis=1)
        return tf.tensor_scatter_nd_update(token_ids, tf.stack([rows, positions], axis=-1), new)

    @functools.cached_property
    def _special_ids(self) -> np.ndarray:
        return np.array(sorted(set(self.tokenizer.special_token_ids)), "int32")

    @functools.cached_property
    def _ordinary_ids(self) -> np.ndarray:
        return np.setdiff1d(
            np.arange(self.tokenizer.vocabulary_size, dtype="int32"), self._special_ids
        )

    @functools.cached_property
    def _word_starts(self) -> np.ndarray:
        return np.array([self.tokenizer.starts_word(t) for t in self.tokenizer.get_vocabulary()])


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaskedLMHead(Configured, keras.layers.Layer):
    """The layers between the backbone and the projection onto the token embedding.

    Args:
        vocabulary_size: V.
        hidden_dim: D.
        activation: of the dense layer, see `layers.ACTIVATIONS`.
        layer_norm_epsilon: added to the variance.

    Call arguments:
        x: (B, M, D).

    Returns:
        (B, M, D), to be multiplied by the token embedding's transpose; `bias` (V,) comes on top.

    Source: Devlin et al. 2019, released code, `get_masked_lm_output`.

    Example:
        >>> import numpy as np
        >>> keras.ops.shape(MaskedLMHead(11, 4)(np.zeros((1, 2, 4), "float32")))
        (1, 2, 4)
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.dense = keras.layers.Dense(
            hidden_dim, kernel_initializer=initializer(), name="dense", dtype=self.dtype_policy
        )
        self.norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, name="norm", dtype=self.dtype_policy
        )
        self.activation_function = activation_function(activation)

    def build(self, input_shape=None):
        self.dense.build((None, None, self.hidden_dim))
        self.norm.build((None, None, self.hidden_dim))
        self.bias = self.add_weight(shape=(self.vocabulary_size,), initializer="zeros", name="bias")

    def call(self, x):
        return self.norm(self.activation_function(self.dense(x)))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaskedLM(Task):
    """Predicts masked tokens: what BERT and RoBERTa are pretrained on.

    Args:
        backbone: any `Backbone`.
        preprocessor: a `MaskedLMPreprocessor`, for raw text.

    Call arguments:
        inputs: what the preprocessor makes; without "mask_positions" there are logits for every
            position.

    Returns:
        (B, M, V) float32 logits at the masked positions, or (B, L, V).

    Source: Devlin et al. 2019, section 3.1.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16, pooler=False)
        >>> inputs = {"token_ids": np.array([[2, 4, 7, 3]]), "mask_positions": np.array([[1]])}
        >>> keras.ops.shape(MaskedLM(backbone)(inputs))
        (1, 1, 30)
    """

    task_name = "masked_lm"
    checkpoint_class_suffix = "ForMaskedLM"
    preprocessor_class = MaskedLMPreprocessor

    def __init__(
        self, backbone: Backbone, preprocessor: MaskedLMPreprocessor | None = None, **kwargs
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.head = MaskedLMHead(
            backbone.vocabulary_size,
            backbone.hidden_dim,
            backbone.family.masked_lm_activation or backbone.activation,
            backbone.layer_norm_epsilon,
            name="head",
            dtype=self.dtype_policy,
        )
        self.head.build()
        self.built = True
        if preprocessor is not None:
            self.preprocessor.attach(self)

    def call(self, inputs, training=None):
        x = self.backbone(inputs, training=training)["sequence_output"]  # (B, L, D)
        positions = inputs.get("mask_positions")
        if positions is not None:
            x = take_positions(x, positions)  # (B, M, D)
        logits = self.backbone.embeddings.token_embedding(self.head(x), reverse=True)
        # The loss is taken in float32 also under mixed precision.
        return ops.cast(logits, "float32") + ops.cast(self.head.bias, "float32")

    def head_layers(self) -> list[keras.layers.Layer]:
        return [self.head]

    def default_loss(self) -> keras.losses.Loss:
        # Over real predictions: rows have different numbers of them.
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )

    def default_metrics(self) -> list:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def predict(self, x, batch_size: int | None = None, **kwargs):
        """As `keras.Model.predict`, on prepared inputs.

        Raises:
            ValueError: "MaskedLM.predict takes prepared inputs ..." for raw texts, which would be
                masked at random.
        """
        if not isinstance(x, dict) or "token_ids" not in x:
            raise ValueError(
                "MaskedLM.predict takes prepared inputs, {'token_ids', 'padding_mask', ...}: raw "
                "texts would be masked at random. Use fill_mask(texts), or evaluate(texts). "
                f"Received: {type(x).__name__}."
            )
        return super().predict(x, batch_size, **kwargs)

    def fill_mask(self, texts, top_k: int = 5, batch_size: int | None = None) -> list:
        """The most probable tokens at the mask tokens of each text.

        Args:
            texts: a text or a list of texts; each holds the family's mask token (`[MASK]`,
                `<mask>`) at least once.
            top_k: how many tokens for each mask.
            batch_size: default 32.

        Returns:
            For each text the `top_k` best as `{"token", "text", "score"}`, the best first: the
            token, the text with it filled in, its probability. For a text with several masks a
            list of such lists, each with one mask filled in. For a single text its list alone.

        Raises:
            ValueError: "texts[0] holds no [MASK] ..."
        """
        if isinstance(texts, str):
            return self.fill_mask([texts], top_k, batch_size)[0]
        tensor = as_column(texts)
        if not tensor.shape[0]:
            return []
        tokens = self.served_tokenizer.tokenize_with_offsets(tensor)
        self._check_masks(tokens[0])
        rows, starts, ends = self._rows_with_masks(*tokens)
        inputs, real = self._mask_inputs(rows)
        inputs = {name: values.numpy() for name, values in inputs.items()}
        logits = self.predict(inputs, batch_size, verbose=0)  # (B, M, V)
        filled = self._filled(tensor, starts, ends, logits[real.numpy()], top_k)
        words, new_texts, scores = (values.numpy().tolist() for values in filled)
        fills = [
            [
                {"token": word.decode(), "text": text.decode(), "score": score}
                for word, text, score in zip(*fills, strict=True)
            ]
            for fills in zip(words, new_texts, scores, strict=True)
        ]
        by_text = [fills[i:j] for i, j in itertools.pairwise(starts.row_splits.numpy())]
        return [masks[0] if len(masks) == 1 else masks for masks in by_text]

    def served(self, top_k: int = 5) -> dict[str, Callable]:
        """`fill_mask` of "text", for exports.

        Args:
            top_k: as for `fill_mask`.

        Returns:
            A function whose results are "count" (N,), the number of masks of every text, and
            "token", "text" and "score", (N, M, top_k) with M the most masks of a text. A mask
            behind what the model takes is not counted.
        """

        def fill(text):
            text = as_valid_text(text)
            tokens = self.served_tokenizer.tokenize_with_offsets(text)
            rows, starts, ends = self._rows_with_masks(*tokens)
            logits = in_graph_batches(
                self._mask_logits, rows, starts.row_lengths(), self.backbone.vocabulary_size
            )
            filled = self._filled(text, starts, ends, logits.flat_values, top_k)
            filled = dict(zip(("token", "text", "score"), filled, strict=True))
            padded = {n: starts.with_values(values).to_tensor() for n, values in filled.items()}
            return {"count": tf.cast(starts.row_lengths(), tf.int32), **padded}

        return {"serving_default": fill}

    def prepared_inputs(self) -> list[str]:
        return [*super().prepared_inputs(), "mask_positions"]

    def _check_masks(self, ids: tf.RaggedTensor) -> None:
        tokenizer, limit = self.preprocessor.tokenizer, self._most_pieces
        for row, found in enumerate(
            np.flatnonzero(r == tokenizer.mask_token_id) for r in ids.numpy()
        ):
            if not found.size or found[-1] >= limit:
                where = "holds no" if not found.size else f"has after its first {limit} tokens a"
                raise ValueError(
                    f"texts[{row}] {where} {tokenizer.mask_token}. Expected it where a word is "
                    "missing."
                )

    @property
    def _most_pieces(self) -> int:
        return self.preprocessor.max_sequence_length - 2

    def _rows_with_masks(self, ids, starts, ends) -> tuple[dict, tf.RaggedTensor, tf.RaggedTensor]:
        """Encoded rows with the columns of their masks, and the masks' characters, all ragged."""
        tokenizer, limit = self.preprocessor.tokenizer, self._most_pieces
        token_ids, first_length = pack(
            [ids], tokenizer.start_token_id, tokenizer.end_token_id, 1, limit + 2
        )
        columns = ids.with_values(tf.ragged.range(ids.row_lengths()).values)
        is_mask = (ids.values == tokenizer.mask_token_id) & (columns.values < limit)
        masks = (
            tf.ragged.boolean_mask(values, ids.with_values(is_mask))
            for values in (columns, starts, ends)
        )
        columns, starts, ends = masks
        positions = tf.cast(columns + 1, tf.int32)  # after the start token
        rows = {"token_ids": token_ids, "first_length": first_length, "mask_positions": positions}
        return rows, starts, ends

    def _mask_inputs(self, rows: dict) -> tuple[dict, tf.Tensor]:
        """The model's inputs, and which of their mask positions (B, M) are real."""
        positions = rows["mask_positions"]
        inputs = {**self.preprocessor.pad(rows), "mask_positions": positions.to_tensor()}
        return inputs, tf.sequence_mask(positions.row_lengths())

    def _mask_logits(self, rows: dict) -> tf.Tensor:
        """(masks, V) in all rows."""
        inputs, real = self._mask_inputs(rows)
        return tf.boolean_mask(self(inputs, training=False), real)

    def _filled(self, texts, starts, ends, logits, top_k: int) -> tuple:
        """Tokens, texts and probabilities (masks, top_k), the best first.

        Args:
            texts: (N,) strings.
            starts: ragged (N, None) int32, where the masks begin.
            ends: ragged (N, None) int32, where they end.
            logits: (masks, V), of all texts.
            top_k: how many.
        """
        tokens, words, begins = (tf.constant(column) for column in self._spellings)
        probabilities = tf.nn.softmax(logits)[:, : tf.size(tokens)]
        scores, best = tf.math.top_k(probabilities, min(top_k, len(self._spellings[0])))
        texts, start, end = tf.gather(texts, starts.value_rowids()), starts.values, ends.values
        before = tf.strings.substr(texts, tf.zeros_like(start), start, unit="UTF8_CHAR")
        length = tf.strings.length(texts, unit="UTF8_CHAR")
        after = tf.strings.substr(texts, end, length - end, unit="UTF8_CHAR")
        joined = tf.strings.regex_replace(before, SPACE_AT_END, "")  # to the word before
        before = tf.where(tf.gather(begins, best), before[:, None], joined[:, None])
        return tf.gather(tokens, best), before + tf.gather(words, best) + after[:, None], scores

    @functools.cached_property
    def _spellings(self) -> tuple[list[str], list[str], list[bool]]:
        """Of every token: its name, what it writes, and whether it begins a word."""
        tokenizer = self.preprocessor.tokenizer
        tokens = tokenizer.get_vocabulary()
        with tf.init_scope():
            words = tokenizer.detokenize(tf.range(len(tokens))[:, None]).numpy()
        words = [word.decode(errors="replace").removeprefix("##") for word in words]
        return tokens, words, [tokenizer.starts_word(token) for token in tokens]

    @functools.cached_property
    def served_tokenizer(self) -> Tokenizer:
        """The tokenizer, but with mask tokens in texts read as such."""
        tokenizer = self.preprocessor.tokenizer
        with tf.init_scope():
            return type(tokenizer)(**{**tokenizer.get_config(), "special_tokens_in_text": True})
