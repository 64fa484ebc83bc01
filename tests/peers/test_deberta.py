"""What DeBERTa's configurations vary, beside transformers: distances, terms, convolution, heads."""

import json

import numpy as np
import pytest
from keras import ops

import encoder_zoo as ez
from encoder_zoo.encoders.families.deberta_v2 import FAMILY, compute_buckets, compute_log_buckets

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]

SIZES = {
    **FAMILY.constants,
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "position_buckets": 8,
    "pos_att_type": ["p2c", "c2p"],
    "initializer_range": 0.5,
}
VARIATIONS = [
    {"pos_att_type": ["c2p"]},
    {"pos_att_type": "p2c"},
    {"pos_att_type": "p2c|c2p", "max_relative_positions": 32},
    {"position_buckets": 256, "max_position_embeddings": 512},  # as in all published ones
    {"conv_kernel_size": 3, "conv_act": "gelu"},  # as in the large ones of version 2
    {"conv_kernel_size": 5},
]


def made_there(head: str, **settings):
    """A small model of transformers with large random weights, in double precision."""
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(**{**SIZES, **settings})
    model = getattr(transformers, f"DebertaV2{head}")(config)
    for parameter in model.parameters():  # biases and norms too
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


def rows(length: int, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask of a full row, of a short one and of a single token."""
    ids = np.random.default_rng(0).integers(4, 40, (3, length))
    mask = np.arange(length) < np.array([[length], [(length + 1) // 2], [1]])
    return ids, mask[:, ::-1].copy() if left else mask


@pytest.mark.parametrize("buckets, farthest", [(256, 512), (8, 64), (32, 128), (320, 512)])
def test_distances_fall_into_their_buckets(buckets, farthest):
    there = transformers.models.deberta_v2.modeling_deberta_v2
    length = 3 * farthest
    text = torch.zeros(1, length, 1)
    distances = there.build_relative_position(text, text, buckets, farthest)[0]  # (L, L)
    expected = torch.clamp(distances + buckets, 0, 2 * buckets - 1).numpy()
    down, up = np.array(compute_buckets(length, compute_log_buckets(buckets, farthest)))
    for i in (0, 1, length // 2, length - 1):
        np.testing.assert_array_equal(down[length - 1 - i : 2 * length - 1 - i], expected[i])
        np.testing.assert_array_equal(up[length - 1 - i : 2 * length - 1 - i], expected[:, i])


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("length", [1, 2, 7, 90])
@pytest.mark.parametrize("settings", VARIATIONS, ids=str)
def test_every_hidden_state_is_theirs(settings, length, left, tmp_path):
    there = made_there("Model", **settings)
    there.save_pretrained(tmp_path)
    ids, mask = rows(length, left)
    with torch.inference_mode():
        expected = there.double()(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(mask.astype(int)),
            output_hidden_states=True,
        ).hidden_states
    here = ez.Backbone.from_preset(tmp_path)
    assert here.count_params() == sum(p.numel() for p in there.parameters())
    found = here({"token_ids": ids, "padding_mask": mask}, return_hidden_states=True)
    assert len(found["hidden_states"]) == len(expected)
    for ours, theirs in zip(found["hidden_states"], expected, strict=True):
        ours = ops.convert_to_numpy(ours)[mask]
        np.testing.assert_allclose(ours, theirs[mask], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("legacy", [True, False])
def test_both_names_of_the_masked_lm_head_are_read(legacy, tiny, tmp_path):
    there = made_there("ForMaskedLM", legacy=legacy)
    there.save_pretrained(tmp_path / "theirs")
    for name, content in tiny.tokenizer(FAMILY).to_files().items():
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "theirs" / name).write_bytes(content)
    ids, mask = rows(9)
    with torch.inference_mode():
        expected = there.double()(torch.tensor(ids), torch.tensor(mask.astype(int))).logits[mask]
    here = ez.MaskedLM.from_preset(tmp_path / "theirs")
    found = ops.convert_to_numpy(here({"token_ids": ids, "padding_mask": mask}))[mask]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)
    here.save_to_preset(tmp_path / "ours")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").eval().double()
    with torch.inference_mode():
        back = again(torch.tensor(ids), torch.tensor(mask.astype(int))).logits[mask]
    np.testing.assert_allclose(back, expected, rtol=1e-6, atol=1e-6)


def test_what_transformers_takes_for_granted_is_not_taken_for_granted_here(tmp_path):
    made_there("Model").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for name in ("relative_attention", "share_att_key", "norm_rel_ebd", "position_biased_input"):
        path.write_text(json.dumps({k: v for k, v in config.items() if k != name}))
        with pytest.raises(ValueError, match=f"{name} is "):
            ez.Backbone.from_preset(tmp_path)
