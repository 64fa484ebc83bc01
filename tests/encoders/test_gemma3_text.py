"""Test the blocks and the configuration of Gemma 3 with bidirectional attention."""

import json
import shutil

import numpy as np
import pytest
from keras import ops
from paths import CHECKPOINTS

import encoder_zoo as ez

FOLDER = CHECKPOINTS / "Gemma3Text_Model"


def numbers(values) -> np.ndarray:
    return ops.convert_to_numpy(values)


def changed(folder, **fields):
    """Copy the stored checkpoint with other fields in its configuration."""
    shutil.copytree(FOLDER, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


@pytest.fixture(scope="module")
def backbone():
    return ez.Backbone.from_preset(FOLDER)


def norm(x, gamma, epsilon=1e-6):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon) * (1 + numbers(gamma))


def test_a_block_normalizes_the_input_and_the_output_of_each_sublayer(backbone):
    block = backbone.blocks[0]
    x = 3 * np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    rotation = np.ones((1, 5, 1, 3), "float32"), np.zeros((1, 5, 1, 3), "float32")
    attended = numbers(block.attention(norm(x, block.attention_norm.gamma), rotation=rotation))
    y = x + norm(attended, block.attended_norm.gamma)
    inner = norm(y, block.output_norm.gamma)
    gate, up, down = (
        numbers(layer.kernel) for layer in (block.gate_dense, block.up_dense, block.output_dense)
    )
    z = inner @ gate
    gelu = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    expected = y + norm((gelu * (inner @ up)) @ down, block.update_norm.gamma)
    np.testing.assert_allclose(numbers(block(x, rotation=rotation)), expected, atol=2e-5)


def test_scores_are_divided_by_the_root_of_the_scalar(backbone):
    attention = backbone.blocks[0].attention
    assert (attention.head_dim, attention.query_pre_attn_scalar) == (6, 5)
    x = np.random.default_rng(0).normal(size=(1, 4, 8)).astype("float32")
    rotation = np.ones((1, 4, 1, 3), "float32"), np.zeros((1, 4, 1, 3), "float32")
    query, key = (
        (x @ numbers(layer.kernel)).reshape(1, 4, -1, 6)
        for layer in (attention.query_dense, attention.key_dense)
    )
    query = norm(query, attention.query_norm.gamma)
    key = np.repeat(norm(key, attention.key_norm.gamma), 2, axis=2)  # one head of keys for two
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(5)
    expected = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    _, found = attention(x, rotation=rotation, return_probabilities=True)
    np.testing.assert_allclose(numbers(found), expected, atol=1e-5)


def test_local_blocks_see_half_the_window_on_each_side(backbone):
    ids = np.arange(5, 17)[None]
    local, everywhere = numbers(backbone.attention_probabilities({"token_ids": ids}))[0]
    near = np.abs(np.arange(12)[:, None] - np.arange(12)) <= 2  # local_attention=4
    assert backbone.local_attention == 4
    assert (local[:, near] > 0).all() and not local[:, ~near].any()
    assert (everywhere > 0).all()


def test_embeddings_are_multiplied_by_the_root_of_the_width(backbone):
    table = numbers(backbone.embeddings.token_embedding.embeddings)
    found = numbers(backbone.embeddings(np.array([[7, 9]])))
    np.testing.assert_allclose(found[0], table[[7, 9]] * np.sqrt(8), rtol=1e-6)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_bidirectional_attention", False),
        ("attn_logit_softcapping", 50.0),
        ("attention_bias", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("rope_parameters", {"full_attention": {"rope_type": "linear", "factor": 8.0}}),
        ("rope_scaling", {"rope_type": "linear", "factor": 8.0}),
    ],
)
def test_models_with_another_attention_are_refused(tmp_path, key, value):
    with pytest.raises(ValueError, match=f"config.json: {key}"):
        ez.Backbone.from_preset(changed(tmp_path / "other", **{key: value}))


def test_a_configuration_without_the_flag_is_causal(tmp_path):
    folder = changed(tmp_path / "causal")
    config = json.loads((folder / "config.json").read_text())
    del config["use_bidirectional_attention"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="use_bidirectional_attention"):
        ez.Backbone.from_preset(folder)


def test_the_configuration_of_version_4_is_read(tmp_path):
    """With the fields of google/embeddinggemma-300m."""
    fields = {"rope_theta": 50.0, "rope_local_base_freq": 7.0, "_sliding_window_pattern": 6}
    folder = changed(tmp_path / "old", **fields, rope_parameters=None, rope_scaling=None)
    backbone = ez.Backbone.from_preset(folder)
    assert (backbone.global_rope_theta, backbone.local_rope_theta) == (50.0, 7.0)
    assert (backbone.global_every, backbone.local_attention) == (2, 4)


@pytest.mark.slow
def test_a_trimmed_embedder_has_the_same_vectors():
    embedder = ez.TextEmbedder.from_preset(
        FOLDER, pooling="mean", dense=[{"units": 12, "use_bias": False}, {"units": 8}]
    )
    texts = ["the cat sat", "was the film good?", "é"]
    trimmed = embedder.trim_vocabulary(texts)
    assert trimmed.backbone.vocabulary_size < embedder.backbone.vocabulary_size
    np.testing.assert_array_equal(trimmed.embed(texts), embedder.embed(texts))


@pytest.mark.slow
def test_a_regressor_without_a_bias_is_refused():
    pytest.importorskip("sklearn")
    from encoder_zoo import sklearn as estimators

    regressor = estimators.TextRegressor(preset=str(FOLDER), epochs=1)
    with pytest.raises(ValueError, match="gemma3_text"):
        regressor.fit(["the cat", "a dog", "good film"], [0.0, 1.0, 2.0])
