"""SpanQA with a beam, XLNet's head: transformers' numbers, the search, learning, saving."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from paths import CHECKPOINTS
from processes import printed

import encoder_zoo as ez
from encoder_zoo.common.lazy import use_numpy
from encoder_zoo.tasks.question_answering.span_qa import SpanQA

FAMILY = ez.XLNetBackbone.family
FOLDER = CHECKPOINTS / "XLNet_ForQuestionAnsweringBeam"
QUESTIONS = ["is it good?", "the dog?", "a cat"]
CONTEXTS = ["the cat sat on the mat .", "a dog ran under it and was not very good!", "bad film"]


@keras.saving.register_keras_serializable(package="tests")
class BeamQA(SpanQA):
    """With a beam, for the checks of `ez.testing`."""

    @classmethod
    def tiny_data(cls):
        return super().tiny_data()._replace(arguments={"beam": (3, 2)})


@pytest.fixture(scope="module")
def model():
    """For tests that do not train."""
    return ez.SpanQA.from_preset(FOLDER)


def outputs_of(model, inputs: dict) -> np.ndarray:
    return ops.convert_to_numpy(model(inputs))


def spans_of(outputs: np.ndarray, beam: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """First tokens and their scores (B, n), last tokens and theirs (B, n, m)."""
    spans = outputs[:, 1:].reshape(len(outputs), *beam, 4)
    return spans[:, :, 0, 0], spans[:, :, 0, 2], spans[..., 1], spans[..., 3]


# -- transformers' numbers ---------------------------------------------------------------------


def test_the_outputs_are_those_of_transformers(golden, caplog):
    stored = golden(FOLDER.name)
    model = ez.SpanQA.from_preset(stored.folder)
    assert caplog.records == []  # the head was taken over: nothing to report
    assert model.beam == (4, 3)
    outputs, expected = outputs_of(model, stored.inputs), stored.expected
    np.testing.assert_allclose(outputs[:, 0, 2], expected["cls_logits"], atol=1e-5)
    first, start, last, end = spans_of(outputs, model.beam)
    # They are probabilities there, in spite of their names.
    np.testing.assert_allclose(np.exp(start), expected["start_top_log_probs"], atol=1e-5)
    # The last tokens of a first one stand in a column there.
    ends, lasts = (
        expected[name].reshape(-1, 3, 4).swapaxes(1, 2)
        for name in ("end_top_log_probs", "end_top_index")
    )
    found = np.exp(start) > 1e-4  # of a text with one token, the others are any
    assert found.sum() > 8
    np.testing.assert_array_equal(first[found], expected["start_top_index"][found])
    np.testing.assert_allclose(np.exp(end)[found], ends[found], atol=1e-5)
    sure = found[..., None] & (ends > 1e-4)
    np.testing.assert_array_equal(last[sure], lasts[sure])


@pytest.mark.matrix
@pytest.mark.slow
def test_last_tokens_are_found_as_they_are_learned(model):
    """The same probabilities after a given first token as after one that was found."""
    inputs = {n: v.numpy() for n, v in model.preprocessor((QUESTIONS, CONTEXTS)).items()}
    first, start, last, end = spans_of(outputs_of(model, inputs), model.beam)
    for i in range(model.beam[0]):
        begin = first[:, i : i + 1].astype("int32")
        learned = outputs_of(model, {**inputs, "answer_start": begin})
        assert learned.shape == (3, 3, inputs["token_ids"].shape[1])
        rows = np.arange(3)
        np.testing.assert_allclose(learned[rows, 0, begin[:, 0]], start[:, i], atol=1e-5)
        for j in range(model.beam[1]):
            there = learned[rows, 1, last[:, i, j].astype(int)]
            np.testing.assert_allclose(there, end[:, i, j], atol=1e-5)
        sums = np.exp(learned[:, :2]).sum(axis=2)
        np.testing.assert_allclose(sums, np.ones_like(sums), atol=1e-5)


@pytest.mark.slow
def test_only_contexts_and_the_start_token_are_likely(model):
    x = model.preprocessor((QUESTIONS, CONTEXTS))
    tokenizer = model.preprocessor.tokenizer
    lengths = [len(tokenizer.tokenize(text).numpy()) for text in CONTEXTS]
    ids, mask = x["token_ids"].numpy(), x["answer_mask"].numpy()
    for row, real, length in zip(mask, x["padding_mask"].numpy(), lengths, strict=True):
        assert np.flatnonzero(row).tolist() == [*range(length), real.sum() - 1]
    assert (ids[mask] == tokenizer.token_to_id("<cls>")).sum() == 3
    learned = outputs_of(model, {**x, "answer_start": np.zeros((3, 1), "int32")})
    assert (np.exp(learned[:, :2])[~np.repeat(mask[:, None], 2, axis=1)] == 0).all()


@pytest.mark.slow
def test_no_answer_is_learned_without_sight_of_the_label(model):
    """Its logit is that of answers, whatever first token the answer has."""
    inputs = {n: v.numpy() for n, v in model.preprocessor((QUESTIONS, CONTEXTS)).items()}
    expected = outputs_of(model, inputs)[:, 0, 2]
    for position in (0, 1, inputs["token_ids"].shape[1] - 1):
        start = np.full((3, 1), position, "int32")
        learned = outputs_of(model, {**inputs, "answer_start": start})[:, 2]
        np.testing.assert_allclose(
            learned, np.repeat(expected[:, None], learned.shape[1], 1), atol=1e-5
        )


@pytest.mark.slow
def test_the_loss_adds_half_that_of_no_answer(model):
    answers = [{"text": "cat", "answer_start": 4}, None, {"text": "bad film", "answer_start": 0}]
    x, y = model.preprocessor((QUESTIONS, CONTEXTS), answers)
    np.testing.assert_array_equal(x["answer_start"], y[:, :1])
    learned, y = outputs_of(model, x), y.numpy()
    rows = np.arange(3)
    bounds = -(learned[rows, 0, y[:, 0]] + learned[rows, 1, y[:, 1]]) / 2
    logit, none = learned[:, 2, 0], np.array([0, 1, 0])
    no_answer = np.logaddexp(0, logit) - none * logit
    expected = (bounds + 0.5 * no_answer).mean()
    loss = model.evaluate((QUESTIONS, CONTEXTS), answers, verbose=0, return_dict=True)["loss"]
    assert loss == pytest.approx(expected, rel=1e-5)
    weights = np.array([1.0, 0.0, 2.0])
    loss = model.evaluate((QUESTIONS, CONTEXTS), answers, sample_weight=weights, verbose=0)[0]
    assert loss == pytest.approx(((bounds + 0.5 * no_answer) * weights).mean(), rel=1e-5)


# -- answers -----------------------------------------------------------------------------------


def candidates(model, question: str, context: str, longest: int = 30) -> tuple[dict, float]:
    """{(start, end): score} of all spans in all windows, and the lowest logit of no answer."""
    preprocessor = model.preprocessor
    encoded = preprocessor.tokenize_contexts(tf.constant([question]), tf.constant([context]))
    found, logits = {}, []
    [windows] = model.predict(([question], [context]))
    starts, ends = encoded.starts[0].numpy(), encoded.ends[0].numpy()
    begins, counts = encoded.windows.begin.numpy(), encoded.windows.length.numpy()
    for rows, begin, count in zip(windows, begins, counts, strict=True):
        logits.append(rows[0, 2])
        for first, last, start, end in rows[1:]:
            i, j = int(first), int(last)
            if i <= j < min(count, i + longest) and ends[begin + j] > starts[begin + j]:
                span = int(starts[begin + i]), int(ends[begin + j])
                found[span] = max(found.get(span, -np.inf), start + end)
    return found, min(logits)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"window_length": 18, "doc_stride": 4}])
def test_answers_are_the_best_of_the_beam(settings):
    model = ez.SpanQA.from_preset(FOLDER, **settings)
    long = " ".join(CONTEXTS)
    for question, context in zip(QUESTIONS, [*CONTEXTS[:2], long], strict=True):
        spans, logit = candidates(model, question, context)
        best = sorted(spans, key=spans.get, reverse=True)
        answers = model.answer(question, context, top_k=4)
        assert [(a["start"], a["end"]) for a in answers] == best[:4]
        assert all(a["text"] == context[a["start"] : a["end"]] for a in answers)
        threshold = float(logit)
        nothing = model.answer(question, context, null_threshold=threshold - 1e-3)
        assert (nothing["text"], nothing["end"]) == ("", 0)
        something = model.answer(question, context, null_threshold=threshold + 1e-3)
        assert (something["start"], something["end"]) == best[0]
    assert len(model.predict(([QUESTIONS[0]], [long]))[0]) == (4 if settings else 2)


@pytest.mark.slow
def test_scores_are_shares_of_the_spans_of_the_beam(model):
    found = model.answer(QUESTIONS[0], CONTEXTS[1], top_k=12)
    assert 1 < len(found) <= 12
    assert sum(a["score"] for a in found) == pytest.approx(1.0, abs=1e-5)
    with_null = model.answer(QUESTIONS[0], CONTEXTS[1], top_k=13, null_threshold=0.0)
    assert len(with_null) == len(found) + 1
    assert sum(a["score"] for a in with_null) == pytest.approx(1.0, abs=1e-5)
    _, logit = candidates(model, QUESTIONS[0], CONTEXTS[1])
    [null] = [a["score"] for a in with_null if not a["text"]]
    best = max(a["score"] for a in with_null if a["text"])
    assert null / best == pytest.approx(np.exp(logit), rel=1e-4)


@pytest.mark.slow
def test_of_several_passages_the_likeliest(model):
    found = model.answer(QUESTIONS[0], CONTEXTS, top_k=3)
    with use_numpy():  # the operations of JAX and PyTorch
        again = model.answer(QUESTIONS[0], CONTEXTS, top_k=3)
    assert [a["start"] for a in again] == [a["start"] for a in found]
    assert [a["score"] for a in again] == pytest.approx([a["score"] for a in found], rel=1e-4)
    parts = [candidates(model, QUESTIONS[0], context) for context in CONTEXTS]
    every = {
        (i, *span): score for i, (spans, _) in enumerate(parts) for span, score in spans.items()
    }
    best = sorted(every, key=every.get, reverse=True)
    assert [(a["passage"], a["start"], a["end"]) for a in found] == best[:3]
    logit = float(min(logit for _, logit in parts))
    nothing = model.answer(QUESTIONS[0], CONTEXTS, null_threshold=logit - 1e-3)
    assert (nothing["text"], nothing["passage"]) == ("", None)
    something = model.answer(QUESTIONS[0], CONTEXTS, null_threshold=logit + 1e-3)
    assert something["passage"] == best[0][0]


@pytest.mark.slow
def test_without_a_span_in_the_context_there_is_no_answer(monkeypatch):
    model = ez.SpanQA.from_preset(FOLDER, beam=(1, 1))
    model.head.start_dense.bias.assign([0.0])

    def only_no_answer(x, no_answer_vector, mask, answer_start=None):
        length = ops.shape(x)[1]
        last = ops.sum(ops.cast(mask, "int32"), axis=1) * 0 + length - 1
        zeros = ops.zeros_like(ops.cast(last, "float32"))
        place = ops.cast(last, "float32")
        rows = [ops.stack([zeros] * 4, axis=1), ops.stack([place, place, zeros, zeros], axis=1)]
        return ops.stack(rows, axis=1)

    monkeypatch.setattr(model.head, "call", only_no_answer)
    expected = {"text": "", "start": 0, "end": 0, "score": 0.0}
    assert model.answer(QUESTIONS[0], CONTEXTS[0]) == expected
    assert model.answer(QUESTIONS[0], CONTEXTS, top_k=2) == [{**expected, "passage": None}]


@pytest.mark.slow
def test_exact_match_and_the_threshold_of_no_answer(model):
    examples = [
        {"question": q, "context": c, "answers": [{"text": c[:3].strip(), "answer_start": 0}]}
        for q, c in zip(QUESTIONS, CONTEXTS, strict=True)
    ]
    examples[1]["answers"] = []
    logits = [float(candidates(model, q, c)[1]) for q, c in zip(QUESTIONS, CONTEXTS, strict=True)]
    scores = model.evaluate_answers(examples, null_threshold=max(logits) + 1)
    assert scores["NoAns_exact_match"] == 0.0
    assert model.evaluate_answers(examples, null_threshold=min(logits) - 1)["HasAns_f1"] == 0.0
    scores = model.evaluate_answers(examples)
    assert min(logits) - 1 <= scores["best_f1_thresh"] <= max(0.0, *logits) + 1e-4
    model.null_threshold = None


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"null_threshold": 0.0}])
def test_an_export_answers_alike(model, tmp_path, options):
    model.export(tmp_path / "1", **options)
    served = tf.saved_model.load(str(tmp_path / "1")).signatures
    questions, contexts = [*QUESTIONS, "why"], [*CONTEXTS, ""]
    found = served["serving_default"](
        question=tf.constant(questions), context=tf.constant(contexts)
    )
    expected = model.answer(QUESTIONS, CONTEXTS, **options)
    for name in ("start", "end"):
        assert found[name].numpy()[:3].tolist() == [a[name] for a in expected]
    np.testing.assert_allclose(found["score"][:3], [a["score"] for a in expected], atol=1e-5)
    assert (found["text"].numpy()[3], found["end"].numpy()[3]) == (b"", 0)
    x = model.preprocessor((QUESTIONS, CONTEXTS))
    given = {name: tf.cast(values, tf.int32) for name, values in x.items()}
    np.testing.assert_allclose(served["ids"](**given)["logits"], outputs_of(model, x), atol=1e-5)


@pytest.mark.matrix
@pytest.mark.slow
def test_litert_answers_alike(model):
    pytest.importorskip("ai_edge_litert")
    fast = model.for_cpu("float32")
    found, expected = fast.answer(QUESTIONS, CONTEXTS), model.answer(QUESTIONS, CONTEXTS)
    assert [a["text"] for a in found] == [a["text"] for a in expected]
    x = model.preprocessor((QUESTIONS, CONTEXTS))
    np.testing.assert_allclose(outputs_of(fast, x), outputs_of(model, x), atol=1e-4)
    # LiteRT has no input for the answers' first tokens: these are not computed by it.
    answers = [{"text": c[:3].strip(), "answer_start": 0} for c in CONTEXTS]
    found, expected = (m.evaluate((QUESTIONS, CONTEXTS), answers, verbose=0) for m in (fast, model))
    assert found == pytest.approx(expected, rel=1e-5)
    found, expected = (m.explain(QUESTIONS[0], CONTEXTS[0]) for m in (fast, model))
    for one, two in zip(found["words"], expected["words"], strict=True):
        assert one["attribution"] == pytest.approx(two["attribution"], abs=1e-4)


@pytest.mark.slow
def test_explanations_are_of_the_answers_tokens(model):
    found = model.explain(QUESTIONS[0], CONTEXTS[0])
    answer = model.answer(QUESTIONS[0], CONTEXTS[0])
    assert {name: found[name] for name in answer} == answer
    spans, logit = candidates(model, QUESTIONS[0], CONTEXTS[0])
    assert found["logit"] == pytest.approx(spans[answer["start"], answer["end"]], abs=1e-4)
    added = sum(word["attribution"] for word in found["words"])
    assert added == pytest.approx(found["logit"] - found["baseline"], abs=0.05)
    assert [w["text"] for w in found["words"] if w["part"] == 0] == ["is", "it", "good?"]
    assert "".join(w["text"] for w in found["words"] if w["part"]) == CONTEXTS[0].replace(" ", "")
    nothing = model.explain(QUESTIONS[0], CONTEXTS[0], null_threshold=float("-inf"))
    assert nothing["text"] == "" and nothing["logit"] == pytest.approx(logit, abs=1e-5)


# -- as other tasks ----------------------------------------------------------------------------

# Positions are among the outputs, which bfloat16 may order otherwise; a subclass has no name.
LEFT_OUT = ("mixed precision", "is registered")
CHECKS = [
    pytest.param(check, id=name, marks=pytest.mark.slow if "export" in name else [])
    for name, check in ez.testing.task_checks(BeamQA, [FAMILY])
    if not any(words in name for words in LEFT_OUT)
]


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_what_all_tasks_do(check):
    check()


@pytest.mark.slow
@pytest.mark.eager
def test_bfloat16_is_close(model):
    mixed = ez.SpanQA.from_preset(FOLDER, dtype="mixed_bfloat16")
    x = model.preprocessor((QUESTIONS, CONTEXTS))
    given = {**x, "answer_start": np.array([[1], [2], [0]])}
    found, expected = outputs_of(mixed, given), outputs_of(model, given)
    assert found.dtype == "float32"
    real = expected > -1e8
    assert 0 < np.abs(found - expected)[real].mean() < 0.25 * expected[real].std()


@pytest.mark.slow
@pytest.mark.matrix
def test_texts_of_fewer_tokens_than_the_beam_is_wide(tiny):
    backbone, tokenizer = tiny.backbone(FAMILY), tiny.tokenizer(FAMILY)
    model = ez.SpanQA(backbone, ez.SpanQAPreprocessor(tokenizer), beam=(20, 20))
    spans, _ = candidates(model, "a", "b")
    assert len(spans) == 1
    assert model.answer("a", "b")["text"] == "b"


@pytest.mark.slow
@pytest.mark.matrix
def test_it_is_saved_as_transformers_class(model, tmp_path, caplog):
    model.save_to_preset(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["XLNetForQuestionAnswering"]
    assert (config["start_n_top"], config["end_n_top"]) == (4, 3)
    assert "XLNetForQuestionAnswering.from_pretrained" in (tmp_path / "README.md").read_text()
    again = ez.SpanQA.from_preset(tmp_path)
    assert again.beam == (4, 3) and caplog.records == []
    x = model.preprocessor((QUESTIONS, CONTEXTS))
    np.testing.assert_array_equal(outputs_of(again, x), outputs_of(model, x))
    wider = ez.SpanQA.from_preset(tmp_path, beam=[5, 5])
    assert outputs_of(wider, x).shape == (3, 26, 4) and caplog.records == []
    simple = ez.SpanQA.from_preset(tmp_path, beam=None)
    assert "head of SpanQA" in caplog.text
    assert simple.predict((QUESTIONS, CONTEXTS))[0][0].shape[0] == 2


@pytest.mark.parametrize("name", ["start_n_top", "end_n_top"])
def test_a_beam_of_an_untrusted_file_is_bounded(model, tmp_path, name):
    model.save_to_preset(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, name: 10**9}))
    with pytest.raises(ValueError, match=rf"config\.json: {name} is 1000000000"):
        ez.SpanQA.from_preset(tmp_path, verify=False)


@pytest.mark.slow
def test_refusals(tiny, model):
    bert = ez.BertBackbone.family
    with pytest.raises(ValueError, match="'bert' does not support.*beam"):
        ez.SpanQA(tiny.backbone(bert, pooler=False), beam=(5, 5))
    with pytest.raises(ValueError, match="beam is 5"):
        ez.SpanQA(tiny.backbone(FAMILY), beam=5)
    with pytest.raises(ValueError, match=r"beam is \(5, 101\)"):
        ez.SpanQA(tiny.backbone(FAMILY), beam=(5, 101))
    preprocessor = ez.SpanQAPreprocessor(tiny.tokenizer(bert))
    with pytest.raises(ValueError, match="BertTokenizer"):
        ez.SpanQA(tiny.backbone(FAMILY), preprocessor, beam=(5, 5))
    rows = {"token_ids": np.array([[7, 8, 9, 4, 3]]), "padding_mask": np.ones((1, 5), "int32")}
    with pytest.raises(ValueError, match="answer_start"):
        ez.SpanQA(tiny.backbone(FAMILY), beam=(2, 2)).evaluate(rows, np.array([[0, 1]]), verbose=0)


# -- learning ----------------------------------------------------------------------------------

NAMES, PLACES = ["anna", "ben", "carl", "dora"], ["rome", "paris", "oslo", "kyoto"]
EXAMPLES = [
    {
        "question": question,
        "context": f"{name} lives in {place}",
        "answers": [{"text": text, "answer_start": f"{name} lives in {place}".index(text)}],
    }
    for name in NAMES
    for place in PLACES
    for question, text in (("who is there", name), ("where is it", place))
]
IMPOSSIBLE = {"question": "who is there", "context": "rome lives in oslo", "answers": []}


@pytest.mark.matrix
@pytest.mark.slow
def test_it_learns_answers_and_that_there_is_none():
    words = [*NAMES, *PLACES, "who", "where", "is", "it", "there", "lives", "in"]
    special = ["<unk>", "<cls>", "<sep>", "<pad>", "<mask>"]
    tokens = [*special, "▁", *(f"▁{word}" for word in words)]
    scores = [*[None] * 5, -9.0, *[-1.0] * len(words)]
    tokenizer = ez.XLNetTokenizer(tokens, scores)
    keras.utils.set_random_seed(0)
    backbone = ez.XLNetBackbone(
        len(tokens), num_layers=2, num_heads=2, hidden_dim=32, intermediate_dim=64, dropout=0.0
    )
    model = ez.SpanQA(backbone, ez.SpanQAPreprocessor(tokenizer), beam=(3, 2))
    model.compile(learning_rate=2e-3)
    model.fit([*EXAMPLES, *[IMPOSSIBLE] * 4] * 12, epochs=8, batch_size=8, verbose=0)
    answer = model.answer("where is it", "dora lives in kyoto", null_threshold=0.0)
    assert answer["text"] == "kyoto" and answer["score"] > 0.5
    nothing = model.answer("who is there", "rome lives in oslo", null_threshold=0.0)
    assert nothing["text"] == ""
    scores = model.evaluate_answers([*EXAMPLES, IMPOSSIBLE], null_threshold=0.0)
    assert (scores["HasAns_exact_match"], scores["NoAns_exact_match"]) == (100.0, 100.0)


SCRIPT = """
import json, sys
import encoder_zoo as ez

model = ez.SpanQA.from_preset(sys.argv[1], dropout=0.0)
questions, contexts = json.loads(sys.argv[2])
answers = [{"text": context[:3], "answer_start": 0} for context in contexts[:2]] + [None]
found = {"answers": model.answer(questions, contexts, null_threshold=0.0)}
found["words"] = model.explain(questions[0], contexts[0])["words"]
model.compile("sgd")
history = model.fit((questions, contexts), answers, epochs=3, batch_size=3, verbose=0)
print(json.dumps({**found, "losses": history.history["loss"]}))
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_answer_and_learn_alike(backend):
    arguments = str(FOLDER), json.dumps([QUESTIONS, CONTEXTS])
    outputs = [printed(SCRIPT, name, *arguments) for name in (backend, "tensorflow")]
    found, expected = (json.loads(output.splitlines()[-1]) for output in outputs)
    for one, two in zip(found["answers"], expected["answers"], strict=True):
        assert one.pop("score") == pytest.approx(two.pop("score"), abs=1e-5)
        assert one == two
    for one, two in zip(found["words"], expected["words"], strict=True):
        assert one["attribution"] == pytest.approx(two["attribution"], abs=1e-3)
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-4)
