"""BART: a decoder behind the encoder, and classifiers that read the last token."""

import json
import shutil

import numpy as np
import pytest
import torch
from keras import ops
from safetensors.torch import load_file

import encoder_zoo as ez

FAMILY = ez.BartBackbone.family


def numbers(model, inputs) -> np.ndarray:
    return ops.convert_to_numpy(model(inputs))


@pytest.mark.slow
def test_hidden_states_are_the_encoders_and_then_the_decoders(tiny):
    backbone, rows = tiny.backbone(FAMILY, num_layers=2, num_decoder_layers=3), tiny.rows(FAMILY)
    outputs = backbone(rows, return_hidden_states=True, return_projections=True)
    assert len(outputs["hidden_states"]) == 3 + 4 and len(backbone.blocks) == 5
    assert backbone.blocks[2:] == list(backbone.decoder_blocks)
    np.testing.assert_array_equal(outputs["hidden_states"][-1], outputs["sequence_output"])
    shapes = {tuple(part.shape) for part in outputs["projections"]}
    assert shapes == {(3, 16, 2, 4)}
    probabilities = ops.convert_to_numpy(backbone.attention_probabilities(rows))
    assert probabilities.shape == (3, 5, 2, 16, 16)
    assert (np.triu(probabilities[:, 2:], 1) == 0).all()  # the decoder reads nothing behind a token
    assert (np.triu(probabilities[0, :2], 1) > 0).any()


def test_the_decoder_reads_the_tokens_before_and_the_whole_text(tiny):
    """A changed token changes the outputs before it too, by the encoder alone."""
    backbone = tiny.backbone(FAMILY)
    ids = np.array([[0, 5, 6, 7, 2], [0, 5, 6, 9, 2]])
    first, second = ops.convert_to_numpy(backbone({"token_ids": ids})["sequence_output"])
    assert (np.abs(first - second).max(axis=1) > 1e-3).all()
    before = ops.convert_to_numpy(backbone._shift_tokens({"token_ids": ids}))
    assert before.tolist() == [[2, 0, 5, 6, 7], [2, 0, 5, 6, 9]]
    packed = {"token_ids": ids, "text_starts": np.array([[0, 3], [0, 9]])}
    before = ops.convert_to_numpy(backbone._shift_tokens(packed))
    assert before.tolist() == [[2, 0, 5, 2, 7], [2, 0, 5, 6, 9]]


@pytest.mark.slow
def test_a_classifier_reads_the_last_token(tiny):
    classifier, rows = tiny.task(FAMILY, "SequenceClassifier"), tiny.rows(FAMILY)
    encoded = ops.convert_to_numpy(classifier.backbone(rows)["sequence_output"])
    last = encoded[np.arange(3), rows["padding_mask"].sum(axis=1) - 1]
    expected = ops.convert_to_numpy(classifier.head(last))
    np.testing.assert_allclose(numbers(classifier, rows), expected, atol=1e-6)


@pytest.fixture
def mnli(golden, tmp_path):
    """A folder like that of bart-large-mnli: pickled weights with all copies, and old fields."""
    stored = golden("Bart_ForSequenceClassification").folder
    shutil.copytree(stored, tmp_path / "mnli")
    tensors = load_file(stored / "model.safetensors")
    for part in ("encoder", "decoder"):
        tensors[f"model.{part}.embed_tokens.weight"] = tensors["model.shared.weight"]
        tensors[f"model.{part}.version"] = torch.tensor([2.0])
    (tmp_path / "mnli" / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "mnli" / "pytorch_model.bin")
    config = json.loads((stored / "config.json").read_text())
    labels = ["contradiction", "neutral", "entailment"]
    config |= {
        "_num_labels": 3,
        "add_final_layer_norm": False,
        "classif_dropout": 0.0,
        "gradient_checkpointing": False,
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        "normalize_before": False,
        "num_hidden_layers": config["encoder_layers"],
        "output_past": False,
    }
    (tmp_path / "mnli" / "config.json").write_text(json.dumps(config))
    return tmp_path / "mnli"


@pytest.mark.slow
def test_the_layout_of_bart_large_mnli_opens(golden, mnli, caplog):
    stored = golden("Bart_ForSequenceClassification")
    classifier = ez.SequenceClassifier.from_preset(mnli)
    assert [r for r in caplog.records if r.levelname == "WARNING"] == []
    assert classifier.labels == ["contradiction", "neutral", "entailment"]
    found = numbers(classifier, stored.inputs)
    np.testing.assert_allclose(found, stored.expected["logits"], rtol=1e-5, atol=1e-5)


def test_tables_that_are_no_copies_are_refused(mnli):
    tensors = torch.load(mnli / "pytorch_model.bin")
    tensors["model.decoder.embed_tokens.weight"] = 2 * tensors["model.shared.weight"]
    torch.save(tensors, mnli / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"\+ decoder.embed_tokens.weight"):
        ez.SequenceClassifier.from_preset(mnli)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("decoder_attention_heads", 4, "encoder_attention_heads.*2"),
        ("decoder_layers", 10**6, "decoder_layers is 1000000.* 3,"),
        ("scale_embedding", True, "scale_embedding is True"),
        ("max_position_embeddings", 34, "max_position_embeddings is 34.*encoder.embed_pos"),
    ],
)
def test_a_configuration_of_another_model_is_refused(mnli, field, value, message):
    config = json.loads((mnli / "config.json").read_text())
    (mnli / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(ValueError, match=message):
        ez.Backbone.from_preset(mnli)


@pytest.mark.slow
@pytest.mark.eager
def test_a_model_without_the_output_bias_fills_masks(golden, caplog):
    """As bart-base, whose file holds the model alone: transformers takes zeros."""
    task = ez.MaskedLM.from_preset(golden("Bart_Model").folder)
    assert [record for record in caplog.records if record.name == "encoder_zoo"] == []
    assert not ops.convert_to_numpy(task.head.bias).any()
    assert len(task.fill_mask("the cat <mask> on")) == 5


def test_added_tokens_enlarge_the_output_bias_too(golden):
    folder = golden("Bart_ForMaskedLM").folder
    task = ez.MaskedLM.from_preset(folder, added_tokens=["<new>"])
    bias = load_file(folder / "model.safetensors")["final_logits_bias"].numpy()
    found = ops.convert_to_numpy(task.head.bias)
    assert found.shape == (1, bias.shape[1] + 1)
    np.testing.assert_allclose(found[:, -1], bias.mean(), rtol=1e-5)


def test_a_head_without_a_layer_has_no_activation(tiny):
    with pytest.raises(ValueError, match="head of bart"):
        ez.MaskedLM(tiny.backbone(FAMILY), head_activation="gelu")


def test_heads_of_a_decoder_that_config_json_leaves_out_are_transformers(golden, tmp_path):
    """16, whatever the encoder has; they show in no tensor's shape."""
    shutil.copytree(golden("Bart_Model").folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["decoder_attention_heads"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="decoder_attention_heads is 16.*encoder_attention_heads"):
        ez.Backbone.from_preset(tmp_path)
