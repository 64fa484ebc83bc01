"""Classification from few examples: an embedder, trained on pairs, with a logistic head.

Comment letters: N texts, D width of vectors, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import keras
import numpy as np
from safetensors.numpy import save

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import (
    NonNegativeInt,
    PositiveInt,
    Verbosity,
    validate_arguments,
)
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.presets.formats.checkpoint import copy, match, named_weights, stored_array
from encoder_zoo.presets.formats.dense_module import ModuleCheckpoint
from encoder_zoo.presets.formats.preset_files import SAFETENSORS
from encoder_zoo.presets.formats.sentence_transformers import Module
from encoder_zoo.tasks import losses
from encoder_zoo.tasks.base.class_names import (
    are_default_labels,
    count_and_names,
    labels_from_config,
    resolve_num_classes,
    softmax,
    validated_labels,
)
from encoder_zoo.tasks.embedding.inference import only_column
from encoder_zoo.tasks.embedding.preprocessor import TextEmbedderPreprocessor
from encoder_zoo.tasks.embedding.task import SCORES, TextEmbedder
from encoder_zoo.tasks.few_shot.logistic import fit_logistic
from encoder_zoo.tasks.few_shot.pairs import contrastive_pairs
from encoder_zoo.tasks.preprocessing.given_labels import check_given, log_odd_labels
from encoder_zoo.tasks.sequence_classification.answering import LabelScore, labels_in_order
from encoder_zoo.tasks.sequence_classification.class_labels import class_indices, learn_classes
from encoder_zoo.tasks.training.keyword_arguments import History

if TYPE_CHECKING:
    from encoder_zoo.presets.formats.checkpoint import Checkpoint

HEAD = Module("Classifier", "9_Classifier")  # the folder in a preset, beside the embedder's modules
LAYERS = {"head": "linear"}


@keras.saving.register_keras_serializable(package="encoder_zoo")
class FewShotClassifier(TextEmbedder):
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
        **kwargs: the others of `TextEmbedder`.

    Source: Tunstall et al. 2022, Efficient Few-Shot Learning Without Prompts, section 3.

    Example:
        >>> from encoder_zoo import FewShotClassifier
        >>> classifier = FewShotClassifier.from_preset("bert_nano_en_uncased_embedder")
        >>> _ = classifier.fit(["Good!", "I like it.", "Bad!", "I hate it."],
        ...                    ["up", "up", "down", "down"], epochs=0)  # the head alone
        >>> classifier.classify("I like this.")["label"]
        'up'
    """

    task_name = "text_embedder"  # as which other programs open it
    pipeline_tag = "text-classification"
    text_method = "classify"

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: TextEmbedderPreprocessor | None = None,
        num_classes: PositiveInt | None = None,
        labels: Sequence[str] | None = None,
        **kwargs: Any,
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self._set_classes(num_classes, labels)

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

    def default_loss(self) -> keras.losses.Loss:
        return losses.CosineSimilarity() if self._objective == SCORES else super().default_loss()

    @validate_arguments
    def fit(
        self,
        texts: object,
        labels: object,
        batch_size: PositiveInt = 16,
        epochs: NonNegativeInt = 1,
        *,
        pairs_per_text: PositiveInt = 10,
        verbose: Verbosity = "auto",
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
    ) -> History:
        """Train the embedder on pairs of the texts, then fit the head to their vectors.

        Args:
            texts: list, array, tensor or column of texts, some of each class.
            labels: the class of each, by name or by number.
            batch_size: of pairs.
            epochs: passes over the pairs; 0 leaves the embedder as it is.
            pairs_per_text: pairs of each text with others of its class, and as many with texts of
                other classes, drawn anew for each call; `keras.utils.set_random_seed` fixes them.
            verbose, callbacks: Keras's, for the training on pairs.

        Returns:
            Keras's history of the training on pairs.

        Raises:
            ValueError: "Row 3 has the unknown label 'upp'. ...", "Every label is 'up'. ...",
                "Expected one label for each text. ...", "Expected texts of two classes or more:
                ..."
        """
        column = only_column(texts)
        check_given(labels, texts)
        log_odd_labels(labels)
        count, names = self.num_classes, self.labels
        if count is None:
            count, names = count_and_names(learn_classes(labels))
        classes = np.asarray(class_indices(labels, names, count))
        _check_counts(len(column), classes)
        _check_several(classes, names or range(count))
        if self.num_classes is None:  # not before: it cannot learn others after an error
            self._set_classes(count, names)
        seed = np.random.randint(2**31)  # of `keras.utils.set_random_seed`
        pairs = contrastive_pairs(classes, pairs_per_text, np.random.default_rng(seed))
        history = super().fit(
            (tf.gather(column, pairs.first), tf.gather(column, pairs.second)),
            pairs.score,
            batch_size,
            epochs,
            verbose=verbose,
            callbacks=callbacks,
        )
        self.head.set_weights(fit_logistic(self.embed(column), classes, self.num_classes))
        return history

    @validate_arguments
    def evaluate(
        self, texts: object, labels: object, batch_size: PositiveInt | None = None
    ) -> dict[str, float]:
        """Return the share of the texts that get their class, {"accuracy"}.

        Args:
            texts, labels: as for `fit`.
            batch_size: default 32.
        """
        check_given(labels, texts)
        scores = self.predict_proba(texts, batch_size)
        classes = np.asarray(class_indices(labels, self.labels, self.num_classes))
        _check_counts(len(scores), classes)
        results = {"accuracy": float(np.mean(scores.argmax(axis=1) == classes))}
        self._remember(results)
        return results

    # -- answers -------------------------------------------------------------------------------

    @validate_arguments
    def predict(self, texts: object, batch_size: PositiveInt | None = None) -> np.ndarray:
        """Return the logits of the classes of each text, (N, C) float32.

        Args:
            texts: as for `fit`.
            batch_size: default 32.

        Raises:
            ValueError: "This FewShotClassifier has no classes yet. ..."
        """
        if self.head is None:
            raise ValueError(
                "This FewShotClassifier has no classes yet. Call fit with some texts of each."
            )
        vectors = self.embed(only_column(texts), batch_size=batch_size)
        kernel, bias = self.head.get_weights()
        return vectors @ kernel + bias

    @validate_arguments
    def predict_proba(self, texts: object, batch_size: PositiveInt | None = None) -> np.ndarray:
        """Return the probabilities of the classes of each text, (N, C) float32.

        Args:
            texts, batch_size: as for `predict`.
        """
        return softmax(self.predict(texts, batch_size))

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
    @validate_arguments
    def classify(
        self,
        texts: object,
        batch_size: PositiveInt | None = None,
        top_k: PositiveInt | None = None,
    ):
        """Return the label of each text with its probability.

        Args:
            texts: a text, or a list, array, tensor or column of texts.
            batch_size: default 32.
            top_k: return the best labels, so many, in place of the best one.

        Returns:
            For every text `{"label", "score"}`; with `top_k` a list of such, the best first. A
            label is its name, or its number where the classes have no names. For a single text its
            answer alone.
        """
        if isinstance(texts, str | bytes):
            return self.classify([texts], batch_size, top_k)[0]
        scores = self.predict_proba(texts, batch_size)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : top_k or 1]
        rows = labels_in_order(self.class_names, scores, order)
        return [row[0] for row in rows] if top_k is None else rows

    def signatures(self) -> dict[str, Callable]:
        """Return `classify` of all classes for exports.

        Returns:
            "serving_default", from "text" (N,) to "label" (N, C) strings, the best first, and
            "score" (N, C).
        """
        embed = super().signatures()["serving_default"]
        names = tf.constant([str(name) for name in self.class_names])

        def answer(text):
            scores = tf.nn.softmax(self.head(embed(text)["embedding"]))
            scores, order = tf.math.top_k(scores, self.num_classes)
            return {"label": tf.gather(names, order), "score": scores}

        return {"serving_default": answer}

    # -- presets -------------------------------------------------------------------------------

    @classmethod
    def arguments_from_files(cls, checkpoint: Checkpoint, given: dict) -> dict:
        arguments = super().arguments_from_files(checkpoint, given)
        if not _has_head(checkpoint) or {"labels", "num_classes"} & given.keys():
            return arguments
        names = labels_from_config(checkpoint.config)
        labels = None if are_default_labels(names) else names
        return {**arguments, "labels": labels, "num_classes": len(names)}

    @validate_arguments
    def load_from_files(self, checkpoint: Checkpoint, given: dict, allow_nonfinite: bool) -> None:
        super().load_from_files(checkpoint, given, allow_nonfinite)
        if not _has_head(checkpoint) or {"labels", "num_classes"} & given.keys():
            return
        weights = ModuleCheckpoint(checkpoint.files.root, HEAD)
        matched, misfits = match(weights, self, LAYERS)
        if misfits:
            found = "; ".join(f"{name} {misfit}" for name, misfit in misfits.items())
            raise ValueError(f"{weights.folder}: {found}, by the labels in config.json.")
        copy(weights, matched, allow_nonfinite)

    def files_to_save(self, dtype: object) -> dict[str, bytes]:
        files = super().files_to_save(dtype)
        if self.head is None:
            return files
        arrays = {
            name: stored_array(weight, transposed, dtype)
            for name, weight, transposed in named_weights(self, LAYERS)
        }
        return {**files, f"{HEAD.path}/{SAFETENSORS.file}": save(arrays, metadata={"format": "pt"})}


def _has_head(checkpoint: Checkpoint) -> bool:
    return f"{HEAD.path}/{SAFETENSORS.file}" in checkpoint.files.root


def _check_counts(count: int, classes: np.ndarray) -> None:
    if classes.shape != (count,):
        raise ValueError(
            f"Expected one label for each text. Received: {count} texts, labels of the shape "
            f"{classes.shape}."
        )


def _check_several(classes: np.ndarray, names: Sequence) -> None:
    found = np.unique(classes)
    if len(found) < 2:
        of_class = f", all of the class {names[found[0]]!r}" if len(found) else ""
        raise ValueError(
            "Expected texts of two classes or more: pairs to learn from are of one class and of "
            f"two. Received: {len(classes)} text{'s' * (len(classes) != 1)}{of_class}."
        )
