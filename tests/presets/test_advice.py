"""Messages about presets advise what works: each is provoked here, and what it says is done."""

import contextlib
import json
import shutil

import keras
import numpy as np
import pytest
from small_tasks import BERT, make, new

import encoder_zoo as ez
from encoder_zoo.extras.display.picture import Picture
from encoder_zoo.testing import tiny


@pytest.fixture
def preset(tmp_path):
    """A preset of a backbone."""
    folder = tmp_path / "preset"
    tiny.backbone(BERT).save_to_preset(folder, tokenizer=tiny.tokenizer(BERT))
    return folder


def saved_classifier(folder, **fields):
    """Save a classifier of "a" and "b", and change fields of its config.json."""
    new("SequenceClassifier", labels=["a", "b"]).save_to_preset(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "encoder_zoo.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | fields))


def test_presets_have_folders_of_their_own(tmp_path):
    backbone = tiny.backbone(BERT)
    with contextlib.chdir(tmp_path), pytest.raises(ValueError, match="working directory"):
        backbone.save_to_preset(".")
    backbone.save_to_preset(tmp_path / "own")


def test_backbones_are_loaded_by_their_class(preset):
    with pytest.raises(ValueError, match=r"BertBackbone.*\bBackbone\.from_preset"):
        ez.RobertaBackbone.from_preset(preset)
    layers = ez.BertBackbone.from_preset(preset).num_layers
    assert ez.Backbone.from_preset(preset).num_layers == layers


def test_files_of_presets_are_no_links(preset, tmp_path):
    vocabulary, kept = preset / "vocab.txt", tmp_path / "kept.txt"
    shutil.move(vocabulary, kept)
    vocabulary.symlink_to(kept)
    with pytest.raises(ValueError, match=r"vocab\.txt is a link.*kept\.txt"):
        ez.Tokenizer.from_preset(preset)
    vocabulary.unlink()
    shutil.copy(kept, vocabulary)
    assert ez.Tokenizer.from_preset(preset).vocabulary_size


def test_files_of_presets_are_text(preset):
    vocabulary = preset / "vocab.txt"
    whole = vocabulary.read_bytes()
    vocabulary.write_bytes(whole + b"\xff\n")
    for name in ("tokenizer.json", "encoder_zoo.json"):
        (preset / name).unlink()
    with pytest.raises(ValueError, match=r"vocab\.txt.*UTF-8"):
        ez.Tokenizer.from_preset(preset)
    vocabulary.write_bytes(whole)
    tokens = ez.Tokenizer.from_preset(preset).vocabulary_size
    assert tokens == tiny.tokenizer(BERT).vocabulary_size


def test_files_of_presets_are_no_pointers(preset):
    weights = preset / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ValueError, match=r"model\.safetensors.*git lfs pull"):
        ez.Backbone.from_preset(preset)
    weights.write_bytes(whole)  # as `git lfs pull` does
    ez.Backbone.from_preset(preset)


def test_weights_are_whole(preset):
    weights = preset / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-8])
    sizes = rf"model\.safetensors.*{len(whole) - 8}.*{len(whole)}"
    with pytest.raises(ValueError, match=sizes):  # encoder_zoo.json has the size
        ez.Backbone.from_preset(preset)
    (preset / "encoder_zoo.json").unlink()
    with pytest.raises(ValueError, match=sizes):  # the file's header has it
        ez.Backbone.from_preset(preset)
    weights.write_bytes(whole)
    ez.Backbone.from_preset(preset)


def test_weights_are_numbers(tmp_path):
    backbone = tiny.backbone(BERT)
    backbone.weights[0].assign(backbone.weights[0] * np.nan)
    backbone.save_to_preset(tmp_path, tokenizer=tiny.tokenizer(BERT))
    with pytest.raises(ValueError, match=r"embeddings.*240.*NaN.*allow_nonfinite=True"):
        ez.Backbone.from_preset(tmp_path)
    ez.Backbone.from_preset(tmp_path, allow_nonfinite=True)


