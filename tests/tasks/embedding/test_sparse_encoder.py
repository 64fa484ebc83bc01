"""SparseEncoder: SPLADE by its formula, sparse vectors, every form of training, search methods."""

import itertools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from not_installed import hide
from scipy import sparse

import encoder_zoo as ez
from encoder_zoo.tasks.embedding import sparse_pooling
from encoder_zoo.tasks.embedding.sparse_pooling import find_largest_logits
from encoder_zoo.tasks.retrieval import terms

WORDS = "good fine nice bad poor awful the a film was it very query : passage".split()
TEXTS = ["good film", "the film was bad", "very nice", "awful", "it was fine", "poor film"]
OTHERS = ["a fine film", "poor", "it was very nice", "the bad film", "nice", "the awful film"]


@pytest.fixture(scope="module")
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture(scope="module")
def build(tokenizer):
    def build(settings=None, **arguments):
        keras.utils.set_random_seed(0)
        backbone = ez.BertBackbone(
            tokenizer.vocabulary_size,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=16,
            dropout=0.0,
            attention_dropout=0.0,
            max_sequence_length=16,
            pooler=False,
        )
        preprocessor = ez.SparseEncoderPreprocessor(tokenizer, **(settings or {}))
        encoder = ez.SparseEncoder(backbone, preprocessor, **arguments)
        rng = np.random.default_rng(0)
        for weight in encoder.trainable_weights:
            weight.assign(weight + 0.5 * rng.normal(size=weight.shape))
        return encoder

    return build


@pytest.fixture(scope="module")
def shared(build):
    """For tests that do not change it: its graphs are traced once."""
    return build()


def by_hand(encoder, texts):
    """The weights of terms, from the logits of a masked language model with the same weights."""
    model = ez.MaskedLM(encoder.backbone)
    for own, theirs in zip(model.head.weights, encoder.head.weights, strict=True):
        own.assign(theirs)
    rows = []
    for text in texts:
        inputs = encoder.preprocessor([text])
        x = np.log1p(np.maximum(np.array(model(inputs))[0], 0))
        x = np.log1p(x) if encoder.activation == "log1p_relu" else x
        rows.append(x.max(0) if encoder.pooling == "max" else x.sum(0))
    return np.stack(rows)


class TestPooling:
    @pytest.mark.slow(except_for="^log1p_relu-sum")
    @pytest.mark.parametrize("kind", ["max", "sum"])
    @pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
    def test_is_the_formula_on_the_logits_of_a_masked_language_model(self, build, kind, activation):
        encoder = build(pooling=kind, activation=activation)
        inputs, expected = encoder.preprocessor(TEXTS), by_hand(encoder, TEXTS)
        assert (expected == 0).any() and (expected > 0).any()
        for training in (False, True):
            found = encoder(inputs, training=training)
            np.testing.assert_allclose(found, expected, atol=1e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["max", "sum"])
    def test_parts_of_the_positions_give_the_same(self, build, kind, monkeypatch):
        encoder = build(pooling=kind)
        inputs = encoder.preprocessor(TEXTS)
        expected = encoder(inputs)
        monkeypatch.setattr(sparse_pooling, "POSITIONS", 2)
        np.testing.assert_allclose(encoder(inputs), expected, rtol=1e-5, atol=1e-6)
        specs = {name: tf.TensorSpec([None, None], v.dtype) for name, v in inputs.items()}
        options = {"input_signature": [specs], "autograph": False}
        for size, jit_compile in itertools.product((2, 3, 100), (False, True)):
            monkeypatch.setattr(sparse_pooling, "POSITIONS", size)
            graph = tf.function(encoder, jit_compile=jit_compile, **options)
            np.testing.assert_allclose(graph(inputs), expected, rtol=1e-5, atol=1e-6)

    def test_tokens_of_a_prompt_can_be_left_out(self, build):
        settings = {"prompts": {"query": "query :"}, "include_prompt": False}
        encoder = build(settings)
        examples = encoder.preprocessor.encode(["good"], prompt="query")
        inputs = encoder.preprocessor.pad(examples)  # [CLS] query : good [SEP]
        assert np.array(inputs["pooling_mask"]).tolist() == [[False, False, False, True, True]]
        x = encoder.backbone({k: v for k, v in inputs.items() if k != "pooling_mask"})
        own = x["sequence_output"][:, 3:]
        expected = sparse_pooling.compute_term_weights(
            encoder.backbone, encoder.head, own, np.ones((1, 2)), "max", "relu"
        )
        np.testing.assert_allclose(encoder(inputs), expected, atol=1e-6)


