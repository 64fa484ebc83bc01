"""Reranker: scores, rankings, learning from pairs and from lists, checkpoints, exports."""

import json
import logging
import pathlib

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import ops
from processes import run

import encoder_zoo as ez
from encoder_zoo.common.lazy import use_numpy
from encoder_zoo.testing.tiny import randomize_weights

WORDS = "who what sings runs she he it a the song mile red blue".split()
QUERIES = ["who sings", "what", "who runs the mile", "it", "red"]
TEXTS = ["she sings a song", "it", "he runs", "the red song runs a mile", "blue"]
LISTS = [["she sings", "it"], ["a song"], ["he runs the mile", "red", "she runs"]]
SCORES = [[1.0, 0.0], [2.0], [2.0, 0.0, 1.0]]


@pytest.fixture(scope="module")  # traced once
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture(scope="module")
def build(tokenizer):
    def build(max_length=None, **arguments):
        backbone = ez.BertBackbone(
            tokenizer.vocabulary_size,
            num_layers=1,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=32,
            dropout=0.0,
            attention_dropout=0.0,
            max_sequence_length=24,
        )
        preprocessor = ez.RerankerPreprocessor(tokenizer, max_length=max_length)
        return randomize_weights(ez.Reranker(backbone, preprocessor, **arguments))

    return build


@pytest.fixture(scope="module")
def reranker(build):
    keras.utils.set_random_seed(0)
    return build()


