"""The task of reranking: how well each of some texts answers a query.

Comment letters: B batch, N pairs, K texts of a query, L sequence, D hidden.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import keras
import numpy as np
from keras import metrics, ops

from encoder_zoo.common.arguments import CompileOptions, LayerArguments
from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import HigherIsBetter
from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.validation import PositiveInt, Rate, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.presets.formats.cross_encoders import CrossEncoderFolder
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.missing_answers import Missing
from encoder_zoo.tasks.base.task import TaskPresetArguments, TinyData
from encoder_zoo.tasks.losses.ranking import RankingLoss
from encoder_zoo.tasks.losses.ranking_pairs import LambdaLoss
from encoder_zoo.tasks.losses.replicas import leaves_out_rows
from encoder_zoo.tasks.preprocessing.batch_shapes import ABSENT
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.preprocessing.checks import check_each
from encoder_zoo.tasks.ranking.list_scores import ListScores
from encoder_zoo.tasks.ranking.rank_answers import Activation, RankAnswers
from encoder_zoo.tasks.ranking.reranker_preprocessor import (
    CANDIDATE,
    ExpectedScores,
    RerankerPreprocessor,
    list_scores,
    takes_lists,
)
from encoder_zoo.tasks.retrieval.evaluation import ranking_metrics
from encoder_zoo.tasks.retrieval.ranking import RankedText
from encoder_zoo.tasks.training import loss_inputs
from encoder_zoo.tasks.training.loss_inputs import function_of
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.tasks.training.prepared import inputs_of, is_prepared
from encoder_zoo.tasks.training.recipe import is_auto
from encoder_zoo.tasks.training.sources import check_preprocessor, is_dataset

if TYPE_CHECKING:
    from typing import Self


@keras.saving.register_keras_serializable(package="encoder_zoo")
class PairAccuracy(metrics.BinaryAccuracy):
    """Computes the share of the pairs whose probability is on the same side of 0.5 as their score.

    Call arguments:
        y_true: (B, 1) scores from 0 to 1.
        y_pred: (B, 1) logits.
        sample_weight: (B,).

    Example:
        >>> metric = PairAccuracy()
        >>> metric.update_state([[0.9], [0.2]], [[3.0], [1.0]])
        >>> float(metric.result())
        0.5
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "accuracy", "threshold": 0.0, **kwargs})

    @leaves_out_rows
    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(ops.convert_to_tensor(y_true) >= 0.5, self.dtype)
        return super().update_state(y_true, y_pred, sample_weight)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class NDCG(HigherIsBetter, ConfigFromSignature, metrics.Mean):
    """Computes the mean nDCG of the first k texts of each query, with the scores as gains.

    Queries without a score above 0 do not count. Texts of equal logits share the mean of their
    ranks' discounts, as in scikit-learn's `ndcg_score`, so that the order of a list does not count.

    Args:
        k: number of texts.

    Call arguments:
        y_true: (B, K) scores; minus infinity where there is no text.
        y_pred: (B, K) logits.
        sample_weight: (B,).

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

    @leaves_out_rows
    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_true, y_pred = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
        y_pred = ops.where(y_true > ABSENT, y_pred, ABSENT)
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
    """Keyword arguments of `Reranker.from_preset`."""

    max_length: int | None


LISTS = "lists"  # form of the data of `fit` that are not pairs
MEASURES = ("ndcg@10", "mrr@10", "map@100")


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Reranker(ListScores):
    """Score texts for a query: both are read together, as one input (cross-encoder).

        reranker = ez.Reranker.from_preset("hf://cross-encoder/ms-marco-MiniLM-L6-v2")
        reranker.rank("Who sings?", texts, top_k=5)  # [{"index", "score", "text"}, ...]
        reranker.score(queries, texts)  # (N,)
        index.search("Who sings?", reranker=reranker)

    `from_preset` opens the cross-encoders of sentence-transformers, of all its versions, with their
    activation; and any encoder, whose head is new.

    Args:
        backbone: any `Backbone`; for BERT one with a pooler.
        preprocessor: for raw text.
        activation: of the scores, "sigmoid" or "linear", which leaves them as they are.
        dropout: before the output layer, in training; None is the backbone's.

    `fit` takes:

    - pairs and a score for each, `fit((queries, texts), scores)`: 0 and 1, or numbers in between,
      with binary cross-entropy; other numbers with another loss, such as
      `compile(loss="mse")`, which is taken of the logits.
    - queries with a list of texts each, `fit((queries, lists of texts), lists of scores)`: the loss
      (`LambdaLoss`) orders each list; more is better, from 0 for texts that do not answer the query
      up to 30. Lists may be of different lengths. Others of `ez.losses` are `RankNet`, `ListNet`,
      `PListMLE`, `MultipleNegatives`, and for the scores of a teacher `ListMarginMSE`.

    Call arguments:
        inputs: the preprocessor's outputs.

    Returns:
        (B, 1) float32 logits; of inputs with candidates (B, K).

    Raises:
        ValueError: If the backbone was made without its pooler.

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
        text_method="score",
        answer_settings=("activation",),
        folder=CrossEncoderFolder(),
        packs_batches=True,
    )

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: RerankerPreprocessor | None = None,
        activation: Activation = "sigmoid",
        dropout: Rate | None = None,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.num_classes = 1  # of the head, in config.json
        self.activation = activation
        self._add_head("reranker", dropout)

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[RerankerPresetArguments]
    ) -> Self:
        """Load a cross-encoder, or an encoder with a new head; see `Task.from_preset`.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `activation` of the scores, "sigmoid" or "linear"; of the preprocessor
                `sequence_length`, `max_length`; `dropout`, `dtype` and others of the backbone;
                `added_tokens` of the tokenizer; `verify`, `max_bytes`, `allow_nonfinite` of the
                checks.
        """
        return super().from_preset(source, **arguments)

    # -- training ------------------------------------------------------------------------------

    @property
    def objective(self) -> Relevance:
        if self.form == LISTS:
            return Relevance(LambdaLoss, lambda: [NDCG()], self.activation)
        return Relevance(_crossentropy, activation=self.activation)

    @validate_arguments
    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer | None = None,
        loss: object = None,
        metrics: Sequence[object] | Mapping[str, object] | str | None = None,
        **options: Unpack[CompileOptions],
    ) -> None:
        """Compile as the other tasks, see `TextModel.compile`.

        Args:
            optimizer, metrics: see there.
            loss: "auto" is binary cross-entropy of pairs, `LambdaLoss` of lists. Losses get logits.
            **options: the others of `TextModel.compile`.
        """
        super().compile(optimizer, loss, metrics, **options)
        if self.preprocessor is not None:
            self.preprocessor.attach(self)  # the loss decides which scores are valid

    @property
    def expected_scores(self) -> ExpectedScores | None:
        """Return the scores that the loss takes; None: any finite numbers."""
        if not self.compiled:
            return None
        if function_of(self.loss) in loss_inputs.OF_PROBABILITIES:
            return "probabilities"
        return "gains" if isinstance(self.loss, LambdaLoss) else None

    def _adapt(self, x, y, training=True) -> None:
        """Choose between the default losses and metrics of pairs and of lists."""
        x = inputs_of(x.element_spec) if is_dataset(x) else x
        of_lists = CANDIDATE + "token_ids" in x if is_prepared(x) else takes_lists(x)
        self._check_loss(of_lists)
        form = LISTS if of_lists else None
        if form != self.form:
            self.form = form
            if self.compiled:
                self.compile(**self.recipe.arguments, **self.recipe.options)

    def _check_loss(self, of_lists: bool) -> None:
        """Raise a ValueError for a loss of lists and data of pairs, or the other way round."""
        loss = self.recipe.arguments.get("loss", "auto")
        if isinstance(loss, RankingLoss) and not of_lists:
            raise ValueError(
                f"{type(loss).__name__} orders the texts of a query, and x has pairs. Expected a "
                "list of texts and a list of scores for each query."
            )
        of_keras = isinstance(loss, str) or function_of(loss) is not None
        if of_lists and of_keras and not is_auto(loss):
            name = loss if isinstance(loss, str) else type(loss).__name__
            raise ValueError(
                f"The loss {name} is of pairs, and x has a list of texts for each query. Use "
                "loss='auto' or a loss of lists, such as ez.losses.LambdaLoss()."
            )

    # -- exports -------------------------------------------------------------------------------

    def signatures(self) -> dict[str, Callable]:
        """Return `score` for exports, and `rank` of one query and its texts.

        Returns:
            "serving_default", from "query" and "text" (N,) to "score" (N,); and "rank", from
            "query" (1,) and "text" (M,) to "order" (M,), the numbers of the texts, the best first,
            and their "score" (M,).
        """

        def run(query, text):
            examples = self.preprocessor.encode((query, text))
            ones = array_ops.ones_like(examples["token_ids"].row_lengths())
            return in_graph_batches(self._of_examples, examples, ones, 1).flat_values[:, 0]

        return self._answers.trace_scores(run)

    def _of_examples(self, examples: dict):
        return self(self.preprocessor.pad(examples), training=False)

    # -- checks of `encoder_zoo.testing` -------------------------------------------------------

    @classmethod
    def tiny_data(cls) -> TinyData:
        x = ["a b ab", "c", "a", "p"], ["d e", "c d e a b", "p", "a b c"]
        return TinyData({"activation": "linear"}, x, [0.0, 1.0, 1.0, 0.5])

    # -- answers -----------------------------------------------------------------------------------

    @overload
    def score(self, queries: str, texts: str, batch_size: int | None = None) -> float: ...
    @overload
    def score(
        self, queries: tuple[str, str], texts: None = None, batch_size: int | None = None
    ) -> float: ...
    @overload
    def score(
        self, queries: object, texts: object = None, batch_size: int | None = None
    ) -> np.ndarray: ...
    @overload
    def score(
        self, queries: object, texts: object = None, *, missing: Literal["none"], **options: Any
    ) -> np.ndarray: ...
    @property
    def _answers(self) -> RankAnswers:
        return RankAnswers(self.preprocessor, self, self.activation)

    @validate_arguments
    def score(
        self,
        queries: object,
        texts: object = None,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> np.ndarray | float:
        """Return how well each text answers its query; more is better.

        Args:
            queries: (N,); or one query, for all the texts; or, without `texts`, pairs: a list of
                them, `(queries, texts)`, or a table of two columns.
            texts: (N,).
            batch_size: default 32.
            missing: What rows without text get, whose text is None, NaN or blank. "none" is for a
                row of NaN; "error", the default, for an error that names the first of them.

        Returns:
            (N,) float32, in the order of the texts, after the model's activation; of a single pair
            a number.

        Raises:
            ValueError: If a text is empty, or if the numbers of queries and texts differ.

        Example:
            >>> from encoder_zoo import Reranker
            >>> reranker = Reranker.from_preset("bert_nano_en_uncased")
            >>> reranker.score(["Who sings?", "Where?"], ["She sings.", "Here."]).shape
            (2,)
        """
        check_preprocessor(self, queries)
        return self._answers.score(queries, texts, batch_size, missing)

    def _scores_of_texts(self, query, texts, batch_size):
        return self._answers.find_logits(query, texts, batch_size)

    @validate_arguments
    def rank(
        self,
        query: str,
        texts: object,
        top_k: PositiveInt | None = None,
        batch_size: PositiveInt | None = None,
    ) -> list[RankedText]:
        """Return the texts in the order of how well they match a query, the best first.

        Args:
            query: a text.
            texts: one or more texts.
            top_k: return so many; None is all.
            batch_size: default 32.

        Returns:
            For each text `{"index", "score", "text"}`: its number among the texts given, and its
            score. Texts of equal scores stay in their order.

        Raises:
            ValueError: If `query` is not one text, or if `texts` or one of them is empty.

        Example:
            >>> from encoder_zoo import Reranker
            >>> reranker = Reranker.from_preset("bert_nano_en_uncased")
            >>> [best] = reranker.rank("Who sings?", ["She sings.", "Here."], top_k=1)
            >>> sorted(best)
            ['index', 'score', 'text']
        """
        check_preprocessor(self, query)
        return self._answers.rank(query, texts, top_k, batch_size)

    @validate_arguments
    def evaluate_ranking(
        self,
        queries: object,
        texts: object,
        relevance: object,
        batch_size: PositiveInt | None = None,
    ) -> dict[str, float]:
        """Return how well the model ranks the texts of each query.

        Args:
            queries: (N,).
            texts: a list of texts for each query.
            relevance: a list of numbers for each query: of each text 0 if it does not answer the
                query, else more.
            batch_size: default 32.

        Returns:
            "ndcg@10", "mrr@10" and "map@100", means over the queries that have a relevant text.
            Texts are ordered by logits; those of equal ones have no order, and a metric is its mean
            over all orders of them.

        Raises:
            ValueError: If `relevance` does not have one number of 0 or more for each text, or has
                none above 0.

        Example:
            >>> from encoder_zoo import Reranker
            >>> reranker = Reranker.from_preset("bert_nano_en_uncased")
            >>> reranker.evaluate_ranking(["Who?"], [["Yes.", "She."]], [[1, 1]])["mrr@10"]
            1.0
        """
        queries, texts = self.record.preprocessor_class.inputs.read((queries, texts))
        if not isinstance(texts, array_ops.RaggedTensor):
            raise ValueError(
                "texts has one text for each query. Expected a list of texts for each."
            )
        relevance = list_scores(relevance, texts.row_lengths())
        row, expected = texts.value_rowids(), ". Expected 0 or more."
        values = relevance.values
        check_each(values, values >= 0, " has the relevance ", values, expected, index=row)
        useful = array_ops.reduce_any(relevance > 0, axis=1).numpy()
        if not useful.any():
            raise ValueError(
                "relevance has no number above 0. Expected a relevant text for some query."
            )
        check_preprocessor(self, queries)
        queries = array_ops.gather(queries, row)
        logits = self._answers.find_logits(queries, texts.values, batch_size)
        rows = np.split(logits, texts.row_splits[1:-1].numpy())
        rows = [scores for scores, counts in zip(rows, useful, strict=True) if counts]
        orders = [np.argsort(-scores, kind="stable") for scores in rows]
        scores = [scores[order] for scores, order in zip(rows, orders, strict=True)]
        grades = [dict(enumerate(gains)) for gains in relevance.to_list()]
        grades = [grade for grade, counts in zip(grades, useful, strict=True) if counts]
        found = ranking_metrics(orders, grades, cutoffs=[10], scores=scores)
        return {name: found[name] for name in MEASURES}


def _crossentropy() -> keras.losses.Loss:
    return keras.losses.BinaryCrossentropy(from_logits=True)


class Relevance(Objective):
    """Objective of a `Reranker`: one number for each pair of texts, or for each text of a list."""

    def resolve_loss(self, loss):
        found = loss_inputs.find_loss(loss)
        if function_of(found) in loss_inputs.OF_ONE_CLASS:
            raise ValueError(
                f"{type(found).__name__} is of several classes, and a Reranker has one output. Use "
                f"loss='auto' ({type(self.default_loss()).__name__}) or 'binary_crossentropy'."
            )
        if function_of(found) not in loss_inputs.OF_ACTIVATION:
            return super().resolve_loss(loss)
        # Cross-entropy is of logits also without an activation.
        return loss_inputs.resolve_loss(loss, _crossentropy(), "sigmoid")

    def metrics_for(self, loss) -> list:
        found = super().metrics_for(loss)  # of lists
        of_probabilities = function_of(loss) in loss_inputs.OF_PROBABILITIES
        return [PairAccuracy()] if of_probabilities and not found else found
