"""Both heads of pretraining, beside transformers' classes, which open ours and which we open."""

import numpy as np
import pytest

import encoder_zoo as ez

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]
NAMES = {
    "token_ids": "input_ids",
    "padding_mask": "attention_mask",
    "segment_ids": "token_type_ids",
}


@pytest.mark.parametrize(
    "family, logits", [("Bert", "seq_relationship_logits"), ("Albert", "sop_logits")]
)
def test_both_heads_answer_as_transformers_do(tiny, tmp_path, family, logits):
    record = getattr(ez, f"{family}Backbone").family
    here, inputs = tiny.task(record, "Pretraining"), tiny.rows(record)
    here.save_to_preset(tmp_path / "ours")
    there = getattr(transformers, f"{family}ForPreTraining").from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    there, report = there
    assert not report["missing_keys"] and not report["unexpected_keys"]
    there.eval().save_pretrained(tmp_path / "theirs")
    for path in (tmp_path / "ours").iterdir():
        if not (tmp_path / "theirs" / path.name).exists() and path.name != "encoder_zoo.json":
            (tmp_path / "theirs" / path.name).write_bytes(path.read_bytes())
    given = {NAMES[n]: torch.tensor(value.astype("int64")) for n, value in inputs.items()}
    with torch.inference_mode():
        expected = there(**given)
    real = inputs["padding_mask"]
    for model in (here, ez.Pretraining.from_preset(tmp_path / "theirs")):
        found = model(inputs)
        tokens = found["masked_lm"].numpy()[real]
        np.testing.assert_allclose(tokens, expected.prediction_logits.numpy()[real], atol=1e-5)
        np.testing.assert_allclose(found[model.pair_objective], expected[logits], atol=1e-5)
    assert here.pair_objective == record.heads["ForPreTraining"].pair.objective

    # The loss of the same labels is theirs: the mean over tokens and the mean over pairs.
    labels = np.where(real & (np.arange(real.shape[1]) % 3 == 1), inputs["token_ids"], -100)
    pairs = np.array([0, 1, 1])
    name = "sentence_order_label" if family == "Albert" else "next_sentence_label"
    with torch.inference_mode():
        loss = there(**given, labels=torch.tensor(labels), **{name: torch.tensor(pairs)}).loss
    here.compile()
    y = {"masked_lm": np.maximum(labels, 0), here.pair_objective: pairs}
    weights = {
        "masked_lm": (labels >= 0).astype("float32"),
        here.pair_objective: np.ones(3, "float32"),
    }
    found = here.evaluate(inputs, y, sample_weight=weights, batch_size=3, verbose=0)[0]
    assert found == pytest.approx(float(loss), rel=1e-5)
