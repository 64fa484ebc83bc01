"""The same training on raw text gives the same losses on every Keras backend."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import sys
import keras
import encoder_zoo as ez

keras.utils.set_random_seed(0)
texts = ["the cat sat on the mat", "a dog ran", "the film was good", "bad", "it is not good"] * 4
classifier = ez.Classifier.from_preset(sys.argv[1], dropout=0.0, attention_dropout=0.0)
classifier.compile(learning_rate=1e-3)
history = classifier.fit(
    texts,
    [0, 1, 2, 1, 0] * 4,
    validation_data=(texts[:5], [0, 1, 2, 1, 0]),
    epochs=3,
    batch_size=8,
    verbose=0,
).history
print(*history["loss"], *history["val_loss"], *classifier.predict(texts[:2], verbose=0).ravel())
"""


def losses(backend: str, folder) -> np.ndarray:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return np.array(done.stdout.split(), float)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_training_on_raw_text_equals_tensorflow(backend, golden):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed: `pip install {backend}`")
    folder = golden("Bert_ForSequenceClassification").folder
    # Adam divides by small gradients, so float32's rounding shows in the third digit.
    np.testing.assert_allclose(
        losses(backend, folder), losses("tensorflow", folder), rtol=1e-3, atol=5e-3
    )
