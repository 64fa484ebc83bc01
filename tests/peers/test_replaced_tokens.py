"""ELECTRA's discriminator beside transformers', both ways."""

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
