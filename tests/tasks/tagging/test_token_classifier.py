"""TokenClassifier: transformers' numbers, alignment by hand, windows, entities, learning."""

import functools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from paths import CHECKPOINTS

import encoder_zoo as ez
from encoder_zoo.common.lazy import use_numpy, use_tensorflow
from encoder_zoo.tasks.tagging.alignment import INEXACT, LOST
from encoder_zoo.tasks.tagging.entities import find_entities
from encoder_zoo.tasks.tagging.tag_answers import TagAnswers
from encoder_zoo.tasks.tagging.tags import parse_tags

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
WORDS = ["anna", "jo", "##sé", "de", "la", "rome", "new", "york", "in", "sees", "and", ".", "-"]
SENTENCES = [
    ["Anna", "sees", "José", "de", "la", "José"],
    ["Anna", "in", "New", "York", "."],
    ["Rome", "and", "New", "York"],
    ["José", "sees", "Rome"],
]
TAGS = [
    ["B-PER", "O", "B-PER", "I-PER", "I-PER", "I-PER"],
    ["B-PER", "O", "B-LOC", "I-LOC", "O"],
    ["B-LOC", "O", "B-LOC", "I-LOC"],
    ["B-PER", "O", "B-LOC"],
]
TEXT = "José in New York."
SPANS = [{"start": 0, "end": 4, "label": "PER"}, {"start": 8, "end": 16, "label": "LOC"}]


@pytest.fixture(scope="module")  # traced once
def tokenizer():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return ez.BertTokenizer([*special, *WORDS], strip_accents=False)


@pytest.fixture(scope="module")
def build(tokenizer):
    def build(labels=LABELS, num_classes=None, num_layers=1, **settings):
        backbone = ez.BertBackbone(
            tokenizer.vocabulary_size,
            num_layers=num_layers,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=32,
            dropout=0.0,
            attention_dropout=0.0,
            max_sequence_length=32,
            pooler=False,
        )
        preprocessor = ez.TokenClassifierPreprocessor(tokenizer, **settings)
        return ez.TokenClassifier(backbone, preprocessor, num_classes, labels)

    return build


@pytest.fixture(scope="module")
def classifier(build):
    """For tests that do not train."""
    keras.utils.set_random_seed(0)
    return build()


@pytest.fixture(scope="module")
def roberta():
    """Of a vocabulary that is based on spaces; for tests that do not train."""
    checkpoints = CHECKPOINTS
    return ez.TokenClassifier.from_preset(checkpoints / "Roberta_ForTokenClassification")


def aligned(classifier, x, y) -> list[list[tuple[str, str]]]:
    """For every row its labelled tokens, as (token, tag)."""
    inputs, labels, weights = tf.nest.map_structure(np.array, classifier.preprocessor(x, y))
    name = classifier.preprocessor.tokenizer.id_to_token
    return [
        [(name(i), LABELS[t]) for i, t, w in zip(ids, tags, row, strict=True) if w]
        for ids, tags, row in zip(inputs["token_ids"], labels, weights, strict=True)
    ]


