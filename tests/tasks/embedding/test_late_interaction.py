"""LateInteraction: folders of three libraries, markers, expansion, skiplist, scores, training."""

import json
import shutil
import tracemalloc

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import GOLDEN

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval.similarity import compute_max_sim

WORDS = "good fine nice bad poor awful the a film was it very . , [Q] [D] query :".split()
TEXTS = ["good film .", "the film , was bad", "very nice", "awful", "it was fine", "poor film"]
OTHERS = ["a fine film", "poor", "it was very nice", "the bad film", "nice", "the awful film"]
FORMS = ["stanford", "pylate", "sentence_transformers"]
MARKERS = {"query_marker": "[Q]", "document_marker": "[D]"}


@pytest.fixture(scope="module")  # traced once
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture(scope="module")
def build(tokenizer):
    def build(settings=None, dropout=0.0, **arguments):
        keras.utils.set_random_seed(0)
        backbone = ez.BertBackbone(
            tokenizer.vocabulary_size,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=16,
            dropout=dropout,
            attention_dropout=dropout,
            max_sequence_length=16,
            pooler=False,
        )
        settings = {"query_length": 8, "document_length": 12, **MARKERS, **(settings or {})}
        preprocessor = ez.LateInteractionPreprocessor(tokenizer, **settings)
        model = ez.LateInteraction(backbone, preprocessor, **{"dim": 4, **arguments})
        for i, weight in enumerate(model.trainable_weights):
            weight.assign(weight + 0.3 * keras.random.normal(weight.shape, seed=i))
        return model

    return build


@pytest.fixture(scope="module")
def shared(build):
    """For tests that do not change it: its graphs are traced once."""
    return build()


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "encoder_zoo"]


def stored(form):
    found = np.load(GOLDEN / "late_interaction" / form / "expected.npz")

    texts = found["texts"].tolist()
    queries = np.split(found["queries"], np.cumsum(found["query_lengths"])[:-1])
    documents = np.split(found["documents"], np.cumsum(found["document_lengths"])[:-1])
    return texts, queries, documents


def assert_same(model, texts, queries, documents, atol=1e-5):
    for prompt, expected in (("query", queries), ("document", documents)):
        for found, right in zip(model.embed(texts, prompt), expected, strict=True):
            np.testing.assert_allclose(found, right, atol=atol)


class TestFolders:
    @pytest.mark.slow
    @pytest.mark.parametrize("form", FORMS)
    def test_vectors_are_those_of_the_library(self, form):
        model = ez.LateInteraction.from_preset(GOLDEN / "late_interaction" / form)
        assert_same(model, *stored(form))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "form", [FORMS[0], *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS[1:])]
    )
    def test_saved_in_pylates_form_and_read_again(self, form, tmp_path, caplog):
        model = ez.LateInteraction.from_preset(GOLDEN / "late_interaction" / form)
        model.save_to_preset(tmp_path)
        settings = json.loads((tmp_path / "config_sentence_transformers.json").read_text())
        assert settings["model_type"] == "ColBERT"
        shorter = {"strategy": "min", "attend": True, "length": 8}
        expected = shorter if form == "sentence_transformers" else None
        assert settings.get("query_expansion") == expected
        modules = json.loads((tmp_path / "modules.json").read_text())
        assert {m["type"] for m in modules[1:]} == {"pylate.models.Dense.Dense"}
        assert_same(ez.LateInteraction.from_preset(tmp_path), *stored(form))
        assert all("are longer than" in line for line in warnings(caplog))

    @pytest.mark.slow
    def test_an_encoder_gets_a_projection_and_markers(self, caplog):
        model = ez.LateInteraction.from_preset("bert_nano_en_uncased", dim=16, query_length=10)
        [line] = warnings(caplog)
        assert "the projection starts from random weights" in line
        assert model.preprocessor.query_marker == "[Q] "
        plain = ez.Tokenizer.from_preset("bert_nano_en_uncased").vocabulary_size
        assert model.backbone.vocabulary_size == plain + 2
        ids = model.preprocessor.encode(["good"], prompt="query")["token_ids"].to_list()[0]
        assert ids[1] == plain and len(ids) == 10
        assert model.embed("good").shape == (4, 16)

    def test_given_projections_begin_anew(self):
        folder = GOLDEN / "late_interaction" / "pylate"
        trained = ez.LateInteraction.from_preset(folder).projection_layers[0].dense.kernel
        model = ez.LateInteraction.from_preset(folder, projections=[{"units": trained.shape[1]}])
        new = model.projection_layers[0].dense.kernel
        assert new.shape == trained.shape and not np.allclose(new, trained)

    def test_a_model_of_text_embeddings_keeps_its_dense_layers(self):
        folder = GOLDEN / "sentence_transformers" / "2.2.2"
        dense = ez.TextEmbedder.from_preset(folder).dense_layers[0]
        if dense.dense.kernel.shape[0] == 8:
            model = ez.LateInteraction.from_preset(folder)
            np.testing.assert_array_equal(
                model.projection_layers[0].dense.kernel, dense.dense.kernel
            )

    @pytest.mark.parametrize(
        ("file", "change", "message"),
        [
            ("config_sentence_transformers.json", {"query_length": 0}, "query_length is 0"),
            ("config_sentence_transformers.json", {"query_prefix": 3}, "query_prefix is 3"),
            ("config_sentence_transformers.json", {"skiplist_words": "."}, "a list of strings"),
            ("config_sentence_transformers.json", {"do_query_expansion": 1}, "true or false"),
            ("1_Dense/config.json", {"in_features": 9}, "in_features is 9"),
            ("1_Dense/config.json", {"out_features": 2**40}, "the weights have"),
        ],
    )
    def test_wrong_files_are_named(self, file, change, message, tmp_path):
        shutil.copytree(GOLDEN / "late_interaction" / "pylate", tmp_path / "wrong")
        path = tmp_path / "wrong" / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises(ValueError, match=message):
            ez.LateInteraction.from_preset(tmp_path / "wrong", verify=False)

    def test_another_width_is_refused(self):
        with pytest.raises(ValueError, match="dim. is 7.*projections"):
            ez.LateInteraction.from_preset(GOLDEN / "late_interaction" / "pylate", dim=7)


