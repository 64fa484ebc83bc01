"""Run a task's model in LiteRT or OpenVINO, which are faster on CPUs than the Keras backends.

Comments use these letters for shapes: B (batch size), L (sequence length).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Literal

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.context import get_context
from encoder_zoo.common.lazy import LazyModule, require, tf
from encoder_zoo.common.wording import quote
from encoder_zoo.encoders.inputs import select_backbone_inputs
from encoder_zoo.tasks.serving import engines, model_files

if TYPE_CHECKING:
    from encoder_zoo.presets.formats.preset_task import PresetTask

nncf = LazyModule(
    "nncf",
    "for_cpu('int8', engine='openvino') needs the package nncf: `pip install nncf`, or the extra "
    "encoder-zoo[openvino].",
)
CpuDtype = Literal["int8", "bfloat16", "float32"]
MAX_CALIBRATED = 300  # more inputs take longer and hardly change the activation ranges of nncf


class CpuModel:
    """Model that computes the outputs of a task in an engine instead of Keras.

    Args:
        session: The engine's `Session`.
        identity: String. Engine name, with the settings that can change the outputs.
    """

    def __init__(self, session: engines.Session, identity: str):
        self.session = session
        self.identity = identity
        self._seen: list[dict[str, np.ndarray]] | None = None

    def compute_outputs(self, task: PresetTask, inputs: Mapping, training: bool | None):
        """Compute the outputs of a task. Inputs that the engine does not support use Keras."""
        if training or get_context().serves:  # an index can export its embedder
            check_is_original(task)
        is_whole = task.record.only_saved_model is None
        read = inputs if is_whole else select_backbone_inputs(inputs)
        if not self.session.supports_inputs(read):
            return task.logits_of(task.encode_inputs(inputs, training), inputs, training)
        outputs = self._compute_tensor(read)
        return outputs if is_whole else task.logits_of({"sequence_output": outputs}, inputs)

    def _compute_tensor(self, inputs: Mapping):
        """Compute the engine's outputs (B, ...) as a tensor, also in a TensorFlow graph.

        Args:
            inputs: Dict of integer tensors (B, L) for the session.
        """
        names = [name for name in self.session.input_names if name in inputs]
        batch = [ops.cast(inputs[name], "int32") for name in names]

        def run(*arrays: np.ndarray) -> np.ndarray:
            given = dict(zip(names, arrays, strict=True))
            if self._seen is not None:
                self._seen.append(self.session.complete_inputs(given))
            return self.session.run(given)

        if keras.config.backend() != "tensorflow":
            return ops.convert_to_tensor(run(*map(ops.convert_to_numpy, batch)))
        outputs = tf.numpy_function(run, batch, tf.float32, stateful=False)
        return tf.ensure_shape(outputs, self.session.output_shape)

    def quantize(self, answer: Callable[[], Sized]) -> None:
        """Quantize the model to int8. The activation ranges are computed from typical inputs.

        Outliers in the activations are first moved into the weights (SmoothQuant).

        Args:
            answer: Function without arguments that predicts the typical inputs one by one with the
                task. It returns the predictions.

        Raises:
            ValueError: If there are no typical inputs.

        Source: Xiao et al. 2023, SmoothQuant, section 4.
        """
        self._seen = []
        count = len(answer())
        seen, self._seen = self._seen, None
        if not count:
            raise ValueError(
                "No texts were passed for the quantization. Pass a few hundred typical inputs."
            )
        step = -(-len(seen) // MAX_CALIBRATED)
        batches = seen[::step]
        with _silence_nncf():
            model = nncf.quantize(
                self.session.model,
                nncf.Dataset(batches),
                subset_size=len(batches),
                model_type=nncf.ModelType.TRANSFORMER,
            )
        self.session = engines.OpenVinoSession(model)
        self.identity = f"openvino int8 {_compute_checksum(batches)}"


def check_is_original(task: PresetTask) -> None:
    """Raise a ValueError if a copy made by `for_cpu` is trained, exported or converted again."""
    if task.cpu_model is not None:
        raise ValueError(
            "A copy made by `for_cpu` cannot be trained or exported. Call `fit` or `export` "
            "on the original model, and then `for_cpu` again. To export in int8, use "
            "`model.export('model.tflite', format='litert', "
            "optimizations=[tf.lite.Optimize.DEFAULT])`."
        )


def convert_to_litert(task: PresetTask, dtype: CpuDtype) -> CpuModel:
    """Convert a task for LiteRT, on the TensorFlow backend.

    Args:
        task: Task in float32.
        dtype: String, "float32" or "int8". With "int8", weights of matrix products are stored as
            int8, and activations are quantized row by row when they are computed (Jacob et al.
            2018, Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
            Inference, section 2.1).

    Raises:
        ValueError: If the Keras backend is not TensorFlow, if `dtype` is "bfloat16", or if LiteRT
            does not support an operation of the task.
        ImportError: If ai-edge-litert is not installed.
    """
    if dtype == "bfloat16":
        raise ValueError(
            f"dtype is {dtype!r}, which LiteRT does not support. Pass dtype='int8', "
            "dtype='float32' or engine='openvino'."
        )
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            "for_cpu requires the Keras backend 'tensorflow', but the backend is "
            f"{keras.config.backend()!r}. On 'torch', pass engine='openvino'. Otherwise, save the "
            "task with save_to_preset and load it in a process started with "
            "KERAS_BACKEND=tensorflow."
        )
    require(engines.litert)
    options = {"optimizations": [tf.lite.Optimize.DEFAULT]} if dtype == "int8" else {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.tflite")
        model_files.write_model(task, path, "litert", **options)
        if lacking := model_files.list_custom_operations(path):
            raise ValueError(
                f"LiteRT does not support the operations {', '.join(lacking)} of this "
                f"{type(task).__name__}. Use engine='openvino' or the model itself."
            )
        return CpuModel(engines.LiteRtSession(path.read_bytes()), dtype)


def convert_to_openvino(task: PresetTask, dtype: CpuDtype) -> CpuModel:
    """Convert a task for OpenVINO, on the TensorFlow and PyTorch backends.

    Args:
        task: Task in float32.
        dtype: String, "float32", "bfloat16" or "int8". With "bfloat16", matrix products are
            computed in bfloat16 if the processor has instructions for it (AVX512_BF16, AMX), and in
            float32 otherwise. "int8" is the same as "float32" until `CpuModel.quantize` is called.

    Raises:
        ValueError: If the Keras backend is not supported, or if OpenVINO would compute wrong
            outputs for the family.
        ImportError: If openvino is not installed, or nncf for int8.
    """
    if keras.config.backend() not in ("tensorflow", "torch"):
        raise ValueError(
            "for_cpu(engine='openvino') requires the Keras backend 'tensorflow' or 'torch', but "
            f"the backend is {keras.config.backend()!r}. Save the task with save_to_preset and "
            "load it in a process started with KERAS_BACKEND=torch."
        )
    require(engines.openvino)
    if dtype == "int8":
        _require_nncf()
    model_files.require_packages("openvino", "for_cpu(engine='openvino')")
    model = model_files.make_openvino_model(task, "Use engine='litert' or the model itself")
    session = engines.OpenVinoSession(model, "bf16" if dtype == "bfloat16" else "f32")
    return CpuModel(session, f"openvino {dtype}")


CONVERTERS = {"litert": convert_to_litert, "openvino": convert_to_openvino}


def convert_for_cpu(
    task: PresetTask, dtype: CpuDtype, engine: Literal["litert", "openvino"], texts: object
) -> CpuModel:
    """Convert a task for an engine. See `Task.for_cpu` for the arguments and errors.

    Args:
        task: Task to convert, or its `TokenEncoder` if only a SavedModel supports the whole task.
        dtype: String. Data type for matrix products.
        engine: String. Engine name.
        texts: Inputs that will be passed to `CpuModel.quantize`, or None for other models.
    """
    calibrates = (engine, dtype) == ("openvino", "int8")
    if calibrates and (texts is None or (isinstance(texts, Sized) and not len(texts))):
        raise ValueError(
            f"texts is {quote(texts)}, but OpenVINO needs a few hundred typical inputs for int8. "
            "Pass texts=[...] or dtype='bfloat16'."
        )
    if texts is not None and not calibrates:
        raise ValueError(
            f"texts is {quote(texts)}, but engine={engine!r} with dtype={dtype!r} does not use "
            "texts. Omit this argument, or pass engine='openvino' with dtype='int8'."
        )
    if task.backbone.compute_dtype != "float32":
        raise ValueError(
            f"The backbone computes in {task.backbone.compute_dtype!r}, but for_cpu requires "
            "'float32'. Load the model with dtype='float32'."
        )
    return CONVERTERS[engine](task, dtype)


def _compute_checksum(batches: list[dict[str, np.ndarray]]) -> str:
    found = hashlib.sha256()
    for batch in batches:
        for values in batch.values():
            found.update(np.ascontiguousarray(values))
    return found.hexdigest()[:16]


def _require_nncf() -> None:
    """Import nncf without telemetry. By default, it reports each call to a server."""
    before = os.environ.get("NNCF_CI")
    os.environ["NNCF_CI"] = "1"
    try:
        require(nncf)
    finally:
        os.environ.pop("NNCF_CI")
        if before is not None:
            os.environ["NNCF_CI"] = before


@contextlib.contextmanager
def _silence_nncf() -> Iterator[None]:
    """Suppress the progress bars of nncf, and its log messages below the level WARNING."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel("WARNING")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