class TestEmbed:
    @pytest.mark.slow
    def test_rows_are_those_of_the_model_in_the_order_of_the_texts(self, shared):
        texts = [" ".join(TEXTS[: 1 + i % 3]) for i in range(20)]
        found = shared.embed(texts, batch_size=4)
        assert isinstance(found, sparse.csr_array) and found.dtype == "float32"
        assert found.shape == (20, shared.embedding_dim) and (found.data > 0).all()
        expected = np.concatenate([np.array(shared(shared.preprocessor([t]))) for t in texts])
        np.testing.assert_allclose(found.toarray(), expected, atol=1e-5)

    @pytest.mark.slow
    def test_one_text_and_none(self, shared):
        expected = shared.embed(TEXTS).toarray()[:1]
        np.testing.assert_allclose(shared.embed(TEXTS[0]).toarray(), expected, atol=1e-6)
        assert shared.embed([]).shape == (0, shared.embedding_dim)

    @pytest.mark.slow
    def test_the_largest_weights_are_kept(self, shared, build):
        whole = shared.embed(TEXTS).toarray()
        few = shared.embed(TEXTS, max_terms=3).toarray()
        assert ((few > 0).sum(1) == 3).all()
        np.testing.assert_array_equal(np.sort(few, 1)[:, -3:], np.sort(whole, 1)[:, -3:])
        assert (few[few > 0] == whole[few > 0]).all()
        limited = build(max_terms=2)
        assert limited.embed(TEXTS).nnz == 2 * len(TEXTS)
        assert limited.embed(TEXTS, max_terms=4).nnz == 4 * len(TEXTS)

    @pytest.mark.slow
    def test_in_training_scored_texts_have_prompts_too(self, build):
        prompts = {"query": "good : ", "document": "bad : "}
        preprocessor = build({"prompts": prompts}).preprocessor
        for x in ((["film"], ["nice"]), (["film"], ["nice"], ["poor"])):
            inputs, _ = preprocessor(x, np.ones((1, len(x) - 1)))
            found = inputs["token_ids"], inputs["candidate_token_ids"][0, :1]
            for ids, text in zip(found, ("good : film", "bad : nice"), strict=True):
                np.testing.assert_array_equal(ids, preprocessor([text])["token_ids"])

    @pytest.mark.slow
    def test_prompts(self, build):
        encoder = build({"prompts": {"query": "query : ", "passage": "passage : "}})
        expected = encoder.embed(["query : good"]).toarray()
        np.testing.assert_allclose(encoder.embed("good", "query").toarray(), expected, atol=1e-6)
        expected = encoder.embed(["passage : good"]).toarray()
        np.testing.assert_allclose(encoder.embed("good", "document").toarray(), expected, atol=1e-6)

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            (["good", ""], "Row 1 of texts"),
            (["good", None], r"texts\[1\] is None"),
            (None, "texts is None"),
            ((["good"], ["bad"]), "2 columns"),
        ],
    )
    def test_bad_input(self, shared, texts, message):
        with pytest.raises(ValueError, match=message):
            shared.embed(texts)

    def test_bad_arguments(self, shared, build):
        with pytest.raises(ValueError, match="max_terms is 0"):
            shared.embed(TEXTS, max_terms=0)
        with pytest.raises(ValueError, match="prompt is 'qeury'"):
            shared.embed(TEXTS, "qeury")
        with pytest.raises(ValueError, match="pooling is 'mean'"):
            build(pooling="mean")
        with pytest.raises(ValueError, match="has no preprocessor"):
            ez.SparseEncoder(shared.backbone).embed("good")

    @pytest.mark.slow
    def test_long_texts_are_counted(self, shared, caplog):
        shared.embed(["good " * 50, "film"])
        [record] = [r for r in caplog.records if r.name == "encoder_zoo"]
        assert record.getMessage().startswith("1 of 2 texts are longer than 16 tokens")
        assert record.levelno == logging.WARNING

    def test_scipy_is_asked_for(self, shared, monkeypatch):
        hide(monkeypatch, terms.sparse)
        with pytest.raises(ImportError, match="pip install scipy"):
            shared.embed("good")


