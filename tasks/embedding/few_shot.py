"""Few-shot classification: train an embedder on pairs, and fit a logistic head.

Comments use these letters for shapes: N texts, D width of vectors, C classes.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self, Unpack, overload

import keras
import numpy as np
from safetensors.numpy import save

from encoder_zoo.common import validation
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.weights_lock import get_weights_lock, lock_weights
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.presets.formats.checkpoint import (
    Checkpoint,
    copy_tensors,
    map_weights,
    match_weights,
)
from encoder_zoo.presets.formats.embedding_folder import EmbeddingFolderFormat
from encoder_zoo.presets.formats.embedding_modules import ModuleCheckpoint
from encoder_zoo.presets.formats.preset_files import SAFETENSORS
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.presets.formats.sentence_transformers import Module
from encoder_zoo.tasks import losses
from encoder_zoo.tasks.base.classes import (
    compute_sigmoid,
    compute_softmax,
    get_count_and_names,
    has_default_labels,
    read_labels,
    resolve_num_classes,
    validate_labels,
)
from encoder_zoo.tasks.base.confidence import (
    ScoredLabels,
    Thresholds,
    check_abstention,
    tune_thresholds,
)
from encoder_zoo.tasks.base.inference import warn_if_head_new
from encoder_zoo.tasks.classification.class_answers import OTHER_ANSWERS
from encoder_zoo.tasks.classification.class_labels import (
    convert_class_indices,
    convert_multi_label_targets,
    learn_classes,
)
from encoder_zoo.tasks.classification.class_scores import ClassScoresMixin
from encoder_zoo.tasks.embedding.few_shot_answers import FewShotAnswers
from encoder_zoo.tasks.embedding.pair_columns import convert_single_texts
from encoder_zoo.tasks.embedding.text_embedder import SCORES, EmbedderPresetArguments, TextEmbedder
from encoder_zoo.tasks.embedding.text_embedder_preprocessor import TextEmbedderPreprocessor
from encoder_zoo.tasks.preprocessing.checks import check_each
from encoder_zoo.tasks.preprocessing.columns import describe_columns, split_texts_and_labels
from encoder_zoo.tasks.preprocessing.given_labels import check_not_missing, log_suspicious_labels
from encoder_zoo.tasks.training.callbacks import Callbacks, History
from encoder_zoo.tasks.training.metrics import ClassScore

logger = logging.getLogger("encoder_zoo")

MAX_STEPS = 2000
TOLERANCE = 1e-4  # maximum absolute value of the mean gradient at convergence


def fit_logistic(
    x: np.ndarray, hot: np.ndarray, activation: Callable[[np.ndarray], np.ndarray] = compute_softmax
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a logistic regression and return its kernel (D, C) and bias (C,).

    The objective is the cross-entropy plus half of the squared norm of the kernel. For three or
    more classes, the result is equal to scikit-learn's `LogisticRegression`, which does not
    penalize the bias. With `compute_sigmoid`, each class is fitted against the rest, as in
    `OneVsRestClassifier(LogisticRegression())`. The objective is convex, and minimized with
    accelerated gradient descent. If it does not converge in `MAX_STEPS` steps, for example because
    the vectors have a large norm, a warning is logged.

    Args:
        x: Array of shape (N, D).
        hot: Binary array of shape (N, C). Classes of each example.
        activation: The activation to use: `compute_softmax` for a single class per example, or
            `compute_sigmoid` for multi-label classification. Defaults to `compute_softmax`.

    Source: Nesterov 1983, A Method for Solving a Convex Programming Problem with Rate of
    Convergence O(1/k^2). O'Donoghue and Candès 2015, Adaptive Restart for Accelerated Gradient
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
        if np.sum(gradient * (new - weights)) > 0:  # reset the momentum if the objective increases
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / following * (new - weights)
        weights, momentum = new, following
    else:
        logger.warning(
            "The logistic head did not converge in %d steps. The largest value of its mean "
            "gradient is %.2g, expected at most %.2g. Set normalize=True, because unit vectors "
            "need fewer steps.",
            MAX_STEPS,
            np.abs(gradient).max() / len(x),
            TOLERANCE,
        )
    return ahead[:-1].astype("float32"), ahead[-1].astype("float32")


class ContrastivePairs(NamedTuple):
    """Pairs of texts for contrastive training.

    Attributes:
        first, second: Integer arrays of shape (P,). Indices of the paired texts.
        score: Float32 array of shape (P,). 1 if the texts share a class, 0 otherwise.
    """

    first: np.ndarray
    second: np.ndarray
    score: np.ndarray


def sample_contrastive_pairs(
    hot: np.ndarray, pairs_per_text: int, rng: np.random.Generator
) -> ContrastivePairs:
    """Sample pairs of texts for contrastive training.

    For each text, the same number of positive pairs (with a common class) and negative pairs
    (without a common class) is sampled. A text without a possible partner for one kind only gets
    pairs of the other kind.

    Args:
        hot: Binary array of shape (N, C) with the classes for each text. At least two rows must be
            different.
        pairs_per_text: Integer. Number of pairs per text and kind.
        rng: NumPy random generator.

    Source: Tunstall et al. 2022, Efficient Few-Shot Learning Without Prompts, section 3.1. Texts
    with several classes are handled in the same way as in the SetFit code.

    Example:
        >>> pairs = sample_contrastive_pairs(np.eye(2)[[0, 0, 1, 1]], 2, np.random.default_rng(0))
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


