"""TextEmbedder: sentence-transformers' numbers, pooling by hand, every form of training."""

import logging
from types import MappingProxyType

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import ops
from paths import GOLDEN

import encoder_zoo as ez
from encoder_zoo.tasks.embedding.pooling import POOLINGS, Projection, pool
from encoder_zoo.tasks.retrieval.similarity import compute_similarity_matrix
from encoder_zoo.tasks.training.sources import TextData

WORDS = "good fine nice bad poor awful the a film was it very query : passage".split()
TEXTS = ["good film", "the film was bad", "very nice", "awful", "it was fine", "poor film"]
OTHERS = ["a fine film", "poor", "it was very nice", "the bad film", "nice", "the awful film"]


@pytest.fixture(scope="module")  # traced once
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture(scope="module")
def build(tokenizer):
    def build(settings=None, dropout=0.0, **arguments):
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
        preprocessor = ez.TextEmbedderPreprocessor(tokenizer, **(settings or {}))
        return ez.TextEmbedder(backbone, preprocessor, **arguments)

    return build


@pytest.fixture(scope="module")
def shared(build):
    """For tests that do not change it: its graphs are traced once."""
    keras.utils.set_random_seed(0)
    return build()


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "encoder_zoo"]


@pytest.fixture(scope="module")
def embedder(minilm):
    return ez.TextEmbedder.from_preset(minilm)


@pytest.fixture(scope="module")
def stored():
    return dict(np.load(GOLDEN / "minilm_embeddings.npz"))


class TestRealModel:
    @pytest.mark.slow
    def test_vectors_equal_those_of_sentence_transformers(self, embedder, stored):
        texts = stored["texts"].tolist()
        found = embedder.embed(texts)
        np.testing.assert_allclose(found, stored["vectors"], atol=1e-5)
        for text, vector in zip(texts[:3], stored["vectors"], strict=False):
            np.testing.assert_allclose(embedder.embed(text), vector, atol=1e-5)

    @pytest.mark.slow
    def test_a_prompt_is_put_before_the_text(self, embedder, stored):
        found = embedder.embed(stored["texts"][:2].tolist(), prompt="query: ")
        np.testing.assert_allclose(found, stored["prompted"], atol=1e-5)

    @pytest.mark.slow
    def test_like_meanings_are_near(self, embedder):
        near, far = embedder.similarity("A cat sleeps.", ["The kitten naps.", "Shares fell."])
        assert near > 0.5 > far


class TestPooling:
    X = np.array([[[1.0, -2.0], [3.0, 5.0], [9.0, 9.0]]], "float32")
    MASK = np.array([[1, 1, 0]])

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [
            ("cls", [1.0, -2.0]),
            ("max", [3.0, 5.0]),
            ("mean", [2.0, 1.5]),
            ("mean_sqrt_len_tokens", [4 / 2**0.5, 3 / 2**0.5]),
            ("weightedmean", [(1 + 2 * 3) / 3, (-2 + 2 * 5) / 3]),
            ("lasttoken", [3.0, 5.0]),
        ],
    )
    def test_by_hand(self, mode, expected):
        np.testing.assert_allclose(pool(self.X, self.MASK, [mode])[0], expected, rtol=1e-6)

    @pytest.mark.parametrize("mode", POOLINGS)
    def test_only_tokens_of_the_mask_count(self, mode):
        left, other = np.array([[0, 1, 1]]), self.X.copy()
        other[0, 0] = 100
        found, expected = pool(other, left, [mode]), pool(self.X, left, [mode])
        np.testing.assert_array_equal(found, expected)

    def test_several_are_concatenated_in_their_order(self):
        found = pool(self.X, self.MASK, ["max", "cls"])
        np.testing.assert_array_equal(found, [[3, 5, 1, -2]])

    def test_half_precision_is_summed_in_float32(self):
        x = np.full((1, 4000, 1), 3.0, "float16")
        assert float(pool(x, np.ones((1, 4000)), ["mean"])[0, 0]) == 3

    def test_projection_with_residual(self):
        layer = Projection(2, "linear", use_bias=False, residual=True)
        layer.build((None, 2))
        layer.dense.kernel.assign([[0, 1], [1, 0]])
        assert ops.convert_to_numpy(layer(np.array([[3.0, 5.0]]))).tolist() == [[8, 8]]
        assert layer.residual_dense is None
        wider = Projection(3, residual=True)
        assert wider(np.ones((1, 2), "float32")).shape == (1, 3)
        assert len(wider.weights) == 3

    @pytest.mark.slow
    def test_the_model_is_pooling_dense_and_unit_length(self, build):
        dense = [{"units": 5, "activation": "tanh"}]
        embedder = build(pooling=["cls", "max"], dense=dense)
        inputs = embedder.preprocessor(["good film", "bad"])
        tokens = embedder.backbone(inputs)["sequence_output"].numpy()
        x = np.concatenate([tokens[:, 0], np.stack([tokens[0].max(0), tokens[1, :3].max(0)])], 1)
        kernel, bias = (w.numpy() for w in embedder.dense_layers[0].dense.weights)
        x = np.tanh(x @ kernel + bias)
        expected = x / np.linalg.norm(x, axis=1, keepdims=True)
        np.testing.assert_allclose(embedder(inputs), expected, atol=1e-6)
        assert embedder.embedding_dim == 5

    @pytest.mark.parametrize("pooling", ["average", ["mean", "avg"], []])
    def test_an_unknown_pooling_is_refused(self, build, pooling):
        with pytest.raises(ValueError, match="pooling is.*cls, max, mean"):
            build(pooling=pooling)


