"""Low-rank updates alone: peft opens ours, and we open peft's, with the same logits."""

import numpy as np
import pytest
from keras import ops

import encoder_zoo as ez

pytestmark = [
    pytest.mark.peers,
    # peft, of transformers
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
]


@pytest.fixture
def moved(golden):
    """A task of a checkpoint, with updates that are not zero, and the checkpoint."""

    def moved(family, task, suffix, **arguments):
        checkpoint = golden(f"{family}_For{suffix}")
        model = task.from_preset(checkpoint.folder)
        model.enable_lora(2, **arguments)
        rng = np.random.default_rng(0)
        for weight in model.trainable_weights:
            weight.assign(rng.normal(size=weight.shape))
        return model, checkpoint

    return moved


CASES = [
    ("Bert", ez.SequenceClassifier, "SequenceClassification"),
    ("Roberta", ez.SequenceClassifier, "SequenceClassification"),
    ("Bert", ez.TokenClassifier, "TokenClassification"),
    ("Electra", ez.SequenceClassifier, "SequenceClassification"),
]


@pytest.mark.parametrize("family, task, suffix", CASES)
def test_peft_and_we_compute_the_same(moved, family, task, suffix, tmp_path):
    peft = pytest.importorskip("peft")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model, checkpoint = moved(family, task, suffix, layers=["query", "output"], alpha=6)
    expected = ops.convert_to_numpy(model(checkpoint.inputs))
    model.save_adapters(tmp_path / "ours")

    again = task.from_preset(checkpoint.folder)
    again.load_adapters(tmp_path / "ours")
    np.testing.assert_array_equal(ops.convert_to_numpy(again(checkpoint.inputs)), expected)

    kind = getattr(transformers, f"AutoModelFor{suffix}")
    theirs = peft.PeftModel.from_pretrained(
        kind.from_pretrained(checkpoint.folder), tmp_path / "ours"
    ).eval()
    ids = torch.tensor(np.asarray(checkpoint.inputs["token_ids"]))
    mask = torch.tensor(np.asarray(checkpoint.inputs["padding_mask"])).int()
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "segment_ids" in checkpoint.inputs:
        inputs["token_type_ids"] = torch.tensor(np.asarray(checkpoint.inputs["segment_ids"]))
    with torch.no_grad():
        output = theirs(**inputs)
    found = output.logits
    real = np.asarray(checkpoint.inputs["padding_mask"], bool)
    if suffix == "TokenClassification":
        np.testing.assert_allclose(found.numpy()[real], expected[real], atol=1e-4)
    else:
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)

    theirs.save_pretrained(tmp_path / "theirs")
    again = task.from_preset(checkpoint.folder)
    again.load_adapters(tmp_path / "theirs")
    np.testing.assert_allclose(ops.convert_to_numpy(again(checkpoint.inputs)), expected, atol=1e-6)


def test_what_does_not_fit(moved, golden, tmp_path):
    model, checkpoint = moved("Bert", *CASES[0][1:])
    model.save_adapters(tmp_path / "ours")
    other = ez.SequenceClassifier.from_preset(golden("Roberta_ForSequenceClassification").folder)
    with pytest.raises(ValueError, match="the adapters do not match"):
        other.load_adapters(tmp_path / "ours")
    fresh = ez.SequenceClassifier.from_preset(checkpoint.folder)
    with pytest.raises(ValueError, match="enable_lora"):
        fresh.save_adapters(tmp_path / "none")
    with pytest.raises(ValueError, match="keys.* key"):
        fresh.enable_lora(2, layers=["keys"])


def test_tasks_whose_adapters_are_not_saved(golden, tmp_path):
    model = ez.SpanQA.from_preset(golden("Bert_ForQuestionAnswering").folder)
    model.enable_lora(2)
    with pytest.raises(ValueError, match="SpanQA.*save_to_preset"):
        model.save_adapters(tmp_path / "ours")