HEAD_MODULE = Module("Classifier", "9_Classifier")  # subfolder of the head in a preset
LAYERS = {"head": "linear"}
SINGLE, SEVERAL = "single_label_classification", "multi_label_classification"


class FewShotFolderFormat(EmbeddingFolderFormat):
    """SentenceTransformer folder with a subfolder for the classification head."""

    def read_arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        arguments = super().read_arguments(checkpoint, given)
        if not _should_load_head(checkpoint, given):
            return {**arguments, "thresholds": None, "abstain_below": None}
        names = read_labels(checkpoint.config)
        labels = None if has_default_labels(names) else names
        stored = {"num_classes": len(names), "problem_type": _read_problem_type(checkpoint)}
        return {**arguments, "labels": labels, **stored}

    def restore(self, task: keras.Model, checkpoint: Checkpoint, given: Mapping) -> set[str]:
        used = super().restore(task, checkpoint, given)
        if not _should_load_head(checkpoint, given):
            if task.head is not None:
                task.new_head = tuple(task.head.get_weights())
            return used
        weights = ModuleCheckpoint(checkpoint.files.root, HEAD_MODULE)
        matched, misfits = match_weights(weights, task, LAYERS)
        if misfits:
            found = "; ".join(f"{name} {misfit}" for name, misfit in misfits.items())
            raise ValueError(f"{weights.folder}: {found}, according to the labels in config.json.")
        copy_tensors(weights, matched)
        return used

    def list_additional_weights(self, task: keras.Model) -> list[keras.Variable]:
        head = task.head.weights if task.head is not None else []
        return [*super().list_additional_weights(task), *head]

    def make_files(self, task: keras.Model, dtype: object = None) -> dict[str, bytes]:
        files = super().make_files(task, dtype)
        if task.head is None:
            return files
        arrays = {n: weight.make_array(dtype) for n, weight in map_weights(task, LAYERS).items()}
        return {
            **files,
            f"{HEAD_MODULE.path}/{SAFETENSORS.file}": save(arrays, metadata={"format": "pt"}),
        }


class FewShotPresetArguments(EmbedderPresetArguments, total=False):
    """Types of the keyword arguments of `FewShotClassifier.from_preset`."""

    num_classes: int | None
    labels: Sequence[str] | None
    problem_type: Literal["single_label_classification", "multi_label_classification"]
    thresholds: Mapping[str, float] | None
    abstain_below: float | None