class TestEmbed:
    @pytest.mark.slow
    def test_the_order_of_the_texts_is_kept(self, shared):
        texts = [" ".join(TEXTS[: 1 + i % 3]) for i in range(50)]
        found = shared.embed(texts, batch_size=4)
        expected = np.stack([shared.embed(text) for text in texts])
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)

    @pytest.mark.slow
    def test_every_kind_of_column(self, shared):
        expected = shared.embed(TEXTS)
        for texts in (np.array(TEXTS), pd.Series(TEXTS), tf.constant(TEXTS), (TEXTS,)):
            np.testing.assert_array_equal(shared.embed(texts), expected)
        assert shared.embed([]).shape == (0, 8)

    @pytest.mark.slow
    def test_fewer_dimensions_are_normalized_again(self, shared, build):
        whole = shared.embed(TEXTS)
        expected = whole[:, :3] / np.linalg.norm(whole[:, :3], axis=1, keepdims=True)
        np.testing.assert_allclose(shared.embed(TEXTS, dim=3), expected, atol=1e-6)
        with pytest.raises(ValueError, match="dim is 9.* 8"):
            shared.embed(TEXTS, dim=9)
        plain = build(normalize=False, dim=3)
        assert plain.embed("good").shape == (3,)
        assert plain.embed("good", dim=8).shape == (8,)

    def test_long_texts_are_counted_once(self, shared, caplog):
        shared.embed(["good " * 50, "film", "bad " * 15])
        assert warnings(caplog) == [
            "2 of 3 texts are longer than 16 tokens, so the end is truncated. "
            'Use embed(texts, windows="mean") to read the whole text.'
        ]

    def test_a_text_that_just_fits_is_not_counted(self, shared, caplog):
        shared.embed(["good " * 14, "film"])
        assert warnings(caplog) == []

    def test_windows_are_means_by_their_tokens(self, shared, caplog):
        text = " ".join(["good"] * 14 + ["bad"] * 7)
        parts = shared.embed(["good " * 14, "bad " * 7])
        expected = (parts * [[14], [7]]).sum(0) / 21
        expected /= np.linalg.norm(expected)
        found = shared.embed([text, "film"], windows="mean")
        np.testing.assert_allclose(found[0], expected, atol=1e-6)
        np.testing.assert_allclose(found[1], shared.embed("film"), atol=1e-6)
        assert warnings(caplog) == []

    @pytest.mark.slow
    def test_other_lengths(self, build, caplog):
        embedder = build({"max_length": 5})
        np.testing.assert_allclose(
            embedder.embed("good film was bad"), embedder.embed("good film was"), atol=1e-6
        )
        assert len(warnings(caplog)) == 1
        assert embedder.preprocessor(["good"])["token_ids"].shape == (1, 3)
        fixed = build({"sequence_length": 8})
        assert fixed.preprocessor(["good"])["token_ids"].shape == (1, 8)

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            (["good", ""], "Row 1 of texts"),
            (["good", " \t"], "Row 1 of texts"),
            (["good", None], r"texts\[1\] is None"),
            (None, "texts is None"),
            ([float("nan")], r"texts\[0\] is nan"),
            ((["good"], ["bad"]), "2 columns"),
        ],
    )
    def test_bad_input(self, shared, texts, message):
        with pytest.raises(ValueError, match=message):
            shared.embed(texts)

    def test_without_a_preprocessor(self, build):
        embedder = ez.TextEmbedder(build().backbone)
        with pytest.raises(ValueError, match="has no preprocessor"):
            embedder.embed("good")


