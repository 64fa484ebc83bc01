"""Weights and batches over 8 simulated devices train as on one, also in two processes."""

import os

import keras
import pytest
from processes import PATIENCE, free_addresses, start_process

import encoder_zoo as ez

# Called with the number of the process, the address of the first where there are two, the sizes of
# the mesh, a folder for a preset, and the families.
SCRIPT = """
import sys
import keras

number, address, rows, columns, folder, *names = sys.argv[1:]
if address:
    keras.distribution.initialize(address, num_processes=2, process_id=int(number))

import jax
import numpy as np
import tensorflow as tf
import encoder_zoo as ez
from encoder_zoo.common.layers import list_layers
from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.encoders.arrays import gather_array
from encoder_zoo.testing import tiny

ids = {"token_ids": np.random.default_rng(0).integers(5, 30, (8, 6)).astype("int32")}
ids["padding_mask"] = np.arange(6) < np.array([6, 3, 5, 2, 6, 4, 1, 6])[:, None]
data = tf.data.Dataset.from_tensor_slices((ids, np.arange(8) % 2)).batch(8)


def trained(family, weights=None):
    keras.utils.set_random_seed(0)
    sizes = {"vocabulary_size": 32, "num_heads": 4, "hidden_dim": 16}  # multiples of the mesh's
    sizes |= {"num_key_value_heads": 4} if family.name in ("eurobert", "gemma3_text") else {}
    task = tiny.task(family, ez.SequenceClassifier, **sizes)
    for layer in list_layers(task):
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    if weights is not None:
        task.set_weights(weights)
    weights = task.get_weights() if weights is None else weights
    task.compile(optimizer=keras.optimizers.SGD(0.1), metrics=[])
    history = task.fit(data, epochs=2, verbose=0).history
    return weights, history["loss"], task


assert len(jax.devices()) == 8 and len(jax.local_devices()) == (4 if address else 8)
mesh = keras.distribution.DeviceMesh((int(rows), int(columns)), ("batch", "model"), jax.devices())
layout = ez.Backbone.layout_map(mesh, vocabulary_size=32)
parallel = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
for name in names or FAMILIES:
    family = get_family(name)
    weights, one, single = trained(family)
    expected = single.predict(ids, verbose=0)
    with parallel.scope():
        _, eight, split = trained(family, weights)
        np.testing.assert_allclose(split.predict(ids, verbose=0), expected, atol=5e-3)
    np.testing.assert_allclose(eight, one, rtol=1e-4, err_msg=name)
    for before, after in zip(single.weights, split.weights, strict=True):
        values = gather_array(after)
        np.testing.assert_allclose(values, gather_array(before), atol=1e-4, err_msg=after.path)
    # On each device: its share of all matrices of the blocks, and of the table of tokens.
    for v in split.backbone.weights:
        matrix = "block_" in v.path and v.path.endswith("kernel") and "convolution" not in v.path
        if matrix or "embeddings/token_embedding" in v.path:
            share = v.value.addressable_shards[0].data.size / v.value.size
            assert share == 1 / int(columns), v.path
    split.backbone.save_to_preset(f"{folder}/{number}/{name}")
    kept = ez.Backbone.from_preset(f"{folder}/{number}/{name}")
    for before, after in zip(single.backbone.weights, kept.weights, strict=True):
        np.testing.assert_allclose(gather_array(after), gather_array(before), atol=1e-4)
    print(name, flush=True)
"""


def start(number, address, mesh, folder, *names):
    count = 4 if address else 8
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    arguments, environment = (number, address, *mesh, folder, *names), {"KERAS_BACKEND": "jax"}
    log = folder / f"{number}.log"
    return start_process(SCRIPT, log, *arguments, XLA_FLAGS=flags, **environment)


def check(processes, folder):
    try:
        for number, process in enumerate(processes):
            code = process.wait(PATIENCE)
            assert code == 0, (folder / f"{number}.log").read_text()[-3000:]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.matrix
@pytest.mark.slow
def test_every_family_trains_on_eight_devices_as_on_one(tmp_path):
    pytest.importorskip("jax")
    check([start(0, "", (2, 4), tmp_path)], tmp_path)
    assert "bert" in (tmp_path / "0.log").read_text()


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2, 4), (1, 8)], ids=str)
def test_two_processes_share_a_model(mesh, tmp_path):
    """Each has half the rows of a batch and all weights, or all rows and half of each weight."""
    pytest.importorskip("jax")
    [address] = free_addresses(1)
    names = ("bert", "modernbert", "deberta-v2") if mesh == (2, 4) else ("bert",)
    check([start(i, address, mesh, tmp_path, *names) for i in range(2)], tmp_path)


def test_a_mesh_of_one_axis_is_refused():
    mesh = keras.distribution.DeviceMesh((1,), ("batch",), ["cpu:0"])
    with pytest.raises(ValueError, match="mesh.*batch"):
        ez.Backbone.layout_map(mesh)
