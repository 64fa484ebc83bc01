"""Sparse encoder models (SPLADE) to embed texts with a weight per term.

Comments use these letters for shapes: B batch, N texts, K additional texts of an example, V
vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Self, Unpack

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import Fraction, PositiveFloat, PositiveInt, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import NO_HEAD, Head
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.layers import Activation as HeadActivation
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks import losses
from encoder_zoo.tasks.base.answers import delegate_to_answers
from encoder_zoo.tasks.base.inference import compute_text_outputs_in_graph
from encoder_zoo.tasks.base.task import TaskPresetArguments, TinyData
from encoder_zoo.tasks.embedding import sparse_pooling
from encoder_zoo.tasks.embedding.embedder import (
    PAIRS,
    SCORES,
    Embedder,
    EmbedderCompileOptions,
    make_role_signatures,
)
from encoder_zoo.tasks.embedding.pooling import Projection
from encoder_zoo.tasks.embedding.sparse_encoder_preprocessor import SparseEncoderPreprocessor
from encoder_zoo.tasks.embedding.term_answers import TermAnswers
from encoder_zoo.tasks.embedding.term_table import TermTable
from encoder_zoo.tasks.pretraining.masked_lm import check_head_representable, make_masked_lm_head
from encoder_zoo.tasks.retrieval.index_kinds import SparseIndex
from encoder_zoo.tasks.training.objective import Objective

NO_PROMPT = ""  # do not use the preprocessor's default prompt
RAMP_DIVISOR = (
    3  # the weights of `SPLADE` increase in the first third of the steps (SPLADE v2, section 4)
)

SCALE = 50.0  # for token weights, as used to train BGE-M3 (temperature 0.02)

SPARSE_LOSSES = {PAIRS: losses.SPLADE, SCORES: lambda: losses.SPLADE(losses.MarginMSE())}
# No regularization is needed for queries from a table, because there is no expansion.
TABLE_LOSSES = {
    PAIRS: lambda: losses.SPLADE(query_weight=0.0),
    SCORES: lambda: losses.SPLADE(losses.MarginMSE(), query_weight=0.0),
}
# No regularization is needed for token weights, because there is no expansion.
TOKEN_WEIGHTS_LOSSES = {PAIRS: lambda: losses.InfoNCE(SCALE, "dot"), SCORES: losses.MarginMSE}


class SparseEncoderPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `SparseEncoder.from_preset`.

    The base class contains `pooling` and `activation`.
    """

    max_terms: int | None
    query_encoder: TermTable | SparseEncoder | None
    similarity_function: str
    head_activation: str | None
    head_layer_norm_epsilon: float | None
    max_length: int | None
    prompts: Mapping[str, str] | None
    default_prompt: str | None
    include_prompt: bool


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SparseEncoder(Embedder[SparseIndex]):
    """Embed texts as sparse vectors with a weight for each term in the vocabulary (SPLADE).

        encoder = ez.SparseEncoder.from_preset("hf://naver/splade-cocondenser-ensembledistil")
        encoder.embed(["a text", "another"])  # (2, 30522), a sparse matrix of scipy
        encoder.top_terms("How do I reset it?", k=5)  # [("reset", 2.4), ...]
        index = encoder.index(documents)
        index.search("How do I reset it?")

    The head of a masked language model predicts which terms fit at each token position. The
    embedding therefore also has weights for related terms that are not in the text. An activation
    with max(0, x) and log(1 + x) is applied to the logits, followed by max or sum pooling over the
    tokens. `from_preset` loads SparseEncoder models from sentence-transformers. It also loads
    masked language models, which must be trained with `fit`. Before training, most terms will have
    a weight.

    With `pooling="token_weights"`, as in BGE-M3, weights are only computed for terms in the text.
    A linear layer followed by max(0, x) computes a weight per token. If a term occurs several
    times, its largest weight is used. Special tokens and the unknown token are ignored.

    Args:
        backbone: A `Backbone` from a family with a masked language model.
        preprocessor: Optional `SparseEncoderPreprocessor` for raw text.
        pooling: String. "max" or "sum" over all tokens, or "token_weights". Defaults to "max".
        activation: String. Activation of the logits. "relu" is log(1 + max(0, x)). "log1p_relu"
            applies log(1 + x) a second time. The activation is not used for token weights.
            Defaults to "relu".
        max_terms: Integer. Maximum number of terms to keep per vector, based on the largest
            weights. If None, all terms are kept.
        similarity_function: String, "dot" or "cosine". Defaults to "dot".
        head_activation, head_layer_norm_epsilon: See `MaskedLM`.
        query_encoder: Separate encoder to use for queries, i.e. for texts with the prompt "query".
            A `TermTable` embeds queries without a model. A smaller `SparseEncoder` with the same
            vocabulary can also be used. If None, this model embeds the queries.

    `fit` accepts these forms of data:

    - Pairs, `fit((queries, documents))`. With the default loss `SPLADE`, each query is trained to
      be close to the corresponding document and far from all other documents in the batch, with
      regularization to reduce the number of terms. To add hard negatives, call `fit((queries,
      documents, negatives))`, as in `TextEmbedder`.
    - Scores from a teacher, `fit((queries, documents, negatives), scores)`. The model is trained on
      the scores for documents and negatives with the loss `MarginMSE` inside `SPLADE`.

    The prompt "query" is used for the first text in each row, and the prompt "document" for the
    other texts.

    Call arguments:
        inputs: Dict of tensors, as returned by the preprocessor.

    Returns:
        Float32 tensor of shape (B, V), or (B, 1 + K, V) for inputs with candidates.

    Source: Formal et al. 2021, SPLADE v2: Sparse Lexical and Expansion Model for Information
    Retrieval, section 3.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16)
        >>> keras.ops.shape(SparseEncoder(backbone)({"token_ids": np.array([[2, 7, 3]])}))
        (1, 30)
    """

    record = TaskRecord(
        "sparse_encoder",
        SparseEncoderPreprocessor,
        head="ForMaskedLM",
        answers_class=TermAnswers,
        text_method="embed",
        compile_settings=("chunk_size", "query_learning_rate"),
        folder=SparseEncoderPreprocessor.get_folder_format(),
    )
    index_class = SparseIndex
    query_learning_rate: float | None = None

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: SparseEncoderPreprocessor | None = None,
        pooling: sparse_pooling.Pooling = "max",
        activation: sparse_pooling.TermActivation = "relu",
        max_terms: PositiveInt | None = None,
        similarity_function: Literal["dot", "cosine"] = "dot",
        head_activation: HeadActivation | None = None,
        head_layer_norm_epsilon: Fraction | None = None,
        query_encoder: TermTable | SparseEncoder | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.query_encoder = query_encoder
        self._check_query_encoder()
        self.pooling = pooling
        self.activation = activation
        self.max_terms = max_terms
        self.similarity_function = similarity_function
        self.head_activation = head_activation
        self.head_layer_norm_epsilon = head_layer_norm_epsilon
        self._make_head()
        # Current step during `fit`, and number of warmup steps for the regularization.
        self.schedule = self.add_weight(
            shape=(2,),
            initializer="zeros",
            dtype="float32",
            trainable=False,
            name="schedule",
            aggregation="only_first_replica",
        )
        self._finish_building()

    def _check_query_encoder(self) -> None:
        """Check that the query encoder has the same vocabulary, and no query encoder of its own."""
        other = self.query_encoder
        if other is None:
            return
        if not isinstance(other, TermTable | SparseEncoder):
            raise invalid("query_encoder", other, "a TermTable or a SparseEncoder", error=TypeError)
        own = self.backbone.vocabulary_size
        width = other.vocabulary_size if isinstance(other, TermTable) else other.embedding_dim
        if width != own:
            raise ValueError(
                f"query_encoder has {width} terms, but the backbone has {own}. Expected the same "
                "vocabulary."
            )
        if isinstance(other, SparseEncoder) and other.query_encoder is not None:
            raise ValueError(
                "The query_encoder also has a query_encoder. Expected a model without a "
                "query_encoder."
            )

    def _make_head(self) -> None:
        """Create the masked language model head, or the layer for token weights."""
        if self.pooling != sparse_pooling.TOKEN_WEIGHTS:
            settings = self.head_activation, self.head_layer_norm_epsilon
            self.head = make_masked_lm_head(self, *settings)
            self.head_activation, self.head_layer_norm_epsilon = self.head.hidden_settings
            return
        given = (self.activation != "relu", self.head_activation, self.head_layer_norm_epsilon)
        if any(given):
            raise ValueError(
                "pooling='token_weights' has no masked language model head. Remove `activation`, "
                "`head_activation` and `head_layer_norm_epsilon`."
            )
        with self.distribution.scope():
            self.head = Projection(1, "relu", name="head")
            self.head.build((None, self.backbone.hidden_dim))

    @property
    def head_record(self) -> Head:
        return NO_HEAD if self.pooling == sparse_pooling.TOKEN_WEIGHTS else super().head_record

    @property
    def default_losses(self) -> Mapping[str | None, Callable[[], keras.losses.Loss]]:
        """Map each format of training data to a function that creates the default loss."""
        if self.pooling == sparse_pooling.TOKEN_WEIGHTS:
            return TOKEN_WEIGHTS_LOSSES
        return TABLE_LOSSES if isinstance(self.query_encoder, TermTable) else SPARSE_LOSSES

    @functools.cached_property
    def _unweighted_ids(self) -> list[int]:
        """Return the ids of the tokens without a weight, or [] if there is no tokenizer."""
        if self.preprocessor is None:
            return []
        tokenizer = self.preprocessor.tokenizer
        names = ("start_token_id", "end_token_id", "pad_token_id", "unknown_token_id")
        return sorted({getattr(tokenizer, name) for name in names} - {None})

    @property
    def embedding_dim(self) -> int:
        """Return the vocabulary size."""
        return self.backbone.vocabulary_size

    @functools.cached_property
    def terms(self) -> list[str]:
        """Return the terms in the vocabulary (V,), as written by the tokenizer.

        Empty strings are used for rows in the token embedding without a token.
        """
        return self._answers.terms

    def logits_of(self, encoded, inputs, training=None):
        """Compute the term weights (B, V) from the backbone outputs."""
        mask = inputs.get("pooling_mask", add_padding_mask(inputs)["padding_mask"])
        x = encoded["sequence_output"]
        if self.pooling == sparse_pooling.TOKEN_WEIGHTS:
            ids = inputs["token_ids"]
            weights = self._compute_token_weights(x, ids, mask)
            return sparse_pooling.pool_term_weights(weights, ids, self.embedding_dim)
        settings = self.pooling, self.activation, training, self._uses_sparse_gradients
        return sparse_pooling.compute_term_weights(self.backbone, self.head, x, mask, *settings)

    def _compute_token_weights(self, x, token_ids, mask):
        """Compute the weight for each token, (B, L) float32.

        Args:
            x: The backbone output, with shape (B, L, D).
            token_ids: Integer tensor of shape (B, L).
            mask: Tensor of shape (B, L) that is True for the tokens whose weights are computed.
        """
        weights = self.head(ops.cast(x, "float32"))[..., 0]
        mask = ops.cast(mask, "float32")
        for token in self._unweighted_ids:
            mask = mask * ops.cast(token_ids != token, "float32")
        return weights * mask

    @property
    def _uses_sparse_gradients(self) -> bool:
        """Return whether training computes the gradients of max pooling with sparse matrices."""
        in_graphs = keras.config.backend() == "tensorflow" and not self.jit_compile
        return in_graphs and self.compute_dtype == "float32"

    def check_savable(self) -> None:
        """Check that this model can be saved in the sentence-transformers format."""
        if self.pooling != sparse_pooling.TOKEN_WEIGHTS:
            check_head_representable(self)
        other = self.query_encoder
        if other is not None and sparse_pooling.TOKEN_WEIGHTS in (
            self.pooling,
            getattr(other, "pooling", None),
        ):
            raise ValueError(
                "pooling='token_weights' (BGE-M3) cannot be saved together with a query_encoder. "
                "Save both models separately."
            )
        if isinstance(other, SparseEncoder):
            check_head_representable(other)
            if other.preprocessor is None:
                raise ValueError(
                    "The query_encoder has no preprocessor. Load it with from_preset, because its "
                    "tokenizer is also saved."
                )
        if self.preprocessor is not None and not self.preprocessor.include_prompt:
            raise ValueError(
                "include_prompt is False, but SparseEncoder in sentence-transformers does not have "
                "this setting. Set it to True."
            )

    # -- training ------------------------------------------------------------------------------

    @validate_arguments
    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer | None = None,
        loss: object = None,
        metrics: Sequence[object] | Mapping[str, object] | str | None = None,
        *,
        query_learning_rate: PositiveFloat | None = None,
        **options: Unpack[EmbedderCompileOptions],
    ) -> None:
        """Configure the model for training. See also `Embedder.compile`.

        Args:
            optimizer, loss, metrics: See `Embedder.compile`.
            query_learning_rate: Optional float. Peak learning rate of `query_encoder` if the
                optimizer is "auto", for example 1e-3 for a `TermTable`. If None, the current
                setting is kept. A new model uses the same learning rate for all weights.
            **options: `chunk_size`, and additional arguments to pass to `TextModel.compile`.

        Raises:
            ValueError: If `query_learning_rate` is used without a query encoder.
        """
        if query_learning_rate is not None and self.query_encoder is None:
            raise ValueError("The model has no query_encoder. Remove `query_learning_rate`.")
        with self._restore_on_error("query_learning_rate"):
            self.query_learning_rate = query_learning_rate or self.query_learning_rate
            super().compile(optimizer, loss, metrics, **options)

    @property
    def objective(self) -> Objective:
        if self.query_learning_rate is None:
            return super().objective
        share = self.query_learning_rate / self.learning_rate
        shares = {id(weight): share for weight in self.query_encoder.trainable_weights}
        return dataclasses.replace(super().objective, learning_rate_shares=shares)

    def _compute_query_vectors(self, inputs, training):
        if self.query_encoder is None:
            return super()._compute_query_vectors(inputs, training)
        if isinstance(self.query_encoder, TermTable):
            return self.query_encoder(inputs)
        return self.query_encoder(inputs, training=training)

    def encode_queries(self, texts: xp.Tensor) -> dict:
        """Tokenize texts (N,) for use as queries in another model, without a prompt."""
        return self.preprocessor.encode_texts(texts, NO_PROMPT)

    def call(self, inputs, training=None):
        if training:
            self.schedule.assign(self.schedule + np.array([1, 0], "float32"))
        return super().call(inputs, training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Compute the loss. During training, the regularization in `SPLADE` increases over time."""
        batch_loss = None
        if training and isinstance(self.loss, losses.SPLADE):
            batch_loss = self.objective.make_batch_loss(
                self.loss.scale_weights(self._get_regularization_share())
            )
        return super().compute_loss(x, y, y_pred, sample_weight, training, batch_loss)

    def _get_regularization_share(self):
        """Return the factor that multiplies the regularization weights in this step."""
        step, rising = self.schedule[0] - 1, self.schedule[1]
        share = ops.square(ops.minimum(step / ops.maximum(rising, 1.0), 1.0))
        return ops.where(rising > 0, share, 1.0)

    def _prepare_training(self, given, data) -> bool:
        self.schedule.assign([0, data.total_steps // RAMP_DIVISOR])
        return super()._prepare_training(given, data)

    @property
    def _answers(self) -> TermAnswers:
        other, of_queries = self.query_encoder, {}
        if isinstance(other, TermTable):
            of_queries = {"query_rows": other.embed}
        elif other is not None:
            of_queries = {"query_runner": other._runner}
        return dataclasses.replace(super()._answers, **of_queries)

    embed = delegate_to_answers(TermAnswers.embed)

    top_terms = delegate_to_answers(TermAnswers.top_terms)

    @validate_arguments
    def signatures(self, max_terms: PositiveInt | None = None) -> dict[str, Callable]:
        """Return the functions that an export contains.

        The functions are called "serving_default", "query" and "document". The input "text" is
        embedded with the default prompt, or with the prompt for queries or documents.

        Args:
            max_terms: Optional integer. Maximum number of terms to keep per text, as in `embed`.

        Returns:
            Dict of functions. Each function returns "count" (N,), which is the number of terms per
            text, and "index" in the vocabulary, "term" and "weight" (N, K), sorted by decreasing
            weight. After "count" terms, these are padded with 0 and "".
        """
        preprocessor, most = self.preprocessor, max_terms or self.max_terms

        def answer(text, prompt):
            model = self.query_encoder if preprocessor.is_query(prompt) else self
            run = (
                model if isinstance(model, TermTable) else functools.partial(model, training=False)
            )
            examples = preprocessor.encode(text, prompt=prompt)
            weights = compute_text_outputs_in_graph(self, examples, self.embedding_dim, run)
            count = xp.math.count_nonzero(weights, axis=1, dtype=xp.int32)
            count = count if most is None else xp.minimum(count, most)
            longest = xp.reduce_max(xp.concat([[0], count], axis=0))
            weights, indices = xp.math.top_k(weights, longest)
            real = xp.sequence_mask(count, xp.shape(weights)[1])
            indices, weights = (xp.where(real, indices, 0), xp.where(real, weights, 0.0))
            terms = xp.where(real, xp.gather(xp.constant(self.terms), indices), "")
            return {"count": count, "index": indices, "term": terms, "weight": weights}

        return make_role_signatures(answer, None)

    @property
    def served_tokenizers(self) -> list[Tokenizer]:
        other = self.query_encoder
        of_queries = [] if other is None else [getattr(other, "preprocessor", other).tokenizer]
        return [*super().served_tokenizers, *of_queries]

    # -- presets -------------------------------------------------------------------------------

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[SparseEncoderPresetArguments]
    ) -> Self:
        """Load a pretrained sparse encoder, or a masked language model to train.

        Encoders without a masked language model head get a new head, which must be trained. If the
        folder contains `sparse_linear.pt`, as for BGE-M3, the pooling is set to "token_weights".
        See also `Task.from_preset`.

        Args:
            source: String or path. A name from `list_presets()`, a folder,
                `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: Options for the model: `pooling`, `activation`, `max_terms`,
                `similarity_function` and `query_encoder`. Use `query_encoder=None` to skip loading
                the separate query encoder. Options for the preprocessor: `sequence_length`,
                `max_length`, `prompts`, `default_prompt` and `include_prompt`. Options for the
                backbone, for example `dropout` and `dtype`. Option for the tokenizer:
                `added_tokens`. Options for the checks: `verify`, `max_bytes` and `allow_nonfinite`.
        """
        return super().from_preset(source, **arguments)

    @classmethod
    def tiny_data(cls) -> TinyData:
        x = ["a b ab", "c", "c d e a b", "p"]
        arguments = {"pooling": "max", "activation": "log1p_relu"}
        return TinyData(arguments, x, questions=lambda task: (np.array(x),))
