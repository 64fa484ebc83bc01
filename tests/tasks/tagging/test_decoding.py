"""Sequences of tags that can be, beside all sequences there are; thresholds; spaCy's documents."""

import itertools
import json
import re
import resource
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import printed

import encoder_zoo as ez
from encoder_zoo.tasks.losses.batch_loss import BatchLoss
from encoder_zoo.tasks.tagging.crf import CrfLoss, TagTransitions
from encoder_zoo.tasks.tagging.entities import (
    ScoredSpans,
    Transitions,
    compute_marginals,
    find_best_tags,
    make_entity_columns,
    make_transitions,
)
from encoder_zoo.tasks.tagging.tags import parse_tags

IOB2 = ["O", "B-A", "I-A", "B-B", "I-B"]
# All sequences that can be, each tag as its prefix and type: "Ba Ia O".
VALID = {
    "IOB2": (IOB2, r"(O |B(.) (I\2 )*)*"),
    "IOBES": (["O", "B-A", "I-A", "E-A", "S-A", "S-B"], r"(O |S. |B(.) (I\2 )*E\2 )*"),
    "BILOU": (["O", "B-A", "I-A", "L-A", "U-A", "U-B"], r"(O |U. |B(.) (I\2 )*L\2 )*"),
    "BIE": (["O", "B-A", "I-A", "E-A", "B-B", "E-B"], r"(O |B(.) (I\2 )*(E\2 )?)*"),
    "IO": (["O", "I-A", "I-B"], r"(.*)"),
    "plain": (["O", "NOUN", "VERB"], r"(.*)"),
}


def is_valid(pattern: str, tags: tuple) -> bool:
    return re.fullmatch(pattern, "".join(tag.replace("-", "") + " " for tag in tags)) is not None


@pytest.mark.parametrize("scheme", VALID)
def test_the_best_of_all_sequences(scheme):
    tags, pattern = VALID[scheme]
    allowed = make_transitions(parse_tags(tags))
    rng = np.random.default_rng(0)
    lengths = [1, 4, 2, 4, 3, 1, 4] * 4
    rows = [rng.dirichlet(np.ones(len(tags)), size=n).astype("float32") for n in lengths]
    row = np.repeat(np.arange(len(rows)) * 2, lengths)  # every other text has no words
    found = find_best_tags(tf.constant(np.concatenate(rows)), tf.constant(row), allowed).numpy()
    for probabilities, labels in zip(rows, np.split(found, np.cumsum(lengths)[:-1]), strict=True):
        sequences = itertools.product(range(len(tags)), repeat=len(labels))
        possible = [s for s in sequences if is_valid(pattern, tuple(tags[i] for i in s))]
        likelihood = [probabilities[np.arange(len(s)), s].prod() for s in possible]
        assert tuple(labels) == possible[int(np.argmax(likelihood))]


def test_any_sequence_may_be_allowed():
    probabilities = np.eye(5, dtype="float32")[[2, 4, 1]]
    found = find_best_tags(tf.constant(probabilities), tf.constant([0, 0, 0], tf.int64), None)
    assert found.numpy().tolist() == [2, 4, 1]


def test_in_a_graph_and_of_no_words():
    allowed = make_transitions(parse_tags(IOB2))
    specs = tf.TensorSpec([None, 5], tf.float32), tf.TensorSpec([None], tf.int64)
    graph = tf.function(lambda p, row: find_best_tags(p, row, allowed), specs, autograph=False)
    probabilities = tf.constant([[0.5, 0.0, 0.0, 0.2, 0.3], [0.05, 0.05, 0.5, 0.1, 0.3]])
    assert graph(probabilities, tf.constant([3, 3], tf.int64)).numpy().tolist() == [3, 4]
    assert graph(probabilities, tf.constant([3, 4], tf.int64)).numpy().tolist() == [0, 3]
    assert graph(probabilities[:0], tf.zeros([0], tf.int64)).shape == (0,)
    assert find_best_tags(probabilities[:0], tf.zeros([0], tf.int64), allowed).shape == (0,)


