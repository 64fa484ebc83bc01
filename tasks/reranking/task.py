"""The task of reranking: how well each of some texts answers a query.

Comment letters: B batch, N pairs, K texts of a query, L sequence, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Unpack

import keras

from encoder_zoo.common.layer_arguments import LayerArguments
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import Rate, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head
from encoder_zoo.presets.formats import cross_encoders
from encoder_zoo.tasks.base.class_names import labels_from_config
from encoder_zoo.tasks.base.list_scores import ListScores
from encoder_zoo.tasks.base.task import TinyData
from encoder_zoo.tasks.losses.ranking import RankingLoss
from encoder_zoo.tasks.losses.ranking_pairs import LambdaLoss
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.preprocessing.text_columns import columns_advice
from encoder_zoo.tasks.reranking.columns import NAMES
from encoder_zoo.tasks.reranking.metrics import NDCG, PairAccuracy
from encoder_zoo.tasks.reranking.preprocessor import (
    CANDIDATE,
    RerankerPreprocessor,
    takes_lists,
)
from encoder_zoo.tasks.reranking.presets import RerankerPresets
from encoder_zoo.tasks.reranking.ranking import Ranking
from encoder_zoo.tasks.training.keyword_arguments import CompileOptions
from encoder_zoo.tasks.training.logit_metrics import loss_on_logits
from encoder_zoo.tasks.training.prepared import inputs_of, is_prepared
from encoder_zoo.tasks.training.recipe import is_auto
from encoder_zoo.tasks.training.sources import is_dataset

if TYPE_CHECKING:
    from encoder_zoo.presets.formats.checkpoint import Checkpoint

Activation = Literal["sigmoid", "linear"]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Reranker(Ranking, RerankerPresets, ListScores):
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
        ValueError: "A Bert reranker reads the pooler's output. ..."

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

    task_name = "reranker"
    checkpoint_class_suffix = "ForSequenceClassification"
    pipeline_tag = "text-ranking"
    preprocessor_class = RerankerPreprocessor
    peft_task_type = "SEQ_CLS"
    text_method = "score"
    column_roles = NAMES
    packs_batches = True
    answer_settings = ("activation",)
    sentence_transformers_class = "CrossEncoder"
    num_classes = 1  # of the head, in config.json

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
        self.activation = activation
        self._learns_lists = False
        self._add_head("reranker", dropout)

    # -- training ------------------------------------------------------------------------------

    @property
    def output_activation(self) -> str:
        return self.activation

    @property
    def traced_settings(self) -> tuple:
        return (self._learns_lists,)

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
        if loss is not None and not is_auto(loss):
            # Cross-entropy is of logits also without an activation.
            loss = loss_on_logits(loss, _crossentropy(), "sigmoid")
        super().compile(optimizer, loss, metrics, **options)

    def default_loss(self) -> keras.losses.Loss:
        return LambdaLoss() if self._learns_lists else _crossentropy()

    def default_metrics(self) -> list:
        if self._learns_lists:
            return [NDCG()]
        loss = self.recipe.arguments["loss"]
        of_probabilities = is_auto(loss) or isinstance(loss, keras.losses.BinaryCrossentropy)
        return [PairAccuracy()] if of_probabilities else []

    def _check_labels(self, x, y) -> None:
        if is_dataset(x) and y is None:
            y = keras.utils.unpack_x_y_sample_weight(x.element_spec)[1]
        if y is None:
            raise ValueError(
                "The scores are missing. Expected y: one score for each pair, or for each query a "
                f"list of scores, one for each of its texts.{columns_advice(x)}"
            )

    def _adapt(self, x, y) -> None:
        """Choose between the default losses and metrics of pairs and of lists."""
        x = inputs_of(x.element_spec) if is_dataset(x) else x
        of_lists = CANDIDATE + "token_ids" in x if is_prepared(x) else takes_lists(x)
        self._check_loss(of_lists)
        if of_lists != self._learns_lists:
            self._learns_lists = of_lists
            if self.compiled:
                self.compile(**self.recipe.arguments, **self.recipe.options)

    def _check_loss(self, of_lists: bool) -> None:
        """Raise a ValueError for a loss of lists and data of pairs, or the other way round."""
        loss = self.recipe.arguments.get("loss", "auto")
        if isinstance(loss, RankingLoss) and not of_lists:
            raise ValueError(
                f"{type(loss).__name__} orders the texts of a query. Expected a list of texts for "
                "each query, and a list of scores. Received: pairs."
            )
        of_keras = type(loss).__module__.startswith("keras.") or isinstance(loss, str)
        if of_lists and of_keras and not is_auto(loss):
            name = loss if isinstance(loss, str) else type(loss).__name__
            raise ValueError(
                f"The loss {name} is of pairs, and x has a list of texts for each query. Use "
                "loss='auto' or a loss of lists, such as ez.losses.LambdaLoss()."
            )

    def _make_ready(self) -> None:
        super()._make_ready()
        if self.preprocessor is not None:
            crossentropy = isinstance(self.loss, keras.losses.BinaryCrossentropy)
            self.preprocessor._learns_probabilities = crossentropy
            self.preprocessor._learns_gains = isinstance(self.loss, LambdaLoss)

    def _begin_evaluate(self, x, y) -> None:
        self._check_labels(x, y)
        self._adapt(x, y)
        super()._begin_evaluate(x, y)

    # -- checkpoints ---------------------------------------------------------------------------

    @classmethod
    def arguments_from_files(cls, checkpoint: Checkpoint, given: dict) -> dict:
        if "activation" in given:
            return {}
        return cross_encoders.cross_encoder_arguments(checkpoint)

    @classmethod
    def checkpoint_arguments(cls, config: dict, head: Head, arguments: dict) -> dict:
        [architecture, *_] = config.get("architectures") or [""]
        labels = labels_from_config(config)
        if architecture.endswith(cls.checkpoint_class_suffix) and len(labels) > 1:
            raise ValueError(
                f"The checkpoint is a classifier of {len(labels)} labels, "
                f"{', '.join(labels[:5])}, and a Reranker has one output. Load it with "
                "SequenceClassifier.from_preset. To train a Reranker on its encoder, give that "
                "to the constructor: Reranker(Backbone.from_preset(source), preprocessor)."
            )
        return super().checkpoint_arguments(config, head, arguments)

    def extra_config(self) -> dict:
        return cross_encoders.cross_encoder_config(self.activation)

    def files_to_save(self, dtype: object) -> dict[str, bytes]:
        if self.preprocessor is None:
            return {}
        length = self.preprocessor.max_sequence_length
        return cross_encoders.cross_encoder_files(self.preprocessor.tokenizer, length)

    # -- exports -------------------------------------------------------------------------------

    def signatures(self) -> dict[str, Callable]:
        """Return `score` for exports, and `rank` of one query and its texts.

        Returns:
            "serving_default", from "query" and "text" (N,) to "score" (N,); and "rank", from
            "query" (1,) and "text" (M,) to "order" (M,), the numbers of the texts, the best first,
            and their "score" (M,).
        """

        def logits_of(query, text):
            examples = self.preprocessor.encode((query, text))
            ones = tf.ones_like(examples["token_ids"].row_lengths())
            return in_graph_batches(self._of_examples, examples, ones, 1).flat_values[:, 0]

        def shown(logits):
            return tf.sigmoid(logits) if self.activation == "sigmoid" else logits

        def score(query, text):
            return {"score": shown(logits_of(query, text))}

        def rank(query, text):
            logits = logits_of(tf.broadcast_to(query, tf.shape(text)), text)
            order = tf.argsort(logits, direction="DESCENDING", stable=True)  # they do not saturate
            return {"order": order, "score": shown(tf.gather(logits, order))}

        rank.takes_other_shapes = True
        return {"serving_default": score, "rank": rank}

    def _of_examples(self, examples: dict):
        return self(self.preprocessor.pad(examples), training=False)

    # -- checks of `encoder_zoo.testing` -------------------------------------------------------

    @classmethod
    def tiny_data(cls) -> TinyData:
        x = ["a b ab", "c", "a", "p"], ["d e", "c d e a b", "p", "a b c"]
        return TinyData({"activation": "linear"}, x, [0.0, 1.0, 1.0, 0.5])


def _crossentropy() -> keras.losses.Loss:
    return keras.losses.BinaryCrossentropy(from_logits=True)
