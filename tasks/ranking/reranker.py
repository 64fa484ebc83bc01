"""Reranking models, which score the relevance of texts to a query.

Comments use these letters for shapes: B batch, N pairs, K texts of a query, L sequence, D hidden.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Self, Unpack

import keras
import numpy as np
from keras import metrics, ops

from encoder_zoo.common.arguments import CompileOptions, LayerArguments
from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import HigherIsBetter
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import PositiveInt, Rate, validate_arguments
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.presets.formats.cross_encoders import CrossEncoderFolderFormat
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.answers import delegate_to_answers
from encoder_zoo.tasks.base.inference import compute_text_outputs_in_graph
from encoder_zoo.tasks.base.task import TaskPresetArguments, TinyData
from encoder_zoo.tasks.losses import batch_loss
from encoder_zoo.tasks.losses.ranking import RankingLoss
from encoder_zoo.tasks.losses.ranking_pairs import LambdaLoss
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows
from encoder_zoo.tasks.preprocessing.batch_shapes import ABSENT_SCORE
from encoder_zoo.tasks.preprocessing.checks import check_each
from encoder_zoo.tasks.ranking.list_scores import TextScoringTask
from encoder_zoo.tasks.ranking.rank_answers import RankActivation, RankAnswers
from encoder_zoo.tasks.ranking.reranker_preprocessor import (
    CANDIDATE,
    ExpectedScores,
    RerankerPreprocessor,
    is_list_input,
    list_scores,
)
from encoder_zoo.tasks.retrieval.evaluation import compute_ranking_metrics
from encoder_zoo.tasks.training.objective import Objective, find_loss
from encoder_zoo.tasks.training.recipe import is_auto
from encoder_zoo.tasks.training.sources import check_preprocessor


@keras.saving.register_keras_serializable(package="encoder_zoo")
class PairAccuracy(metrics.BinaryAccuracy):
    """Compute the accuracy of pairs. True scores of 0.5 or more count as relevant.

    A pair is predicted to be relevant if its probability is above 0.5.

    Call arguments:
        y_true: Float tensor of shape (B, 1). Scores between 0 and 1.
        y_pred: Float tensor of shape (B, 1). Logits.
        sample_weight: Optional float tensor of shape (B,). Weights of the pairs.

    Example:
        >>> metric = PairAccuracy()
        >>> metric.update_state([[0.9], [0.2]], [[3.0], [1.0]])
        >>> float(metric.result())
        0.5
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "accuracy", "threshold": 0.0, **kwargs})

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(ops.convert_to_tensor(y_true) >= 0.5, self.dtype)
        return super().update_state(y_true, y_pred, sample_weight)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class NDCG(HigherIsBetter, ConfigFromSignature, metrics.Mean):
    """Compute the mean nDCG@k over all queries. The scores are used as gains.

    Queries without a positive score are ignored. The discount of tied texts is averaged over their
    ranks, as in scikit-learn's `ndcg_score`, so the result does not depend on the order of the
    input.

    Args:
        k: Integer. Number of top-ranked texts that count. Defaults to 10.

    Call arguments:
        y_true: Float tensor of shape (B, K). Scores. Use minus infinity for padding.
        y_pred: Float tensor of shape (B, K). Logits.
        sample_weight: Optional float tensor of shape (B,). Weights of the queries.

    Source: Järvelin and Kekäläinen 2002, Cumulated Gain-Based Evaluation of IR Techniques,
    sections 2.2 and 2.3.

    Example:
        >>> metric = NDCG()
        >>> metric.update_state([[0.0, 1.0]], [[2.0, 1.0]])
        >>> round(float(metric.result()), 3)  # 1 / log2(3)
        0.631
    """

    @validate_arguments
    def __init__(self, k: PositiveInt = 10, **kwargs):
        super().__init__(**{"name": f"ndcg@{k}", **kwargs})
        self.k = k

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_true, y_pred = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
        y_pred = ops.where(y_true > ABSENT_SCORE, y_pred, ABSENT_SCORE)
        gain = ops.maximum(y_true, 0.0)
        rank = ops.arange(1, ops.shape(gain)[1] + 1, dtype="float32")
        discount = ops.where(rank <= self.k, math.log(2) / ops.log(1 + rank), 0.0)
        best = ops.sum(-ops.sort(-gain, axis=-1) * discount, axis=-1)
        others, own = y_pred[:, None], y_pred[:, :, None]  # (B, 1, K), (B, K, 1)
        above, equal = (ops.sum(ops.cast(x, "int32"), -1) for x in (others > own, others == own))
        sums = ops.concatenate([ops.zeros((1,)), ops.cumsum(discount)])
        shared = ops.take(sums, above + equal) - ops.take(sums, above)
        found = ops.sum(gain * shared / ops.cast(equal, "float32"), axis=-1)
        counts = ops.cast(best > 0, "float32")
        if sample_weight is not None:
            counts *= ops.reshape(ops.cast(sample_weight, "float32"), (-1,))
        super().update_state(ops.divide_no_nan(found, best), counts)


