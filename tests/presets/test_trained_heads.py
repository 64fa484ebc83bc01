"""A head that a checkpoint's weights hold is taken, whatever its config.json says of it."""

import ast
import json
import logging
import re
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.tasks.training.sources import TextData

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


@pytest.mark.slow(except_for="^SequenceClassifier-fields[234]-|^TokenClassifier-fields[02]-")
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
    checkpoint = edited(f"Bert_{getattr(ez, task).record.head}", **fields)
    model = getattr(ez, task).from_preset(checkpoint.folder)
    assert (model.num_classes, model.labels) == (3, labels)
    assert_trained(model, checkpoint)


@pytest.mark.slow(except_for="^labels1")
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
    renamed = "['x', 'y', 'z']"
    assert (renamed in caplog.text) == (labels[0] == "x")


@pytest.mark.slow
def test_names_that_are_too_few_are_refused_and_the_advice_works(edited):
    names = {"id2label": {"0": "a", "1": "b"}, "label2id": None}
    checkpoint = edited("Bert_ForSequenceClassification", **names)
    with pytest.raises(ValueError, match=r"id2label.* 2.*classifier.weight.* 3.*labels="):
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
    assert f"the checkpoint has the head of {reason}" in line
    assert "Not used: classifier.bias, classifier.weight" in line


@pytest.mark.slow
def test_a_head_of_other_names_is_named(edited, caplog):
    checkpoint = edited("Bert_ForSequenceClassification")
    file = checkpoint.folder / "model.safetensors"
    tensors = load_file(file)
    save_file({n.replace("classifier.", "score."): v for n, v in tensors.items()}, file)
    model = ez.SequenceClassifier.from_preset(checkpoint.folder)
    assert "Not used: score.bias" in caplog.text
    caplog.clear()
    model.predict(["the cat"], verbose=0)
    model.predict(["the cat"], verbose=0)
    assert caplog.text.count("has random weights") == 1


@pytest.mark.slow
def test_a_trained_head_answers_without_a_warning(edited, caplog):
    checkpoint = edited("Bert_Model")
    model = ez.SequenceClassifier.from_preset(checkpoint.folder, labels=["a", "b"])
    model.fit(["the cat", "the dog"] * 20, ["a", "b"] * 20, batch_size=4, epochs=2, verbose=0)
    caplog.clear()
    model.classify("the cat")
    assert caplog.text == ""


@pytest.mark.slow(
    except_for=r"^(-module\.$|_fsdp_wrapped_module\.-_orig_mod|_fsdp_wrapped_module\.-module|base_model\.model\.-module\.model)"
)
@pytest.mark.parametrize("prefix", ["model.", "module.", "_orig_mod.", "module.model."])
@pytest.mark.parametrize("outer", ["", "net.", "base_model.model.", "_fsdp_wrapped_module."])
def test_a_head_inside_of_another_module(edited, prefix, outer):
    prefix = outer + prefix
    checkpoint = edited("Bert_ForSequenceClassification")
    file = checkpoint.folder / "model.safetensors"
    save_file({prefix + name: value for name, value in load_file(file).items()}, file)
    assert_trained(ez.SequenceClassifier.from_preset(checkpoint.folder), checkpoint)


def test_tensors_of_two_models_are_named(edited):
    """The error said "the weights hold 0 layers" only."""
    checkpoint = edited("Bert_ForSequenceClassification")
    file = checkpoint.folder / "model.safetensors"
    tensors = load_file(file)
    save_file({f"{p}.{n}": t for n, t in tensors.items() for p in ("query", "document")}, file)
    with pytest.raises(ValueError, match=r"(document.bert\S+, ){3}"):
        ez.SequenceClassifier.from_preset(checkpoint.folder)


def test_hidden_layers_of_a_pretrained_head_are_kept(edited, caplog):
    """ModernBERT's classifier has the masked LM's hidden layer, in transformers too."""
    checkpoint = edited("ModernBert_ForMaskedLM")
    stored = load_file(checkpoint.folder / "model.safetensors")["head.dense.weight"].T
    given = ez.SequenceClassifier.from_preset(checkpoint.folder, labels=["a", "b"])
    assert "head.dense.weight, head.norm.weight" in caplog.text
    np.testing.assert_array_equal(given.head.hidden.dense.kernel, stored)
    learned = ez.SequenceClassifier.from_preset(checkpoint.folder)
    learned._adapt_to_data(TextData(["the cat", "the dog"], ["a", "b"]))
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


