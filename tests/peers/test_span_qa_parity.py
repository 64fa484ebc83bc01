"""SpanQA's windows, labels, loss and answers against transformers, written by its usual recipe."""

import numpy as np
import pytest

import encoder_zoo as ez

pytestmark = pytest.mark.peers
LENGTH, STRIDE = 128, 32


@pytest.fixture(scope="module")
def examples(data):
    """Questions of which half has contexts longer than a window."""
    return ez.read_squad(data / "qa/squad/dev.json")[:1334:12]


@pytest.fixture(scope="module")
def answerer(minilm, tmp_path_factory):
    """A real backbone with a random head, saved as a preset."""
    rng = np.random.default_rng(0)
    model = ez.SpanQA.from_preset(minilm, sequence_length=LENGTH, doc_stride=STRIDE)
    model.head.output_dense.kernel.assign(rng.normal(size=(384, 2)))
    folder = tmp_path_factory.mktemp("minilm") / "answerer"
    model.save_to_preset(folder)
    return model, folder


@pytest.fixture(scope="module")
def encoded(answerer, examples):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(answerer[1])(
        [e["question"].strip() for e in examples],
        [e["context"] for e in examples],
        truncation="only_second",
        max_length=LENGTH,
        stride=STRIDE,
        padding="max_length",
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )


def test_windows_and_labels_equal_those_of_the_usual_recipe(answerer, examples, encoded):
    inputs, y = answerer[0].preprocessor(examples)
    np.testing.assert_array_equal(inputs["token_ids"], encoded["input_ids"])
    np.testing.assert_array_equal(inputs["segment_ids"], encoded["token_type_ids"])
    answered = 0
    for k, sample in enumerate(encoded["overflow_to_sample_mapping"]):
        offsets, segments = encoded["offset_mapping"][k], encoded.sequence_ids(k)
        answer = examples[sample]["answers"][0]
        begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        inside = [j for j, s in enumerate(segments) if s == 1]
        expected = [0, 0]
        if offsets[inside[0]][0] <= begin and offsets[inside[-1]][1] >= end:
            expected = [
                max(j for j in inside if offsets[j][0] <= begin),
                min(j for j in inside if offsets[j][1] >= end),
            ]
            answered += 1
        assert y[k].numpy().tolist() == expected
    assert len(examples) <= answered < len(encoded["input_ids"])


def test_loss_and_answers_equal_those_of_transformers(answerer, examples, encoded):
    import torch
    import transformers

    model, folder = answerer
    peer = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    names = ("input_ids", "token_type_ids", "attention_mask")
    with torch.inference_mode():
        outputs = peer(**{name: torch.tensor(encoded[name]) for name in names})
    starts, ends = outputs.start_logits.numpy(), outputs.end_logits.numpy()

    _, y = model.preprocessor(examples)
    mask = np.array(encoded["attention_mask"], bool)
    losses = [
        np.logaddexp.reduce(np.where(mask, logits, -np.inf), axis=1)
        - np.take_along_axis(logits, column[:, None].astype(int), axis=1)[:, 0]
        for logits, column in ((starts, y.numpy()[:, 0]), (ends, y.numpy()[:, 1]))
    ]
    loss = model.evaluate(examples, verbose=0)[0]
    assert loss == pytest.approx(np.mean(losses), rel=1e-4)

    best = {}
    for k, sample in enumerate(encoded["overflow_to_sample_mapping"]):
        inside = [j for j, s in enumerate(encoded.sequence_ids(k)) if s == 1]
        for i in inside:
            for j in inside:
                score = starts[k, i] + ends[k, j]
                if i <= j < i + 30 and score > best.get(sample, (-1e9,))[0]:
                    offsets = encoded["offset_mapping"][k]
                    best[sample] = (score, offsets[i][0], offsets[j][1])
    found = model.answer([e["question"] for e in examples], [e["context"] for e in examples])
    assert [(a["start"], a["end"]) for a in found] == [best[i][1:] for i in range(len(examples))]
