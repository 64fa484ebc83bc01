"""A task's model run by LiteRT or OpenVINO, which are faster on CPUs than Keras's backends.

Comment letters: B batch, L sequence.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import pathlib
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Literal

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.lazy import LazyModule, require, tf
from encoder_zoo.common.machine import usable_cores
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.serving.model_files import (
    openvino_model,
    require_packages,
    write_model,
)

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

litert = LazyModule(
    "ai_edge_litert.interpreter",
    "for_cpu needs the package ai-edge-litert: `pip install ai-edge-litert`.",
)
openvino = LazyModule(
    "openvino",
    "for_cpu(engine='openvino') needs the package openvino: `pip install openvino`, or the "
    "extra encoder-zoo[openvino].",
)
nncf = LazyModule(
    "nncf",
    "for_cpu('int8', engine='openvino') needs the package nncf: `pip install nncf`, or the extra "
    "encoder-zoo[openvino].",
)
Engine = Literal["litert", "openvino"]
CpuDtype = Literal["int8", "bfloat16", "float32"]
# Attention weights of a call are all in memory: longer texts go in smaller parts.
MAX_POSITION_PAIRS = 32 * 512**2
MASKS = ("pooling_mask", "scored_mask", "attended_mask", "answer_mask")
OPTIONAL = ("padding_mask", "segment_ids", *MASKS)
MAX_CALIBRATED = 300  # more change nncf's ranges little, and take long


class CpuModel(ABC):
    """Return a task's outputs for prepared inputs, as `Task.call` does.

    Args:
        task: in float32; of one that only a SavedModel has whole its `TokenEncoder`.
        dtype: of the matrix products.

    Attributes:
        identity: names the engine and what decides its numbers.

    Raises:
        ValueError: If the backbone does not compute in float32.
    """

    input_names: list[str]
    output_shape: list[int | None]

    def __init__(self, task: Task, dtype: CpuDtype):
        if task.backbone.compute_dtype != "float32":
            raise invalid(
                "compute_dtype of the backbone",
                task.backbone.compute_dtype,
                "'float32' for for_cpu: load the model with dtype='float32'",
            )
        self.identity: str = dtype
        self._lock = threading.Lock()  # an engine answers one call at a time

    def takes(self, inputs: Mapping) -> bool:
        """Return whether the model was converted for these inputs, optional ones left out or not.

        Others, such as "answer_start" of a `SpanQA` with a beam, would change its outputs; those of
        a row's further texts, "candidate_...", are not read.
        """
        given = {name for name in inputs if not name.startswith(CANDIDATE)}
        return set(self.input_names) - set(OPTIONAL) <= given <= set(self.input_names)

    def __call__(self, inputs: Mapping):
        """Return the outputs (B, ...), in a graph of TensorFlow too.

        Args:
            inputs: prepared, (B, L), such that it `takes` them; without "padding_mask" all is text,
                without "segment_ids" all is of the first.
        """
        tokens = ops.cast(inputs["token_ids"], "int32")
        defaults = {
            "padding_mask": ops.ones_like(tokens),
            "segment_ids": ops.zeros_like(tokens),
        }
        real = inputs.get("padding_mask", defaults["padding_mask"])
        defaults |= dict.fromkeys(MASKS, real)
        given = {**defaults, **inputs}
        batch = [ops.cast(given[name], "int32") for name in self.input_names]
        if keras.config.backend() != "tensorflow":
            return ops.convert_to_tensor(self._outputs(*map(ops.convert_to_numpy, batch)))
        outputs = tf.numpy_function(self._outputs, batch, tf.float32, stateful=False)
        return tf.ensure_shape(outputs, self.output_shape)

    def _outputs(self, *batch: np.ndarray) -> np.ndarray:
        count, length = batch[self.input_names.index("token_ids")].shape
        size = max(1, MAX_POSITION_PAIRS // max(1, length) ** 2)
        if not count:
            return np.zeros([0, *(size or length for size in self.output_shape[1:])], "float32")
        parts = [
            self._run([values[start : start + size] for values in batch])
            for start in range(0, count, size)
        ]
        return np.concatenate(parts)

    def _run(self, batch: list[np.ndarray]) -> np.ndarray:
        with self._lock:
            return self._infer(dict(zip(self.input_names, batch, strict=True)))

    @abstractmethod
    def _infer(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        """Return the engine's output, which its next call does not write into."""