@pytest.mark.slow
def test_weights_of_another_count_of_classes_are_refused(edited, tmp_path):
    trained = ez.SequenceClassifier.from_preset(edited("Bert_ForSequenceClassification").folder)
    trained.save_weights(tmp_path / "three.weights.h5")
    base = edited("Bert_Model").folder
    two = ez.SequenceClassifier.from_preset(base, num_classes=2)
    with pytest.raises(ValueError, match="three.weights.h5.* 2 outputs"):
        two.load_weights(tmp_path / "three.weights.h5")
    with pytest.raises(ValueError, match="labels"):
        ez.SequenceClassifier.from_preset(base).load_weights(tmp_path / "three.weights.h5")
    three = ez.SequenceClassifier.from_preset(base, num_classes=3)  # as the errors advise
    three.load_weights(tmp_path / "three.weights.h5")
    np.testing.assert_array_equal(three.head.output_dense.kernel, trained.head.output_dense.kernel)


def rewrite(folder, change) -> None:
    """Write the tensors that `change(name, value)` returns for each, by name."""
    file = folder / "model.safetensors"
    changed = [change(name, value) for name, value in load_file(file).items()]
    save_file({name: value for tensors in changed for name, value in tensors.items()}, file)


@pytest.mark.parametrize(
    "name, absent",
    [
        ("Bert_ForSequenceClassification", "classifier.bias"),
        ("Roberta_ForSequenceClassification", "classifier.dense.bias, classifier.out_proj.bias"),
        ("Bert_ForTokenClassification", "classifier.bias"),
    ],
)
def test_a_head_without_biases_is_taken(edited, caplog, name, absent):
    checkpoint = edited(name)
    names = absent.split(", ")
    biases = load_file(checkpoint.folder / "model.safetensors")
    rewrite(checkpoint.folder, lambda n, value: {} if n in names else {n: value})
    task = getattr(ez, {"S": "SequenceClassifier", "T": "TokenClassifier"}[name.split("For")[1][0]])
    model = task.from_preset(checkpoint.folder)
    assert model.new_head is None
    assert f"has no {absent}. " in caplog.text
    bias = biases[names[-1]]
    assert not np.any(model.head.output_dense.bias)
    if len(names) == 1:  # the outputs are those of the trained head, without its bias
        model.head.output_dense.bias.assign(bias)
        assert_trained(model, checkpoint)


@pytest.mark.parametrize(
    "name, change, message",
    [
        (  # an output layer alone, of a head of two layers
            "DistilBert_ForSequenceClassification",
            lambda n, v: {} if n.startswith("pre_classifier") else {n: v},
            "pre_classifier.weight (missing); pre_classifier.bias (missing)",
        ),
        (  # torch's Sequential
            "Bert_ForSequenceClassification",
            lambda n, v: {n.replace("classifier.", "classifier.1."): v},
            "Not used: classifier.1.bias, classifier.1.weight",
        ),
        (  # inside of peft
            "Bert_ForSequenceClassification",
            lambda n, v: {n.replace("classifier.", "classifier.modules_to_save.default."): v},
            "Not used: classifier.modules_to_save.default.bias, classifier.modules_to_save",
        ),
        (
            "Bert_ForSequenceClassification",
            lambda n, v: {n.replace("classifier.", "net.classifier."): v},
            "Not used: net.classifier.bias, net.classifier.weight",
        ),
        (
            "Bert_ForSequenceClassification",
            lambda n, v: {n: np.concatenate([v, v], 1) if n == "classifier.weight" else v},
            "classifier.weight (is (3, 16), expected (3, 8))",
        ),
    ],
)
def test_why_a_head_is_new_is_named(edited, caplog, name, change, message):
    checkpoint = edited(name)
    rewrite(checkpoint.folder, change)
    model = ez.SequenceClassifier.from_preset(checkpoint.folder)
    assert model.new_head is not None
    assert message in caplog.text


