"""FLOPS, and the loss that adds them to another, beside their formulas."""

import numpy as np
import pytest

from encoder_zoo.tasks.losses import SPLADE, InfoNCE, MarginMSE

RNG = np.random.default_rng(0)
Y_PRED = np.maximum(RNG.normal(size=(5, 3, 7)), 0).astype("float32")
NUMBERS = np.arange(15).reshape(5, 3)


def flops(x):
    return (x.reshape(-1, 7).astype("float64").mean(0) ** 2).sum()


@pytest.mark.parametrize("share", [1.0, 0.25, 0.0])
def test_is_the_loss_and_the_flops_of_both_sides(share):
    loss = SPLADE(query_weight=0.3, document_weight=0.2)
    base = float(InfoNCE(1.0, "dot")(NUMBERS, Y_PRED))
    added = 0.3 * flops(Y_PRED[:, :1]) + 0.2 * flops(Y_PRED[:, 1:])
    assert float(loss.scale_weights(share)(NUMBERS, Y_PRED)) == pytest.approx(base + share * added)


def test_another_loss():
    scores = RNG.normal(size=(5, 2)).astype("float32")
    found = SPLADE(MarginMSE(), 0.0, 0.0)(scores, Y_PRED)
    assert float(found) == pytest.approx(float(MarginMSE()(scores, Y_PRED)))


def test_bad_arguments():
    with pytest.raises(ValueError, match="loss is 'mse'"):
        SPLADE("mse")
    with pytest.raises(ValueError, match="query_weight is -1"):
        SPLADE(query_weight=-1)
    with pytest.raises(ValueError, match="SPLADE: y_pred"):
        SPLADE()(NUMBERS, Y_PRED[:, 0])
