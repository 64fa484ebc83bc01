"""LateInteraction on JAX and PyTorch: the vectors of TensorFlow, and training."""

import json

import numpy as np
import pytest
from paths import GOLDEN
from processes import printed

SCRIPT = """
import json, sys
import keras, numpy as np
import encoder_zoo as ez

model = ez.LateInteraction.from_preset(sys.argv[1])
texts = ["the cat sat on the mat .", "good film !", "dogs", "it was bad"]
found = {
    prompt: [vectors.tolist() for vectors in model.embed(texts, prompt)]
    for prompt in ("query", "document")
}
found["spans"] = [spans.tolist() for _, spans in model.embed_with_spans(texts)]
losses = {}
for chunk_size in (None, 2):
    keras.utils.set_random_seed(0)
    model = ez.LateInteraction.from_preset(sys.argv[1], dropout=0.0, attention_dropout=0.0)
    model.compile(keras.optimizers.SGD(0.01), chunk_size=chunk_size)
    history = model.fit((texts, texts[::-1]), epochs=3, batch_size=4, shuffle=False, verbose=0)
    losses[str(chunk_size)] = history.history["loss"]
model.compile("auto")
lists = [texts[:3]] * 4
model.fit((texts, lists), np.tile([1.0, 2.0, 0.0], (4, 1)), batch_size=4, verbose=0)
print(json.dumps({**found, "losses": losses}))
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_embed_and_learn_alike(backend):
    folder = GOLDEN / "late_interaction" / "pylate"
    found, expected = (
        json.loads(printed(SCRIPT, name, folder).splitlines()[-1])
        for name in (backend, "tensorflow")
    )
    for prompt in ("query", "document"):
        for one, other in zip(found[prompt], expected[prompt], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    assert found["spans"] == expected["spans"]
    for size in ("None", "2"):
        np.testing.assert_allclose(
            found["losses"][size], expected["losses"]["None"], rtol=1e-4, atol=1e-5
        )