@keras.saving.register_keras_serializable(package="encoder_zoo")
class FewShotClassifier(ClassScoresMixin, TextEmbedder):
    """Text classifier that learns from few examples, such as 8 to 64 per class.

        classifier = ez.FewShotClassifier.from_preset("all_minilm_l6_en_uncased")
        classifier.fit(texts, labels)
        classifier.classify("My card has not arrived.")  # {"label", "score"}

    Training consists of two steps (SetFit). First, the embedder is trained on pairs of texts: texts
    of the same class get similar vectors, and texts of different classes get different vectors.
    Then, a logistic regression is fitted to the vectors. All methods of `TextEmbedder` are
    available, for example to embed texts or to build an index. sentence-transformers can load saved
    presets as embedders. `export` to a single model file, such as an ONNX file, writes the
    embedder. A SavedModel and a folder for `open_export` also contain the classification head.

    Args:
        backbone, preprocessor: See `TextEmbedder`.
        num_classes: Optional positive integer. The number of classes. If None, the number of
            `labels` is used.
        labels: Optional list of strings. The class names. If `labels` and `num_classes` are None,
            the first call to `fit` infers the classes from the data.
        problem_type: String. Use "single_label_classification" for a single class per text, or
            "multi_label_classification" for any number of classes per text. For multi-label
            classification, pairs are sampled based on whether the texts have any common class, and
            a separate logistic regression is fitted for each class. Defaults to
            "single_label_classification".
        thresholds: Optional dict mapping labels to minimum scores, for multi-label classification.
            See `tune_thresholds` for details. If None, a threshold of 0.5 is used for all labels.
        abstain_below: Optional float. Minimum score to return a label. If the best class has a
            lower score, the label is None. If None, a label is returned for every text.
        **kwargs: Additional arguments to pass to `TextEmbedder`.

    Source: Tunstall et al. 2022, Efficient Few-Shot Learning Without Prompts, section 3.

    Example:
        >>> from encoder_zoo import FewShotClassifier
        >>> classifier = FewShotClassifier.from_preset("bert_nano_en_uncased_embedder")
        >>> _ = classifier.fit(["Good!", "I like it.", "Bad!", "I hate it."],
        ...                    ["up", "up", "down", "down"], epochs=0)  # only fits the head
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
        "text_embedder",  # other libraries load the preset as an embedder
        TextEmbedderPreprocessor,
        pipeline_tag="text-classification",
        text_method="classify",
        answers_class=FewShotAnswers,
        answer_settings=("thresholds", "abstain_below"),
        compile_settings=("chunk_size",),
        folder=FewShotFolderFormat(),
    )
    default_losses = MappingProxyType(
        {**TextEmbedder.default_losses, SCORES: losses.CosineSimilarity}
    )

    @validation.validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: TextEmbedderPreprocessor | None = None,
        num_classes: validation.PositiveInt | None = None,
        labels: Sequence[str] | None = None,
        problem_type: Annotated[str, validation.one_of(SINGLE, SEVERAL)] = SINGLE,
        thresholds: Thresholds | None = None,
        abstain_below: validation.Probability | None = None,
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
        """Load a few-shot classifier, or an embedder to train as a classifier.

        Args:
            source: String or path. See `TextEmbedder.from_preset`.
            **arguments: `num_classes`, `labels`, `problem_type`, `thresholds`, `abstain_below`, and
                the arguments of `TextEmbedder.from_preset`.
        """
        if "labels" in arguments:  # they are read several times, but can be a generator
            arguments["labels"] = validate_labels(arguments["labels"])
        return super().from_preset(source, **arguments)

    def _set_classes(self, num_classes: int | None, labels: Sequence[str] | None) -> None:
        """Set the classes and create the head if the number of classes is known."""
        self.labels = validate_labels(labels)
        number = resolve_num_classes(num_classes, self.labels)
        object.__setattr__(self, "num_classes", number)  # read-only for users, not for `fit`
        if self.num_classes is not None:
            width = self.dim or self.embedding_dim
            self.head = keras.layers.Dense(
                self.num_classes, name="head", dtype="float32", trainable=False
            )
            self.head.build((None, width))

    # -- training ------------------------------------------------------------------------------

    @validation.validate_arguments
    def fit(
        self,
        texts: object,
        labels: object = None,
        batch_size: validation.PositiveInt = 16,
        epochs: validation.NonNegativeInt = 1,
        *,
        pairs_per_text: validation.PositiveInt = 10,
        verbose: validation.Verbosity = "auto",
        callbacks: Callbacks | None = None,
    ) -> History:
        """Train the embedder on text pairs and fit the classification head.

        Args:
            texts: List, array, tensor or column of texts to train on, with examples for each class.
                Rows with labels can also be passed, as returned by `read_annotations`.
            labels: Class names or class indices for the texts. For multi-label classification, this
                should be a list of names per text, or a binary array with one row per text.
            batch_size: Integer. The batch size, in pairs, to use for training. Defaults to 16.
            epochs: Integer. The number of epochs to train on the pairs. If 0, only the head will be
                fitted. Defaults to 1.
            pairs_per_text: Integer. The number of positive pairs and the number of negative pairs
                to sample for each text. New pairs are sampled on every call. For reproducible
                pairs, use `keras.utils.set_random_seed`. Defaults to 10.
            verbose, callbacks: Arguments to pass to Keras for training on the pairs.

        Returns:
            The `History` object from training on the pairs.

        Raises:
            ValueError: If `labels` and `texts` differ in length, if a label is unknown, or if all
                texts have the same classes, so that there are no negative pairs.
        """
        texts, labels = self._check_held_out("fit", texts, labels)
        column = convert_single_texts(texts)
        log_suspicious_labels(labels)
        count, names = self.num_classes, self.labels
        if count is None:
            count, names = get_count_and_names(learn_classes(labels, self._is_multi_label))
        hot = self._make_targets(len(column), labels, names, count)
        _check_has_several_classes(hot, names or range(count))
        if epochs and self._is_multi_label and (hot @ hot.T > 0).all():
            raise ValueError(
                "All pairs of texts share a label. Expected some pairs without a common label. To "
                "fit only the head, use epochs=0."
            )
        if self.num_classes is None:  # set last, so that `fit` can be called again after an error
            self._set_classes(count, names)
        self.new_head = None
        history = keras.callbacks.History()
        history.on_train_begin()
        if epochs:  # the JAX and PyTorch trainers of Keras do not support 0 epochs
            seed = np.random.randint(2**31)  # set by `keras.utils.set_random_seed`
            pairs = sample_contrastive_pairs(hot, pairs_per_text, np.random.default_rng(seed))
            history = super().fit(
                (xp.gather(column, pairs.first), xp.gather(column, pairs.second)),
                pairs.score,
                batch_size,
                epochs,
                verbose=verbose,
                callbacks=callbacks,
            )
        activation = compute_sigmoid if self._is_multi_label else compute_softmax
        with get_weights_lock(self).shared():
            vectors = self._get_answers(column).embed(column)  # as in `predict`
        weights = fit_logistic(vectors, hot, activation)
        with get_weights_lock(self).exclusive():
            self.head.set_weights(weights)
            self.thresholds = None  # thresholds were tuned for the old weights
        return history

    def _check_held_out(self, method: str, texts, labels) -> tuple:
        """Validate and return the texts and labels. Missing labels are read from the rows."""
        texts, labels = split_texts_and_labels(texts, labels, self.labels, self._is_multi_label)
        if labels is None:
            expected = "a list of classes" if self._is_multi_label else "a class"
            raise ValueError(
                f"The labels are missing. Expected {expected} for each text."
                f"{describe_columns(texts)}"
            )
        return texts, check_not_missing(labels, texts)

    def _make_targets(
        self, texts: int, labels, names: Sequence[str] | None, count: int
    ) -> np.ndarray:
        """Convert the labels passed to `fit` to a binary array (N, C)."""
        if self._is_multi_label:
            hot = convert_multi_label_targets(labels, names, count)
            expected = ". Expected 0 or 1 for each class, or a list of names."
            hot = check_each(hot, xp.reduce_all((hot == 0) | (hot == 1), 1), " is ", hot, expected)
            if len(hot) != texts:
                raise ValueError(
                    f"Received {texts} texts, but labels for {len(hot)} texts. Expected a list of "
                    "classes for each text."
                )
            return hot.numpy()
        classes = np.asarray(convert_class_indices(labels, names, count))
        if classes.shape != (texts,):
            raise ValueError(
                f"Received {texts} texts, but labels of shape {classes.shape}. Expected one label "
                "per text."
            )
        return np.eye(count)[classes]

    def _compute_held_out_logits(self, texts, labels, batch_size) -> tuple[np.ndarray, np.ndarray]:
        logits = self.predict(texts, batch_size)
        return logits, self._make_targets(len(logits), labels, self.labels, self.num_classes)

    @overload
    def evaluate(
        self,
        texts: object,
        labels: object = None,
        batch_size: int | None = None,
        *,
        return_dict: Literal[True] = True,
        verbose: validation.Verbosity = "auto",
    ) -> dict[str, float]: ...
    @overload
    def evaluate(
        self,
        texts: object,
        labels: object = None,
        batch_size: int | None = None,
        *,
        return_dict: Literal[False],
        verbose: validation.Verbosity = "auto",
    ) -> list[float]: ...
    @validation.validate_arguments
    def evaluate(
        self,
        texts: object,
        labels: object = None,
        batch_size: validation.PositiveInt | None = None,
        *,
        return_dict: bool = True,
        verbose: validation.Verbosity = "auto",
    ) -> dict[str, float] | list[float]:
        """Evaluate the classifier on a test set.

        For multi-label classification, "accuracy" is computed per label and example, and the result
        also contains "f1", the macro-averaged F1 score, as in `SequenceClassifier`.

        Args:
            texts, labels: See `fit`.
            batch_size: Integer. The batch size used for the computation. Defaults to 32.
            return_dict: Boolean. Whether to return the metrics as a dict instead of a list.
                Defaults to True.
            verbose: Not used. This argument exists for compatibility with other tasks.

        Returns:
            Dict mapping metric names to values, or a list of values.
        """
        texts, labels = self._check_held_out("evaluate", texts, labels)
        logits, hot = self._compute_held_out_logits(texts, labels, batch_size)
        if self._is_multi_label:
            f1 = ClassScore("f1", "macro", "sigmoid")
            f1.update_state(hot, logits)
            results = {"accuracy": float(np.mean((logits > 0) == hot)), "f1": float(f1.result())}
        else:
            right = logits.argmax(axis=1) == hot.argmax(axis=1)
            results = {"accuracy": float(np.mean(right))}
        self._store_evaluation(results)
        return results if return_dict else list(results.values())

    # -- answers -------------------------------------------------------------------------------

    @validation.validate_arguments
    @lock_weights
    def predict(
        self,
        texts: object,
        batch_size: validation.PositiveInt | None = None,
        *,
        verbose: validation.Verbosity = "auto",
    ) -> np.ndarray:
        """Compute the class logits, (N, C) float32.

        Args:
            texts: Texts to classify, as in `fit`.
            batch_size: Integer. The batch size used for the computation. Defaults to 32.
            verbose: Not used. This argument exists for compatibility with other tasks.

        Raises:
            ValueError: If the classifier has no classes, because `fit` has not been called.
        """
        return self._get_answers(texts).predict_texts(texts, batch_size)

    @property
    def _answers(self) -> FewShotAnswers:
        read_head = None if self.head is None else self._read_head
        return dataclasses.replace(super()._answers, read_head=read_head)

    def _read_head(self) -> list[np.ndarray]:
        """Return the weights of the head. If they are random, log a warning."""
        warn_if_head_new(self)
        return self.head.get_weights()

    @validation.validate_arguments
    @lock_weights
    def tune_thresholds(
        self, texts: object, labels: object = None, batch_size: validation.PositiveInt | None = None
    ) -> dict[str, float]:
        """For each label, set the threshold that gives the highest F1 on held-out texts.

        The thresholds are saved with the preset, and reset by `fit`.

        Args:
            texts, labels: Multi-label examples to tune on, as in `fit`.
            batch_size: Integer. The batch size used for the computation. Defaults to 32.

        Returns:
            Dict mapping labels to thresholds. A threshold of 0.5 is used for labels without
            examples, and these labels are logged.

        Raises:
            ValueError: If the classifier is not a multi-label classifier.
        """
        self.thresholds = tune_thresholds(self._score_labels(texts, labels, batch_size))
        return dict(self.thresholds)

    def _score_labels(self, texts, labels=None, batch_size: int | None = None) -> ScoredLabels:
        if not self._is_multi_label:
            raise ValueError(
                f"problem_type is {self.problem_type!r}, but thresholds require {SEVERAL!r}. Pass "
                f"problem_type={SEVERAL!r} to create the classifier."
            )
        return super()._score_labels(texts, labels, batch_size)

    def signatures(self) -> dict[str, Callable]:
        """Return the functions to export.

        Returns:
            Dict with "serving_default". This function maps "text" (N,) to "label" (N, C), strings
            sorted by decreasing score, and "score" (N, C). If `thresholds` or `abstain_below` are
            set, the output is extended as for `SequenceClassifier`.
        """
        embed = super().signatures()["serving_default"]

        def run(texts):
            return self.head(embed(*texts)["embedding"])

        answers = self._answers
        answers.check_has_head()
        answer = answers.make_classify_function(run)
        return {"serving_default": lambda text: answer(text)}


def _should_load_head(checkpoint: Checkpoint, given: dict) -> bool:
    """Return whether the checkpoint contains a head that fits the given arguments."""
    there = f"{HEAD_MODULE.path}/{SAFETENSORS.file}" in checkpoint.files.root
    asked = given.get("problem_type", _read_problem_type(checkpoint))
    names = read_labels(checkpoint.config)
    same = given.get("labels") in (None, names) and given.get("num_classes") in (None, len(names))
    return there and same and asked == _read_problem_type(checkpoint)


def _read_problem_type(checkpoint: Checkpoint) -> str:
    return checkpoint.config.get("problem_type") or SINGLE


def _check_has_several_classes(hot: np.ndarray, names: Sequence) -> None:
    if len(np.unique(hot, axis=0)) < 2:
        found = [names[i] for i in np.flatnonzero(hot[0])] if len(hot) else []
        of_class = f" of the class{'es' * (len(found) > 1)} {', '.join(map(repr, found))}"
        raise ValueError(
            f"Received {len(hot)} texts{of_class * bool(found)}. Expected texts of at least two "
            "classes."
        )