class RerankerPresetArguments(TaskPresetArguments, total=False):
    """Types of the keyword arguments of `Reranker.from_preset`."""

    max_length: int | None


LISTS = "lists"  # a list of texts per query
REPORTED_METRICS = ("ndcg@10", "mrr@10", "map@100")


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Reranker(TextScoringTask):
    """Cross-encoder that scores the relevance of texts to a query.

        reranker = ez.Reranker.from_preset("hf://cross-encoder/ms-marco-MiniLM-L6-v2")
        reranker.rank("Who sings?", texts, top_k=5)  # [{"index", "score", "text"}, ...]
        reranker.score(queries, texts)  # (N,)
        index.search("Who sings?", reranker=reranker)

    Each text is passed to the model together with the query, as a single input. `from_preset` loads
    cross-encoders saved by any version of sentence-transformers, with their activation. Any other
    encoder gets a new head.

    Args:
        backbone: A `Backbone`. A BERT backbone must have a pooler.
        preprocessor: Optional `RerankerPreprocessor` for raw text.
        activation: String, "sigmoid" or "linear". Activation that converts logits to scores.
            Defaults to "sigmoid".
        dropout: Float between 0 and 1. Dropout rate before the output layer. If None, the
            backbone's dropout rate will be used.

    `fit` accepts these forms of data:

    - Pairs with scores, `fit((queries, texts), scores)`. The default loss is binary cross-entropy,
      which requires scores between 0 and 1. For scores in another range, use another loss, for
      example `compile(loss="mse")`. The loss is always computed on logits.
    - Queries with a list of texts per query, `fit((queries, lists of texts), lists of scores)`. The
      default loss is `LambdaLoss`, which optimizes the order of each list. It requires scores
      between 0 (the text does not answer the query) and 30. The lists can have different lengths.
      Other losses for lists are `RankNet`, `ListNet`, `PListMLE` and `MultipleNegatives` from
      `ez.losses`. To train on a teacher's scores, use `ListMarginMSE`.

    Call arguments:
        inputs: Dict of tensors, as returned by the preprocessor.

    Returns:
        Float32 logits of shape (B, 1), or (B, K) for inputs with candidates.

    Raises:
        ValueError: If the head uses the pooler output, and `backbone` has no pooler.

    Source: Nogueira and Cho 2019, Passage Re-ranking with BERT, section 3.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16)
        >>> reranker = Reranker(backbone)
        >>> keras.ops.shape(reranker({"token_ids": np.array([[2, 7, 3, 9, 3]])}))
        (1, 1)
    """

    record = TaskRecord(
        "reranker",
        RerankerPreprocessor,
        head="ForSequenceClassification",
        pipeline_tag="text-ranking",
        peft_type="SEQ_CLS",
        answers_class=RankAnswers,
        text_method="score",
        answer_settings=("activation",),
        folder=CrossEncoderFolderFormat(),
        packs_batches=True,
    )

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: RerankerPreprocessor | None = None,
        activation: RankActivation = "sigmoid",
        dropout: Rate | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.num_classes = 1  # saved in config.json
        self.activation = activation
        self._add_head("reranker", dropout)

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[RerankerPresetArguments]
    ) -> Self:
        """Load a cross-encoder, or an encoder with a new head.

        Works like `Task.from_preset`.

        Args:
            source: String or path. A name from `list_presets()`, a folder,
                `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: Option for the model: `activation`, "sigmoid" or "linear". Options for the
                preprocessor: `sequence_length` and `max_length`. Options for the backbone, for
                example `dropout` and `dtype`. Option for the tokenizer: `added_tokens`. Options for
                the checks: `verify`, `max_bytes` and `allow_nonfinite`.
        """
        return super().from_preset(source, **arguments)

    # -- training ------------------------------------------------------------------------------

    @property
    def objective(self) -> RelevanceObjective:
        if self.form == LISTS:
            return RelevanceObjective(LambdaLoss, lambda: [NDCG()], self.activation)
        return RelevanceObjective(_make_crossentropy, activation=self.activation)

    @validate_arguments
    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer | None = None,
        loss: object = None,
        metrics: Sequence[object] | Mapping[str, object] | str | None = None,
        **options: Unpack[CompileOptions],
    ) -> None:
        """Configure the model for training. Works like `TextModel.compile`.

        Args:
            optimizer, metrics: See `TextModel.compile`.
            loss: Loss, computed on logits. With "auto", binary cross-entropy is used for pairs, and
                `LambdaLoss` for lists. Defaults to "auto".
            **options: Additional arguments to pass to `TextModel.compile`.
        """
        super().compile(optimizer, loss, metrics, **options)
        if self.preprocessor is not None:
            self.preprocessor.attach(self)  # valid scores depend on the loss

    @property
    def expected_scores(self) -> ExpectedScores | None:
        """Return the kind of scores for the loss, or None if all finite scores are valid."""
        if not self.compiled:
            return None
        if batch_loss.get_keras_function(self.loss) in batch_loss.PROBABILITY_LOSSES:
            return "probabilities"
        return "gains" if isinstance(self.loss, LambdaLoss) else None

    def _adapt_to_data(self, given, training=True) -> None:
        """Choose the default loss and metrics for pairs or for lists."""
        x = given.element[0]
        of_lists = CANDIDATE + "token_ids" in x if given.is_prepared else is_list_input(x)
        self._check_loss(of_lists)
        self._set_form(LISTS if of_lists else None)

    def _check_loss(self, of_lists: bool) -> None:
        """Raise a ValueError if the loss is for pairs and the data has lists, or vice versa."""
        loss = self.recipe.arguments.get("loss", "auto")
        if isinstance(loss, RankingLoss) and not of_lists:
            raise ValueError(
                f"{type(loss).__name__} requires a list of texts for each query, but `x` contains "
                "pairs. Pass a list of texts and a list of scores for each query."
            )
        of_keras = isinstance(loss, str) or batch_loss.get_keras_function(loss) is not None
        if of_lists and of_keras and not is_auto(loss):
            name = loss if isinstance(loss, str) else type(loss).__name__
            raise ValueError(
                f"The loss {name} requires pairs, but `x` contains a list of texts for each "
                "query. Use loss='auto' or a loss for lists, such as ez.losses.LambdaLoss()."
            )

    # -- exports -------------------------------------------------------------------------------

    def signatures(self) -> dict[str, Callable]:
        """Return the functions to export, which score pairs and rank the texts of a query.

        Returns:
            Dict of two functions. "serving_default" maps "query" and "text" (N,) to "score" (N,).
            "rank" maps "query" (1,) and "text" (M,) to "score" (M,) and "order" (M,), the indices
            of the texts sorted by score in descending order.
        """

        def run(query, text):
            examples = self.preprocessor.encode((query, text))
            return compute_text_outputs_in_graph(self, examples, 1)[:, 0]

        return self._answers.make_score_functions(run)

    # -- checks of `encoder_zoo.testing` -------------------------------------------------------

    @classmethod
    def tiny_data(cls) -> TinyData:
        x = ["a b ab", "c", "a", "p"], ["d e", "c d e a b", "p", "a b c"]
        return TinyData({"activation": "linear"}, x, [0.0, 1.0, 1.0, 0.5])

    # -- answers -----------------------------------------------------------------------------------

    score = delegate_to_answers(RankAnswers.score)

    def _score_texts(self, query, texts, batch_size):
        return self._answers.compute_logits(query, texts, batch_size)

    rank = delegate_to_answers(RankAnswers.rank)

    @validate_arguments
    @lock_weights
    def evaluate_ranking(
        self,
        queries: object,
        texts: object,
        relevance: object,
        batch_size: PositiveInt | None = None,
    ) -> dict[str, float]:
        """Evaluate the rankings of texts for queries.

        Args:
            queries: List, array or column of N queries.
            texts: List of N lists of strings. The texts to rank for each query.
            relevance: List of N lists of numbers. The relevance of each text: positive for relevant
                texts, and 0 for all other texts.
            batch_size: Optional positive integer. Batch size, in pairs. If None, 32 is used.

        Returns:
            Dict with "ndcg@10", "mrr@10" and "map@100", averaged over all queries with a relevant
            text. Texts are sorted by their logits. For ties, each metric is averaged over all
            possible orders.

        Raises:
            ValueError: If `relevance` does not contain one value per text, if a value is negative,
                or if no value is positive.

        Example:
            >>> from encoder_zoo import Reranker
            >>> reranker = Reranker.from_preset("bert_nano_en_uncased")
            >>> reranker.evaluate_ranking(["Who?"], [["Yes.", "She."]], [[1, 1]])["mrr@10"]
            1.0
        """
        queries, texts = self.record.preprocessor_class.inputs.convert((queries, texts))
        if not isinstance(texts, xp.RaggedTensor):
            raise ValueError(
                "`texts` contains one text per query. Expected a list of texts for each query."
            )
        relevance = list_scores(relevance, texts.row_lengths())
        row, expected = texts.value_rowids(), ". Expected 0 or more."
        values = relevance.values
        check_each(values, values >= 0, " has the relevance ", values, expected, index=row)
        grades = relevance.to_list()
        useful = [any(gain > 0 for gain in gains) for gains in grades]
        if not any(useful):
            raise ValueError(
                "`relevance` has no value greater than 0. Expected a relevant text for at least "
                "one query."
            )
        check_preprocessor(self, queries)
        queries = xp.gather(queries, row)
        logits = self._answers.compute_logits(queries, texts.values, batch_size)
        rows = np.split(logits, texts.row_splits[1:-1].numpy())
        rows = [scores for scores, counts in zip(rows, useful, strict=True) if counts]
        orders = [np.argsort(-scores, kind="stable") for scores in rows]
        scores = [scores[order] for scores, order in zip(rows, orders, strict=True)]
        grades = [
            dict(enumerate(gains)) for gains, counts in zip(grades, useful, strict=True) if counts
        ]
        found = compute_ranking_metrics(orders, grades, cutoffs=[10], scores=scores)
        return {name: found[name] for name in REPORTED_METRICS}


def _make_crossentropy() -> keras.losses.Loss:
    return keras.losses.BinaryCrossentropy(from_logits=True)


class RelevanceObjective(Objective):
    """Objective of `Reranker` models, which have one logit per text."""

    def resolve_loss(self, loss):
        found = find_loss(loss)
        if batch_loss.get_keras_function(found) in batch_loss.CATEGORICAL_LOSSES:
            raise ValueError(
                f"{type(found).__name__} requires several classes, but a Reranker has one output. "
                f"Use loss='auto' ({type(self.default_loss()).__name__}) or 'binary_crossentropy'."
            )
        if batch_loss.get_keras_function(found) not in batch_loss.INCLUDED_ACTIVATIONS:
            return super().resolve_loss(loss)
        # Cross-entropy is computed on logits, even for models without an activation.
        return Objective(_make_crossentropy, activation="sigmoid").resolve_loss(loss)

    def make_metrics(self, loss) -> list:
        found = super().make_metrics(loss)  # metrics for lists
        of_probabilities = batch_loss.get_keras_function(loss) in batch_loss.PROBABILITY_LOSSES
        return [PairAccuracy()] if of_probabilities and not found else found
