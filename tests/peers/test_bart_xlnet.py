"""BART's and XLNet's models saved here and opened by transformers, and XLNet's random orders."""

import numpy as np
import pytest
from keras import ops
from paths import CHECKPOINTS

import encoder_zoo as ez

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]
TASKS = {
    "Model": ez.Backbone,
    "ForSequenceClassification": ez.SequenceClassifier,
    "ForTokenClassification": ez.TokenClassifier,
    "ForQuestionAnswering": ez.SpanQA,
    "ForMaskedLM": ez.MaskedLM,
}
FAMILIES = [ez.BartBackbone.family, ez.XLNetBackbone.family]
PAIRS = [
    (family, suffix)
    for family in FAMILIES
    for suffix in TASKS
    if (CHECKPOINTS / f"{family.class_prefix}_{suffix}").is_dir()
]


def there(model, inputs: dict, **more) -> dict:
    given = {
        "input_ids": inputs["token_ids"].astype("int64"),
        "attention_mask": inputs["padding_mask"].astype("int64"),
    }
    if model.config.model_type == "xlnet":
        given["token_type_ids"] = inputs["segment_ids"].astype("int64")
    given = {name: torch.tensor(value) for name, value in {**given, **more}.items()}
    with torch.inference_mode():
        return model(**given)


def orders(order: np.ndarray) -> dict:
    """transformers' inputs for predicting tokens in an order."""
    hidden = (order[:, :, None] <= order[:, None, :]) & (order[:, None, :] > 0)
    mapping = np.repeat(np.eye(order.shape[1])[None], len(order), axis=0)
    return {"perm_mask": hidden.astype("float32"), "target_mapping": mapping.astype("float32")}


@pytest.mark.parametrize(("family", "suffix"), PAIRS, ids=lambda v: getattr(v, "name", v))
def test_transformers_opens_what_we_saved(golden, tmp_path, family, suffix):
    stored = golden(f"{family.class_prefix}_{suffix}")
    here = TASKS[suffix].from_preset(stored.folder)
    here.save_to_preset(tmp_path)
    cls = getattr(transformers, family.class_name(suffix))
    model, report = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    found, inputs = here(stored.inputs), stored.inputs
    more = {}
    if (family.name, suffix) == ("xlnet", "ForMaskedLM"):
        itself = np.repeat(np.eye(9, dtype="float32")[None], 3, axis=0)
        more = {"perm_mask": itself, "target_mapping": itself}
    outputs = there(model.eval(), inputs, **more)
    if suffix == "Model":
        found, expected = found["sequence_output"], outputs["last_hidden_state"]
    elif suffix == "ForQuestionAnswering":
        found = ops.transpose(found, (0, 2, 1))
        expected = torch.stack([outputs["start_logits"], outputs["end_logits"]], dim=2)
    else:
        expected = outputs["logits"]
    found, expected = ops.convert_to_numpy(found), expected.numpy()
    if found.ndim == 3:
        found, expected = (values[inputs["padding_mask"]] for values in (found, expected))
    atol = 1e-5 * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)


def test_tokens_are_predicted_in_a_random_order_as_there(golden):
    stored = golden("XLNet_ForMaskedLM")
    here = ez.MaskedLM.from_preset(stored.folder)
    model = transformers.XLNetLMHeadModel.from_pretrained(stored.folder).eval()
    rng, mask = np.random.default_rng(0), stored.inputs["padding_mask"]
    for _ in range(5):
        # About half of the tokens are predicted.
        order = np.where(mask & (rng.random(mask.shape) < 0.5), 1, 0)
        order *= np.argsort(np.argsort(rng.random(mask.shape), axis=1), axis=1) + 1
        found = ops.convert_to_numpy(here({**stored.inputs, "prediction_order": order}))
        expected = there(model, stored.inputs, **orders(order))["logits"].numpy()
        chosen = order > 0
        # One that comes first and has no others to read is the mean of all, padding too.
        reads = (mask[:, None] & ~orders(order)["perm_mask"].astype(bool)).any(axis=2)
        chosen &= reads
        atol = 1e-5 * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found[chosen], expected[chosen], rtol=1e-5, atol=atol)
        assert chosen.sum() > 3


def test_a_padded_pair_is_read_as_transformers_does(golden):
    """Padded on the left there, on the right here."""
    folder = golden("XLNet_ForSequenceClassification").folder
    here = ez.SequenceClassifier.from_preset(folder)
    tokenizer = transformers.XLNetTokenizer.from_pretrained(folder)
    model = transformers.XLNetForSequenceClassification.from_pretrained(folder).eval().double()
    pairs = (["the cat sat", "a dog"], ["it is good", "very bad film !"])
    inputs = tokenizer(
        *map(list, pairs), padding=True, return_token_type_ids=True, return_tensors="pt"
    )
    with torch.inference_mode():
        expected = model(**inputs).logits.numpy()
    found = ops.convert_to_numpy(here(here.preprocessor(pairs)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