class TestAlignment:
    @pytest.mark.slow
    def test_the_first_piece_of_a_word_carries_its_tag(self, classifier):
        assert aligned(classifier, SENTENCES[:1], TAGS[:1]) == [
            [
                ("anna", "B-PER"),
                ("sees", "O"),
                ("jo", "B-PER"),
                ("de", "I-PER"),
                ("la", "I-PER"),
                ("jo", "I-PER"),
            ]
        ]

    @pytest.mark.slow
    def test_all_pieces_can_be_labelled(self, build):
        tokens = aligned(build(label_all_tokens=True), [["José", "sees"]], [["B-PER", "O"]])
        assert tokens == [[("jo", "B-PER"), ("##sé", "I-PER"), ("sees", "O")]]

    @pytest.mark.slow
    def test_tags_by_number_are_the_same(self, classifier):
        numbers = [[LABELS.index(tag) for tag in tags] for tags in TAGS]
        assert aligned(classifier, SENTENCES, numbers) == aligned(classifier, SENTENCES, TAGS)

    @pytest.mark.slow
    def test_spans_of_characters(self, classifier):
        assert aligned(classifier, [TEXT], [SPANS]) == [
            [("jo", "B-PER"), ("in", "O"), ("new", "B-LOC"), ("york", "I-LOC"), (".", "O")]
        ]

    def test_spans_label_all_pieces(self, build):
        tokens = aligned(build(label_all_tokens=True), ["José in"], [SPANS[:1]])
        assert tokens == [[("jo", "B-PER"), ("##sé", "I-PER"), ("in", "O")]]

    def test_neighbouring_spans_of_one_type_stay_two(self, classifier):
        spans = [{"start": 0, "end": 4, "label": "PER"}, {"start": 5, "end": 9, "label": "PER"}]
        assert aligned(classifier, ["Anna Anna"], [spans[::-1]]) == [
            [("anna", "B-PER"), ("anna", "B-PER")]
        ]

    def test_a_span_may_cut_a_word_and_ends_at_other_characters(self, classifier):
        # "sé" alone is the entity, after an emoji that is one character of the text.
        spans = [[{"start": 4, "end": 6, "label": "PER"}]]
        assert aligned(classifier, ["🙂 José Anna"], spans) == [
            [("[UNK]", "O"), ("jo", "O"), ("##sé", "B-PER"), ("anna", "O")]
        ]

    @pytest.mark.slow
    @pytest.mark.parametrize("end, single", ["ES", "LU"])
    def test_schemes_with_ends_are_written_whole(self, build, end, single):
        labels = ["O", "B-PER", "I-PER", f"{end}-PER", f"{single}-PER"]
        preprocessor = build(labels=labels, label_all_tokens=True).preprocessor
        spans = [[{"start": 0, "end": 4, "label": "PER"}, {"start": 5, "end": 9, "label": "PER"}]]
        _, y, _ = preprocessor(["Anna José"], spans)
        assert [labels[i] for i in y.numpy()[0, 1:-1]] == [labels[4], "B-PER", labels[3]]
        _, y, _ = preprocessor([["José"]], [[labels[4]]])
        assert [labels[i] for i in y.numpy()[0, 1:-1]] == ["B-PER", labels[3]]

    def test_words_get_their_tags_back_where_all_pieces_are_labelled(self, build, monkeypatch):
        labels = ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
        classifier = build(labels=labels, label_all_tokens=True)
        words, tags = [["José", "José", "sees", "Anna"]], [["B-PER", "E-PER", "O", "S-PER"]]
        words, tags = [*words, ["José"]], [*tags, ["S-PER"]]
        logits = learned_logits(classifier, words, tags)
        monkeypatch.setattr(TagAnswers, "compute_logits", lambda *_: logits)
        assert classifier.predict_tags(words) == tags
        assert classifier.evaluate_entities(words, tags, scheme="IOBES")["f1"] == 1.0

    @pytest.mark.slow
    def test_a_space_based_vocabulary_knows_symbols_as_words(self, roberta):
        spans = [[{"start": 4, "end": 7, "label": "PER"}]]
        x, y, weights = roberta.preprocessor(["the cat."], spans)
        token = roberta.preprocessor.tokenizer.id_to_token
        found = [
            (token(i), roberta.labels[t])
            for i, t, w in zip(x["token_ids"].numpy()[0], y.numpy()[0], weights[0], strict=True)
            if w
        ]
        assert found == [("the", "O"), ("Ġcat", "B-PER"), (".", "O")]

    @pytest.mark.slow
    def test_words_meet_the_model_as_they_do_in_a_text(self, roberta):
        words = roberta.preprocessor([["the", "cat", "sat"]])
        text = roberta.preprocessor(["the cat sat"])
        np.testing.assert_array_equal(words["token_ids"], text["token_ids"])