class LiteModel(CpuModel):
    """By LiteRT, on the TensorFlow backend, whose graphs are converted.

    Args:
        dtype: "int8" stores weights of matrix products as int8 and quantizes activations row by
            row as they come (Jacob et al. 2018, Quantization and Training of Neural Networks for
            Efficient Integer-Arithmetic-Only Inference, section 2.1); "float32" changes nothing.

    Raises:
        ValueError: If Keras's backend is not TensorFlow, or `dtype` is "bfloat16".
        ImportError: If ai-edge-litert is not installed.
    """

    def __init__(self, task: Task, dtype: CpuDtype):
        super().__init__(task, dtype)
        if dtype == "bfloat16":
            raise invalid(
                "dtype", dtype, "'int8' or 'float32' for LiteRT; or pass engine='openvino'"
            )
        if keras.config.backend() != "tensorflow":
            raise ValueError(
                f"for_cpu needs Keras's TensorFlow backend, not {keras.config.backend()!r}. On "
                "'torch' pass engine='openvino'; or save the task with save_to_preset, and open it "
                "in a process started with KERAS_BACKEND=tensorflow."
            )
        require(litert)
        options = {"optimizations": [tf.lite.Optimize.DEFAULT]} if dtype == "int8" else {}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "model.tflite")
            write_model(task, path, "litert", **options)
            content = path.read_bytes()
        interpreter = litert.Interpreter(model_content=content, num_threads=usable_cores())
        self._runner = interpreter.get_signature_runner()
        self.input_names = sorted(self._runner.get_input_details())
        [output] = self._runner.get_output_details().values()
        sizes = output["shape_signature"].tolist()
        self.output_shape = [None if size < 0 else size for size in sizes]

    def _infer(self, batch):
        [outputs] = self._runner(**batch).values()
        return outputs


class OpenVinoModel(CpuModel):
    """By OpenVINO, on the backends TensorFlow and PyTorch.

    Args:
        dtype: "float32" changes nothing; "bfloat16" computes matrix products in it where the
            processor has instructions for it (AVX512_BF16, AMX), and else in float32; "int8" is
            float32 until `quantize`.

    Raises:
        ValueError: If OpenVINO does not support Keras's backend, or computes other outputs for the
            family.
        ImportError: If openvino, or for int8 nncf, is not installed.
    """

    def __init__(self, task: Task, dtype: CpuDtype):
        super().__init__(task, dtype)
        if keras.config.backend() not in ("tensorflow", "torch"):
            raise ValueError(
                "for_cpu(engine='openvino') needs Keras's backend tensorflow or torch, not "
                f"{keras.config.backend()!r}. Save the task with save_to_preset, and open it in a "
                "process started with KERAS_BACKEND=torch."
            )
        require(openvino)
        if dtype == "int8":
            _require_nncf()
        require_packages("openvino", "for_cpu(engine='openvino')")
        self.identity = f"openvino {dtype}"
        self._model = openvino_model(task, "Use engine='litert' or the model itself")
        self.input_names = sorted(given.any_name for given in self._model.inputs)
        shape = self._model.output(0).partial_shape
        self.output_shape = [None if size.is_dynamic else size.get_length() for size in shape]
        self._request = self._compiled("bf16" if dtype == "bfloat16" else "f32")
        self._seen: list[dict[str, np.ndarray]] | None = None

    def _compiled(self, precision: str) -> openvino.InferRequest:
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": usable_cores(),
        }
        compiled = openvino.Core().compile_model(self._model, "CPU", settings)
        return compiled.create_infer_request()

    def _infer(self, batch):
        if self._seen is not None:
            self._seen.append(batch)
        return self._request.infer(batch)[0].copy()  # the request's memory is used again

    def quantize(self, answer: Callable[[], Sized]) -> None:
        """Compute in int8 from now on, with ranges of activations from typical inputs.

        Outliers of activations are first moved into the weights (SmoothQuant).

        Args:
            answer: asks the task about them, one by one, and returns its answers.

        Raises:
            ValueError: If there are no texts.

        Source: Xiao et al. 2023, SmoothQuant, section 4.
        """
        self._seen = []
        count = len(answer())
        seen, self._seen = self._seen, None
        if not count:
            raise ValueError(
                "There are no texts to quantize by. Expected some hundred typical inputs."
            )
        step = -(-len(seen) // MAX_CALIBRATED)
        batches = seen[::step]
        with _quiet_nncf():
            self._model = nncf.quantize(
                self._model,
                nncf.Dataset(batches),
                subset_size=len(batches),
                model_type=nncf.ModelType.TRANSFORMER,
            )
        self._request = self._compiled("f32")
        self.identity = f"openvino int8 {_checksum(batches)}"


def _checksum(batches: list[dict[str, np.ndarray]]) -> str:
    found = hashlib.sha256()
    for batch in batches:
        for values in batch.values():
            found.update(np.ascontiguousarray(values))
    return found.hexdigest()[:16]


def _require_nncf() -> None:
    """Import nncf such that it does not tell its makers' server of each call."""
    before = os.environ.get("NNCF_CI")
    os.environ["NNCF_CI"] = "1"
    try:
        require(nncf)
    finally:
        os.environ.pop("NNCF_CI")
        if before is not None:
            os.environ["NNCF_CI"] = before


@contextlib.contextmanager
def _quiet_nncf() -> Iterator[None]:
    """Silence nncf's progress bars and what it logs below warnings."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel("WARNING")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


ENGINES = {"litert": LiteModel, "openvino": OpenVinoModel}
