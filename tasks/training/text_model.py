"""`compile`, `fit`, `evaluate` and `predict` of the tasks, on raw inputs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Unpack, overload

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.arguments import EvaluateOptions
from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import opens_training
from encoder_zoo.common.model_configuration import saves_layer_states
from encoder_zoo.common.tensorflow_private import drop_kernels_of_models_gone
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
from encoder_zoo.common.weights_lock import LocksWeights, weights_lock
from encoder_zoo.common.wording import unknown_argument
from encoder_zoo.encoders import gradients
from encoder_zoo.encoders.family import WEIGHT_DECAY
from encoder_zoo.encoders.inputs import check_inputs
from encoder_zoo.encoders.training import undecayed_weights
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.preprocessing.array_batches import ArrayBatches
from encoder_zoo.tasks.preprocessing.batch_shapes import PACKED_TOKENS, REAL_ROWS
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE, Plan
from encoder_zoo.tasks.preprocessing.columns import log_columns, table_columns
from encoder_zoo.tasks.preprocessing.given_labels import check_given
from encoder_zoo.tasks.preprocessing.preprocessor import logged_once
from encoder_zoo.tasks.preprocessing.tracing import ShapePolymorphicFunction
from encoder_zoo.tasks.training import sources
from encoder_zoo.tasks.training.backup import resume
from encoder_zoo.tasks.training.batch_loss import BatchLoss, mean_over_replicas
from encoder_zoo.tasks.training.callbacks import Callbacks, History
from encoder_zoo.tasks.training.data import BatchMaker, Source, own_errors, uncounted
from encoder_zoo.tasks.training.distribution import (
    Distribution,
    current_strategy,
    shard_of_process,
    whole_batches,
    worker_of,
)
from encoder_zoo.tasks.training.exact_metrics import ExactMetric
from encoder_zoo.tasks.training.fine_tuning_optimizer import FrozenLayers, restart_optimizer
from encoder_zoo.tasks.training.graphs import (
    GraphCache,
    can_be_filled,
    enable_compilation_cache,
    is_long,
    of_texts,
    real_rows,
    step_function,
    weights_of_metrics,
    without,
)
from encoder_zoo.tasks.training.inference import (
    example_outputs,
    predict_inputs,
    predict_texts,
    text_outputs,
)
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.tasks.training.optimizers import WARMUP
from encoder_zoo.tasks.training.prepared import checked_arrays, inputs_of
from encoder_zoo.tasks.training.recipe import (
    CompiledMetrics,
    Recipe,
    TaskSettings,
    build_metrics,
    check_weights,
    train_new_pooler,
    warn_random_weights,
)
from encoder_zoo.tasks.training.streams import ending_quietly


@saves_layer_states
@opens_training
class TextModel(LocksWeights, ConfigFromSignature, keras.Model):
    """A `keras.Model` that trains, evaluates and predicts on a preprocessor's raw inputs.

    Graphs are kept as long as they are valid: `fit`, `evaluate` and `predict` trace nothing again
    for other data, epochs and learning rates.

    Attributes:
        record: what other code needs to know of the task.
        distribution: the strategy of `tf.distribute` that the model was built under, or none.
        graphs: the graphs that were traced.
        recipe: the settings of `compile`.
        objective: loss, metrics, and what they take the outputs for.
        compile_settings: Names of the task's own arguments of `compile`, which are its attributes.
        form: Form of the data that the objective is for, of a task that learns from several.
    """

    record: TaskRecord
    objective: Objective
    compile_settings: tuple[str, ...] = ()
    form: str | None = None
    _counted = types.SimpleNamespace(steps=None, done=0)
    compiled_with = CompiledMetrics()
    _held_out: object = None  # what Keras's `fit` evaluates after an epoch
    _evaluation: tuple[Mapping[str, float], int] | None = None  # results, checksum of the weights

    @property
    def default_learning_rate(self) -> float:
        """Return the peak, if neither `compile` nor a preset gives another."""
        return self.record.learning_rate or self.backbone.family.learning_rate

    def _reset_training_state(self) -> None:
        """Set the state of a task before its first `compile`."""
        self.distribution = Distribution(current_strategy())
        self.graphs = GraphCache()
        self._layers_version = 0
        enable_compilation_cache()
        self.recipe = Recipe()
        self._frozen_layers = FrozenLayers()
        self._traced_with = None
        self.learning_rate = self.default_learning_rate
        if keras.config.backend() == "tensorflow":
            self.jit_compile = False  # until `compile` decides: Keras's own default is XLA

    @property
    def batch_maker(self) -> BatchMaker:
        """Return the functions and settings that make batches for this task, as they are now."""
        jit_compile = self.compiled and self.jit_compile
        compiles = bool(jit_compile) or keras.config.backend() == "jax"
        fills = compiles and self.compiled and self.objective.fills_batches
        fills = fills and not self.distribution.strategy
        values = self.record.preprocessor_class.label_values
        none_is_answer = getattr(values, "none_is_answer", False)
        return BatchMaker(
            task=type(self).__name__,
            preprocessor=self.preprocessor,
            encode=self.preprocess,
            separate=getattr(self.preprocessor, "separate", unchanged),
            check_given=functools.partial(check_given, none_is_answer=none_is_answer),
            check=functools.partial(sources.checked, self),
            graphs=self.graphs,
            labels_tokens=self.record.labels_tokens,
            compiles=compiles,
            fills=fills and can_be_filled(self.loss, self.compiled_with.given),
            packs=self.record.packs_batches,
            worker=worker_of(self.distribution.strategy),
            dtype=self.dtype_policy.name,
        )

    @property
    def has_one_graph(self) -> bool:
        """Return whether one graph predicts all batches, not a program for each of their shapes."""
        if keras.config.backend() != "tensorflow" or self.distribution.strategy:
            return False
        several = self.compiled and (self.run_eagerly or self.steps_per_execution > 1)
        return not (several or self.jit_compile)

    # -- methods that tasks refine -------------------------------------------------------------

    def _adapt(self, x, y, training: bool = True) -> None:
        """Set the properties that the task learns from its data, such as labels.

        Args:
            x, y: Inputs and labels.
            training: Boolean. Whether they are given to `fit`, and not to `evaluate`.
        """

    def _before_training(self, x, y, data: Source) -> bool:
        """Set how the task will answer, and forget what belongs to its weights of now.

        The data of `fit` are checked by then: what fails before leaves the answers as they are.

        Returns:
            Whether the examples of the data must be made again, by other settings.
        """
        return False

    def _check_answers(self, x=None) -> None:
        """Raise a ValueError if the task cannot evaluate, or predict these inputs, yet."""

    def learning_rate_shares(self) -> dict[int, float]:
        """Return {id of a weight: its learning rate, as a share of that of the others}."""
        return {}

    def _warn_new_head(self) -> None:
        """Log once that answers are those of a head with random weights."""

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
            loss: "auto" is the task's loss. Losses of Keras get what they expect of labels and
                outputs: probabilities, logits for the hinge losses and with `from_logits=True`, and
                rows of 0 and 1 in place of class indices. Losses without a meaning for the task are
                refused. Your own functions and losses get labels and outputs as they are, and
                return a value for each example or token. The mean is over examples, or over tokens
                with a label, on any number of replicas.
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
            TypeError: If an argument is unknown.
            ValueError: If the loss or a metric has no meaning for this task, a setting does not
                belong to the given optimizer, or XLA does not compile the model.
        """
        arguments = {
            "optimizer": optimizer,
            "loss": loss,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
            "jit_compile": jit_compile,
            "learning_rate": learning_rate,
            "gradient_accumulation_steps": gradient_accumulation_steps,
            "weight_decay": weight_decay,
            "warmup": warmup,
            "layer_decay": layer_decay,
            "frozen_layers": frozen_layers,
        }
        options = {
            "loss_weights": loss_weights,
            "run_eagerly": run_eagerly,
            "steps_per_execution": steps_per_execution,
            "auto_scale_loss": auto_scale_loss,
        }
        self.distribution.check_devices(self)
        with self.distribution.scope():
            recipe = self.recipe.updated(arguments, options)
            if frozen_layers is not None:
                self._frozen_layers.freeze(self.backbone, frozen_layers)
            self.learning_rate = learning_rate or self.learning_rate
            if recipe.makes_optimizer and recipe == self.recipe and self._is_as_traced():
                return  # another learning rate, at most, which needs no other graph
            self._compile(recipe)
            recipe.warn_default_rate(self.optimizer, self.default_learning_rate)

    def _compile(self, recipe: Recipe) -> None:
        """Compile by a recipe, which is the model's from now on."""
        given, optimizer = recipe.arguments, recipe.arguments["optimizer"]
        if recipe.makes_optimizer:
            optimizer = recipe.make_optimizer(self.backbone, self._settings_of_optimizer())
        length = getattr(self.preprocessor, "sequence_length", None)
        has_fixed_shapes = length is not None and not self.distribution.strategy
        jit_compile = recipe.jit_compile(self.record.goes_step_by_step, has_fixed_shapes)
        # Keras gets no loss: `compute_loss` computes it.
        loss = self.objective.resolve_loss(given["loss"])
        batch_loss = self.objective.batch_loss(loss)
        if self.distribution.strategy:
            batch_loss.check_adds_up()
        metrics = self.objective.metrics(loss, given["metrics"], given["weighted_metrics"])
        options = {name: v for name, v in recipe.options.items() if name != "loss_weights"}
        super().compile(optimizer=optimizer, **metrics, jit_compile=jit_compile, **options)
        self.recipe, self.loss, self.batch_loss = recipe, loss, batch_loss
        self.compiled_with = CompiledMetrics(**metrics, of_keras=self.metrics)
        self._traced_with = self._traced_state()
        self.distribution.fix_compiled(self)

    def _settings_of_optimizer(self) -> TaskSettings:
        family = self.backbone.family
        decay = family.weight_decay, family.layer_decay
        if self.record.pretrains:  # a family's paper gives those for fine-tuning
            decay = WEIGHT_DECAY, 1.0
        return TaskSettings(
            self.learning_rate,
            *decay,
            WARMUP if self.record.warmup is None else self.record.warmup,
            self.learning_rate_shares(),
            undecayed_weights(self),
            self.dtype_policy.name == "mixed_float16",
        )

    def _traced_state(self) -> tuple:
        """Return the state that training graphs depend on, except the arguments of `compile`."""
        trained = tuple(id(variable) for variable in self.trainable_variables)
        of_backbone = self.backbone._checkpoints_gradients, self.backbone.layers_version
        rates = tuple(self.learning_rate_shares().values())
        return trained, *of_backbone, self.form, self._own_settings(), rates

    def _own_settings(self) -> dict:
        return {name: getattr(self, name) for name in self.compile_settings}

    def _is_as_traced(self) -> bool:
        return self.compiled and self._traced_with == self._traced_state()

    def _restart_schedule(self, total_batches: int) -> None:
        """Begin the schedule of a `fit`, if the optimizer is the recipe's."""
        is_recipes = self.recipe.makes_optimizer
        if total_batches:
            train_new_pooler(self.backbone)
            is_default = is_recipes and self.learning_rate == self.default_learning_rate
            if is_default and self.backbone.has_random_weights:
                warn_random_weights(self.learning_rate)
        with self.distribution.scope():
            if is_recipes:
                if not self._is_as_traced():
                    self._compile(self.recipe)
                restart_optimizer(self.optimizer, self.learning_rate, total_batches)
            # Variables that appear in a trace have TensorFlow trace a second time.
            if not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)

    def _check_trains(self, total_batches: int, callbacks: list) -> None:
        """Raise a ValueError if a `fit` would change no weight."""
        if not total_batches:
            return
        if not self.trainable_variables:
            raise ValueError(
                f"All weights of this {type(self).__name__} are frozen. Set `trainable = True` of "
                "the model, or of the layers that are to learn."
            )
        self.recipe.check_trains(self.optimizer, total_batches, callbacks)

    def get_compile_config(self) -> dict | None:
        """Return the arguments of `compile`."""
        config = super().get_compile_config()
        if not config:  # of a model that is not compiled
            return config
        config = self.recipe.to_config(config, self.loss, self.learning_rate)
        return {**config, **self._own_settings()}

    def compile_from_config(self, config: dict) -> None:
        """Compile as `get_compile_config` says."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    @validate_arguments
    def fit(
        self,
        x: object = None,
        y: object = None,
        batch_size: PositiveInt | None = None,
        epochs: NonNegativeInt = 1,
        *,
        verbose: Verbosity = "auto",
        callbacks: Callbacks | None = None,
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
                batched or single; pairs of texts without labels as `((first, second),)`), the
                same from a `keras.utils.PyDataset`, a `DataLoader` of PyTorch, Grain, an
                `IterableDataset` of `datasets` or, with `steps_per_epoch`, a generator,
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
            ValueError: If no weight would change: all are frozen, or the learning rate or all
                weights of examples are 0.
            RuntimeError: If the model is being trained by another call of `fit`.
            FloatingPointError: If the loss is not finite, unless `keras.callbacks.TerminateOnNaN`
                is among the callbacks.
        """
        held_out = sources.validation_of(self, validation_data, y)
        x, y = self._begin_fit(x, y)
        size = batch_size or BATCH_SIZE
        epoch_numbers = range(initial_epoch, epochs)
        plan = Plan(size, epoch_numbers, shuffle, steps_per_epoch, self.record.group_lengths)
        held_out_size = validation_batch_size or size
        if held_out is not None:
            held_out = *sources.read(self, *held_out[:2]), held_out[2]

        def read() -> tuple[Source, Source | None]:
            with logged_once():
                others = held_out and self._evaluation_source(
                    *held_out, held_out_size, validation_steps
                )
                data = sources.as_source(x, y, sample_weight, plan=plan, maker=self.batch_maker)
            self._reserve_examples(data)
            return (
                data.split(validation_split, held_out_size) if validation_split else (data, others)
            )

        data, held_out_data = read()
        if self._before_training(x, y, data):
            data, held_out_data = read()
        if validation_split:
            self.objective.report_split(data.examples, held_out_data.examples)
        self._prepare_metrics()
        if class_weight is not None:
            data = self.objective.weigh_classes(data, class_weight, self.loss)
        check_weights(sample_weight, data.class_weights)
        options = {  # Keras does not use all of them, but what records its arguments does
            "batch_size": batch_size if sources.is_dataset(x) else size,
            "validation_split": validation_split,
            "validation_batch_size": held_out_size,
            "validation_steps": validation_steps,
            "validation_freq": validation_freq,
        }
        return self._fit(data, held_out_data, callbacks, verbose, options)

    def _begin_fit(self, x, y) -> tuple:
        """Return inputs and labels, checked; the task has learned from them and is compiled."""
        given, (x, y) = (x, y), sources.read(self, x, y)
        if not (sources.is_prepared(x) or (given[1] is None and y is not None)):
            self._log_columns(*given)
        self._adapt(x, y)
        self._make_ready()
        return x, y

    def _log_columns(self, x, y) -> None:
        """Log what the columns of a table are taken for."""
        columns = list(x) if isinstance(x, Mapping) else table_columns(x)
        if columns is not None and self.preprocessor is not None:
            names = self.preprocessor.text_columns
            log_columns(self.preprocessor.inputs.names_in(columns, names), y)

    def _fit(self, data: Source, held_out: Source | None, callbacks, verbose, options: dict):
        """Call Keras's `fit`, under a strategy on parts of batches."""
        data.check()
        drop_kernels_of_models_gone(self)
        self._restart_schedule(data.total_steps)
        self._check_trains(data.total_steps, keras.tree.flatten(callbacks or []))
        if not data.plan.epochs:  # of none Keras's JAX and PyTorch trainers fail
            none = keras.callbacks.CallbackList(callbacks, add_history=True, model=self)
            none.on_train_begin()
            none.on_train_end()
            return self.history
        self.distribution.report_processes(self)
        self.distribution.agree(self, self._exact_metrics(), data, held_out)
        with self.distribution.running():
            arguments, done = resume(self, data, callbacks, verbose)
            validation = held_out and held_out.in_order()
            arguments |= {**options, "validation_data": validation}
            build_metrics(self, arguments["x"])
            arguments = self.distribution.divided_arguments(arguments)
            if done and isinstance(arguments["x"], ArrayBatches):
                arguments["x"] = arguments["x"].without_end()
            elif self.steps_per_execution > 1:
                arguments["x"] = uncounted(arguments["x"])
            validated = keras.utils.unpack_x_y_sample_weight(arguments["validation_data"])[0]
            vars(self)["_held_out"] = validated  # itself: Keras would track a copy of a dict
            try:
                with self._counting(data.steps_per_epoch, done), own_errors(data, held_out):
                    history = super().fit(**arguments)
            finally:
                del vars(self)["_held_out"]
        self.recipe.report_still(self.optimizer, self.trainable_variables, data.total_steps)
        return history

    # -- answers ---------------------------------------------------------------------------------

    def _make_ready(self) -> None:
        """Compile if needed."""
        self.distribution.check_devices(self)
        if not self.compiled:
            self.compile()

    def _evaluation_source(self, x, y, sample_weight, batch_size: int, steps: int | None) -> Source:
        """Return the data for `evaluate`, for which the metrics have room."""
        plan = Plan(batch_size, steps_per_epoch=steps)
        data = sources.as_source(x, y, sample_weight, plan=plan, maker=self.batch_maker)
        self._reserve_examples(data)
        return data

    def _prepare_metrics(self) -> None:
        """Tell metrics, such as `EntityF1`, of the weights and settings of now."""
        for metric in self.compiled_with.given:
            if hasattr(metric, "read_task"):
                metric.read_task(self)

    def _exact_metrics(self) -> list[ExactMetric]:
        return [m for m in self.compiled_with.given if isinstance(m, ExactMetric)]

    def _reserve_examples(self, data: Source) -> None:
        """Make room for all examples in the metrics that keep them."""
        kept = self._exact_metrics()
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
        callbacks: Callbacks | None = None,
        **of_keras: Any,
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
        if x is not None and x is self._held_out:  # by Keras's `fit`: they are prepared
            self._prepare_metrics()
            with self.distribution.running(), self._counting(steps):
                return super().evaluate(x, y, batch_size, sample_weight=sample_weight, **options)
        if of_keras:
            names = set(inspect.signature(type(self).evaluate).parameters) - {"self", "of_keras"}
            called = f"{type(self).__name__}.evaluate"
            raise TypeError(unknown_argument(called, next(iter(of_keras)), names))
        self._check_answers()
        given, (x, y) = x, sources.read(self, x, y)
        self._adapt(x, y, training=False)
        self._make_ready()
        self._prepare_metrics()
        data = self._evaluation_source(x, y, sample_weight, batch_size or BATCH_SIZE, steps)
        self.distribution.agree(self, self._exact_metrics(), data)
        batches = data.in_order()
        build_metrics(self, batches)
        with ending_quietly(given), own_errors(data):
            return self._run(self._evaluate, batches, **options)

    def _evaluate(self, *args, **kwargs):
        """Evaluate as in Keras, and remember the results; the validations of `fit` are not."""
        results = super().evaluate(*args, **kwargs)
        self._remember(dict(_numbers(self.get_metrics_result())))
        return results

    @property
    def last_evaluation(self) -> Mapping[str, float]:
        """Return {name of a metric: value}; empty before `evaluate`, and for other weights.

        Weights change in many ways: by `fit`, as the student of a distillation, by adapters, or
        with a backbone that another task trains. So the results have a checksum of the weights.
        """
        if self._evaluation is None:
            return MappingProxyType({})
        results, checksum = self._evaluation
        return results if checksum == _checksum(self.weights) else MappingProxyType({})

    def _remember(self, results: Mapping[str, float]) -> None:
        # Keras would track a dict.
        self._evaluation = MappingProxyType(dict(results)), _checksum(self.weights)

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
    def predict(
        self,
        x: object,
        batch_size: PositiveInt | None = None,
        *,
        verbose: Verbosity = "auto",
        steps: PositiveInt | None = None,
        callbacks: Callbacks | None = None,
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
        self._check_answers(x)
        self._warn_new_head()
        options = {"verbose": verbose, "steps": steps, "callbacks": callbacks}
        predict = functools.partial(self._run_whole, super().predict, **options)
        with ending_quietly(x):
            return predict_inputs(self, x, batch_size or BATCH_SIZE, predict)

    _predict_texts = predict_texts
    run_texts = text_outputs
    run_examples = example_outputs

    def preprocess(self, x: object, y: object = None, sample_weight: object = None) -> dict:
        """Return raw inputs in memory as encoded examples; see `Preprocessor.encode`."""
        sources.check_preprocessor(self, x)
        return self.preprocessor.encode(x, y, sample_weight)

    # -- what Keras calls in each step -----------------------------------------------------------

    def __call__(self, inputs, *args, **kwargs):
        inputs = without(inputs, REAL_ROWS)
        own = without(inputs, PACKED_TOKENS)
        known, name = tuple(self.input_ranges(0)), type(self).__name__
        check_inputs(own, known, name, self.record.text_method)
        return super().__call__(inputs, *args, **kwargs)

    def train_step(self, *args):
        """Train as in Keras; what is traced ends with this model, see `hold_gradients`."""
        outputs = super().train_step(*args)
        gradients.hold_gradients()
        return outputs

    def compute_loss(
        self,
        x=None,
        y=None,
        y_pred=None,
        sample_weight=None,
        training=True,
        batch_loss: BatchLoss | None = None,
    ):
        """Compute the loss of the whole batch with `BatchLoss`, and add the losses of layers.

        Rows that only fill the batch do not count.

        Args:
            x, y, y_pred, sample_weight, training: As in Keras.
            batch_loss: `BatchLoss` of this step. Defaults to that of `compile`.
        """
        penalties = self.penalties(y_pred)
        loss, size = (batch_loss or self.batch_loss)(y, y_pred, sample_weight, real_rows(x))
        if training:
            self.recipe.weigh_batch(self.optimizer, size)
        self.compiled_with.weigh_next_loss(size)
        return loss * self.recipe.loss_weight + penalties

    def penalties(self, y_pred):
        """Return the sum of the losses that layers add, such as penalties on weights or outputs.

        Ask for them before a replica waits for the others, whose calls of the layers replace them.

        Args:
            y_pred: Outputs of shape (B, ...).
        """
        if not self.losses:
            return 0.0
        penalty = ops.sum(ops.stack([ops.sum(ops.cast(loss, "float32")) for loss in self.losses]))
        return mean_over_replicas(penalty, ops.shape(keras.tree.flatten(y_pred)[0])[0])

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Update the metrics as in Keras, without rows that only fill the batch."""
        for metric in self.compiled_with.given:
            if hasattr(metric, "read_inputs"):  # such as `EntityF1`
                metric.read_inputs(x)
        y_pred = keras.tree.map_structure(_in_single_precision, y_pred)
        y, y_pred, sample_weight = self.objective.inputs_of_metrics(x, y, y_pred, sample_weight)
        real = real_rows(x)
        if real is None:
            return super().compute_metrics(x, y, y_pred, sample_weight)
        y = ops.convert_to_tensor(y)
        weights = (weights_of_metrics(real, y_pred, given) for given in (sample_weight, None))
        self.compiled_with.update(y, y_pred, *weights)
        return self.get_metrics_result()

    def get_metrics_result(self) -> dict:
        """Return results as in Keras, but in a replica those for the whole batch."""
        result = super().get_metrics_result
        return self.distribution.metrics_of_batch(self.metrics_variables, result)

    def step_function(self, step: Callable) -> Callable | None:
        """Return the function of an iterator that runs a step; None is Keras's own."""
        if not self.has_one_graph:
            return None
        trains, lock = step == self.train_step, weights_lock(self)
        return step_function(step, lock.exclusive if trains else lock.shared, trains)

    @contextlib.contextmanager
    def _counting(self, steps: int | None, done: int = 0):
        """Count the batches that Keras reads, so that no execution reads beyond an epoch.

        Only on TensorFlow several steps are one execution: elsewhere Keras's loop, which would read
        their batches ahead, runs one after the other.

        Args:
            steps: batches of an epoch; None: the data end with it.
            done: batches of the first epoch that are done.
        """
        outer, self._counted = self._counted, types.SimpleNamespace(steps=steps, done=done)
        executed = self.steps_per_execution
        if keras.config.backend() != "tensorflow":
            self.steps_per_execution = 1
        try:
            yield
        finally:
            self._counted, self.steps_per_execution = outer, executed

    def _next_execution(self) -> int:
        """Return how many batches the next execution of several takes."""
        counted = self._counted
        if counted.steps is None:
            return self.steps_per_execution
        count = min(self.steps_per_execution, counted.steps - counted.done % counted.steps)
        counted.done += count
        return count

    def forget_stale_functions(self) -> None:
        """Forget the functions that were traced before low-rank updates were added or replaced."""
        version = self.backbone.layers_version
        if version != self._layers_version:
            self._layers_version = version
            self.train_function = self.test_function = self.predict_function = None
            self.graphs.forget()

    def make_predict_function(self, force: bool = False) -> None:
        """Make the function as in Keras, but on TensorFlow one graph for all sizes of batches."""
        if not self.has_one_graph:
            super().make_predict_function(force)
        elif force or self.predict_function is None:
            # Graphs read these variables; others need other graphs.
            self._traced_weights = tuple((id(weight), weight.dtype) for weight in self.variables)
            self.predict_function = lambda batches: self.outputs_of_batch(inputs_of(batches[0]))

    def outputs_of_batch(self, inputs):
        """Return the outputs of a batch of any size, computed by one graph of `predict_step`."""
        long, step = is_long(inputs), self.predict_step
        graph = self.batch_maker.cached(
            ("forward", self._traced_weights, long),
            lambda: ShapePolymorphicFunction(of_texts(long, step), 3),
        )
        return graph(inputs)

    def predict_on_batch(self, x):
        """Return the outputs for one batch of prepared inputs."""
        predict = super().predict_on_batch
        return self.distribution.predict_on_batch(predict, checked_arrays(self, x))

    def train_on_batch(self, x, *args, **kwargs):
        """Train on one batch of prepared inputs, as `keras.Model.train_on_batch`.

        The number of steps is not known: the optimizer of the recipe holds the peak of its rate.
        """
        self.distribution.check_devices(self)
        with self.distribution.running():
            self.recipe.hold_rate(self.optimizer)
            return super().train_on_batch(checked_arrays(self, x), *args, **kwargs)

    def test_on_batch(self, x, *args, **kwargs):
        """Evaluate one batch of prepared inputs, as `keras.Model.test_on_batch`."""
        self.distribution.check_devices(self)
        with self.distribution.running():
            return super().test_on_batch(checked_arrays(self, x), *args, **kwargs)


def unchanged(x, y) -> tuple:
    """Return inputs and labels as they are."""
    return x, y


def _in_single_precision(outputs):
    """Return outputs of half precision, as of a user's head, in float32: metrics add them up."""
    outputs = ops.convert_to_tensor(outputs)
    is_half = keras.backend.standardize_dtype(outputs.dtype) in ("float16", "bfloat16")
    return ops.cast(outputs, "float32") if is_half else outputs


def _numbers(results: Mapping) -> Iterator[tuple[str, float]]:
    """Yield the numbers in the results of metrics, of which some have several by name."""
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif np.ndim(value) == 0:
            yield name, float(value)


def _checksum(weights: list[keras.Variable]) -> int:
    found = 0
    for weight in weights:
        for array in _arrays(weight):
            found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view("uint8"), found)
    return found


def _arrays(weight: keras.Variable) -> list[np.ndarray]:
    """Return the values of a weight; of one over several processes those that are in this one."""
    if getattr(weight.value, "is_fully_addressable", True):
        return [keras.ops.convert_to_numpy(weight)]
    return [np.asarray(shard.data) for shard in weight.value.addressable_shards]
