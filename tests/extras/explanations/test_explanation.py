"""Explanations: linear models by hand, integrals in closed form, completeness, differences."""

import logging

import keras
import numpy as np
import pytest
from keras import ops
from processes import run

import encoder_zoo as ez
from encoder_zoo.extras.explanations import attributions as attributions_module
from encoder_zoo.extras.explanations.attributions import (
    compute_integrated_gradients,
    compute_lobatto_nodes,
    compute_values_and_gradients,
    compute_weighted_logits,
)

METHODS = ("integrated_gradients", "gradient_x_input")
WORDS = ["anna", "jo", "##sé", "rome", "new", "york", "in", "sees", ".", "who", "?"]


@pytest.fixture(scope="module")
def sentiment():
    return ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")


@pytest.fixture(scope="module")
def tokenizer():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return ez.BertTokenizer([*special, *WORDS], strip_accents=False)


@pytest.fixture(scope="module")
def backbone(tokenizer):
    keras.utils.set_random_seed(0)
    size = tokenizer.vocabulary_size
    return ez.BertBackbone(size, 2, 2, 16, 32, max_sequence_length=32, pooler=False)


@pytest.fixture(scope="module")
def tagger(backbone, tokenizer):
    preprocessor = ez.TokenClassifierPreprocessor(tokenizer, sequence_length=12)
    tagger = ez.TokenClassifier(backbone, preprocessor, labels=["O", "B-PER", "I-PER", "B-LOC"])
    kernel, bias = tagger.head.weights[-2:]
    kernel.assign(5 * ops.convert_to_numpy(kernel))
    bias.assign([-1.0, 1.0, 0.0, 0.5])
    return tagger


@pytest.fixture(scope="module")
def reader(backbone, tokenizer):
    return ez.SpanQA(backbone, ez.SpanQAPreprocessor(tokenizer, window_length=16, doc_stride=2))


def gap(found: dict) -> float:
    """Return how far the attributions are from adding up to the difference of the logits."""
    return abs(sum(w["attribution"] for w in found["words"]) - (found["logit"] - found["baseline"]))


class TestIntegration:
    @pytest.mark.parametrize("count", [2, 4, 7])
    def test_the_quadrature_is_exact_for_polynomials(self, count):
        nodes, weights = compute_lobatto_nodes(count)
        for degree in range(2 * count - 2):
            assert weights @ nodes**degree == pytest.approx(1 / (degree + 1), abs=1e-12)

    def test_a_product_by_hand(self):
        # x y² from (0, 0) to (2, 3): the integrals of the slopes are a b² / 3 and 2 a b² / 3.
        def along(t):
            return 18 * t**3, np.stack([18 * t**2, 36 * t**2], axis=1)

        found = compute_integrated_gradients(along)
        np.testing.assert_allclose(found.tokens, [6, 12])
        assert (found.output, found.baseline) == (18, 0)

    @pytest.mark.parametrize("bend", [0.3, 0.5, 0.999])
    def test_a_bend_is_searched_out(self, bend):
        points = []

        def along(t):
            points.extend(t)
            slope = np.where(t > bend, 5.0, 0.0)
            return 5 * np.maximum(t - bend, 0), np.stack([slope, slope / 5, -slope / 5], axis=1)

        found = compute_integrated_gradients(along)
        expected = 5 * (1 - bend) * np.array([1, 0.2, -0.2])
        np.testing.assert_allclose(found.tokens, expected, atol=0.02)
        assert len(points) < 300

    def test_noise_comes_to_an_end(self):
        rng = np.random.default_rng(0)
        compute_integrated_gradients(
            lambda t: (rng.normal(size=len(t)), rng.normal(size=(len(t), 3)))
        )


