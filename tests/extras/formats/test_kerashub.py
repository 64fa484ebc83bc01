"""The way to KerasHub and from it: what is kept, what is refused, and what stays of a folder."""

import json

import keras
import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.presets import saving

pytestmark = pytest.mark.filterwarnings("ignore")  # KerasHub's own

SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
TANH = "gelu_pytorch_tanh"


def make_classifier(activation: str = TANH, tokenizer=None, **arguments) -> ez.SequenceClassifier:
    backbone = ez.BertBackbone(9, **SIZES, activation=activation, max_sequence_length=16)
    tokenizer = tokenizer or ez.BertTokenizer(WORDS)
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer)
    return ez.SequenceClassifier(backbone, preprocessor, **{"num_classes": 2, **arguments})


def make_theirs(activation: str | None = None, **arguments):
    import keras_hub

    backbone = keras_hub.models.BertBackbone(9, **SIZES, max_sequence_length=16)
    return keras_hub.models.BertTextClassifier(
        backbone, num_classes=2, activation=activation, **arguments
    )


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_labels_and_problem_type_come_back(tmp_path):
    labels, problem = ["ham", "spam"], "multi_label_classification"
    here = make_classifier(labels=labels, num_classes=None, problem_type=problem)
    here.save_to_preset(tmp_path, format="keras_hub")
    again = ez.SequenceClassifier.from_preset(tmp_path)
    assert (again.labels, again.problem_type) == (labels, problem)
    np.testing.assert_array_equal(here.predict(["the cat"]), again.predict(["the cat"]))
    card = (tmp_path / "README.md").read_text()
    assert "keras_hub.models.BertTextClassifier.from_preset" in card and "ham, spam" in card


