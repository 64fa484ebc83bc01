"""BGE-M3: three kinds of vectors of a folder and their mix, beside what FlagEmbedding computed."""

import copy
import json
import pickle
import shutil

import keras
import numpy as np
import pytest
from paths import GOLDEN
from processes import printed

import encoder_zoo as ez
from encoder_zoo.presets.files.pytorch_file import encode_pytorch_file
from encoder_zoo.tasks.embedding.sparse_pooling import pool_term_weights
from encoder_zoo.tasks.retrieval.documents import Documents

FOLDER = GOLDEN / "bge_m3"
EXPECTED = np.load(FOLDER / "expected.npz")
TEXTS = EXPECTED["texts"].tolist()
TOKENS = np.split(EXPECTED["tokens"], np.cumsum(EXPECTED["lengths"])[:-1])
LINEARS = ["sparse_linear.pt", "colbert_linear.pt"]


@pytest.fixture(scope="module")
def model():
    """Not changed by tests."""
    return ez.HybridEmbedder.from_preset(FOLDER)


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-5)


class TestFolder:
    @pytest.mark.slow
    def test_all_vectors_are_those_of_the_library(self, model):
        dense, terms, tokens = model.embed(TEXTS)
        np.testing.assert_allclose(dense, EXPECTED["dense"], rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(terms.toarray(), EXPECTED["weights"], rtol=1e-6, atol=1e-5)
        assert_close(tokens, TOKENS)

    @pytest.mark.slow
    def test_scores_and_their_mix_are_too(self, model):
        for task, expected in zip(
            (model.dense, model.terms, model.tokens), EXPECTED["scores"], strict=True
        ):
            np.testing.assert_allclose(
                task.similarity(TEXTS, TEXTS), expected, rtol=1e-6, atol=1e-5
            )
        np.testing.assert_allclose(
            model.similarity(TEXTS, TEXTS), EXPECTED["mixed"], rtol=1e-6, atol=1e-5
        )
        np.testing.assert_allclose(
            model.similarity(TEXTS[1], TEXTS), EXPECTED["mixed"][1], rtol=1e-6, atol=1e-5
        )
        ranked = model.rank(TEXTS[0], TEXTS)
        assert [r["index"] for r in ranked] == np.argsort(-EXPECTED["mixed"][0]).tolist()

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["SparseEncoder", "LateInteraction"])
    def test_each_opens_by_itself_and_saves(self, name, model, tmp_path):
        task = getattr(ez, name).from_preset(FOLDER)
        task.save_to_preset(tmp_path / "m")
        again = getattr(ez, name).from_preset(tmp_path / "m")
        np.testing.assert_allclose(
            again.similarity(TEXTS, TEXTS),
            EXPECTED["scores"][1 if name == "SparseEncoder" else 2],
            rtol=1e-6,
            atol=1e-5,
        )
        config = json.loads((tmp_path / "m/config.json").read_text())
        assert config["architectures"] == ["XLMRobertaModel"]

    @pytest.mark.slow
    def test_the_whole_is_saved_as_one_folder(self, model, tmp_path):
        model.save_to_preset(tmp_path / "m")
        again = ez.HybridEmbedder.from_preset(tmp_path / "m")
        np.testing.assert_allclose(
            again.similarity(TEXTS, TEXTS), EXPECTED["mixed"], rtol=1e-6, atol=1e-5
        )
        assert set(LINEARS) <= {path.name for path in (tmp_path / "m").iterdir()}
        model.terms.save_to_preset(tmp_path / "m")  # of the older preset nothing is left
        assert not (tmp_path / "m" / "colbert_linear.pt").exists()

    @pytest.mark.slow
    def test_lengths_are_those_of_all_three(self):
        model = ez.HybridEmbedder.from_preset(FOLDER, max_length=8)
        assert [len(vectors) for vectors in model.embed(TEXTS).tokens] == [7, 7, 7, 7]
        with pytest.raises(TypeError, match="unknown argument 'max_lenght'"):
            ez.HybridEmbedder.from_preset(FOLDER, max_lenght=8)

    def test_a_head_that_is_missing_is_new(self, tmp_path, caplog):
        folder = shutil.copytree(FOLDER, tmp_path / "m")
        (folder / "sparse_linear.pt").unlink()
        ez.SparseEncoder.from_preset(folder, pooling="token_weights")
        assert "the token weight layer starts from random weights" in caplog.text


