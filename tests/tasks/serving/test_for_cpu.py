"""Tasks that LiteRT or OpenVINO runs: the same answers in float32, close ones in int8, and no
training."""

import copy
import importlib.util
import json
import os
import pathlib
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from not_installed import hide

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.serving import cpu_model, engines
from encoder_zoo.testing import tiny

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
        preprocessor = task.record.preprocessor_class(tokenizer, **(settings or {}))
        return task(backbone, preprocessor, **arguments)

    return build


@pytest.fixture(scope="module")
def embedder(build):
    return build(ez.TextEmbedder, {"prompts": {"query": "query : "}, "include_prompt": False})


@pytest.fixture(scope="module")
def fast(embedder):
    return embedder.for_cpu("float32")


class TestFloat32:
    @pytest.mark.slow
    @pytest.mark.matrix
    def test_an_embedder_gives_the_same_vectors(self, embedder, fast):
        np.testing.assert_allclose(fast.embed(TEXTS), embedder.embed(TEXTS), atol=1e-5)
        for texts in (TEXTS[0], TEXTS * 10):  # one graph for one batch, several batches
            found = fast.embed(texts, prompt="query", dim=8)
            expected = embedder.embed(texts, prompt="query", dim=8)
            np.testing.assert_allclose(found, expected, atol=1e-5)
        assert fast.embed([]).shape == (0, 16)

    @pytest.mark.slow
    def test_an_index_of_it_finds_the_same(self, embedder, fast):
        found, expected = (m.index(TEXTS).search("good film", top_k=2) for m in (fast, embedder))
        assert [hit["index"] for hit in found] == [hit["index"] for hit in expected]

    @pytest.mark.slow
    def test_litert_computes_pairs_too(self, embedder, fast, monkeypatch):
        session, calls = fast.cpu_model.session, []
        run = session.run
        monkeypatch.setattr(session, "run", lambda inputs: (calls.append(1), run(inputs))[1])
        pairs, _ = embedder.preprocessor((TEXTS, TEXTS[::-1]))
        np.testing.assert_allclose(fast(pairs), embedder(pairs), atol=1e-5)
        assert len(calls) == 2

    @pytest.mark.slow
    def test_litert_takes_no_other_inputs_than_its_own(self, embedder, fast):
        x = embedder.preprocessor(TEXTS)
        ids = {"token_ids": x["token_ids"]}
        session = fast.cpu_model.session
        assert session.supports_inputs(x) and session.supports_inputs(ids)
        assert not session.supports_inputs({**x, "answer_start": x["token_ids"][:, :1]})

    def test_long_texts_go_in_parts(self, embedder, fast, monkeypatch):
        longest, seen = 5 * " the film was bad", []
        session = fast.cpu_model.session
        infer = session._infer
        monkeypatch.setattr(engines, "MAX_POSITION_PAIRS", 2 * 22**2)
        monkeypatch.setattr(
            session,
            "_infer",
            lambda batch: (seen.append(len(batch["token_ids"])), infer(batch))[1],
        )
        found = fast.embed([longest] * 5)
        assert seen == [2, 2, 1]
        np.testing.assert_allclose(found, embedder.embed([longest] * 5), atol=1e-5)

    @pytest.mark.slow
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

    @pytest.mark.matrix
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


@pytest.mark.slow
def test_int8_is_close(nano_embedder):
    texts = ["A cat sleeps on the mat.", "Stocks fell sharply.", "It rains."] * 12
    found, expected = nano_embedder.for_cpu().embed(texts), nano_embedder.embed(texts)
    similarity = np.sum(found * expected, axis=1)
    assert similarity.min() > 0.97  # near ...
    assert similarity.max() < 0.99999  # ... and quantized


@pytest.fixture(scope="module")
def nano_embedder():
    return ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")


@pytest.mark.slow
def test_it_answers_with_the_weights_of_its_making(build):
    embedder = build(ez.TextEmbedder)
    fast, before = embedder.for_cpu("float32"), embedder.embed(TEXTS)
    for weight in embedder.weights:
        weight.assign(weight + 0.1 * np.cos(np.arange(weight.shape[-1])))
    assert np.abs(embedder.embed(TEXTS) - before).max() > 0.01
    np.testing.assert_allclose(fast.embed(TEXTS), before, atol=1e-5)


