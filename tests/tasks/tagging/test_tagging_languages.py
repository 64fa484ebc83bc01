"""What `fit` learns, `evaluate` measures and `extract_entities` answers is one thing.

An encoder with random weights tells every token of sixteen sentences apart. So the head is solved
for, which is a training in no time.
"""

import functools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from tagging_languages import LANGUAGES, with_spans, with_tags

import encoder_zoo as ez

Preprocessor = ez.TokenClassifierPreprocessor
WIDTH = 256
IOB2 = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
SCHEMES = {
    "IOB2": IOB2,
    "IOBES": ["O", *(f"{letter}-{kind}" for kind in ("LOC", "PER") for letter in "BIES")],
    "BILOU": ["O", *(f"{letter}-{kind}" for kind in ("LOC", "PER") for letter in "BILU")],
    "IO": ["O", "I-LOC", "I-PER"],
    "types": ["O", "LOC", "PER"],
}
# The other schemes are slow. `.ci/run` always runs the second.
MARKS = {("IOB2", True): [], ("IOBES", False): [pytest.mark.slow(every=True)]}
STRATEGIES = ["simple", "first", "average", "max", "none"]


@functools.cache
def vocabulary(family: str):
    """Words of all languages; not so many that names and their endings are one token."""
    texts = [text for language in LANGUAGES for text in with_spans(language)[0]]
    options = {"character_coverage": 1.0} if family == "xlm-roberta" else {}
    # The parts of the sentences, each by itself: no token is of two of them.
    parts = [word for language in LANGUAGES for row in with_tags(language)[0] for word in row]
    size = {"bert": 800, "roberta": 500, "xlm-roberta": 700}[family]
    return ez.train_vocabulary(parts * 3 + texts, size, family, **options)


@functools.cache
def encoder(family: str, length: int = 128):
    vocabulary_size = vocabulary(family).vocabulary_size
    backbone = ez.BertBackbone(
        vocabulary_size,
        num_layers=1,
        num_heads=4,
        hidden_dim=WIDTH,
        intermediate_dim=32,
        dropout=0.0,
        attention_dropout=0.0,
        max_sequence_length=length,
        pooler=False,
    )
    draw = np.random.default_rng(0)
    for weight in backbone.weights:
        if len(weight.shape) == 2:
            scale = 0.1 if weight.path.endswith("kernel") else 1.0
            weight.assign(scale * draw.standard_normal(weight.shape))
    return backbone


def classifier(family: str, length: int = 128, doc_stride=None, label_all_tokens=False, **settings):
    preprocessor = Preprocessor(
        vocabulary(family), doc_stride=doc_stride, label_all_tokens=label_all_tokens
    )
    settings = {"labels": IOB2, **settings}
    return ez.TokenClassifier(encoder(family, length), preprocessor, **settings)


def learn(model, x, y, noise: float = 0.0) -> None:
    """Give the head the weights that have the labels as its answers, with some noise."""
    model.fit(x, y, epochs=0, verbose=0)  # sets how the model answers
    inputs, labels, weights = model.preprocessor(x, y)
    inputs = {name: np.asarray(values) for name, values in inputs.items()}
    vectors = keras.ops.convert_to_numpy(model.backbone(inputs)["sequence_output"])
    known = np.asarray(weights) > 0
    vectors = np.pad(vectors[known], [(0, 0), (0, 1)], constant_values=1.0)
    targets = np.eye(model.num_classes)[np.asarray(labels)[known]] * 20 - 10
    solved = np.linalg.lstsq(vectors.astype("float64"), targets, rcond=1e-6)[0]
    solved += noise * np.random.default_rng(1).standard_normal(solved.shape)
    for weight in model.head.weights:
        if tuple(weight.shape) == (WIDTH, model.num_classes):
            weight.assign(solved[:-1])
        elif tuple(weight.shape) == (model.num_classes,):
            weight.assign(solved[-1])


