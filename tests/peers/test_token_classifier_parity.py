"""extract_entities equal to transformers' pipeline, for each strategy and both families."""

import warnings

import numpy as np
import pytest

import encoder_zoo as ez

pytestmark = pytest.mark.peers
STRATEGIES = ["none", "simple", "first", "average", "max"]
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXTS = [
    "The cat sat on the mat, and the dog ran under it!",
    "Barack Obama visited Thessaloniki and Reykjavík in 2009.",
    "the film was good, not very bad",
    "Dr. Müller-Lüdenscheidt (Zürich) said: 'naïveté isn't it?' 🙂 ok",
    "cat",
    "the the  the   cat",
]


def transformers_entities(folder, strategy, texts):
    import transformers

    pipe = transformers.pipeline(
        "token-classification",
        model=transformers.AutoModelForTokenClassification.from_pretrained(folder),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
        aggregation_strategy=strategy,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that RoBERTa does not know words
        answers = [pipe(text) for text in texts]
    key = "entity" if strategy == "none" else "entity_group"
    return [[(a[key], a["start"], a["end"], float(a["score"])) for a in row] for row in answers]


def assert_same(classifier, folder, strategy, texts):
    expected = transformers_entities(folder, strategy, texts)
    found = classifier.extract_entities(texts, strategy)
    assert sum(map(len, expected)) > 5
    for text, ours, theirs in zip(texts, found, expected, strict=True):
        assert [(e["label"], e["start"], e["end"]) for e in ours] == [t[:3] for t in theirs], text
        assert [e["text"] for e in ours] == [text[start:end] for _, start, end, _ in theirs]
        np.testing.assert_allclose([e["score"] for e in ours], [t[3] for t in theirs], atol=1e-5)


@pytest.fixture(scope="module")
def minilm_tagger(minilm, tmp_path_factory):
    """A real backbone with a random head that is sure of itself, saved as a preset."""
    rng = np.random.default_rng(0)
    classifier = ez.TokenClassifier.from_preset(minilm, labels=LABELS)
    classifier.head.output_dense.kernel.assign(rng.normal(size=(384, 5)))
    folder = tmp_path_factory.mktemp("minilm") / "tagger"
    classifier.save_to_preset(folder)
    return classifier, folder


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bert(minilm_tagger, strategy):
    assert_same(*minilm_tagger, strategy, TEXTS)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_roberta(golden, strategy):
    folder = golden("Roberta_ForTokenClassification").folder
    texts = [text[:25] for text in TEXTS]  # at most 32 tokens
    assert_same(ez.TokenClassifier.from_preset(folder), folder, strategy, texts)


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_loss_of_words_with_tags_equals_that_of_transformers(golden, family):
    import torch
    import transformers

    folder = golden(f"{family}_ForTokenClassification").folder
    classifier = ez.TokenClassifier.from_preset(folder)
    words = [["the", "catss", "ran"], ["it", "was", "not", "bad", "."]]
    tags = [["O", "B-PER", "I-PER"], ["O", "B-PER", "O", "O", "O"]]
    loss = classifier.evaluate(words, tags, verbose=0)[0]

    inputs, y, weights = classifier.preprocessor(words, tags)
    labels = np.where(weights.numpy() > 0, y.numpy(), -100)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = model(
            input_ids=torch.tensor(inputs["token_ids"].numpy()),
            attention_mask=torch.tensor(inputs["padding_mask"].numpy().astype("int64")),
            labels=torch.tensor(labels, dtype=torch.int64),
        ).loss
    assert loss == pytest.approx(float(expected), rel=1e-4)


def test_alignment_of_conll_equals_the_usual_recipe(minilm, data):
    """The same labelled pieces as with transformers' word_ids, on real sentences."""
    import transformers

    blocks = (data / "ner/wnut17/dev.conll").read_text(encoding="utf-8").split("\n\n")
    rows = [[line.split("\t") for line in b.split("\n") if line] for b in blocks if b][:400]
    words, tags = ([[r[i] for r in row] for row in rows] for i in (0, 1))
    classifier = ez.TokenClassifier.from_preset(minilm, labels=sorted({t for r in tags for t in r}))
    inputs, y, weights = (np.asarray(a) for a in _columns(classifier.preprocessor(words, tags)))

    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    encoded = tokenizer(words, is_split_into_words=True, padding=True, truncation=False)
    for i, row in enumerate(tags):
        assert inputs[i][: len(encoded["input_ids"][i])].tolist() == encoded["input_ids"][i]
        before = None
        for j, word in enumerate(encoded.word_ids(i)):
            first = word is not None and word != before
            assert bool(weights[i, j]) == first
            if first:
                assert classifier.labels[y[i, j]] == row[word]
            before = word


def _columns(batch):
    x, y, weights = batch
    return x["token_ids"], y, weights