class TestAnswers:
    @pytest.mark.slow
    def test_scores_are_those_of_each_pair_by_itself(self, reranker):
        found = reranker.score(QUERIES, TEXTS, batch_size=2)
        assert found.shape == (5,) and found.dtype == np.float32
        alone = [reranker.score(pair) for pair in zip(QUERIES, TEXTS, strict=True)]
        np.testing.assert_allclose(found, alone, atol=1e-6)
        logits = reranker.predict((QUERIES, TEXTS), verbose=0)
        assert logits.shape == (5, 1)
        np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits[:, 0])), atol=1e-6)
        assert len(set(found.round(4))) == 5

    def test_pairs_come_in_many_forms(self, reranker):
        expected = reranker.score(QUERIES, TEXTS)
        pairs = list(zip(QUERIES, TEXTS, strict=True))
        table = pd.DataFrame({"query": QUERIES, "text": TEXTS})
        for x in (pairs, (QUERIES, TEXTS), table, np.array(pairs), (np.array(QUERIES), TEXTS)):
            np.testing.assert_allclose(reranker.score(x), expected, atol=1e-6)
        same = reranker.score([QUERIES[0]] * 5, TEXTS)
        np.testing.assert_allclose(reranker.score(QUERIES[0], TEXTS), same, atol=1e-6)

    def test_a_linear_activation_leaves_logits(self, build, reranker):
        linear = build(activation="linear")
        linear.set_weights(reranker.get_weights())
        logits = reranker.predict((QUERIES, TEXTS), verbose=0)[:, 0]
        np.testing.assert_allclose(linear.score(QUERIES, TEXTS), logits, atol=1e-6)

    @pytest.mark.slow
    def test_rank_puts_the_best_first(self, reranker):
        texts = [*TEXTS, *TEXTS[:2]]  # two of them twice: equal scores stay in order
        scores = reranker.score(QUERIES[0], texts)
        expected = sorted(range(7), key=lambda i: (-round(float(scores[i]), 5), i))
        found = reranker.rank(QUERIES[0], texts)
        assert [hit["index"] for hit in found] == expected
        assert [hit["text"] for hit in found] == [texts[i] for i in expected]
        np.testing.assert_allclose([hit["score"] for hit in found], scores[expected], atol=1e-6)
        best = reranker.rank(QUERIES[0], texts, top_k=2, batch_size=3)
        assert [hit["index"] for hit in best] == expected[:2]

    def test_nothing_to_score(self, reranker):
        assert reranker.score([], []).shape == (0,)
        assert reranker.score("who", []).shape == (0,)

    @pytest.mark.slow
    def test_long_pairs_are_cut_at_the_longest_length(self, build, tokenizer):
        assert build().preprocessor.max_sequence_length == 24
        assert build(50).preprocessor.max_sequence_length == 24
        short = build(8)
        assert short.preprocessor.max_sequence_length == 8
        x = short.preprocessor((["who sings"], ["a song it runs the red mile"]))
        # The longer one is cut first: 5 tokens are left for both.
        expected = "[CLS] who sings [SEP] a song it [SEP]".split()
        vocabulary = tokenizer.get_vocabulary()
        assert [vocabulary[i] for i in x["token_ids"][0]] == expected
        assert x["segment_ids"].numpy().tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((["a"], ["b", "c"]), "1 queries, 2 texts"),
            ((["a", "it"], ["b", " "]), "Row 1 of texts"),
            ((["", "it"], ["b", "it"]), "Row 0 of queries"),
            ((["a"], [None]), "texts"),
            ((["a", "b"],), r"\(queries, texts\)"),
            (("who",), r"\(queries, texts\)"),
            (((["a"], ["b"], ["c"]),), "3 columns"),
        ],
    )
    def test_score(self, reranker, arguments, message):
        with pytest.raises((ValueError, TypeError), match=message):
            reranker.score(*arguments)

    def test_rank(self, reranker):
        with pytest.raises(ValueError, match="texts.*is empty"):
            reranker.rank("who", [])
        with pytest.raises(ValueError, match="query is.*'what'"):
            reranker.rank(["who", "what"], TEXTS)
        with pytest.raises(ValueError, match="top_k is 0"):
            reranker.rank("who", TEXTS, top_k=0)

    @pytest.mark.parametrize(
        ("x", "y", "message"),
        [
            ((QUERIES, TEXTS), None, "scores are missing"),
            ((QUERIES, TEXTS), [0, 1], "5 texts.*2 labels"),
            ((QUERIES, TEXTS), [0, 1, 2, 0, 1], "Row 2.*score 2.0"),
            ((QUERIES, TEXTS), [0, 1, 0, np.nan, 1], "Row 3.*nan"),
            ((QUERIES, TEXTS), ["a"] * 5, "y.*(string|object)"),
            ((QUERIES, TEXTS), [0, None, 0, 1, 1], "Row 1.*None"),
            ((QUERIES, TEXTS), np.zeros((5, 2)), "score.*pair"),
            ((QUERIES[:3], LISTS), [[1, 0], [2], [1, 0]], "Row 2.*2 scores.*3 texts"),
            ((QUERIES[:3], LISTS), [[1, 0], [2], [1, 0, np.inf]], "Row 2.*score inf"),
            ((QUERIES[:3], LISTS), [[1, 0], [2]], "2 lists.*3 queries"),
            ((QUERIES[:3], LISTS), [1, 0, 2], "Row 0 of.*y.*is 1"),
            ((QUERIES, LISTS), SCORES, "5 queries, 3 lists"),
            ((QUERIES[:2], [["it"], []]), [[1], []], "Row 1 of texts"),
            ((QUERIES[:2], [["it"], ["a", " "]]), [[1], [1, 0]], "Row 1 of texts.*empty"),
            ((QUERIES[:2], [["it"], ["a", None]]), [[1], [1, 0]], "Row 1 of texts.*None"),
            ((QUERIES[:2], [["it"], "a"]), [[1], [1]], "Row 1 of texts.*'a'"),
        ],
    )
    def test_fit(self, reranker, x, y, message):
        with pytest.raises(ValueError, match=message):
            reranker.fit(x, y, verbose=0)

    def test_losses_of_the_other_kind(self, build):
        task = build()
        task.compile(loss=ez.losses.RankNet())
        with pytest.raises(ValueError, match="RankNet.*pairs"):
            task.fit((QUERIES, TEXTS), [0] * 5)
        task.compile(loss="mse")
        with pytest.raises(ValueError, match="loss mse"):
            task.fit((QUERIES[:3], LISTS), SCORES)

    def test_prepared_lists_of_two_lengths(self, reranker):
        ids = np.ones((2, 5), int)
        x = {"token_ids": ids, "candidate_token_ids": np.ones((2, 1, 4), int)}
        with pytest.raises(ValueError, match="4.*token_ids.*5"):
            reranker(x)
        x |= {"candidate_token_ids": ids[:, None], "padding_mask": ids}
        with pytest.raises(ValueError, match="candidate_padding_mask"):
            reranker(x)


