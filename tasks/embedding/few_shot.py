"""Classification from few examples: an embedder, trained on pairs, with a logistic head.

Comment letters: N texts, D width of vectors, C classes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Unpack, overload

import keras
import numpy as np
from safetensors.numpy import save

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.validation import (
    NonNegativeInt,
    PositiveInt,
    Probability,
    Verbosity,
    one_of,
    validate_arguments,
)
from encoder_zoo.common.weights_lock import weights_lock
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.presets.formats.checkpoint import copy, match, named_weights, stored_array
from encoder_zoo.presets.formats.embedding_folder import EmbeddingFolder
from encoder_zoo.presets.formats.embedding_modules import ModuleCheckpoint
from encoder_zoo.presets.formats.preset_files import SAFETENSORS
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.presets.formats.sentence_transformers import Module
from encoder_zoo.tasks import losses
from encoder_zoo.tasks.base.classes import (
    are_default_labels,
    count_and_names,
    labels_from_config,
    resolve_num_classes,
    sigmoid,
    softmax,
    validated_labels,
)
from encoder_zoo.tasks.base.confidence import (
    ScoredLabels,
    Thresholds,
    check_abstention,
    tuned_thresholds,
)
from encoder_zoo.tasks.base.missing_answers import Missing
from encoder_zoo.tasks.classification.class_answers import OTHER_ANSWERS, ClassAnswers, LabelScore
from encoder_zoo.tasks.classification.class_labels import (
    class_indices,
    learn_classes,
    multi_label_targets,
)
from encoder_zoo.tasks.classification.class_scores import ScoresClasses
from encoder_zoo.tasks.embedding.pair_columns import only_column
from encoder_zoo.tasks.embedding.text_embedder import SCORES, EmbedderPresetArguments, TextEmbedder
from encoder_zoo.tasks.embedding.text_embedder_preprocessor import TextEmbedderPreprocessor
from encoder_zoo.tasks.preprocessing.checks import check_each
from encoder_zoo.tasks.preprocessing.columns import columns_advice, texts_and_labels
from encoder_zoo.tasks.preprocessing.given_labels import check_given, log_odd_labels
from encoder_zoo.tasks.training.callbacks import Callbacks, History
from encoder_zoo.tasks.training.logit_metrics import metric_by_name

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.presets.formats.checkpoint import Checkpoint

logger = logging.getLogger("encoder_zoo")

MAX_STEPS = 2000
TOLERANCE = 1e-4  # of the largest number in the mean gradient


def fit_logistic(
    x: np.ndarray, hot: np.ndarray, activation: Callable[[np.ndarray], np.ndarray] = softmax
) -> tuple[np.ndarray, np.ndarray]:
    """Return kernel (D, C) and bias (C,) with the least cross-entropy and half their square norm.

    That is the objective of scikit-learn's `LogisticRegression` of three classes and more, whose
    bias is not penalized either; with `sigmoid` of one for each class against the others, as in
    `OneVsRestClassifier(LogisticRegression())`. It is convex, and is minimized by accelerated
    gradient descent. A warning says so if `MAX_STEPS` do not reach the minimum, as it does of
    vectors of large norm.

    Args:
        x: (N, D).
        hot: (N, C) of 0 and 1, the classes of each example.
        activation: `softmax` of one class for each example, `sigmoid` of any number.

    Source: Nesterov 1983; O'Donoghue and Candès 2015, Adaptive Restart for Accelerated Gradient
    Schemes, section 3.2, for the restart.

    Example:
        >>> kernel, bias = fit_logistic(np.array([[-1.0], [1.0]]), np.eye(2))
        >>> (np.array([[-2.0], [2.0]]) @ kernel + bias).argmax(axis=1).tolist()
        [0, 1]
    """
    x = np.concatenate([x.astype("float64"), np.ones((len(x), 1))], axis=1)  # (N, D + 1)
    penalty = np.ones((x.shape[1], 1))
    penalty[-1] = 0.0
    step = 1.0 / (0.5 * np.linalg.eigvalsh(x.T @ x)[-1] + 1.0)
    weights = ahead = np.zeros((x.shape[1], hot.shape[1]))
    momentum = 1.0
    for _ in range(MAX_STEPS):
        gradient = x.T @ (activation(x @ ahead) - hot) + penalty * ahead
        if np.abs(gradient).max() <= TOLERANCE * len(x):
            break
        new = ahead - step * gradient
        if np.sum(gradient * (new - weights)) > 0:  # uphill: forget the momentum
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / following * (new - weights)
        weights, momentum = new, following
    else:
        logger.warning(
            "The logistic head did not converge in %d steps: a number of its mean gradient is "
            "%.2g, expected at most %.2g. Vectors of length 1 need fewer steps: normalize=True.",
            MAX_STEPS,
            np.abs(gradient).max() / len(x),
            TOLERANCE,
        )
    return ahead[:-1].astype("float32"), ahead[-1].astype("float32")


class ContrastivePairs(NamedTuple):
    """Indices of texts in pairs, and whether the two share a class.

    Attributes:
        first, second: (P,) int, of N texts.
        score: (P,) float32, 1 if they share a class, else 0.
    """

    first: np.ndarray
    second: np.ndarray
    score: np.ndarray


def contrastive_pairs(
    hot: np.ndarray, pairs_per_text: int, rng: np.random.Generator
) -> ContrastivePairs:
    """Return pairs of each text with others, drawn at random.

    As many are with texts that share a class as with texts that share none; a text has no pairs of
    a kind if there are no such texts.

    Args:
        hot: (N, C) of 0 and 1, the classes of each text; two different rows or more.
        pairs_per_text: pairs of each kind.
        rng: source of the draws.

    Source: Tunstall et al. 2022, Efficient Few-Shot Learning Without Prompts, section 3.1; for
    several classes a text, SetFit's code.

    Example:
        >>> pairs = contrastive_pairs(np.eye(2)[[0, 0, 1, 1]], 2, np.random.default_rng(0))
        >>> len(pairs.score), pairs.score.sum().item()
        (16, 8.0)
    """
    parts = []
    for i, own in enumerate(hot):
        shared = hot @ own > 0  # (N,)
        alike, others = np.flatnonzero(shared), np.flatnonzero(~shared)
        for partners, score in ((alike[alike != i], 1), (others[others != i], 0)):
            if len(partners):
                few = len(partners) < pairs_per_text
                second = rng.choice(partners, pairs_per_text, replace=few)
                parts.append(
                    np.stack([np.full_like(second, i), second, np.full_like(second, score)])
                )
    first, second, score = np.concatenate(parts, axis=1)
    return ContrastivePairs(first, second, score.astype("float32"))


HEAD = Module("Classifier", "9_Classifier")  # the folder in a preset, beside the embedder's modules
LAYERS = {"head": "linear"}
SINGLE, SEVERAL = "single_label_classification", "multi_label_classification"


class FewShotFolder(EmbeddingFolder):
    """The folder of a SentenceTransformer, with the head of a `FewShotClassifier` beside it."""

    def arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        arguments = super().arguments(checkpoint, given)
        if not _takes_head(checkpoint, given):
            return {**arguments, "thresholds": None, "abstain_below": None}
        names = labels_from_config(checkpoint.config)
        labels = None if are_default_labels(names) else names
        stored = {"num_classes": len(names), "problem_type": _problem_type(checkpoint)}
        return {**arguments, "labels": labels, **stored}

    def restore(
        self, task: keras.Model, checkpoint: Checkpoint, given: Mapping, allow_nonfinite: bool
    ) -> set[str]:
        used = super().restore(task, checkpoint, given, allow_nonfinite)
        if not _takes_head(checkpoint, given):
            return used
        weights = ModuleCheckpoint(checkpoint.files.root, HEAD)
        matched, misfits = match(weights, task, LAYERS)
        if misfits:
            found = "; ".join(f"{name} {misfit}" for name, misfit in misfits.items())
            raise ValueError(f"{weights.folder}: {found}, by the labels in config.json.")
        copy(weights, matched, allow_nonfinite)
        return used

    def weights(self, task: keras.Model) -> list[keras.Variable]:
        head = task.head.weights if task.head is not None else []
        return [*super().weights(task), *head]

    def files(self, task: keras.Model, dtype: object = None) -> dict[str, bytes]:
        files = super().files(task, dtype)
        if task.head is None:
            return files
        arrays = {
            name: stored_array(weight, transposed, dtype)
            for name, weight, transposed in named_weights(task, LAYERS)
        }
        return {**files, f"{HEAD.path}/{SAFETENSORS.file}": save(arrays, metadata={"format": "pt"})}


class FewShotPresetArguments(EmbedderPresetArguments, total=False):
    """Keyword arguments of `FewShotClassifier.from_preset`."""

    num_classes: int | None
    labels: Sequence[str] | None
    problem_type: Literal["single_label_classification", "multi_label_classification"]
    thresholds: Mapping[str, float] | None
    abstain_below: float | None


@keras.saving.register_keras_serializable(package="encoder_zoo")
class FewShotClassifier(ScoresClasses, TextEmbedder):
    """Classify texts after 8 to 64 examples of each class.

        classifier = ez.FewShotClassifier.from_preset("all_minilm_l6_en_uncased")
        classifier.fit(texts, labels)
        classifier.classify("My card has not arrived.")  # {"label", "score"}

    `fit` makes many pairs of the few texts, of one class and of two, and trains the embedder to put
    the first near each other and the second apart (SetFit); then it fits a logistic regression to
    the vectors of the texts. All else is that of `TextEmbedder`: the trained one embeds and makes
    indexes. sentence-transformers opens its presets, as an embedder.

    Args:
        backbone, preprocessor: of `TextEmbedder`.
        num_classes: C; with `labels` their number.
        labels: names of the classes. Without `labels` and `num_classes`, the first `fit` learns
            them.
        problem_type: "single_label_classification" (one class for each text), or
            "multi_label_classification" (any number): then pairs are of texts that share a class
            and of texts that share none, and the head is a logistic regression for each class.
        thresholds: {label: least score} with several labels a text, see `tune_thresholds`; None:
            0.5 of each.
        abstain_below: Least score of an answer. Texts whose best class has a lower score are
            answered with the label None. Defaults to None, which answers every text.
        **kwargs: the others of `TextEmbedder`.

    Source: Tunstall et al. 2022, Efficient Few-Shot Learning Without Prompts, section 3.

    Example:
        >>> from encoder_zoo import FewShotClassifier
        >>> classifier = FewShotClassifier.from_preset("bert_nano_en_uncased_embedder")
        >>> _ = classifier.fit(["Good!", "I like it.", "Bad!", "I hate it."],
        ...                    ["up", "up", "down", "down"], epochs=0)  # the head alone
        >>> classifier.classify("I like this.")["label"]
        'up'
        >>> tagger = FewShotClassifier.from_preset("bert_nano_en_uncased_embedder",
        ...                                        problem_type="multi_label_classification")
        >>> _ = tagger.fit(["Good!", "It is late.", "Good, but late.", "Hello."],
        ...                [["good"], ["late"], ["good", "late"], []], epochs=0)
        >>> tagger.labels
        ['good', 'late']
    """

    record = TaskRecord(
        "text_embedder",  # as which other programs open it
        TextEmbedderPreprocessor,
        pipeline_tag="text-classification",
        text_method="classify",
        answer_settings=("thresholds", "abstain_below"),
        folder=FewShotFolder(),
    )
    default_losses = MappingProxyType(
        {**TextEmbedder.default_losses, SCORES: losses.CosineSimilarity}
    )

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: TextEmbedderPreprocessor | None = None,
        num_classes: PositiveInt | None = None,
        labels: Sequence[str] | None = None,
        problem_type: Annotated[str, one_of(SINGLE, SEVERAL)] = SINGLE,
        thresholds: Thresholds | None = None,
        abstain_below: Probability | None = None,
        **kwargs: Any,
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.problem_type = problem_type
        self.thresholds = thresholds
        self.abstain_below = abstain_below
        check_abstention(abstain_below, OTHER_ANSWERS.get(problem_type))
        self._set_classes(num_classes, labels)

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[FewShotPresetArguments]
    ) -> Self:
        """Load a few-shot classifier, or an embedder to train; see `TextEmbedder.from_preset`.

        Args:
            source: String or path. As for `TextEmbedder.from_preset`.
            **arguments: `num_classes`, `labels`, `problem_type`, `thresholds`, `abstain_below`, and
                the arguments of `TextEmbedder.from_preset`.
        """
        return super().from_preset(source, **arguments)

    def _set_classes(self, num_classes: int | None, labels: Sequence[str] | None) -> None:
        """Set the classes, and make the head if their number is known."""
        self.labels = validated_labels(labels)
        self.num_classes = resolve_num_classes(num_classes, self.labels)
        if self.num_classes is not None:
            width = self.dim or self.embedding_dim
            self.head = keras.layers.Dense(
                self.num_classes, name="head", dtype="float32", trainable=False
            )
            self.head.build((None, width))

    @property
    def class_names(self) -> Sequence:
        """Return the labels, or the class indices if they have no names."""
        return self.labels or range(self.num_classes)

    # -- training ------------------------------------------------------------------------------

    @validate_arguments
    def fit(
        self,
        texts: object,
        labels: object = None,
        batch_size: PositiveInt = 16,
        epochs: NonNegativeInt = 1,
        *,
        pairs_per_text: PositiveInt = 10,
        verbose: Verbosity = "auto",
        callbacks: Callbacks | None = None,
    ) -> History:
        """Train the embedder on pairs of the texts, then fit the head to their vectors.

        Args:
            texts: list, array, tensor or column of texts, some of each class; or rows that hold
                their labels, see `read_annotations`.
            labels: the class of each, by name or by number; with several labels a text a list of
                names for each, or rows of 0 and 1.
            batch_size: of pairs.
            epochs: passes over the pairs; 0 leaves the embedder as it is.
            pairs_per_text: pairs of each text with others that share a class, and as many with
                texts that share none, drawn anew for each call; `keras.utils.set_random_seed`
                fixes them.
            verbose, callbacks: Keras's, for the training on pairs.

        Returns:
            Keras's history of the training on pairs.

        Raises:
            ValueError: If the labels do not fit the texts, if a label is unknown, or if the labels
                leave no two texts of different classes, to be told apart.
        """
        texts, labels = self._labelled(texts, labels)
        column = only_column(texts)
        log_odd_labels(labels)
        count, names = self.num_classes, self.labels
        if count is None:
            count, names = count_and_names(learn_classes(labels, self._takes_several))
        hot = self._hot(len(column), labels, names, count)
        _check_several(hot, names or range(count))
        if epochs and self._takes_several and (hot @ hot.T > 0).all():
            raise ValueError(
                "Every two texts share a label. Expected some that share none, or epochs=0, which "
                "fits only the head."
            )
        if self.num_classes is None:  # not before: it cannot learn others after an error
            self._set_classes(count, names)
        history = keras.callbacks.History()
        history.on_train_begin()
        if epochs:  # of none Keras's JAX and PyTorch trainers fail
            seed = np.random.randint(2**31)  # of `keras.utils.set_random_seed`
            pairs = contrastive_pairs(hot, pairs_per_text, np.random.default_rng(seed))
            history = super().fit(
                (array_ops.gather(column, pairs.first), array_ops.gather(column, pairs.second)),
                pairs.score,
                batch_size,
                epochs,
                verbose=verbose,
                callbacks=callbacks,
            )
        weights = fit_logistic(self.embed(column), hot, self._probabilities)
        with weights_lock(self).exclusive():
            self.head.set_weights(weights)
            self.thresholds = None  # they belong to the weights before
        return history

    def _labelled(self, texts, labels) -> tuple:
        """Return texts and labels, checked; of rows theirs."""
        texts, labels = texts_and_labels(texts, labels, self.labels, self._takes_several)
        if labels is None:
            raise ValueError(
                f"The labels are missing. Expected the class of each text.{columns_advice(texts)}"
            )
        return texts, check_given(labels, texts)

    @property
    def _takes_several(self) -> bool:
        return self.problem_type == SEVERAL

    @property
    def _probabilities(self) -> Callable[[np.ndarray], np.ndarray]:
        return sigmoid if self._takes_several else softmax

    def _hot(self, texts: int, labels, names: Sequence[str] | None, count: int) -> np.ndarray:
        """Return 0 or 1 for each text and class, (N, C), from labels as `fit` takes them."""
        if self._takes_several:
            hot = multi_label_targets(labels, names, count)
            expected = ". Expected 0 or 1 for each class, or a list of names."
            hot = check_each(
                hot, array_ops.reduce_all((hot == 0) | (hot == 1), 1), " is ", hot, expected
            )
            _check_counts(texts, hot[:, 0])
            return hot.numpy()
        classes = np.asarray(class_indices(labels, names, count))
        _check_counts(texts, classes)
        return np.eye(count)[classes]

    @overload
    def evaluate(
        self,
        texts: object,
        labels: object = None,
        batch_size: int | None = None,
        *,
        return_dict: Literal[True] = True,
        verbose: Verbosity = "auto",
    ) -> dict[str, float]: ...
    @overload
    def evaluate(
        self,
        texts: object,
        labels: object = None,
        batch_size: int | None = None,
        *,
        return_dict: Literal[False],
        verbose: Verbosity = "auto",
    ) -> list[float]: ...
    @validate_arguments
    def evaluate(
        self,
        texts: object,
        labels: object = None,
        batch_size: PositiveInt | None = None,
        *,
        return_dict: bool = True,
        verbose: Verbosity = "auto",
    ) -> dict[str, float] | list[float]:
        """Return the share of the texts that get their class, {"accuracy"}.

        With several labels a text, the share of the right ones of all decisions, and "f1", the mean
        of the F1 scores of the classes, as `SequenceClassifier` does.

        Args:
            texts, labels: as for `fit`.
            batch_size: default 32.
            return_dict: whether to return {name: value}, and not a list.
            verbose: as of other tasks; there is no progress to show.
        """
        texts, labels = self._labelled(texts, labels)
        logits = self.predict(texts, batch_size)
        hot = self._hot(len(logits), labels, self.labels, self.num_classes)
        if self._takes_several:
            f1 = metric_by_name("f1", "sigmoid", self.num_classes)
            f1.update_state(hot, logits)
            results = {"accuracy": float(np.mean((logits > 0) == hot)), "f1": float(f1.result())}
        else:
            right = logits.argmax(axis=1) == hot.argmax(axis=1)
            results = {"accuracy": float(np.mean(right))}
        self._remember(results)
        return results if return_dict else list(results.values())

    # -- answers -------------------------------------------------------------------------------

    @validate_arguments
    def predict(
        self,
        texts: object,
        batch_size: PositiveInt | None = None,
        *,
        verbose: Verbosity = "auto",
    ) -> np.ndarray:
        """Return the logits of the classes of each text, (N, C) float32.

        Args:
            texts: as for `fit`.
            batch_size: default 32.
            verbose: as of other tasks; there is no progress to show.

        Raises:
            ValueError: If the classifier has no classes yet.
        """
        self._check_classes_known()
        vectors = self.embed(only_column(texts), batch_size=batch_size)
        kernel, bias = self.head.get_weights()
        return vectors @ kernel + bias

    def _check_classes_known(self) -> None:
        if self.head is None:
            raise ValueError(
                "This FewShotClassifier has no classes yet. Call fit with some texts of each."
            )

    @property
    def _class_answers(self) -> ClassAnswers:
        self._check_classes_known()
        names = ("class_names", "problem_type", "thresholds", "abstain_below")
        settings = {name: getattr(self, name) for name in names}
        return ClassAnswers(self.preprocessor, self, **settings)

    @validate_arguments
    def predict_proba(
        self,
        texts: object,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> np.ndarray:
        """Return the probabilities of the classes of each text, (N, C) float32.

        A row adds up to 1, or with several labels a text each has its own probability.

        Args:
            texts, batch_size: as for `predict`.
            missing: What rows without text get, whose text is None, NaN or blank. "none" is for a
                row of NaN; "error", the default, for an error that names the first of them.
        """
        return self._class_answers.predict_proba(texts, batch_size, missing)

    @validate_arguments
    def tune_thresholds(
        self, texts: object, labels: object = None, batch_size: PositiveInt | None = None
    ) -> dict[str, float]:
        """Set for each label the least score at which it is answered, by its F1 on held-out texts.

        They are saved with the preset; the next `fit` removes them.

        Args:
            texts, labels: as for `fit`, with several labels a text.
            batch_size: default 32.

        Returns:
            {label: threshold}. A label that no text has keeps 0.5, which is logged.

        Raises:
            ValueError: If texts of this classifier have one class.
        """
        self.thresholds = tuned_thresholds(self._scored_labels(texts, labels, batch_size))
        return dict(self.thresholds)

    def _scored_labels(self, texts, labels=None, batch_size: int | None = None) -> ScoredLabels:
        """Return what `tune_thresholds` and `display.thresholds` count, of the same examples."""
        if not self._takes_several:
            raise invalid(
                "problem_type", self.problem_type, f"{SEVERAL!r}: other texts have no thresholds"
            )
        texts, labels = self._labelled(texts, labels)
        scores = self.predict_proba(texts, batch_size)
        right = self._hot(len(scores), labels, self.labels, self.num_classes) > 0
        least = self._class_answers.least_scores(self.thresholds)
        return ScoredLabels(self.class_names, scores.T, right.T, right.sum(axis=0), least)

    @overload
    def classify(
        self, texts: str, batch_size: int | None = None, top_k: None = None
    ) -> LabelScore: ...
    @overload
    def classify(
        self, texts: str, batch_size: int | None = None, *, top_k: int
    ) -> list[LabelScore]: ...
    @overload
    def classify(
        self, texts: object, batch_size: int | None = None, top_k: None = None
    ) -> list[LabelScore]: ...
    @overload
    def classify(
        self, texts: object, batch_size: int | None = None, *, top_k: int
    ) -> list[list[LabelScore]]: ...
    @overload
    def classify(self, texts: object, *, missing: Literal["none"], **options: Any) -> list[Any]: ...
    @validate_arguments
    def classify(
        self,
        texts: object,
        batch_size: PositiveInt | None = None,
        top_k: PositiveInt | None = None,
        threshold: Probability | Thresholds | None = None,
        abstain_below: Probability | None = None,
        missing: Missing = "error",
    ):
        """Return the labels of each text with their probabilities.

        Args:
            texts: a text, or a list, array, tensor or column of texts.
            batch_size: default 32.
            top_k: return the best labels, so many, in place of the best one.
            threshold: with several labels a text the least score of a label that is given, or
                {label: least score}. Defaults to the result of `tune_thresholds`, else to 0.5.
            abstain_below: Least score of an answer, such as 0.9. Texts whose best class has a lower
                score get `{"label": None, "score"}`: a person may look at them. Defaults to the
                model's own setting.
            missing: What rows without text get, whose text is None, NaN or blank. "none" is for an
                answer of None; "error", the default, for an error that names the first of them.

        Returns:
            For every text `{"label", "score"}`; with `top_k` a list of such, the best first. With
            several labels a text: a list of those with a score of at least 0.5, or their threshold
            of `tune_thresholds`; or the `top_k` best. A label is its name, or its number where the
            classes have no names. For a single text its answer alone.

        Raises:
            ValueError: If `threshold` is passed and a text has one class, or with `top_k`.
        """
        if threshold is not None and (not self._takes_several or top_k is not None):
            raise ValueError(
                f"threshold does not go with problem_type={self.problem_type!r} and top_k={top_k}. "
                "To leave out uncertain answers, use abstain_below."
            )
        options = (batch_size, top_k, threshold, abstain_below, missing)
        return self._class_answers.classify(texts, *options)

    def _scores_and_classes(self, method, x, y, batch_size):
        texts, labels = self._labelled(x, y)
        scores = self.predict_proba(texts, batch_size)
        return scores, self._hot(len(scores), labels, self.labels, self.num_classes) > 0.5

    def signatures(self) -> dict[str, Callable]:
        """Return `classify` of all classes for exports.

        Returns:
            "serving_default", from "text" (N,) to "label" (N, C) strings, the best first, and
            "score" (N, C). Of a model with `abstain_below` also "abstains" (N,), whether the best
            score is lower.
        """
        embed = super().signatures()["serving_default"]

        def run(texts):
            return self.head(embed(*texts)["embedding"])

        answer = self._class_answers.trace_classes(run)
        return {"serving_default": lambda text: answer(text)}


def _takes_head(checkpoint: Checkpoint, given: dict) -> bool:
    """Return whether there is a head, and the caller asks for no other one."""
    there = f"{HEAD.path}/{SAFETENSORS.file}" in checkpoint.files.root
    asked = given.get("problem_type", _problem_type(checkpoint))
    others = {"labels", "num_classes"} & given.keys() or asked != _problem_type(checkpoint)
    return there and not others


def _problem_type(checkpoint: Checkpoint) -> str:
    return checkpoint.config.get("problem_type") or SINGLE


def _check_counts(count: int, classes: np.ndarray) -> None:
    if classes.shape != (count,):
        raise ValueError(
            f"There are {count} texts, and labels of shape {classes.shape}. Expected one for each."
        )


def _check_several(hot: np.ndarray, names: Sequence) -> None:
    if len(np.unique(hot, axis=0)) < 2:
        found = [names[i] for i in np.flatnonzero(hot[0])] if len(hot) else []
        of_class = f", all of the class{'es' * (len(found) > 1)} {', '.join(map(repr, found))}"
        raise ValueError(
            f"The number of texts is {len(hot)}{of_class * bool(found)}. Expected texts of two "
            "classes or more."
        )
