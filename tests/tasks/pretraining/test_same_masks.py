"""The masks of an evaluation are those of the texts, in batches of every size."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import make_text_draws
from encoder_zoo.testing import tiny

rng = np.random.default_rng(0)
TEXTS = [" ".join(rng.choice(list("abcdefgh"), rng.integers(3, 14))) for _ in range(23)]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    model = tiny.task(get_family("bert"), ez.MaskedLM)
    model.compile(keras.optimizers.SGD())
    return model


@pytest.mark.slow
def test_loss_and_metrics_do_not_depend_on_the_batch_size(model):
    found = [
        model.evaluate(x, batch_size=size, verbose=0)
        for size in (1, 4, 8, 32)
        for x in (TEXTS, tf.data.Dataset.from_tensor_slices(TEXTS))
    ]
    found.append(model.evaluate(TEXTS[::-1], batch_size=5, verbose=0))
    np.testing.assert_allclose(found, found[:1] * len(found), rtol=1e-5)


def test_masks_of_training_change():
    preprocessor = tiny.task(get_family("bert"), ez.MaskedLM).preprocessor
    examples = preprocessor.encode(TEXTS)
    drawn = [
        preprocessor.collate(examples, np.array(seed))[0]["token_ids"]
        for seed in ([3, 0], [3, 1], [-1, 0], [-1, 1])
    ]
    assert not np.array_equal(*drawn[:2])
    assert np.array_equal(*drawn[2:])


def test_draws_are_uniform_and_independent_of_padding():
    ids = rng.integers(5, 30_000, (400, 50)).astype("int32")
    draws = np.asarray(make_text_draws(ids, np.ones(ids.shape, bool)))
    assert draws.min() >= 0 and draws.max() < 1
    counts = np.histogram(draws, 10, (0, 1))[0]
    assert abs(counts / draws.size - 0.1).max() < 0.005
    flat = draws.reshape(-1, 3)
    assert abs(np.corrcoef(flat.T) - np.eye(3)).max() < 0.02
    assert abs(np.corrcoef(draws[:, 1:, 0].ravel(), draws[:, :-1, 0].ravel())[0, 1]) < 0.02
    padded = np.pad(ids, [(0, 0), (0, 7)])
    again = np.asarray(make_text_draws(padded, np.pad(np.ones(ids.shape, bool), [(0, 0), (0, 7)])))
    assert np.array_equal(again[:, :50], draws)
