"""Weights and batches over 8 simulated devices train as on one, in every family."""

import os
import subprocess
import sys

import keras
import pytest

import encoder_zoo as ez

SCRIPT = """
import sys
import jax
import keras
import numpy as np
import encoder_zoo as ez
from encoder_zoo.common.keras_private import layers_in
from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.testing import tiny

ids = {"token_ids": np.random.default_rng(0).integers(5, 30, (8, 6)).astype("int32")}
ids["padding_mask"] = np.arange(6) < np.array([6, 3, 5, 2, 6, 4, 1, 6])[:, None]
labels = np.arange(8) % 2


def trained(family, weights=None):
    sizes = {"vocabulary_size": 32, "num_heads": 4, "hidden_dim": 16}  # multiples of the mesh's
    sizes |= {"num_key_value_heads": 4} if family.name == "eurobert" else {}
    task = tiny.task(family, ez.SequenceClassifier, **sizes)
    for layer in layers_in(task):
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    if weights is not None:
        task.set_weights(weights)
    weights = task.get_weights()
    task.compile(optimizer=keras.optimizers.SGD(0.1), metrics=[])
    history = task.fit(ids, labels, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return weights, history["loss"], task


mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"), jax.devices())
layout = ez.Backbone.layout_map(mesh, vocabulary_size=32)
parallel = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
for name in sys.argv[1:] or FAMILIES:
    family = get_family(name)
    weights, one, single = trained(family)
    with parallel.scope():
        _, eight, split = trained(family, weights)
        found = split.get_weights()
    np.testing.assert_allclose(eight, one, rtol=1e-4, err_msg=name)
    for expected, values in zip(single.get_weights(), found, strict=True):
        np.testing.assert_allclose(values, expected, atol=1e-4, err_msg=name)
    # On each device: a quarter of all matrices of the blocks, and of the table of tokens.
    for v in split.backbone.weights:
        matrix = "block_" in v.path and v.path.endswith("kernel") and "convolution" not in v.path
        if matrix or "embeddings/token_embedding" in v.path:
            share = v.value.addressable_shards[0].data.size / v.value.size
            assert share == 0.25, v.path
    print(name, flush=True)
"""


def run(*names: str) -> str:
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags},
        timeout=3600,  # for one that hangs
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_every_family_trains_on_eight_devices_as_on_one():
    pytest.importorskip("jax")
    assert "bert" in run()


def test_a_mesh_of_one_axis_is_refused():
    mesh = keras.distribution.DeviceMesh((1,), ("batch",), ["cpu:0"])
    with pytest.raises(ValueError, match="must have two axes.*Received: axes batch"):
        ez.Backbone.layout_map(mesh)