class TestPairs:
    @pytest.mark.slow
    def test_fit_learns(self, build):
        keras.utils.set_random_seed(0)
        task = build()
        task.compile(learning_rate=0.02)
        y = [1, 0, 0.7, 0, 1]
        history = task.fit((QUERIES, TEXTS), y, epochs=30, batch_size=3, verbose=0).history
        np.testing.assert_allclose(task.score(QUERIES, TEXTS), y, atol=0.1)
        assert history["accuracy"][-1] == 1
        results = task.evaluate((QUERIES, TEXTS), y, verbose=0, return_dict=True)
        p = np.clip(task.score(QUERIES, TEXTS), 1e-7, 1 - 1e-7)
        expected = -np.mean(y * np.log(p) + (1 - np.array(y)) * np.log(1 - p))
        assert results["loss"] == pytest.approx(expected, abs=1e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("activation", ["sigmoid", "linear"])
    @pytest.mark.parametrize("loss", ["binary_crossentropy", keras.losses.BinaryCrossentropy()])
    def test_cross_entropy_is_of_logits(self, build, activation, loss):
        task = build(activation=activation)
        task.compile(loss=loss)
        logits = task.predict((QUERIES, TEXTS), verbose=0)[:, 0]
        found = task.evaluate((QUERIES, TEXTS), [1.0] * 5, verbose=0, return_dict=True)
        assert found["loss"] == pytest.approx(np.logaddexp(0, -logits).mean(), abs=1e-5)

    @pytest.mark.slow
    def test_squared_errors_are_of_logits_and_any_score(self, build):
        task = build(activation="linear")
        task.compile(loss="mse", metrics=["mae"])
        y = np.array([3.0, -1.0, 0.5, 9.0, 0.0])
        found = task.evaluate((QUERIES, TEXTS), y, verbose=0, return_dict=True)
        errors = task.score(QUERIES, TEXTS) - y
        assert found["loss"] == pytest.approx(np.mean(errors**2), rel=1e-5)
        assert found["mae"] == pytest.approx(np.mean(np.abs(errors)), rel=1e-5)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_datasets(self, build):
        task = build()
        y = [1.0, 0.0, 0.5, 0.0, 1.0]
        expected = task.evaluate((QUERIES, TEXTS), y, verbose=0)
        dataset = tf.data.Dataset.from_tensor_slices(((QUERIES, TEXTS), y))
        for data in (dataset, dataset.batch(2)):
            np.testing.assert_allclose(task.evaluate(data, verbose=0), expected, atol=1e-5)
        wrong = tf.data.Dataset.from_tensor_slices(((QUERIES, TEXTS), [2.0] * 5)).batch(5)
        with pytest.raises(tf.errors.InvalidArgumentError, match="score 2"):
            task.evaluate(wrong, verbose=0)


class TestLists:
    def test_outputs_are_those_of_the_pairs(self, reranker):
        x, y = reranker.preprocessor((QUERIES[:3], LISTS), SCORES)
        assert x["candidate_token_ids"].shape == (3, 2, 11)
        outputs = ops.convert_to_numpy(reranker(x))
        present = np.isfinite(y)
        assert outputs.shape == (3, 3) and present.sum() == 6
        assert np.isfinite(outputs).all()
        for i in range(3):
            pairs = [QUERIES[i]] * len(LISTS[i]), LISTS[i]
            expected = sorted(
                zip(SCORES[i], reranker.predict(pairs, verbose=0)[:, 0].tolist(), strict=True)
            )
            found = sorted(zip(y[i][present[i]].numpy(), outputs[i][present[i]], strict=True))
            np.testing.assert_allclose(found, expected, atol=1e-5)

    def test_the_longest_text_comes_first(self, reranker):
        lists = [["it", "she sings a song", "he runs"], ["red", "blue the song"]]
        examples = reranker.preprocessor.encode((QUERIES[:2], lists), [[1, 2, 3], [4, 5]])
        assert examples["labels"].to_list() == [[2, 3, 1], [5, 4]]
        lengths = [examples["token_ids"].row_lengths().numpy().tolist()]
        others = examples["candidate_token_ids"]
        assert lengths == [[9, 7]]
        assert [[len(text) for text in row] for row in others.to_list()] == [[7, 6], [5]]

    @pytest.mark.slow
    @pytest.mark.matrix
    def test_fit_learns_the_order(self, build):
        keras.utils.set_random_seed(0)
        task = build()
        task.compile(learning_rate=0.02)
        data = (QUERIES[:3], LISTS), SCORES
        history = task.fit(*data, epochs=25, batch_size=2, verbose=0, validation_data=data).history
        assert history["val_ndcg@10"][-1] == pytest.approx(1)
        assert history["loss"][-1] < history["loss"][0] / 3
        assert [hit["index"] for hit in task.rank(QUERIES[2], LISTS[2])] == [0, 2, 1]
        # Pairs next: their own loss and metrics.
        assert "accuracy" in task.fit((QUERIES, TEXTS), [1.0] * 5, verbose=0).history
        assert set(task.evaluate(*data, verbose=0, return_dict=True)) == {"loss", "ndcg@10"}

    @pytest.mark.slow
    def test_evaluate_is_the_mean_over_queries(self, build):
        task = build()
        whole = task.evaluate((QUERIES[:3], LISTS), SCORES, verbose=0, return_dict=True)
        losses, weights = [], [1.0, 3.0, 2.0]
        for i in range(3):
            scores = np.float32([SCORES[i]])
            pairs = [QUERIES[i]] * len(LISTS[i]), LISTS[i]
            logits = task.predict(pairs, verbose=0).T
            losses.append(float(ez.losses.LambdaLoss()(scores, logits)))
        assert whole["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
        weighted = task.evaluate(
            (QUERIES[:3], LISTS), SCORES, sample_weight=weights, batch_size=3, verbose=0
        )
        # Keras divides by the number of examples, not by the sum of the weights.
        assert weighted[0] == pytest.approx(np.dot(losses, weights) / 3, abs=1e-5)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_datasets(self, build):
        task = build()
        expected = task.evaluate((QUERIES[:3], LISTS), SCORES, verbose=0)
        x = (tf.constant(QUERIES[:3]), tf.ragged.constant(LISTS))
        dataset = tf.data.Dataset.from_tensor_slices((x, tf.ragged.constant(SCORES)))

        def single(x, y):
            return (x[0], x[1].to_tensor() if hasattr(x[1], "to_tensor") else x[1]), y

        batches = dataset.batch(3)
        np.testing.assert_allclose(task.evaluate(batches, verbose=0), expected, atol=1e-5)
        one_by_one = dataset.map(single)
        np.testing.assert_allclose(task.evaluate(one_by_one, verbose=0), expected, atol=1e-5)
        task.fit(one_by_one, batch_size=2, verbose=0)

    @pytest.mark.matrix
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "loss", ["RankNet", "ListNet", "PListMLE", "MultipleNegatives", "ListMarginMSE"]
    )
    def test_other_losses(self, build, loss):
        task = build()
        task.compile(loss=getattr(ez.losses, loss)(), run_eagerly=True)
        losses = task.fit((QUERIES[:3], LISTS), SCORES, verbose=0).history["loss"]
        assert np.isfinite(losses).all()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("scores", "highest"),
        [([[1, 0], [0], [-2.0, -8.0, -9.0]], -2.0), ([[150, 150], [1], [2, 1, 0]], 150.0)],
    )
    def test_scores_that_make_no_gains_are_refused(self, build, scores, highest):
        task, x = build(), (QUERIES[:3], LISTS)
        row = 2 if highest < 0 else 0
        message = f"Row {row}.*{highest}.*LambdaLoss.*ListMarginMSE.*RankNet"
        for method in (task.fit, task.evaluate):
            with pytest.raises(ValueError, match=message):
                method(x, scores, verbose=0)
        task.fit(x, [[0, 0], [-1], [3, 1, -1]], verbose=0)
        for loss in (ez.losses.ListMarginMSE(), ez.losses.RankNet()):
            task.compile(loss=loss)
            assert np.isfinite(task.fit(x, scores, verbose=0).history["loss"]).all()

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_prepared_inputs(self, build):
        task = build()
        x, y = task.preprocessor((QUERIES[:3], LISTS), SCORES)
        x = {name: values.numpy() for name, values in x.items()}
        expected = task.evaluate((QUERIES[:3], LISTS), SCORES, verbose=0)
        np.testing.assert_allclose(task.evaluate(x, y.numpy(), verbose=0), expected, atol=1e-5)
        assert task.predict(x, verbose=0).shape == (3, 3)
        task.fit(x, y.numpy(), verbose=0)

    @pytest.mark.slow
    def test_weights_after_a_step_do_not_depend_on_padding(self, build):
        """A shorter list beside a longer one learns as it does alone."""
        weights, task = None, build()
        before = task.get_weights()
        for x, y in (((QUERIES[:1], LISTS[:1]), SCORES[:1]), ((QUERIES[:3], LISTS), SCORES)):
            task.set_weights(before)
            task.compile(optimizer=keras.optimizers.SGD(1.0), run_eagerly=True)
            weight = [1.0, 0.0, 0.0][: len(y)]
            task.fit(x, y, sample_weight=np.array(weight) * len(y), verbose=0, shuffle=False)
            if weights is not None:
                for a, b in zip(task.get_weights(), weights, strict=True):
                    np.testing.assert_allclose(a, b, atol=1e-5)
            weights = task.get_weights()