class TestPrompts:
    SETTINGS = MappingProxyType({"prompts": {"query": "query: ", "passage": "passage: "}})

    @pytest.mark.slow
    def test_by_name_and_as_text(self, build):
        embedder = build(self.SETTINGS)
        expected = embedder.embed("query: good")
        for prompt in ("query", "query: "):
            np.testing.assert_array_equal(embedder.embed("good", prompt=prompt), expected)
        expected = embedder.embed("passage: good")
        for prompt in ("passage", "document", "corpus"):
            np.testing.assert_array_equal(embedder.embed("good", prompt=prompt), expected)
        assert np.abs(embedder.embed("good") - expected).max() > 1e-3

    def test_passage_and_document_are_the_same_the_exact_name_first(self, build):
        one = {"query": "query: ", "document": "passage: "}
        two = {**one, "passage": "film: "}
        for prompts, text in ((one, "passage: "), (two, "film: ")):
            preprocessor = build({"prompts": prompts}).preprocessor
            assert preprocessor.get_prompt_text("passage") == text
            assert preprocessor.get_prompt_text("document") == "passage: "
            assert preprocessor.get_prompt_text("corpus") == "passage: "

    @pytest.mark.slow
    def test_the_default(self, build):
        embedder = build({**self.SETTINGS, "default_prompt": "query"})
        np.testing.assert_array_equal(embedder.embed("good"), embedder.embed("good", "query: "))
        np.testing.assert_array_equal(embedder.predict(["good"]), [embedder.embed("good")])

    def test_a_model_without_prompts_takes_the_roles(self, shared):
        for role in ("query", "document", "passage", "corpus"):
            np.testing.assert_array_equal(shared.embed("good", role), shared.embed("good"))
        with pytest.raises(ValueError, match="prompt is 'qeury'.*query"):
            shared.embed("good", prompt="qeury")

    @pytest.mark.slow
    def test_left_out_of_pooling(self, build):
        embedder = build({**self.SETTINGS, "include_prompt": False})
        inputs = {"token_ids": np.array([[2, 17, 18, 5, 3]]), "padding_mask": np.ones((1, 5), bool)}
        tokens = embedder.backbone(inputs)["sequence_output"].numpy()[0]
        expected = tokens[3:].mean(0)  # "good" and [SEP]
        expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(embedder.embed("good", "query"), expected, atol=1e-6)
        both = embedder.embed(["good", "the film was bad"], "query")
        np.testing.assert_allclose(both[0], expected, atol=1e-6)
        exported = tf.function(embedder.signatures()["query"], autograph=False)
        found = exported(tf.constant(["good", "the film was bad"]))["embedding"]
        np.testing.assert_allclose(found, both, atol=1e-6)

    def test_windows_are_weighted_without_the_prompt(self, build):
        embedder = build({**self.SETTINGS, "include_prompt": False})
        text = " ".join(["good"] * 12 + ["bad"] * 14)  # with "query :", 14 tokens per window
        first = embedder.embed("good " * 12, "query")
        parts = np.stack([first, embedder.embed("bad " * 14)])
        expected = (parts * [[12], [14]]).sum(0) / 26
        expected /= np.linalg.norm(expected)
        found = embedder.embed([text], "query", windows="mean")[0]
        np.testing.assert_allclose(found, expected, atol=1e-6)

    @pytest.mark.slow
    def test_in_training_the_first_text_is_a_query(self, build):
        preprocessor = build(self.SETTINGS).preprocessor
        x, _ = preprocessor((["good"], ["bad"]))
        expected = preprocessor(["query: good"])["token_ids"]
        np.testing.assert_array_equal(x["token_ids"], expected)
        expected = preprocessor(["passage: bad"])["token_ids"]
        np.testing.assert_array_equal(x["candidate_token_ids"][0], expected)
        x, _ = preprocessor((["good"], ["bad"]), [0.5])
        np.testing.assert_array_equal(x["token_ids"], preprocessor(["good"])["token_ids"])

    @pytest.mark.slow(except_for=r"^negatives4-y4-prompts4$")
    @pytest.mark.parametrize(
        ("negatives", "y", "prompts"),
        [
            ((), [0.5], ("", "")),
            ((), np.ones((1, 8)), ("", "")),
            ((), np.ones((1, 2, 8)), ("query: ", "passage: ")),
            ((["fine"],), [0.5], ("query: ", "passage: ")),
            ((["fine"],), [[0.9, 0.1]], ("query: ", "passage: ")),
        ],
    )
    def test_in_training_only_scored_pairs_get_the_default(self, build, negatives, y, prompts):
        preprocessor = build(self.SETTINGS).preprocessor
        x, _ = preprocessor((["good"], ["bad"], *negatives), y)
        first, second = prompts
        np.testing.assert_array_equal(x["token_ids"], preprocessor([first + "good"])["token_ids"])
        expected = preprocessor([second + "bad"])["token_ids"]
        np.testing.assert_array_equal(x["candidate_token_ids"][0, :1], expected)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"prompts": {"query": 3}}, r"prompts\['query'\] is 3"),
            ({"prompts": {"query": "q"}, "default_prompt": "x"}, "default_prompt is 'x'.*query"),
            ({"default_prompt": "x"}, "default_prompt is 'x'.*None"),
        ],
    )
    def test_bad_settings(self, build, settings, message):
        with pytest.raises(ValueError, match=message):
            build(settings)


