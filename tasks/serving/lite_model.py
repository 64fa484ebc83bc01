"""A task's model run by LiteRT, which is faster on CPUs than TensorFlow's graphs.

Comment letters: B batch, L sequence.
"""

from __future__ import annotations

import pathlib
import tempfile
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.common.lazy import LazyModule, require, tf
from encoder_zoo.common.machine import usable_cores
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.serving.export import export_task

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

litert = LazyModule(
    "ai_edge_litert.interpreter",
    "for_cpu needs the package ai-edge-litert: `pip install ai-edge-litert`.",
)
# LiteRT keeps all attention weights of a call: longer texts go in smaller parts.
MAX_POSITION_PAIRS = 32 * 512**2
MASKS = ("pooling_mask", "scored_mask", "attended_mask", "answer_mask")
OPTIONAL = ("padding_mask", "segment_ids", *MASKS)


class LiteModel:
    """Return a task's outputs for prepared inputs, as `Task.call` does.

    Args:
        task: in float32, on the TensorFlow backend.
        dtype: "int8" stores weights of matrix products as int8 and quantizes activations row by
            row as they come (Jacob et al. 2018, Quantization and Training of Neural Networks for
            Efficient Integer-Arithmetic-Only Inference, section 2.1); "float32" changes nothing.

    Raises:
        ValueError: "for_cpu needs Keras's TensorFlow backend. ...", "for_cpu takes a model in
            float32. ..."
        ImportError: "for_cpu needs the package ai-edge-litert: ..."
    """

    def __init__(self, task: Task, dtype: str):
        if task.backbone.compute_dtype != "float32":
            raise ValueError(
                "for_cpu takes a model in float32. Received: one whose backbone computes in "
                f"{task.backbone.compute_dtype}. Load it with dtype='float32'."
            )
        if keras.config.backend() != "tensorflow":  # whose graphs are converted
            raise ValueError(
                "for_cpu needs Keras's TensorFlow backend. Received: a task on the backend "
                f"{keras.config.backend()!r}. Save it with save_to_preset, and open it in a "
                "process started with KERAS_BACKEND=tensorflow."
            )
        require(litert)
        options = {"optimizations": [tf.lite.Optimize.DEFAULT]} if dtype == "int8" else {}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "model.tflite")
            export_task(task, path, "litert", **options)
            content = path.read_bytes()
        interpreter = litert.Interpreter(model_content=content, num_threads=usable_cores())
        self._runner = interpreter.get_signature_runner()
        self.dtype = dtype
        self._lock = threading.Lock()  # an interpreter answers one call at a time
        self.input_names = sorted(self._runner.get_input_details())
        [output] = self._runner.get_output_details().values()
        self._shape = [None if size < 0 else size for size in output["shape_signature"].tolist()]

    def takes(self, inputs: Mapping) -> bool:
        """Return whether the model was converted for these inputs, optional ones left out or not.

        Others, such as "answer_start" of a `SpanQA` with a beam, would change its outputs; those of
        a row's further texts, "candidate_...", are not read.
        """
        given = {name for name in inputs if not name.startswith(CANDIDATE)}
        return set(self.input_names) - set(OPTIONAL) <= given <= set(self.input_names)

    def __call__(self, inputs: Mapping) -> tf.Tensor:
        """Return the outputs (B, ...), in a graph too.

        Args:
            inputs: prepared, (B, L), such that it `takes` them; without "padding_mask" all is text,
                without "segment_ids" all is of the first.
        """
        tokens = tf.cast(inputs["token_ids"], tf.int32)
        defaults = {
            "padding_mask": tf.ones_like(tokens),
            "segment_ids": tf.zeros_like(tokens),
        }
        real = inputs.get("padding_mask", defaults["padding_mask"])
        defaults |= dict.fromkeys(MASKS, real)
        given = {**defaults, **inputs}
        batch = [tf.cast(given[name], tf.int32) for name in self.input_names]
        outputs = tf.numpy_function(self._outputs, batch, tf.float32, stateful=False)
        return tf.ensure_shape(outputs, self._shape)

    def _outputs(self, *batch: np.ndarray) -> np.ndarray:
        count, length = batch[self.input_names.index("token_ids")].shape
        size = max(1, MAX_POSITION_PAIRS // max(1, length) ** 2)
        if not count:
            return np.zeros([0, *(size or length for size in self._shape[1:])], "float32")
        parts = [
            self._run([values[start : start + size] for values in batch])
            for start in range(0, count, size)
        ]
        return np.concatenate(parts)

    def _run(self, batch: list[np.ndarray]) -> np.ndarray:
        with self._lock:
            [outputs] = self._runner(**dict(zip(self.input_names, batch, strict=True))).values()
        return outputs
