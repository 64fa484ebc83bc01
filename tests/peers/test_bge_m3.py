"""BGE-M3 beside FlagEmbedding, run by the interpreter that `ENCODER_ZOO_FLAG` names."""

import json
import os
import subprocess

import numpy as np
import pytest
from paths import GOLDEN

import encoder_zoo as ez

PYTHON = os.environ.get("ENCODER_ZOO_FLAG")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.eager,
    pytest.mark.skipif(PYTHON is None, reason="ENCODER_ZOO_FLAG names no Python"),
]
TEXTS = ["the cat sat on the mat.", "a", "Good film! It was not bad", "dogs ran under dogs " * 6]
SCRIPT = """
import json, sys
from FlagEmbedding import BGEM3FlagModel

model = BGEM3FlagModel(sys.argv[1], use_fp16=False, devices="cpu")
texts, every = json.loads(sys.argv[2]), {"return_sparse": True, "return_colbert_vecs": True}
found = model.encode(texts, max_length=20, **every)
print(json.dumps({
    "dense": found["dense_vecs"].tolist(),
    "weights": [{k: float(v) for k, v in row.items()} for row in found["lexical_weights"]],
    "tokens": [vectors.tolist() for vectors in found["colbert_vecs"]],
}))
"""


@pytest.mark.parametrize("trained", [False, True])
def test_flag_embedding_opens_what_is_saved(trained, tmp_path):
    model = ez.HybridEmbedder.from_preset(GOLDEN / "bge_m3")
    if trained:
        for task in (model.terms, model.tokens):
            task.compile(learning_rate=1e-2)
            task.fit((TEXTS, TEXTS[::-1]), verbose=0)
    model.save_to_preset(tmp_path / "m")
    done = subprocess.run(
        [PYTHON, "-c", SCRIPT, str(tmp_path / "m"), json.dumps(TEXTS)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "USE_TF": "0"},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    dense, terms, tokens = model.embed(TEXTS)
    np.testing.assert_allclose(dense, found["dense"], atol=1e-5)
    for row, expected in zip(terms.toarray(), found["weights"], strict=True):
        right = np.zeros_like(row)
        right[[int(i) for i in expected]] = list(expected.values())
        np.testing.assert_allclose(row, right, atol=1e-4)
    for one, expected in zip(tokens, found["tokens"], strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-5)
