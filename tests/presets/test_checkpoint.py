"""Reading checkpoints as people have them, against outputs that transformers computed."""

import json
import logging
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez

FAMILIES = ["Bert", "Roberta"]


@pytest.fixture
def copied(golden, tmp_path):
    """`copied("Bert_Model")`: a checkpoint to be changed, and what it computes."""

    def copy(name: str):
        checkpoint = golden(name)
        checkpoint.folder = shutil.copytree(checkpoint.folder, tmp_path / name)
        return checkpoint

    return copy


def edit(path, remove=(), **changes) -> None:
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if k not in remove}))


def rename(folder, change) -> None:
    """Gives the tensors other names, or drops those that get none."""
    tensors = load_file(folder / "model.safetensors")
    renamed = {change(name): value for name, value in tensors.items() if change(name)}
    save_file(renamed, folder / "model.safetensors")


def assert_computes(model, checkpoint, output: str) -> None:
    outputs = model(checkpoint.inputs)
    outputs = outputs["sequence_output"] if isinstance(outputs, dict) else outputs
    outputs = keras.ops.convert_to_numpy(outputs)
    np.testing.assert_allclose(outputs, checkpoint.expected[output], atol=1e-5)


def old_name(name: str) -> str:
    for norm in ("LayerNorm", "layer_norm"):
        name = name.replace(f"{norm}.weight", f"{norm}.gamma")
        name = name.replace(f"{norm}.bias", f"{norm}.beta")
    return name


@pytest.mark.parametrize(
    "change",
    [old_name, "bert.{}".format, "module.bert.{}".format],
    ids=["gamma and beta", "prefix", "data-parallel prefix"],
)
def test_old_names_and_prefixes_are_understood(copied, change):
    checkpoint = copied("Bert_Model")
    rename(checkpoint.folder, change)
    assert_computes(ez.Backbone.from_preset(checkpoint.folder), checkpoint, "last_hidden_state")


def test_a_checkpoint_without_prefix_or_with_buffers_is_understood(copied):
    checkpoint = copied("Roberta_Model")
    tensors = load_file(checkpoint.folder / "model.safetensors")
    tensors["roberta.embeddings.position_ids"] = np.arange(34)[None]
    save_file(tensors, checkpoint.folder / "model.safetensors")
    assert_computes(ez.Backbone.from_preset(checkpoint.folder), checkpoint, "last_hidden_state")