def found_by(model, x, **options) -> list[set]:
    rows = model.extract_entities(x, **options)
    return [{(e["label"], e["start"], e["end"]) for e in row} for row in rows]


def scores(model, x, y) -> tuple[float, float]:
    measured = model.evaluate(x, y, return_dict=True, verbose=0)["f1"]
    return measured, model.evaluate_entities(x, y)["f1"]


def expected_words(words, tags) -> list[set]:
    """The entities of words with a space between them, counted by hand."""
    found = []
    for row, row_tags in zip(words, tags, strict=True):
        entities, begin = [], 0
        for word, tag in zip(row, row_tags, strict=True):
            end = begin + len(word)
            if tag.startswith("B-"):
                entities.append([tag[2:], begin, end])
            elif tag.startswith("I-"):
                entities[-1][2] = end
            begin = end + 1
        found.append({tuple(entity) for entity in entities})
    return found


SOME = ["german", "thai"]  # with and without spaces between words
ALL = pytest.param(LANGUAGES, marks=pytest.mark.slow, id="all")


@pytest.mark.slow(except_for="^bert-some")
@pytest.mark.parametrize("languages", [pytest.param(SOME, id="some"), ALL])
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_what_is_learned_is_measured_and_answered(family, languages, caplog):
    """Spans and words: all sixteen sentences, unless a token has two labels."""
    model, exact = classifier(family), 0
    for language in languages:
        for x, y, expected in (
            (*with_spans(language), None),
            (*with_tags(language), expected_words(*with_tags(language))),
        ):
            # Another training of the same model, as if it were the first.
            model.strategy = model.valid_tags = None
            model.preprocessor.label_all_tokens = False
            caplog.clear()
            learn(model, x, y)
            measured, judged = scores(model, x, y)
            if expected is None:
                expected = [{(e["label"], e["start"], e["end"]) for e in row} for row in y]
            right = [a == b for a, b in zip(found_by(model, x), expected, strict=True)]
            assert measured == pytest.approx(judged, abs=1e-6), language
            if "inside a token" in caplog.text:  # said before the training
                assert judged < 1 and not all(right), language
                continue
            exact += 1
            assert judged == 1.0 and all(right), (language, x[right.index(False)])
    assert exact >= len(languages)  # words are never inside of a token


@pytest.mark.parametrize(
    ("scheme", "crf"),
    [
        pytest.param(scheme, crf, marks=MARKS.get((scheme, crf), [pytest.mark.slow]))
        for scheme in SCHEMES
        for crf in (False, True)
    ],
)
def test_every_scheme_and_strategy(scheme, crf):
    x, y = with_spans("english")
    model = classifier("bert", label_all_tokens=True, labels=SCHEMES[scheme], crf=crf)
    learn(model, x, y)
    expected = [{(e["label"], e["start"], e["end"]) for e in row} for row in y]
    for strategy in STRATEGIES:
        model.strategy = strategy
        assert scores(model, x, y) == (1.0, 1.0), strategy
        if strategy != "none":
            assert found_by(model, x) == expected, strategy
    assert set(model.tune_thresholds(x, y)) == {"LOC", "PER"}
    assert scores(model, x, y) == (1.0, 1.0)
    model.temperature, model.thresholds = 10.0, {"LOC": 1.0, "PER": 0.0}  # of types also here
    assert {label[-3:] for row in found_by(model, x) for label, *_ in row} == {"PER"}


@pytest.mark.eager
@pytest.mark.slow(except_for="-5")
@pytest.mark.parametrize("doc_stride", [0, 5])
@pytest.mark.parametrize("kind", ["spans", "words"])
def test_long_texts(kind, doc_stride):
    if kind == "words":
        x, y = ([[value for row in rows for value in row]] for rows in with_tags("english"))
    else:
        texts, rows = with_spans("english")
        spans, begin = [], 0
        for text, row in zip(texts, rows, strict=True):
            spans += [{**e, "start": e["start"] + begin, "end": e["end"] + begin} for e in row]
            begin += len(text) + 1
        x, y = ["\n".join(texts)], [spans]
    model = classifier("bert", length=24, doc_stride=doc_stride)
    learn(model, x, y)
    assert scores(model, x, y) == (1.0, 1.0)


