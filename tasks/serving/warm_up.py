"""Requests that TensorFlow Serving runs on a model before it serves it."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from encoder_zoo.common.lazy import tf

# Numbers of fields in tensorflow_serving's prediction_log.proto, predict.proto and model.proto.
LOG_PREDICT, PREDICT_REQUEST, REQUEST_MODEL, REQUEST_INPUTS = 6, 1, 1, 2
MODEL_SIGNATURE, ENTRY_KEY, ENTRY_VALUE = 3, 1, 2


def write_warm_up(
    folder: pathlib.Path, requests: list[tuple[str, Mapping[str, tf.Tensor]]]
) -> None:
    """Write `assets.extra/tf_serving_warmup_requests` into a SavedModel's folder.

    Args:
        folder: of the SavedModel.
        requests: a signature's name and its inputs, each.

    Source: TensorFlow Serving's guide "SavedModel Warmup".
    """
    extra = folder / "assets.extra"
    extra.mkdir()
    with tf.io.TFRecordWriter(str(extra / "tf_serving_warmup_requests")) as writer:
        for signature, inputs in requests:
            writer.write(prediction_log(signature, inputs))


def prediction_log(signature: str, inputs: Mapping[str, tf.Tensor]) -> bytes:
    """Return a `PredictionLog` with one request, in the bytes of protocol buffers.

    Args:
        signature: name of the signature.
        inputs: its inputs by name.

    Example:
        >>> import tensorflow as tf
        >>> prediction_log("serving_default", {"text": tf.constant(["hi"])})[:4]
        b'2+\\n)'
    """
    request = _field(REQUEST_MODEL, _field(MODEL_SIGNATURE, signature.encode()))
    for name, values in inputs.items():
        tensor = tf.make_tensor_proto(values).SerializeToString()
        entry = _field(ENTRY_KEY, name.encode()) + _field(ENTRY_VALUE, tensor)
        request += _field(REQUEST_INPUTS, entry)
    return _field(LOG_PREDICT, _field(PREDICT_REQUEST, request))


def _field(number: int, content: bytes) -> bytes:
    """Return a field of wire type 2: its number, its length, its bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