@pytest.mark.slow
def test_one_format_replaces_the_other_and_own_files_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    here = make_classifier()
    here.save_to_preset(tmp_path)
    here.save_to_preset(tmp_path, format="keras_hub")
    assert "model.safetensors" not in names(tmp_path)
    here.save_to_preset(tmp_path)
    assert not {"model.weights.h5", "task.json", "metadata.json"} & names(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    ez.SequenceClassifier.from_preset(tmp_path)


@pytest.mark.slow
def test_a_failure_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    here, folder = make_classifier(), tmp_path / "preset"
    here.save_to_preset(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "write_manifest", fail)  # the last that is written
    with pytest.raises(OSError, match="was not saved"):
        here.save_to_preset(folder, format="keras_hub")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert names(tmp_path) == {"preset"}


@pytest.mark.slow
def test_another_activation_is_refused_with_what_to_do(tmp_path):
    here = make_classifier("gelu")
    with pytest.raises(ValueError, match="activation.*'gelu'") as e:
        here.save_to_preset(tmp_path / "new", format="keras_hub")
    assert "from_preset(..., activation='gelu_pytorch_tanh')" in str(e.value)
    assert not (tmp_path / "new").exists()
    here.save_to_preset(tmp_path)
    changed = ez.SequenceClassifier.from_preset(tmp_path, activation=TANH)
    changed.save_to_preset(tmp_path, format="keras_hub")
    make_classifier("gelu_new").save_to_preset(tmp_path, format="keras_hub")  # another name for it


@pytest.mark.slow
def test_tasks_that_kerashub_lacks_are_refused(tmp_path):
    backbone = make_classifier().backbone
    with pytest.raises(ValueError, match="TokenClassifier.* BertBackbone"):
        ez.TokenClassifier(backbone, labels=["O", "B-PER"]).save_to_preset(
            tmp_path, format="keras_hub"
        )
    electra = ez.ElectraBackbone(9, **SIZES, activation=TANH)
    with pytest.raises(ValueError, match="SequenceClassifier.* ElectraBackbone"):
        ez.SequenceClassifier(electra, num_classes=2).save_to_preset(tmp_path, format="keras_hub")

    bart = ez.BartBackbone(9, **SIZES)
    with pytest.raises(ValueError, match="MaskedLM.* BartBackbone"):
        ez.MaskedLM(bart).save_to_preset(tmp_path, format="keras_hub")
    with pytest.raises(ValueError, match="num_decoder_layers=2"):
        ez.BartBackbone(9, num_decoder_layers=2, **SIZES).save_to_preset(
            tmp_path, format="keras_hub"
        )


@pytest.mark.slow
def test_heads_of_masked_language_models(tmp_path):
    """KerasHub's have one epsilon and one GELU, the Hugging Face format the backbone's."""
    backbone = make_classifier().backbone
    with pytest.raises(ValueError, match="BertMaskedLM.*head_activation='gelu'"):
        ez.MaskedLM(backbone).save_to_preset(tmp_path, format="keras_hub")
    theirs = {"head_activation": "gelu", "head_layer_norm_epsilon": 1e-5}
    there = ez.MaskedLM(backbone, ez.MaskedLMPreprocessor(ez.BertTokenizer(WORDS)), **theirs)
    there.save_to_preset(tmp_path, format="keras_hub")
    there = ez.MaskedLM.from_preset(tmp_path)
    assert {name: getattr(there, name) for name in theirs} == theirs
    with pytest.raises(ValueError, match="head_activation is 'gelu'"):
        there.save_to_preset(tmp_path)
    ours = {"head_activation": TANH, "head_layer_norm_epsilon": 1e-12}
    ez.MaskedLM.from_preset(tmp_path, **ours).save_to_preset(tmp_path)
    assert ez.MaskedLM.from_preset(tmp_path).head_activation == TANH


@pytest.mark.slow(only="^(arguments0|arguments1|arguments6)")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split_chinese_characters": False}, "split_chinese_characters=True"),
        ({"added_tokens": ["word"]}, r"added_tokens=\[\]"),
        ({"start_token": "[SEP]"}, "start_token_id=2"),
        ({"truncation_side": "left"}, "truncation_side='right'"),
        ({"padding_side": "left"}, "padding_side='right'"),
        ({"model_max_length": 8}, "model_max_length=None"),
        ({"special_tokens_in_text": True}, "special_tokens_in_text=False"),
    ],
)
def test_tokenizers_that_kerashub_cannot_say_are_refused(arguments, message, tmp_path):
    here = make_classifier(tokenizer=ez.BertTokenizer(WORDS, **arguments))
    with pytest.raises(ValueError, match=message):
        here.save_to_preset(tmp_path, format="keras_hub")
    if "start_token" in arguments:  # two tokens with one role, which no file can hold
        return
    here.save_to_preset(tmp_path, format="huggingface")  # as advised
    config = ez.SequenceClassifier.from_preset(tmp_path).preprocessor.tokenizer.get_config()
    assert config == here.preprocessor.tokenizer.get_config()


@pytest.mark.slow
def test_quantized_models_are_refused(tmp_path):
    here = make_classifier()
    here.quantize("int8")
    with pytest.raises(ValueError, match="int8"):
        here.save_to_preset(tmp_path, format="keras_hub")
    there = make_theirs()
    there.quantize("int8")
    with pytest.raises(ValueError, match="dtype is.*quantiz"):
        ez.SequenceClassifier.from_keras_hub(there)


@pytest.mark.slow
def test_lora_is_written_merged(tmp_path):
    here = make_classifier()
    here.backbone.enable_lora(2)
    for layer in ("token_embedding", "position_embedding"):
        getattr(here.backbone.embeddings, layer).enable_lora(1)
    for weight in here.weights:
        if "lora" in weight.path:
            weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    here.save_to_preset(tmp_path, format="keras_hub")
    again = ez.SequenceClassifier.from_preset(tmp_path)
    np.testing.assert_allclose(here.predict(["the cat"]), again.predict(["the cat"]), atol=1e-6)


def test_formats_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"format is .kerashub.\..*huggingface"):
        make_classifier().save_to_preset(tmp_path, format="kerashub")