@pytest.mark.eager
@pytest.mark.slow(except_for="^spans-True-True|^words-False-False")
@pytest.mark.parametrize("crf", [False, True])
@pytest.mark.parametrize("valid_tags", [False, True])
@pytest.mark.parametrize("kind", ["spans", "words"])
def test_a_model_that_errs_has_one_score(kind, valid_tags, crf):
    x, y = with_spans("arabic") if kind == "spans" else with_tags("german")
    model = classifier("bert", valid_tags=valid_tags, crf=crf)
    learn(model, x, y, noise=4.0)
    if crf:
        draw = np.random.default_rng(2)
        for weight in model.transitions.weights:
            weight.assign(10 * draw.standard_normal(weight.shape))
    measured, judged = scores(model, x, y)
    assert 0.05 < measured < 0.99
    assert measured == pytest.approx(judged, abs=1e-6)


@pytest.mark.slow
def test_the_validation_of_fit_is_the_same():
    x, y = with_tags("german")
    model = classifier("bert", valid_tags=True)
    learn(model, x, y, noise=4.0)
    model.compile(optimizer=keras.optimizers.SGD(1e-12))
    history = model.fit(x, y, validation_data=(x, y), epochs=1, verbose=0).history
    measured, judged = scores(model, x, y)
    assert history["val_f1"][-1] == pytest.approx(measured, abs=1e-6)
    assert measured == pytest.approx(judged, abs=1e-6) and measured < 1


EDGES = ["Anna lives in Rome \u200bnow.", "Hi,\u00a0Zoë\n", "I \u2764\ufe0f Paris\ufe0f!", "Bob"]


@pytest.mark.slow(except_for="^bert")
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_blanks_at_the_edges_of_spans(family, caplog):
    selected = [
        [(0, 5, "PER"), (13, 20, "LOC")],
        [(3, 8, "PER")],
        [(1, 4, "LOC"), (4, 10, "LOC")],
        [(0, 3, "PER")],
    ]
    meant = [
        [(0, 4, "PER"), (14, 18, "LOC")],
        [(4, 7, "PER")],
        [(2, 4, "LOC"), (5, 11, "LOC")],
        [(0, 3, "PER")],
    ]
    model = classifier(family)
    learn(model, EDGES, selected)
    assert "5 of the spans" in caplog.text
    assert "example 0, 'Anna '" in caplog.text
    expected = [{(label, start, end) for start, end, label in row} for row in meant]
    assert found_by(model, EDGES) == expected
    assert scores(model, EDGES, selected) == scores(model, EDGES, meant) == (1.0, 1.0)
    assert model.tune_thresholds(EDGES, selected) == model.tune_thresholds(EDGES, meant)


@pytest.mark.slow
def test_the_resolution_is_chosen_before_the_training(caplog):
    caplog.set_level(logging.WARNING)
    x, y = with_spans("turkish")
    model = classifier("bert")
    learn(model, x, y)
    assert (model.strategy, model.preprocessor.label_all_tokens) == ("simple", True)
    assert "inside a word" in caplog.text
    caplog.clear()
    given = classifier("bert", strategy="first")
    learn(given, x, y)
    assert (given.strategy, given.preprocessor.label_all_tokens) == ("first", False)
    assert "cannot match" in caplog.text
    plain = classifier("bert")
    learn(plain, *with_spans("english"))
    assert (plain.strategy, plain.preprocessor.label_all_tokens) == ("first", False)