@pytest.mark.slow
def test_it_is_neither_trained_nor_exported(fast, tmp_path):
    with pytest.raises(ValueError, match="for_cpu.*fit"):
        fast.fit((TEXTS, TEXTS[::-1]), verbose=0)
    with pytest.raises(ValueError, match="for_cpu"):
        fast.export(tmp_path / "served")
    with pytest.raises(ValueError, match="for_cpu"):
        fast.for_cpu()


@pytest.mark.slow
def test_an_index_of_it_is_not_exported(fast, tmp_path):
    index = fast.index(TEXTS)
    with pytest.raises(ValueError, match="for_cpu.*exported"):  # it would need this process
        index.export(tmp_path / "1")
    assert not (tmp_path / "1").exists()


@pytest.mark.slow
def test_operations_that_litert_lacks_are_named(build):
    with pytest.raises(ValueError, match="LiteRT.*BitwiseAnd.*TextEmbedder"):
        build(ez.TextEmbedder, pooling="max").for_cpu("float32")


@pytest.mark.slow
def test_replaced_tokens_are_detected_by_the_engine(monkeypatch):
    detector = tiny.task(get_family("electra"), ez.ReplacedTokenDetection)
    fast, calls = detector.for_cpu("float32"), []
    run = fast.cpu_model.session.run
    monkeypatch.setattr(
        fast.cpu_model.session, "run", lambda inputs: (calls.append(1), run(inputs))[1]
    )
    for ours, theirs in zip(fast.detect("a b ab"), detector.detect("a b ab"), strict=True):
        assert ours["score"] == pytest.approx(theirs["score"], abs=1e-5)
    assert calls == [1]


def test_the_model_must_be_in_float32(build):
    backbone = ez.BertBackbone(
        30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16, dtype="bfloat16"
    )
    with pytest.raises(ValueError, match="bfloat16.*float32"):
        ez.TextEmbedder(backbone).for_cpu()


def test_a_missing_package_is_named(embedder, monkeypatch):
    hide(monkeypatch, engines.litert)
    with pytest.raises(ImportError, match=r"`pip install ai-edge-litert`"):
        embedder.for_cpu()
    hide(monkeypatch, engines.openvino)
    with pytest.raises(ImportError, match=r"need the package openvino: .*encoder-zoo\[openvino\]"):
        embedder.for_cpu("float32", engine="openvino")


def test_engines_dtypes_and_texts_that_do_not_fit(embedder):
    with pytest.raises(ValueError, match="engine"):
        embedder.for_cpu(engine="onnx")
    with pytest.raises(ValueError, match="dtype"):
        embedder.for_cpu("float16", engine="openvino")
    with pytest.raises(ValueError, match="dtype is 'bfloat16'"):
        embedder.for_cpu("bfloat16")
    with pytest.raises(ValueError, match=r"texts is (None|\[\]).*int8"):
        embedder.for_cpu(engine="openvino")
    for options in ({}, {"dtype": "float32"}, {"dtype": "bfloat16", "engine": "openvino"}):
        with pytest.raises(ValueError, match=r"texts is \[.*engine='openvino'"):
            embedder.for_cpu(**options, texts=TEXTS)


needs_openvino = pytest.mark.skipif(
    not importlib.util.find_spec("openvino"), reason="needs openvino"
)
needs_nncf = pytest.mark.skipif(not importlib.util.find_spec("nncf"), reason="needs nncf")


