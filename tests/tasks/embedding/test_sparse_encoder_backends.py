"""SparseEncoder on JAX and PyTorch: the vectors of TensorFlow, and training."""

import json

import numpy as np
import pytest
from paths import GOLDEN
from processes import printed

SCRIPT = """
import json, sys
import keras, numpy as np
import encoder_zoo as ez

model = ez.SparseEncoder.from_preset(sys.argv[1])
texts = ["the cat sat on the mat .", "good film", "dogs", "it was bad , the dog ran"]
found = {prompt: model.embed(texts, prompt).toarray().tolist() for prompt in ("query", "document")}
index = model.index(texts)
found["hits"] = [[hit["index"] for hit in hits] for hits in index.search(texts, top_k=2)]
losses = {}
for chunk_size in (None, 2):
    keras.utils.set_random_seed(0)
    model = ez.SparseEncoder.from_preset(sys.argv[1], dropout=0.0, attention_dropout=0.0)
    loss = ez.losses.SPLADE(query_weight=0.1, document_weight=0.1)
    model.compile(keras.optimizers.SGD(0.01), loss, chunk_size=chunk_size)
    history = model.fit((texts, texts[::-1]), epochs=9, batch_size=4, shuffle=False, verbose=0)
    losses[str(chunk_size)] = history.history["loss"]
print(json.dumps({**found, "losses": losses}))
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_embed_and_learn_alike(backend):
    """The weights of the loss rise in three of nine steps, on each backend."""
    folder = GOLDEN / "sparse_encoders" / "5.3.0"
    found, expected = (
        json.loads(printed(SCRIPT, name, folder).splitlines()[-1])
        for name in (backend, "tensorflow")
    )
    for prompt in ("query", "document"):
        np.testing.assert_allclose(found[prompt], expected[prompt], atol=1e-5)
    assert found["hits"] == expected["hits"]
    for size in ("None", "2"):
        np.testing.assert_allclose(found["losses"][size], expected["losses"]["None"], rtol=1e-4)
