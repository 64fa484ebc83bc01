"""Base class of the tasks, with `compile`, `fit` and `evaluate` for raw inputs."""

from __future__ import annotations

import contextlib
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
from encoder_zoo.common.base_model import BaseModel
from encoder_zoo.common.context import use_context
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.tensorflow_private import disable_graph_rewriting, drop_unused_kernels
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
from encoder_zoo.common.weights_lock import get_weights_lock, hold_lock
from encoder_zoo.common.wording import describe_unknown_argument
from encoder_zoo.encoders import gradients
from encoder_zoo.encoders.family import WEIGHT_DECAY
from encoder_zoo.encoders.inputs import check_inputs
from encoder_zoo.encoders.kernels import long_attention
from encoder_zoo.encoders.kernels.exported_forward import ExportedForward
from encoder_zoo.encoders.training import list_undecayed
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.losses.batch_loss import BatchLoss, average_over_replicas
from encoder_zoo.tasks.preprocessing.array_batches import ArrayBatches
from encoder_zoo.tasks.preprocessing.batch_shapes import PACKED_TOKENS, REAL_ROWS
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE, Plan
from encoder_zoo.tasks.preprocessing.columns import list_table_columns, log_columns
from encoder_zoo.tasks.preprocessing.prepared import check_arrays, get_inputs
from encoder_zoo.tasks.preprocessing.preprocessor import log_truncation_once
from encoder_zoo.tasks.preprocessing.tracing import ShapePolymorphicFunction
from encoder_zoo.tasks.training import sources
from encoder_zoo.tasks.training.callbacks import Callbacks, History, resume
from encoder_zoo.tasks.training.data import (
    BatchMaker,
    GraphCache,
    Source,
    enable_compilation_cache,
    hide_num_batches,
    raise_original_errors,
)
from encoder_zoo.tasks.training.distribution import Distribution, get_strategy, get_worker
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.tasks.training.optimizers import WARMUP, check_trainable, restart_optimizer
from encoder_zoo.tasks.training.recipe import (
    CompiledMetrics,
    FrozenLayers,
    Recipe,
    build_metrics,
    check_weights,
    train_new_pooler,
    warn_if_kernels_trained,
    warn_if_rate_too_low,
)
from encoder_zoo.tasks.training.streams import suppress_end_warning

# Key of the frozen layers in the compile config, see `FrozenLayers.get_state`.
FROZEN_HERE = "frozen_here"