class TestWindows:
    @pytest.mark.slow(except_for="^None")
    @pytest.mark.parametrize("doc_stride", [None, 0, 3])
    def test_every_word_is_labelled_once(self, build, doc_stride):
        classifier = build(sequence_length=8, doc_stride=doc_stride)
        sentence, tags = SENTENCES[0] * 5, TAGS[0] * 5
        rows = aligned(classifier, [sentence, ["Anna"]], [tags, ["B-PER"]])
        assert len(rows) > 5
        assert all(len(row) <= 6 for row in rows)
        tokens = [token for row in rows[:-1] for token in row]
        assert tokens == aligned(build(), SENTENCES[:1], TAGS[:1])[0] * 5
        assert rows[-1] == [("anna", "B-PER")]

    @pytest.mark.slow
    def test_the_windows_of_a_long_text_are_put_together(self, build):
        # Without attention and positions a token's logits depend on the token alone.
        classifier = build(sequence_length=8)
        for weight in classifier.backbone.blocks[0].attention.weights:
            weight.assign(ops.zeros_like(weight))
        positions = classifier.backbone.embeddings.position_embedding.embeddings
        positions.assign(ops.zeros_like(positions))
        sentence = "Anna sees José de la José."
        [alone] = classifier.predict([sentence])
        [together] = classifier.predict([" ".join([sentence] * 6)])
        np.testing.assert_allclose(together, np.tile(alone, (6, 1)), atol=1e-6)
        assert np.ptp(alone, axis=0).min() > 1e-3  # tokens do differ

        found = classifier.extract_entities(" ".join([sentence] * 6), "none")
        tokens = classifier.extract_entities(sentence, "none")
        shifted = [(e["label"], e["start"] + 27 * i) for i in range(6) for e in tokens]
        assert [(e["label"], e["start"]) for e in found] == shifted

    def test_an_overlap_that_leaves_nothing_is_refused(self, build):
        with pytest.raises(ValueError, match="doc_stride is 6.* 5"):
            build(sequence_length=8, doc_stride=6)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_validation_split_keeps_the_windows_of_a_text_together(self, build):
        classifier = build(sequence_length=6, doc_stride=0)
        x, y = [SENTENCES[0], SENTENCES[3] * 4], [TAGS[0], TAGS[3] * 4]
        split = classifier.fit(x, y, validation_split=0.5, verbose=0).history["val_loss"][0]
        assert split == pytest.approx(classifier.evaluate(x[1:], y[1:], verbose=0)[0], rel=1e-5)


class TestLearning:
    @pytest.mark.slow
    def test_from_words_with_tags_to_entities(self, build):
        classifier = build(labels=None)
        classifier.compile(learning_rate=1e-2)
        classifier.fit(SENTENCES * 20, TAGS * 20, epochs=6, batch_size=8, verbose=0)
        assert classifier.labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
        scores = classifier.evaluate(SENTENCES, TAGS, verbose=0, return_dict=True)
        assert (scores["f1"], scores["precision"], scores["accuracy"]) == (1.0, 1.0, 1.0)
        assert classifier.last_evaluation["f1"] == 1.0
        assert classifier.evaluate_entities(SENTENCES, TAGS)["f1"] == 1.0
        assert classifier.predict_tags(SENTENCES) == TAGS
        [entities] = classifier.extract_entities(["José sees New York."], "first")
        assert [(e["label"], e["text"], e["start"], e["end"]) for e in entities] == [
            ("PER", "José", 0, 4),
            ("LOC", "New York", 10, 18),
        ]
        assert all(0.5 < e["score"] <= 1 for e in entities)
        [of_words] = classifier.extract_entities([["José", "sees", "New", "York", "."]], "first")
        assert of_words == entities

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_from_texts_with_spans_over_tf_data(self, build):
        texts = ["José in New York.", "Anna sees Rome", "in Rome"]
        spans = [SPANS, [{"start": 10, "end": 14, "label": "LOC"}], []]
        ragged = {
            key: tf.ragged.constant([[span[key] for span in row] for row in spans])
            for key in ("start", "end")
        }
        ragged["label"] = tf.ragged.constant([["PER", "LOC"], ["LOC"], []])
        dataset = tf.data.Dataset.from_tensor_slices((texts, ragged)).batch(3).repeat(100)
        classifier = build(labels=None)
        classifier.compile(learning_rate=1e-2)
        classifier.fit(dataset, epochs=1, verbose=0)
        assert classifier.labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
        assert classifier.evaluate_entities(texts, spans)["f1"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "x, y",
    [
        ([["Anna", "Rome"]], [["B-B-cell", "B-DNA"]]),
        (["Anna Rome"], [[(0, 4, "B-cell"), (5, 9, "DNA")]]),
    ],
)
def test_a_type_that_looks_like_a_tag_is_judged_by_its_name(build, x, y):
    classifier = build(labels=["O", "B-B-cell", "I-B-cell", "B-DNA", "I-DNA"])
    kernel, bias = classifier.head.weights[-2:]
    kernel.assign(kernel * 0)
    bias.assign([0.0, 9.0, 0.0, 0.0, 0.0])  # every word is a B-cell
    scores = classifier.evaluate_entities(x, y)["per_type"]
    assert {kind: of["f1"] for kind, of in scores.items()} == {
        "B-cell": pytest.approx(2 / 3),  # one found of one, beside one that is none
        "DNA": 0.0,
    }