class TestEvaluateRanking:
    def test_measures(self, reranker):
        lists = [TEXTS, TEXTS[:3], TEXTS[:2]]
        scores = [
            reranker.score(query, texts) for query, texts in zip(QUERIES, lists, strict=False)
        ]
        best = [np.argsort(-s).tolist() for s in scores]
        relevance = [[0.0] * len(texts) for texts in lists]
        relevance[0][best[0][1]], relevance[0][best[0][3]] = 1, 2  # places 2 and 4
        relevance[1][best[1][0]] = 1  # place 1; the third query has none
        found = reranker.evaluate_ranking(QUERIES[:3], lists, relevance)
        with use_numpy():  # the operations of JAX and PyTorch
            assert reranker.evaluate_ranking(QUERIES[:3], lists, relevance) == found
        dcg = (1 / np.log2(3) + 2 / np.log2(5)) / (2 + 1 / np.log2(3))
        expected = {"ndcg@10": (dcg + 1) / 2, "mrr@10": 0.75, "map@100": (0.5 + 1) / 2}
        assert found == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("relevance", "message"),
        [
            ([[1, 0], [2], [1, 0]], "Row 2.*2 scores.*3 texts"),
            ([[1, -1], [2], [1, 0, 0]], "Row 0.*relevance -1.0"),
            ([[0, 0], [0], [0, 0, 0]], "relevance.*greater than 0"),
        ],
    )
    def test_bad_input(self, reranker, relevance, message):
        with pytest.raises(ValueError, match=message):
            reranker.evaluate_ranking(QUERIES[:3], LISTS, relevance)
        with pytest.raises(ValueError, match="texts.*list of texts"):
            reranker.evaluate_ranking(QUERIES, TEXTS, [1] * 5)