class TextModel(BaseModel):
    """A `keras.Model` that is trained and evaluated on raw inputs.

    Graphs are reused as long as they are valid. The model is not traced again if `fit`, `evaluate`
    and `predict` are called with different data, epochs or learning rates.

    Attributes:
        record: `TaskRecord` with the task's properties that other modules need.
        distribution: `Distribution` with the optional `tf.distribute` strategy of the model.
        graphs: `GraphCache` with the traced graphs.
        recipe: `Recipe` with the `compile` arguments.
        objective: `Objective` with the loss, the metrics and the meaning of the outputs.
        form: Optional string. Format of the training data, for tasks that support several formats.
            None for the format that a new model expects.
    """

    record: TaskRecord
    objective: Objective
    form: str | None = None
    _counted = types.SimpleNamespace(steps=None, done=0)
    task_metrics = CompiledMetrics()
    _held_out: object = None  # validation data for the running `fit`
    # Results and weight checksum of the last evaluation.
    _evaluation: tuple[Mapping[str, float], int] | None = None

    @property
    def recurrent_layer(self) -> str | None:
        """Return the name of a recurrent part, such as "a CRF", or None.

        On TensorFlow, a model with such a part is trained without XLA, which requires a fixed
        number of steps.
        """
        return None

    @property
    def default_learning_rate(self) -> float:
        """Return the default peak learning rate. `compile` or the preset can replace it."""
        return self.record.learning_rate or self.backbone.family.learning_rate

    def _reset_training_state(self) -> None:
        """Set the training state to its initial values, as in a task that is not compiled."""
        self.distribution = Distribution(get_strategy())
        self.graphs = GraphCache()
        enable_compilation_cache()
        self.recipe = Recipe()
        self._frozen_layers = FrozenLayers()
        self._traced_with = None
        self.learning_rate = self.default_learning_rate
        if keras.config.backend() == "tensorflow":
            self.jit_compile = False  # the Keras default is XLA. `compile` replaces this value.

    @property
    def batch_maker(self) -> BatchMaker:
        """Create a `BatchMaker` with the current settings of the task."""
        jit_compile, backend = self.compiled and self.jit_compile, keras.config.backend()
        # PyTorch compiles a function for varying shapes when it sees the second shape.
        compiles = backend == "jax" or (bool(jit_compile) and backend == "tensorflow")
        fills = compiles and self.compiled and not self.distribution.strategy
        values = self.record.preprocessor_class.label_values
        return BatchMaker(
            model=self,
            preprocessor=self.preprocessor,
            encode=self.preprocess,
            separate=getattr(self.preprocessor, "separate", lambda x, y: (x, y)),
            none_is_answer=getattr(values, "none_is_answer", False),
            graphs=self.graphs,
            labels_tokens=self.record.labels_tokens,
            compiles=compiles,
            fills=fills and self.objective.can_fill(self.loss, self.task_metrics.given),
            packs=self.record.packs_batches,
            worker=get_worker(self.distribution.strategy),
            dtype=self.dtype_policy.name,
        )

    @property
    def has_one_graph(self) -> bool:
        """Return whether a single graph is used for batches of all shapes."""
        if keras.config.backend() != "tensorflow" or self.distribution.strategy:
            return False
        several = self.compiled and (self.run_eagerly or self.steps_per_execution > 1)
        return not (several or self.jit_compile)

    def _set_form(self, form: str | None) -> None:
        """Set the format of the training data, and compile again if the format has changed."""
        if form != self.form:
            with self._restore_on_error("form"):
                self.form = form
                self._compile_again()

    @contextlib.contextmanager
    def _restore_on_error(self, setting: str) -> Iterator[None]:
        """Context manager that restores a setting of the task if an error is raised."""
        previous = getattr(self, setting)
        try:
            yield
        except BaseException:
            setattr(self, setting, previous)
            raise

    def _compile_again(self) -> None:
        """Repeat the last call of `compile`, if there was one, because its defaults changed."""
        if self.compiled:
            self.compile(**self.recipe.arguments, **self.recipe.options)

    # -- methods that subclasses override -------------------------------------------------------

    def _adapt_to_data(self, given: sources.InputData, training: bool = True) -> None:
        """Set properties that depend on the data, such as the labels.

        Args:
            given: The inputs, the labels and their kind.
            training: Boolean. True for the data of `fit`, False for the data of `evaluate`.
                Defaults to True.
        """

    def _prepare_training(self, given: sources.InputData, data: Source) -> bool:
        """Update the inference settings, and reset the calibration and the thresholds.

        `fit` calls this method after the data is checked, so that invalid data does not change the
        predictions.

        Returns:
            Boolean. Whether a setting has changed and the examples must be encoded again.
        """
        return False

    def _check_can_predict(self) -> None:
        """Raise a ValueError if the task cannot evaluate or predict yet."""

    @validate_arguments
    @hold_lock("compiling")
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
        """Configure the training, with the usual fine-tuning recipe by default.

        This method extends `keras.Model.compile`. It can be called again to change single
        arguments. Arguments set to None keep their previous values.

        Args:
            optimizer: String or Keras optimizer. "auto" is AdamW without weight decay on biases and
                LayerNorm, with gradients clipped to norm 1. The learning rate is increased linearly
                for the first tenth of all steps and then decreased linearly to 0. Every call to
                `fit` restarts this schedule for its number of steps. Defaults to "auto".
            loss: String, function or Keras loss. Use "auto" for the default task loss. Keras losses
                receive labels and outputs in the expected form, such as one-hot labels and
                probabilities. Hinge losses and losses with `from_logits=True` receive logits.
                Losses that do not match the task raise an error. Custom functions and losses
                receive labels and outputs unchanged, and should return a value for each example or
                token. The loss is averaged over the examples or labelled tokens in the whole batch,
                even if the batch is divided over several replicas. Defaults to "auto".
            metrics: List of metrics that replace the task's metrics. In addition to the names
                of Keras metrics, the following names are supported. For classes: "f1", "precision"
                and "recall", also with the suffixes "_macro", "_macro_all", "_micro" and
                "_weighted", "auc", "average_precision" and "matthews". For regression: "pearson"
                and "spearman". For tokens: "perplexity". For answers: "exact_match" and "f1". Keras
                metrics receive probabilities. With two classes, metrics such as Precision, Recall
                and AUC treat the second class as positive. Custom functions receive the outputs.
                Sample weights are not used, except in tasks whose sample weights mask tokens.
            weighted_metrics: List of metrics that use sample weights. With "auto", these are the
                metrics of the task, unless `metrics` is passed. Defaults to "auto".
            jit_compile: Boolean or "auto". With "auto", TensorFlow uses XLA on a GPU or TPU when a
                `sequence_length` is set. On other backends, this argument works as in Keras. With
                True on PyTorch, predictions use a single exported function. Defaults to "auto".
            learning_rate: Positive float. Peak learning rate of the "auto" optimizer. Defaults to
                the value of the preset, the task or the family, in this order.
            gradient_accumulation_steps: Positive integer. Number of batches per step for the "auto"
                optimizer. A step's gradient is equal to the gradient for one large batch, also
                with sample weights or labelled tokens. The remaining batches at the end of `fit`
                form the last step. Losses that compare the texts in a batch only compare the texts
                in each small batch. If a loss is the sum of several means, as in `Pretraining`,
                `ReplacedTokenDetection` and `Distillation`, batches are weighted by the number of
                masked tokens or labels.
            weight_decay: Non-negative float. Weight decay of the "auto" optimizer. Defaults to the
                value of the family, usually 0.01.
            warmup: Float between 0 and 1. Fraction of all steps in which the learning rate
                increases. Defaults to 0.1, or 0.01 for `Pretraining`.
            layer_decay: Float between 0 and 1. Learning rate of a layer, divided by the learning
                rate of the layer above it, as in ULMFiT and ELECTRA. Defaults to the value of the
                family, usually 1.
            frozen_layers: Non-negative integer. Number of blocks to freeze, counted from the
                embeddings. The embeddings are frozen, too. 0 unfreezes these layers. Layers that
                were frozen in another way stay frozen.
            loss_weights: Float. Loss weight, as in Keras.
            run_eagerly: Boolean, as in Keras.
            steps_per_execution: Positive integer, as in Keras.
            auto_scale_loss: Boolean, as in Keras.

        Raises:
            TypeError: If an argument is unknown.
            ValueError: If the loss or a metric does not match this task, if a setting of the "auto"
                optimizer is passed together with another optimizer, or if XLA cannot compile the
                model.
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
            recipe = self.recipe.update(arguments, options)
            resolved = self._resolve(recipe)  # errors must be raised before anything is changed
            if frozen_layers is not None:
                self._frozen_layers.freeze(self.backbone, frozen_layers)
            self.learning_rate = learning_rate or self.learning_rate
            is_valid = self._traced_with == self._get_traced_state()
            if recipe.makes_optimizer and recipe == self.recipe and is_valid:
                if learning_rate is not None:  # only the learning rate has changed
                    recipe.set_rate(self.optimizer, learning_rate)  # needs no new graph
                return
            self._compile(recipe, resolved)
            recipe.warn_if_default_rate(self.optimizer, self.default_learning_rate)

    def _resolve(self, recipe: Recipe) -> tuple[object, BatchLoss, dict, bool | str]:
        """Return the loss, the batch loss, the metrics and `jit_compile` of a recipe.

        Raises:
            ValueError: If they do not match this task, or if the optimizer is unknown.
        """
        given = recipe.arguments
        if not recipe.makes_optimizer:
            keras.optimizers.get(given["optimizer"])
        length = getattr(self.preprocessor, "sequence_length", None)
        has_fixed_shapes = length is not None and not self.distribution.strategy
        jit_compile = recipe.jit_compile(self.recurrent_layer, has_fixed_shapes)
        # `compute_loss` computes the loss, so Keras does not need it.
        loss = self.objective.resolve_loss(given["loss"])
        batch_loss = self.objective.make_batch_loss(loss)
        if self.distribution.strategy:
            batch_loss.check_is_summable()
        metrics = self.objective.metrics(loss, given["metrics"], given["weighted_metrics"])
        return loss, batch_loss, metrics, jit_compile

    def _compile(
        self,
        recipe: Recipe,
        resolved: tuple[object, BatchLoss, dict, bool | str],
        optimizer: keras.optimizers.Optimizer | None = None,
    ) -> None:
        """Compile the model with a recipe, and store the recipe.

        Args:
            recipe: `Recipe`.
            resolved: Tuple from `_resolve`.
            optimizer: Optional optimizer to keep. Defaults to the optimizer of the recipe.
        """
        loss, batch_loss, metrics, jit_compile = resolved
        optimizer = optimizer or recipe.arguments["optimizer"]
        if recipe.makes_optimizer:
            family, warmup = self.backbone.family, self.record.warmup
            defaults = {
                "weight_decay": family.weight_decay,
                "layer_decay": family.layer_decay,
                "warmup": WARMUP if warmup is None else warmup,
            }
            if self.record.pretrains:  # the defaults of the family are for fine-tuning
                defaults |= {"weight_decay": WEIGHT_DECAY, "layer_decay": 1.0}
            optimizer = recipe.make_optimizer(
                self.backbone,
                self.learning_rate,
                defaults,
                self.objective.learning_rate_shares,
                list_undecayed(self),
                scales_loss=self.dtype_policy.name == "mixed_float16",
            )
        options = {name: v for name, v in recipe.options.items() if name != "loss_weights"}
        super().compile(optimizer=optimizer, **metrics, jit_compile=jit_compile, **options)
        self.recipe, self.loss, self.batch_loss = recipe, loss, batch_loss
        self.task_metrics = CompiledMetrics(**metrics, of_keras=self.metrics)
        self._traced_with = self._get_traced_state()
        self.distribution.adapt_optimizer(self)

    def _get_traced_state(self) -> tuple:
        """Return the state, other than `compile` arguments, that training graphs depend on."""
        trained = tuple(id(variable) for variable in self.trainable_variables)
        of_backbone = self.backbone._checkpoints_gradients, self.backbone.layers_version
        rates = tuple(self.objective.learning_rate_shares.values())
        return trained, *of_backbone, self.form, self._get_compile_settings(), rates

    def _get_compile_settings(self) -> dict:
        return {name: getattr(self, name) for name in self.record.compile_settings}

    def _compile_if_changed(self) -> None:
        """Compile again if the graphs are no longer valid, for example if `trainable` has changed.

        Keras would train the weights that were trainable when the graphs were traced.
        """
        if self._traced_with != self._get_traced_state():
            own = None if self.recipe.makes_optimizer else self.optimizer
            self._compile(self.recipe, self._resolve(self.recipe), own)

    def _prepare_optimizer(self, total_batches: int, callbacks: Sequence = ()) -> None:
        """Prepare the optimizer for a call to `fit`. The schedule of "auto" is restarted.

        Raises:
            ValueError: If `fit` would not change any weight.
        """
        is_recipes = self.recipe.makes_optimizer
        if total_batches:
            train_new_pooler(self.backbone)
            warn_if_kernels_trained(self.backbone)
            is_default = is_recipes and self.learning_rate == self.default_learning_rate
            if is_default and self.backbone.has_random_weights:
                warn_if_rate_too_low(self.learning_rate)
        with self.distribution.scope():
            self._compile_if_changed()
            if is_recipes:
                restart_optimizer(self.optimizer, self.learning_rate, total_batches)
            elif total_batches:
                check_trainable(self.optimizer, self.trainable_variables)
            # TensorFlow would have to trace again if variables were created in the first trace.
            if not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)
        if total_batches and not self.trainable_variables:
            raise ValueError(
                f"All weights of this {type(self).__name__} are frozen. Set `trainable = True` for "
                "the model or for the layers to train."
            )
        if total_batches:
            self.recipe.check_weights_change(self.optimizer, total_batches, callbacks)

    def get_compile_config(self) -> dict | None:
        """Return the `compile` arguments, and the state of `frozen_layers`."""
        config = super().get_compile_config()
        if not config:  # the model is not compiled
            return config
        config = self.recipe.to_config(config, self.loss, self.learning_rate)
        if frozen := self._frozen_layers.get_state(self.backbone):
            config[FROZEN_HERE] = frozen
        return {**config, **self._get_compile_settings()}

    def compile_from_config(self, config: dict) -> None:
        """Compile the model with the arguments from `get_compile_config`."""
        arguments = keras.saving.deserialize_keras_object(config)
        self._frozen_layers.restore(self.backbone, arguments.pop(FROZEN_HERE, []))
        self.compile(**arguments)
        self.optimizer.build(self.trainable_variables)

    @validate_arguments
    @hold_lock("fitting")
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
        """Train the model on raw inputs.

        This method extends `keras.Model.fit`. Texts in memory are tokenized once. Batches contain
        examples of similar length and are padded to the longest example. On JAX, short texts are
        packed instead for classifiers and rerankers. The order of batches is reproducible with
        `keras.utils.set_random_seed`. If a dataset contains single examples, they are shuffled and
        sorted by length within windows of 50 batches. If a dataset contains batches, they are used
        unchanged.

        Args:
            x: Training inputs. The following inputs are supported:

                - Texts in a list, array, tensor, or column of pandas, polars, Arrow or datasets.
                - Pairs of texts, as a tuple of two columns, a list of pairs or a table.
                - A `tf.data.Dataset` of `x`, `(x, y)` or `(x, y, sample_weight)`, batched or not.
                  Pairs of texts without labels have the form `((first, second),)`.
                - A `keras.utils.PyDataset`, a PyTorch `DataLoader`, a Grain dataset, an
                  `IterableDataset` from `datasets`, or a generator with `steps_per_epoch`.
                - Preprocessed inputs `{"token_ids", ...}`.
                - A `PretrainingCorpus` for pretraining.
            y: Optional labels, for an `x` that does not contain labels.
            batch_size: Positive integer. Number of examples per batch. Defaults to 32.
            epochs: Non-negative integer. Number of epochs to train for. Defaults to 1.
            verbose: 0, 1, 2 or "auto", as in Keras. Defaults to "auto".
            callbacks: Optional list of Keras callbacks. To continue an interrupted run, use
                `encoder_zoo.BackupAndRestore`. In this case, a dataset must return the same
                examples in the same order.
            validation_split: Float between 0 and 1. Fraction of the examples to use for validation,
                taken from the end. Not used if `validation_data` is passed. Defaults to 0.0.
            validation_data: Optional tuple `(x, y)` or `(x, y, sample_weight)`, or dataset.
            shuffle: Boolean. Whether to shuffle texts in memory, and single examples in a dataset
                or stream. Defaults to True.
            sample_weight: Optional array with one weight per example.
            class_weight: Optional dict mapping class names or indices to weights, or "balanced",
                for tasks with classes or tags. Missing classes have the weight 1. With "balanced",
                rare classes have larger weights. In multi-label tasks, the weight of a label
                applies to examples with this label.
            initial_epoch: Integer. Epoch to start from. Defaults to 0.
            steps_per_epoch: Optional positive integer. Number of batches per epoch. If None, an
                epoch is one pass over the data.
            validation_batch_size: Positive integer. Number of examples per validation batch.
                Defaults to `batch_size`.
            validation_steps: Optional positive integer. Number of batches for validation. If None,
                all validation data is used.
            validation_freq: Integer or list of epochs, as in Keras. Defaults to 1.

        Returns:
            A `keras.callbacks.History`.

        Raises:
            ValueError: If training cannot change any weight, because all weights are frozen, the
                learning rate is 0, or all sample weights are 0.
            RuntimeError: If another call to `fit` is training the model.
            FloatingPointError: If the loss is not finite and `keras.callbacks.TerminateOnNaN` is
                not among the callbacks.
        """
        held_out = sources.make_validation_data(self, validation_data, y)
        given = self._read_data(x, y, sample_weight)
        size = batch_size or BATCH_SIZE
        plan = Plan(size, range(initial_epoch, epochs), shuffle, steps_per_epoch)
        held_out_plan = Plan(validation_batch_size or size, steps_per_epoch=validation_steps)
        if held_out is not None:
            held_out = sources.read_data(self, *held_out)
            validation_split = 0.0  # as in Keras

        def make_sources() -> tuple[Source, Source | None]:
            with log_truncation_once():
                others = None if held_out is None else self._make_source(held_out, held_out_plan)
                data = self._make_source(given, plan)
            if validation_split:
                return data.split(validation_split, held_out_plan)
            return data, others

        data, held_out_data = make_sources()
        if self._prepare_training(given, data):
            data, held_out_data = make_sources()
        if validation_split:
            self.objective.report_split(data.examples, held_out_data.examples)
        self.task_metrics.store_transitions(self)
        if class_weight is not None:
            data = self.objective.add_class_weights(data, class_weight, self.loss)
        check_weights(sample_weight, data.class_weights)
        options = {  # Keras ignores some of these arguments, but logging tools need them
            "batch_size": batch_size if given.is_read_in_batches else size,
            "validation_split": validation_split,
            "validation_batch_size": held_out_plan.batch_size,
            "validation_steps": validation_steps,
            "validation_freq": validation_freq,
        }
        return self._fit(data, held_out_data, callbacks, verbose, options)

    def _read_data(self, x, y, sample_weight=None, training: bool = True) -> sources.InputData:
        """Check inputs and labels, adapt the task to them, and compile it if necessary."""
        given = sources.read_data(self, x, y, sample_weight)
        columns = list(x) if isinstance(x, Mapping) else list_table_columns(x)
        are_used = y is not None or given.y is None  # the labels are not taken from `x`
        are_used = are_used and not isinstance(given, sources.ArrayData)
        if training and columns is not None and are_used and self.preprocessor is not None:
            names = self.preprocessor.text_columns
            log_columns(self.preprocessor.inputs.match_names(columns, names), y)
        self._adapt_to_data(given, training)
        self.distribution.check_devices(self)
        if not self.compiled:
            self.compile()
        return given

    def _make_source(self, given: sources.InputData, plan: Plan) -> Source:
        """Create the batches, and reserve memory in the metrics that store examples."""
        data = given.make_source(plan, self.batch_maker)
        if self.task_metrics.reserve_examples(data):
            # The graphs use variables that have been replaced.
            self.train_function = self.test_function = None
        return data

    def _fit(self, data: Source, held_out: Source | None, callbacks, verbose, options: dict):
        """Call `keras.Model.fit`. With a strategy, batches are divided over replicas."""
        data.check()
        drop_unused_kernels(self)
        self._prepare_optimizer(data.total_steps, keras.tree.flatten(callbacks or []))
        if not data.plan.epochs:  # with 0 epochs, the Keras trainers for JAX and PyTorch fail
            none = keras.callbacks.CallbackList(callbacks, add_history=True, model=self)
            none.on_train_begin()
            none.on_train_end()
            return self.history
        self.distribution.report_processes(self)
        self.distribution.check_equal_batches(self, data, held_out)
        with self.distribution.running():
            arguments, done = resume(self, data, callbacks, verbose)
            validation = held_out and held_out.read_in_order()
            arguments |= {**options, "validation_data": validation}
            build_metrics(self, arguments["x"])
            for name, steps in (("x", "steps_per_epoch"), ("validation_data", "validation_steps")):
                divided = self.distribution.divide_dataset(arguments[name], arguments[steps])
                arguments[name], arguments[steps] = divided
            if done and isinstance(arguments["x"], ArrayBatches):
                arguments["x"] = arguments["x"].repeat_forever()
            elif self.steps_per_execution > 1:
                arguments["x"] = hide_num_batches(arguments["x"])
            validated = keras.utils.unpack_x_y_sample_weight(arguments["validation_data"])[0]
            vars(self)["_held_out"] = validated  # with `self._held_out`, Keras would store a copy
            try:
                with (
                    self._count_batches(data.steps_per_epoch, done),
                    raise_original_errors(data, held_out),
                ):
                    history = super(BaseModel, self).fit(**arguments)
            finally:
                del vars(self)["_held_out"]
        self.recipe.warn_if_weights_unchanged(
            self.optimizer, self.trainable_variables, data.total_steps
        )
        return history

    # -- evaluate --------------------------------------------------------------------------------

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
    @hold_lock("evaluating")
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
        """Compute the loss and the metrics on raw inputs.

        Args:
            x: Inputs. See `fit`.
            y: Labels. See `fit`.
            batch_size: Positive integer. Number of examples per batch. Defaults to 32.
            return_dict: Boolean. Whether to return a dict instead of a list. Defaults to False.
            verbose: 0, 1, 2 or "auto", as in Keras. Defaults to "auto".
            sample_weight: Optional array with one weight per example.
            steps: Optional positive integer. Number of batches to evaluate. If None, all data is
                used.
            callbacks: Optional list of Keras callbacks.
            **of_keras: Internal arguments that Keras passes for the validation in `fit`.

        Returns:
            List with the loss and the metrics, or the loss as a float if there are no metrics. If
            `return_dict` is True, a dict mapping names to values.
        """
        options = {
            "return_dict": return_dict,
            "verbose": verbose,
            "steps": steps,
            "callbacks": callbacks,
            **of_keras,
        }
        if x is not None and x is self._held_out:  # in `fit`, Keras passes preprocessed data
            self.task_metrics.store_transitions(self)
            with self.distribution.running(), self._count_batches(steps):
                return super().evaluate(x, y, batch_size, sample_weight=sample_weight, **options)
        if of_keras:
            names = set(inspect.signature(type(self).evaluate).parameters) - {"self", "of_keras"}
            called = f"{type(self).__name__}.evaluate"
            raise TypeError(describe_unknown_argument(called, next(iter(of_keras)), names))
        self._check_can_predict()
        given = self._read_data(x, y, sample_weight, training=False)
        self.task_metrics.store_transitions(self)
        plan = Plan(batch_size or BATCH_SIZE, steps_per_epoch=steps)
        data = self._make_source(given, plan)
        self.distribution.check_equal_batches(self, data)
        batches = data.read_in_order()
        build_metrics(self, batches)
        with suppress_end_warning(x), raise_original_errors(data):
            results = self._run(super().evaluate, batches, **options)
        self._store_evaluation(dict(_iterate_numbers(self.get_metrics_result())))
        return results

    @property
    def last_evaluation(self) -> Mapping[str, float]:
        """Return the results of the last `evaluate`, or {} if the weights have changed since then.

        Many operations change the weights: `fit`, distillation, adapters, or the training of
        another task with the same backbone. For this reason, the results are stored with a checksum
        of the weights.
        """
        if self._evaluation is None:
            return MappingProxyType({})
        results, checksum = self._evaluation
        return results if checksum == _compute_checksum(self.weights) else MappingProxyType({})

    def _store_evaluation(self, results: Mapping[str, float]) -> None:
        # A setter of `last_evaluation` would take longer, because Keras reads an attribute when it
        # is set. Keras would track a dict.
        self._evaluation = MappingProxyType(dict(results)), _compute_checksum(self.weights)

    def _run(self, function: Callable, x, *args, steps: int | None = None, **kwargs):
        """Call a Keras loop over batches. With a strategy, batches are divided over replicas."""
        x, steps = self.distribution.divide_dataset(x, steps)
        with self.distribution.running(), self._count_batches(steps):
            return function(x, *args, steps=steps, **kwargs)

    def preprocess(self, x: object, y: object = None, sample_weight: object = None) -> dict:
        """Encode raw inputs in memory. See `Preprocessor.encode`."""
        sources.check_preprocessor(self, x)
        return self.preprocessor.encode(x, y, sample_weight)

    # -- methods that Keras calls in each step ---------------------------------------------------

    def __call__(self, inputs, *args, **kwargs):
        inputs = _remove_input(inputs, REAL_ROWS)
        own = _remove_input(inputs, PACKED_TOKENS)
        known, name = tuple(self.input_ranges(0)), type(self).__name__
        check_inputs(own, known, name, self.record.text_method)
        return super().__call__(inputs, *args, **kwargs)

    def train_step(self, *args):
        """Run a Keras training step.

        On TensorFlow, the gradient functions of the step are stored in its graph, so that their
        memory can be freed with the graph. See `keep_gradient_functions`.
        """
        outputs = super().train_step(*args)
        gradients.keep_gradient_functions()
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

        Rows that only pad the batch are ignored.

        Args:
            x: Dict of tensors. Model inputs.
            y: Tensor. Labels.
            y_pred: Tensor. Model outputs.
            sample_weight: Optional tensor. Sample weights.
            training: Boolean, as in Keras.
            batch_loss: `BatchLoss` for this step. Defaults to the loss from `compile`.
        """
        penalties = self.sum_penalties(y_pred)
        loss, size = (batch_loss or self.batch_loss)(y, y_pred, sample_weight, _get_real_rows(x))
        if training:
            self.recipe.weigh_batch(self.optimizer, size)
        self.task_metrics.weigh_next_loss(size)
        return loss * self.recipe.loss_weight + penalties

    def sum_penalties(self, y_pred):
        """Return the sum of the losses that layers add, such as regularization losses.

        Call this method before the replicas synchronize, because the losses are replaced when the
        layers are called on other replicas.

        Args:
            y_pred: Tensor of shape (B, ...). Model outputs.
        """
        if not self.losses:
            return 0.0
        penalty = ops.sum(ops.stack([ops.sum(ops.cast(loss, "float32")) for loss in self.losses]))
        return average_over_replicas(penalty, ops.shape(keras.tree.flatten(y_pred)[0])[0])

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Update the metrics. Rows that only pad the batch are ignored."""
        self.task_metrics.store_marks(x)
        y_pred = keras.tree.map_structure(_cast_to_float32, y_pred)
        y, y_pred, sample_weight = self.objective.inputs_of_metrics(x, y, y_pred, sample_weight)
        real = _get_real_rows(x)
        if real is None:
            return super().compute_metrics(x, y, y_pred, sample_weight)
        self.task_metrics.update(ops.convert_to_tensor(y), y_pred, sample_weight, real)
        return self.get_metrics_result()

    def get_metrics_result(self) -> dict:
        """Return the results of the metrics over all replicas."""
        result = super().get_metrics_result
        return self.distribution.compute_batch_metrics(self.metrics_variables, result)

    def make_step_function(self, step: Callable) -> Callable | None:
        """Create a function that runs a step in one graph. Return None to use the Keras function.

        Keras uses two graphs: the first reads a batch from the iterator and calls the second.
        TensorFlow would have to trace and optimize both graphs.

        Args:
            step: `train_step` or `test_step`.
        """
        if not self.has_one_graph:
            return None
        trains, lock = step == self.train_step, get_weights_lock(self)
        hold = lock.exclusive if trains else lock.shared
        graphs = {
            long: tf.function(_trace_by_length(long, step), autograph=False)
            for long in (False, True)
        }
        # On a CPU, optimizing the graph of a training step takes time and does not make it faster.
        # In the graph of an evaluation step, TensorFlow can merge operations.
        as_traced = trains and not tf.config.list_logical_devices("GPU")

        def function(iterator):
            batch = next(iterator)
            long = _is_long(keras.utils.unpack_x_y_sample_weight(batch)[0])
            graph = graphs[long]
            in_graphs = not tf.config.functions_run_eagerly()
            if in_graphs and isinstance(iterator, tf.data.Iterator):
                # The concrete function is reused for all batches that match its signature.
                graph.get_concrete_function(iterator.element_spec)
            with hold(), disable_graph_rewriting(as_traced and not long):
                return graph(batch)

        return function

    @contextlib.contextmanager
    def _count_batches(self, steps: int | None, done: int = 0):
        """Context manager that counts the batches, so that an execution ends with the epoch.

        Only TensorFlow combines several steps into one execution. On other backends, Keras would
        read the batches ahead, so steps are executed one by one.

        Args:
            steps: Optional integer. Number of batches per epoch. If None, the epoch ends at the end
                of the data.
            done: Integer. Number of completed batches in the first epoch. Defaults to 0.
        """
        outer, self._counted = self._counted, types.SimpleNamespace(steps=steps, done=done)
        executed = self.steps_per_execution
        if keras.config.backend() != "tensorflow":
            self.steps_per_execution = 1
        try:
            yield
        finally:
            self._counted, self.steps_per_execution = outer, executed

    def _get_next_execution(self) -> int:
        """Return the number of batches in the next execution."""
        counted = self._counted
        if counted.steps is None:
            return self.steps_per_execution
        count = min(self.steps_per_execution, counted.steps - counted.done % counted.steps)
        counted.done += count
        return count

    def forget_stale_functions(self) -> None:
        """Delete functions that were traced before low-rank updates were added or replaced."""
        version = self.backbone.layers_version
        if version != self.graphs.layers_version:
            self.train_function = self.test_function = self.predict_function = None
            self.graphs.delete_graphs(version)

    def _make_forward_function(self) -> Callable | None:
        """Create the function for `predict`. On TensorFlow, all batch sizes use one graph.

        On PyTorch with `jit_compile=True`, the function is exported once (see `ExportedForward`).
        """
        if keras.config.backend() == "torch" and self.jit_compile and not self.run_eagerly:
            forward = ExportedForward(self)
            return lambda batches: forward(get_inputs(batches[0]))
        if not self.has_one_graph:
            return None
        # The graphs read these variables. If a variable is replaced, they become invalid.
        self._traced_weights = tuple((id(weight), weight.dtype) for weight in self.variables)
        return lambda batches: self.compute_batch_outputs(get_inputs(batches[0]))

    def compute_batch_outputs(self, inputs):
        """Compute the outputs for a batch of any size with a single graph."""
        long, step = _is_long(inputs), self.predict_step
        graph = self.batch_maker.get_graph(
            ("forward", self._traced_weights, long),
            lambda: ShapePolymorphicFunction(_trace_by_length(long, step), 3),
        )
        return graph(inputs)

    def predict_on_batch(self, x):
        """Compute the outputs for one batch of preprocessed inputs."""
        predict = super().predict_on_batch
        return self.distribution.predict_on_batch(predict, check_arrays(self, x))

    @hold_lock("fitting")
    def train_on_batch(self, x, *args, **kwargs):
        """Train on one batch of preprocessed inputs. See `keras.Model.train_on_batch`.

        The total number of steps is unknown, so the "auto" optimizer uses the peak learning rate.
        """
        self.distribution.check_devices(self)
        if self.compiled:
            with self.distribution.scope():
                self._compile_if_changed()
        with self.distribution.running():
            self.recipe.hold_rate(self.optimizer)
            return super(BaseModel, self).train_on_batch(check_arrays(self, x), *args, **kwargs)

    def test_on_batch(self, x, *args, **kwargs):
        """Evaluate one batch of preprocessed inputs. See `keras.Model.test_on_batch`."""
        self.distribution.check_devices(self)
        with self.distribution.running():
            return super().test_on_batch(check_arrays(self, x), *args, **kwargs)


def _get_real_rows(x):
    """Return a boolean mask (B,) that is False for padding rows, or None without padding rows."""
    return x.get(REAL_ROWS) if isinstance(x, Mapping) else None


def _remove_input(x, name: str):
    """Return the inputs without the input `name`."""
    if not isinstance(x, Mapping) or name not in x:
        return x
    return {other: values for other, values in x.items() if other != name}


def _is_long(inputs) -> bool:
    """Return whether examples (B, L) are so long that attention is computed in parts."""
    shapes = [examples.shape for examples in keras.tree.flatten(inputs)]
    return any(len(shape) > 1 and shape[-1] > long_attention.SHORT_LENGTH for shape in shapes)


def _trace_by_length(long: bool, function: Callable) -> Callable:
    """Wrap a function so that it is traced with the settings for long or for short examples."""

    def call_traced(argument):
        with use_context(is_long=long, blocks={}):
            return function(argument)

    return call_traced


def _cast_to_float32(outputs):
    """Cast outputs in half precision to float32 for metrics, for example from a custom head."""
    outputs = ops.convert_to_tensor(outputs)
    is_half = keras.backend.standardize_dtype(outputs.dtype) in ("float16", "bfloat16")
    return ops.cast(outputs, "float32") if is_half else outputs


def _iterate_numbers(results: Mapping) -> Iterator[tuple[str, float]]:
    """Yield the names and values of metric results. Results that are dicts are flattened."""
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from _iterate_numbers(value)
        elif np.ndim(value) == 0:
            yield name, float(value)


def _compute_checksum(weights: list[keras.Variable]) -> int:
    found = 0
    for weight in weights:
        for array in _list_arrays(weight):
            found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view("uint8"), found)
    return found


def _list_arrays(weight: keras.Variable) -> list[np.ndarray]:
    """Return the values of a weight that are stored in this process."""
    if getattr(weight.value, "is_fully_addressable", True):
        return [keras.ops.convert_to_numpy(weight)]
    return [np.asarray(shard.data) for shard in weight.value.addressable_shards]
