"""What TensorFlow traces of a task: graphs that live from call to call."""

from __future__ import annotations

import functools

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.encoders import attention
from encoder_zoo.tasks.preprocessing.batching import Batches, LengthGroupedBatcher
from encoder_zoo.tasks.preprocessing.tracing import ShapePolymorphicFunction, is_long, of_texts
from encoder_zoo.tasks.training.compiling import Compiled
from encoder_zoo.tasks.training.distribution import strategy_of


class Graphs(Compiled):
    """Mixin, before `keras.Model`: batches, steps and answers as graphs, kept while valid."""

    def _reset_training_state(self) -> None:
        super()._reset_training_state()
        self._graphs = {}

    def _graph(self, name, make):
        """What traces live in: made once for a setting of the preprocessor and the precision."""
        settings = vars(self.preprocessor) if self.preprocessor is not None else {}
        plain = [(n, v) for n, v in settings.items() if not n.startswith("_") and n != "tokenizer"]
        plain.append(id(settings.get("tokenizer")))
        key = name, bool(self.compiled and self.jit_compile), self.dtype_policy.name, repr(plain)
        if key not in self._graphs:
            self._graphs[key] = make()
        return self._graphs[key]

    def _collate(self):
        # Where every new shape is compiled, few shapes are worth some padding.
        bucketed = keras.config.backend() == "jax" or bool(self.compiled and self.jit_compile)
        return functools.partial(self.preprocessor.collate, bucketed=bucketed)

    def _batcher(self) -> LengthGroupedBatcher:
        return self._graph("batches", lambda: LengthGroupedBatcher(self._collate()))

    def _ordered(self, examples: dict, batch_size: int) -> Batches:
        return self._batcher().ordered(examples, batch_size)

    def _predict_few(self, texts: tuple) -> np.ndarray:
        """The outputs of one batch of texts; on TensorFlow all of it is one graph.

        Keras's loop over a dataset takes longer than the model.
        """

        def inputs_of(texts):
            batch = self._collate()(self.preprocessor.encode(texts))
            return keras.utils.unpack_x_y_sample_weight(batch)[0]

        if not self._has_one_graph():
            inputs = self._graph("inputs", lambda: ShapePolymorphicFunction(inputs_of))(texts)
            return self.predict_on_batch({n: values.numpy() for n, values in inputs.items()})
        self.make_predict_function()
        forward = self._forward(self._may_be_long(texts))
        answer = self._graph(
            ("answer", id(forward)),
            lambda: ShapePolymorphicFunction(lambda t: forward(inputs_of(t))),
        )
        return answer(texts).numpy()

    def _may_be_long(self, texts: tuple) -> bool | None:
        """False for texts that are sure to be short for attention, or nearly so; see `is_long`."""
        if self.preprocessor.max_sequence_length <= attention.SHORT:
            return False
        most = sum(int(tf.reduce_max(tf.strings.length(part))) for part in texts)  # bytes
        return False if most < attention.SHORT else None

    @validate_arguments
    def make_predict_function(self, force: bool = False) -> None:
        """As in Keras; but on TensorFlow a graph for all sizes of batches, made once."""
        if not self._has_one_graph():
            super().make_predict_function(force)
        elif force or self.predict_function is None:
            weights = tuple((id(weight), weight.dtype) for weight in self.variables)
            step = self.predict_step

            def forward(long: bool | None) -> ShapePolymorphicFunction:
                return self._graph(
                    ("forward", weights, long),
                    lambda: ShapePolymorphicFunction(of_texts(long, step), 2),
                )

            def predict(batches):
                inputs = keras.utils.unpack_x_y_sample_weight(batches[0])[0]
                return forward(is_long(inputs))(inputs)

            self._forward, self.predict_function = forward, predict

    def _make_function(self, step, *args, **kwargs):
        """What Keras calls with an iterator for each step of `fit` and `evaluate`.

        Keras's own is a graph that takes the batch from the iterator and calls another one, which
        TensorFlow traces and optimizes one by one.
        """
        if not self._has_one_graph():
            return super()._make_function(step, *args, **kwargs)
        graphs = {
            long: tf.function(of_texts(long, step), autograph=False) for long in (False, True)
        }

        def function(iterator):
            batch = next(iterator)
            graph = graphs[is_long(keras.utils.unpack_x_y_sample_weight(batch)[0])]
            if isinstance(iterator, tf.data.Iterator):
                # Found, once it is there, for every batch that it fits.
                graph.get_concrete_function(iterator.element_spec)
            return graph(batch)

        return function

    def _has_one_graph(self) -> bool:
        """Whether one graph predicts all batches, and not a program for each of their shapes."""
        if keras.config.backend() != "tensorflow" or strategy_of(self):
            return False
        several = self.compiled and (self.run_eagerly or self.steps_per_execution > 1)
        return not (several or self.jit_compile)