def with_logits_times(reranker, build, factor):
    """The same reranker, whose logits are so many times as large."""
    task = build()
    task.set_weights(reranker.get_weights())
    for weight in task.head.weights[-2:]:
        weight.assign(weight * factor)
    return task


class TestSaturatedAndEqualScores:
    @pytest.mark.slow
    def test_texts_are_ordered_by_logits(self, reranker, build):
        """Where all probabilities are 1 or 0, as where none is."""
        texts, relevance = [*TEXTS, "red"], [[0, 1, 0, 3, 0, 1]]
        sure = with_logits_times(reranker, build, 1e6)
        assert set(sure.score(QUERIES[0], texts)) <= {0, 1}
        for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 0, 5, 1, 4, 2]):
            listed, grades = [texts[i] for i in order], [[relevance[0][i] for i in order]]
            ranked = [[r["text"] for r in m.rank(QUERIES[0], listed)] for m in (reranker, sure)]
            assert ranked[0] == ranked[1]
            found = [m.evaluate_ranking(QUERIES[:1], [listed], grades) for m in (reranker, sure)]
            assert found[0] == pytest.approx(found[1])
            index = ez.VectorIndex.from_vectors(Constant(), np.ones((6, 2), "float32"), listed)
            judged = [dict(enumerate(grades[0]))]
            searched = index.evaluate(QUERIES[:1], judged, cutoffs=[10], reranker=sure)
            assert {name: searched[name] for name in found[0]} == pytest.approx(found[0])

    @pytest.mark.slow
    def test_equal_scores_have_no_order(self, reranker, build):
        metrics = pytest.importorskip("sklearn.metrics")
        same = with_logits_times(reranker, build, 0.0)
        expected = metrics.ndcg_score([[0, 2, 0, 1, 0]], [[0.5] * 5], k=10)
        for grades in ([2, 1, 0, 0, 0], [0, 0, 0, 1, 2]):
            found = same.evaluate_ranking(QUERIES[:1], [TEXTS], [grades])
            assert found["ndcg@10"] == pytest.approx(expected)
        found = [
            same.evaluate_ranking(QUERIES[:1], [TEXTS], [grades])["mrr@10"]
            for grades in ([1, 0, 0, 0, 0], [0, 0, 0, 0, 1])
        ]
        assert found == pytest.approx([(1 / np.arange(1, 6)).mean()] * 2)