def test_layers_after_or_beside_a_head_are_named(edited, caplog):
    """transformers, too, opens it and logs the names."""
    checkpoint = edited("Bert_ForTokenClassification")
    crf = {"crf.transitions": np.zeros((3, 3), "float32")}
    rewrite(checkpoint.folder, lambda n, v: {n: v, **(crf if n == "classifier.bias" else {})})
    assert_trained(ez.TokenClassifier.from_preset(checkpoint.folder), checkpoint)
    assert "crf.transitions" in caplog.text


def test_heads_in_files_that_are_not_read_are_named(edited, caplog):
    checkpoint = edited("Bert_Model")
    for name in ("model_head.pkl", "classifier.bin", "optimizer.pt", "tf_model.h5"):
        (checkpoint.folder / name).write_bytes(b"1")
    ez.SequenceClassifier.from_preset(checkpoint.folder, labels=["a", "b"])
    assert "Not read: classifier.bin, model_head.pkl" in caplog.text


@pytest.mark.parametrize("indexed", [True, False])
def test_a_head_in_a_shard_of_its_own(edited, caplog, indexed):
    checkpoint = edited("Bert_ForSequenceClassification")
    file = checkpoint.folder / "model.safetensors"
    tensors = load_file(file)
    head = {name: value for name, value in tensors.items() if name.startswith("classifier")}
    shards = [{n: v for n, v in tensors.items() if n not in head}, head]
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, checkpoint.folder / name)
    pairs = zip(names, shards if indexed else shards[:1], strict=indexed)
    index = {"weight_map": {tensor: name for name, shard in pairs for tensor in shard}}
    (checkpoint.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    file.unlink()
    model = ez.SequenceClassifier.from_preset(checkpoint.folder)
    if indexed:
        assert_trained(model, checkpoint)
    else:
        assert f"Not read: {names[1]}" in caplog.text


def test_a_pickled_head(edited):
    torch = pytest.importorskip("torch")
    checkpoint = edited("Bert_ForSequenceClassification")
    file = checkpoint.folder / "model.safetensors"
    tensors = {name: torch.tensor(value) for name, value in load_file(file).items()}
    torch.save(tensors, checkpoint.folder / "pytorch_model.bin")
    file.unlink()
    assert_trained(ez.SequenceClassifier.from_preset(checkpoint.folder), checkpoint)


@pytest.mark.slow
def test_adapters_beside_the_weights_are_named(edited, caplog):
    folder = edited("Bert_ForSequenceClassification").folder
    trained = ez.SequenceClassifier.from_preset(folder)
    trained.enable_lora(2)
    trained.save_adapters(folder)
    caplog.clear()
    again = ez.SequenceClassifier.from_preset(folder)
    assert "adapter_config.json" in caplog.text
    [advice] = re.findall(r"load_adapters\((.*)\)", caplog.text)
    again.load_adapters(ast.literal_eval(advice))


@pytest.mark.slow(only="^(fields0|fields2|fields3)")
@pytest.mark.parametrize(
    "fields, labels",
    [
        ({"id2label": None, "label2id": {"a": "0", "c": "2", "b": "1"}}, ["a", "b", "c"]),
        ({"id2label": {}, "label2id": {"a": 0, "c": 2, "b": 1}}, ["a", "b", "c"]),
        ({"label2id": {"O": "0", "B-PER": "1", "I-PER": "2"}}, ["O", "B-PER", "I-PER"]),
        ({"id2label": {"2": "c", "0": "a", "1": "b"}, "label2id": None}, ["a", "b", "c"]),
        ({"id2label": {}, "label2id": {}}, None),
        # as `config.id2label = {...}` of transformers leaves it
        ({"label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}}, ["O", "B-PER", "I-PER"]),
        ({"label2id": {"LABEL_0": 0, "LABEL_1": 1}}, ["O", "B-PER", "I-PER"]),
    ],
)
def test_names_of_classes(edited, fields, labels):
    checkpoint = edited("Bert_ForSequenceClassification", **fields)
    model = ez.SequenceClassifier.from_preset(checkpoint.folder)
    assert model.labels == labels
    assert_trained(model, checkpoint)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"id2label": None, "label2id": {"a": 1, "b": 2, "c": 3}}, "label2id is "),
        ({"id2label": None, "label2id": {"a": 0, "b": 2, "c": 5}}, "label2id is "),
        ({"id2label": None, "label2id": ["a", "b", "c"]}, "label2id is "),
        ({"id2label": {"1": "a", "2": "b", "3": "c"}, "label2id": None}, "id2label is "),
        ({"id2label": {"0": "a", "1": "b", "02": "c"}, "label2id": None}, "id2label is "),
        ({"label2id": {"O": 2, "B-PER": 1, "I-PER": 0}}, "label2id is.*id2label"),
        ({"problem_type": "several"}, "problem_type is 'several'"),
        ({"num_labels": "3", "id2label": None, "label2id": None}, "num_labels is '3'"),
    ],
)
def test_names_of_classes_that_cannot_be_are_refused(edited, fields, message):
    checkpoint = edited("Bert_ForSequenceClassification", **fields)
    with pytest.raises(ValueError, match=message):
        ez.SequenceClassifier.from_preset(checkpoint.folder)