@pytest.mark.slow
def test_weights_of_as_many_labels(tmp_path):
    three = new("SequenceClassifier", labels=["a", "b", "c"])
    three.save_weights(tmp_path / "w.weights.h5")
    three.save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match=r"w\.weights\.h5.*2 outputs.*save_to_preset"):
        new("SequenceClassifier", labels=["a", "b"]).load_weights(tmp_path / "w.weights.h5")
    new("SequenceClassifier", labels=["a", "b", "c"]).load_weights(tmp_path / "w.weights.h5")
    assert keras.saving.load_model(tmp_path / "m.keras").labels == ["a", "b", "c"]
    three.save_to_preset(tmp_path / "preset")
    assert ez.SequenceClassifier.from_preset(tmp_path / "preset").labels == ["a", "b", "c"]


@pytest.mark.slow
def test_labels_as_many_as_outputs(tmp_path):
    names = {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    saved_classifier(tmp_path, **names)
    with pytest.raises(ValueError, match=r"config\.json: id2label.*3.*labels=.*num_classes=2"):
        ez.SequenceClassifier.from_preset(tmp_path)
    for arguments in ({"labels": ["a", "b"]}, {"num_classes": 2}):
        assert ez.SequenceClassifier.from_preset(tmp_path, **arguments).num_classes == 2


def test_names_of_classes_differ(tmp_path):
    saved_classifier(tmp_path, id2label={"0": "a", "1": "a"}, label2id=None)
    with pytest.raises(ValueError, match=r"config\.json: id2label.*'a'.*labels=.*num_classes=2"):
        ez.SequenceClassifier.from_preset(tmp_path)
    for arguments in ({"labels": ["b", "a"]}, {"num_classes": 2}):
        assert ez.SequenceClassifier.from_preset(tmp_path, **arguments).new_head is None


def test_a_config_has_a_model_type(preset):
    (preset / "encoder_zoo.json").unlink()
    config = json.loads((preset / "config.json").read_text())
    family = config.pop("model_type")
    config.pop("architectures", None)
    (preset / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json.*model_type.*bert or mpnet"):
        ez.Backbone.from_preset(preset)
    (preset / "config.json").write_text(json.dumps({**config, "model_type": family}))
    ez.Backbone.from_preset(preset)


def test_links_are_not_followed(tmp_path):
    backbone = tiny.backbone(BERT)
    (tmp_path / "real").mkdir()
    (tmp_path / "to").symlink_to(tmp_path / "real")
    with pytest.raises(ValueError, match=r"to is a link to.*real"):
        backbone.save_to_preset(tmp_path / "to")
    backbone.save_to_preset(tmp_path / "real")


def test_folders_of_others_stay(tmp_path):
    backbone = tiny.backbone(BERT)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"config\.json.*saved"):
        backbone.save_to_preset(tmp_path)
    backbone.save_to_preset(tmp_path / "saved")


def test_pages_of_others_stay(tmp_path):
    page = Picture("<p>one</p>", "one")
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(ValueError, match=r"page\.html"):
        page.save(tmp_path / "page.html")
    page.save(tmp_path / "other.html")
    (tmp_path / "page.html").unlink()
    page.save(tmp_path / "page.html")


@pytest.mark.slow
def test_adapters_are_saved(tmp_path):
    classifier = new("SequenceClassifier", labels=["a", "b"])
    with pytest.raises(ValueError, match="enable_lora"):
        classifier.save_adapters(tmp_path / "a")
    classifier.backbone.enable_lora(2)
    classifier.save_adapters(tmp_path / "a")
    masked = make("MaskedLM")
    masked.backbone.enable_lora(2)
    with pytest.raises(ValueError, match=r"MaskedLM.*save_to_preset"):
        masked.save_adapters(tmp_path / "m")
    masked.save_to_preset(tmp_path / "m")


@pytest.mark.slow
def test_quantized_tasks_are_saved_by_keras(tmp_path):
    classifier = new("SequenceClassifier", labels=["a", "b"])
    classifier.save_to_preset(tmp_path / "before")
    classifier.quantize("int8", filters="logits")
    with pytest.raises(ValueError, match=r"int8.*\.save\("):
        classifier.save_to_preset(tmp_path / "after")
    classifier.save(tmp_path / "m.keras")
    inputs = tiny.examples(BERT)
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(inputs), classifier(inputs))
    assert ez.SequenceClassifier.from_preset(tmp_path / "before").labels == ["a", "b"]