def test_a_damaged_vocabulary_is_noticed(tmp_path):
    make_classifier().save_to_preset(tmp_path, format="keras_hub")
    vocabulary = tmp_path / "assets" / "tokenizer" / "vocabulary.txt"
    vocabulary.write_text(vocabulary.read_text().replace("cat", "dog"))
    with pytest.raises(ValueError, match=r"vocabulary\.txt is damaged"):
        ez.SequenceClassifier.from_preset(tmp_path)


def test_a_manifest_names_no_file_outside_the_preset(tmp_path):
    make_classifier().save_to_preset(tmp_path / "preset", format="keras_hub")
    (tmp_path / "secret").write_text("x")
    path = tmp_path / "preset" / "encoder_zoo.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["assets/../../secret"] = {"bytes": 1, "sha256": "0"}
    from encoder_zoo.presets.files.manifest import compute_manifest_digest

    path.write_text(json.dumps({**manifest, "sha256": compute_manifest_digest(manifest)}))
    with pytest.raises(ValueError, match=r"'assets/\.\./\.\./secret'"):
        ez.SequenceClassifier.from_preset(tmp_path / "preset")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "problem"),
    [("softmax", "single_label_classification"), ("sigmoid", "multi_label_classification")],
)
def test_probabilities_there_are_logits_here(activation, problem):
    there = make_theirs(activation)
    here = ez.SequenceClassifier.from_keras_hub(there)
    x = {
        "token_ids": np.array([[2, 5, 3]]),
        "padding_mask": np.ones((1, 3), bool),
        "segment_ids": np.zeros((1, 3), int),
    }
    probabilities = getattr(keras.ops, activation)(here(x))
    np.testing.assert_allclose(np.array(there(x)), np.array(probabilities), atol=1e-6)
    assert here.problem_type == problem


def test_another_activation_of_the_outputs_is_refused():
    with pytest.raises(ValueError, match="activation is 'tanh'.*linear, softmax"):
        ez.SequenceClassifier.from_keras_hub(make_theirs("tanh"))


def test_without_a_preprocessor_there_is_none_here(caplog):
    here = ez.SequenceClassifier.from_keras_hub(make_theirs(), labels=["ham", "spam"])
    assert here.preprocessor is None and here.labels == ["ham", "spam"]
    assert "has no tokenizer" in caplog.text


def test_a_backbone_becomes_a_task_that_kerashub_does_not_have(caplog):
    here = ez.TokenClassifier.from_keras_hub(make_theirs().backbone, labels=["O", "B-PER"])
    assert np.array(here({"token_ids": np.array([[2, 5, 3]])})).shape == (1, 3, 2)
    assert "random weights" in caplog.text


def test_only_kerashubs_models_are_taken():
    with pytest.raises(TypeError, match="model.*is.*keras_hub.models"):
        ez.Backbone.from_keras_hub(keras.Sequential())
    with pytest.raises(ValueError, match="contains a BertBackbone"):
        ez.RobertaBackbone.from_keras_hub(make_theirs().backbone)


@pytest.mark.slow
def test_lines_of_a_vocabulary_end_as_in_python(tmp_path):
    """KerasHub opens the file as text, where a "\\r" is a line end."""
    tokenizer = make_classifier().preprocessor.tokenizer
    make_classifier().save_to_preset(tmp_path, format="keras_hub")
    (tmp_path / "encoder_zoo.json").unlink()
    vocabulary = tmp_path / "assets" / "tokenizer" / "vocabulary.txt"
    vocabulary.write_bytes(vocabulary.read_bytes().replace(b"\n", b"\r", 7))
    with open(vocabulary, encoding="utf-8") as file:
        assert [line.rstrip() for line in file] == tokenizer.get_vocabulary()
    again = ez.BertTokenizer.from_preset(tmp_path)
    assert again.get_vocabulary() == tokenizer.get_vocabulary()
