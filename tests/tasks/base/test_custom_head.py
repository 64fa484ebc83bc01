"""A layer of the user's as the head of a classifier or a tagger: trained, saved, restored."""

import logging

import keras
import numpy as np
import pytest
from safetensors import safe_open

import encoder_zoo as ez
from encoder_zoo.encoders import get_family

TEXTS = ["a b ab", "c d e a b", "p"]


def layers(classes: int = 3) -> keras.Sequential:
    return keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.Dense(classes)])


@pytest.fixture
def make(tiny):
    """Makes a task with labels of a backbone of a family."""

    def make(name: str, family: str, head, labels=("O", "B-X", "I-X")):
        cls, family = getattr(ez, name), get_family(family)
        pooler = cls.get_family_head(family).pooled
        preprocessor = cls.record.preprocessor_class(tiny.tokenizer(family))
        backbone = tiny.backbone(family, pooler=pooler)
        return cls(backbone, preprocessor, labels=labels, head=head)

    return make


@pytest.fixture
def classifier(make):
    return make("SequenceClassifier", "bert", layers())


@pytest.fixture
def tagger(make):
    return make("TokenClassifier", "electra", layers())


def test_the_logits_are_those_of_the_layer(classifier, tiny):
    inputs = tiny.rows(get_family("bert"))
    features = classifier.backbone(inputs)["pooled_output"]
    expected = classifier.given_head(features)
    np.testing.assert_allclose(classifier(inputs), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.eager
def test_the_layer_learns(classifier):
    before = [weight.numpy().copy() for weight in classifier.given_head.weights]
    classifier.backbone.trainable = False
    history = classifier.fit(TEXTS, ["O", "B-X", "I-X"], epochs=3, verbose=0)
    changed = zip(before, classifier.given_head.weights, strict=True)
    assert all(np.abs(old - new.numpy()).max() > 0 for old, new in changed)
    assert len(history.history["loss"]) == 3
    assert len(classifier.trainable_variables) >= 4


@pytest.mark.slow
@pytest.mark.eager
def test_labels_are_learned_before_the_layer_is_built(make):
    classifier = make("SequenceClassifier", "roberta", layers(2), labels=None)
    classifier.fit(TEXTS, ["good", "bad", "good"], verbose=0)
    assert classifier.labels == ["bad", "good"]
    assert classifier.classify("a b")["label"] in classifier.labels


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("name", ["classifier", "tagger"])
def test_a_keras_file_holds_the_layer(name, request, tmp_path):
    task = request.getfixturevalue(name)
    task.save(tmp_path / "task.keras")
    again = keras.saving.load_model(tmp_path / "task.keras")
    for found, expected in zip(
        again.predict(TEXTS, verbose=0), task.predict(TEXTS, verbose=0), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert isinstance(again.given_head, keras.Sequential)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("name", ["classifier", "tagger"])
def test_a_preset_holds_the_weights_of_the_layer(name, request, tmp_path, caplog):
    task = request.getfixturevalue(name)
    task.save_to_preset(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        names = [each for each in file.keys() if each.startswith("custom_head.")]  # noqa: SIM118
        assert sorted(names) == [f"custom_head.{i}" for i in range(4)]
    with caplog.at_level(logging.WARNING):
        again = type(task).from_preset(tmp_path, head=layers())
    assert not caplog.records
    for found, expected in zip(
        again.predict(TEXTS, verbose=0), task.predict(TEXTS, verbose=0), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert again.labels == task.labels


def test_without_the_layer_a_preset_says_that_the_head_is_new(classifier, tmp_path, caplog):
    classifier.save_to_preset(tmp_path)
    ez.SequenceClassifier.from_preset(tmp_path)
    assert "head=..." in caplog.text


@pytest.mark.slow
def test_another_layer_starts_from_random_weights(classifier, tmp_path, caplog):
    classifier.save_to_preset(tmp_path)
    ez.SequenceClassifier.from_preset(tmp_path, head=keras.layers.Dense(3))
    assert all(words in caplog.text for words in ("custom_head.0", "(8, 5)", "(8, 3)"))


def test_labels_and_outputs_must_agree(make):
    with pytest.raises(ValueError, match="head.* 2.* 3"):
        make("SequenceClassifier", "bert", layers(2))


def test_a_layer_of_another_rank_is_named(make):
    flat = keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match=r"head.* \(None, 3\).* \(None, None, 8\)"):
        make("TokenClassifier", "electra", flat)


def test_a_head_is_a_layer(make):
    with pytest.raises(TypeError, match="head is 'mlp'"):
        make("SequenceClassifier", "bert", "mlp")


@pytest.mark.slow
def test_keras_hub_has_no_such_task(classifier, tmp_path):
    with pytest.raises(ValueError, match="KerasHub.*head"):
        classifier.save_to_preset(tmp_path, format="keras_hub")


@pytest.mark.matrix
@pytest.mark.slow
def test_exports_have_the_layer(classifier, tmp_path):
    import tensorflow as tf

    classifier.export(tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    found = served(text=tf.constant(TEXTS))
    expected = classifier.classify(TEXTS)
    assert [label[0].decode() for label in found["label"].numpy()] == [a["label"] for a in expected]


def test_the_head_of_the_family_is_not_in_the_configuration(make):
    assert make("SequenceClassifier", "bert", None).get_config()["head"] is None