class TestSearch:
    def test_top_terms(self, shared):
        weights = shared.embed(TEXTS).toarray()
        found = shared.top_terms(TEXTS, k=4)
        for row, best in zip(weights, found, strict=True):
            order = np.argsort(-row)[:4]
            assert [term for term, _ in best] == [shared.terms[i] for i in order]
            np.testing.assert_allclose([weight for _, weight in best], row[order])
        assert dict(shared.top_terms(TEXTS[0], k=4)).keys() == dict(found[0]).keys()

    @pytest.mark.slow
    @pytest.mark.parametrize("function", ["dot", "cosine"])
    def test_similarity(self, build, function):
        encoder = build(similarity_function=function)
        a, b = (encoder.embed(texts).toarray() for texts in (TEXTS, OTHERS))
        if function == "cosine":
            a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
        expected = a @ b.T
        np.testing.assert_allclose(encoder.similarity(TEXTS, OTHERS), expected, rtol=1e-5)
        found = encoder.similarity(encoder.embed(TEXTS), OTHERS[0])
        np.testing.assert_allclose(found, expected[:, 0], rtol=1e-5)
        assert encoder.similarity(TEXTS[0], OTHERS[1]).shape == ()

    def test_rank(self, shared):
        scores = shared.similarity(TEXTS[0], OTHERS)
        ranked = shared.rank(TEXTS[0], OTHERS, top_k=3)
        assert [hit["index"] for hit in ranked] == np.argsort(-scores)[:3].tolist()
        assert [hit["text"] for hit in ranked] == [OTHERS[hit["index"]] for hit in ranked]
        with pytest.raises(ValueError, match="query is "):
            shared.rank(["a"], OTHERS)
        with pytest.raises(ValueError, match="texts.*is empty"):
            shared.rank("a", [])

    def test_retrieval_is_that_of_all_scores(self, shared):
        queries, passages = shared.embed(TEXTS).toarray(), shared.embed(OTHERS).toarray()
        ranks = [(row > row[i]).sum() for i, row in enumerate(queries @ passages.T)]
        found = shared.evaluate_retrieval(TEXTS, OTHERS, cutoffs=[2])
        assert found["accuracy@2"] == pytest.approx(np.mean([rank < 2 for rank in ranks]))
        assert found["query_terms"] == pytest.approx((queries > 0).sum(1).mean())
        products = [((q > 0) & (p > 0)).sum() for q in queries for p in passages]
        assert found["flops"] == pytest.approx(np.mean(products))
        with pytest.raises(ValueError, match="cutoffs is"):
            shared.evaluate_retrieval(TEXTS, OTHERS, cutoffs=[0])


class TestFit:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "columns",
        [
            pytest.param((TEXTS, OTHERS), marks=pytest.mark.slow, id="pairs"),
            pytest.param((TEXTS, OTHERS, TEXTS[::-1]), id="negatives"),
        ],
    )
    def test_pairs_are_put_together(self, build, columns):
        encoder = build()
        encoder.compile(learning_rate=1e-2, run_eagerly=True)
        history = encoder.fit(columns, epochs=3, batch_size=6, verbose=0).history["loss"]
        assert history[-1] < history[0]
        assert isinstance(encoder.loss, ez.losses.SPLADE)
        assert isinstance(encoder.loss.loss, ez.losses.InfoNCE)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_scores_of_a_teacher_are_learned(self, build):
        encoder = build()
        scores = np.array([[2.0, 0.5]] * 6)
        encoder.compile(learning_rate=1e-2, run_eagerly=True)
        columns = (TEXTS, OTHERS, TEXTS[::-1])
        history = encoder.fit(columns, scores, epochs=3, batch_size=6, verbose=0).history["loss"]
        assert isinstance(encoder.loss.loss, ez.losses.MarginMSE)
        assert history[-1] < history[0]

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_vectors_get_sparser(self, build):
        encoder = build()
        before = encoder.embed(TEXTS + OTHERS).nnz
        loss = ez.losses.SPLADE(query_weight=1.0, document_weight=1.0)
        encoder.compile(loss=loss, learning_rate=2e-2, run_eagerly=True)
        encoder.fit((TEXTS, OTHERS), epochs=12, batch_size=6, verbose=0)
        assert encoder.embed(TEXTS + OTHERS).nnz < before

    @pytest.mark.slow
    def test_the_weights_rise_in_a_third_of_the_steps(self, build):
        encoder = build()
        encoder.compile(run_eagerly=True)
        shares = []
        share = encoder._get_regularization_share
        encoder._get_regularization_share = lambda: shares.append(float(share())) or share()
        encoder.fit((TEXTS, OTHERS), epochs=2, batch_size=2, verbose=0)
        expected = [(i / 2) ** 2 for i in range(2)] + [1.0] * 4
        np.testing.assert_allclose(shares, expected)
        encoder.evaluate((TEXTS, OTHERS), verbose=0)
        assert len(shares) == 6  # evaluated with the whole weights

    def test_one_column_with_labels_is_refused(self, build):
        with pytest.raises(ValueError, match="one column of texts"):
            build().fit(TEXTS, np.ones((6, 3)), verbose=0)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_parts_of_a_batch_have_its_gradients(self, build):
        x, y = build().preprocessor((TEXTS, OTHERS))
        found = []
        for size in (None, 2):
            encoder = build()
            encoder.compile(chunk_size=size)
            with tf.GradientTape() as tape:
                y_pred = encoder(x, training=True)
                loss = encoder.compute_loss(y=y, y_pred=y_pred)
            variables = [v.value for v in encoder.trainable_variables]
            gradients = tape.gradient(loss, variables)
            found.append([np.array(tf.convert_to_tensor(g)) for g in gradients])
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_a_saved_model_learns_on(self, build, tmp_path):
        encoder = build(max_terms=5)
        encoder.compile(loss=ez.losses.SPLADE(ez.losses.MarginMSE(), 0.1, 0.2), chunk_size=2)
        encoder.fit((TEXTS, OTHERS, TEXTS[::-1]), np.ones((6, 2)), verbose=0)
        encoder.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert (again.loss.query_weight, again.loss.document_weight) == (0.1, 0.2)
        assert isinstance(again.loss.loss, ez.losses.MarginMSE)
        assert (again.chunk_size, again.max_terms) == (2, 5)