class Constant:
    """An embedder of one vector for all texts."""

    similarity_function = "dot"
    embedding_dim = 2

    def embed(self, texts, prompt=None, dim=None, batch_size=None):
        return np.ones((len(texts), 2), "float32")


class TestCheckpoints:
    @pytest.mark.slow
    def test_round_trip(self, build, tmp_path):
        task = build(activation="linear", max_length=9)
        task.save_to_preset(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["architectures"] == ["BertForSequenceClassification"]
        assert config["id2label"] == {"0": "LABEL_0"}
        again = ez.Reranker.from_preset(tmp_path)
        assert again.activation == "linear"
        assert again.preprocessor.max_sequence_length == 9
        expected = task.score(QUERIES, TEXTS)
        np.testing.assert_allclose(again.score(QUERIES, TEXTS), expected, atol=1e-6)

    @pytest.mark.slow(except_for=r"^fields1-linear$")
    @pytest.mark.parametrize(
        ("fields", "activation"),
        [
            ({}, "sigmoid"),
            (
                {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
                "linear",
            ),
            (
                {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
                "linear",
            ),
            ({"sentence_transformers": {"version": "4.1.0"}}, "sigmoid"),
            (
                {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
                "sigmoid",
            ),
        ],
    )
    def test_activations_of_sentence_transformers(self, cross_encoder, fields, activation):
        assert ez.Reranker.from_preset(cross_encoder(fields)).activation == activation

    def test_other_activations_are_refused(self, cross_encoder):
        noted = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}
        folder = cross_encoder(noted)
        with pytest.raises(ValueError, match="activation.*Tanh"):
            ez.Reranker.from_preset(folder)
        assert ez.Reranker.from_preset(folder, activation="linear").activation == "linear"

    def test_classifiers_of_several_labels_are_refused(self, golden):
        folder = golden("Bert_ForSequenceClassification").folder
        with pytest.raises(ValueError, match="3 labels.*O, B-PER, I-PER.*SequenceClassifier"):
            ez.Reranker.from_preset(folder)

    def test_an_encoder_gets_a_new_head(self, golden, caplog):
        folder = golden("Bert_Model").folder
        with caplog.at_level(logging.WARNING):
            task = ez.Reranker.from_preset(folder, activation="linear")
        assert "head of Reranker" in caplog.text
        assert task.activation == "linear"
        assert task.backbone.activation == "gelu"  # an argument of the same name

    @pytest.mark.slow
    def test_a_classifier_of_one_label_is_the_same_model(self, build, tmp_path):
        task = build(activation="linear")
        task.save_to_preset(tmp_path)
        classifier = ez.SequenceClassifier.from_preset(tmp_path)
        assert classifier.problem_type == "regression"
        scores = [answer["score"] for answer in classifier.classify((QUERIES, TEXTS))]
        np.testing.assert_allclose(task.score(QUERIES, TEXTS), scores, atol=1e-6)

    @pytest.fixture
    def cross_encoder(self, build, tmp_path):
        """A folder of a cross-encoder without our own settings, with fields in config.json."""

        def make(fields) -> pathlib.Path:
            build().save_to_preset(tmp_path)
            (tmp_path / "encoder_zoo.json").unlink()
            path = tmp_path / "config.json"
            config = json.loads(path.read_text())
            for name in ("sentence_transformers", "sbert_ce_default_activation_function"):
                config.pop(name, None)
            path.write_text(json.dumps({**config, **fields}))
            return tmp_path

        return make


def test_no_pairs_have_no_scores(reranker):
    assert reranker.predict(([], []), verbose=0).shape == (0, 1)


@pytest.mark.matrix
@pytest.mark.slow
def test_an_export_scores_and_ranks(reranker, tmp_path):
    reranker.export(tmp_path / "1")
    signatures = tf.saved_model.load(str(tmp_path / "1")).signatures
    queries, texts = QUERIES * 10, TEXTS * 10  # more than one batch in the graph
    found = signatures["serving_default"](query=tf.constant(queries), text=tf.constant(texts))
    np.testing.assert_allclose(found["score"], reranker.score(queries, texts), atol=1e-5)
    found = signatures["rank"](query=tf.constant(["who sings"]), text=tf.constant(TEXTS))
    expected = reranker.rank("who sings", TEXTS)
    assert found["order"].numpy().tolist() == [hit["index"] for hit in expected]
    scores = [hit["score"] for hit in expected]
    np.testing.assert_allclose(found["score"], scores, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected the same"):
        signatures["serving_default"](query=tf.constant(["who"]), text=tf.constant(TEXTS))


TWO_REPLICAS = """
import sys, json
import numpy as np
import tensorflow as tf

[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import contextlib, keras
import encoder_zoo as ez
from encoder_zoo.testing.tiny import randomize_weights

words, data = json.load(sys.stdin)
tokenizer = ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
queries, lists, scores = data
results = []
for strategy in (None, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
    with strategy.scope() if strategy else contextlib.nullcontext():
        sizes = dict(num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
        keras.utils.set_random_seed(0)
        backbone = ez.BertBackbone(30, **sizes, dropout=0.0, attention_dropout=0.0)
        task = randomize_weights(ez.Reranker(backbone, ez.RerankerPreprocessor(tokenizer)))
        task.compile(keras.optimizers.SGD(0.1))
    # Of the last batch, a single query, one of two replicas has none.
    fitted = task.fit((queries, lists), scores, epochs=2, batch_size=2, verbose=0).history
    evaluated = task.evaluate((queries, lists), scores, batch_size=2, verbose=0)
    weights = np.concatenate([w.ravel() for w in task.get_weights()])
    results.append([*fitted["loss"], *fitted["ndcg@10"], *evaluated, *weights.tolist()])
print(json.dumps(results))
"""


@pytest.mark.matrix
@pytest.mark.slow
def test_lists_on_two_replicas_are_as_on_one_device():
    data = json.dumps([WORDS, [QUERIES[:3], LISTS, SCORES]])
    one, two = map(np.array, json.loads(run(TWO_REPLICAS, given=data).splitlines()[-1]))
    np.testing.assert_allclose(two, one, atol=1e-5)