@pytest.mark.slow
def test_other_libraries_get_lists(build):
    embedder = build({"prompts": {"query": "good ", "document": "bad "}})
    documents, query = embedder.embed_documents(["good film", "bad"]), embedder.embed_query("film")
    assert isinstance(documents[0][0], float)
    expected = embedder.embed(["good film", "bad"], prompt="document")
    np.testing.assert_allclose(documents, expected, atol=1e-6)
    np.testing.assert_allclose(query, embedder.embed("film", "query"), atol=1e-6)
    assert np.abs(np.array(query) - embedder.embed("film", "document")).max() > 1e-3


class TestFit:
    @pytest.mark.slow
    def test_pairs_come_together(self, build):
        keras.utils.set_random_seed(1)
        embedder = build()
        embedder.compile(learning_rate=1e-2)
        losses = embedder.fit((TEXTS, OTHERS), epochs=20, batch_size=6, verbose=0).history["loss"]
        found = embedder.similarity(TEXTS, OTHERS)
        assert losses[-1] < 0.2 * losses[0]
        assert (found.argmax(1) == np.arange(6)).all()
        assert np.diag(found).mean() - found.mean() > 0.3

    def test_pairs_are_evaluated_in_every_form(self, shared):
        pairs, scores = [("a b", "a"), ("c", "d e"), ("f", "f a")], [1.0, 0.0, 0.5]
        columns = tuple(list(column) for column in zip(*pairs, strict=True))
        expected = shared.evaluate_similarity(columns, scores)
        for form in (pairs, pd.DataFrame(pairs), np.array(pairs)):
            assert shared.evaluate_similarity(form, scores) == expected
        with pytest.raises(ValueError, match="pairs.*has 3 columns"):
            shared.evaluate_similarity((*columns, columns[0]), scores)

    @pytest.mark.slow
    def test_negatives_are_pushed_away(self, build):
        keras.utils.set_random_seed(1)
        embedder = build()
        embedder.compile(learning_rate=1e-2)
        negatives = OTHERS[1:] + OTHERS[:1]
        embedder.fit((TEXTS, OTHERS, negatives), epochs=20, batch_size=6, verbose=0)
        found = embedder.similarity(TEXTS, OTHERS)
        assert np.diag(found).min() > max(found[i, (i + 1) % 6] for i in range(6))

    @pytest.mark.slow
    def test_scores_order_the_pairs(self, build):
        keras.utils.set_random_seed(1)
        embedder = build()
        embedder.compile(learning_rate=1e-2)
        scores = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        embedder.fit((TEXTS, OTHERS), scores, epochs=30, batch_size=6, verbose=0)
        assert isinstance(embedder.loss, ez.losses.CoSENT)
        found = np.diag(embedder.similarity(TEXTS, OTHERS))
        assert (np.argsort(found) == np.arange(6)).all()
        embedder.fit((TEXTS, OTHERS), epochs=1, verbose=0)
        assert isinstance(embedder.loss, ez.losses.InfoNCE)

    def test_texts_alone_have_no_other_partners(self, shared):
        x, y = shared.preprocessor.separate(TEXTS, None)
        batch, labels = shared.preprocessor(x, y)
        np.testing.assert_array_equal(batch["token_ids"][:, None], batch["candidate_token_ids"])
        np.testing.assert_array_equal(labels[:, 0], labels[:, 1])

    @pytest.mark.slow
    def test_texts_alone_are_their_own_partners(self, build):
        embedder = build(dropout=0.1)
        losses = embedder.fit(TEXTS, epochs=2, batch_size=6, verbose=0).history["loss"]
        assert np.isfinite(losses).all()

    @pytest.mark.slow
    def test_a_teachers_vectors_are_learned(self, build):
        keras.utils.set_random_seed(1)
        embedder = build()
        vectors = np.eye(8)[:6]
        embedder.compile(learning_rate=1e-2)
        embedder.fit(TEXTS, vectors, epochs=30, batch_size=6, verbose=0)
        assert (embedder.embed(TEXTS).argmax(1) == np.arange(6)).all()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("loss", "columns", "shape"),
        [
            (ez.losses.GuidedInfoNCE(), 2, (6, 2, 5)),
            (ez.losses.GuidedInfoNCE(), 3, (6, 3, 5)),
            (ez.losses.VectorDistillation(), 2, (6, 8)),
            (ez.losses.VectorDistillation(), 3, (6, 3, 8)),
            (ez.losses.MarginMSE(), 3, (6,)),
            (ez.losses.MarginMSE(), 3, (6, 2)),
        ],
    )
    def test_labels_of_every_shape_that_a_loss_takes(self, build, loss, columns, shape):
        embedder = build()
        embedder.compile(loss=loss)
        x = (TEXTS, OTHERS, TEXTS[1:] + TEXTS[:1])[:columns]
        y = np.random.default_rng(0).normal(size=shape).astype("float32")
        found = embedder.fit(x, y, batch_size=4, verbose=0, shuffle=False).history["loss"]
        assert np.isfinite(found).all()
        vectors = embedder(embedder.preprocessor(x)[0])
        assert vectors.shape == (6, columns, 8)
        found = embedder.evaluate(x, y, batch_size=6, verbose=0)
        assert found == pytest.approx(float(loss(y, vectors)), rel=1e-4)

    @pytest.mark.slow
    def test_one_score_for_three_columns_is_refused_by_the_loss(self, build):
        message = r"CoSENT: y_true.*\(B, 2\).* 2 pairs"
        with pytest.raises(ValueError, match=message):
            build().fit((TEXTS, OTHERS, TEXTS), [0.5] * 6, verbose=0)

    @pytest.mark.slow
    def test_every_form_gives_the_same_batch(self, build):
        preprocessor = build().preprocessor
        negatives = [OTHERS[1], OTHERS[2]]
        (expected, labels) = preprocessor((TEXTS[:2], OTHERS[:2], negatives))
        table = pd.DataFrame({"q": TEXTS[:2], "p": OTHERS[:2], "n": negatives})
        rows = [list(row) for row in zip(TEXTS[:2], OTHERS[:2], negatives, strict=True)]
        lists = (TEXTS[:2], OTHERS[:2], [[n] for n in negatives])
        for x in (table, rows, lists):
            found, numbers = preprocessor(x)
            keras.tree.map_structure(np.testing.assert_array_equal, found, expected)
            np.testing.assert_array_equal(numbers, labels)
        assert labels.numpy().tolist() == [[0, 1, 2], [3, 2, 4]]

    def test_equal_texts_have_equal_numbers(self, build):
        _, labels = build().preprocessor((["good", "bad", "good"], ["bad", "fine", "nice"]))
        assert labels.numpy().tolist() == [[0, 1], [1, 2], [0, 3]]

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_a_dataset_and_arrays_train_alike(self, build):
        def trained(x, y=None):
            keras.utils.set_random_seed(3)
            embedder = build()
            return embedder.fit(x, y, batch_size=6, shuffle=False, verbose=0).history["loss"]

        expected = trained((TEXTS, OTHERS))
        dataset = tf.data.Dataset.from_tensor_slices(((TEXTS, OTHERS),)).batch(6)
        np.testing.assert_allclose(trained(dataset), expected, rtol=1e-5)
        x, y = build().preprocessor((TEXTS, OTHERS))
        x = {name: values.numpy() for name, values in x.items()}
        np.testing.assert_allclose(trained(x, y.numpy()), expected, rtol=1e-5)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_a_batch_of_mixed_datasets_is_of_one_of_them(self, build):
        embedder = build()
        parts = [
            tf.data.Dataset.from_tensor_slices((columns,)).batch(6)
            for columns in ((TEXTS, OTHERS), (OTHERS[::-1], TEXTS[::-1]))
        ]
        alone = [embedder.evaluate(part, verbose=0) for part in parts]
        assert alone[0] != pytest.approx(alone[1], rel=1e-3)
        mixed = tf.data.Dataset.choose_from_datasets(parts, tf.data.Dataset.range(2))
        mixed = mixed.apply(tf.data.experimental.assert_cardinality(2))
        assert embedder.evaluate(mixed, verbose=0) == pytest.approx(np.mean(alone), rel=1e-5)

    @pytest.mark.slow
    def test_validation_and_evaluation(self, build):
        embedder = build()
        data = (TEXTS, OTHERS)
        history = embedder.fit(data, validation_data=(data,), batch_size=6, verbose=0).history
        assert embedder.evaluate(data, batch_size=6, verbose=0) == pytest.approx(
            history["val_loss"][0], rel=1e-5
        )

    def test_weights_count(self, build):
        embedder = build()
        embedder.compile()
        x, y = embedder.preprocessor((TEXTS[:2], OTHERS[:2]))
        vectors = embedder(x)
        first = embedder.compute_loss(x, y, vectors, tf.constant([2.0, 0.0]))
        second = embedder.compute_loss(x, y, vectors, tf.constant([0.0, 2.0]))
        both = embedder.compute_loss(x, y, vectors)
        np.testing.assert_allclose((first + second) / 2, both, rtol=1e-5)

    @pytest.mark.parametrize(
        ("x", "y", "message"),
        [
            ((["a"], ["b", "c"]), None, "1 anchors, 2 positives"),
            (["a", "b"], [0.5, 0.1], r"y.* shape \(2,\)"),
            ((["a"], ["b"]), [float("nan")], "Row 0.*nan"),
            ((["a"], ["b"]), ["x"], "y.*string"),
            ((["a"], ["b"]), [0.1, 0.2], "1 texts.*2 labels"),
            ((["a", "b"], ["c", "d"], [["e"], ["f", "g"]]), None, "Row 1 of the last column"),
            ([["a", "b"], ["c"]], None, "Row 1 of x.*1.*2"),
            ((["a", ""], ["b", "c"]), None, "Row 1 of anchors"),
            ((["a", "d"], ["b", None]), None, r"positives\[1\] is None"),
        ],
    )
    def test_bad_input(self, shared, x, y, message):
        with pytest.raises(ValueError, match=message):
            shared.fit(x, y, verbose=0)

    def test_accumulation_says_that_it_adds_no_negatives(self, build, caplog):
        build().compile(gradient_accumulation_steps=2)
        assert "negatives" in warnings(caplog)[0]