@pytest.mark.slow
class TestExport:
    @pytest.mark.matrix
    def test_terms_of_each_prompt(self, build, tmp_path):
        encoder = build({"prompts": {"query": "query : "}})
        encoder.export(tmp_path / "1", max_terms=4)
        loaded = tf.saved_model.load(str(tmp_path / "1"))
        for name, prompt in (("serving_default", None), ("query", "query")):
            found = loaded.signatures[name](text=tf.constant(TEXTS))
            expected = encoder.embed(TEXTS, prompt, max_terms=4).toarray()
            weights = np.zeros_like(expected)
            np.put_along_axis(weights, found["index"].numpy(), found["weight"].numpy(), axis=1)
            np.testing.assert_allclose(weights, expected, atol=1e-5)
            assert found["count"].numpy().tolist() == [4] * len(TEXTS)
            terms = [t.decode() for t in found["term"][0].numpy()]
            assert terms == [term for term, _ in encoder.top_terms(TEXTS[0], 4, prompt)]


class TestGradients:
    @pytest.mark.parametrize("positions", [2, 32])
    def test_of_the_terms_that_have_one_are_those_of_all(self, positions):
        """Beside TensorFlow's own, also where tokens have equal logits."""
        rng = np.random.default_rng(0)
        x = tf.constant(rng.normal(size=(3, 5, 4)), "float32")
        table = tf.constant(rng.normal(size=(9, 4)), "float32")
        kept = tf.constant(rng.random((3, 9)) < 0.4, "float32")

        def found(largest):
            with tf.GradientTape() as tape:
                tape.watch([x, table])
                padded = tf.concat([x, x[:, :1], x[:, :1]], axis=1)  # repeats the first token
                values = largest(padded, table)
                loss = tf.reduce_sum(kept * tf.sin(values))
            return [values, *tape.gradient(loss, [x, table])]

        def plain(x, table):
            return tf.reduce_max(tf.matmul(x, table, transpose_b=True), axis=1)

        sparse = found(lambda x, table: find_largest_logits(x, table, positions))
        for one, other in zip(sparse, found(plain), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)

    @pytest.mark.slow
    def test_a_model_has_the_same_with_and_without(self, build):
        encoder = build()
        x, y = encoder.preprocessor((TEXTS, OTHERS))
        found = []
        for compiles in (False, True):  # for XLA they are those of all terms
            encoder.jit_compile = compiles
            assert encoder._uses_sparse_gradients is not compiles
            with tf.GradientTape() as tape:
                loss = ez.losses.SPLADE()(y, encoder(x, training=True))
            gradients = tape.gradient(loss, [v.value for v in encoder.trainable_variables])
            found.append([np.array(tf.convert_to_tensor(g)) for g in gradients])
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