WORDS = ["anna", "jo", "##sé", "rome", "new", "york", "in", "sees", "."]
SENTENCES = [["Anna", "sees", "José", "."], ["New", "York"]]
TAGS = [["B-PER", "O", "B-PER", "O"], ["B-LOC", "I-LOC"]]
LABELS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


@pytest.fixture(scope="module")
def preprocessor():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = ez.BertTokenizer([*special, *WORDS], strip_accents=False)
    return ez.TokenClassifierPreprocessor(tokenizer)


@pytest.fixture(scope="module")
def build(preprocessor):
    def build(**arguments):
        keras.utils.set_random_seed(0)
        size = preprocessor.tokenizer.vocabulary_size
        backbone = ez.BertBackbone(size, 1, 2, 8, 16, max_sequence_length=16, pooler=False)
        return ez.TokenClassifier(backbone, preprocessor, **arguments)

    return build


@pytest.fixture
def impossible(build, monkeypatch):
    """A tagger whose most probable tags begin a person with I, after a place."""
    tagger = build(labels=LABELS)
    rows = {"new": [0, 2, 1, 0, 0], "york": [0, 0, 0, 0, 3], ".": [0, 0, 0, 1, 2]}
    tokenizer = tagger.preprocessor.tokenizer
    values = [rows.get(token, [1, 0, 0, 0, 0]) for token in tokenizer.get_vocabulary()]
    values = 2 * np.array(values, "float32")

    def logits_of(encoded, inputs, training=None):
        return keras.ops.take(values, inputs["token_ids"], axis=0)

    monkeypatch.setattr(tagger, "logits_of", logits_of)
    return tagger


WANTED = {None: ["B-LOC", "I-PER", "I-PER"], True: ["B-PER", "I-PER", "I-PER"]}


@pytest.mark.slow
@pytest.mark.parametrize("valid", WANTED)
def test_words_and_entities_have_valid_tags(impossible, valid):
    impossible.valid_tags = valid
    assert impossible.predict_tags([["New", "York", "."]]) == [WANTED[valid]]
    found = impossible.extract_entities("New York.")
    kinds = ["LOC", "PER"] if valid is None else ["PER"]
    assert [entity["label"] for entity in found] == kinds
    served = tf.function(impossible.signatures()["serving_default"], autograph=False)
    answer = served(tf.constant(["New York."]))
    assert [label.decode() for label in answer["label"].numpy()[0]] == kinds
    np.testing.assert_allclose(answer["score"][0], [e["score"] for e in found], rtol=1e-5)


@pytest.mark.slow
def test_every_token_by_itself_may_have_any_tag(impossible):
    impossible.valid_tags = True
    tags = [entity["label"] for entity in impossible.extract_entities("New York.", "none")]
    assert tags == WANTED[None]


@pytest.mark.slow
def test_a_threshold_leaves_entities_out(impossible):
    found = impossible.extract_entities("New York.")
    low, high = sorted(entity["score"] for entity in found)
    assert impossible.extract_entities("New York.", threshold=0.0) == found
    rest = impossible.extract_entities("New York.", threshold=(low + high) / 2)
    assert [entity["score"] for entity in rest] == [high]
    assert impossible.extract_entities("New York.", threshold=1.0) == []
    served = tf.function(
        impossible.signatures(threshold=(low + high) / 2)["serving_default"], autograph=False
    )
    assert served(tf.constant(["New York.", ""]))["count"].numpy().tolist() == [1, 0]
    with pytest.raises(ValueError, match="threshold is 2"):
        impossible.extract_entities("New York.", threshold=2)


def scores_of_pairs(rng, count: int) -> Transitions:
    return Transitions(*(rng.normal(size=s) for s in (count, (count, count), count)))


def summed(logits, tags, scores: Transitions) -> float:
    """The score of a sequence, by its definition."""
    first, between, last = scores
    pairs = sum(between[a, b] for a, b in itertools.pairwise(tags))
    return logits[np.arange(len(tags)), list(tags)].sum() + first[tags[0]] + pairs + last[tags[-1]]


