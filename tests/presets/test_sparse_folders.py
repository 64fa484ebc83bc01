"""Folders of sentence-transformers' SparseEncoder: read, refused where unknown, written.

The folders and vectors in `golden/sparse_encoders` were made by versions 5.3 and 6.2.
"""

import json
import shutil

import numpy as np
import pytest
from paths import CHECKPOINTS, GOLDEN

import encoder_zoo as ez

FOLDERS = GOLDEN / "sparse_encoders"
SETTINGS = {
    "5.3.0": {
        "pooling": "max",
        "activation": "relu",
        "max_terms": None,
        "similarity_function": "dot",
    },
    "6.2.0": {
        "pooling": "sum",
        "activation": "log1p_relu",
        "max_terms": 6,
        "similarity_function": "cosine",
    },
}
PROMPT = "query : "
VERSIONS = pytest.mark.parametrize("version", SETTINGS)


@pytest.fixture(scope="module")
def encoders():
    return {version: ez.SparseEncoder.from_preset(FOLDERS / version) for version in SETTINGS}


@pytest.fixture(params=SETTINGS)
def folder(request, tmp_path):
    """A folder of each version, to be changed."""
    return shutil.copytree(FOLDERS / request.param, tmp_path / "copy")


def edit(path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(source) -> str:
    with pytest.raises(ValueError) as caught:
        ez.SparseEncoder.from_preset(source)
    return str(caught.value)


@pytest.mark.slow
@VERSIONS
def test_vectors_are_those_of_the_library(encoders, version):
    """Also of a text that is longer than 16 tokens."""
    stored = np.load(FOLDERS / version / "expected.npz")
    texts = stored["texts"].tolist()
    for prompt, name in ((None, "vectors"), (PROMPT, "prompted")):
        found = encoders[version].embed(texts, prompt).toarray()
        np.testing.assert_allclose(found, stored[name], atol=1e-5)
    assert (stored["vectors"] == 0).any()


@VERSIONS
def test_settings_are_those_of_its_files(encoders, version):
    encoder, settings = encoders[version], SETTINGS[version]
    assert {name: getattr(encoder, name) for name in settings} == settings
    assert encoder.preprocessor.max_length == 16
    prompts = {"query": PROMPT, "passage": "a : "} if version == "5.3.0" else {}
    assert encoder.preprocessor.prompts == prompts


@pytest.mark.slow(except_for="^6")
@VERSIONS
def test_what_is_written_has_the_same_vectors_and_settings(encoders, version, tmp_path):
    encoder, texts = encoders[version], ["the cat sat .", "good film"]
    encoder.save_to_preset(tmp_path / "ours")
    again = ez.SparseEncoder.from_preset(tmp_path / "ours")
    np.testing.assert_array_equal(again.embed(texts).toarray(), encoder.embed(texts).toarray())
    settings = SETTINGS[version]
    assert {name: getattr(again, name) for name in settings} == settings
    ours, theirs = (model.preprocessor.get_config() for model in (again, encoder))
    assert ours.pop("tokenizer").get_config() == theirs.pop("tokenizer").get_config()
    assert ours == theirs
    modules = json.loads((tmp_path / "ours" / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_SpladePooling"]


def test_a_masked_language_model_becomes_one(caplog):
    encoder = ez.SparseEncoder.from_preset(CHECKPOINTS / "Bert_ForMaskedLM")
    assert not [r for r in caplog.records if r.name == "encoder_zoo"]
    assert (encoder.pooling, encoder.similarity_function) == ("max", "dot")


def test_an_encoder_gets_a_new_head_and_that_is_said(caplog):
    ez.SparseEncoder.from_preset(CHECKPOINTS / "Bert_Model", max_terms=7)
    assert "random weights" in caplog.text


def test_arguments_count_more_than_files():
    encoder = ez.SparseEncoder.from_preset(FOLDERS / "6.2.0", pooling="max", max_terms=2)
    assert (encoder.pooling, encoder.max_terms, encoder.activation) == ("max", 2, "log1p_relu")


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("1_SpladePooling/config.json", {"pooling_strategy": "mean"}, "pooling_strategy is 'mean'"),
        ("1_SpladePooling/config.json", {"activation_function": "gelu"}, "'gelu'"),
        ("1_SpladePooling/config.json", {"top": 3}, "'top'"),
        ("config_sentence_transformers.json", {"max_active_dims": 0}, "max_active_dims is 0"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "euclidean"}, "'euclidean'"),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "'fill-mask'"),
    ],
)
def test_unknown_settings_are_refused(folder, file, changes, message):
    edit(folder / file, **changes)
    found = refusal(folder)
    assert message in found and file in found


def test_other_modules_are_refused(folder):
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    kind = "sentence_transformers.sparse_encoder.modules.SparseAutoEncoder"
    path.write_text(json.dumps([*modules, {**modules[1], "type": kind}]))
    assert "SparseAutoEncoder" in refusal(folder)
    path.write_text(json.dumps(modules[::-1]))
    assert "modules.json: the modules are SpladePooling, " in refusal(folder)


def test_a_router_without_its_routes_is_refused(folder):
    kind = "sentence_transformers.base.modules.router.Router"
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "path": "", "type": kind}]))
    (folder / "config.json").unlink()
    assert "router_config.json" in refusal(folder)


def test_a_transformer_that_does_not_say_its_task_is_refused(folder):
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    modules[0]["type"] = "sentence_transformers.models.Transformer"
    path.write_text(json.dumps(modules))
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    settings.pop("transformer_task", None)
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    assert "transformer_task" in refusal(folder)


def test_a_text_embedder_refuses_it(folder):
    with pytest.raises(ValueError, match="modules.json.*SpladePooling"):
        ez.TextEmbedder.from_preset(folder)


def test_what_the_format_cannot_say_is_not_saved(encoders, tmp_path):
    encoder = ez.SparseEncoder.from_preset(FOLDERS / "5.3.0", include_prompt=False)
    with pytest.raises(ValueError, match="include_prompt is False"):
        encoder.save_to_preset(tmp_path / "ours")


def test_keras_hub_has_none(encoders, tmp_path):
    pytest.importorskip("keras_hub")
    with pytest.raises(ValueError, match="SparseEncoder.* BertBackbone"):
        encoders["5.3.0"].save_to_preset(tmp_path / "ours", format="keras_hub")
