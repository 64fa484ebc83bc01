"""ALBERT's head for the order of sentences, as transformers saved it."""

import numpy as np
import pytest

import encoder_zoo as ez

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]


def test_we_classify_pairs_as_albert_for_pretraining(tiny, tmp_path):
    family = ez.AlbertBackbone.family
    sizes = {family.config_keys[name]: value for name, value in tiny.sizes(family).items()}
    tokenizer = tiny.tokenizer(family)
    ids = {key: getattr(tokenizer, name) for key, name in family.token_ids.items()}
    config = transformers.AlbertConfig(**sizes, **ids, initializer_range=0.5)
    torch.manual_seed(0)
    there = transformers.AlbertForPreTraining(config).eval()
    there.save_pretrained(tmp_path)
    for name, content in tokenizer.to_files().items():
        content = content.encode("utf-8") if isinstance(content, str) else content
        (tmp_path / name).write_bytes(content)
    inputs = tiny.rows(family)
    names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
    names["segment_ids"] = "token_type_ids"
    given = {names[n]: torch.tensor(value.astype("int64")) for n, value in inputs.items()}
    with torch.inference_mode():
        expected = there(**given)

    classifier = ez.SequenceClassifier.from_preset(tmp_path)
    assert list(classifier.labels) == ["in_order", "swapped"]
    np.testing.assert_allclose(classifier(inputs), expected.sop_logits, atol=1e-5)
    masked_lm = ez.MaskedLM.from_preset(tmp_path)
    real = inputs["padding_mask"]
    found = masked_lm(inputs).numpy()
    np.testing.assert_allclose(found[real], expected.prediction_logits.numpy()[real], atol=1e-5)
