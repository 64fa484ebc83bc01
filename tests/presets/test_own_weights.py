"""Weights of a user's own architecture are saved, or refused by name; none is dropped."""

import keras
import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.encoders.families.bert import BertBackbone
from encoder_zoo.tasks import list_tasks

pytestmark = pytest.mark.eager
BERT = get_family("bert")
SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}


@keras.saving.register_keras_serializable("tests")
class WithGate(BertBackbone):
    def build(self, input_shape):
        super().build(input_shape)
        self.gate = self.add_weight(name="gate", shape=(3,), initializer="ones")


@keras.saving.register_keras_serializable("tests")
class WithNorm(BertBackbone):
    """Has weights that are not trained."""

    def build(self, input_shape):
        super().build(input_shape)
        self.batch_norm = keras.layers.BatchNormalization(name="batch_norm")
        self.batch_norm.build((None, 8))


@keras.saving.register_keras_serializable("tests")
class WithLayer(ez.SequenceClassifier):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = keras.layers.Dense(4, name="extra")
        self.extra.build((None, 8))


def backbone_with(tiny, cls):
    return cls(vocabulary_size=tiny.tokenizer(BERT).vocabulary_size, **SIZES)


def classifier_with_layer(tiny):
    preprocessor = ez.SequenceClassifierPreprocessor(tiny.tokenizer(BERT))
    return WithLayer(tiny.backbone(BERT, pooler=True), preprocessor, labels=["a", "b"])


@pytest.mark.parametrize("format", ["huggingface", "keras_hub"])
@pytest.mark.parametrize(("cls", "name"), [(WithGate, "gate"), (WithNorm, "batch_norm/gamma")])
def test_weights_of_a_backbone_are_named(tiny, tmp_path, cls, name, format):
    backbone = backbone_with(tiny, cls)
    with pytest.raises(ValueError, match=f"{name}.*keras"):
        backbone.save_to_preset(tmp_path / "new", tokenizer=tiny.tokenizer(BERT), format=format)
    assert not (tmp_path / "new").exists()


def test_weights_of_a_task_are_named(tiny, tmp_path):
    with pytest.raises(ValueError, match="extra/kernel, .*extra/bias"):
        classifier_with_layer(tiny).save_to_preset(tmp_path)


@pytest.mark.slow(only=r"^(classifier_with_layer)$")
@pytest.mark.parametrize(
    "make", [lambda tiny: backbone_with(tiny, WithGate), classifier_with_layer]
)
def test_files_of_keras_keep_them(tiny, tmp_path, make):
    model = make(tiny)
    for weight in model.weights:
        weight.assign(weight + 1.0)
    model.save(tmp_path / "model.keras")
    found = keras.saving.load_model(tmp_path / "model.keras")
    for ours, theirs in zip(model.weights, found.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow(except_for="^(SequenceClassifier|SparseEncoder)")
@pytest.mark.parametrize("updated", [False, True])
@pytest.mark.parametrize("task", list_tasks(), ids=lambda task: task.__name__)
def test_tasks_of_this_package_are_saved(tiny, tmp_path, task, updated):
    family = next(f for f in map(get_family, ("bert", "electra")) if task.supports(f))
    model = tiny.task(family, task.__name__)
    if updated:
        model.enable_lora(2)
    model.save_to_preset(tmp_path)
    assert (
        (tmp_path / "config.json").exists()
        or (tmp_path / "modules.json").exists()
        or any(tmp_path.glob("*config.json"))
    )
