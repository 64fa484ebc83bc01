"""Losses of lists: formulas written as loops, places without texts, use in plain Keras."""

import itertools
import math

import keras
import numpy as np
import pytest
from keras import ops

from encoder_zoo import losses

ABSENT = -np.inf
SCORES = np.float32([[2, 0, 1, 3, 0], [1, 0, 0, ABSENT, ABSENT], [0, 5, ABSENT, ABSENT, ABSENT]])
LOGITS = np.float32([[0.3, 1.2, -0.7, 0.1, 2.0], [-1, 0.5, 2, 0, 0], [1.5, 0.2, 0, 0, 0]])
LOSSES = [
    losses.RankNet(),
    losses.LambdaLoss(),
    losses.LambdaLoss(k=2),
    losses.ListNet(),
    losses.PListMLE(),
    losses.MultipleNegatives(),
    losses.MultipleNegatives(scale=3.0),
    losses.ListMarginMSE(),
]


def name_of(loss) -> str:
    changed = {n: loss.get_config()[n] for n in ("k", "scale") if n in loss.get_config()}
    return " ".join([type(loss).__name__, *map(str, changed.values())])


def softmax(values) -> list[float]:
    powers = [math.exp(v) for v in values]
    return [p / sum(powers) for p in powers]


def rank_net(y, s) -> float:
    """The mean, over pairs, of the bits that tell which text is better."""
    pairs = [(i, j) for i, j in itertools.permutations(range(len(y)), 2) if y[i] > y[j]]
    return np.mean([math.log2(1 + math.exp(s[j] - s[i])) for i, j in pairs])


def lambda_loss(y, s, k=None) -> float:
    k, place = k or len(y), np.argsort(np.argsort(-np.array(s))) + 1
    dcg = sum((2**v - 1) / math.log2(i + 2) for i, v in enumerate(sorted(y)[::-1][:k]))
    gain = [(2**v - 1) / dcg for v in y]
    found = []
    for i, j in itertools.permutations(range(len(y)), 2):
        if y[i] <= y[j] or min(place[i], place[j]) > k:
            continue
        apart = abs(place[i] - place[j])
        bound = abs(1 / math.log2(1 + apart) - 1 / math.log2(2 + apart))
        swap = abs(1 / math.log2(1 + place[i]) - 1 / math.log2(1 + place[j]))
        weight = (10 * bound + swap) * abs(gain[i] - gain[j])
        found.append(weight * math.log2(1 + math.exp(s[j] - s[i])))
    return sum(found) / max(len(found), 1)


def list_net(y, s) -> float:
    return -sum(p * math.log(q) for p, q in zip(softmax(y), softmax(s), strict=True))


def p_list_mle(y, s) -> float:
    order = sorted(range(len(y)), key=lambda i: -y[i])
    weights = [2 ** (len(y) - i) - 1 for i in range(1, len(y) + 1)]
    chosen = [softmax([s[j] for j in order[i:]])[0] for i in range(len(y))]
    return -sum(w * math.log(p) for w, p in zip(weights, chosen, strict=True)) / sum(weights)


def multiple_negatives(y, s, scale=10.0) -> float:
    s = [scale / (1 + math.exp(-v)) for v in s]
    negatives = [s[i] for i in range(len(y)) if y[i] == 0]
    return np.mean([-math.log(softmax([s[i], *negatives])[0]) for i in range(len(y)) if y[i] > 0])


def list_margin_mse(y, s) -> float:
    best = int(np.argmax(y))
    others = [i for i in range(len(y)) if i != best]
    return np.mean([(s[best] - s[i] - y[best] + y[i]) ** 2 for i in others])


EXPECTED = {
    "RankNet": rank_net,
    "LambdaLoss None": lambda_loss,
    "LambdaLoss 2": lambda y, s: lambda_loss(y, s, 2),
    "ListNet": list_net,
    "PListMLE": p_list_mle,
    "MultipleNegatives 10.0": multiple_negatives,
    "MultipleNegatives 3.0": lambda y, s: multiple_negatives(y, s, 3.0),
    "ListMarginMSE": list_margin_mse,
}