@pytest.mark.slow
def test_the_first_training_labels_the_tokens_that_its_answers_need(monkeypatch):
    x, y = with_spans("turkish")
    model, encode, labels_all = classifier("bert", strategy="simple"), Preprocessor.align_labels, []

    def labels_of(preprocessor, *args):
        labels_all.append(preprocessor.label_all_tokens)
        return encode(preprocessor, *args)

    monkeypatch.setattr(Preprocessor, "align_labels", labels_of)
    history = model.fit(x, y, validation_data=(x, y), verbose=0).history
    assert labels_all[-2:] == [True, True]
    found = model.evaluate(x, y, return_dict=True, verbose=0)
    assert history["val_loss"][0] == pytest.approx(found["loss"], rel=1e-5)


@pytest.mark.slow
def test_a_dataset_has_the_same_resolution():
    x, y = with_spans("turkish")
    columns = {
        name: tf.ragged.constant([[e[name] for e in row] for row in y])
        for name in ("start", "end", "label")
    }
    model = classifier("bert")
    model.fit(tf.data.Dataset.from_tensor_slices((x, columns)), epochs=1, verbose=0)
    assert (model.strategy, model.preprocessor.label_all_tokens) == ("simple", True)


@pytest.mark.slow
def test_texts_without_any_span():
    model = classifier("bert")
    texts = ["Anna lives in Rome", "Bob"]
    _, labels, weights = model.preprocessor(texts, [[], []])
    assert not np.asarray(labels).any() and np.asarray(weights).sum() == 5
    assert model.evaluate(texts, [[], []], return_dict=True, verbose=0)["f1"] == 0


CUT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "anna", "metrome", "in"]


@pytest.mark.slow
def test_spans_that_no_answer_can_equal_are_marked():
    """By hand: the token "metrome" has two spans; the first has no token of its own."""
    preprocessor = ez.TokenClassifierPreprocessor(ez.BertTokenizer(CUT))
    model = ez.TokenClassifier(encoder("bert"), preprocessor, labels=IOB2)
    spans = [(0, 4, "PER"), (5, 8, "LOC"), (8, 12, "LOC")]
    inputs, labels, weights = model.preprocessor(["anna metrome in"], [spans])
    assert np.asarray(labels).tolist() == [[0, 3, 1, 0, 0]]
    assert np.asarray(weights).tolist() == [[0, 1, 1, 1, 0]]
    assert np.asarray(inputs["span_marks"]).tolist() == [[0, 0, 1 + 2, 0, 0]]  # inexact, one lost
    metric = model.objective.make_metric("f1")
    metric.store_marks(inputs)
    metric.update_state(labels, labels, weights)
    # Two are predicted and one of them is right, of three.
    assert float(metric.result()["precision"]) == 1 / 2
    assert float(metric.result()["recall"]) == pytest.approx(1 / 3)
    metric.reset_state()
    metric.update_state(labels, labels, weights)  # the marks were those of one batch
    assert float(metric.result()["f1"]) == 1


@pytest.mark.parametrize("label_all_tokens", [False, True])
@pytest.mark.parametrize("scheme", ["IOB2", "IOBES", "types"])
def test_words_without_tokens_do_not_split_entities(scheme, label_all_tokens):
    """The scores of whole words are those of the tokens, if words without tokens are inside."""
    words = [["Anna", "\u200b", "\ufe0f", "Huber", "\u200b", "wohnt", "in", "Bonn"], ["\u200b"]]
    tags = {
        "IOB2": ["B-PER", "I-PER", "I-PER", "I-PER", "O", "O", "O", "B-LOC"],
        "IOBES": ["B-PER", "I-PER", "I-PER", "E-PER", "O", "O", "O", "S-LOC"],
        "types": ["PER", "PER", "PER", "PER", "O", "O", "O", "LOC"],
    }
    tags = [tags[scheme], ["O"]]
    model = classifier("bert", labels=SCHEMES[scheme], label_all_tokens=label_all_tokens)
    learn(model, words, tags)
    assert model.predict_tags(words) == tags
    assert scores(model, words, tags) == (1.0, 1.0)
    assert found_by(model, words)[0] == {("PER", 0, 14), ("LOC", 26, 30)}
