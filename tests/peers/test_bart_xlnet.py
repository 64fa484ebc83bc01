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
    cls = getattr(transformers, family.get_class_name(suffix))
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


# -- the head with a beam ----------------------------------------------------------------------

BEAM_FOLDER = CHECKPOINTS / "XLNet_ForQuestionAnsweringBeam"
LENGTH, STRIDE = 24, 6
QUESTIONS = ["is it good?", "the dog?", "a cat"]
CONTEXTS = [
    "the cat sat on the mat .",
    "a dog ran under it and was not very good! the cat sat on the mat and ran, and the dog ran.",
    "bad film",
]


def beam_inputs(inputs: dict) -> dict:
    """transformers' further inputs: tokens that are no answers, and where <cls> is."""
    last = inputs["padding_mask"].sum(axis=1) - 1
    p_mask = (~inputs["answer_mask"]).astype("float32")
    return {"p_mask": p_mask, "cls_index": last.astype("int64")}


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    """A model of ours, saved, and transformers' of what was saved."""
    here = ez.SpanQA.from_preset(BEAM_FOLDER, window_length=LENGTH, doc_stride=STRIDE)
    folder = tmp_path_factory.mktemp("beam")
    here.save_to_preset(folder)
    cls = transformers.XLNetForQuestionAnswering
    model, report = cls.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return here, model.eval(), folder


def test_the_beam_is_transformers(answerer):
    here, model, _ = answerer
    n, m = here.beam
    inputs = {name: v.numpy() for name, v in here.preprocessor((QUESTIONS, CONTEXTS)).items()}
    found = ops.convert_to_numpy(here(inputs))
    expected = there(model, inputs, **beam_inputs(inputs))
    np.testing.assert_allclose(found[:, 0, 2], expected["cls_logits"], atol=1e-5)
    spans = found[:, 1:].reshape(-1, n, m, 4)
    likely = np.exp(spans[:, :, 0, 2]) > 1e-6
    np.testing.assert_allclose(
        np.exp(spans[:, :, 0, 2]), expected["start_top_log_probs"], atol=1e-5
    )
    np.testing.assert_array_equal(
        spans[:, :, 0, 0][likely], expected["start_top_index"].numpy()[likely]
    )
    ends = expected["end_top_log_probs"].numpy().reshape(-1, m, n).swapaxes(1, 2)
    np.testing.assert_allclose(np.exp(spans[..., 3])[likely], ends[likely], atol=1e-5)


def test_the_loss_of_the_beam_is_transformers(answerer):
    here, model, _ = answerer
    answers = [{"text": "cat", "answer_start": 4}, None, {"text": "bad film", "answer_start": 0}]
    x, y = here.preprocessor((QUESTIONS, CONTEXTS), answers)
    inputs, y = {name: values.numpy() for name, values in x.items()}, y.numpy().astype("int64")
    more = beam_inputs(inputs)
    labels = {"start_positions": y[:, 0], "end_positions": y[:, 1]}
    spans = float(there(model, inputs, **more, **labels)["loss"])
    # Its loss of "no answer" would read the answer's own first token, which tells the label. The
    # logits of its answers read the expected one, as XLNet's authors' code does in training too.
    logits = there(model, inputs, **more)["cls_logits"]
    impossible = torch.tensor((y[:, 0] == more["cls_index"]).astype("float32"))
    no_answer = torch.nn.functional.binary_cross_entropy_with_logits(logits, impossible)
    expected = spans + 0.5 * float(no_answer)
    loss = here.evaluate((QUESTIONS, CONTEXTS), answers, verbose=0, return_dict=True)["loss"]
    assert loss == pytest.approx(expected, rel=1e-5)


def test_answers_of_the_beam_are_those_of_the_usual_recipe(answerer):
    """As run_qa_beam_search.py of transformers' examples, but with logarithms added."""
    here, model, folder = answerer
    tokenizer = transformers.XLNetTokenizer.from_pretrained(folder)
    encoded = tokenizer(
        CONTEXTS,
        QUESTIONS,
        truncation="only_first",
        max_length=LENGTH,
        stride=STRIDE,
        padding=True,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
    )
    rows = [
        [token for token, real in zip(ids, mask, strict=True) if real]
        for ids, mask in zip(encoded["input_ids"], encoded["attention_mask"], strict=True)
    ]
    ours = here.preprocessor.encode((QUESTIONS, CONTEXTS))
    assert ours["token_ids"].to_list() == rows and len(rows) > 3
    names = {"input_ids": "token_ids", "attention_mask": "padding_mask"}
    inputs = {names.get(n, "segment_ids"): np.array(encoded[n]) for n in (*names, "token_type_ids")}
    sides = [encoded.sequence_ids(k) for k in range(len(rows))]
    length = len(sides[0])
    mask = [[s != 0 and i != length - 1 for i, s in enumerate(row)] for row in sides]
    outputs = there(model, inputs, p_mask=np.array(mask, "float32"))
    n, m = here.beam
    starts, firsts = (outputs[f"start_top_{x}"].numpy() for x in ("log_probs", "index"))
    ends, lasts = (
        outputs[f"end_top_{x}"].numpy().reshape(-1, m, n).swapaxes(1, 2)
        for x in ("log_probs", "index")
    )
    best, logits = {}, {}
    for k, sample in enumerate(encoded["overflow_to_sample_mapping"]):
        logits[sample] = min(logits.get(sample, np.inf), float(outputs["cls_logits"][k]))
        for i in range(n):
            for j in range(m):
                first, last = firsts[k, i], lasts[k, i, j]
                if sides[k][first] != 0 or sides[k][last] != 0 or not 0 <= last - first < 30:
                    continue
                score = np.log(starts[k, i]) + np.log(ends[k, i, j])
                if score > best.get(sample, (-1e9,))[0]:
                    offsets = encoded["offset_mapping"][k]
                    best[sample] = (score, offsets[first][0], offsets[last][1])
    found = here.answer(QUESTIONS, CONTEXTS)
    assert [(a["start"], a["end"]) for a in found] == [best[i][1:] for i in range(3)]
    for i, logit in logits.items():
        texts = [
            here.answer(QUESTIONS[i], CONTEXTS[i], null_threshold=logit + shift)["text"]
            for shift in (-1e-3, 1e-3)
        ]
        assert texts[0] == "" and texts[1] != ""
