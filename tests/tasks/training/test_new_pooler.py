"""A pooler that a checkpoint lacks is trained, also where the backbone is frozen."""

import logging

import numpy as np
import pytest

import encoder_zoo as ez

TEXTS, LABELS = ["the cat sat", "a dog ran", "good", "bad"], [0, 1, 0, 1]


@pytest.fixture
def classifier(golden):
    """Of a masked language model, which has no pooler."""
    return ez.Classifier.from_preset(golden("Bert_ForMaskedLM").folder, num_classes=2)


def moved(classifier) -> set[str]:
    """The layers that a step of `fit` changes."""
    layers = {
        "embeddings": classifier.backbone.embeddings,
        "block": classifier.backbone.blocks[0],
        "pooler": classifier.backbone.pooler_dense,
        "head": classifier.head,
    }
    before = {name: [np.array(w) for w in layer.weights] for name, layer in layers.items()}
    classifier.compile(learning_rate=1e-2, run_eagerly=True)
    classifier.fit(TEXTS, LABELS, epochs=3, verbose=0)  # the first step has the rate 0
    return {
        name
        for name, layer in layers.items()
        if any((np.array(w) != b).any() for w, b in zip(layer.weights, before[name], strict=True))
    }


@pytest.mark.slow
def test_a_frozen_backbone_leaves_it_to_be_trained(classifier, caplog):
    classifier.backbone.trainable = False
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        assert moved(classifier) == {"pooler", "head"}
    assert "frozen" not in caplog.text
    # Now it is no longer new.
    for trainable in (True, False):
        classifier.backbone.trainable = trainable
    assert moved(classifier) == {"head"}


@pytest.mark.slow
def test_a_pooler_that_is_frozen_itself_is_said(classifier, caplog):
    classifier.backbone.pooler_dense.trainable = False
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        assert moved(classifier) == {"embeddings", "block", "head"}
    assert "pooler is frozen" in caplog.text


def test_a_pooler_of_the_checkpoint_is_frozen_with_the_backbone(golden):
    folder = golden("Bert_ForSequenceClassification").folder
    classifier = ez.Classifier.from_preset(folder)
    classifier.backbone.trainable = False
    assert len(classifier.trainable_variables) == 2


def test_a_saved_pooler_is_no_longer_new(classifier, tmp_path):
    classifier.save_to_preset(tmp_path)
    again = ez.Classifier.from_preset(tmp_path)
    assert classifier.backbone.pooler_is_new and not again.backbone.pooler_is_new