@needs_openvino
class TestOpenVino:
    @pytest.fixture(scope="class")
    def fast(self, embedder):
        return embedder.for_cpu("float32", engine="openvino")

    def test_an_embedder_gives_the_same_vectors(self, embedder, fast):
        for texts in (TEXTS[0], TEXTS, TEXTS * 10):
            found = fast.embed(texts, prompt="query", dim=8)
            expected = embedder.embed(texts, prompt="query", dim=8)
            np.testing.assert_allclose(found, expected, atol=1e-5)
        assert fast.embed([]).shape == (0, 16)

    def test_batches_of_any_shape(self, embedder, fast):
        rng = np.random.default_rng(0)
        for batch, length in rng.integers(1, 24, (40, 2)):
            mask = (np.arange(length) < rng.integers(1, length + 1, (batch, 1))).astype("int32")
            ids = rng.integers(5, 18, (batch, length)).astype("int32")
            given = {"token_ids": ids * mask, "padding_mask": mask}
            np.testing.assert_allclose(fast(given), embedder(given), atol=1e-5)

    def test_threads_get_their_own_answers(self, embedder, fast):
        expected = embedder.embed(TEXTS)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(fast.embed, TEXTS * 20))
        np.testing.assert_allclose(found, np.tile(expected, (20, 1)), atol=1e-5)

    def test_copies_are_of_the_model_itself(self, embedder, fast, tmp_path):
        fast.save_to_preset(tmp_path / "preset")
        opened = ez.TextEmbedder.from_preset(tmp_path / "preset")
        for model in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast)), opened):
            assert model.cpu_model is None
            np.testing.assert_allclose(model.embed(TEXTS), embedder.embed(TEXTS), atol=1e-6)

    def test_bfloat16_is_close(self, nano_embedder):
        texts = ["A cat sleeps on the mat.", "Stocks fell sharply.", "It rains."]
        fast = nano_embedder.for_cpu("bfloat16", engine="openvino")
        similarity = np.sum(fast.embed(texts) * nano_embedder.embed(texts), axis=1)
        assert similarity.min() > 0.999

    def test_tasks_of_classes_tokens_spans_and_masks(self, build):
        def fast(task):
            return task.for_cpu("float32", engine="openvino")

        classifier = build(ez.SequenceClassifier, labels=["bad", "good"])
        np.testing.assert_allclose(
            fast(classifier).predict(TEXTS * 20), classifier.predict(TEXTS * 20), atol=1e-5
        )
        tagger = build(ez.TokenClassifier, labels=["O", "B-X", "I-X"])
        words = [["good", "film"], ["the", "very", "bad", "film"]]
        for found, expected in zip(fast(tagger).predict(words), tagger.predict(words), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)
        reader = build(ez.SpanQA)
        question = "was it good", "it was a very good film"
        expected = reader.answer(*question)
        expected["score"] = pytest.approx(expected["score"], abs=1e-5)
        assert fast(reader).answer(*question) == expected
        masked = build(ez.MaskedLM)
        found, expected = (m.fill_mask("the [MASK] film") for m in (fast(masked), masked))
        assert [a["token"] for a in found] == [a["token"] for a in expected]

    def test_an_embedder_of_first_tokens(self, build):
        embedder = build(ez.TextEmbedder, pooling=["cls", "lasttoken"])
        fast = embedder.for_cpu("float32", engine="openvino")
        np.testing.assert_allclose(fast.embed(TEXTS), embedder.embed(TEXTS), atol=1e-5)

    def test_a_part_that_openvino_lacks(self, build):
        with pytest.raises(ValueError, match="TextEmbedder.*engine='litert'"):
            build(ez.TextEmbedder, pooling="max").for_cpu("float32", engine="openvino")

    def test_mpnet_is_refused(self):
        task = tiny.task(get_family("mpnet"), ez.TextEmbedder)
        with pytest.raises(ValueError, match="'mpnet'.*engine='litert'"):
            task.for_cpu("float32", engine="openvino")

    def test_a_missing_nncf_is_named_before_any_work(self, embedder, monkeypatch):
        hide(monkeypatch, cpu_model.nncf)
        monkeypatch.delattr(cpu_model.model_files, "make_openvino_model")
        with pytest.raises(ImportError, match=r"needs the package nncf"):
            embedder.for_cpu(engine="openvino", texts=TEXTS)

    @needs_nncf
    def test_no_texts(self, embedder, build):
        with pytest.raises(ValueError, match=r"texts is (None|\[\]).*int8"):
            embedder.for_cpu(engine="openvino", texts=[])
        with pytest.raises(ValueError, match="No texts"):
            build(ez.SequenceClassifier, labels=["bad", "good"]).for_cpu(
                engine="openvino", texts=([], [])
            )

    @needs_nncf
    def test_int8_is_close(self, nano_embedder, capsys, monkeypatch):
        monkeypatch.delenv("NNCF_CI", raising=False)
        texts = [f"A {a} sleeps on the {b}." for a in ("cat", "dog") for b in ("mat", "sofa")]
        texts += ["Stocks fell sharply.", "It rains.", "The film was very good."]
        capsys.readouterr()
        fast = nano_embedder.for_cpu(engine="openvino", texts=texts)
        assert capsys.readouterr() == ("", "") and "NNCF_CI" not in os.environ
        found, expected = fast.embed(texts * 12), nano_embedder.embed(texts * 12)
        similarity = np.sum(found * expected, axis=1)
        assert similarity.min() > 0.98 and similarity.max() < 0.99999
        assert fast.cpu_model.identity.startswith("openvino int8 ")

    @pytest.mark.matrix
    @needs_nncf
    @pytest.mark.slow
    def test_int8_of_tokens_pairs_and_prepared_inputs(self, build):
        words = [text.split() for text in TEXTS] * 4
        tagger = build(ez.TokenClassifier, labels=["O", "B-X", "I-X"])
        masked, reranker, reader = build(ez.MaskedLM), build(ez.Reranker), build(ez.SpanQA)
        given = masked.preprocessor(TEXTS)[0]
        pairs = TEXTS, TEXTS[::-1]
        for task, x in ((tagger, words), (masked, given), (reranker, pairs), (reader, pairs)):
            found = task.for_cpu(engine="openvino", texts=x).predict(x)
            for one, two in zip(found, task.predict(x), strict=True):
                np.testing.assert_allclose(one, two, atol=0.3)
        with pytest.raises(ValueError, match="^x is.*preprocessed"):
            masked.for_cpu(engine="openvino", texts=TEXTS)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_pytorch_without_tensorflow(self, tmp_path, nano_embedder):
        pytest.importorskip("onnx")
        nano_embedder.save_to_preset(tmp_path / "preset")
        environment = {**os.environ, "KERAS_BACKEND": "torch"}
        command = [sys.executable, "-c", ON_TORCH, str(tmp_path / "preset")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        expected = nano_embedder.embed(found["texts"])
        np.testing.assert_allclose(found["vectors"], expected, atol=1e-5)
        assert "On 'torch', pass engine='openvino'" in found["error"]


ON_TORCH = """
import json, sys

sys.modules |= dict.fromkeys(["tensorflow", "jax"])
import encoder_zoo as ez

embedder = ez.TextEmbedder.from_preset(sys.argv[1])
texts = ["A cat sleeps.", "It rains.", "The film was very, very good."] * 20
fast = embedder.for_cpu("float32", engine="openvino")
try:
    embedder.for_cpu("float32")
except ValueError as error:
    print(json.dumps({
        "texts": texts, "vectors": fast.embed(texts).tolist(), "error": str(error)
    }))
"""

DATA = pathlib.Path(os.environ.get("ENCODER_ZOO_DATA", ""))


@pytest.mark.matrix
@needs_openvino
@needs_nncf
@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA / "pairs" / "stsb").is_dir(), reason="needs ENCODER_ZOO_DATA/pairs/stsb"
)
def test_int8_orders_the_pairs_of_sts_b_as_float32_does(nano_embedder):
    def read(name):
        lines = (DATA / "pairs" / "stsb" / f"{name}.tsv").read_text("utf-8").splitlines()[1:]
        return tuple(zip(*(line.split("\t")[:3] for line in lines), strict=True))

    _, typical, _ = read("train")
    scores, first, second = read("dev")
    ranks = np.argsort(np.argsort(np.array(scores, "float32"), kind="stable"))

    def correlation(model):
        similarity = np.sum(model.embed(list(first)) * model.embed(list(second)), axis=1)
        return 100 * np.corrcoef(np.argsort(np.argsort(similarity)), ranks)[0, 1]

    fast = nano_embedder.for_cpu(engine="openvino", texts=list(typical[::20]))
    assert abs(correlation(fast) - correlation(nano_embedder)) < 0.3
