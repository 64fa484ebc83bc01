"""Tasks that LiteRT runs: the same answers in float32, close ones in int8, and no training."""

import numpy as np
import pytest
from not_installed import hide

import encoder_zoo as ez
from encoder_zoo.tasks.serving import lite_model

WORDS = "good fine nice bad poor awful the a film was it very query : passage".split()
TEXTS = ["good film", "the film was bad", "very nice", "awful", "it was fine a very fine film"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture(scope="module")
def build(tokenizer):
    def build(task, settings=None, **arguments):
        backbone = ez.BertBackbone(
            tokenizer.vocabulary_size,
            num_layers=2,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=32,
            max_sequence_length=24,
        )
        preprocessor = task.preprocessor_class(tokenizer, **(settings or {}))
        return task(backbone, preprocessor, **arguments)

    return build


@pytest.fixture(scope="module")
def embedder(build):
    return build(ez.TextEmbedder, {"prompts": {"query": "query : "}, "include_prompt": False})


@pytest.fixture(scope="module")
def fast(embedder):
    return embedder.for_cpu("float32")


class TestFloat32:
    def test_an_embedder_gives_the_same_vectors(self, embedder, fast):
        np.testing.assert_allclose(fast.embed(TEXTS), embedder.embed(TEXTS), atol=1e-5)
        for texts in (TEXTS[0], TEXTS * 10):  # one graph for one batch, several batches
            found = fast.embed(texts, prompt="query", dim=8)
            expected = embedder.embed(texts, prompt="query", dim=8)
            np.testing.assert_allclose(found, expected, atol=1e-5)
        assert fast.embed([]).shape == (0, 16)

    def test_an_index_of_it_finds_the_same(self, embedder, fast):
        found, expected = (m.index(TEXTS).search("good film", top_k=2) for m in (fast, embedder))
        assert [hit["index"] for hit in found] == [hit["index"] for hit in expected]

    def test_litert_computes_pairs_too(self, embedder, fast, monkeypatch):
        run, calls = fast.lite_model._run, []
        monkeypatch.setattr(fast.lite_model, "_run", lambda batch: (calls.append(1), run(batch))[1])
        pairs, _ = embedder.preprocessor((TEXTS, TEXTS[::-1]))
        np.testing.assert_allclose(fast(pairs), embedder(pairs), atol=1e-5)
        assert len(calls) == 2

    def test_litert_takes_no_other_inputs_than_its_own(self, embedder, fast):
        x = embedder.preprocessor(TEXTS)
        ids = {"token_ids": x["token_ids"]}
        assert fast.lite_model.takes(x) and fast.lite_model.takes(ids)
        assert not fast.lite_model.takes({**x, "answer_start": x["token_ids"][:, :1]})

    def test_long_texts_go_in_parts(self, embedder, fast, monkeypatch):
        longest, seen = 5 * " the film was bad", []
        run = fast.lite_model._run
        monkeypatch.setattr(lite_model, "MAX_POSITION_PAIRS", 2 * 22**2)
        monkeypatch.setattr(
            fast.lite_model, "_run", lambda batch: (seen.append(len(batch[0])), run(batch))[1]
        )
        found = fast.embed([longest] * 5)
        assert seen == [2, 2, 1]
        np.testing.assert_allclose(found, embedder.embed([longest] * 5), atol=1e-5)

    def test_a_classifier(self, build):
        classifier = build(ez.SequenceClassifier, labels=["bad", "good"])
        fast = classifier.for_cpu("float32")
        np.testing.assert_allclose(fast.predict(TEXTS), classifier.predict(TEXTS), atol=1e-5)
        many = TEXTS * 20
        np.testing.assert_allclose(fast.predict(many), classifier.predict(many), atol=1e-5)
        assert fast.classify("good film")["label"] == classifier.classify("good film")["label"]
        labels = ["bad", "good", "bad", "good", "bad"]
        for model in (fast, classifier):
            model.compile()
        found, expected = (
            model.evaluate(TEXTS, labels, verbose=0, return_dict=True)
            for model in (fast, classifier)
        )
        assert found == pytest.approx(expected, abs=1e-5)

    @pytest.mark.slow
    def test_tasks_of_tokens_spans_and_pairs(self, build):
        tagger = build(ez.TokenClassifier, labels=["O", "B-X", "I-X"])
        words = [["good", "film"], ["the", "very", "bad", "film"]]
        found, expected = tagger.for_cpu("float32").predict(words), tagger.predict(words)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        reader = build(ez.SpanQA)
        found = reader.for_cpu("float32").answer("was it good", "it was a very good film")
        expected = reader.answer("was it good", "it was a very good film")
        assert found == {**expected, "score": pytest.approx(expected["score"], abs=1e-5)}
        reranker = build(ez.Reranker)
        pairs = ["was it good"] * len(TEXTS), TEXTS
        np.testing.assert_allclose(
            reranker.for_cpu("float32").score(pairs), reranker.score(pairs), atol=1e-5
        )


def test_int8_is_close(nano_embedder):
    texts = ["A cat sleeps on the mat.", "Stocks fell sharply.", "It rains."] * 12
    found, expected = nano_embedder.for_cpu().embed(texts), nano_embedder.embed(texts)
    similarity = np.sum(found * expected, axis=1)
    assert similarity.min() > 0.97  # near ...
    assert similarity.max() < 0.99999  # ... and quantized


@pytest.fixture(scope="module")
def nano_embedder():
    return ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")


def test_it_answers_with_the_weights_of_its_making(build):
    embedder = build(ez.TextEmbedder)
    fast, before = embedder.for_cpu("float32"), embedder.embed(TEXTS)
    for weight in embedder.weights:
        weight.assign(weight + 0.1 * np.cos(np.arange(weight.shape[-1])))
    assert np.abs(embedder.embed(TEXTS) - before).max() > 0.01
    np.testing.assert_allclose(fast.embed(TEXTS), before, atol=1e-5)


def test_it_is_neither_trained_nor_exported(fast, tmp_path):
    with pytest.raises(ValueError, match=r"result of for_cpu, which answers only\. Call fit"):
        fast.fit((TEXTS, TEXTS[::-1]), verbose=0)
    with pytest.raises(ValueError, match="result of for_cpu"):
        fast.export(tmp_path / "served")
    with pytest.raises(ValueError, match="result of for_cpu"):
        fast.for_cpu()


def test_the_model_must_be_in_float32(build):
    backbone = ez.BertBackbone(
        30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16, dtype="bfloat16"
    )
    with pytest.raises(ValueError, match="whose backbone computes in bfloat16"):
        ez.TextEmbedder(backbone).for_cpu()


def test_a_missing_package_is_named(embedder, monkeypatch):
    hide(monkeypatch, lite_model.litert)
    with pytest.raises(ImportError, match=r"`pip install ai-edge-litert`"):
        embedder.for_cpu()
