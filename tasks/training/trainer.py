"""`fit`, `evaluate` and `predict` on raw inputs."""

from __future__ import annotations

import logging

import keras
import numpy as np

from encoder_zoo.common.forks import refuse_in_fork
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import (
    NonNegativeInt,
    PositiveInt,
    Rate,
    Verbosity,
    validate_arguments,
)
from encoder_zoo.encoders.inputs import check_inputs
from encoder_zoo.tasks.corpora.corpus import PretrainingCorpus
from encoder_zoo.tasks.corpora.reading import corpus_batches, corpus_stream
from encoder_zoo.tasks.preprocessing.batching import bucket_length
from encoder_zoo.tasks.preprocessing.preprocessor import as_texts
from encoder_zoo.tasks.training.data import (
    Stream,
    check_dataset_alone,
    check_not_empty,
    dataset_stream,
    is_dataset,
    preprocessed,
    size_or_default,
    split,
)
from encoder_zoo.tasks.training.distribution import (
    check_divisible,
    data_parallel_devices,
    filled,
    lost_workers_named,
    strategy_of,
    worker_of,
)
from encoder_zoo.tasks.training.divergence import StopAtDivergence
from encoder_zoo.tasks.training.graphs import Graphs
from encoder_zoo.tasks.training.prepared import checked_arrays, checked_dataset, is_prepared
from encoder_zoo.tasks.training.resuming import check_no_backup, continued, describe_examples

logger = logging.getLogger("encoder_zoo")


