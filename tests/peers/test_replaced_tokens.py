"""Discriminators: ELECTRA's beside transformers', both ways; DeBERTa-v3's beside its own code."""

import keras
import numpy as np
import pytest

import encoder_zoo as ez

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]


def logits_there(model, inputs: dict) -> np.ndarray:
    names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
    names["segment_ids"] = "token_type_ids"
    given = {names[name]: torch.tensor(value.astype("int64")) for name, value in inputs.items()}
    with torch.inference_mode():
        return model.eval()(**given).logits.numpy()


def test_both_open_the_others_discriminator(tiny, tmp_path, caplog):
    family = ez.ElectraBackbone.family
    here, inputs = tiny.task(family, "ReplacedTokenDetection"), tiny.rows(family)
    real = inputs["padding_mask"]
    here.save_to_preset(tmp_path / "ours")
    there, report = transformers.ElectraForPreTraining.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report.values()), report
    expected = logits_there(there, inputs)
    found = keras.ops.convert_to_numpy(here(inputs))
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)

    there.save_pretrained(tmp_path / "theirs")
    for name, text in tiny.tokenizer(family).to_files().items():
        (tmp_path / "theirs" / name).write_text(text, encoding="utf-8")
    back = ez.ReplacedTokenDetection.from_preset(tmp_path / "theirs")
    assert [record for record in caplog.records if record.name == "encoder_zoo"] == []
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(back(inputs))[real], expected[real], atol=1e-5
    )


def test_deberta_v3s_discriminator_is_opened(tiny, tmp_path, caplog):
    """As published: no `architectures`, and the generator's head beside the discriminator's.

    Transformers has no class for it; the layers are those of replaced_token_detection_model.py in
    Microsoft's repository.
    """
    from safetensors.torch import save_file

    torch.manual_seed(0)
    family = ez.DebertaV2Backbone.family
    config = transformers.DebertaV2Config(
        **{**family.constants, "initializer_range": 0.5},
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
    )
    encoder = transformers.DebertaV2Model(config).eval()
    dense, classifier = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)
    norm = torch.nn.LayerNorm(16, eps=config.layer_norm_eps)
    torch.nn.init.normal_(norm.weight)
    layers = {"dense": dense, "LayerNorm": norm, "classifier": classifier}
    weights = {f"deberta.{name}": value for name, value in encoder.state_dict().items()}
    for name, layer in layers.items():
        for part, value in layer.state_dict().items():
            weights[f"mask_predictions.{name}.{part}"] = value
    weights["lm_predictions.lm_head.bias"] = torch.zeros(40)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config.to_json_file(tmp_path / "config.json")
    for name, content in tiny.tokenizer(family).to_files().items():
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(content)

    inputs = tiny.rows(family)
    real = inputs["padding_mask"]
    with torch.inference_mode():
        x = encoder(torch.tensor(inputs["token_ids"]), torch.tensor(real.astype(int)))[0]
        hidden = torch.nn.functional.gelu(dense(norm(x[:, :1] + x)))
        expected = classifier(hidden)[..., 0].numpy()
    here = ez.ReplacedTokenDetection.from_preset(tmp_path)
    assert [r for r in caplog.records if r.levelname == "WARNING" and r.name == "encoder_zoo"] == []
    found = keras.ops.convert_to_numpy(here(inputs))
    np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=1e-5)