class TestLinearModel:
    """The logits are those of the mean of the embeddings: attributions are known by hand."""

    @pytest.mark.slow(except_for="^A great film, unforgettable!-gradient_x_input")
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("texts", ["A great film, unforgettable!", ("A film.", "It was bad")])
    def test_by_hand(self, sentiment, monkeypatch, method, texts):
        def mean(embedded, inputs):
            return {"pooled_output": ops.mean(embedded, axis=1)}

        monkeypatch.setattr(sentiment.backbone, "_encode_embedded", mean)
        found = sentiment.explain(texts, label="positive", method=method)
        columns = ([texts],) if isinstance(texts, str) else tuple([text] for text in texts)
        inputs = {n: v.numpy() for n, v in sentiment.preprocessor(columns).items()}
        ids, tokenizer = inputs["token_ids"], sentiment.preprocessor.tokenizer
        special = np.isin(ids, [tokenizer.start_token_id, tokenizer.end_token_id])
        masked = np.where(special, ids, tokenizer.mask_token_id)
        vectors = [
            ops.convert_to_numpy(sentiment.backbone._embed({**inputs, "token_ids": i}))
            for i in (ids, masked)
        ]
        kernel, bias = map(ops.convert_to_numpy, sentiment.head.weights)
        index = sentiment.labels.index("positive")
        added = ((vectors[0] - vectors[1]) @ kernel[:, index])[0] / ids.shape[1]
        expected, pieces = [], [tokenizer.id_to_token(i) for i in ids[0]]
        for value, piece, skip in zip(added, pieces, special[0], strict=True):
            if piece.startswith("##"):
                expected[-1] += value
            elif not skip:
                expected.append(value)
        assert any(piece.startswith("##") for piece in pieces) == isinstance(texts, str)
        np.testing.assert_allclose([w["attribution"] for w in found["words"]], expected, atol=1e-5)
        both = [(v.mean(axis=1) @ kernel + bias)[0, index] for v in vectors]
        np.testing.assert_allclose([found["logit"], found["baseline"]], both, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        "Bert",
        "ModernBert",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("DebertaV2", "Roberta")),
    ],
)
def test_completeness_of_every_kind_of_encoder(tiny, family):
    classifier = tiny.task(getattr(ez, f"{family}Backbone").family, "SequenceClassifier")
    found = classifier.explain("c d e a b")
    logits = ops.convert_to_numpy(classifier(classifier.preprocessor(["c d e a b"])))
    assert found["logit"] == pytest.approx(logits.max(), abs=1e-4)
    assert gap(found) < 1e-3
    assert max(abs(word["attribution"]) for word in found["words"]) > 0.01


@pytest.mark.slow
def test_gradients_are_those_of_finite_differences(tagger):
    inputs = {n: v.numpy() for n, v in tagger.preprocessor(["anna in rome"]).items()}
    weights = np.random.default_rng(0).normal(size=(1, 12, 4)).astype("float32")
    vectors = ops.convert_to_numpy(tagger.backbone._embed(inputs)).repeat(2, axis=0)

    def function(x):
        return compute_weighted_logits(tagger, inputs, weights, x)

    _, gradients = compute_values_and_gradients(function, vectors)
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-6)
    for column, feature in ((0, 0), (2, 7), (4, 15)):
        step = np.zeros_like(vectors[:1])
        step[0, column, feature] = 1e-2
        both = np.concatenate([vectors[:1] + step, vectors[:1] - step])
        plus, minus = ops.convert_to_numpy(function(both))
        assert gradients[0, column, feature] == pytest.approx((plus - minus) / 2e-2, abs=2e-3)


