"""Export a task to a folder that `opened_export` can run without Keras."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from encoder_zoo.common.configuration import get_argument_names
from encoder_zoo.common.lazy import keras, require, tf
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.tokenizers.file_tokenizer import FileTokenizer
from encoder_zoo.presets.files.atomic import FolderKind, replace_folder
from encoder_zoo.presets.files.json_data import convert_to_json
from encoder_zoo.presets.files.manifest import write_manifest
from encoder_zoo.presets.formats.preset_files import TOKENIZER_JSON
from encoder_zoo.tasks.serving import model_files
from encoder_zoo.tasks.serving.answers_registry import ANSWERS, get_answers_class
from encoder_zoo.tasks.serving.engines import EngineRunner, onnxruntime, open_session
from encoder_zoo.tasks.serving.opened_export import (
    EXPORT_KIND,
    MODEL_FILES,
    TOKENIZER_ARGUMENTS,
    TOKENIZER_CLASSES,
    Engine,
    ExportRecord,
)

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.presets.formats.preset_task import PresetTask
    from encoder_zoo.tasks.base.answers import Answers

logger = logging.getLogger("encoder_zoo")


@validate_arguments
def export_folder(
    task: PresetTask,
    folder: str | os.PathLike[str],
    format: Engine,
    dtype: Literal["float32", "int8"] = "float32",
    texts: Any = None,
    **options: Any,
) -> None:
    """Write a folder for `open_export`. See `Task.export`.

    Args:
        task: Task with a preprocessor.
        folder: String or path. An existing export in this folder is replaced atomically.
        format: String. Model file format.
        dtype: String, "float32" or "int8". With "int8", matrix products are quantized in ONNX and
            LiteRT. Defaults to "float32".
        texts: Optional typical inputs, as for `predict`. They are used to compare the int8 outputs
            with the float32 outputs.
        **options: Options for the Keras exporter.

    Raises:
        ValueError: If the task cannot run without Keras, or if `format` does not support the task.
    """
    record = describe_export(task, format, dtype)
    if dtype == "int8":
        _check_supports_int8(format)
    if texts is not None and dtype != "int8":
        raise ValueError(
            f"texts is {quote(texts)}, but texts are only used with dtype='int8'. Pass "
            "dtype='int8', or omit texts."
        )
    if isinstance(texts, Sized) and not len(texts):
        raise invalid("texts", texts, "a few hundred typical inputs")
    kind = FolderKind("an export", lambda manifest: manifest["task"] == EXPORT_KIND)
    with replace_folder(folder, kind) as new:
        path = new / MODEL_FILES[format][0]
        if (dtype, format) == ("int8", "litert"):
            options["optimizations"] = [tf.lite.Optimize.DEFAULT]
        model_files.write_model(task, path, format, **options)
        if (dtype, format) == ("int8", "onnx"):
            _quantize_onnx(path)
        if format == "litert" and (lacking := model_files.list_custom_operations(path)):
            raise _make_unsupported_error(
                task, f"LiteRT does not support the operations {', '.join(lacking)}"
            )
        if texts is not None:
            record = dataclasses.replace(
                record, agreement=measure_differences(task, path, format, texts)
            )
        for name, content in _make_tokenizer_files(task).items():
            data = content.encode() if isinstance(content, str) else content
            (new / name).write_bytes(data)
        write_manifest(new, {"task": EXPORT_KIND, EXPORT_KIND: dataclasses.asdict(record)})


def _check_supports_int8(format: Engine) -> None:
    """Raise an error if the format does not support int8, or if a required package is missing."""
    if format == "openvino":
        raise ValueError(
            "dtype is 'int8', which is not supported for 'openvino'. Export with format='onnx', "
            "and open the export with open_export(..., engine='openvino')."
        )
    if format == "litert" and keras.config.backend() != "tensorflow":
        raise ValueError(
            "dtype is 'int8', which requires the Keras backend 'tensorflow' for 'litert'. Pass "
            "dtype='float32', or start the process with KERAS_BACKEND=tensorflow."
        )
    if format == "onnx":
        require(onnxruntime)


def _quantize_onnx(path: pathlib.Path) -> None:
    """Quantize weights to int8, and activations at run time.

    Weights have a scale per column and only use 7 out of 8 bits, because 8-bit products saturate on
    processors with AVX2 or AVX512 but without VNNI.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    root = logging.getLogger()
    level = root.level
    root.setLevel("ERROR")  # a warning recommends a step that is not possible with dynamic sizes
    try:
        quantize_dynamic(
            path, path, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
        )
    finally:
        root.setLevel(level)