class TestExamples:
    @pytest.mark.slow
    def test_a_query_is_filled_up_with_masks_that_are_not_attended_to(self, shared):
        x = shared.preprocessor.pad(shared.preprocessor.encode(["good film"], prompt="query"))
        tokens = [shared.preprocessor.tokenizer.id_to_token(i) for i in x["token_ids"][0].numpy()]
        assert tokens == ["[CLS]", "[Q]", "good", "film", "[SEP]", "[MASK]", "[MASK]", "[MASK]"]
        assert x["attended_mask"].numpy().sum() == 5
        assert x["scored_mask"].numpy().all() and x["padding_mask"].numpy().all()

    @pytest.mark.slow
    def test_masks_change_no_other_vector_unless_they_are_attended_to(self, build):
        plain = build({"expand_queries": False}).embed("good film", "query")
        found = build().embed("good film", "query")
        attending = build({"attend_to_expansion": True}).embed("good film", "query")
        assert plain.shape == (5, 4) and found.shape == attending.shape == (8, 4)
        np.testing.assert_allclose(found[:5], plain, atol=1e-6)
        assert np.abs(attending[:5] - plain).max() > 1e-3

    @pytest.mark.slow
    def test_words_of_the_skiplist_have_no_vectors_in_documents(self, shared, build):
        whole = build({"skiplist": []}).embed("good film .")
        found = shared.embed("good film .")
        assert len(whole) == 6
        np.testing.assert_allclose(found, whole[[0, 1, 2, 3, 5]], atol=1e-6)

    @pytest.mark.slow
    def test_vectors_do_not_depend_on_the_batch(self, shared):
        together = shared.embed(TEXTS * 10, batch_size=7)
        for text, found in zip(TEXTS * 10, together, strict=True):
            np.testing.assert_allclose(found, shared.embed(text), atol=1e-6)
            np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
        assert shared.embed([]) == []

    @pytest.mark.slow
    def test_what_is_cut_is_counted_once(self, shared, caplog):
        shared.embed(["good " * 50, "film", "bad " * 12])
        shared.embed(["good " * 9], "query")
        shared.embed(["good " * 5], "query")
        advice = (
            "the end is truncated. Use LateInteraction.from_preset(..., query_length=..., "
            "document_length=...) to set other lengths."
        )
        assert warnings(caplog) == [
            f"2 of 3 documents are longer than 12 tokens, so {advice}",
            f"1 of 1 queries are longer than 8 tokens, so {advice}",
        ]

    @pytest.mark.slow
    def test_spans_are_characters_of_the_text(self, build):
        model = build({"prompts": {"query": "query : "}, "skiplist": [","]})
        text = "Very  nice , FILM"
        vectors, spans = model.embed_with_spans(text)
        assert vectors.shape == (6, 4) and spans.shape == (6, 2)
        assert [text[a:b] for a, b in spans if b > 0] == ["Very", "nice", "FILM"]
        np.testing.assert_array_equal(vectors, model.embed(text))
        _, spans = model.embed_with_spans("nice", "query")
        assert spans.tolist() == [[-1, -1]] * 4 + [[0, 4]] + [[-1, -1]] * 3

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda model: model.embed(["good", " "]), "Row 1 of texts is empty"),
            (lambda model: model.embed(["good", None]), r"texts\[1\] is None"),
            (lambda model: model.embed("good", "qeury"), "prompt is 'qeury'. Expected 'query'"),
            (lambda model: model.rank(["a"], ["b"]), r"query is \['a'\]"),
            (lambda model: model.rank("a", []), "texts.*is empty"),
            (lambda model: model.rank("a", ["b", ""]), r"texts\[1\] is empty"),
            (lambda model: model.similarity([np.ones((2, 3))], "a"), r"a\[0\].shape is \(2, 3\)"),
            (lambda model: model.fit(["a", "b"]), "one column of texts"),
            (lambda model: model.fit((["a"], ["b"]), [1.0]), "lists of documents"),
            (
                lambda model: model.fit((["a"], [["b", "c"]]), [[1, np.nan]]),
                r"Row 0 has no label: it is nan, at y\[0\]\[1\]",
            ),
            (lambda model: model.fit((["a", "b"], [["c"], ["d", "e"]])), "Row 1.*has 2 entries"),
            (lambda model: model.fit((["a"], ["b"], [["c", ""]])), "is empty"),
        ],
    )
    def test_bad_input(self, shared, call, message):
        with pytest.raises(ValueError, match=message):
            call(shared)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"query_marker": "[X]"}, r"query_marker is '\[X\]'"),
            ({"prompts": {"search": "a"}}, "prompts is 'search'"),
            ({"query_length": 2}, "query_length is 2"),
        ],
    )
    def test_bad_settings(self, build, settings, message):
        with pytest.raises(ValueError, match=message):
            build(settings)

    def test_two_widths(self, build):
        with pytest.raises(ValueError, match="dim is 4, .* 5 units"):
            build(projections=[{"units": 6}, {"units": 5}])