class TestBadFiles:
    @pytest.mark.parametrize(
        ("name", "tensors", "message"),
        [
            (LINEARS[0], {"weight": np.ones((2, 8))}, " has 2 outputs"),
            (LINEARS[0], {"weight": np.ones((1, 9))}, "dimension 9.* 8"),
            (LINEARS[1], {"weight": np.ones((8, 9))}, "dimension 9.* 8"),
            (LINEARS[1], {"weight": np.ones(8)}, "the tensors have"),
            (LINEARS[1], {"weight": np.ones((8, 8)), "bias": np.ones(7)}, "the tensors have"),
            (LINEARS[0], {"weight": np.full((1, 8), np.nan), "bias": np.ones(1)}, "8 values that"),
            (LINEARS[1], {"weight": np.full((8, 8), np.inf)}, "64 values that are NaN"),
        ],
    )
    def test_errors_name_the_file(self, name, tensors, message, tmp_path):
        folder = shutil.copytree(FOLDER, tmp_path / "m")
        tensors = {key: value.astype("float32") for key, value in tensors.items()}
        (folder / name).write_bytes(encode_pytorch_file(tensors))
        cls = ez.SparseEncoder if name == LINEARS[0] else ez.LateInteraction
        with pytest.raises(ValueError, match=message) as error:
            cls.from_preset(folder)
        assert name in str(error.value)

    def test_a_cut_file(self, tmp_path):
        folder = shutil.copytree(FOLDER, tmp_path / "m")
        content = (folder / LINEARS[0]).read_bytes()
        (folder / LINEARS[0]).write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match="sparse_linear.pt"):
            ez.SparseEncoder.from_preset(folder)


class TestIndex:
    @pytest.mark.slow
    def test_finds_by_the_mix_and_reads_once(self, model, tmp_path, monkeypatch):
        index = model.index(TEXTS, ids=list("abcd"))
        asked, embed = [], model.embed
        monkeypatch.setattr(model, "embed", lambda *a: asked.append(a[0]) or embed(*a))
        hits = index.search(TEXTS[0])
        assert len(asked) == 1
        expected = np.sort(EXPECTED["mixed"][0])[::-1]
        np.testing.assert_allclose([hit["score"] for hit in hits], expected, rtol=1e-6, atol=1e-5)
        assert hits[0]["id"] == "a"
        index.add(["a dog"], ids=["e"])
        assert sum(list(texts) == ["a dog"] for texts in asked) == 1
        index.save(tmp_path / "index")
        again = model.load_index(tmp_path / "index")
        assert again.weights == [1.0, 0.3, 1.0]
        assert again.search("a dog", top_k=2) == index.search("a dog", top_k=2)
        assert index.search("a dog", top_k=1, where=None)[0]["id"] == "e"

    @pytest.mark.slow
    def test_chunks_are_found_by_document(self, model, tmp_path):
        documents = [{"id": "x", "text": " ".join(TEXTS[:2])}, {"id": "y", "text": TEXTS[2]}]
        chunks = model.chunks(documents, 3, overlap=1)
        assert chunks.texts == model.dense.chunks(documents, 3, overlap=1).texts
        index = model.index(chunks)
        hits = index.search(TEXTS[2], group_by="document")
        assert sorted(hit["metadata"]["document"] for hit in hits) == ["x", "y"]
        index.save(tmp_path / "index")
        assert ez.load_index(tmp_path / "index", model).search(TEXTS[2]) == index.search(TEXTS[2])
        tokenizer, other = model.dense.preprocessor.tokenizer, [{"id": "z", "text": TEXTS[0]}]
        late = Documents.create(other).split_into_chunks(tokenizer, 3, late=True)
        for read in (model.index, index.add, model.embed):
            with pytest.raises(ValueError, match="chunks.*late=False"):
                read(late)

    def test_another_preprocessor_is_used_everywhere(self):
        model = ez.HybridEmbedder.from_preset(FOLDER)
        other = ez.TextEmbedderPreprocessor.from_preset(FOLDER, sequence_length=8)
        model.dense.preprocessor = other
        assert model._model.preprocessor.sequence_length == 8

    @pytest.mark.slow(every=True)
    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
    def test_copies_are_equal_and_have_one_backbone(self, model, copied):
        again = copied(model)
        assert again.terms.backbone is again.tokens.backbone is again.backbone
        assert again.backbone is not model.backbone and again.weights == model.weights
        for one, other in zip(again.embed(TEXTS), model.embed(TEXTS), strict=True):
            one, other = (x.toarray() if hasattr(x, "toarray") else x for x in (one, other))
            assert_close(one, other)
        index = model.index(TEXTS, ids=list("abcd"))
        other = copied(index)
        assert other.search(TEXTS[0]) == index.search(TEXTS[0])
        other.add(["a dog"], ids=["e"])
        assert len(other) == 5 and len(index) == 4
        other.indexes[0].embedder._model.terms.compile(learning_rate=1e-2)
        other.indexes[0].embedder._model.terms.fit((TEXTS, TEXTS), verbose=0)
        with pytest.raises(ValueError, match="The embedder has changed"):
            other.search(TEXTS[0])
        assert index.search(TEXTS[0])

    @pytest.mark.slow
    def test_training_one_of_them_changes_the_others(self):
        model = ez.HybridEmbedder.from_preset(FOLDER)
        index = model.index(TEXTS)
        model.terms.compile(learning_rate=1e-2)
        model.terms.fit((TEXTS, TEXTS), verbose=0)
        with pytest.raises(ValueError, match="The embedder has changed"):
            index.search("a cat")


