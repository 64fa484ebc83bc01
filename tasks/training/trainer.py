"""`compile` and `fit` of the tasks, on raw inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import keras

from encoder_zoo.common.forks import refuse_in_fork
from encoder_zoo.common.keras_private import strategy_of
from encoder_zoo.common.validation import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rate,
    Ratio,
    Verbosity,
    validate_arguments,
)
from encoder_zoo.common.weights_lock import trains
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE, Plan
from encoder_zoo.tasks.preprocessing.given_labels import check_given
from encoder_zoo.tasks.preprocessing.text_columns import log_roles
from encoder_zoo.tasks.preprocessing.truncation import logged_once
from encoder_zoo.tasks.training import sources
from encoder_zoo.tasks.training.compilation_cache import enable_compilation_cache
from encoder_zoo.tasks.training.data import TrainingData, uncounted
from encoder_zoo.tasks.training.distribution import Distribution
from encoder_zoo.tasks.training.graphs import GraphCache
from encoder_zoo.tasks.training.keyword_arguments import History
from encoder_zoo.tasks.training.optimizers import WARMUP
from encoder_zoo.tasks.training.predictor import Predictor
from encoder_zoo.tasks.training.recipe import Recipe, build_metrics, check_weights

# Arguments of `compile` that Keras's gets unchanged.
OPTIONS_OF_KERAS = ("loss_weights", "run_eagerly", "steps_per_execution", "auto_scale_loss")


class Trainer(Predictor):
    """A `keras.Model` that trains and predicts on a preprocessor's raw inputs.

    Graphs are kept as long as they are valid: `fit`, `evaluate` and `predict` trace nothing again
    for other data, epochs and learning rates.

    Attributes:
        distribution: the strategy of `tf.distribute` that the model was built under, or none.
        graphs: the graphs that were traced.
        recipe: the settings of `compile`.
        output_activation: the function that makes probabilities of the outputs, "softmax" or
            "sigmoid"; "linear" for numbers; None to take losses and metrics as they are.
        predicts_lists: whether `predict` returns a list of the outputs for each text.
        group_lengths: whether `fit` makes batches of examples of like length.
        fills_batches: whether rows that fill a batch can be left out of the task's loss, where it
            is one of Keras's: see `filled_rows`.
        packs_batches: whether the texts of a batch may be packed on JAX: see `packed_batches`. Only
            for outputs that `logits_of` makes of those of `encoded`, and losses that are a mean
            over examples, which does not depend on the batches.
        column_roles: what the columns of a table of texts are taken for, in their order.
        file_advice: the end of an error for a path in place of texts.
        traced_settings: the settings of a task that its training graphs depend on.
    """

    pretrains = False
    default_warmup = WARMUP
    output_activation: str | None = None
    labels_tokens = False
    predicts_lists = False
    group_lengths = True
    fills_batches = True
    packs_batches = False
    traced_settings: tuple = ()
    column_roles: Sequence[str] = ("first text", "second text")
    file_advice = "ez.read_annotations({!r}) reads files of annotations."

    @property
    def default_learning_rate(self) -> float:
        """Return the peak, if neither `compile` nor a preset gives another."""
        return self.backbone.family.learning_rate

    def _reset_training_state(self) -> None:
        """Set the state of a task before its first `compile`."""
        self.distribution = Distribution(strategy_of(self))
        self.graphs = GraphCache(self)
        enable_compilation_cache()
        self.recipe = Recipe(self)
        self.learning_rate = self.default_learning_rate
        if keras.config.backend() == "tensorflow":
            self.jit_compile = False  # until `compile` decides: Keras's own default is XLA

    # -- methods that tasks refine -------------------------------------------------------------

    def _separate(self, x, y) -> tuple:
        """Return inputs and labels, if a task takes both of them in one."""
        return x, y

    def _check_given(self, y, x) -> None:
        """Raise a ValueError for labels of which some are missing, as the user gives them."""
        check_given(y, x)

    def _check_labels(self, x, y) -> None:
        """Raise a ValueError if a task that needs labels is given none."""

    def _adapt(self, x, y) -> None:
        """Set the properties of the task that it learns from the data of `fit`, such as labels."""

    def _warn_unseen_classes(self, examples: dict, held_out: dict) -> None:
        """Log which classes `validation_split` keeps from training."""

    def _weigh_classes(self, data: TrainingData, class_weight) -> TrainingData:
        """Return the data with each class weighted."""
        raise ValueError(f"class_weight needs classes, which {type(self).__name__} has none of.")

    @validate_arguments
    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer | None = None,
        loss: object = None,
        metrics: Sequence[object] | Mapping[str, object] | str | None = None,
        *,
        weighted_metrics: object = None,
        jit_compile: bool | Literal["auto"] | None = None,
        learning_rate: PositiveFloat | None = None,
        gradient_accumulation_steps: PositiveInt | None = None,
        weight_decay: NonNegativeFloat | None = None,
        warmup: Rate | None = None,
        layer_decay: Ratio | None = None,
        frozen_layers: NonNegativeInt | None = None,
        loss_weights: object = None,
        run_eagerly: bool | None = None,
        steps_per_execution: PositiveInt | None = None,
        auto_scale_loss: bool | None = None,
    ) -> None:
        """Compile as `keras.Model.compile`, with the usual fine-tuning recipe by default.

        A second `compile` changes only what it names: arguments of None stay as they are. At first
        they are "auto", or as described.

        Args:
            optimizer: "auto" is AdamW (no weight decay on biases and LayerNorm) with gradients
                clipped at norm 1 and a learning rate that rises linearly for a tenth of the steps
                and falls linearly to 0; every `fit` starts it anew, for the number of steps it
                will run. Any Keras optimizer can replace it.
            loss: "auto" is the task's loss. Keras's cross-entropies are taken of logits, which are
                the outputs of the tasks, also without `from_logits`.
            metrics: in place of the task's, "auto". By name also "f1", "precision" and "recall",
                alone or with "_macro", "_macro_all", "_micro" or "_weighted", "auc",
                "average_precision" and "matthews" of classes, "pearson" and "spearman" of numbers,
                "perplexity" of tokens, "exact_match" and "f1" of answers. Keras's metrics get
                probabilities; of two classes Precision, Recall, AUC and the like look for the
                second. Other functions get the outputs. Without sample weights, except in tasks
                where these tell which tokens count.
            weighted_metrics: the same, with sample weights; "auto" are the task's metrics, unless
                `metrics` are given.
            jit_compile: "auto" has TensorFlow compile with XLA on a GPU or TPU if a
                `sequence_length` is set. Other backends decide as they do in Keras.
            learning_rate: peak of the "auto" optimizer; at first the preset's, else the family's.
            gradient_accumulation_steps: of the "auto" optimizer: so many batches make a step, whose
                gradient is that of one large batch of them all: of its examples, of its labelled
                tokens, or with its weights. Batches left over at the end of `fit` make the last
                step. Losses that compare the texts of a batch see those of each batch only. Of a
                sum of losses that are means over different things, as in `Pretraining`,
                `ReplacedTokenDetection` and `Distillation`, each batch counts by its masked tokens
                or labels.
            weight_decay: AdamW's, of the "auto" optimizer; at first the family's, mostly 0.01.
            warmup: share of the steps in which the learning rate rises; at first 0.1, of
                `Pretraining` 0.01.
            layer_decay: factor of the learning rate from each layer to the one below, as in ULMFiT
                and ELECTRA; at first the family's, usually 1.
            frozen_layers: number of the lowest blocks that are frozen, with the embeddings below
                them; 0 thaws them again. Layers that are frozen already stay so.
            loss_weights, run_eagerly, steps_per_execution, auto_scale_loss: as in Keras.

        Raises:
            TypeError: "SequenceClassifier.compile got an unknown argument 'lr'. Did you mean
                'learning_rate'?"
            ValueError: "learning_rate belongs to optimizer='auto'. Set it in the optimizer."
        """
        arguments = {n: value for n, value in locals().items() if n not in ("self", "__class__")}
        options = {name: arguments.pop(name) for name in OPTIONS_OF_KERAS}
        with self.distribution.scope():
            self.recipe.compile(super().compile, arguments, options)

    def get_compile_config(self) -> dict | None:
        """Return the arguments of `compile`."""
        return self.recipe.get_config(super().get_compile_config())

    def compile_from_config(self, config: dict) -> None:
        """Compile as `get_compile_config` says."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    @validate_arguments
    @trains
    def fit(
        self,
        x: object = None,
        y: object = None,
        batch_size: PositiveInt | None = None,
        epochs: NonNegativeInt = 1,
        *,
        verbose: Verbosity = "auto",
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        validation_split: Rate = 0.0,
        validation_data: object = None,
        shuffle: bool = True,
        sample_weight: object = None,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        initial_epoch: NonNegativeInt = 0,
        steps_per_epoch: PositiveInt | None = None,
        validation_batch_size: PositiveInt | None = None,
        validation_steps: PositiveInt | None = None,
        validation_freq: int | Sequence[int] = 1,
    ) -> History:
        """Train as `keras.Model.fit`, on raw inputs.

        Texts in memory are tokenized once; batches are drawn from examples of like length, in an
        order that `keras.utils.set_random_seed` fixes, and padded to their longest; on JAX short
        texts of classifiers and rerankers are packed instead. From a dataset of single examples,
        the batches are drawn from megabatches of 50 batches; a dataset of batches is read as it is.

        Args:
            x: raw inputs (list, array, tensor, column of pandas, polars, Arrow or datasets; for
                pairs a tuple of two such, a list of pairs or a table of two columns), a
                `tf.data.Dataset` of them (elements `x`, `(x, y)` or `(x, y, sample_weight)`,
                batched or single; pairs of texts without labels as `((first, second),)`),
                prepared inputs `{"token_ids", ...}`, or, to pretrain, a `PretrainingCorpus`.
            y: labels; none with a dataset.
            batch_size: default 32.
            epochs: number of passes.
            verbose: as in Keras.
            callbacks: Keras's. With `encoder_zoo.BackupAndRestore` a run that was killed
                continues; a dataset must then give the same examples in the same order again.
            validation_split: share of the examples, from the end, kept for validation.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, or a dataset.
            shuffle: whether texts in memory are shuffled, and the single examples of a dataset
                inside their megabatches.
            sample_weight: one number per example.
            class_weight: of a task with classes: {name or number of a class: weight}, where the
                others have 1, or "balanced", which weighs rare classes more; of tags, too. With
                several labels a text, each label is weighed by itself, where it is given.
            initial_epoch: number of the first epoch.
            steps_per_epoch: batches in an epoch; None is one pass.
            validation_batch_size, validation_steps: default `batch_size`, and one pass.

        Returns:
            Keras's history.

        Raises:
            ValueError: "All weights of this SequenceClassifier are frozen, ...", and for other
                reasons why no weight would change: a learning rate of 0 in all steps, weights that
                are all 0.
            RuntimeError: "This model is being trained by another call of fit. ..."
            FloatingPointError: "Epoch 2/3, step 17/100: the loss is nan. ...", unless
                `keras.callbacks.TerminateOnNaN` is among the callbacks.
        """
        sources.check_validation(self, validation_data)
        x, y = self._begin_fit(x, y)
        epoch_numbers = range(initial_epoch, epochs)
        size = batch_size or BATCH_SIZE
        plan = Plan(size, epoch_numbers, shuffle, steps_per_epoch, self.group_lengths)
        held_out_size = validation_batch_size or plan.batch_size
        with logged_once():
            held_out = sources.validation_data_of(self, validation_data, held_out_size)
            data = sources.training_data(self, x, y, sample_weight, plan)
        self._reserve_examples(data)
        if validation_split:
            data, held_out = data.split(validation_split, held_out_size)
        data = data if class_weight is None else self._weigh_classes(data, class_weight)
        check_weights(sample_weight, data.class_weights)
        options = {  # Keras does not use all of them, but what records its arguments does
            "batch_size": batch_size if sources.is_dataset(x) else size,
            "validation_split": validation_split,
            "validation_batch_size": held_out_size,
            "validation_data": held_out,
            "validation_steps": validation_steps,
            "validation_freq": validation_freq,
        }
        return self._fit(data, callbacks, verbose, options)

    def _begin_fit(self, x, y) -> tuple:
        """Return inputs and labels, checked; the task has learned from them and is compiled."""
        refuse_in_fork()
        given, (x, y) = (x, y), sources.separated(self, x, y)
        if not (sources.is_prepared(x) or (given[1] is None and y is not None)):
            names = getattr(self.preprocessor, "text_columns", None)
            log_roles(*given, self.column_roles, names)
        self._adapt(x, y)
        self._make_ready()
        return x, y

    def _fit(self, data: TrainingData, callbacks, verbose, options: dict):
        """Call Keras's `fit`, under a strategy on parts of batches."""
        data.check()
        self.recipe.restart_schedule(data.total_steps)
        self.recipe.check_trains(data.total_steps, keras.tree.flatten(callbacks or []))
        with self.distribution.running():
            arguments = {**data.fit_arguments(callbacks, verbose), **options}
            build_metrics(self, arguments["x"])
            arguments = self.distribution.divided_arguments(arguments)
            if self.steps_per_execution > 1:
                arguments["x"] = uncounted(arguments["x"])
            with self._counting(data.steps_per_epoch, data.done):
                history = super().fit(**arguments)
        self.recipe.report_still(data.total_steps)
        return history
