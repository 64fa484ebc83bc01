"""`evaluate` and `predict` of the tasks, on raw inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack, overload

import keras

from encoder_zoo.common.forks import refuse_in_fork
from encoder_zoo.common.keras_private import (
    VALIDATION_OF_FIT,
    ValidationOfFit,
    compiled_metrics,
)
from encoder_zoo.common.validation import PositiveInt, Verbosity, validate_arguments
from encoder_zoo.common.weights_lock import reads_weights, uses_metrics
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE
from encoder_zoo.tasks.training import sources
from encoder_zoo.tasks.training.data import TrainingData
from encoder_zoo.tasks.training.exact_metrics import ExactMetric
from encoder_zoo.tasks.training.inference import predict_inputs, predict_texts
from encoder_zoo.tasks.training.keyword_arguments import EvaluateOptions
from encoder_zoo.tasks.training.processes import shard_of_process, whole_batches
from encoder_zoo.tasks.training.recipe import build_metrics
from encoder_zoo.tasks.training.steps import KerasSteps


class Predictor(KerasSteps):
    """Base of `Trainer`: answers and evaluates with the weights that there are."""

    def _check_answers(self, x=None) -> None:
        """Raise a ValueError if the task cannot evaluate, or predict these inputs, yet."""

    def _warn_new_head(self) -> None:
        """Log once that answers are those of a head with random weights."""

    def _make_ready(self) -> None:
        """Compile if needed; raise in a forked process, in which TensorFlow would hang."""
        refuse_in_fork()
        if not self.compiled:
            self.compile()

    def _reserve_examples(self, data: TrainingData) -> None:
        """Make room for all examples in the metrics that keep them."""
        kept = [m for m in compiled_metrics(self) if isinstance(m, ExactMetric)]
        if not kept:
            return
        count = (data.plan.steps_per_epoch or 0) * data.plan.batch_size
        count = max(count, data.count_examples())
        dropped = [metric.reserve(count) for metric in kept]
        if any(dropped):
            # Graphs of the variables that were dropped.
            self.train_function = self.test_function = None

    @overload
    def evaluate(
        self,
        x: object = None,
        y: object = None,
        batch_size: int | None = None,
        *,
        return_dict: Literal[True],
        **options: Unpack[EvaluateOptions],
    ) -> dict[str, float]: ...
    @overload
    def evaluate(
        self,
        x: object = None,
        y: object = None,
        batch_size: int | None = None,
        *,
        return_dict: Literal[False] = False,
        **options: Unpack[EvaluateOptions],
    ) -> float | list[float]: ...
    @validate_arguments
    @uses_metrics
    @reads_weights
    def evaluate(
        self,
        x: object = None,
        y: object = None,
        batch_size: PositiveInt | None = None,
        *,
        return_dict: bool = False,
        verbose: Verbosity = "auto",
        sample_weight: object = None,
        steps: PositiveInt | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        **of_keras: Unpack[ValidationOfFit],
    ) -> dict[str, float] | float | list[float]:
        """Return the loss and the metrics on raw inputs, as `keras.Model.evaluate`.

        Args:
            x: as for `fit`.
            y: as for `fit`.
            batch_size: default 32.
            return_dict: whether to return {name: value}, and not a list.
            verbose: as in Keras.
            sample_weight: as for `fit`.
            steps: batches that are read; None is all.
            callbacks: Keras's.
            **of_keras: given by Keras alone, for the validation of `fit`.

        Returns:
            The loss, then the metrics of `compile`; the loss alone where there are none.
        """
        options = {
            "return_dict": return_dict,
            "verbose": verbose,
            "steps": steps,
            "callbacks": callbacks,
            **of_keras,
        }
        if of_keras.get(VALIDATION_OF_FIT):  # checked, preprocessed and divided by `fit`
            with self.distribution.running(), self._counting(steps):
                return super().evaluate(x, y, batch_size, sample_weight=sample_weight, **options)
        self._begin_evaluate(x, y)
        size = batch_size or BATCH_SIZE
        data = sources.evaluation_data(self, x, y, sample_weight, size)
        if not isinstance(data, tuple):  # of arrays
            build_metrics(self, data)
            return self._run(super().evaluate, data, **options)
        x, y, sample_weight = data
        return self._run(super().evaluate, x, y, size, sample_weight=sample_weight, **options)

    def _begin_evaluate(self, x, y) -> None:
        """Raise an error if the task cannot evaluate yet; compile it if needed."""
        self._check_answers()
        self._make_ready()

    def _run(self, function: Callable, x, *args, steps: int | None = None, **kwargs):
        """Call Keras's `evaluate` or `predict`, under a strategy on parts of batches."""
        x, steps = self.distribution.divided(x, steps)
        with self.distribution.running(), self._counting(steps):
            return function(x, *args, steps=steps, **kwargs)

    def _run_whole(self, function: Callable, x, *args, **kwargs):
        """Call Keras's `predict`: as `_run`, but processes of JAX compute whole batches."""
        if shard_of_process()[1] == 1:
            return self._run(function, x, *args, **kwargs)
        with self.distribution.running(), whole_batches():
            return function(x, *args, **kwargs)

    @validate_arguments
    @reads_weights
    def predict(
        self,
        x: object,
        batch_size: PositiveInt | None = None,
        *,
        verbose: Verbosity = "auto",
        steps: PositiveInt | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
    ) -> Any:
        """Return the model's outputs for raw inputs, in their order: logits, not probabilities.

        For probabilities use `predict_proba` of a classifier, or the task's own method, such as
        `classify` or `extract_entities`, which also gives them their labels.

        Args:
            x: see `fit`. In a dataset for `TokenClassifier` without tags a vector of strings is a
                batch of texts; the words of one sentence are ragged, or a batch (1, words).
            batch_size: default 32.
            verbose: as in Keras.
            steps: batches that are read; None is all.
            callbacks: Keras's.

        Returns:
            NumPy arrays with one row per input. For texts `TokenClassifier` returns a list with an
            array (tokens, C) for each, without special tokens, put together from the windows of a
            long text; `SpanQA` a list for each question, with an array (2, tokens) for every
            window onto its context, or with a beam (1 + start_n_top * end_n_top, 4). Of a
            regression they are the numbers themselves, and of `TextEmbedder` the vectors.
        """
        refuse_in_fork()
        self._check_answers(x)
        self._warn_new_head()
        options = {"verbose": verbose, "steps": steps, "callbacks": callbacks}
        predict = functools.partial(self._run_whole, super().predict, **options)
        return predict_inputs(self, x, batch_size or BATCH_SIZE, predict)

    _predict_texts = predict_texts

    def preprocess(self, x: object, y: object = None, sample_weight: object = None) -> dict:
        """Return raw inputs in memory as encoded examples; see `Preprocessor.encode`."""
        sources.check_preprocessor(self, x)
        return self.preprocessor.encode(x, y, sample_weight)