class TestParts:
    def test_another_backbone_and_other_lengths_are_refused(self, model):
        other = ez.SparseEncoder.from_preset(FOLDER)
        with pytest.raises(ValueError, match="terms.*and.*dense"):
            ez.HybridEmbedder(model.dense, other, model.tokens)
        prepare = type(model.tokens.preprocessor)
        settings = {**model.tokens.preprocessor.get_config(), "query_length": 9}
        tokens = ez.LateInteraction(model.dense.backbone, prepare(**settings), dim=4)
        with pytest.raises(ValueError, match="tokens.*up to 9.* 20"):
            ez.HybridEmbedder(model.dense, model.terms, tokens)
        settings = {**model.tokens.preprocessor.get_config(), "skiplist": ["."]}
        tokens = ez.LateInteraction(model.dense.backbone, prepare(**settings), dim=4)
        with pytest.raises(ValueError, match="tokens.*skiplist"):
            ez.HybridEmbedder(model.dense, model.terms, tokens)

    def test_what_the_form_has_no_field_for_is_not_saved(self, model, tmp_path):
        tokens = ez.LateInteraction.from_preset(FOLDER, skiplist=["."])
        with pytest.raises(ValueError, match="skiplist. is"):
            tokens.save_to_preset(tmp_path / "m")
        with pytest.raises(ValueError, match="pooling='token_weights'.*head_activation"):
            ez.SparseEncoder(model.dense.backbone, pooling="token_weights", activation="log1p_relu")


class TestTokenWeights:
    def test_gradients_reach_the_largest_weight_of_each_term(self):
        import tensorflow as tf

        weights = tf.constant([[0.5, 2.0, 1.0, 0.0]])
        with tf.GradientTape() as tape:
            tape.watch(weights)
            found = pool_term_weights(weights, np.array([[3, 1, 3, 0]]), 5)
            loss = tf.reduce_sum(found * np.arange(5.0, dtype="float32"))
        assert tape.gradient(loss, weights).numpy().tolist() == [[0.0, 1.0, 3.0, 0.0]]

    def test_special_tokens_have_none(self, model):
        rows = model.terms.embed(["a <unk> </s> b", "b"]).toarray()
        tokenizer = model.terms.preprocessor.tokenizer
        special = [tokenizer.token_to_id(t) for t in ("<s>", "</s>", "<pad>", "<unk>")]
        assert not rows[:, special].any() and rows.any()

    @pytest.mark.slow
    def test_fit_learns_and_a_saved_model_goes_on(self, tmp_path):
        keras.utils.set_random_seed(0)
        encoder = ez.SparseEncoder.from_preset(FOLDER, dropout=0.0)
        before = np.array(encoder.head.dense.kernel)
        encoder.compile(learning_rate=1e-2, run_eagerly=True)
        losses = encoder.fit((TEXTS, TEXTS[::-1]), epochs=4, verbose=0).history["loss"]
        assert losses[-1] < losses[0] and isinstance(encoder.loss, ez.losses.InfoNCE)
        assert (np.array(encoder.head.dense.kernel) != before).any()
        encoder.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(
            again.embed(TEXTS).toarray(), encoder.embed(TEXTS).toarray(), atol=1e-6
        )


SCRIPT = """
import json, sys
import keras
import encoder_zoo as ez

model = ez.HybridEmbedder.from_preset(sys.argv[1])
texts = json.loads(sys.argv[2])
found = {"mixed": model.similarity(texts, texts).tolist()}
found["hits"] = [[hit["index"] for hit in hits] for hits in model.index(texts).search(texts)]
for name in ("terms", "tokens"):
    model = ez.HybridEmbedder.from_preset(sys.argv[1], dropout=0.0, attention_dropout=0.0)
    task = getattr(model, name)
    task.compile(keras.optimizers.SGD(1e-4))
    history = task.fit((texts, texts[::-1]), epochs=2, batch_size=4, shuffle=False, verbose=0)
    found[name] = history.history["loss"]
print(json.dumps(found))
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_answer_and_learn_alike(backend):
    found, expected = (
        json.loads(printed(SCRIPT, name, FOLDER, json.dumps(TEXTS)).splitlines()[-1])
        for name in (backend, "tensorflow")
    )
    np.testing.assert_allclose(found["mixed"], EXPECTED["mixed"], rtol=1e-6, atol=1e-5)
    assert found["hits"] == expected["hits"]
    for name in ("terms", "tokens"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3)
