"""A model from random weights is told that the default learning rate is for pretrained ones."""

import copy
import logging

import keras
import pytest

import encoder_zoo as ez

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
TEXTS, LABELS = ["good", "bad"], [1, 0]


def make(**arguments):
    backbone = ez.BertBackbone(7, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    preprocessor = ez.SequenceClassifierPreprocessor(ez.BertTokenizer(WORDS))
    model = ez.SequenceClassifier(backbone, preprocessor, num_classes=2)
    if arguments:
        model.compile(**arguments)
    return model


def lines(model, caplog):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="encoder_zoo"):
        model.fit(TEXTS, LABELS, verbose=0)
    return caplog.text.count("has random weights")


@pytest.mark.eager
def test_random_weights_are_named_once(caplog):
    model = make()
    assert lines(model, caplog) == 1
    assert lines(model, caplog) == 0  # trained


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{"learning_rate": 1e-3}, {"optimizer": "sgd"}])
def test_a_rate_that_is_given_is_meant(arguments, caplog):
    assert lines(make(**arguments), caplog) == 0


@pytest.mark.slow
def test_weights_of_files_are_not_random(caplog, tmp_path):
    model = make()
    model.save(tmp_path / "model.keras")
    assert lines(keras.saving.load_model(tmp_path / "model.keras"), caplog) == 0
    assert lines(copy.deepcopy(model), caplog) == 0
    model.save_to_preset(tmp_path / "preset")
    assert lines(ez.SequenceClassifier.from_preset(tmp_path / "preset"), caplog) == 0
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = make()
    loaded.load_weights(tmp_path / "model.weights.h5")
    assert lines(loaded, caplog) == 0
