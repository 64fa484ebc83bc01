"""Losses of any kind on two replicas, with and without accumulation, are those of one device.

Each case is trained under a strategy of its own, as several models in one process are.
"""

import json

import numpy as np
import pytest
from processes import run

SCRIPT = """
import contextlib, json, sys
import numpy as np
import tensorflow as tf

[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
import encoder_zoo as ez

words = "the cat sat on a mat and dog ran away".split()
rng = np.random.default_rng(0)
sentences = [list(rng.choice(words, rng.integers(2, 9))) for _ in range(9)]
texts = [" ".join(sentence) for sentence in sentences]
tags = [list(rng.choice(["O", "B-X", "I-X"], len(s))) for s in sentences]
tokenizer = ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])


class Penalized(keras.layers.Layer):
    '''A head with a penalty on weights, one on its outputs, and a mean over rows.'''

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(
            2, activity_regularizer=keras.regularizers.L2(0.3), kernel_regularizer="l2"
        )

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        self.add_loss(0.2 * keras.ops.mean(keras.ops.square(x)))
        return self.dense(x)


def backbone(pooler):
    sizes = dict(num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    return ez.BertBackbone(30, **sizes, dropout=0.0, attention_dropout=0.0, pooler=pooler)


def tagger(**arguments):
    inputs = ez.TokenClassifierPreprocessor(tokenizer)
    return ez.TokenClassifier(backbone(False), inputs, labels=["O", "B-X", "I-X"], **arguments)


def classifier(**arguments):
    inputs = ez.SequenceClassifierPreprocessor(tokenizer)
    return ez.SequenceClassifier(backbone(True), inputs, num_classes=2, **arguments)


def squares(y, z):
    return keras.ops.sum(keras.ops.square(z), -1)


labels = [0, 1] * 4 + [0]
smoothed = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
summed = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
CASES = {
    "crf": (lambda: tagger(crf=True), "auto", (sentences, tags)),
    "smoothed": (tagger, smoothed, (sentences, tags)),
    "function": (tagger, squares, (sentences, tags)),
    "sum": (tagger, summed, (sentences, tags)),
    "probabilities": (classifier, "kl_divergence", (texts, labels)),
    "penalties": (lambda: classifier(head=Penalized()), "auto", (texts, labels)),
}


def train(name, scope, steps):
    keras.utils.set_random_seed(0)
    make, loss, data = CASES[name]
    with scope:
        model = make()
        model.compile(loss=loss, learning_rate=1e-2, gradient_accumulation_steps=steps)
    losses = model.fit(*data, epochs=2, batch_size=4, verbose=0).history["loss"]
    evaluated = [model.evaluate(*data, batch_size=size, verbose=0) for size in (2, 9)]
    return [*map(float, losses), *map(float, np.ravel(evaluated))]


found = {}
for name in sys.argv[1:]:
    for steps in (1, 3) if len(sys.argv) > 2 else (1,):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        scopes = contextlib.nullcontext(), strategy.scope()
        found[f"{name}, {steps}"] = [train(name, scope, steps) for scope in scopes]
print(json.dumps(found))
"""


def compared(*cases):
    found = json.loads(run(SCRIPT, *cases, KERAS_BACKEND="tensorflow").splitlines()[-1])
    for case, (one, two) in found.items():
        np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-5, err_msg=case)
        first, second = np.split(np.array(one[2:]), 2)  # of two sizes of batches
        if not case.startswith("sum"):
            np.testing.assert_allclose(first, second, rtol=1e-4, err_msg=case)
    return found


@pytest.mark.slow
def test_a_crf_on_two_replicas_learns_as_on_one():
    compared("crf")


@pytest.mark.slow
def test_losses_and_penalties_on_two_replicas_are_those_of_one():
    cases = ["crf", "smoothed", "function", "sum", "probabilities", "penalties"]
    assert len(compared(*cases)) == 2 * len(cases)