def learned_logits(classifier, x, y):
    """The tokens of texts in one window each, and logits that say what was to be learned.

    Answers read the tokens with NumPy.
    """
    labels = classifier.preprocessor.encode(x, y)["labels"][:, 1:-1].flat_values
    with use_numpy():
        tokens = classifier.preprocessor.tokenize(x, classifier.split_symbols)
    return tokens, np.eye(classifier.num_classes)[labels]


@pytest.mark.parametrize("engine", [use_tensorflow, use_numpy])
def test_arrays_of_the_example_in_the_comments(engine, caplog):
    """The values that the comments in `alignment.py` show."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = ez.BertTokenizer([*special, "ann", "##as", "sings"])
    preprocessor = ez.TokenClassifierPreprocessor(tokenizer)
    preprocessor.labels = ["O", "B-X", "I-X"]
    spans = [[(10, 12, "X"), (6, 7, "X"), (8, 10, "X")], [(0, 3, "X")]]
    with engine():
        examples = preprocessor.encode(["Annas \u200b sings", "Ann"], spans)
    names = ("token_ids", "labels", "label_weights", "span_marks")
    inner = {name: examples[name][:, 1:-1].to_list() for name in names}
    tokens = [[tokenizer.id_to_token(i) for i in row] for row in inner["token_ids"]]
    assert tokens == [["ann", "##as", "sings"], ["ann"]]
    assert inner["labels"] == [[0, 0, 1], [1]]
    assert inner["label_weights"] == [[1, 0, 1], [1]]
    assert inner["span_marks"] == [[LOST, 0, INEXACT + LOST], [0]]
    assert "2 of the spans have no token" in caplog.text
    assert "1 of the spans begin or end inside a token" in caplog.text
    with engine():
        examples = preprocessor.encode(["\u200b"], [[(0, 1, "X")]])  # no tokens at all
    assert examples["span_marks"].to_list() == [[0, 0]]


@pytest.mark.matrix
@pytest.mark.slow
def test_what_is_learned_from_spans_is_what_is_found(golden, tmp_path, monkeypatch):
    # RoBERTa's words are what stands between spaces: "cat." and "dog,", unless cut.
    folder = golden("Roberta_ForTokenClassification").folder
    classifier = ez.TokenClassifier.from_preset(folder)
    texts = ["the cat.", "the dog, it was bad", "it was not the cat"]
    bounds = [(4, 7), (4, 7), (15, 18)]
    spans = [[{"start": s, "end": e, "label": "PER"}] for s, e in bounds]
    classifier.fit(texts, spans, verbose=0)
    classifier.save_to_preset(tmp_path / "preset")
    for tagger in (classifier, ez.TokenClassifier.from_preset(tmp_path / "preset")):
        logits = learned_logits(tagger, texts, spans)
        monkeypatch.setattr(TagAnswers, "compute_logits", lambda *_, logits=logits: logits)
        found = tagger.extract_entities(texts, "first")
        assert [[(e["start"], e["end"]) for e in row] for row in found] == [[b] for b in bounds]
        assert tagger.evaluate_entities(texts, spans)["f1"] == 1.0


@pytest.mark.slow
def test_entities_are_judged_as_they_are_delivered(roberta):
    texts = ["the cat.", "it was not bad, the dog"]
    found = roberta.extract_entities(texts)
    assert roberta.split_symbols is False  # transformers' words
    assert sum(map(len, found)) > 0
    assert roberta.evaluate_entities(texts, found)["f1"] == 1.0


def as_generator(x, y):
    def examples():
        yield from zip(x, y, strict=True)

    kind = tf.TensorSpec([None], tf.string)
    dataset = tf.data.Dataset.from_generator(examples, output_signature=(kind, kind))
    return dataset.apply(tf.data.experimental.assert_cardinality(len(x)))


def as_slices(*x):
    return tf.data.Dataset.from_tensor_slices(x if len(x) > 1 else x[0])


@functools.cache  # traced for two shapes, and then for any
def in_graph(preprocessor):
    return tf.function(preprocessor, reduce_retracing=True, autograph=False)


def first_batch(classifier, dataset):
    """What the model trains on, as `fit` makes it from a dataset."""
    preprocessor = classifier.preprocessor
    return in_graph(preprocessor)(*next(iter(preprocessor.batch_examples(dataset, 32))))


def columns(*spans) -> dict[str, list]:
    """Spans as (start, end, label), for each text a list of them, as columns."""
    names = ("start", "end", "label")
    return {name: [[span[i] for span in row] for row in spans] for i, name in enumerate(names)}


def ragged(*spans) -> dict[str, tf.RaggedTensor]:
    return {name: tf.ragged.constant(rows) for name, rows in columns(*spans).items()}


@pytest.mark.slow(except_for="^<lambda>1")
@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: (tf.ragged.constant(x), y),
        lambda x, y: (tf.ragged.constant(x), tf.ragged.constant(y)),
        pytest.param(lambda x, y: (as_generator(x, y), None), marks=pytest.mark.slow),
        lambda x, y: (as_generator(x, y).ragged_batch(3), None),
        pytest.param(
            lambda x, y: (as_generator(x, y).padded_batch(3), None), marks=pytest.mark.slow
        ),
        pytest.param(
            lambda x, y: (as_slices(tf.ragged.constant(x), tf.ragged.constant(y)), None),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda x, y: (as_slices(tf.ragged.constant(x), tf.ragged.constant(y)).batch(3), None),
            marks=pytest.mark.slow,
        ),
        pytest.param(lambda x, y: (x, [tf.constant(row) for row in y]), marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_input_gives_the_same_evaluation(classifier, make):
    expected = classifier.evaluate(SENTENCES, TAGS, verbose=0)
    found = classifier.evaluate(*make(SENTENCES, TAGS), verbose=0)
    np.testing.assert_allclose(found[1:], expected[1:], atol=1e-6)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda x, y: as_slices(x, ragged(*y)), marks=pytest.mark.slow),
        pytest.param(lambda x, y: as_slices(x, ragged(*y)).batch(2), marks=pytest.mark.slow),
        pytest.param(lambda x, y: as_slices(x, columns(*y)), marks=pytest.mark.slow),
        lambda x, y: as_slices(x, columns(*y)).batch(2),
    ],
)
def test_every_kind_of_spans_gives_the_same_labels(classifier, make):
    texts, spans = ["Anna sees Rome", "José in Rome"], [[(10, 14, "LOC")], [(0, 4, "PER")]]
    lists = [[{"start": s, "end": e, "label": n} for s, e, n in row] for row in spans]
    expected = classifier.preprocessor(texts, lists)
    found = first_batch(classifier, make(texts, spans))
    for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_spans_without_a_piece_of_their_own_are_reported(classifier, caplog):
    spans = [[], [(4, 5, "PER"), (5, 6, "LOC"), (6, 7, "LOC")]]  # a space, two inside of one token
    _, y, _ = classifier.preprocessor(["in", "Anna in"], ragged(*spans))
    assert [LABELS[i] for i in y.numpy()[1, 1:3]] == ["O", "B-LOC"]
    assert "2 of the spans" in caplog.text
    assert "example 1, from 4 to 5" in caplog.text


@pytest.mark.matrix
@pytest.mark.slow
def test_padded_spans_are_not_there(classifier):
    texts, spans = ["Anna sees Rome", "in"], ragged([(0, 4, "PER"), (10, 14, "LOC")], [])
    padded = {name: values.to_tensor() for name, values in spans.items()}
    _, found, _ = first_batch(classifier, as_slices(texts, padded))
    _, expected, _ = classifier.preprocessor(texts, spans)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "x, y",
    [
        (tf.ragged.constant(SENTENCES), tf.ragged.constant(TAGS)),
        pytest.param(
            SENTENCES, [[tag.encode() for tag in tags] for tags in TAGS], marks=pytest.mark.slow
        ),
        ([TEXT], ragged([(0, 4, "PER"), (8, 16, "LOC")])),
    ],
)
def test_labels_are_learned_and_judged_from_every_kind(build, x, y):
    classifier = build(labels=None)
    classifier.fit(x, y, verbose=0)
    assert classifier.labels == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    support = classifier.evaluate_entities(x, y)["per_type"]["PER"]["support"]
    assert support == (1 if isinstance(y, dict) else 4)


@pytest.mark.slow
def test_sample_weights_reach_the_words(classifier):
    weighted = classifier.evaluate(SENTENCES, TAGS, sample_weight=[0, 1, 0, 0], verbose=0)
    alone = classifier.evaluate(SENTENCES[1:2], TAGS[1:2], verbose=0)
    np.testing.assert_allclose(weighted, alone, rtol=1e-5)


@pytest.mark.slow
def test_predictions_are_of_the_pieces_in_the_order_of_the_texts(classifier):
    texts = [" ".join(words) for words in SENTENCES] * 5
    together = classifier.predict(texts, batch_size=4)
    assert [len(logits) for logits in together[:4]] == [8, 5, 4, 4]
    for text, logits in zip(texts[:4], together, strict=False):
        np.testing.assert_allclose(classifier.predict([text])[0], logits, atol=1e-5)
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(7)
    for a, b in zip(classifier.predict(dataset), together, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_datasets_of_words_and_of_prepared_inputs_are_predicted(classifier):
    expected = classifier.predict(SENTENCES)
    words = as_slices(tf.ragged.constant(SENTENCES))
    for a, b in zip(classifier.predict(words), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    prepared = as_slices(classifier.preprocessor(SENTENCES)).batch(2)
    logits = classifier.predict(prepared, verbose=0)
    assert logits.shape == (4, 10, 5)
    np.testing.assert_allclose(logits[1, 1:6], expected[1], atol=1e-5)


@pytest.mark.slow
def test_no_texts_and_texts_without_pieces(classifier, build):
    assert classifier.predict([]) == []
    assert classifier.extract_entities([]) == []
    assert classifier.extract_entities(["", " "], "average") == [[], []]
    assert classifier.predict([""])[0].shape == (0, 5)
    for model in (classifier, build(labels=["NOUN", "VERB"])):
        assert model.predict_tags([["Anna", ""], []])[0][1] == "O"


class TestStrategies:
    """Hand-worked: "jo ##sé . anna" with probabilities given for every token."""

    def entities(self, tokenizer, probabilities, strategy):
        tokens = ez.TokenClassifierPreprocessor(tokenizer).tokenize(["José. Anna"])
        assert tokens.ids.row_lengths().numpy().tolist() == [4]
        tags = parse_tags(LABELS)
        found = find_entities(tf.constant(probabilities, "float32"), tokens, tags, strategy)
        names = LABELS if strategy == "none" else tags.type_names
        values = zip(*(f.numpy().tolist() for f in found), strict=True)
        return [(names[n], s, e, round(score, 4)) for _, s, e, n, score in values]

    PROBABILITIES = (
        (0.2, 0.6, 0.1, 0.1, 0.0),  # jo: B-PER
        (0.1, 0.0, 0.1, 0.0, 0.8),  # ##sé: I-LOC
        (0.9, 0.1, 0.0, 0.0, 0.0),  # .
        (0.3, 0.0, 0.7, 0.0, 0.0),  # anna: I-PER
    )

    @pytest.mark.parametrize(
        "strategy, expected",
        [
            ("none", [("B-PER", 0, 2, 0.6), ("I-LOC", 2, 4, 0.8), ("I-PER", 6, 10, 0.7)]),
            ("simple", [("PER", 0, 2, 0.6), ("LOC", 2, 4, 0.8), ("PER", 6, 10, 0.7)]),
            ("first", [("PER", 0, 4, 0.6), ("PER", 6, 10, 0.7)]),
            ("average", [("LOC", 0, 4, 0.4), ("PER", 6, 10, 0.7)]),
            ("max", [("LOC", 0, 4, 0.8), ("PER", 6, 10, 0.7)]),
        ],
    )
    def test_each(self, tokenizer, strategy, expected):
        assert self.entities(tokenizer, self.PROBABILITIES, strategy) == expected

    def test_scores_of_joined_pieces_are_their_mean(self, tokenizer):
        rows = [np.eye(5)[1] * 0.6, np.eye(5)[2] * 0.8, np.eye(5)[2] * 0.7, np.eye(5)[1] * 0.5]
        expected = [("PER", 0, 5, 0.7), ("PER", 6, 10, 0.5)]
        assert self.entities(tokenizer, rows, "simple") == expected


class TestRefusals:
    @pytest.mark.parametrize(
        "x, y, message",
        [
            (SENTENCES, [*TAGS[:3], ["O"]], "Example 3.*3 words.*1 tags"),
            (SENTENCES[:1], [["O"] * 5 + ["B-DOG"]], "Example 0, word 5: .*'B-DOG'"),
            (SENTENCES[3:], [[0, 1, 5]], "Example 0, word 2: .*5"),
            (SENTENCES, TAGS[:3], "4 examples.*3"),
            ([TEXT], [[{**SPANS[0], "end": 99}]], "99.*17 characters"),
            ([TEXT], [[{**SPANS[0], "end": 0}]], "is empty"),
            (
                [TEXT],
                [[SPANS[0], {**SPANS[0], "start": 3, "end": 7}]],
                "Example 0: .*overl",
            ),
            (
                [TEXT],
                [[{**SPANS[0], "label": "DOG"}]],
                "'DOG'.*'LOC",
            ),
            ([TEXT], [["B-PER"]], "'B-PER'.*span"),
            ([TEXT, TEXT], [SPANS], "2 texts.*1"),
            ([["Anna", None]], [["O", "O"]], r"words\[0\]\[1\] is None"),
            ([["Anna"], "Rome"], [["O"], ["O"]], r"words\[1\] is 'Rome'"),
            ([["Anna"], None], [["O"], ["O"]], r"words\[1\] is None"),
            ([None, "Anna"], [[], []], r"texts\[0\] is None"),
            ([float("nan"), "Anna"], [[], []], r"texts\[0\] is nan"),
            ([["Anna"], ["Rome"]], [["O"], None], "Row 1.*None"),
            ([["Anna"]], [[["O"]]], r"Example 0, word 0: .*\['O'\]"),
            (SENTENCES[3:], [SPANS + SPANS[:1]], "Example 0, word 0: .*{'start': 0"),
            ([TEXT], [[{**SPANS[0], "start": None}]], "Row 0.*None"),
            ([TEXT], [[{**SPANS[0], "start": 0.9}]], r"Example 0: start is 0\.9"),
            ([TEXT], ragged([(20, 99, "LOC")]), "Example 0: .*99"),
            ([TEXT], None, "labels are missing"),
        ],
    )
    def test_fit_names_the_example(self, classifier, x, y, message):
        with pytest.raises(ValueError, match=message):
            classifier.fit(x, y)

    @pytest.mark.slow(except_for="^ragged_batch-x2")
    @pytest.mark.parametrize(
        "x, y, message",
        [
            ([["Anna"], ["Rome"]], [["O"], ["O", "B-LOC"]], "Example 1.*1 words.*2 tags"),
            ([["Anna"], ["New", "York"]], [["O", "O"], ["O"]], "Example 0.*1 words.*2 tag"),
            (
                [["Anna"], ["in", "Rome"]],
                [["O"], ["O", "B-DOG"]],
                "Example 1.*word 1: .*B-DOG.*O, B-PER, I",
            ),
        ],
    )
    @pytest.mark.parametrize(
        "batch", ["ragged_batch", pytest.param("padded_batch", marks=pytest.mark.slow)]
    )
    def test_datasets_of_words_name_the_example_of_the_batch(
        self, classifier, x, y, message, batch
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            first_batch(classifier, getattr(as_generator(x, y), batch)(2))

    @pytest.mark.matrix
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "spans, message",
        [
            ([(0, 4, "PER"), (0, 9, "LOC")], "from 0 to 4 and from 0 to 9 overlap"),
            ([(3, 4, "PER"), (0, 9, "LOC")], "from 0 to 9 and from 3 to 4 overlap"),
            ([(20, 99, "LOC")], "from 20 to 99.*11 characters"),
            ([(-1, 3, "LOC")], "from -1 to 3"),
            ([(3, 3, "LOC")], "from 3 to 3.*empty"),
            ([(0, 4, "DOG")], "DOG.*LOC, PER"),
        ],
    )
    def test_datasets_of_spans_name_the_example_of_the_batch(self, classifier, spans, message):
        spans = ragged([(0, 4, "PER")], [], spans)
        dataset = as_slices(["Anna sees Rome", "", "Anna, José!"], spans).batch(3)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"Example 2 of.*{message}"):
            first_batch(classifier, dataset)

    @pytest.mark.slow
    def test_datasets_of_words_with_spans_and_of_texts_with_tags(self, classifier):
        words = as_slices(tf.ragged.constant(SENTENCES[:1]), ragged([(0, 4, "PER")])).batch(1)
        texts = as_slices([TEXT], tf.ragged.constant(TAGS[:1])).batch(1)
        for dataset, kind in ((words, "words are spans"), (texts, "texts are tags")):
            with pytest.raises(ValueError, match=f"{kind}"):
                first_batch(classifier, dataset)

    @pytest.mark.parametrize(
        "x, y, message",
        [
            ([["Anna", "in"], ["Rome"]], [["B-PER", 0], ["O"]], "Example 0, label 1 "),
            ([TEXT], [[{"start": 0, "end": 4}]], "Example 0, label 0.*{'start': 0, 'end': 4}"),
            ([["Anna"]], [["O"]], "tag is 'O'"),
            (["Anna"], None, "labels are missing"),
            ([["Anna"]], [["B-LCO", "O"]], "Example 0.*1 words.*2 tags"),
        ],
    )
    def test_labels_are_not_learned_from_mistakes(self, build, x, y, message):
        classifier = build(labels=None)
        with pytest.raises(ValueError, match=message):
            classifier.fit(x, y)
        assert classifier.labels is None and classifier.head is None

    def test_labels_are_not_learned_from_places_of_types(self, build):
        spans = {name: tf.ragged.constant([[n]]) for name, n in (("start", 0), ("end", 4))}
        dataset = as_slices([TEXT], {**spans, "label": tf.ragged.constant([[0]])}).batch(1)
        with pytest.raises(ValueError, match="Example 0, label 0.*{'label': 0}"):
            build(labels=None).fit(dataset)

    def test_texts_have_no_tags_of_words(self, classifier):
        with pytest.raises(ValueError, match="words.*'Anna'"):
            classifier.predict_tags(["Anna"])
        with pytest.raises(ValueError, match="words.*'Anna'"):
            classifier.predict_tags({"Anna": [["in", "Rome"]]})

    def test_no_room_for_pieces(self, build):
        with pytest.raises(ValueError, match="sequence_length is 2.* 3"):
            build(sequence_length=2)

    def test_an_unknown_strategy(self, classifier):
        with pytest.raises(ValueError, match="strategy is 'last'"):
            classifier.extract_entities("Anna", strategy="last")

    def test_labels_not_known_yet(self, build):
        for ask in (
            lambda c: c.extract_entities("Anna"),
            lambda c: c.evaluate([["Anna"]], [["O"]]),
            lambda c: c.evaluate_entities([["Anna"]], [["O"]]),
        ):
            with pytest.raises(ValueError, match="labels yet"):
                ask(build(labels=None))

    def test_evaluation_needs_labels(self, classifier):
        with pytest.raises(ValueError, match="labels are missing"):
            classifier.evaluate([["Anna"]])


def test_a_head_with_other_labels_is_not_taken_over_and_that_is_said(golden, caplog):
    folder = golden("Bert_ForTokenClassification").folder
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        ez.TokenClassifier.from_preset(folder, labels=["x", "y"])
    assert "head of TokenClassifier" in caplog.text


@pytest.mark.slow
def test_a_checkpoint_without_labels_learns_them(golden, caplog):
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        classifier = ez.TokenClassifier.from_preset(golden("Bert_Model").folder)
    assert "labels will be learned" in caplog.text
    classifier.fit([["the", "cat"]], [["O", "B-PET"]], verbose=0)
    assert classifier.labels == ["O", "B-PET"]


@pytest.mark.matrix
@pytest.mark.slow
def test_learned_labels_are_saved_with_the_preset(build, tmp_path):
    classifier = build(labels=None)
    classifier.fit(SENTENCES, TAGS, verbose=0)
    classifier.save_to_preset(tmp_path / "preset")
    loaded = ez.TokenClassifier.from_preset(tmp_path / "preset")
    assert loaded.labels == classifier.labels
    assert loaded.extract_entities([TEXT]) == classifier.extract_entities([TEXT])
    classifier.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.extract_entities([TEXT]) == classifier.extract_entities([TEXT])


def test_a_fit_that_fails_leaves_the_answers_as_they_are(build):
    classifier = build(labels=["O", "B-PER", "I-PER"])
    classifier.temperature = 2.0
    before = classifier.strategy, classifier.split_symbols, classifier.valid_tags
    with pytest.raises(ValueError, match="Example 0.*2 words.*1 tags"):
        classifier.fit([["Anna", "sees"]], [["O"]], verbose=0)
    assert (classifier.strategy, classifier.split_symbols, classifier.valid_tags) == before
    assert classifier.temperature == 2.0


@pytest.mark.slow
def test_tags_whose_names_are_integers_are_judged_by_name(build):
    classifier = build(labels=["1", "2", "3"])
    words = [["Anna", "sees"], ["Rome"]]
    tags = [[int(tag) for tag in row] for row in classifier.predict_tags(words)]
    by_number = classifier.evaluate_entities(words, tags)
    by_name = classifier.evaluate_entities(words, [[str(tag) for tag in row] for row in tags])
    assert by_number == by_name and by_number["f1"] == 1.0
