"""YaRN scaling of rotary positions beside transformers."""

import json

import keras
import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders.rope import compute_yarn

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]
SIZES = {
    "vocab_size": 30,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
    "local_attention": 8,
    "initializer_range": 0.3,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 3),
    **dict.fromkeys(("cls_token_id", "sep_token_id"), 3),
}
SCALINGS = [
    {"factor": 4.0, "original_max_position_embeddings": 16},
    {"factor": 1.5, "original_max_position_embeddings": 4096, "beta_fast": 20, "beta_slow": 2},
    {"factor": 8.0, "original_max_position_embeddings": 512, "attention_factor": 1.3},
    {"factor": 2.0, "original_max_position_embeddings": 2, "beta_fast": None},
]


def config_of(scaling: dict):
    return transformers.ModernBertConfig(**SIZES, rope_scaling={"rope_type": "yarn", **scaling})


@pytest.mark.parametrize("scaling", SCALINGS)
def test_angles_are_theirs(scaling):
    config = config_of(scaling)
    compute = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["yarn"]
    for kind, theta in (("full_attention", 160_000.0), ("sliding_attention", 10_000.0)):
        expected, factor = compute(config, layer_type=kind)
        speeds, scale = compute_yarn(theta, 16, scaling)
        np.testing.assert_allclose(speeds, expected.numpy(), rtol=1e-6)
        assert scale == pytest.approx(factor)


@pytest.mark.parametrize("is_old", [False, True], ids=["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("scaling", SCALINGS[:3])
def test_outputs_are_theirs_in_both_directions(tmp_path, scaling, is_old):
    torch.manual_seed(0)
    there = transformers.ModernBertModel(config_of(scaling)).eval()
    there.save_pretrained(tmp_path / "theirs")
    if is_old:
        config = tmp_path / "theirs" / "config.json"
        fields = json.loads(config.read_text())
        del fields["rope_parameters"]
        fields["rope_scaling"] = {"type": "yarn", **scaling}
        config.write_text(json.dumps(fields))
    ids = np.random.default_rng(0).integers(5, 30, (2, 60))
    with torch.inference_mode():
        expected = there.double()(torch.tensor(ids)).last_hidden_state.numpy()
    here = ez.Backbone.from_preset(tmp_path / "theirs")
    found = keras.ops.convert_to_numpy(here({"token_ids": ids})["sequence_output"])
    np.testing.assert_allclose(found, expected, atol=2e-5)
    here.save_to_preset(tmp_path / "ours")
    again = transformers.ModernBertModel.from_pretrained(tmp_path / "ours").eval()
    with torch.inference_mode():
        outputs = again.double()(torch.tensor(ids)).last_hidden_state.numpy()
    np.testing.assert_allclose(outputs, expected, atol=2e-5)