class TestServed:
    @pytest.mark.slow
    def test_signatures_answer_as_embed(self, build):
        embedder = build({"prompts": {"query": "query: "}}, dim=5)
        served = embedder.signatures()
        texts = tf.constant(["good film", "the film was very bad", "nice"])
        for name, prompt in (("serving_default", None), ("query", "query"), ("document", None)):
            found = served[name](texts)["embedding"]
            np.testing.assert_allclose(found, embedder.embed(texts, prompt), atol=1e-6)
        assert embedder.signatures(dim=2)["query"](texts)["embedding"].shape == (3, 2)


class TestSimilarity:
    A, B = np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[6.0, 8.0], [0.0, 1.0]])

    @pytest.mark.parametrize(
        ("function", "expected"),
        [
            ("cosine", [[1, 0.8], [0.6, 0]]),
            ("dot", [[50, 4], [6, 0]]),
            ("euclidean", [[-5, -(18**0.5)], [-(89**0.5), -(2**0.5)]]),
            ("manhattan", [[-7, -6], [-13, -2]]),
        ],
    )
    def test_by_hand(self, function, expected):
        np.testing.assert_allclose(
            compute_similarity_matrix(self.A, self.B, function), expected, rtol=1e-6
        )

    def test_of_texts_and_vectors(self, shared):
        vectors = shared.embed(TEXTS)
        expected = shared.similarity(TEXTS[:2], TEXTS)
        assert expected.shape == (2, 6)
        np.testing.assert_allclose(shared.similarity(vectors[:2], vectors), expected, atol=1e-6)
        np.testing.assert_allclose(shared.similarity(TEXTS[0], vectors), expected[0], atol=1e-6)
        assert shared.similarity("good", "bad").shape == ()


