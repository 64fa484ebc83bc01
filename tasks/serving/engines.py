"""Run models in ONNX Runtime, OpenVINO or LiteRT, on NumPy arrays and without Keras.

Comments use these letters for shapes: B (batch size), L (sequence length).
"""

from __future__ import annotations

import math
import os
import pathlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from encoder_zoo.common.lazy import LazyModule, require
from encoder_zoo.common.machine import count_cores
from encoder_zoo.common.wording import quote
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.preprocessing import batch_shapes
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE
from encoder_zoo.tasks.preprocessing.prepared import is_prepared

if TYPE_CHECKING:
    from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

onnxruntime = LazyModule(
    "onnxruntime",
    "Models in ONNX need the package onnxruntime: `pip install onnxruntime`, or the extra "
    "encoder-zoo[onnx-runtime].",
)
litert = LazyModule(
    "ai_edge_litert.interpreter",
    "Models in LiteRT need the package ai-edge-litert: `pip install ai-edge-litert`, or the extra "
    "encoder-zoo[litert].",
)
openvino = LazyModule(
    "openvino",
    "Models in OpenVINO need the package openvino: `pip install openvino`, or the extra "
    "encoder-zoo[openvino].",
)
# All attention weights of a call are in memory, so long texts are computed in smaller batches.
MAX_POSITION_PAIRS = 32 * 512**2
MASK_INPUTS = ("pooling_mask", "scored_mask", "attended_mask", "answer_mask")
# Maximum number of padding tokens per batch. A call takes about as much time as 16 tokens with
# all-MiniLM-L6-v2 (AMD EPYC, 2 cores). For 16 review sentences in random order, this maximum
# decreases the number of computed tokens per sentence from 40 to 24, of which 17 are not padding.
MAX_PADDING = 24
OPTIONAL = ("padding_mask", "segment_ids", *MASK_INPUTS)


