"""Folders as the code wrote them that families were released with, before transformers had them."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from keras import ops
from released_layouts import CONFIGS, released_tensors
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.encoders.families import gte, nomic_bert

PREFIXES = {"nomic_bert": "NomicBert", "gte": "Gte"}
each = pytest.mark.parametrize("name", ["nomic_bert", "gte"])


def older(name: str, stored: pathlib.Path, folder: pathlib.Path, **fields) -> pathlib.Path:
    """Write a stored checkpoint in the older layout."""
    tensors = released_tensors(name, load_file(stored / "model.safetensors"))
    shutil.copytree(stored, folder)
    save_file(tensors, folder / "model.safetensors")
    vocabulary = json.loads((stored / "config.json").read_text())["vocab_size"]
    old_class = stored.name.replace("Gte_", "New").replace("_", "")
    own = {"architectures": [old_class], "vocab_size": vocabulary, **CONFIGS[name], **fields}
    (folder / "config.json").write_text(json.dumps(own))
    return folder


@pytest.mark.slow(except_for=r"^ForMaskedLM-nomic_bert$")
@each
@pytest.mark.parametrize("task", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_an_older_folder_answers_as_transformers_does(name, task, golden, tmp_path, caplog):
    stored = golden(f"{PREFIXES[name]}_{task}")
    fields = {"rotary_emb_base": 1000}
    if name == "nomic_bert":  # the stored checkpoint's positions are those divided by 2
        fields["rope_scaling"] = {"type": "linear", "factor": 2.0}
    if task == "ForSequenceClassification":
        fields |= {"id2label": {"0": "O", "1": "B-PER", "2": "I-PER"}}
    folder = older(name, stored.folder, tmp_path / "older", **fields)
    opens = {"ForMaskedLM": ez.MaskedLM, "ForSequenceClassification": ez.SequenceClassifier}
    model = opens.get(task, ez.Backbone).from_preset(folder)
    assert [record for record in caplog.records if record.name == "encoder_zoo"] == []
    found, real = model(stored.inputs), stored.inputs["padding_mask"]
    expected = stored.expected["last_hidden_state" if task == "Model" else "logits"]
    found = ops.convert_to_numpy(found["sequence_output"] if task == "Model" else found)
    if found.shape[:2] == real.shape:
        found, expected = found[real], expected[real]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert getattr(model, "backbone", model).max_sequence_length == 8192


@pytest.mark.parametrize(
    "name, field, value",
    [
        ("nomic_bert", "prenorm", True),
        ("nomic_bert", "rotary_emb_interleaved", True),
        ("nomic_bert", "rotary_emb_fraction", 0.5),
        ("nomic_bert", "activation_function", "gelu"),
        ("nomic_bert", "qkv_proj_bias", True),
        ("gte", "position_embedding_type", "absolute"),
        ("gte", "logn_attention_scale", True),
        ("gte", "rope_scaling", {"type": "yarn", "factor": 4.0}),
    ],
)
def test_what_would_change_the_numbers_is_refused(name, field, value, golden, tmp_path):
    stored = golden(f"{PREFIXES[name]}_Model").folder
    folder = older(name, stored, tmp_path / "older", **{field: value})
    with pytest.raises(ValueError, match=rf"config\.json: {field} is "):
        ez.Backbone.from_preset(folder)


def test_a_scaling_factor_is_dynamic_from_the_trained_length_on(golden, tmp_path):
    stored = golden("NomicBert_Model").folder
    folder = older("nomic_bert", stored, tmp_path / "older", rotary_scaling_factor=2)
    backbone = ez.Backbone.from_preset(folder)
    assert backbone.rope_scaling == {"rope_type": "dynamic", "factor": 2}
    assert (backbone.trained_length, backbone.max_sequence_length) == (2048, 8192)
    backbone.save_to_preset(tmp_path / "ours")
    saved = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (saved["max_position_embeddings"], saved["n_positions"]) == (2048, 8192)


@each
def test_an_embedders_folder_opens_as_it_lies_on_the_hub(name, golden, tmp_path):
    stored = golden(f"{PREFIXES[name]}_Model")
    fields = {"rope_scaling": {"type": "linear", "factor": 2.0}} if name == "nomic_bert" else {}
    folder = older(name, stored.folder, tmp_path / "older", **fields)
    pooling = "pooling_mode_mean_tokens" if name == "nomic_bert" else "pooling_mode_cls_token"
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    modules = ["Transformer", "Pooling"]
    write = {
        "modules.json": [
            {
                "idx": i,
                "name": str(i),
                "path": f"{i}_{kind}" if i else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for i, kind in enumerate(modules)
        ],
        "sentence_bert_config.json": {"max_seq_length": 8192, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": 8,
            **{f"pooling_mode_{mode}": f"pooling_mode_{mode}" == pooling for mode in modes},
        },
    }
    (folder / "1_Pooling").mkdir()
    for path, content in write.items():
        (folder / path).write_text(json.dumps(content))
    embedder = ez.TextEmbedder.from_preset(folder)
    assert embedder.preprocessor.max_sequence_length == 8192
    found = ops.convert_to_numpy(embedder(stored.inputs))
    states, real = stored.expected["last_hidden_state"], stored.inputs["padding_mask"][:, :, None]
    mean = (states * real).sum(axis=1) / real.sum(axis=1)
    np.testing.assert_allclose(found, mean if name == "nomic_bert" else states[:, 0], atol=1e-5)


def test_read_config_leaves_what_it_does_not_know_to_the_rules():
    strange = {"rope_scaling": "much", "hidden_size": "8", "num_attention_heads": None}
    for read in (nomic_bert.read_config, gte.read_config):
        assert read(strange)["rope_scaling"] == "much"
    odd = {"model_type": "new", "architectures": [1], "rope_scaling": {"type": "ntk"}}
    assert gte.read_config(odd)["rope_scaling"] == {"rope_type": "ntk"}