class TestTexts:
    @pytest.mark.slow
    def test_words_that_speak_for_and_against(self, sentiment):
        text = "The acting was wonderful, but the sound was awful."
        for_it = sentiment.explain(text, label="positive")
        against = sentiment.explain(text, label="negative")
        by_word = [
            {word["text"]: word["attribution"] for word in found["words"]}
            for found in (for_it, against)
        ]
        assert by_word[0]["wonderful"] > 1 > -1 > by_word[0]["awful"]
        assert by_word[1]["wonderful"] < -1 < 1 < by_word[1]["awful"]
        assert gap(for_it) < 1e-3 and gap(against) < 1e-3
        assert for_it["score"] + against["score"] == pytest.approx(1.0, abs=1e-6)

    @pytest.mark.slow
    def test_the_best_label_is_explained(self, sentiment):
        texts = ["Great!", "An awful, boring film."]
        found, answers = (
            sentiment.explain(texts, method="gradient_x_input"),
            sentiment.classify(texts),
        )
        assert [row["label"] for row in found] == [answer["label"] for answer in answers]
        np.testing.assert_allclose([r["score"] for r in found], [a["score"] for a in answers], 1e-4)
        assert [row["texts"] for row in found] == [["Great!"], ["An awful, boring film."]]

    def test_characters_of_the_callers_texts(self, sentiment):
        texts = "🙂 Unforgettably GREAT…", "Ça, c'est déjà-vu!"
        words = sentiment.explain(texts, method="gradient_x_input")["words"]
        assert [w["part"] for w in words] == sorted(w["part"] for w in words)
        assert {w["part"] for w in words} == {0, 1}
        assert all(texts[w["part"]][w["start"] : w["end"]] == w["text"] for w in words)
        joined = ["".join(w["text"] for w in words if w["part"] == i) for i in (0, 1)]
        assert joined == ["".join(text.split()) for text in texts]

    @pytest.mark.slow
    def test_a_document_of_spacy(self, sentiment):
        class Doc(list):
            text, ents = "A great film.", ()

        assert sentiment.explain(Doc(), method="gradient_x_input") == sentiment.explain(
            Doc.text, method="gradient_x_input"
        )
        assert sentiment.classify(Doc()) == sentiment.classify(Doc.text)
        assert sentiment.classify([Doc(), Doc()]) == sentiment.classify([Doc.text] * 2)

    def test_an_empty_text(self, sentiment):
        found = sentiment.explain("")
        assert found["words"] == [] and found["logit"] == pytest.approx(found["baseline"], abs=1e-5)

    def test_what_is_not_read_has_no_words(self, sentiment, monkeypatch):
        monkeypatch.setattr(sentiment.preprocessor, "max_sequence_length", 6)
        found = sentiment.explain(["one two three four five six"], method="gradient_x_input")
        assert [word["text"] for word in found[0]["words"]] == ["one", "two", "three", "four"]

    @pytest.mark.matrix
    @pytest.mark.slow
    @pytest.mark.parametrize("pooling", ["mean", "max"])
    def test_windows(self, pooling):
        preset, long = "bert_nano_en_uncased_sentiment", {"window_length": 12, "doc_stride": 2}
        classifier = ez.SequenceClassifier.from_preset(preset, window_pooling=pooling, **long)
        text = (
            "The food was great, and I loved it. But the staff was rude and very slow, I hated it."
        )
        for texts in ([text], (["It was fine."], [text])):
            [found] = classifier.explain(texts, label="negative")
            [logits] = classifier.predict(texts, verbose=0)
            assert found["logit"] == pytest.approx(logits[0], abs=1e-4)
            assert gap(found) < 1e-3
            words = [word for word in found["words"] if word["part"] == len(found["texts"]) - 1]
            assert all(word["text"] == text[word["start"] : word["end"]] for word in words)
            if pooling == "mean":
                assert "".join(word["text"] for word in words) == text.replace(" ", "")

    def test_refusals(self, sentiment):
        with pytest.raises(ValueError, match="label is 'good'"):
            sentiment.explain("Great!", label="good")
        with pytest.raises(ValueError, match="method is 'lime'"):
            sentiment.explain("Great!", method="lime")

    @pytest.mark.slow
    def test_half_precision_is_too_coarse(self, caplog, monkeypatch):
        monkeypatch.setattr(attributions_module, "MAX_POINTS", 42)
        preset = "bert_nano_en_uncased_sentiment"
        classifier = ez.SequenceClassifier.from_preset(preset, dtype="mixed_bfloat16")
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            classifier.explain(["A great film.", "An awful film."])
        assert len(caplog.records) == 1
        assert "of 2 explanations" in caplog.messages[0]

    @pytest.mark.slow
    def test_numbers_and_several_labels(self, tiny):
        family = ez.BertBackbone.family
        parts = tiny.backbone(family), ez.SequenceClassifierPreprocessor(tiny.tokenizer(family))
        model = ez.SequenceClassifier(*parts, num_classes=1, problem_type="regression")
        found = model.explain("a b")
        assert found["score"] == pytest.approx(model.classify("a b")["score"], abs=1e-5)
        kind = {"labels": ["x", "y", "z"], "problem_type": "multi_label_classification"}
        model = ez.SequenceClassifier(*parts, **kind)
        found, [best] = model.explain("a b"), model.classify("a b", top_k=1)
        assert (found["label"], found["score"]) == (best["label"], pytest.approx(best["score"]))


