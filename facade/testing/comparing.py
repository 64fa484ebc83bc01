"""Outputs as arrays, and how they are compared."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

import keras
import numpy as np


def arrays(model: keras.Model, inputs: Mapping) -> list[np.ndarray]:
    """Return the outputs of a model, whatever their structure."""
    return [keras.ops.convert_to_numpy(values) for values in keras.tree.flatten(model(inputs))]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray], atol: float = 0.0) -> None:
    """Compare outputs; of longer ones only what the expected ones have too."""
    assert len(found) == len(expected) > 0, f"{len(found)} outputs, expected {len(expected)}"
    for a, b in zip(found, expected, strict=True):
        assert a.ndim == b.ndim, f"shape {a.shape}, expected {b.shape}"
        np.testing.assert_allclose(
            a[tuple(slice(n) for n in b.shape)], b, rtol=min(atol, 1e-5), atol=atol, equal_nan=False
        )


def assert_batching_changes_nothing(model: keras.Model, inputs: Mapping[str, np.ndarray]) -> None:
    """Each example has the same outputs alone, without padding, and beside longer ones.

    Args:
        model: whose outputs have the batch as first axis, and are of as many tokens, if of tokens.
        inputs: prepared, with a padding_mask (B, L).
    """
    mask = np.asarray(inputs["padding_mask"]).astype(bool)
    other = np.where(mask, inputs["token_ids"], 7)  # other tokens under the padding
    for given in (inputs, {**inputs, "token_ids": other}):
        together = arrays(model, given)
        for i, length in enumerate(mask.sum(axis=1)):
            if length == 1:  # Keras warns of a softmax over one
                continue
            single = {name: values[i : i + 1, :length] for name, values in inputs.items()}
            alone = arrays(model, single)
            assert_same([values[i : i + 1] for values in together], alone, atol=1e-5)


def assert_mixed_precision_is_close(
    exact: keras.Model, mixed: keras.Model, inputs: Mapping
) -> None:
    """With the same float32 weights the outputs of mixed_bfloat16 differ a little."""
    mixed.set_weights(exact.get_weights())
    kinds = {weight.dtype for weight in mixed.trainable_weights}
    assert kinds <= {"float32"}, f"weights are {kinds}, expected float32"
    for a, b in zip(arrays(mixed, inputs), arrays(exact, inputs), strict=True):
        difference = np.abs(a.astype("float32") - b)
        # With weights as large as these a tiny model magnifies roundings.
        assert 0 < difference.mean() < 0.25 * b.std(), f"mean difference {difference.mean():.2e}"
        assert np.quantile(difference, 0.98) < b.std(), f"differs by {difference.max():.2e}"


@contextlib.contextmanager
def no_warnings_logged() -> Iterator[None]:
    """Raise an AssertionError if loading logs that something is new or left over."""
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


def other_than(default: object) -> object:
    """Return another value of an argument's kind, or the same where none is known."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 1
    if isinstance(default, float):
        return 0.25
    return "relu" if default in ("gelu", "gelu_new") else default