def describe_export(task: PresetTask, format: Engine, dtype: str) -> ExportRecord:
    """Describe a task for the manifest of its export.

    Raises:
        ValueError: If the task has no preprocessor, or if predictions need more than the model file
            and plain settings.
    """
    if task.preprocessor is None:
        raise _make_unsupported_error(
            task, "it has no preprocessor", "Export it as a file, such as 'model.onnx'"
        )
    if task.record.text_method is None:
        raise _make_unsupported_error(task, "it has no method for predictions on texts")
    backbone, preprocessor = task.backbone, task.preprocessor
    answers = task._answers.copy_with_model()
    name = type(answers).__name__
    if name not in ANSWERS or get_answers_class(name) is not type(answers):
        raise _make_unsupported_error(
            task,
            f"the class {name}, which computes its predictions, is not registered",
            "Register it with ez.register_answers",
        )
    method, names = task.record.text_method, get_argument_names(type(preprocessor))
    if method not in answers.methods:
        raise _make_unsupported_error(task, f"its model does not compute the outputs of {method!r}")
    if type(preprocessor) is not answers.preprocessor_class:
        raise _make_unsupported_error(
            task,
            f"its preprocessor is an instance of the custom class {type(preprocessor).__name__}",
        )
    return ExportRecord(
        task=answers.task_name or task.record.name,
        answers=name,
        format=format,
        dtype=dtype,
        agreement=None,
        settings=_collect_settings(task, answers),
        preprocessor=convert_to_json(
            {name: getattr(preprocessor, name) for name in names if name != "tokenizer"}
        ),
        tokenizer=_make_tokenizer_settings(task, preprocessor.tokenizer),
        backbone={
            "vocabulary_size": backbone.vocabulary_size,
            "max_sequence_length": backbone.max_sequence_length,
            "num_segments": preprocessor.num_segments,
            "predicts_in_order": backbone.predicts_in_order,
        },
    )


def _make_unsupported_error(task: PresetTask, reason: str, advice: str = "") -> ValueError:
    advice = advice or "Use the TensorFlow backend, and export a SavedModel with export('served/1')"
    return ValueError(
        f"This {type(task).__name__} cannot be exported to a folder for `open_export`, because "
        f"{reason}. {advice}."
    )


def _collect_settings(task: PresetTask, answers: Answers) -> dict[str, object]:
    """Return the prediction settings as plain data."""
    rules, found = answers.get_setting_rules(), {}
    for field in dataclasses.fields(answers):
        value = getattr(answers, field.name)
        if field.name in rules:
            found[field.name] = convert_to_json(value)
        elif field.name not in ("preprocessor", "runner") and value is not None:
            raise _make_unsupported_error(
                task,
                f"its predictions need {field.name}, which cannot be stored in the files of a "
                "model",
            )
    return found


def _make_tokenizer_settings(
    task: PresetTask, tokenizer: Tokenizer | FileTokenizer
) -> dict[str, object]:
    """Return the tokenizer class and all arguments that are not stored in its files."""
    name = type(tokenizer).__name__
    if isinstance(tokenizer, FileTokenizer):
        return {"class": name, "arguments": {"keeps_unknown": tokenizer.keeps_unknown}}
    kind = TOKENIZER_CLASSES.get(name)
    if kind is None or kind.load() is not type(tokenizer):
        raise _make_unsupported_error(task, f"its tokenizer has a custom class, {type(tokenizer)}")
    return {
        "class": name,
        "arguments": {name: getattr(tokenizer, name) for name in TOKENIZER_ARGUMENTS},
    }


def _make_tokenizer_files(task: PresetTask) -> dict[str, str | bytes]:
    """Create the files of the tokenizer. The settings in tokenizer.json truncate and pad.

    If tokenizer.json contains the vocabulary, no other vocabulary file is written.
    """
    tokenizer = task.preprocessor.tokenizer
    files = tokenizer.to_files()
    if isinstance(tokenizer, FileTokenizer) or "tokenizer.json" not in files:
        return files
    padded = model_files.make_tokenizer_json(task) or files["tokenizer.json"]
    return {name: files[name] for name in TOKENIZER_JSON if name in files} | {
        "tokenizer.json": padded
    }


def measure_differences(
    task: PresetTask, path: pathlib.Path, format: Engine, texts: Any
) -> dict[str, float]:
    """Compare the outputs of a model file with the task's outputs on sample texts.

    Args:
        task: Task that was exported.
        path: Model file path.
        format: String. Model file format.
        texts: Inputs, as for `predict`.

    Returns:
        Dict with "mean_cosine" and "least_cosine", the mean and the minimum of the cosine
        similarities of the outputs for each text.
    """
    runner = EngineRunner(open_session(path, format), task.preprocessor)
    answers = dataclasses.replace(task._answers.copy_with_model(), runner=runner)
    pairs = zip(answers.predict_texts(texts), task.predict(texts, verbose=0), strict=True)
    cosines = [_compute_cosine(found, expected) for found, expected in pairs]
    agreement = {
        "mean_cosine": round(float(np.mean(cosines)), 6),
        "least_cosine": round(float(np.min(cosines)), 6),
    }
    logger.info("Similarity of int8 and float32 outputs for %d inputs: %s", len(cosines), agreement)
    return agreement


def _compute_cosine(found: Any, expected: Any) -> float:
    a, b = (np.concatenate([np.ravel(part) for part in x]) for x in ([found], [expected]))
    a, b = np.float64(a), np.float64(b)
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12))
