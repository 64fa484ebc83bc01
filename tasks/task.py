"""What every task shares: raw text through `fit`, `evaluate` and `predict`; loading."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.configured import Configured
from encoder_zoo.encoders.family import Head
from encoder_zoo.lazy import tf
from encoder_zoo.tasks.rows.batching import (
    Batches,
    Stream,
    grouped_batches,
    ordered_batches,
    training_batches,
    window_size,
)
from encoder_zoo.tasks.rows.preprocessor import Preprocessor
from encoder_zoo.tasks.training.distribution import (
    Distributed,
    count_batches,
    data_parallel_devices,
    filled,
    in_scope,
)
from encoder_zoo.tasks.training.divergence import StopAtDivergence
from encoder_zoo.tasks.training.recipe import fine_tuning_optimizer
from encoder_zoo.tasks.training.resuming import check_no_backup, continued, describe_rows

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


class Task(Configured, Distributed, keras.Model):
    """Base of the tasks: a backbone, a head, and a preprocessor for raw text.

    Args:
        backbone: any `Backbone`.
        preprocessor: turns raw inputs into the model's; without one, `fit`, `evaluate` and
            `predict` take prepared inputs (`{"token_ids", ...}`) only.
    """

    task_name: str
    checkpoint_class_suffix: str
    pipeline_tag: str
    preprocessor_class: type[Preprocessor]

    def __init__(self, backbone: Backbone, preprocessor: Preprocessor | None = None, **kwargs):
        # Keras scales losses by the task's precision.
        super().__init__(**{"dtype": backbone.dtype_policy, **kwargs})
        self.backbone = backbone
        # A copy: `attach` notes this task's labels and lengths in it.
        self.preprocessor = copy.copy(preprocessor)
        self.learning_rate = backbone.family.learning_rate
        self.gradient_accumulation_steps = None
        self._optimizer_is_ours = False
        if keras.config.backend() == "tensorflow":
            self.jit_compile = False  # until `compile` decides: Keras's own default is XLA

    # -- what a task says of itself ------------------------------------------------------------

    @property
    def head_record(self) -> Head:
        """What the backbone's family has between it and this task's logits."""
        return self.backbone.family.heads[self.checkpoint_class_suffix]

    @classmethod
    def checkpoint_arguments(cls, config: dict, head: Head, arguments: dict) -> dict:
        """Constructor arguments from config.json, under those that the caller gave."""
        stored = {"dropout": config.get(head.dropout)} if head.dropout else {}
        return {**stored, **arguments}

    def head_misfit(self, config: dict, arguments: dict) -> str | None:
        """Why the head of a checkpoint must not be taken over, or None if it may."""
        return None

    def default_loss(self) -> keras.losses.Loss:
        """The loss that `compile` takes where none is given."""
        raise NotImplementedError

    def default_metrics(self) -> list:
        """The metrics, weighted by sample weights, that `compile` takes where none are given."""
        raise NotImplementedError

    # -- loading -------------------------------------------------------------------------------

    @classmethod
    def from_preset(cls, source: str | os.PathLike, **arguments) -> Task:
        """Loads backbone, tokenizer and, where the checkpoint has one for this task, the head.

        What is not in the checkpoint, and what of it is not used, is said in one log line each.

        Args:
            source: a name of `list_presets()`, a folder in the Hugging Face format, of KerasHub or
                of Google's BERT code, `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: of the task (`labels=[...]`), its preprocessor (`sequence_length=128`)
                or the backbone (`dropout=0.0`, `dtype="mixed_bfloat16"`); and how much to check:
                `verify`, `max_bytes`, `allow_nonfinite`, see `presets.opening.Safeguards`.

        Raises:
            ValueError: if the preset does not exist or its files do not fit together.
            TypeError: for an argument that nothing takes.
        """
        from encoder_zoo.presets.loading import load_task

        return load_task(cls, source, **arguments)

    def save_to_preset(
        self, directory: str | os.PathLike, dtype: str | None = None, **options
    ) -> None:
        """Writes backbone, head, tokenizer and settings as a folder in the Hugging Face format.

        transformers opens it with the class of the same task. The folder is written whole or not
        at all: on failure what was there before is unchanged.

        Args:
            directory: folder to write or to replace; files of other kinds in it are kept.
            dtype: "float32", "float16" or "bfloat16"; None stores every weight as it is.
            **options: `shard_bytes`, the largest weights file; what is more is split.

        Raises:
            ValueError: for quantized weights, which the format does not hold.
            OSError: "The disk is full: ... was not saved."
        """
        from encoder_zoo.presets.saving import save_task

        save_task(self, directory, dtype, **options)

    def export(self, path: str | os.PathLike, format: str = "tf_saved_model", **options) -> None:
        """Writes the task as files that run without this package.

        `classifier.export("served/1")` makes a version folder for TensorFlow Serving, in which
        `tf.saved_model.load("served/1").signatures["serving_default"](text=tf.constant([...]))`
        says what `classify` says. A task that was quantized by Keras, `quantize("int8")`, is
        exported with its int8 weights, as "tf_saved_model" and "onnx".

        Args:
            path: of a "tf_saved_model" the version folder, such as "served/1"; of "onnx" and
                "litert" the file, `....onnx`, `....tflite`. It is written whole or not at all.
            format: "tf_saved_model" takes raw text and gives answers, and loads with TensorFlow
                alone; "onnx" and "litert" take token ids and give logits.
            **options: of a "tf_saved_model" those of the task's `served`, such as `strategy` or
                `null_threshold`; otherwise those of Keras's exporter, such as
                `optimizations=[tf.lite.Optimize.DEFAULT]` for int8 weights in "litert".

        Raises:
            ValueError: "Unknown format ...", "Export needs Keras's TensorFlow backend ..."

        Source: `tasks/serving/export.py` says what the files hold.
        """
        from encoder_zoo.tasks.serving.export import export_task

        export_task(self, path, format, **options)

    def served(self, **options) -> dict[str, Callable]:
        """What an export answers to raw text.

        Args:
            **options: arguments of the task's text-level method, fixed in the export.

        Returns:
            For each signature a function of string tensors (N,), which runs in `tf.function`; its
            results have the names and the values of the text-level method's, padded to tensors.
        """
        raise NotImplementedError

    def prepared_inputs(self) -> list[str]:
        """The names of the model's inputs, each (B, ...) int32 in an export."""
        segments = ["segment_ids"] if self.backbone.family.uses_segments else []
        return ["token_ids", "padding_mask", *segments]

    @property
    def served_tokenizer(self) -> Tokenizer:
        """The tokenizer that `served` uses."""
        return self.preprocessor.tokenizer

    # -- training ------------------------------------------------------------------------------

    @in_scope
    def compile(
        self,
        optimizer="auto",
        loss="auto",
        *,
        weighted_metrics="auto",
        jit_compile="auto",
        learning_rate: float | None = None,
        gradient_accumulation_steps: int | None = None,
        **kwargs,
    ) -> None:
        """As `keras.Model.compile`, with the field's recipe where nothing else is given.

        Args:
            optimizer: "auto" is AdamW (weight decay 0.01, not on biases and LayerNorm) with
                gradients clipped at norm 1 and a learning rate that rises linearly for a tenth
                of the steps and falls linearly to 0; every `fit` starts it anew, for the number
                of steps it will run. Any Keras optimizer takes its place.
            loss: "auto" is the task's loss.
            weighted_metrics: "auto" are the task's metrics.
            jit_compile: "auto" has TensorFlow compile with XLA on a GPU or TPU where a
                `sequence_length` is set: programs for CPUs, or for every length, cost more than
                they save. Other backends decide as they do in Keras.
            learning_rate: peak of the "auto" optimizer's learning rate; None is the preset's
                recommendation, else 5e-5.
            gradient_accumulation_steps: of the "auto" optimizer: the mean gradient of so many
                batches makes a step, for batches larger than the memory. Batches left over at the
                end of `fit` make none.
            **kwargs: the other arguments of `keras.Model.compile`.
        """
        self._optimizer_is_ours = _is_auto(optimizer)
        for name, value in (
            ("learning_rate", learning_rate),
            ("gradient_accumulation_steps", gradient_accumulation_steps),
        ):
            if value is not None and not self._optimizer_is_ours:
                raise ValueError(f"{name} belongs to optimizer='auto'. Set it in the optimizer.")
        self.learning_rate = learning_rate or self.learning_rate
        self.gradient_accumulation_steps = gradient_accumulation_steps
        if _is_auto(jit_compile) and keras.config.backend() == "tensorflow":
            jit_compile = _has_accelerator() and not self._lengths_vary() and self.strategy is None
        # In a partial, where Keras does not look for metrics to track.
        self._compile = functools.partial(
            super().compile,
            loss=self.default_loss() if _is_auto(loss) else loss,
            weighted_metrics=self.default_metrics()
            if _is_auto(weighted_metrics)
            else weighted_metrics,
            jit_compile=jit_compile,
            **kwargs,
        )
        if self._optimizer_is_ours:
            optimizer = self._fine_tuning_optimizer(1)
        self._compile(optimizer=optimizer)

    def _fine_tuning_optimizer(self, total_batches: int) -> keras.optimizers.Optimizer:
        return fine_tuning_optimizer(
            total_batches,
            self.learning_rate,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
        )

    def get_compile_config(self) -> dict | None:
        """What `compile` was called with: the recipe by name, not a used-up schedule."""
        config = super().get_compile_config()
        if config and self._optimizer_is_ours:
            config |= {
                "optimizer": "auto",
                "learning_rate": self.learning_rate,
                "gradient_accumulation_steps": self.gradient_accumulation_steps,
            }
        return config

    def compile_from_config(self, config: dict) -> None:
        """Compiles as `get_compile_config` says."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def fit(
        self,
        x=None,
        y=None,
        batch_size: int | None = None,
        epochs: int = 1,
        *,
        verbose: str | int = "auto",
        callbacks: list | None = None,
        validation_split: float = 0.0,
        validation_data=None,
        shuffle: bool = True,
        sample_weight=None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_batch_size: int | None = None,
        **kwargs,
    ) -> keras.callbacks.History:
        """As `keras.Model.fit`, on raw inputs.

        Texts in memory are tokenized once; batches are drawn from examples of like length, in an
        order that `keras.utils.set_random_seed` fixes, and padded to what they need. From a dataset
        of single examples, the batches are drawn from windows of 50 of them; a dataset of batches
        stays as it is.

        Args:
            x: raw inputs (list, NumPy array, pandas column, tensor; a tuple of two for pairs), a
                `tf.data.Dataset` of them (elements `x`, `(x, y)` or `(x, y, sample_weight)`,
                batched or single; pairs of texts without labels as `((first, second),)`), or
                prepared inputs `{"token_ids", ...}`.
            y: labels; none with a dataset.
            batch_size: default 32.
            epochs: number of passes.
            verbose: as in Keras.
            callbacks: Keras's; `encoder_zoo.BackupAndRestore` among them has a run that was
                killed continue. A dataset must then give the same examples in the same order
                whenever it is read.
            validation_split: share of the examples, from the end, kept for validation.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, or a dataset.
            shuffle: whether texts in memory are shuffled, and the single examples of a dataset
                inside their windows.
            sample_weight: one number per example.
            initial_epoch: number of the first epoch.
            steps_per_epoch: batches in an epoch; None is one pass. A dataset is begun anew as
                often as that takes.
            validation_batch_size: default `batch_size`.
            **kwargs: the other arguments of `keras.Model.fit`.

        Returns:
            Keras's history.

        Raises:
            FloatingPointError: "Epoch 2/3, step 17/100: the loss is nan. ...", unless
                `keras.callbacks.TerminateOnNaN` is among the callbacks.
        """
        if not self.compiled:
            self.compile()
        size = batch_size or 32
        held_out_size = validation_batch_size or size
        if validation_data is not None:
            validation_data = self._evaluation_data(validation_data, held_out_size)
        callbacks = _watched(callbacks)
        options = {"epochs": epochs, "verbose": verbose, **kwargs}
        if _is_prepared(x):
            check_no_backup(callbacks)
            steps = -(-int(len(x["token_ids"]) * (1 - validation_split)) // size)
            self._start_optimizer((epochs - initial_epoch) * (steps_per_epoch or steps))
            options |= {"y": y, "sample_weight": sample_weight, "batch_size": size}
            options |= {"shuffle": shuffle, "validation_split": validation_split}
        else:
            if _is_dataset(x):
                check_dataset_alone(y, sample_weight, validation_split)
                stream = self._dataset_stream(
                    x, size, epochs - initial_epoch, steps_per_epoch, shuffle
                )
            else:
                rows = self.preprocess(x, y, sample_weight)
                if validation_split:
                    rows, held_out = _split(rows, validation_split)
                    held_out = self.splittable(held_out, held_out_size)
                    validation_data = self._ordered(held_out, held_out_size).dataset
                rows = self.splittable(rows, size)
                stream = self._rows_stream(
                    rows, size, range(initial_epoch, epochs), shuffle, steps_per_epoch
                )
            steps_per_epoch = steps_per_epoch or stream.steps
            self._start_optimizer((epochs - initial_epoch) * steps_per_epoch)
            options["shuffle"] = False
            with self.lost_workers_named():
                x, callbacks, initial_epoch = continued(
                    self, stream, callbacks, initial_epoch, steps_per_epoch, options
                )
        return super().fit(
            x,
            callbacks=callbacks,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            validation_data=validation_data,
            **options,
        )

    @in_scope
    def _start_optimizer(self, total_batches: int) -> None:
        """Begins the recipe's schedule anew, if the optimizer is the recipe's."""
        if 0 < total_batches < (self.gradient_accumulation_steps or 0):
            raise ValueError(
                f"gradient_accumulation_steps is {self.gradient_accumulation_steps}, but `fit` has "
                f"{total_batches} batches in all: it would not make a single step."
            )
        if self._optimizer_is_ours:
            self._compile(optimizer=self._fine_tuning_optimizer(total_batches))

    def _rows_stream(
        self,
        rows: dict,
        batch_size: int,
        epochs: range,
        shuffle: bool,
        steps_per_epoch: int | None,
    ) -> Stream:
        """Encoded rows, to train on."""
        capacity = self.preprocessor.shared_row_length
        steps, batches = training_batches(
            rows, self._collate(), batch_size, epochs, shuffle, capacity, steps_per_epoch
        )

        def describe():
            return {**describe_rows(rows), "batch_size": batch_size, "shuffle": shuffle}

        return Stream(steps, batches, describe)

    def _dataset_stream(
        self,
        dataset: tf.data.Dataset,
        batch_size: int,
        epochs: int,
        steps: int | None,
        shuffle: bool = True,
    ) -> Stream:
        """A dataset, to train on: so many passes of it, or as many as so many steps take."""
        if self.preprocessor is not None and self.preprocessor.shared_row_length:
            raise ValueError("pack_texts needs all texts in memory. Received: a dataset.")
        batched = self._batched(dataset, batch_size)
        passes = None if steps else epochs
        single = batched is not dataset

        def batches(seed, done):
            raw = batched.repeat(passes)
            if shuffle and single:
                windows = self._batched(dataset, window_size(batch_size))
                raw = grouped_batches(windows.repeat(passes), batch_size, seed)
            return self._preprocessed(raw, seed, done)

        def describe():
            order = {"batch_size": batch_size, "shuffle": shuffle} if single else {}
            return {"dataset": str(batched.element_spec), **order}

        return Stream(steps or count_batches(batched), batches, describe)

    def evaluate(
        self, x=None, y=None, batch_size: int | None = None, *, sample_weight=None, **kwargs
    ):
        """As `keras.Model.evaluate`, on raw inputs; see `fit` for what `x` may be."""
        if not self.compiled:
            self.compile()
        size = batch_size or 32
        if _is_prepared(x):
            return super().evaluate(x, y, size, sample_weight=sample_weight, **kwargs)
        data = x
        if _is_dataset(x):
            check_dataset_alone(y, sample_weight)
        else:
            data = x, y, sample_weight
        return super().evaluate(self._evaluation_data(data, size), **kwargs)

    def predict(self, x, batch_size: int | None = None, **kwargs):
        """As `keras.Model.predict`, on raw inputs, in the order of the inputs.

        Args:
            x: see `fit`.
            batch_size: default 32.
            **kwargs: the other arguments of `keras.Model.predict`.

        Returns:
            The model's outputs, NumPy arrays with one row per input.
        """
        size = batch_size or 32
        if _is_prepared(x):
            return super().predict(x, size, **kwargs)
        if _is_dataset(x):
            return super().predict(self._preprocessed(self._batched(x, size)), **kwargs)
        rows = self.preprocess(x)
        if not rows["token_ids"].shape[0]:
            example = super().predict(self.preprocessor.collate(self.preprocess([""])), **kwargs)
            return keras.tree.map_structure(lambda values: values[:0], example)
        count = rows["token_ids"].shape[0]
        if count <= size and kwargs == {"verbose": 0}:
            # For a single batch Keras's loop over a dataset takes longer than the model.
            inputs = keras.utils.unpack_x_y_sample_weight(self._collate()(rows))[0]
            return self.predict_on_batch({n: v.numpy() for n, v in inputs.items()})
        repeated = filled(count, data_parallel_devices())
        batches = self._ordered({n: tf.gather(v, repeated) for n, v in rows.items()}, size)
        outputs = super().predict(batches.dataset, **kwargs)
        return keras.tree.map_structure(lambda o: o[np.argsort(batches.order)[:count]], outputs)

    def preprocess(self, x, y=None, sample_weight=None) -> dict:
        """Raw inputs in memory as encoded rows; see `Preprocessor.encode`.

        Raises:
            ValueError: "... has no preprocessor ..."
        """
        self._check_preprocessor(type(x).__name__)
        return self.preprocessor.encode(x, y, sample_weight)

    def _check_preprocessor(self, received: str) -> None:
        if self.preprocessor is None:
            raise ValueError(
                f"This {type(self).__name__} has no preprocessor, so it takes prepared inputs: "
                f"{{'token_ids': ..., 'padding_mask': ...}}. Received: {received}."
            )

    def _lengths_vary(self) -> bool:
        return self.preprocessor is None or self.preprocessor.sequence_length is None

    def _collate(self):
        # Where every new shape is compiled, few shapes are worth some padding.
        bucketed = keras.config.backend() == "jax" or bool(self.compiled and self.jit_compile)
        return functools.partial(self.preprocessor.collate, bucketed=bucketed)

    def _ordered(self, rows: dict, batch_size: int) -> Batches:
        return ordered_batches(rows, self._collate(), batch_size)

    def _evaluation_data(self, data, batch_size: int):
        """What Keras evaluates on, from `(x, y)`, `(x, y, sample_weight)` or a dataset."""
        if _is_dataset(data):
            return self._preprocessed(self._batched(data, batch_size))
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if _is_prepared(x):
            return data
        rows = self.splittable(self.preprocess(x, y, sample_weight), batch_size)
        return self._ordered(rows, batch_size).dataset

    def _batched(self, dataset: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        """A dataset of raw inputs in batches; one of prepared inputs as it is."""
        if _is_prepared(keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0]):
            return dataset
        self._check_preprocessor(f"a dataset of {dataset.element_spec}")
        return self.preprocessor.batched(dataset, batch_size)

    def _preprocessed(
        self, batched: tf.data.Dataset, seed: int = 0, done: int = 0
    ) -> tf.data.Dataset:
        """Batches of raw inputs preprocessed, from the batch behind those that are done."""
        if _is_prepared(keras.utils.unpack_x_y_sample_weight(batched.element_spec)[0]):
            return batched.skip(done) if done else batched
        collate = self._collate()

        def prepare(data, number):
            rows = self.preprocess(*keras.utils.unpack_x_y_sample_weight(data))
            return collate(rows, tf.stack([tf.cast(seed, tf.int64), number]))

        numbered = tf.data.Dataset.zip(batched, tf.data.Dataset.counter()).skip(done)
        return numbered.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def check_dataset_alone(y, sample_weight, validation_split: float = 0.0) -> None:
    """Refuses what belongs into a dataset, where it is passed beside one.

    Raises:
        ValueError: "Labels and weights belong into the dataset, ... Received also: y."
    """
    beside = {"y": y, "sample_weight": sample_weight, "validation_split": validation_split or None}
    names = [name for name, value in beside.items() if value is not None]
    if names:
        raise ValueError(
            "Labels and weights belong into the dataset, as elements (x, y) or (x, y, "
            "sample_weight); examples held out for validation are a dataset of their own, "
            f"`validation_data`. Received also: {', '.join(names)}."
        )


def _has_accelerator() -> bool:
    return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


def _watched(callbacks: list | None) -> list:
    """The callbacks, behind one that stops at a loss that is no number, unless they have one."""
    callbacks = keras.tree.flatten(callbacks or [])
    if any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks):
        return callbacks
    return [StopAtDivergence(), *callbacks]


def _is_auto(argument) -> bool:
    return isinstance(argument, str) and argument == "auto"


def _is_prepared(x) -> bool:
    return isinstance(x, dict) and "token_ids" in x


def _is_dataset(x) -> bool:
    return hasattr(x, "element_spec")


def _split(rows: dict, share: float) -> tuple[dict, dict]:
    """The rows of the first examples and, the share from the end, those of the last."""
    if "example" in rows:  # in order, and perhaps with several rows each
        count = int(tf.reduce_max(rows["example"])) + 1
        first = int(np.searchsorted(rows["example"], int(count * (1 - share))))
    else:
        first = int(rows["token_ids"].shape[0] * (1 - share))
    return {k: v[:first] for k, v in rows.items()}, {k: v[first:] for k, v in rows.items()}