@pytest.mark.slow
def test_one_name_of_two_classes_is_refused_and_the_advice_works(edited):
    fields = {"id2label": {"0": "a", "1": "a", "2": "b"}, "label2id": None}
    checkpoint = edited("Bert_ForSequenceClassification", **fields)
    with pytest.raises(ValueError, match="id2label.*'a'.*labels="):
        ez.SequenceClassifier.from_preset(checkpoint.folder)
    for advised in ({"labels": ["b", "a", "c"]}, {"num_classes": 3}):
        model = ez.SequenceClassifier.from_preset(checkpoint.folder, **advised)
        assert_trained(model, checkpoint)


@pytest.mark.slow
def test_one_class_is_refused(edited):
    checkpoint = edited("Bert_ForMultipleChoice", problem_type="single_label_classification")
    with pytest.raises(ValueError, match="problem_type is "):
        ez.SequenceClassifier.from_preset(checkpoint.folder, num_classes=1)
    for advised in ("regression", "multi_label_classification"):
        ez.SequenceClassifier.from_preset(checkpoint.folder, num_classes=1, problem_type=advised)


@pytest.mark.slow
def test_one_output_without_a_problem_type_is_named(edited, caplog):
    """A number, as in transformers' training; a probability, as in its pipeline, if asked for."""
    checkpoint = edited("Bert_ForMultipleChoice", architectures=["BertForSequenceClassification"])
    there = checkpoint.expected["logits"]
    number = ez.SequenceClassifier.from_preset(checkpoint.folder)
    assert "problem_type" in caplog.text
    assert number.problem_type == "regression"
    np.testing.assert_allclose(number.predict(checkpoint.inputs, verbose=0), there, atol=2e-5)
    caplog.clear()
    asked = {"problem_type": "multi_label_classification"}
    advised = ez.SequenceClassifier.from_preset(checkpoint.folder, **asked)
    assert caplog.text == ""
    [answer, *_] = advised.classify(["the cat"], threshold=0.0)
    [logit] = keras.ops.convert_to_numpy(advised(advised.preprocessor(["the cat"])))
    np.testing.assert_allclose(answer[0]["score"], 1 / (1 + np.exp(-logit[0])), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # KerasHub's own
@pytest.mark.parametrize("head", ["TextClassifier", "MaskedLM"])
@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_heads_of_keras_hub_are_taken_or_named(tmp_path, caplog, family, head):
    keras_hub = pytest.importorskip("keras_hub")
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = getattr(keras_hub.models, f"{family}Backbone")(9, **sizes, max_sequence_length=8)
    is_classifier = head == "TextClassifier"
    given = {"num_classes": 3} if is_classifier else {}
    there = getattr(keras_hub.models, family + head)(backbone, preprocessor=None, **given)
    for weight in there.weights:
        weight.assign(weight + 0.1)
    there.save_to_preset(str(tmp_path / "there"))
    own = "SequenceClassifier" if is_classifier else "MaskedLM"
    for task in ("SequenceClassifier", "TokenClassifier", "SpanQA", "MaskedLM"):
        caplog.clear()
        model = getattr(ez, task).from_preset(tmp_path / "there")
        if task == own:
            assert model.new_head is None and "random weights" not in caplog.text
            continue
        assert model.new_head is not None or model.head is None
        assert "random weights" in caplog.text
        # A language model's head is the encoder's pretraining: that it is not used is no news.
        assert ("Not used: classifier." in caplog.text) == is_classifier


@pytest.fixture(autouse=True)
def logs(caplog):
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        yield
