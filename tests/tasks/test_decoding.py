"""Sequences of tags that can be, beside all sequences there are; thresholds; spaCy's documents."""

import itertools
import re
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.tasks.tagging.entities import best_tags, transitions
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
    allowed = transitions(parse_tags(tags))
    rng = np.random.default_rng(0)
    lengths = [1, 4, 2, 4, 3, 1, 4] * 4
    rows = [rng.dirichlet(np.ones(len(tags)), size=n).astype("float32") for n in lengths]
    row = np.repeat(np.arange(len(rows)) * 2, lengths)  # every other text has no words
    found = best_tags(tf.constant(np.concatenate(rows)), tf.constant(row), allowed).numpy()
    for probabilities, labels in zip(rows, np.split(found, np.cumsum(lengths)[:-1]), strict=True):
        sequences = itertools.product(range(len(tags)), repeat=len(labels))
        possible = [s for s in sequences if is_valid(pattern, tuple(tags[i] for i in s))]
        likelihood = [probabilities[np.arange(len(s)), s].prod() for s in possible]
        assert tuple(labels) == possible[int(np.argmax(likelihood))]


def test_any_sequence_may_be_allowed():
    probabilities = np.eye(5, dtype="float32")[[2, 4, 1]]
    found = best_tags(tf.constant(probabilities), tf.constant([0, 0, 0], tf.int64), None)
    assert found.numpy().tolist() == [2, 4, 1]


def test_in_a_graph_and_of_no_words():
    allowed = transitions(parse_tags(IOB2))
    specs = tf.TensorSpec([None, 5], tf.float32), tf.TensorSpec([None], tf.int64)
    graph = tf.function(lambda p, row: best_tags(p, row, allowed), specs, autograph=False)
    probabilities = tf.constant([[0.5, 0.0, 0.0, 0.2, 0.3], [0.05, 0.05, 0.5, 0.1, 0.3]])
    assert graph(probabilities, tf.constant([3, 3], tf.int64)).numpy().tolist() == [3, 4]
    assert graph(probabilities, tf.constant([3, 4], tf.int64)).numpy().tolist() == [0, 3]
    assert graph(probabilities[:0], tf.zeros([0], tf.int64)).shape == (0,)
    assert best_tags(probabilities[:0], tf.zeros([0], tf.int64), allowed).shape == (0,)


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


def test_every_token_by_itself_may_have_any_tag(impossible):
    impossible.valid_tags = True
    tags = [entity["label"] for entity in impossible.extract_entities("New York.", "none")]
    assert tags == WANTED[None]


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
    with pytest.raises(ValueError, match="threshold is 2. Expected a number from 0 to 1"):
        impossible.extract_entities("New York.", threshold=2)


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
        with pytest.raises(ValueError, match="2 texts, but spans for 1"):
            build(labels=LABELS).fit(DOCS, SPANS[:1])

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
