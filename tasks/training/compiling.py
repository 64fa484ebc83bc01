"""What `compile` fixes: the recipe or another optimizer, losses and metrics."""

from __future__ import annotations

import functools
import types
from typing import Literal

import keras

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rate,
    Ratio,
    validate_arguments,
)
from encoder_zoo.encoders.family import WEIGHT_DECAY
from encoder_zoo.tasks.training.distribution import Distributed, in_scope, strategy_of
from encoder_zoo.tasks.training.layer_rates import freeze_lower, layerwise
from encoder_zoo.tasks.training.logit_metrics import fitted_loss, fitted_metrics, labels_for_loss
from encoder_zoo.tasks.training.named_metrics import metric_by_name
from encoder_zoo.tasks.training.recipe import WARMUP, fine_tuning_optimizer, restart_optimizer

# Arguments of `compile` for the "auto" optimizer, beside the learning rate.
RECIPE = ("gradient_accumulation_steps", "weight_decay", "warmup", "layer_decay")


class Compiled(Distributed):
    """Mixin, before `keras.Model`: `compile` with the field's recipe.

    Attributes:
        pretrains: whether the task is one of pretraining, in which all layers learn alike.
        output_activation: what makes probabilities of the outputs, "softmax" or "sigmoid"; "linear"
            where they are numbers themselves; None where losses and metrics are taken as they are.
        labels_tokens: whether sample weights say which tokens have a label.
        default_warmup: share of the steps, where `compile` is told nothing else.
    """

    pretrains = False
    default_warmup = WARMUP
    output_activation: str | None = None
    labels_tokens = False

    @property
    def default_learning_rate(self) -> float:
        """The peak, where neither `compile` nor a preset says another."""
        return self.backbone.family.learning_rate

    def _reset_training_state(self) -> None:
        """The state of a task before its first `compile`."""
        self.learning_rate = self.default_learning_rate
        self.gradient_accumulation_steps = None
        self._optimizer_is_ours = False
        self._warned_recompilation = False
        if keras.config.backend() == "tensorflow":
            self.jit_compile = False  # until `compile` decides: Keras's own default is XLA

    @in_scope
    @validate_arguments
    def compile(
        self,
        optimizer="auto",
        loss="auto",
        metrics=None,
        *,
        weighted_metrics="auto",
        jit_compile: bool | Literal["auto"] = "auto",
        learning_rate: PositiveFloat | None = None,
        gradient_accumulation_steps: PositiveInt | None = None,
        weight_decay: NonNegativeFloat | None = None,
        warmup: Rate | None = None,
        layer_decay: Ratio | None = None,
        frozen_layers: NonNegativeInt | None = None,
        **kwargs,
    ) -> None:
        """As `keras.Model.compile`, with the field's recipe where nothing else is given.

        Args:
            optimizer: "auto" is AdamW (the family's weight decay, usually 0.01, not on biases and
                LayerNorm) with gradients clipped at norm 1 and a learning rate that rises
                linearly for a tenth of the steps and falls linearly to 0, and is less for lower
                layers where the family's paper has it so (ELECTRA); every `fit` starts it anew,
                for the number of steps it will run. Any Keras optimizer takes its place.
            loss: "auto" is the task's loss. Cross-entropies of Keras's, by name or object, are
                taken of logits, which is what the tasks put out, also where `from_logits` was not
                said.
            metrics: in place of the task's. By name also "f1", "f1_macro", "f1_micro",
                "f1_weighted", "auc" and "matthews" of classes, "pearson" and "spearman" of numbers,
                "perplexity" of tokens, "exact_match" and "f1" of answers. Those of Keras get
                probabilities, and labels in the form that they take; of two classes Precision,
                Recall, AUC and their like look for the second. Other functions and metrics get
                what the model puts out. Without sample weights, except in tasks where these say
                which tokens count.
            weighted_metrics: the same, with sample weights; "auto" are the task's metrics, unless
                `metrics` are given.
            jit_compile: "auto" has TensorFlow compile with XLA on a GPU or TPU where a
                `sequence_length` is set: programs for CPUs, or for every length, cost more than
                they save. Other backends decide as they do in Keras.
            learning_rate: peak of the "auto" optimizer's learning rate; None is the preset's
                recommendation, else the family's, usually 5e-5.
            gradient_accumulation_steps: of the "auto" optimizer: the mean gradient of so many
                batches makes a step, for batches larger than the memory. Batches left over at the
                end of `fit` make none.
            weight_decay: AdamW's, of the "auto" optimizer; None is the family's, usually 0.01.
            warmup: share of the steps in which the "auto" optimizer's learning rate rises; None
                is 0.1, of `Pretraining` 0.01.
            layer_decay: of the learning rate, from each layer to the one below, as in ULMFiT and
                ELECTRA: 0.9 has the lower layers, which know of language in general, change less;
                None is the family's, usually 1.
            frozen_layers: so many of the lowest blocks, and the embeddings below them, do not
                learn; 0 has all learn, None leaves them as they are.
            **kwargs: the other arguments of `keras.Model.compile`.
        """
        ours = _is_auto(optimizer)
        recipe = (gradient_accumulation_steps, weight_decay, warmup, layer_decay)
        recipe = dict(zip(RECIPE, recipe, strict=True))
        for name, value in {"learning_rate": learning_rate, **recipe}.items():
            if value is not None and not ours:
                raise ValueError(f"{name} belongs to optimizer='auto'. Set it in the optimizer.")
        if frozen_layers is not None:
            freeze_lower(self.backbone, frozen_layers)
        self.learning_rate = learning_rate or self.learning_rate
        settings = {"loss": loss, "metrics": metrics, "weighted_metrics": weighted_metrics}
        settings |= {"jit_compile": jit_compile, "frozen_layers": frozen_layers, **recipe}
        settings |= kwargs
        if ours and self._optimizer_is_ours and settings == self._settings and self._is_as_traced():
            return  # another learning rate, at most, which needs no other graph
        self._optimizer_is_ours = ours
        self._settings = types.MappingProxyType(settings)  # Keras tracks what is in a dict
        self.gradient_accumulation_steps = gradient_accumulation_steps
        if _is_auto(jit_compile) and keras.config.backend() == "tensorflow":
            jit_compile = _has_accelerator() and not self._lengths_vary() and not strategy_of(self)
        # In a partial, where Keras does not look for metrics to track.
        self._compile = functools.partial(
            super().compile,
            loss=self.default_loss() if _is_auto(loss) else self._fitted_loss(loss),
            **self._fitted_metrics(metrics, weighted_metrics),
            jit_compile=jit_compile,
            **kwargs,
        )
        if ours:
            self._compile_recipe()
        else:
            self._compile(optimizer=optimizer)

    def _fitted_loss(self, loss):
        return fitted_loss(loss, self.default_loss(), self.output_activation)

    def metric_by_name(self, name: str):
        """The metric that a name stands for; a name that only Keras knows as it is."""
        return metric_by_name(name, self.output_activation, getattr(self, "num_classes", None))

    def _named(self, given):
        if not isinstance(given, list | tuple) or self.output_activation is None:
            return given
        return [self.metric_by_name(m) if isinstance(m, str) else m for m in given]

    def _fitted_metrics(self, metrics, weighted) -> dict:
        """The arguments of Keras's `compile`."""
        metrics, weighted = self._named(metrics), self._named(weighted)
        if _is_auto(weighted):
            weighted = self.default_metrics() if metrics is None else None
        else:
            weighted = fitted_metrics(weighted, self.output_activation)
        metrics = fitted_metrics(metrics, self.output_activation)
        if self.labels_tokens and metrics:
            metrics, weighted = None, [*metrics, *(weighted or [])]
        return {"metrics": metrics, "weighted_metrics": weighted}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """As in Keras; class numbers become rows of 0 and 1 for losses that take those."""
        y = labels_for_loss(self.loss, y, y_pred, self.output_activation)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def _compile_recipe(self) -> None:
        """Compiles with a new optimizer of the recipe, for the weights that train now."""
        family, given = self.backbone.family, self._settings
        recipe = {"weight_decay": family.weight_decay, "layer_decay": family.layer_decay}
        if self.pretrains:  # what a family's paper says of fine-tuning is not said of this
            recipe = {"weight_decay": WEIGHT_DECAY, "layer_decay": 1.0}
        recipe["warmup"] = self.default_warmup
        recipe |= {n: given[n] for n in recipe if given[n] is not None}
        rate_share = layerwise(self.backbone, recipe.pop("layer_decay"))
        optimizer = fine_tuning_optimizer(
            1,
            self.learning_rate,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            rate_share=rate_share,
            **recipe,
        )
        self._compile(optimizer=optimizer)
        self._traced_with = self._traced_state()

    def _traced_state(self) -> tuple:
        """What graphs of training depend on beside the arguments of `compile`."""
        trained = tuple(id(variable) for variable in self.trainable_variables)
        return trained, self.backbone._checkpoints_gradients

    def _is_as_traced(self) -> bool:
        return self.compiled and self._traced_with == self._traced_state()

    def get_compile_config(self) -> dict | None:
        """What `compile` was called with: the recipe by name, not a used-up schedule."""
        config = super().get_compile_config()
        if config:
            config["frozen_layers"] = self._settings["frozen_layers"]
        if config and self._optimizer_is_ours:
            config |= {"optimizer": "auto", "learning_rate": self.learning_rate}
            config |= {name: self._settings[name] for name in RECIPE}
        return config

    def compile_from_config(self, config: dict) -> None:
        """Compiles as `get_compile_config` says."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def _lengths_vary(self) -> bool:
        return self.preprocessor is None or self.preprocessor.sequence_length is None

    @in_scope
    def _start_optimizer(self, total_batches: int) -> None:
        """Begins the recipe's schedule anew, if the optimizer is the recipe's."""
        accumulated = self.gradient_accumulation_steps or 1
        if 0 < total_batches < accumulated:
            raise ValueError(
                f"gradient_accumulation_steps is {accumulated}, but `fit` has {total_batches} "
                "batches in all: it would not make a single step."
            )
        if self._optimizer_is_ours:
            if not self._is_as_traced():
                self._compile_recipe()
            restart_optimizer(self.optimizer, self.learning_rate, total_batches // accumulated)
        # Variables that appear in a trace have TensorFlow trace a second time.
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    def _build_metrics(self, dataset: tf.data.Dataset) -> None:
        """Makes the variables of loss and metrics, as in `_start_optimizer`."""
        parts = [p for p in (self._compile_loss, self._compile_metrics) if p is not None]
        if all(part.built for part in parts) or keras.config.backend() != "tensorflow":
            return
        if strategy_of(self):
            return  # Keras does it
        x, y, weight = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
        y_pred = self.compute_output_spec(keras.tree.map_structure(_symbol, x))
        x, y, y_pred, weight = tf.nest.map_structure(_smallest, (x, y, y_pred, weight))
        self.compute_loss(x, y, y_pred, weight, training=False)
        self.compute_metrics(x, y, y_pred, weight)
        self.reset_metrics()


def _symbol(spec: tf.TensorSpec) -> keras.KerasTensor:
    return keras.KerasTensor(spec.shape, spec.dtype.name)


def _smallest(spec) -> tf.Tensor | None:
    """Zeros of a kind; two where any number may be, as Keras drops axes of one."""
    return spec if spec is None else tf.zeros([size or 2 for size in spec.shape], spec.dtype)


def _has_accelerator() -> bool:
    return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


def _is_auto(argument) -> bool:
    return isinstance(argument, str) and argument == "auto"