class Session(ABC):
    """Base class for a model that is opened in an engine. Several threads can use a session.

    Attributes:
        input_names: List of strings. Names of the inputs. Every input is an int32 array (B, ...).
        output_shape: List of integers, with None for dynamic sizes.
        only_batch: Optional integer. The batch size of a model that only supports a single batch
            size, such as a LiteRT file from PyTorch.
    """

    input_names: list[str]
    output_shape: list[int | None]
    only_batch: int | None = None

    def __init__(self):
        self._process = os.getpid()

    def supports_inputs(self, inputs: Mapping[str, Any]) -> bool:
        """Return whether the model was converted for these inputs. Some inputs are optional.

        Any other input, such as "answer_start" for a `SpanQA` with a beam, would change the
        outputs. The inputs "candidate_...", which contain more texts per row, are ignored.
        """
        given = {name for name in inputs if not name.startswith(CANDIDATE)}
        return set(self.input_names) - set(OPTIONAL) <= given <= set(self.input_names)

    def complete_inputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Add missing inputs, and convert all inputs to int32.

        Args:
            inputs: Dict of integer arrays (B, ...) that `supports_inputs` accepts. If
                "padding_mask" is missing, no token is padding. If "segment_ids" is missing, all
                tokens are in the first segment.
        """
        tokens = np.asarray(inputs["token_ids"])
        real = inputs.get("padding_mask", np.ones_like(tokens))
        given = {
            "padding_mask": real,
            "segment_ids": np.zeros_like(tokens),
            **dict.fromkeys(MASK_INPUTS, real),
            **inputs,
        }
        return {name: np.asarray(given[name], "int32") for name in self.input_names}

    def run(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the outputs, float32 (B, ...).

        Args:
            inputs: Dict of integer arrays (B, ...), as for `complete_inputs`.

        Raises:
            RuntimeError: If the process was forked after the model was opened.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "This process was forked after the model was opened. The threads of the engine do "
                "not exist in the forked process, so it would hang. Open the model after the fork, "
                "or start new processes with multiprocessing.get_context('spawn')."
            )
        batch = self.complete_inputs(inputs)
        count, length = np.shape(inputs["token_ids"])
        size = self.only_batch or max(1, MAX_POSITION_PAIRS // max(1, length) ** 2)
        if not count:
            return np.zeros([0, *(size or length for size in self.output_shape[1:])], "float32")
        parts = [
            self._infer({name: values[start : start + size] for name, values in batch.items()})
            for start in range(0, count, size)
        ]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    @abstractmethod
    def _infer(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        """Compute the output. The next call must not overwrite the returned array."""


class OnnxSession(Session):
    """ONNX Runtime model. Several threads can run it at the same time.

    Args:
        path: File path.
        spinning: Boolean. Whether idle threads check for work in a loop before they sleep. Defaults
            to True.
    """

    def __init__(self, path: pathlib.Path, spinning: bool = True):
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = count_cores()
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        options.log_severity_level = 3  # errors
        # A memory plan would be stored for every batch shape, and never be removed.
        options.enable_mem_pattern = False
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        # Otherwise, every session would keep the memory for its largest batch. In a test with
        # three MiniLM models and 93 batches of up to 32 texts and 512 tokens, this decreased the
        # memory of the process from 1,700 MB to 180 MB (at most 490 MB during a call).
        self._run_options = onnxruntime.RunOptions()
        self._run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self.input_names = sorted(given.name for given in self._session.get_inputs())
        [output] = self._session.get_outputs()
        self.output_shape = [size if isinstance(size, int) else None for size in output.shape]

    def _infer(self, batch):
        return self._session.run(None, batch, self._run_options)[0]


class OpenVinoSession(Session):
    """OpenVINO model that runs one call at a time.

    Args:
        model: File path, or `openvino.Model`.
        precision: String, "f32" or "bf16". Precision of matrix products, if the processor supports
            it. Defaults to "f32".

    Attributes:
        model: `openvino.Model`.
    """

    def __init__(self, model: pathlib.Path | openvino.Model, precision: str = "f32"):
        super().__init__()
        core = openvino.Core()
        if isinstance(model, pathlib.Path):
            model = core.read_model(model)
        self.model = model
        self.input_names = sorted(given.any_name for given in model.inputs)
        [output] = model.outputs
        shape = output.partial_shape
        self.output_shape = [None if size.is_dynamic else size.get_length() for size in shape]
        settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": count_cores()}
        self._request = core.compile_model(model, "CPU", settings).create_infer_request()
        self._lock = threading.Lock()

    def _infer(self, batch):
        with self._lock:
            return self._request.infer(batch)[0].copy()  # the request reuses its memory


class LiteRtSession(Session):
    """LiteRT model that runs one call at a time.

    Args:
        model: Path of the LiteRT file, or its contents as bytes.
    """

    def __init__(self, model: pathlib.Path | bytes):
        super().__init__()
        is_path = isinstance(model, pathlib.Path)
        given = {"model_path": str(model)} if is_path else {"model_content": model}
        interpreter = litert.Interpreter(**given, num_threads=count_cores())
        self._runner = interpreter.get_signature_runner()
        inputs = self._runner.get_input_details()
        self.input_names = sorted(inputs)
        [output] = self._runner.get_output_details().values()
        sizes = output["shape_signature"].tolist()
        self.output_shape = [None if size < 0 else size for size in sizes]
        batch = int(inputs["token_ids"]["shape_signature"][0])
        self.only_batch = batch if batch > 0 else None
        self._lock = threading.Lock()

    def _infer(self, batch):
        with self._lock:
            [outputs] = self._runner(**batch).values()
            return outputs


# Maps engine names to classes. An engine has the same name as the format of its files.
SESSIONS: dict[str, Callable[..., Session]] = {
    "onnx": OnnxSession,
    "openvino": OpenVinoSession,
    "litert": LiteRtSession,
}
PACKAGES = {"onnx": onnxruntime, "openvino": openvino, "litert": litert}


def open_session(path: pathlib.Path, engine: str, **options) -> Session:
    """Open a model file.

    Args:
        path: File path.
        engine: String. Name from `SESSIONS`.
        **options: Keyword arguments for the engine's class.

    Raises:
        ImportError: If the package for `engine` is not installed.
        ValueError: If `engine` cannot open the file.
    """
    require(PACKAGES[engine])
    try:
        return SESSIONS[engine](path, **options)
    except Exception as error:  # each engine has its own errors
        raise ValueError(f"{engine} cannot open {path}. Error:\n{error}") from error


class EngineRunner:
    """Compute the outputs of a task with an engine, without Keras.

    Args:
        session: `Session` with the model.
        preprocessor: The task's preprocessor.
    """

    def __init__(self, session: Session, preprocessor: Preprocessor):
        self.session = session
        self.preprocessor = preprocessor

    def predict(self, x: Any, batch_size: int | None = None) -> np.ndarray:
        """Compute the outputs for texts or preprocessed inputs, in the input order."""
        size = batch_size or BATCH_SIZE
        if not is_prepared(x):
            texts = tuple(self.preprocessor.read_texts(x))
            return self.run_texts(texts, size, self.preprocessor.encode)
        if not self.session.supports_inputs(x):
            raise ValueError(
                f"The keys of `x` are {quote(sorted(x))}. Expected the inputs "
                f"{self.session.input_names}."
            )
        count = len(x["token_ids"])
        parts = [
            self.session.run({name: values[i : i + size] for name, values in x.items()})
            for i in range(0, max(count, 1), size)
        ]
        return np.concatenate(parts)

    def run_texts(self, texts: tuple, batch_size: int, encode: Callable) -> np.ndarray:
        """Compute the outputs for columns of texts, which `encode` converts to examples."""
        if not len(texts[0]):
            return np.zeros([0, *(size or 0 for size in self.session.output_shape[1:])], "float32")
        return batch_shapes.join_batches(self.run_examples(encode(texts), batch_size))

    def run_examples(
        self, examples: dict, batch_size: int | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the example indices (B,) and outputs of each batch, longest examples first."""
        size = batch_size or BATCH_SIZE
        is_fixed = self.session.only_batch or self.preprocessor.sequence_length
        max_padding = math.inf if is_fixed else MAX_PADDING
        for indices in batch_shapes.iterate_by_length(examples, size, max_padding):
            inputs = self.preprocessor.collate(batch_shapes.take_examples(examples, indices))
            yield indices, self.session.run({n: np.asarray(v) for n, v in inputs.items()})