class TestScores:
    @pytest.mark.slow
    def test_max_sim_is_the_sum_of_the_best_products(self, shared):
        queries, documents = shared.embed(TEXTS, "query"), shared.embed(OTHERS)
        expected = [[(q @ d.T).max(1).sum() for d in documents] for q in queries]
        np.testing.assert_allclose(compute_max_sim(queries, documents), expected, rtol=1e-5)
        np.testing.assert_allclose(shared.similarity(TEXTS, OTHERS), expected, rtol=1e-5)
        np.testing.assert_allclose(shared.similarity(TEXTS[0], documents), expected[0], rtol=1e-5)
        assert shared.similarity(queries[0], OTHERS[1]).shape == ()

    def test_blocks_change_nothing(self, shared, monkeypatch):
        queries, documents = shared.embed(TEXTS, "query"), shared.embed(OTHERS)
        whole = compute_max_sim(queries, documents)
        monkeypatch.setattr("encoder_zoo.tasks.retrieval.similarity.SIMILARITY_BLOCK", 100)
        np.testing.assert_allclose(compute_max_sim(queries, documents), whole, rtol=1e-6)

    @pytest.mark.slow
    def test_memory_is_that_of_a_block(self):
        draw = np.random.default_rng(0)
        queries = list(draw.normal(size=(3, 32, 64)).astype("float32"))
        documents = list(draw.normal(size=(2_000, 90, 64)).astype("float32"))
        tracemalloc.start()
        compute_max_sim(queries, documents)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20e6  # all products of a query: 23 MB, the documents 46 MB

    def test_rank_and_search_have_the_order_of_the_scores(self, shared):
        scores = shared.similarity("very good", OTHERS)
        found = shared.rank("very good", OTHERS, top_k=3)
        assert [hit["index"] for hit in found] == np.argsort(-scores)[:3].tolist()
        assert found[0]["score"] == pytest.approx(scores.max(), abs=1e-5)
        hits = shared.index(OTHERS).search("very good", top_k=3)
        assert [hit["text"] for hit in hits] == [hit["text"] for hit in found]

    def test_evaluation_of_retrieval(self, shared):
        found = shared.evaluate_retrieval(TEXTS, OTHERS)
        ranks = (-shared.similarity(TEXTS, OTHERS)).argsort(1).argsort(1).diagonal()
        assert found["mrr@10"] == pytest.approx(np.mean(1 / (ranks + 1)))
        with pytest.raises(ValueError, match="cutoffs is"):
            shared.evaluate_retrieval(TEXTS, OTHERS, cutoffs=[0])

    def test_predict_gives_the_scores_of_lists(self, shared):
        found = shared.predict((TEXTS, OTHERS, OTHERS[::-1]), verbose=0)
        expected = shared.similarity(TEXTS, OTHERS)
        for i, scores in enumerate(found):
            np.testing.assert_allclose(scores, [expected[i, i], expected[i, 5 - i]], rtol=1e-5)