def test_shards_that_an_index_lists_are_read(copied):
    checkpoint = copied("Bert_Model")
    tensors = load_file(checkpoint.folder / "model.safetensors")
    (checkpoint.folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for i, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{i:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, checkpoint.folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (checkpoint.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_computes(ez.Backbone.from_preset(checkpoint.folder), checkpoint, "last_hidden_state")

    (checkpoint.folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match="model-00002-of-00002.safetensors"):
        ez.Backbone.from_preset(checkpoint.folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_old_configurations_leave_out_is_found_out(copied, family):
    checkpoint = copied(f"{family}_ForSequenceClassification")
    (checkpoint.folder / "tokenizer_config.json").unlink(missing_ok=True)
    edit(checkpoint.folder / "config.json", remove=("architectures", "model_type", "dtype"))
    classifier = ez.SequenceClassifier.from_preset(checkpoint.folder)
    assert_computes(classifier, checkpoint, "logits")
    assert classifier.labels == ["O", "B-PER", "I-PER"]


def test_a_family_that_neither_weights_nor_tokenizer_tell_is_asked_for(copied):
    """XLM-R's and CamemBERT's weights have RoBERTa's names, and their models one name."""
    checkpoint = copied("Camembert_ForSequenceClassification")
    config = checkpoint.folder / "config.json"
    edit(config, remove=("model_type",))
    message = "config.json: .*xlm-roberta or camembert.*model_type"
    with pytest.raises(ValueError, match=message):
        ez.SequenceClassifier.from_preset(checkpoint.folder)
    edit(config, model_type="camembert")
    assert_computes(ez.SequenceClassifier.from_preset(checkpoint.folder), checkpoint, "logits")


def test_a_pretraining_checkpoint_gives_its_masked_lm_head_and_names_the_rest(copied, caplog):
    checkpoint = copied("Bert_ForMaskedLM")
    tensors = load_file(checkpoint.folder / "model.safetensors")
    embedding = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = embedding.copy()  # a second copy of tied weights
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()
    tensors["cls.seq_relationship.weight"] = np.ones((2, 8), "float32")
    tensors["cls.seq_relationship.bias"] = np.ones(2, "float32")
    save_file(tensors, checkpoint.folder / "model.safetensors")
    edit(checkpoint.folder / "config.json", architectures=["BertForPreTraining"])
    with caplog.at_level(logging.INFO, "encoder_zoo"):
        assert_computes(ez.MaskedLM.from_preset(checkpoint.folder), checkpoint, "logits")
    assert "cls.seq_relationship.bias, cls.seq_relationship.weight" in caplog.text


def test_a_next_sentence_head_is_a_classifier_of_pairs(copied):
    checkpoint = copied("Bert_ForSequenceClassification")
    tensors = load_file(checkpoint.folder / "model.safetensors")
    for part in ("weight", "bias"):
        tensors[f"cls.seq_relationship.{part}"] = tensors.pop(f"classifier.{part}")[:2]
    save_file(tensors, checkpoint.folder / "model.safetensors")
    config = checkpoint.folder / "config.json"
    edit(config, remove=("id2label",), architectures=["BertForNextSentencePrediction"])
    classifier = ez.SequenceClassifier.from_preset(checkpoint.folder)
    assert classifier.labels == ["is_next", "is_not_next"]
    logits = keras.ops.convert_to_numpy(classifier(checkpoint.inputs))
    np.testing.assert_allclose(logits, checkpoint.expected["logits"][:, :2], atol=1e-5)


def test_an_output_projection_that_is_not_tied_is_refused(copied):
    checkpoint = copied("Bert_ForMaskedLM")
    tensors = load_file(checkpoint.folder / "model.safetensors")
    embedding = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = embedding + 1
    save_file(tensors, checkpoint.folder / "model.safetensors")
    with pytest.raises(ValueError, match="decoder.weight.*embeddings.word_embeddings"):
        ez.MaskedLM.from_preset(checkpoint.folder)
    ez.Backbone.from_preset(checkpoint.folder)  # which does not need it


def test_missing_and_unexpected_tensors_are_listed(copied):
    checkpoint = copied("Bert_Model")
    rename(checkpoint.folder, lambda name: name.replace("1.output.dense.bias", "1.output.other"))
    with pytest.raises(ValueError) as caught:
        ez.Backbone.from_preset(checkpoint.folder)
    assert "- encoder.layer.1.output.dense.bias (missing)" in str(caught.value)
    assert "+ encoder.layer.1.output.other (unexpected)" in str(caught.value)


def test_weights_that_the_configuration_has_no_place_for_are_refused(copied):
    checkpoint = copied("Bert_Model")
    edit(checkpoint.folder / "config.json", num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"\n\+ encoder.layer.1"):
        ez.Backbone.from_preset(checkpoint.folder)


@pytest.mark.parametrize("name", ["flax_model.msgpack", "tf_model.h5"])
def test_other_formats_are_refused_with_what_to_do(copied, name):
    checkpoint = copied("Bert_Model")
    (checkpoint.folder / "model.safetensors").rename(checkpoint.folder / name)
    with pytest.raises(ValueError, match=rf"no pytorch_model.bin, only {name}\..*save_pretrained"):
        ez.Backbone.from_preset(checkpoint.folder)


@pytest.mark.slow
def test_what_torch_saved_is_not_read_where_safetensors_are_there(copied, golden):
    """The two may differ; safetensors counts, as in transformers."""
    checkpoint = copied("Bert_Model")
    (checkpoint.folder / "pytorch_model.bin").write_bytes(b"no pickle")
    backbone = ez.Backbone.from_preset(checkpoint.folder)
    for ours, right in zip(
        backbone.weights, ez.Backbone.from_preset(golden("Bert_Model").folder).weights, strict=True
    ):
        np.testing.assert_array_equal(ours, right)


# -- TensorFlow 1 --------------------------------------------------------------------------------


def as_tensorflow_1(folder, tensors: dict, head: dict[str, str]) -> None:
    """Writes a checkpoint as Google's code of 2018 does, under the names it gave its variables."""
    names = {
        "embeddings.word_embeddings.weight": "bert/embeddings/word_embeddings",
        "embeddings.position_embeddings.weight": "bert/embeddings/position_embeddings",
        "embeddings.token_type_embeddings.weight": "bert/embeddings/token_type_embeddings",
        "embeddings.LayerNorm.weight": "bert/embeddings/LayerNorm/gamma",
        "embeddings.LayerNorm.bias": "bert/embeddings/LayerNorm/beta",
        "pooler.dense.weight": "bert/pooler/dense/kernel",
        "pooler.dense.bias": "bert/pooler/dense/bias",
        **head,
    }
    dense = {
        "attention.self.query": "attention/self/query",
        "attention.self.key": "attention/self/key",
        "attention.self.value": "attention/self/value",
        "attention.output.dense": "attention/output/dense",
        "intermediate.dense": "intermediate/dense",
        "output.dense": "output/dense",
    }
    norms = {
        "attention.output.LayerNorm": "attention/output/LayerNorm",
        "output.LayerNorm": "output/LayerNorm",
    }
    for i in range(2):
        for theirs, original in dense.items():
            names[f"encoder.layer.{i}.{theirs}.weight"] = (
                f"bert/encoder/layer_{i}/{original}/kernel"
            )
            names[f"encoder.layer.{i}.{theirs}.bias"] = f"bert/encoder/layer_{i}/{original}/bias"
        for theirs, original in norms.items():
            names[f"encoder.layer.{i}.{theirs}.weight"] = f"bert/encoder/layer_{i}/{original}/gamma"
            names[f"encoder.layer.{i}.{theirs}.bias"] = f"bert/encoder/layer_{i}/{original}/beta"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in tensors.items():
            original = names[name.removeprefix("bert.")]
            value = value.T if original.endswith("/kernel") else value
            tf.compat.v1.get_variable(original, initializer=value)
        tf.compat.v1.get_variable("global_step", initializer=np.int64(7))
        tf.compat.v1.get_variable("bert/pooler/dense/kernel/adam_m", initializer=np.zeros((8, 8)))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(
            session, str(folder / "bert_model.ckpt"), write_meta_graph=False
        )


@pytest.fixture
def tensorflow_1(golden, tmp_path):
    """`tensorflow_1("Bert_Model", head)`: a stored checkpoint in TensorFlow 1's format."""

    def convert(name: str, head: dict[str, str], added: dict | None = None):
        checkpoint = golden(name)
        folder = tmp_path / "uncased_L-2_H-8_A-2"
        folder.mkdir()
        config = json.loads((checkpoint.folder / "config.json").read_text())
        names = """attention_probs_dropout_prob hidden_act hidden_dropout_prob hidden_size
            initializer_range intermediate_size max_position_embeddings num_attention_heads
            num_hidden_layers type_vocab_size vocab_size"""
        (folder / "bert_config.json").write_text(json.dumps({n: config[n] for n in names.split()}))
        shutil.copy(checkpoint.folder / "vocab.txt", folder)
        tensors = load_file(checkpoint.folder / "model.safetensors")
        as_tensorflow_1(folder, {**tensors, **(added or {})}, head)
        checkpoint.folder = folder
        return checkpoint

    return convert


@pytest.mark.slow
def test_a_tensorflow_1_checkpoint_computes_the_same(tensorflow_1):
    checkpoint = tensorflow_1("Bert_Model", {})
    backbone = ez.Backbone.from_preset(checkpoint.folder)
    assert_computes(backbone, checkpoint, "last_hidden_state")
    pooled = keras.ops.convert_to_numpy(backbone(checkpoint.inputs)["pooled_output"])
    np.testing.assert_allclose(pooled, checkpoint.expected["pooler_output"], atol=1e-5)


@pytest.mark.slow
def test_a_tensorflow_1_masked_lm_head_and_classifier_are_read(tensorflow_1):
    checkpoint = tensorflow_1(
        "Bert_ForSequenceClassification",
        {"classifier.weight": "output_weights", "classifier.bias": "output_bias"},
    )
    assert_computes(ez.SequenceClassifier.from_preset(checkpoint.folder), checkpoint, "logits")
    shutil.rmtree(checkpoint.folder)
    ours, theirs = "cls.predictions.transform", "cls/predictions/transform"
    head = {
        "cls.predictions.bias": "cls/predictions/output_bias",
        f"{ours}.dense.weight": f"{theirs}/dense/kernel",
        f"{ours}.dense.bias": f"{theirs}/dense/bias",
        f"{ours}.LayerNorm.weight": f"{theirs}/LayerNorm/gamma",
        f"{ours}.LayerNorm.bias": f"{theirs}/LayerNorm/beta",
    }
    checkpoint = tensorflow_1("Bert_ForMaskedLM", head)
    assert_computes(ez.MaskedLM.from_preset(checkpoint.folder), checkpoint, "logits")


CLASSIFIER_1 = {"classifier.weight": "output_weights", "classifier.bias": "output_bias"}
SQUAD_1 = {
    "qa_outputs.weight": "cls/squad/output_weights",
    "qa_outputs.bias": "cls/squad/output_bias",
}
NER_1 = {"classifier.weight": "loss/output_weights", "classifier.bias": "loss/output_bias"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head", "task", "named"),
    [
        ("Bert_ForQuestionAnswering", SQUAD_1, "SpanQA", None),
        ("Bert_ForQuestionAnswering", SQUAD_1, "SequenceClassifier", "qa_outputs.bias, qa_out"),
        ("Bert_ForSequenceClassification", CLASSIFIER_1, "TokenClassifier", "classifier.bias, cl"),
        ("Bert_ForSequenceClassification", CLASSIFIER_1, "MaskedLM", "classifier.bias, classif"),
        ("Bert_ForTokenClassification", NER_1, "TokenClassifier", "loss.output_bias, loss.output"),
    ],
)
def test_a_tensorflow_1_head_is_taken_or_named(tensorflow_1, caplog, name, head, task, named):
    model = getattr(ez, task).from_preset(tensorflow_1(name, head).folder)
    assert ("random weights" in caplog.text) == bool(named)
    if named:
        assert f"Not used: {named}" in caplog.text
        assert model.new_head is not None or model.head is None


@pytest.mark.slow
def test_a_tensorflow_1_next_sentence_head_is_taken(tensorflow_1, caplog):
    rng = np.random.default_rng(0)
    layers = {"dense.weight": (8, 8), "dense.bias": (8,)}
    layers |= {"LayerNorm.weight": (8,), "LayerNorm.bias": (8,)}
    shapes = {f"cls.predictions.transform.{name}": shape for name, shape in layers.items()}
    shapes |= {"cls.predictions.bias": (79,)}
    shapes |= {"cls.seq_relationship.weight": (2, 8), "cls.seq_relationship.bias": (2,)}
    added = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    stems = {"Norm.weight": "Norm/gamma", "Norm.bias": "Norm/beta", "dense.weight": "dense/kernel"}
    names = {}
    for name in shapes:
        original = name
        for ours, theirs in stems.items():
            original = original.replace(ours, theirs)
        names[name] = original.replace(".", "/")
    names["cls.predictions.bias"] = "cls/predictions/output_bias"
    names["cls.seq_relationship.weight"] = "cls/seq_relationship/output_weights"
    names["cls.seq_relationship.bias"] = "cls/seq_relationship/output_bias"
    model = ez.Pretraining.from_preset(tensorflow_1("Bert_Model", names, added).folder)
    assert "random weights" not in caplog.text
    kernel = keras.ops.convert_to_numpy(model.pair_head.output_dense.kernel)
    np.testing.assert_array_equal(kernel.T, added["cls.seq_relationship.weight"])


def test_a_damaged_tensorflow_1_checkpoint_is_refused_by_name(tensorflow_1):
    checkpoint = tensorflow_1("Bert_Model", {})
    data = next(checkpoint.folder.glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r" 1000 "):
        ez.Backbone.from_preset(checkpoint.folder)
    next(checkpoint.folder.glob("*.index")).unlink()
    with pytest.raises(ValueError, match=r"bert_model.ckpt.index"):
        ez.Backbone.from_preset(checkpoint.folder)


@pytest.mark.slow
def test_weights_that_a_checkpoint_has_are_not_drawn_first(copied, monkeypatch):
    drawn, draw = [], keras.initializers.TruncatedNormal.__call__

    def count(self, shape, dtype=None, **kwargs):
        drawn.append(tuple(shape))
        return draw(self, shape, dtype, **kwargs)

    monkeypatch.setattr(keras.initializers.TruncatedNormal, "__call__", count)
    ez.BertBackbone.from_preset(copied("Bert_Model").folder)
    assert drawn == []
    classifier = ez.Classifier.from_preset(copied("Roberta_Model").folder, labels=["a", "b", "c"])
    hidden_dim = classifier.backbone.hidden_dim
    assert sorted(drawn) == [(hidden_dim, 3), (hidden_dim, hidden_dim)]  # RoBERTa's head of two
    kernels = [w for w in classifier.head.weights if w.shape.rank == 2]
    assert all(np.std(kernel) > 0 for kernel in kernels)
