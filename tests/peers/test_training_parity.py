"""Training beside a loop written for transformers on torch: the same steps, the same dropout."""

import argparse
import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT

import encoder_zoo as ez

pytestmark = pytest.mark.peers

BENCHMARKS = ROOT / "benchmarks"
TEXTS = [
    "the cat sat on the mat",
    "a dog ran under it",
    "the film was good, not very bad",
    "bad",
    "cats and dogs",
    "it was the film that the dog sat on",
]
LABELS = [0, 1, 1, 0, 1, 0]
DRAWS = 400


@pytest.fixture
def pair(golden, tmp_path):
    """`pair(dropout, attention_dropout)`: a classifier of ours, and transformers' with the same
    weights, its inputs and labels."""
    import torch
    import transformers

    def made(dropout: float, attention_dropout: float) -> tuple:
        keras.utils.set_random_seed(0)
        torch.manual_seed(0)
        rates = {"dropout": dropout, "attention_dropout": attention_dropout}
        ours = ez.SequenceClassifier.from_preset(
            golden("Bert_ForSequenceClassification").folder, labels=["no", "yes"], **rates
        )
        ours.save_to_preset(tmp_path)
        theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
        inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
        return ours, theirs, {**inputs, "labels": torch.tensor(LABELS)}

    return made


def warmed_up_from_the_first_step(optimizer, warmup, total):
    """transformers' schedule, whose first step has the rate 0, one step further while it rises."""
    import torch

    def share(step):
        return (step + 1) / warmup if step < warmup else (total - step) / (total - warmup)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def test_fit_takes_the_steps_of_the_loop(pair, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    loop = importlib.import_module("torch_training")
    name = "get_linear_schedule_with_warmup"
    monkeypatch.setattr(loop.transformers, name, warmed_up_from_the_first_step)
    ours, theirs, inputs = pair(0.0, 0.0)
    before = ours.predict(TEXTS, verbose=0)
    history = ours.fit(TEXTS, LABELS, batch_size=len(TEXTS), epochs=30, verbose=0)
    losses = []
    options = argparse.Namespace(epochs=30, batch_size=len(TEXTS))
    for _, step in loop.torch_steps(theirs, [len(text) for text in TEXTS], 0, options):
        loss = theirs(**inputs).loss  # all texts are one batch, whose order does not matter
        losses.append(loss.item())
        step(loss)
    np.testing.assert_allclose(history.history["loss"], losses, atol=2e-6)
    moved = ours.predict(TEXTS, verbose=0) - before
    expected = theirs.eval()(**inputs).logits.detach().numpy() - before
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(moved, expected, atol=0.01 * np.abs(expected).max())


@pytest.mark.parametrize("rates", [(0.2, 0.0), (0.0, 0.4), (0.1, 0.1)])
def test_dropout_makes_losses_and_gradients_as_uneven(pair, rates):
    ours, theirs, inputs = pair(*rates)
    ours.compile()
    prepared, labels = ours.preprocessor(TEXTS), tf.constant(LABELS)

    @tf.function
    def draw():
        with tf.GradientTape() as tape:
            loss = ours.compute_loss(prepared, labels, ours(prepared, training=True))
        weights = [weight.value for weight in ours.trainable_variables]
        return loss, [
            tf.reshape(g, [-1]) for g in map(tf.convert_to_tensor, tape.gradient(loss, weights))
        ]

    def their_draw():
        theirs.zero_grad()
        loss = theirs(**inputs).loss
        loss.backward()
        return loss.detach(), [p.grad.flatten() for p in theirs.parameters() if p.grad is not None]

    theirs.train()
    measured = [of_draws(draw), of_draws(their_draw)]
    for name, value in measured[0].items():
        assert value == pytest.approx(measured[1][name], rel=0.2), name


def of_draws(draw) -> dict[str, float]:
    """What many draws of dropout do to a loss and to the gradient of all weights."""
    rows = [draw() for _ in range(DRAWS)]
    losses = np.array([float(loss) for loss, _ in rows])
    gradients = np.stack([np.concatenate(gradient) for _, gradient in rows])
    return {
        "mean loss": losses.mean(),
        "spread of the loss": losses.std(),
        "norm of the mean gradient": np.linalg.norm(gradients.mean(0)),
        "spread of the gradient": np.linalg.norm(gradients.std(0)),
    }