class TestTraining:
    @pytest.mark.slow
    def test_the_loss_of_pairs_is_infonce_of_the_scores(self, build):
        model = build()
        loss = model.evaluate((TEXTS, OTHERS), batch_size=6, verbose=0, return_dict=True)["loss"]
        scores = model.similarity(TEXTS, OTHERS)
        own = scores.diagonal() - np.log(np.exp(scores).sum(1))
        assert loss == pytest.approx(-own.mean(), rel=1e-4)

    @pytest.mark.slow
    def test_the_loss_of_scores_is_the_divergence_of_scaled_ones(self, build):
        model, rng = build(), np.random.default_rng(0)
        lists = [[str(text) for text in rng.permutation(OTHERS)[:4]] for _ in TEXTS]
        teacher = rng.normal(size=(6, 4))
        found = model.evaluate((TEXTS, lists), teacher, verbose=0, return_dict=True)["loss"]
        student = np.stack(
            [model.similarity(q, list_) for q, list_ in zip(TEXTS, lists, strict=True)]
        )

        def logs(x):
            x = (x - x.min(1, keepdims=True)) / np.ptp(x, axis=1, keepdims=True)
            return x - np.log(np.exp(x).sum(1, keepdims=True))

        expected = (np.exp(logs(teacher)) * (logs(teacher) - logs(student))).sum(1).mean()
        assert found == pytest.approx(expected, rel=1e-4)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_it_learns_pairs_and_a_teachers_order(self, build):
        model = build()
        model.compile(learning_rate=0.02, warmup=0.0)
        pairs = model.fit((TEXTS, OTHERS), epochs=12, batch_size=6, verbose=0).history["loss"]
        assert pairs[-1] < 0.7 * pairs[0]
        lists = [OTHERS[:3]] * 6
        teacher = np.tile([3.0, 1.0, 2.0], (6, 1))
        history = model.fit((TEXTS, lists), teacher, epochs=12, batch_size=6, verbose=0).history
        assert history["loss"][-1] < 0.5 * history["loss"][0]
        assert isinstance(model.loss, ez.losses.MaxSimDistillation)

    @pytest.mark.slow
    def test_chunks_have_the_gradients_of_the_whole_batch(self, build):
        model = build()
        x, y = model.preprocessor((TEXTS, OTHERS, OTHERS[::-1]))

        def step(chunk_size):
            model.compile(chunk_size=chunk_size)
            model.chunk_size = chunk_size
            with tf.GradientTape() as tape:
                loss = model.compute_loss(y=y, y_pred=model(x, training=True))
            found = tape.gradient(loss, [v.value for v in model.trainable_variables])
            return float(loss), [tf.convert_to_tensor(g).numpy() for g in found]

        (loss, gradients), (found_loss, found) = step(None), step(2)
        assert found_loss == pytest.approx(loss, rel=1e-5)
        for one, other in zip(found, gradients, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)

    @pytest.mark.slow
    def test_equal_passages_are_no_negatives(self, build):
        model = build()
        texts = ["good", "nice"]
        loss = model.evaluate((texts, ["film", "film"]), verbose=0, return_dict=True)["loss"]
        assert loss == pytest.approx(0, abs=1e-6)


@pytest.mark.matrix
@pytest.mark.slow
def test_an_export_gives_vectors_and_lengths(shared, tmp_path):
    shared.export(tmp_path / "1")
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    for name in ("query", "document"):
        found = loaded.signatures[name](text=tf.constant(TEXTS))
        for i, expected in enumerate(shared.embed(TEXTS, name)):
            length = int(found["length"][i])
            np.testing.assert_allclose(found["embedding"][i, :length], expected, atol=1e-5)
            assert not found["embedding"][i, length:].numpy().any()
