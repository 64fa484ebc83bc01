"""Rotary positions of texts longer than in pretraining, beside transformers' stored outputs."""

import json
import shutil

import keras
import numpy as np
import pytest
from keras import ops
from paths import CHECKPOINTS, GOLDEN

import encoder_zoo as ez
from encoder_zoo.encoders.rope import compute_yarn, convert_rope_fields

LENGTHS = (5, 8, 12, 20)  # scaling is for more than 8 tokens


@pytest.fixture(scope="module")
def stored():
    return dict(np.load(GOLDEN / "rope.npz"))


@pytest.fixture(scope="module")
def backbone():
    return ez.Backbone.from_preset(
        CHECKPOINTS / "NomicBert_Model",
        rope_scaling={"rope_type": "dynamic", "factor": 2.0},
        trained_length=8,
    )


def test_a_texts_positions_depend_on_its_own_length_alone(stored, backbone):
    real = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    ids = np.zeros(real.shape, "int32")
    ids[real] = np.concatenate([stored[f"token_ids_{length}"] for length in LENGTHS])
    found = backbone({"token_ids": ids, "padding_mask": real})["sequence_output"]
    expected = np.concatenate([stored[f"outputs_{length}"] for length in LENGTHS])
    np.testing.assert_allclose(ops.convert_to_numpy(found)[real], expected, atol=1e-5)


def test_texts_in_one_example_are_scaled_each_by_its_length(stored, backbone):
    ids = np.concatenate([stored[f"token_ids_{length}"] for length in LENGTHS])
    ids = np.pad(ids, (0, 3))[None]
    real = np.arange(ids.shape[1]) < sum(LENGTHS)
    starts = np.cumsum([0, *LENGTHS[:-1]])[None]
    inputs = {"token_ids": ids, "padding_mask": real[None], "text_starts": starts}
    found = ops.convert_to_numpy(backbone(inputs)["sequence_output"])[0, : sum(LENGTHS)]
    expected = np.concatenate([stored[f"outputs_{length}"] for length in LENGTHS])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8, "mscale": 1.0},
        {"rope_type": "linear", "factor": 2.0, "beta_fast": 32.0},
        {"rope_type": "linear"},
        {"rope_type": "linear", "factor": 0.5},
        "linear",
    ],
)
def test_other_scalings_are_refused(scaling):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    with pytest.raises(ValueError, match="rope_scaling is.*'linear'.*factor"):
        ez.GteBackbone(30, **sizes, rope_scaling=scaling)


@pytest.mark.parametrize("name", ["Gte", "EuroBert", "NomicBert"])
def test_heads_that_are_rotated_in_part_are_refused(golden, tmp_path, name):
    shutil.copytree(golden(f"{name}_Model").folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "partial_rotary_factor": 0.5}))
    with pytest.raises(ValueError, match=r"partial_rotary_factor is 0.5"):
        ez.Backbone.from_preset(tmp_path)


def test_the_older_name_of_a_scaling_counts_first():
    """As in transformers' `convert_rope_params_to_dict`."""
    new, old = ({"rope_type": "linear", "factor": factor} for factor in (2.0, 3.0))
    assert convert_rope_fields({"rope_parameters": new, "rope_scaling": old})["rope_scaling"] == old


def test_yarn_divides_the_angles_of_slow_dimensions_only():
    scaling = {"factor": 4.0, "original_max_position_embeddings": 8192}
    speeds, scale = compute_yarn(10_000.0, 64, scaling)
    plain = 10_000.0 ** (-np.arange(32) / 32)
    turns = 8192 * plain / (2 * np.pi)  # within the trained length
    np.testing.assert_allclose(speeds[turns > 40], plain[turns > 40], rtol=1e-6)
    np.testing.assert_allclose(speeds[turns < 0.7], plain[turns < 0.7] / 4, rtol=1e-6)
    between = (speeds / plain)[(turns > 1.5) & (turns < 30)]
    assert (np.diff(between) < 0).all() and between.max() < 1 and between.min() > 0.25
    assert scale == pytest.approx(1.1386294)  # 0.1 ln 4 + 1
    assert compute_yarn(10_000.0, 64, {**scaling, "attention_factor": 0.5})[1] == 0.5


def test_yarn_of_a_modernbert_is_kept_by_files(tmp_path):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
    sizes = {"num_layers": 3, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 8}
    backbone = ez.ModernBertBackbone(30, **sizes, max_sequence_length=32, rope_scaling=scaling)
    for weight in backbone.weights:  # large enough for attention that depends on positions
        weight.assign(keras.random.normal(weight.shape, stddev=0.5, seed=1))
    inputs = {"token_ids": np.arange(24).reshape(1, -1)}
    expected = ops.convert_to_numpy(backbone(inputs)["sequence_output"])
    backbone.save_to_preset(tmp_path)
    again = ez.Backbone.from_preset(tmp_path)
    assert again.rope_scaling == scaling
    np.testing.assert_array_equal(again(inputs)["sequence_output"], expected)
    plain = ez.Backbone.from_preset(tmp_path, rope_scaling=None)
    assert np.abs(ops.convert_to_numpy(plain(inputs)["sequence_output"]) - expected).max() > 1e-3
