"""A head that a checkpoint's weights hold is taken, whatever its config.json says of it."""

import json
import logging
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez

NO_CLASS = {"architectures": None}
NO_NAMES = {"id2label": None, "label2id": None}


@pytest.fixture
def edited(golden, tmp_path):
    """`edited("Bert_Model", key=value)` copies a checkpoint; keys of None are taken out."""

    def make(name: str, **fields):
        checkpoint = golden(name)
        folder = tmp_path / name
        shutil.copytree(checkpoint.folder, folder, dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_text()) | fields
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        checkpoint.folder = folder
        return checkpoint

    return make


def assert_trained(model, checkpoint, rows=slice(None)) -> None:
    """Assert that the outputs are those that transformers computed."""
    assert model.new_head is None
    here, there = keras.ops.convert_to_numpy(model(checkpoint.inputs)), checkpoint.expected
    mask = checkpoint.inputs["padding_mask"] if here.ndim == 3 else slice(None)
    np.testing.assert_allclose(here[mask], there["logits"][..., rows][mask], atol=2e-5)


@pytest.mark.parametrize(
    "fields, labels",
    [
        ({**NO_NAMES, "num_labels": 3}, None),
        ({**NO_NAMES, "_num_labels": 3}, None),
        ({**NO_NAMES, "num_labels": 5}, None),
        (NO_NAMES, None),
        ({"id2label": None}, ["O", "B-PER", "I-PER"]),
        ({"label2id": None, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, None),
        ({"architectures": ["BertForMaskedLM"]}, ["O", "B-PER", "I-PER"]),
        ({"architectures": ["BertModel"], **NO_NAMES}, None),
        ({"architectures": ["MyClass"]}, ["O", "B-PER", "I-PER"]),
        ({"architectures": ["BertForNextSentencePrediction"]}, ["O", "B-PER", "I-PER"]),
        ({"architectures": None}, ["O", "B-PER", "I-PER"]),
    ],
)
@pytest.mark.parametrize("task", ["SequenceClassifier", "TokenClassifier"])
def test_the_weights_decide(edited, task, fields, labels):
    checkpoint = edited(f"Bert_{getattr(ez, task).checkpoint_class_suffix}", **fields)
    model = getattr(ez, task).from_preset(checkpoint.folder)
    assert (model.num_classes, model.labels) == (3, labels)
    assert_trained(model, checkpoint)


@pytest.mark.parametrize(
    "labels, rows",
    [
        (["I-PER", "O", "B-PER"], [2, 0, 1]),
        (["b-per", "o"], [1, 0]),
        (["x", "y", "z"], [0, 1, 2]),
    ],
)
def test_labels_find_their_outputs(edited, labels, rows, caplog):
    checkpoint = edited("Bert_ForSequenceClassification", architectures=["BertForMaskedLM"])
    model = ez.SequenceClassifier.from_preset(checkpoint.folder, labels=labels)
    assert model.labels == labels
    assert_trained(model, checkpoint, rows)
    renamed = "its classes ['O', 'B-PER', 'I-PER'] get the names ['x', 'y', 'z']"
    assert (renamed in caplog.text) == (labels[0] == "x")


def test_names_that_are_too_few_are_refused_and_the_advice_works(edited):
    names = {"id2label": {"0": "a", "1": "b"}, "label2id": None}
    checkpoint = edited("Bert_ForSequenceClassification", **names)
    message = "id2label names 2 classes, but classifier.weight has 3 outputs. Pass the names of"
    with pytest.raises(ValueError, match=message):
        ez.SequenceClassifier.from_preset(checkpoint.folder)
    for advised in ({"labels": ["x", "y", "z"]}, {"num_classes": 3}):
        model = ez.SequenceClassifier.from_preset(checkpoint.folder, **advised)
        assert_trained(model, checkpoint)


@pytest.mark.parametrize(
    "name, task, fields, reason",
    [
        ("Bert_ForSequenceClassification", "TokenClassifier", {}, "BertForSequenceClassification"),
        (
            "Bert_ForTokenClassification",
            "SequenceClassifier",
            {"architectures": None},
            "BertForTok",
        ),
        (
            "DistilBert_ForSequenceClassification",
            "TokenClassifier",
            NO_CLASS,
            "DistilBertForSequenceClassification",
        ),
        ("ModernBert_ForTokenClassification", "SpanQA", {}, "ModernBertForTokenClassification"),
    ],
)
def test_the_head_of_another_task_is_named(edited, caplog, name, task, fields, reason):
    getattr(ez, task).from_preset(edited(name, **fields).folder)
    [line] = [r.getMessage() for r in caplog.records if "random weights" in r.getMessage()]
    assert f"the checkpoint's is of {reason}" in line
    assert "Not used: classifier.bias, classifier.weight" in line


def test_a_head_of_other_names_is_named(edited, caplog):
    checkpoint = edited("Bert_ForSequenceClassification")
    file = checkpoint.folder / "model.safetensors"
    tensors = load_file(file)
    save_file({n.replace("classifier.", "score."): v for n, v in tensors.items()}, file)
    model = ez.SequenceClassifier.from_preset(checkpoint.folder)
    assert (
        "starts from random weights: the checkpoint has none. Not used: score.bias" in caplog.text
    )
    caplog.clear()
    model.predict(["the cat"], verbose=0)
    model.predict(["the cat"], verbose=0)
    assert caplog.text.count("answers from a head with random weights") == 1


def test_a_trained_head_answers_without_a_warning(edited, caplog):
    checkpoint = edited("Bert_Model")
    model = ez.SequenceClassifier.from_preset(checkpoint.folder, labels=["a", "b"])
    model.fit(["the cat", "the dog"] * 20, ["a", "b"] * 20, batch_size=4, epochs=2, verbose=0)
    caplog.clear()
    model.classify("the cat")
    assert caplog.text == ""


@pytest.mark.parametrize("prefix", ["model.", "module.", "_orig_mod.", "module.model."])
def test_a_head_inside_of_another_module(edited, prefix):
    checkpoint = edited("Bert_ForSequenceClassification")
    file = checkpoint.folder / "model.safetensors"
    save_file({prefix + name: value for name, value in load_file(file).items()}, file)
    assert_trained(ez.SequenceClassifier.from_preset(checkpoint.folder), checkpoint)


def test_hidden_layers_of_a_pretrained_head_are_kept(edited, caplog):
    """ModernBERT's classifier has the masked LM's hidden layer, in transformers too."""
    checkpoint = edited("ModernBert_ForMaskedLM")
    stored = load_file(checkpoint.folder / "model.safetensors")["head.dense.weight"].T
    given = ez.SequenceClassifier.from_preset(checkpoint.folder, labels=["a", "b"])
    assert "the checkpoint has none, but for head.dense.weight, head.norm.weight" in caplog.text
    np.testing.assert_array_equal(given.head.hidden.dense.kernel, stored)
    learned = ez.SequenceClassifier.from_preset(checkpoint.folder)
    learned._learn_labels(["the cat", "the dog"], ["a", "b"])
    np.testing.assert_array_equal(learned.head.hidden.dense.kernel, stored)


def test_a_reranker_of_a_stale_class(edited):
    fields = {"architectures": ["BertForMaskedLM"], "num_labels": 1}
    checkpoint = edited("Bert_ForMultipleChoice", **fields)
    model = ez.Reranker.from_preset(checkpoint.folder)
    assert model.activation == "sigmoid"
    assert_trained(model, checkpoint)


def test_adapters_bring_their_head(edited, tmp_path):
    base = edited("Bert_ForSequenceClassification").folder
    trained = ez.SequenceClassifier.from_preset(base)
    trained.enable_lora(2)
    trained.save_adapters(tmp_path / "adapters")
    bare = ez.SequenceClassifier.from_preset(edited("Bert_Model").folder)
    bare.load_adapters(tmp_path / "adapters")
    assert bare.num_classes == 3
    np.testing.assert_array_equal(bare.head.output_dense.kernel, trained.head.output_dense.kernel)


def test_weights_of_another_count_of_classes_are_refused(edited, tmp_path):
    trained = ez.SequenceClassifier.from_preset(edited("Bert_ForSequenceClassification").folder)
    trained.save_weights(tmp_path / "three.weights.h5")
    base = edited("Bert_Model").folder
    two = ez.SequenceClassifier.from_preset(base, num_classes=2)
    with pytest.raises(ValueError, match=r"SequenceClassifier, whose head has 2 outputs\. Make it"):
        two.load_weights(tmp_path / "three.weights.h5")
    with pytest.raises(ValueError, match="does not know its labels yet"):
        ez.SequenceClassifier.from_preset(base).load_weights(tmp_path / "three.weights.h5")
    three = ez.SequenceClassifier.from_preset(base, num_classes=3)  # as the errors advise
    three.load_weights(tmp_path / "three.weights.h5")
    np.testing.assert_array_equal(three.head.output_dense.kernel, trained.head.output_dense.kernel)


@pytest.fixture(autouse=True)
def logs(caplog):
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        yield