def test_scores_of_pairs_beside_all_sequences():
    rng = np.random.default_rng(0)
    scores, lengths = scores_of_pairs(rng, 3), [1, 4, 2, 5]
    rows = [rng.dirichlet(np.ones(3), size=n).astype("float32") for n in lengths]
    row = tf.constant(np.repeat(np.arange(4) * 2, lengths))
    flat, ends = tf.constant(np.concatenate(rows)), np.cumsum(lengths)[:-1]
    best = np.split(find_best_tags(flat, row, scores).numpy(), ends)
    shares = np.split(compute_marginals(flat, row, scores).numpy(), ends)
    for alone, tags, share in zip(rows, best, shares, strict=True):
        every = list(itertools.product(range(3), repeat=len(alone)))
        weights = np.exp([summed(np.log(alone), s, scores) for s in every])
        assert tuple(tags) == every[int(np.argmax(weights))]
        expected = np.zeros_like(alone)
        for sequence, weight in zip(every, weights / weights.sum(), strict=True):
            expected[np.arange(len(alone)), sequence] += weight
        np.testing.assert_allclose(share, expected, rtol=1e-4)


@pytest.mark.eager
def test_the_loss_of_a_crf_is_that_of_all_sequences():
    rng = np.random.default_rng(0)
    layer = TagTransitions(3)
    layer.build()
    scores = scores_of_pairs(rng, 3)
    for weight, values in zip((layer.first, layer.between, layer.last), scores, strict=True):
        weight.assign(values)
    logits = rng.normal(size=(4, 6, 3)).astype("float32")
    tags = rng.integers(0, 3, (4, 6))
    weight = np.array([[1] * 6, [0, 1, 0, 1, 1, 0], [0, 0, 0.5, 0, 0, 0], [0] * 6], "float32")
    expected = 0.0
    for values, right, counted in zip(logits, tags, weight, strict=True):
        values, right = values[counted > 0], right[counted > 0]
        if len(right):
            every = itertools.product(range(3), repeat=len(right))
            total = np.log(sum(np.exp(summed(values, s, scores)) for s in every))
            expected += counted.max() * (total - summed(values, right, scores))
    loss, _ = BatchLoss(CrfLoss(layer))(tags, logits, weight)
    np.testing.assert_allclose(float(loss), expected / weight.sum(), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.eager
def test_a_crf_learns_and_is_saved(build, tmp_path):
    tagger = build(labels=LABELS, crf=True)
    tagger.compile(learning_rate=1e-3)
    loss = tagger.fit(SENTENCES * 4, TAGS * 4, epochs=3, verbose=0).history["loss"]
    assert loss[0] > loss[2] > 0
    between = keras.ops.convert_to_numpy(tagger.transitions.between)
    assert np.abs(between).max() > 0.05  # its learning rate is higher
    tagger.save_to_preset(tmp_path / "preset")
    tagger.save(tmp_path / "tagger.keras")
    for again in (
        ez.TokenClassifier.from_preset(tmp_path / "preset"),
        keras.saving.load_model(tmp_path / "tagger.keras"),
    ):
        assert again.crf
        np.testing.assert_allclose(again.transitions.between, between)
        assert again.predict_tags(SENTENCES) == tagger.predict_tags(SENTENCES)
        assert again.extract_entities("Anna sees") == tagger.extract_entities("Anna sees")


@pytest.mark.slow
@pytest.mark.eager
def test_tags_and_exports_follow_the_scores_of_pairs(impossible):
    crf = TagTransitions(len(LABELS))
    crf.build()
    impossible.transitions = crf
    assert impossible.predict_tags([["New", "York", "."]]) == [WANTED[None]]
    crf.first.assign([-20.0, -20, -20, 20, -20])
    assert impossible.predict_tags([["New", "York", "."]]) == [["B-PER", "I-PER", "I-PER"]]
    found = impossible.extract_entities("New York.")
    assert [entity["label"] for entity in found] == ["PER"]
    served = tf.function(impossible.signatures()["serving_default"], autograph=False)
    answer = served(tf.constant(["New York."]))
    np.testing.assert_allclose(answer["score"][0], [e["score"] for e in found], rtol=1e-5)


@pytest.mark.slow
def test_other_labels_need_a_new_crf(build, tmp_path, caplog):
    build(labels=LABELS, crf=True).save_to_preset(tmp_path)
    tagger = ez.TokenClassifier.from_preset(tmp_path, labels=LABELS[::-1])
    assert f"{LABELS}, not {LABELS[::-1]}" in caplog.text
    assert tagger.new_head is not None
    with pytest.raises(ValueError, match="crf"):
        build(labels=LABELS, crf=True, head=keras.layers.Dense(5))
    with pytest.raises(ValueError, match="calibrate"):
        build(labels=LABELS, crf=True).calibrate(SENTENCES, TAGS)


OF_BACKENDS = """
import itertools, json
import keras, numpy as np
import encoder_zoo as ez
from encoder_zoo.tasks.tagging.crf import CrfLoss, TagTransitions
from encoder_zoo.tasks.losses.batch_loss import BatchLoss

rng, layer = np.random.default_rng(0), TagTransitions(3)
layer.build()
scores = [rng.normal(size=size).astype("float32") for size in (3, (3, 3), 3)]
for weight, values in zip(layer.weights, scores, strict=True):
    weight.assign(values)
logits = rng.normal(size=(2, 4, 3)).astype("float32")
weight = np.array([[1, 1, 1, 1], [0, 1, 1, 0]])
losses = [BatchLoss(CrfLoss(layer))(np.ones((2, 4), "int32"), logits, weight)[0]]

words, tags = [["Anna", "sees", "Rome", "."], ["New", "York"]], [[3, 0, 1, 0], [1, 2]]
tagger = ez.TokenClassifier.from_preset(
    "bert_nano_en_uncased", num_classes=5, crf=True, dropout=0.0, attention_dropout=0.0
)
for layer in (tagger.head, tagger.transitions):
    for weight in layer.weights:
        weight.assign(np.linspace(-1, 1, np.prod(weight.shape)).reshape(weight.shape))
tagger.compile(keras.optimizers.SGD(0.1))
losses += tagger.fit(words, tags, epochs=3, shuffle=False, verbose=0).history["loss"]
losses = [float(keras.ops.convert_to_numpy(loss)) for loss in losses]
print(json.dumps([losses, tagger.predict_tags(words)]))
"""


@pytest.mark.matrix
@pytest.mark.slow
def test_backends_learn_a_crf_alike():
    losses, tags = zip(
        *(
            json.loads(printed(OF_BACKENDS, backend).splitlines()[-1])
            for backend in ("tensorflow", "jax", "torch")
        ),
        strict=True,
    )
    assert losses[0][1] > losses[0][3]
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-4)
    assert tags[0] == tags[1] == tags[2]


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    "x, y, valid",
    [
        (SENTENCES, TAGS, True),
        pytest.param(
            SENTENCES,
            [["I-PER", "O", "I-PER", "O"], ["I-LOC", "B-LOC"]],  # IOB1
            False,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["Anna sees Rome."],
            [[(0, 4, "PER"), (10, 14, "LOC")]],
            True,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_fit_learns_whether_tags_are_valid(build, tmp_path, x, y, valid):
    tagger = build(labels=LABELS)
    assert tagger.valid_tags is None
    tagger.fit(x, y, verbose=0)
    assert tagger.valid_tags is valid
    chosen = build(labels=LABELS, valid_tags=not valid)
    chosen.fit(x, y, verbose=0)
    assert chosen.valid_tags is not valid
    if valid:
        tagger.save_to_preset(tmp_path / "preset")
        assert ez.TokenClassifier.from_preset(tmp_path / "preset").valid_tags is True


class Token:
    def __init__(self, text):
        self.text = text


class Doc:
    """The attributes of spaCy's `Doc`, or with a beginning those of its `Span`."""

    def __init__(self, words, ents=(), begin=None):
        self.tokens, self.text = [*map(Token, words)], " ".join(words)
        self.ents = tuple(
            types.SimpleNamespace(start_char=s, end_char=e, label_=label, text=self.text[s:e])
            for s, e, label in ents
        )
        if begin is not None:
            self.start_char, self.end_char = begin, begin + len(self.text)
            for span in self.ents:
                span.start_char, span.end_char = span.start_char + begin, span.end_char + begin

    def __iter__(self):
        return iter(self.tokens)


DOCS = [
    Doc(["Anna", "sees", "Rome", "."], [(0, 4, "PER"), (10, 14, "LOC")]),
    Doc(["New", "York"], [(0, 8, "LOC")], begin=30),
]
TEXTS = ["Anna sees Rome .", "New York"]
SPANS = [[(0, 4, "PER"), (10, 14, "LOC")], [(0, 8, "LOC")]]
DOC_TAGS = [["B-PER", "O", "B-LOC", "O"], ["B-LOC", "I-LOC"]]


@pytest.mark.eager
class TestDocuments:
    @pytest.mark.slow
    def test_labels_are_entities_other_spans_or_tags(self, build):
        encode = build(labels=LABELS).preprocessor.encode
        expected = encode(TEXTS, SPANS)["labels"].to_list()
        assert encode(DOCS)["labels"].to_list() == expected
        spans = [list(doc.ents) for doc in DOCS]
        assert encode(DOCS, spans)["labels"].to_list() == expected
        assert encode(TEXTS[:1], spans[:1])["labels"].to_list() == expected[:1]
        words = [[token.text for token in doc] for doc in DOCS]
        expected = encode(words, DOC_TAGS)["labels"].to_list()
        assert encode(DOCS, DOC_TAGS)["labels"].to_list() == expected

    def test_as_many_labels_as_documents(self, build):
        with pytest.raises(ValueError, match="2 texts.* 1"):
            build(labels=LABELS).fit(DOCS, SPANS[:1])

    @pytest.mark.slow
    def test_answers(self, build):
        tagger = build(labels=LABELS)
        assert tagger.extract_entities(DOCS) == tagger.extract_entities(TEXTS)
        assert tagger.extract_entities(DOCS[0]) == tagger.extract_entities(TEXTS[0])
        words = [[token.text for token in doc] for doc in DOCS]
        assert tagger.predict_tags(DOCS) == tagger.predict_tags(words)
        np.testing.assert_array_equal(tagger.predict(DOCS)[1], tagger.predict(TEXTS)[1])
        scores = tagger.evaluate_entities(DOCS, DOC_TAGS)
        assert scores == tagger.evaluate_entities(words, DOC_TAGS)
        assert tagger.evaluate_entities(DOCS, None) == tagger.evaluate_entities(TEXTS, SPANS)

    @pytest.mark.slow
    def test_questions(self):
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tokenizer = ez.BertTokenizer([*special, *WORDS, "who", "?"], strip_accents=False)
        backbone = ez.BertBackbone(tokenizer.vocabulary_size, 1, 2, 8, 16, pooler=False)
        model = ez.SpanQA(backbone, ez.SpanQAPreprocessor(tokenizer))
        assert model.answer("Who?", DOCS[0]) == model.answer("Who?", TEXTS[0])
        assert model.answer("Who?", DOCS) == model.answer("Who?", TEXTS)
        encode = model.preprocessor.encode
        of_spans = encode((["Who?"], TEXTS[:1]), [DOCS[0].ents[0]])["labels"]
        of_dicts = encode((["Who?"], TEXTS[:1]), [{"text": "Anna", "answer_start": 0}])["labels"]
        np.testing.assert_array_equal(of_spans, of_dicts)


def test_entities_of_a_long_text_do_not_copy_it_each():
    """100,000 names in 1.4 MB: copies of the whole text would be 130 GB."""
    count = 100_000
    starts = np.arange(count, dtype="int32") * 13
    found = ScoredSpans(
        tf.zeros(count, tf.int64),
        tf.constant(starts),
        tf.constant(starts + 3),
        tf.zeros(count, tf.int32),
        tf.ones(count),
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    columns = make_entity_columns(
        found, tf.constant(["Zoé met Bob. " * count]), tf.constant(["PER"])
    )
    assert columns["text"].flat_values.numpy().tolist() == ["Zoé".encode()] * count
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB
