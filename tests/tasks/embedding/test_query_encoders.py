"""Sparse encoders with another encoder for queries: a table of weights, or a second model."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import GOLDEN
from processes import printed
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.tasks.base import inference

FOLDERS = {name: GOLDEN / "routers" / name for name in ("table", "two")}
EXPECTED = {name: np.load(folder / "expected.npz") for name, folder in FOLDERS.items()}
TEXTS = EXPECTED["table"]["texts"].tolist()
TABLE = "query_0_SparseStaticEmbedding"


def assert_same(encoder, name):
    for role in ("query", "document"):
        found = encoder.embed(TEXTS, role).toarray()
        np.testing.assert_allclose(found, EXPECTED[name][role], atol=1e-5)


@pytest.fixture(scope="module", params=["table", "two"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def shared(kind):
    """Not changed by tests."""
    return ez.SparseEncoder.from_preset(FOLDERS[kind])


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(FOLDERS["table"], tmp_path / "m")


def edit(path, /, **fields):
    """Change fields of a JSON file; of the Router's structure by its names."""
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **fields}))


def as_json(folder, name=TABLE, **extra):
    """Write the table as the weights of tokens by their names."""
    weights = load_file(folder / TABLE / "model.safetensors")["weight"].tolist()
    tokens = ez.Tokenizer.from_preset(folder).get_vocabulary()
    (folder / name / "idf.json").write_text(
        json.dumps({**dict(zip(tokens, weights, strict=True)), **extra})
    )


def test_an_error_in_compile_keeps_the_settings(folder):
    encoder = ez.SparseEncoder.from_preset(folder)
    encoder.query_encoder.trainable = True
    encoder.compile(chunk_size=2, query_learning_rate=1e-3)
    with pytest.raises(ValueError, match="nonsense"):
        encoder.compile(loss="nonsense", chunk_size=4, query_learning_rate=0.1)
    assert (encoder.chunk_size, encoder.query_learning_rate) == (2, 1e-3)


class TestFolders:
    @pytest.mark.slow
    def test_each_role_has_its_route(self, shared, kind):
        assert_same(shared, kind)
        np.testing.assert_array_equal(
            shared.embed(TEXTS).toarray(), shared.embed(TEXTS, "document").toarray()
        )

    @pytest.mark.slow(except_for="^table")
    def test_saved_with_the_documents_in_the_root(self, shared, kind, tmp_path):
        shared.save_to_preset(tmp_path / "m")
        again = ez.SparseEncoder.from_preset(tmp_path / "m")
        assert_same(again, kind)
        assert isinstance(again.query_encoder, ez.TermTable) == (kind == "table")
        if kind == "table":
            assert again.query_encoder.trainable is False
            assert again.query_encoder.max_length == shared.query_encoder.max_length
        assert ez.MaskedLM.from_preset(tmp_path / "m").backbone.vocabulary_size == 29
        plain = ez.SparseEncoder.from_preset(tmp_path / "m", query_encoder=None)
        plain.save_to_preset(tmp_path / "m")  # of the Router nothing is left
        assert not [p for p in (tmp_path / "m").iterdir() if p.name.startswith(("query", "router"))]
        assert ez.SparseEncoder.from_preset(tmp_path / "m").query_encoder is None

    @pytest.mark.slow
    def test_a_keras_file(self, shared, kind, tmp_path):
        shared.save(tmp_path / "model.keras")
        assert_same(keras.saving.load_model(tmp_path / "model.keras"), kind)

    @pytest.mark.slow
    @pytest.mark.parametrize("place", [TABLE, ""])
    def test_a_table_as_json(self, folder, place):
        as_json(folder, place)
        (folder / TABLE / "model.safetensors").unlink()
        edit(folder / TABLE / "config.json", path="/home/somebody/idf.json")
        encoder = ez.SparseEncoder.from_preset(folder)
        assert_same(encoder, "table")

    @pytest.mark.slow
    def test_the_older_name_and_a_trained_table(self, folder):
        (folder / TABLE).rename(folder / "query_0_IDF")
        router = json.loads((folder / "router_config.json").read_text())
        types = {
            **router["types"],
            "query_0_IDF": "sentence_transformers.sparse_encoder.models.IDF",
        }
        del types[TABLE]
        structure = {**router["structure"], "query": ["query_0_IDF"]}
        edit(folder / "router_config.json", types=types, structure=structure)
        edit(folder / "query_0_IDF" / "config.json", frozen=False)
        encoder = ez.SparseEncoder.from_preset(folder)
        assert_same(encoder, "table")
        assert encoder.query_encoder.trainable

    def test_json_beside_a_model_without_modules(self, folder, tmp_path):
        shutil.copytree(folder / "document_0_Transformer", tmp_path / "plain")
        as_json(folder, "")
        shutil.copy(folder / "idf.json", tmp_path / "plain")
        encoder = ez.SparseEncoder.from_preset(tmp_path / "plain", activation="log1p_relu")
        expected = EXPECTED["table"]["query"]
        found = encoder.embed([f"query : {text}" for text in TEXTS], "query").toarray()
        np.testing.assert_allclose(found, expected, atol=1e-6)

    @pytest.mark.slow
    def test_routes_by_mappings(self, folder):
        router = json.loads((folder / "router_config.json").read_text())
        ids = router["structure"]
        structure = {"fast": ids["query"], "large": ids["document"]}
        mappings = {"('query', 'text')": "fast", "(None, None)": "large"}
        parameters = {"default_route": "fast", "route_mappings": mappings}
        edit(folder / "router_config.json", structure=structure, parameters=parameters)
        encoder = ez.SparseEncoder.from_preset(folder)
        assert_same(encoder, "table")
        np.testing.assert_array_equal(  # the default route is that of queries
            encoder.embed(TEXTS).toarray(), encoder.embed(TEXTS, "query").toarray()
        )


class TestBadFiles:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"structure": {"document": ["document_0_Transformer", "document_1_SpladePooling"]}},
             "queries"),
            ({"structure": {"query": [TABLE]}}, "documents"),
            ({"structure": {"query": [], "document": [TABLE]}}, r"query is \[\]"),
            ({"structure": {"query": [TABLE], "document": [TABLE]}},
             "document.*SparseStaticEmbedding"),
            ({"structure": {"query": ["document_1_SpladePooling"],
                            "document": ["document_0_Transformer", "document_1_SpladePooling"]}},
             "query.*SpladePooling"),
            ({"types": {TABLE: "custom.Table"}}, "custom.Table"),
            ({"parameters": {"route_mappings": {"print(1)": "query"}}}, "print"),
            ({"structure": []}, r"structure is \[\]"),
            ({"parameters": {"route_mappings": "query"}}, "route_mappings is 'query'"),
            ({"parameters": {"route_mappings": {"('query', 'text')": ["query"]}}}, "query.*text"),
            ({"parameters": {"default_route": ["query"]}}, r"default_route.*\['query'\]"),
        ],
    )  # fmt: skip
    def test_of_the_router(self, folder, change, message):
        edit(folder / "router_config.json", **change)
        with pytest.raises(ValueError, match=message):
            ez.SparseEncoder.from_preset(folder)

    @pytest.mark.parametrize("name", [[], ["query"], {}, 7])
    def test_of_the_prompts(self, folder, name):
        edit(folder / "config_sentence_transformers.json", default_prompt_name=name)
        with pytest.raises(ValueError, match="default_prompt_name is"):
            ez.SparseEncoder.from_preset(folder)

    def test_a_module_outside_of_the_folder(self, folder):
        router = json.loads((folder / "router_config.json").read_text())
        types = {**router["types"], "../x": router["types"][TABLE]}
        structure = {**router["structure"], "query": ["../x"]}
        edit(folder / "router_config.json", types=types, structure=structure)
        with pytest.raises(ValueError, match=r"\.\./x"):
            ez.SparseEncoder.from_preset(folder)

    @pytest.mark.parametrize(
        ("weight", "message"),
        [
            (np.ones(5), r"weight.*\(5,\).*\(29,\)"),
            (np.ones((29, 1)), r"weight.*\(29, 1\).*\(29,\)"),
            (np.full(29, np.nan), "29.*NaN"),
        ],
    )
    def test_of_the_table(self, folder, weight, message):
        path = folder / TABLE / "model.safetensors"
        save_file({"weight": weight.astype("float32")}, path)
        with pytest.raises(ValueError, match=message) as error:
            ez.SparseEncoder.from_preset(folder)
        assert TABLE in str(error.value)

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            ({"zebra": 1.0}, "zebra"),
            ({"the": "2"}, "'the' is '2'"),
            ({"the": 1e39}, "NaN"),
        ],
    )
    def test_of_a_table_as_json(self, folder, extra, message):
        as_json(folder, **extra)
        edit(folder / TABLE / "config.json", path="idf.json")
        with pytest.raises(ValueError, match=message):
            ez.SparseEncoder.from_preset(folder)

    def test_settings_of_the_table(self, folder):
        edit(folder / TABLE / "config.json", path="x/../../secret.json")
        with pytest.raises(ValueError, match=r"secret\.json"):
            ez.SparseEncoder.from_preset(folder)
        edit(folder / TABLE / "config.json", path=None, frozen="yes")
        with pytest.raises(ValueError, match="frozen is 'yes'"):
            ez.SparseEncoder.from_preset(folder)

    def test_other_tasks_say_what_it_is(self, folder):
        with pytest.raises(ValueError, match="modules.*Router"):
            ez.TextEmbedder.from_preset(folder)


class TestUse:
    @pytest.mark.slow
    def test_search_is_that_of_the_products(self, shared, kind):
        expected = EXPECTED[kind]["query"] @ EXPECTED[kind]["document"].T
        hits = shared.index(TEXTS).search(TEXTS[0], top_k=2)
        best = np.argsort(-expected[0])[:2]
        assert [hit["index"] for hit in hits] == best.tolist()
        np.testing.assert_allclose([hit["score"] for hit in hits], expected[0, best], rtol=1e-4)
        assert [r["index"] for r in shared.rank(TEXTS[0], TEXTS, top_k=2)] == best.tolist()
        found = shared.evaluate_retrieval(TEXTS, TEXTS, cutoffs=[1])
        assert found["accuracy@1"] == np.mean(expected.argmax(1) == np.arange(len(TEXTS)))

    @pytest.mark.slow
    def test_no_model_runs_for_a_query_of_a_table(self, monkeypatch):
        encoder = ez.SparseEncoder.from_preset(FOLDERS["table"])
        index = encoder.index(TEXTS)
        monkeypatch.setattr(inference.KerasRunner, "run_examples", None)
        assert index.search(TEXTS[0])
        assert encoder.top_terms(TEXTS[0], 2, "query")

    @pytest.mark.slow(only=r"^(two)$")
    def test_most_terms_are_those_of_queries_too(self, shared):
        assert shared.embed(TEXTS, "query", max_terms=2).nnz == 2 * len(TEXTS)

    @pytest.mark.slow
    def test_fit_trains_both(self, kind):
        encoder = ez.SparseEncoder.from_preset(FOLDERS[kind])
        keras.utils.set_random_seed(0)
        weight = encoder.query_encoder.trainable_weights
        assert bool(weight) == (kind == "two")
        if kind == "table":
            encoder.query_encoder.trainable = True
        [weight, *_] = encoder.query_encoder.trainable_weights
        before = np.array(weight)
        encoder.compile(learning_rate=1e-4, query_learning_rate=1e-2, run_eagerly=True)
        encoder.fit((TEXTS, TEXTS), epochs=1, batch_size=len(TEXTS), verbose=0)
        moved = np.abs(np.array(weight) - before).max()
        assert moved == pytest.approx(1e-2, rel=0.1)  # Adam's first step is the learning rate
        if kind == "table":
            encoder.query_encoder.trainable = False
            before = np.array(weight)
            encoder.fit((TEXTS, TEXTS), epochs=1, batch_size=len(TEXTS), verbose=0)
            np.testing.assert_array_equal(np.array(weight), before)
            assert encoder.loss.query_weight == 0

    def test_arguments(self, shared):
        with pytest.raises(ValueError, match="query_encoder.* 30 "):
            tokenizer = shared.preprocessor.tokenizer
            table = ez.TermTable(tokenizer, vocabulary_size=30)
            ez.SparseEncoder(shared.backbone, query_encoder=table)
        with pytest.raises(TypeError, match="query_encoder is "):
            ez.SparseEncoder(shared.backbone, query_encoder=3)
        with pytest.raises(ValueError, match="query_encoder also has a query_encoder"):
            ez.SparseEncoder(shared.backbone, query_encoder=shared)
        with pytest.raises(ValueError, match="vocabulary_size is 3.* 29"):
            ez.TermTable(tokenizer, vocabulary_size=3)
        with pytest.raises(ValueError, match="query_learning_rate"):
            ez.SparseEncoder(shared.backbone).compile(query_learning_rate=1e-3)


class TestTable:
    @pytest.mark.slow(only=r"^(table)$")
    def test_rare_terms_weigh_more(self, shared):
        tokenizer = shared.preprocessor.tokenizer
        table = ez.TermTable.from_documents(tokenizer, ["the cat", "the dog", "the the mat"])
        weights = dict(zip(tokenizer.get_vocabulary(), np.array(table.weight), strict=True))
        assert weights["the"] == pytest.approx(np.log1p(0.5 / 3.5))
        assert weights["cat"] == pytest.approx(np.log1p(2.5 / 1.5))
        assert weights["film"] == pytest.approx(np.log1p(3.5 / 0.5))

    def test_the_layer_is_its_rows(self, shared):
        table = ez.TermTable.from_documents(shared.preprocessor.tokenizer, TEXTS, max_length=4)
        table.weight.assign(table.weight - 1.0)  # some are negative
        ids = table.encode_queries(tf.constant(TEXTS))["token_ids"]
        assert int(ids.row_lengths().numpy().max()) == 4
        inputs = {"token_ids": ids.to_tensor(), "padding_mask": tf.ones_like(ids).to_tensor()}
        np.testing.assert_allclose(table(inputs), table.embed(TEXTS).toarray(), atol=1e-6)


@pytest.mark.matrix
@pytest.mark.slow
def test_an_export_has_both_routes(shared, kind, tmp_path):
    shared.export(tmp_path / "1", max_terms=4)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    for role in ("query", "document"):
        found = loaded.signatures[role](text=tf.constant(TEXTS))
        expected = shared.embed(TEXTS, role, max_terms=4).toarray()
        weights = np.zeros_like(expected)
        np.put_along_axis(weights, found["index"].numpy(), found["weight"].numpy(), axis=1)
        np.testing.assert_allclose(weights, expected, atol=1e-5)


SCRIPT = """
import json, sys
import keras
import encoder_zoo as ez

texts, found = json.loads(sys.argv[1]), []
for folder in sys.argv[2:]:
    model = ez.SparseEncoder.from_preset(folder, dropout=0.0, attention_dropout=0.0)
    model.query_encoder.trainable = True
    vectors = [model.embed(texts, role).toarray().tolist() for role in ("query", "document")]
    model.compile(keras.optimizers.SGD(0.01), chunk_size=2)
    history = model.fit((texts, texts), epochs=2, batch_size=4, shuffle=False, verbose=0)
    found.append([*vectors, history.history["loss"]])
print(json.dumps(found))
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_answer_and_learn_alike(backend):
    arguments = json.dumps(TEXTS), *FOLDERS.values()
    found, right = (
        json.loads(printed(SCRIPT, name, *arguments).splitlines()[-1])
        for name in (backend, "tensorflow")
    )
    for name, one, other in zip(FOLDERS, found, right, strict=True):
        np.testing.assert_allclose(one[0], EXPECTED[name]["query"], atol=1e-5)
        np.testing.assert_allclose(one[1], EXPECTED[name]["document"], atol=1e-5)
        np.testing.assert_allclose(one[2], other[2], rtol=1e-3)