class TestEntities:
    @pytest.mark.slow
    @pytest.mark.parametrize("strategy", ["simple", "first", "none"])
    def test_the_logit_is_the_mean_of_the_entitys_tags(self, tagger, strategy):
        text = "Anna sees José in Rome."
        found = tagger.explain(text, strategy)
        entities = tagger.extract_entities(text, strategy)
        assert [{name: row[name] for name in entities[0]} for row in found] == entities
        logits = tagger.predict([text])[0]
        _, starts, ends = tagger.preprocessor.tokenizer.tokenize_with_offsets(text)
        kinds = {"PER": [1, 2], "LOC": [3], "B-PER": [1], "I-PER": [2], "B-LOC": [3]}
        for row in found:
            inside = [
                i
                for i, (s, e) in enumerate(zip(starts.numpy(), ends.numpy(), strict=True))
                if s < row["end"] and e > row["start"]
            ]
            if strategy == "first":  # "##sé" is the only other token
                inside = [i for i in inside if starts[i] != 12]
            expected = np.mean([logits[i, kinds[row["label"]]].max() for i in inside])
            assert row["logit"] == pytest.approx(expected, abs=1e-4)
            assert gap(row) < 1e-3
            assert [word["text"] for word in row["words"]] == [
                *("Anna", "sees", "José", "in", "Rome", ".")
            ]

    @pytest.mark.eager
    @pytest.mark.parametrize("strategy", ["simple", "first", "none"])
    def test_a_token_that_is_a_space(self, tiny, strategy):
        family = ez.RobertaBackbone.family
        tokenizer = tiny.tokenizer(family)
        preprocessor = ez.TokenClassifierPreprocessor(tokenizer, sequence_length=12)
        tagger = ez.TokenClassifier(tiny.backbone(family), preprocessor, labels=["B-X", "I-X"])
        [found] = tagger.explain(["a  b"], strategy, "gradient_x_input")
        [entities] = tagger.extract_entities(["a  b"], strategy)
        assert [row["start"] for row in found] == [entity["start"] for entity in entities]
        assert {row["text"].strip() for row in found if row["text"]} == {r["text"] for r in found}

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_windows(self, tagger):
        text = "Anna sees José in New York . " * 4
        found = tagger.explain([text, ""], method="gradient_x_input")
        assert found[1] == [] and len(found[0]) > 3
        for row in found[0]:
            words = [(word["start"], word["end"]) for word in row["words"]]
            assert len(words) <= 10
            assert words[0][0] <= row["start"] and row["start"] < words[-1][1]
            assert all(word["text"] == text[word["start"] : word["end"]] for word in row["words"])


class TestAnswers:
    @pytest.mark.slow
    def test_the_logit_is_the_sum_of_both(self, reader):
        question, context = " Who sees Rome?", "Anna sees José in New York."
        found = reader.explain(question, context)
        answer = reader.answer(question, context)
        assert {name: found[name] for name in answer} == answer
        [[logits]] = reader.predict(([question], [context]))
        _, starts, ends = reader.preprocessor.tokenizer.tokenize_with_offsets(context)
        first, last = list(starts).index(found["start"]), list(ends).index(found["end"])
        expected = logits[0, 6 + first] + logits[1, 6 + last]  # [CLS] who sees rome ? [SEP]
        assert found["logit"] == pytest.approx(expected, abs=1e-4)
        assert gap(found) < 1e-3
        assert [w["text"] for w in found["words"] if w["part"] == 0] == ["Who", "sees", "Rome", "?"]
        assert [w["text"] for w in found["words"] if w["part"] == 1][-2:] == ["York", "."]

    @pytest.mark.slow
    def test_windows_and_no_answer(self, reader):
        context = "Anna sees José in New York . " * 3
        [found] = reader.explain(["Who?"], [context])
        span = [w for w in found["words"] if w["part"] == 1]
        assert span[0]["start"] <= found["start"] and found["end"] <= span[-1]["end"]
        assert gap(found) < 1e-3
        none = reader.explain("Who?", context, null_threshold=-1e6)
        assert none["text"] == "" and gap(none) < 1e-3
        lowest = min(window[:, 0].sum() for window in reader.predict((["Who?"], [context]))[0])
        assert none["logit"] == pytest.approx(lowest, abs=1e-4)

    @pytest.mark.slow
    def test_one_context(self, reader):
        several = reader.explain(["Who?", "Who sees Rome?"], "Anna sees Rome.", "gradient_x_input")
        assert [row["texts"][0] for row in several] == ["Who?", "Who sees Rome?"]
        with pytest.raises(ValueError, match="explain.*context"):
            reader.explain("Who?", ["Anna.", "Rome."])


ON_A_BACKEND = """
import encoder_zoo as ez
classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
for method in ("integrated_gradients", "gradient_x_input"):
    found = classifier.explain("The food was great, but the staff was very rude.", method=method)
    print(*(word["attribution"] for word in found["words"]), found["logit"], found["baseline"])
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_explain_alike(sentiment, backend):
    lines = [line.split() for line in run(ON_A_BACKEND, KERAS_BACKEND=backend).splitlines()]
    for method, values in zip(METHODS, lines, strict=True):
        found = sentiment.explain("The food was great, but the staff was very rude.", method=method)
        expected = [word["attribution"] for word in found["words"]]
        expected += [found["logit"], found["baseline"]]
        np.testing.assert_allclose(np.array(values, float), expected, atol=2e-3)
