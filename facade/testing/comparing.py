"""Assertions for model outputs, errors and log messages."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import tempfile
from collections.abc import Iterator, Mapping

import keras
import numpy as np


def compute_outputs(model: keras.Model, inputs: Mapping) -> list[np.ndarray]:
    """Compute the outputs of a model, as a list of arrays."""
    return [keras.ops.convert_to_numpy(values) for values in keras.tree.flatten(model(inputs))]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray], atol: float = 0.0) -> None:
    """Assert that outputs are close to the expected outputs.

    If the outputs are longer, for example because of padding, they will be truncated.
    """
    assert len(found) == len(expected) > 0, f"{len(found)} outputs, expected {len(expected)}"
    for a, b in zip(found, expected, strict=True):
        assert a.ndim == b.ndim, f"shape {a.shape}, expected {b.shape}"
        np.testing.assert_allclose(
            a[tuple(slice(n) for n in b.shape)], b, rtol=min(atol, 1e-5), atol=atol, equal_nan=False
        )


def assert_same_outputs(found: keras.Model, expected: keras.Model, inputs: Mapping) -> None:
    """Assert that two models return equal outputs for the same inputs."""
    assert_same(compute_outputs(found, inputs), compute_outputs(expected, inputs))


def assert_batching_changes_nothing(model: keras.Model, inputs: Mapping[str, np.ndarray]) -> None:
    """Assert that batching and padding do not change the outputs of a model.

    Args:
        model: Model to test. The outputs should have the shape (B, ...) or (B, L, ...).
        inputs: Dict of preprocessed inputs, including a `padding_mask` of shape (B, L).
    """
    mask = np.asarray(inputs["padding_mask"]).astype(bool)
    other = np.where(mask, inputs["token_ids"], 7)  # use a different padding id
    for given in (inputs, {**inputs, "token_ids": other}):
        together = compute_outputs(model, given)
        for i, length in enumerate(mask.sum(axis=1)):
            if length == 1:  # Keras logs a warning for softmax over an axis of size 1
                continue
            single = {name: values[i : i + 1, :length] for name, values in inputs.items()}
            alone = compute_outputs(model, single)
            assert_same([values[i : i + 1] for values in together], alone, atol=1e-5)


def assert_mixed_precision_is_close(
    exact: keras.Model, mixed: keras.Model, inputs: Mapping
) -> None:
    """Assert that weights are in float32 and outputs are nearly the same with mixed_bfloat16."""
    mixed.set_weights(exact.get_weights())
    kinds = {weight.dtype for weight in mixed.trainable_weights}
    assert kinds <= {"float32"}, f"weights are {kinds}, expected float32"
    for a, b in zip(compute_outputs(mixed, inputs), compute_outputs(exact, inputs), strict=True):
        difference = np.abs(a.astype("float32") - b)
        # Rounding errors are larger for the weights of a tiny model.
        assert 0 < difference.mean() < 0.25 * b.std(), f"mean difference {difference.mean():.2e}"
        assert np.quantile(difference, 0.98) < b.std(), f"differs by {difference.max():.2e}"


def assert_keras_file_round_trip(model: keras.Model, inputs: Mapping) -> None:
    """Assert that a model has the same outputs after `save` and `keras.saving.load_model`."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model.save(path)
        again = keras.saving.load_model(path)
    assert_same_outputs(again, model, inputs)


@contextlib.contextmanager
def assert_raises(words: str) -> Iterator[None]:
    """Assert that a ValueError or TypeError is raised whose message contains certain words."""
    try:
        yield
    except (TypeError, ValueError) as error:
        assert words in str(error), f"expected {words!r} in the error: {error}"
    else:
        raise AssertionError(
            f"no error was raised. Expected a ValueError or TypeError that mentions {words!r}"
        )


@contextlib.contextmanager
def assert_no_warnings() -> Iterator[None]:
    """Assert that no warnings are logged, for example for missing weights."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("encoder_zoo")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    assert not records, "; ".join(record.getMessage() for record in records)


def make_other_value(default: object) -> object:
    """Return a value other than the default. If no other value is known, return the default."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 1
    if isinstance(default, float):
        return 0.25
    return "relu" if default in ("gelu", "gelu_new") else default