@pytest.mark.parametrize("loss", LOSSES, ids=name_of)
class TestEveryLoss:
    def test_it_is_its_formula_and_the_mean_over_queries(self, loss):
        expected = []
        for y, s in zip(SCORES.tolist(), LOGITS.tolist(), strict=True):
            count = sum(v > ABSENT for v in y)
            expected.append(EXPECTED[name_of(loss)](y[:count], s[:count]))
        found = ops.convert_to_numpy(loss.call(SCORES, LOGITS))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert float(loss(SCORES, LOGITS)) == pytest.approx(np.mean(expected), rel=1e-5)
        weights = np.float32([1, 0, 2])
        weighted = float(loss(SCORES, LOGITS, sample_weight=weights))
        assert weighted == pytest.approx(np.dot(expected, weights) / 3, rel=1e-5)

    def test_outputs_where_there_is_no_text_do_not_matter(self, loss):
        absent = SCORES == ABSENT
        expected = ops.convert_to_numpy(loss.call(SCORES, LOGITS))
        for value in (-50.0, 7.0, 1e4):
            logits = np.where(absent, np.float32(value), LOGITS)
            np.testing.assert_allclose(loss.call(SCORES, logits), expected, rtol=1e-5)

    def test_the_order_of_the_texts_does_not_matter(self, loss):
        # Equal scores keep their order, which PListMLE reads.
        order = [3, 1, 0, 2, 4]
        expected = ops.convert_to_numpy(loss.call(SCORES, LOGITS))
        found = loss.call(SCORES[:, order], LOGITS[:, order])
        np.testing.assert_allclose(found, expected, rtol=1e-5)

    @pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="tf.GradientTape")
    def test_gradients_are_finite_and_only_of_texts(self, loss):
        import tensorflow as tf

        # Queries of one text, and of texts that are equally good, have nothing to learn.
        scores = np.concatenate([SCORES, [[1, ABSENT, ABSENT, ABSENT, ABSENT], [1, 1, 1, 1, 1]]])
        logits = tf.Variable(np.concatenate([LOGITS, LOGITS[:2]]) * 30)
        with tf.GradientTape() as tape:
            value = loss(scores, logits)
        gradient = tape.gradient(value, logits).numpy()
        assert np.isfinite(value) and np.isfinite(gradient).all()
        assert np.all(gradient[scores == ABSENT] == 0) and np.any(gradient[:3])

    def test_a_step_against_the_gradient_lowers_it(self, loss):
        import tensorflow as tf

        logits = tf.Variable(LOGITS)
        with tf.GradientTape() as tape:
            before = loss(SCORES, logits)
        logits.assign_sub(0.01 * tape.gradient(before, logits))
        assert float(loss(SCORES, logits)) < float(before)

    def test_serialization(self, loss):
        config = keras.saving.serialize_keras_object(loss)
        again = keras.saving.deserialize_keras_object(config)
        assert type(again).__name__ == type(loss).__name__
        assert again.get_config() == loss.get_config()
        assert float(again(SCORES, LOGITS)) == float(loss(SCORES, LOGITS))


@pytest.mark.slow
def test_in_a_model_of_plain_keras():
    model = keras.Sequential([keras.layers.Dense(1), keras.layers.Reshape((4,))])
    model.compile("adam", losses.LambdaLoss())
    x = np.random.default_rng(0).normal(size=(6, 4, 3))
    y = np.tile([[3.0, 0.0, 1.0, ABSENT]], (6, 1))
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"]).all()


def test_wrong_arguments():
    with pytest.raises(ValueError, match="^k is 0"):
        losses.LambdaLoss(k=0)
    with pytest.raises(ValueError, match="scale is -1"):
        losses.MultipleNegatives(scale=-1)