class TextTrainer(Graphs):
    """Mixin, before `keras.Model`: training and predicting on what a preprocessor takes.

    Whatever is traced lives as long as it is valid: `fit`, `evaluate` and `predict` may follow each
    other on other data, for other epochs and learning rates, without a new trace.
    """

    @validate_arguments
    def fit(
        self,
        x=None,
        y=None,
        batch_size: PositiveInt | None = None,
        epochs: NonNegativeInt = 1,
        *,
        verbose: Verbosity = "auto",
        callbacks: list | None = None,
        validation_split: Rate = 0.0,
        validation_data=None,
        shuffle: bool = True,
        sample_weight=None,
        class_weight=None,
        initial_epoch: NonNegativeInt = 0,
        steps_per_epoch: PositiveInt | None = None,
        validation_batch_size: PositiveInt | None = None,
        **kwargs,
    ) -> keras.callbacks.History:
        """As `keras.Model.fit`, on raw inputs.

        Texts in memory are tokenized once; batches are drawn from examples of like length, in an
        order that `keras.utils.set_random_seed` fixes, and padded to what they need. From a dataset
        of single examples, the batches are drawn from windows of 50 of them; a dataset of batches
        stays as it is.

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
            callbacks: Keras's; `encoder_zoo.BackupAndRestore` among them has a run that was
                killed continue. A dataset must then give the same examples in the same order
                whenever it is read.
            validation_split: share of the examples, from the end, kept for validation.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, or a dataset.
            shuffle: whether texts in memory are shuffled, and the single examples of a dataset
                inside their windows.
            sample_weight: one number per example.
            class_weight: of a task with classes: {name or number of a class: weight}, where the
                others have 1, or "balanced", which weighs rare classes more; of tags, too.
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
        self._make_ready()
        size = size_or_default(batch_size)
        held_out_size = size_or_default(validation_batch_size, size)
        if validation_data is not None:
            validation_data = self._evaluation_data(validation_data, held_out_size)
        callbacks = _watched(callbacks)
        options = {"epochs": epochs, "verbose": verbose, **kwargs}
        if is_prepared(x):
            check_no_backup(callbacks)
            x = self._checked_prepared(x)
            steps = -(-int(len(x["token_ids"]) * (1 - validation_split)) // size)
            self._start_optimizer((epochs - initial_epoch) * (steps_per_epoch or steps))
            if class_weight is not None:
                y, sample_weight = self._weighted_arrays(y, sample_weight, class_weight)
            options |= {"y": y, "sample_weight": sample_weight, "batch_size": size}
            options |= {"shuffle": shuffle, "validation_split": validation_split}
        else:
            passes = range(initial_epoch, epochs)
            if is_dataset(x) or isinstance(x, PretrainingCorpus):
                check_dataset_alone(y, sample_weight, validation_split)
                stream = self._dataset_stream(x, size, len(passes), steps_per_epoch, shuffle)
            else:
                examples = self._checked_examples(x, y, sample_weight)
                if validation_split:
                    examples, held_out = split(examples, validation_split)
                    self._warn_unseen_classes(examples, held_out)
                    validation_data = self._evaluation_batches(held_out, held_out_size)
                stream = self._examples_stream(examples, size, passes, shuffle, steps_per_epoch)
            if class_weight is not None:
                stream = self.weighted_stream(stream, class_weight)
            steps_per_epoch = steps_per_epoch or stream.steps
            self._start_optimizer(len(passes) * steps_per_epoch)
            options["shuffle"] = False
            with lost_workers_named(strategy_of(self)):
                x, callbacks, initial_epoch = continued(
                    self, stream, callbacks, initial_epoch, steps_per_epoch, options
                )
            self._build_metrics(x)
        return super().fit(
            x,
            callbacks=callbacks,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            validation_data=validation_data,
            **options,
        )

    def _make_ready(self) -> None:
        """Compiles where nobody did; refuses a fork, in which TensorFlow would hang."""
        refuse_in_fork()
        if not self.compiled:
            self.compile()

    def _separated(self, x, y) -> tuple:
        """Inputs and labels, where a task takes both of them in one."""
        return x, y

    def _check_labelled(self, x, y) -> None:
        """Raises a ValueError where a task with labels is given none."""

    def _warn_unseen_classes(self, examples: dict, held_out: dict) -> None:
        """Says what `validation_split` keeps from training; a task with classes knows."""

    def weighted_stream(self, stream: Stream, class_weight) -> Stream:
        """What to train on, with each class counting as much as it should."""
        raise ValueError(f"class_weight needs classes, which {type(self).__name__} has none of.")

    def _weighted_arrays(self, y, sample_weight, class_weight) -> tuple:
        """As `weighted_stream`: labels and sample weights of prepared inputs in memory."""
        batch = keras.utils.pack_x_y_sample_weight(0, y, sample_weight)
        whole = Stream(1, lambda *_: tf.data.Dataset.from_tensors(batch), dict)
        [(_, y, weights)] = self.weighted_stream(whole, class_weight).batches(0, 0)
        return y.numpy(), weights.numpy()

    def _warn_recompilation(self, examples: dict) -> None:
        """Says, once, why the first steps of each length take long where they are compiled."""
        compiled = keras.config.backend() == "jax" or self.jit_compile
        if not compiled or not self._lengths_vary() or self._warned_recompilation:
            return
        self._warned_recompilation = True
        lengths = tf.unique(tf.cast(examples["token_ids"].row_lengths(), tf.int32)).y
        found = sorted({int(bucket_length(length)) for length in lengths})
        logger.warning(
            "Batches are padded to %s tokens, and each of these lengths is compiled once, which "
            "takes some seconds. With sequence_length=... there is one length.",
            " or ".join(map(str, found)),
        )

    def _examples_stream(
        self, examples: dict, size: int, epochs: range, shuffle: bool, steps_per_epoch: int | None
    ) -> Stream:
        """Encoded examples, to train on."""
        self._warn_recompilation(examples)
        capacity = self.preprocessor.packed_length
        steps, batches = self._batcher().training(
            check_divisible(examples, size), size, epochs, shuffle, capacity, steps_per_epoch
        )

        def describe():
            return {**describe_examples(examples), "batch_size": size, "shuffle": shuffle}

        return Stream(steps, batches, describe)

    def _dataset_stream(self, dataset, size, passes, steps, shuffle=True) -> Stream:
        if isinstance(dataset, PretrainingCorpus):
            worker = worker_of(strategy_of(self))
            stream = corpus_stream(
                dataset, self.preprocessor, self._collate, size, steps, shuffle, worker
            )
            steps = passes * stream.steps
            tokens = steps * size * self.preprocessor.max_sequence_length
            logger.info(
                "%s steps have up to %s tokens, %.1f times those of the corpus.",
                f"{steps:,}",
                f"{tokens:,}",
                tokens / dataset.num_tokens,
            )
            return stream
        checked = self._checked_dataset(dataset)
        return dataset_stream(
            checked, self.preprocessor, self._collate(), size, passes, steps, shuffle
        )

    @validate_arguments
    def evaluate(
        self, x=None, y=None, batch_size: PositiveInt | None = None, *, sample_weight=None, **kwargs
    ):
        """As `keras.Model.evaluate`, on raw inputs; see `fit` for what `x` may be."""
        self._make_ready()
        size = size_or_default(batch_size)
        if is_prepared(x):
            x = self._checked_prepared(x)
            return super().evaluate(x, y, size, sample_weight=sample_weight, **kwargs)
        data = x
        if is_dataset(x) or isinstance(x, PretrainingCorpus):
            check_dataset_alone(y, sample_weight)
        else:
            data = x, y, sample_weight
        # The validation data of `fit`, each epoch anew, were checked and preprocessed there.
        within_fit = kwargs.get("_use_cached_eval_dataset")
        batches = x if within_fit else self._evaluation_data(data, size)
        self._build_metrics(batches)
        return super().evaluate(batches, **kwargs)

    def _evaluation_data(self, data, batch_size: int):
        """What Keras evaluates on, from `(x, y)`, `(x, y, sample_weight)` or a dataset."""
        if is_dataset(data):
            data = self._checked_dataset(data)
            return preprocessed(data, self.preprocessor, self._collate(), batch_size)
        if isinstance(data, PretrainingCorpus):
            return corpus_batches(data, self.preprocessor, self._collate, batch_size)
        data = data if isinstance(data, tuple) else (data,)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        x, y = self._separated(x, y)
        self._check_labelled(x, y)
        if is_prepared(x):
            return (self._checked_prepared(x), *data[1:])
        return self._evaluation_batches(self._checked_examples(x, y, sample_weight), batch_size)

    def _checked_examples(self, x, y, sample_weight) -> dict:
        check_not_empty(x)
        return self.preprocess(x, y, sample_weight)

    def _evaluation_batches(self, examples: dict, batch_size: int) -> tf.data.Dataset:
        return self._ordered(check_divisible(examples, batch_size), batch_size).dataset

    @validate_arguments
    def predict(self, x, batch_size: PositiveInt | None = None, **kwargs):
        """As `keras.Model.predict`, on raw inputs, in the order of the inputs.

        Args:
            x: see `fit`.
            batch_size: default 32.
            **kwargs: the other arguments of `keras.Model.predict`.

        Returns:
            The model's outputs, NumPy arrays with one row per input.
        """
        refuse_in_fork()
        size = size_or_default(batch_size)
        if is_prepared(x):
            return super().predict(self._checked_prepared(x), size, **kwargs)
        if is_dataset(x):
            return super().predict(self._evaluation_data(x, size), **kwargs)
        self._check_preprocessor(x)
        texts = tuple(as_texts(x))
        if kwargs == {"verbose": 0} and 0 < texts[0].shape[0] <= size:
            return self._predict_few(texts)
        examples = self.preprocess(texts)
        count = examples["token_ids"].shape[0]
        if not count:
            return self._predict_few(tuple(tf.constant([""]) for _ in texts))[:0]
        repeated = filled(count, data_parallel_devices())
        batches = self._ordered({n: tf.gather(v, repeated) for n, v in examples.items()}, size)
        outputs = super().predict(batches.dataset, **kwargs)
        return keras.tree.map_structure(lambda o: o[np.argsort(batches.order)[:count]], outputs)

    def preprocess(self, x, y=None, sample_weight=None) -> dict:
        """Raw inputs in memory as encoded examples; see `Preprocessor.encode`.

        Raises:
            ValueError: "... has no preprocessor ..."
        """
        self._check_preprocessor(x)
        return self.preprocessor.encode(x, y, sample_weight)

    def predict_on_batch(self, x):
        return super().predict_on_batch(self._checked_prepared(x))

    def train_on_batch(self, x, *args, **kwargs):
        return super().train_on_batch(self._checked_prepared(x), *args, **kwargs)

    def test_on_batch(self, x, *args, **kwargs):
        return super().test_on_batch(self._checked_prepared(x), *args, **kwargs)

    def __call__(self, inputs, *args, **kwargs):
        check_inputs(inputs, tuple(self.input_ranges(0)), type(self).__name__)
        return super().__call__(inputs, *args, **kwargs)

    def _checked_prepared(self, x) -> dict:
        """Prepared inputs in memory, checked; lists become arrays."""
        longest = self.backbone.max_sequence_length
        return checked_arrays(x, self.input_ranges, longest, type(self).__name__)

    def _checked_dataset(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """A dataset of raw inputs as it is, one of prepared inputs with checks."""
        self._check_preprocessor(dataset)
        x = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0]
        if not is_prepared(x) or not isinstance(dataset, tf.data.Dataset):
            return dataset
        longest = self.backbone.max_sequence_length
        return checked_dataset(dataset, self.input_ranges, longest, type(self).__name__)

    def _check_preprocessor(self, x) -> None:
        if self.preprocessor is not None or is_prepared(x):
            return
        if is_dataset(x) and is_prepared(keras.utils.unpack_x_y_sample_weight(x.element_spec)[0]):
            return
        received = f"a dataset of {x.element_spec}" if is_dataset(x) else type(x).__name__
        raise ValueError(
            f"This {type(self).__name__} has no preprocessor, so it takes prepared inputs: "
            f"{{'token_ids': ..., 'padding_mask': ...}}. Received: {received}."
        )


def _watched(callbacks: list | None) -> list:
    """The callbacks, behind one that stops at a loss that is no number, unless they have one."""
    callbacks = keras.tree.flatten(callbacks or [])
    if any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks):
        return callbacks
    return [StopAtDivergence(), *callbacks]