@pytest.mark.slow
@pytest.mark.matrix
def test_chunks_change_nothing(build):
    losses = []
    for chunk_size in (None, 2):
        keras.utils.set_random_seed(5)
        embedder = build()
        embedder.compile(chunk_size=chunk_size, learning_rate=1e-2)
        history = embedder.fit((TEXTS, OTHERS), epochs=3, batch_size=6, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_chunks_are_kept_until_they_are_switched_off(build):
    embedder = build()
    embedder.compile(chunk_size=4)
    embedder.compile(learning_rate=1e-3)
    embedder._adapt_to_data(
        TextData((TEXTS, OTHERS), np.ones(6))
    )  # compiles again, for another loss
    assert embedder.chunk_size == 4
    assert embedder.get_compile_config()["chunk_size"] == 4
    embedder.compile(chunk_size=0)
    assert embedder.chunk_size is None
    assert embedder.get_compile_config()["chunk_size"] is None
    embedder._adapt_to_data(TextData((TEXTS, OTHERS)))
    assert embedder.chunk_size is None


@pytest.mark.matrix
@pytest.mark.slow
def test_compile_settings_are_saved(build, tmp_path):
    embedder = build()
    embedder.compile(loss=ez.losses.InfoNCE(scale=10.0), chunk_size=4)
    embedder.fit((TEXTS, OTHERS), verbose=0)
    embedder.save(tmp_path / "embedder.keras")
    again = keras.saving.load_model(tmp_path / "embedder.keras")
    assert (again.chunk_size, again.loss.scale) == (4, 10)
    np.testing.assert_array_equal(again.embed(TEXTS), embedder.embed(TEXTS))


def test_logging_is_quiet_by_default(shared, caplog):
    with caplog.at_level(logging.INFO):
        shared.embed(TEXTS)
    assert warnings(caplog) == []
