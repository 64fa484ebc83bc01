"""The listed presets, replayed: what the hub's pages show of them, with tiny weights."""

import json
import resource
import shutil

import check_known
import numpy as np
import pytest
import replay
import torch
from fake_hub import Hub, environment
from paths import RECORDED
from replayed_hub import ENCODER, REPOSITORIES
from safetensors.torch import load_file, save_file

import encoder_zoo as ez

RECORD = RECORDED / "known_presets.json"
LISTED = {row.source.removeprefix("hf://"): row for row in ez.list_presets()}
# Why the others do not open.
REASONS = {
    "tohoku-nlp/bert-base-japanese": "'BertJapaneseTokenizer'",
    **{
        repository["repository"]: f"model_type is '{repository['model_type']}'"
        for repository in REPOSITORIES
        if "model_type" in repository
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def findings(folder):
    return replay.replay(folder)


def test_a_repository_is_on_record_for_every_listed_preset():
    on_record = {repository["repository"] for repository in REPOSITORIES}
    assert {s for s, row in LISTED.items() if row.source.startswith("hf://")} <= on_record
    assert len(on_record) == len(REPOSITORIES) > 150


def test_nothing_that_does_not_open_is_listed():
    assert REASONS.keys().isdisjoint(LISTED)


@pytest.mark.slow(only="^(google-bert/bert-base-cased|google-bert/bert-base-uncased)")
@pytest.mark.matrix
@pytest.mark.parametrize("repository", REPOSITORIES, ids=lambda r: r["repository"])
def test_a_repository_on_record_opens_or_says_why_not(findings, repository):
    name = repository["repository"]
    assert len(findings[name]) == len(repository["weights"])
    for found in findings[name]:
        if name in REASONS:
            assert not found.opens and REASONS[name] in found.why_not
        else:
            assert found.opens, found.why_not
        if name in LISTED:
            assert found.family == LISTED[name].family


def test_the_newest_record_is_of_the_list():
    record = json.loads(RECORD.read_text("utf-8"))
    listed = {row.name: row for row in LISTED.values() if row.source.startswith("hf://")}
    assert record["presets"].keys() == listed.keys()
    for name, found in record["presets"].items():
        assert found["opens"] and found["source"] == listed[name].source
        assert found["parameters"] in (None, listed[name].parameters)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = Hub({})
    for name, value in environment(hub, tmp_path).items():
        monkeypatch.setenv(name, value)
    yield hub
    hub.stop()


@pytest.mark.slow(except_for="^safetensors")
@pytest.mark.parametrize("weights", ["safetensors", "zip", "legacy"])
def test_of_the_weights_only_the_headers_are_fetched(hub, tmp_path, golden, weights):
    """Of 4 MB, some blocks of 64 KB; also where a head repeats the embedding."""
    folder = tmp_path / "repository"
    shutil.copytree(golden("Bert_ForMaskedLM").folder, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.other.weight"] = torch.zeros(1024, 1024)
    if weights == "safetensors":
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        save_file(copies, folder / "model.safetensors")
    else:
        (folder / "model.safetensors").unlink()
        is_zip = weights == "zip"
        path = folder / "pytorch_model.bin"
        torch.save(tensors, path, _use_new_zipfile_serialization=is_zip)
    hub.folders["org/model"] = folder
    found = check_known.check_source("hf://org/model")
    assert found.opens, found.why_not
    asked = [(path, range_) for _, path, range_ in hub.log if "/resolve/" in path]
    assert all(range_ for _, range_ in asked)
    assert sum(path.endswith((".bin", ".safetensors")) for path, _ in asked) <= 3
    assert hub.sent <= found.fetched < 2**18  # counts a last block as if it were whole


@pytest.mark.slow
def test_the_program_compares_with_the_list_and_fails(hub, tmp_path, golden, capsys):
    hub.folders["google-bert/bert-base-cased"] = golden("Bert_Model").folder
    written = tmp_path / "found.json"
    assert check_known.main(["bert_base_en", "--write", str(written)]) == 1
    printed = capsys.readouterr().out
    assert "no: parameters is" in printed and "but 108310272 in the list" in printed
    assert "0 of 1 open." in printed
    record = json.loads(written.read_text("utf-8"))
    assert record["presets"]["bert_base_en"]["weights"] == ["model.safetensors"]
    assert check_known.main(["bert_base_en_uncased"]) == 1
    assert "the repository does not exist" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="bert_nano: no preset on the Hugging Face hub"):
        check_known.main(["bert_nano"])


@pytest.mark.slow
def test_a_large_model_is_matched_without_memory_for_its_weights():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = {"num_layers": 24, "num_heads": 16, "hidden_dim": 1024, "intermediate_dim": 4096}
    parameters = check_known.without_memory(
        lambda: ez.XLMRobertaBackbone(250002, **sizes).count_params()
    )
    assert parameters == 559_890_432
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


_LAYOUTS = {r["layout"] for r in REPOSITORIES if r["repository"] not in REASONS}
_QUICK = ("bert_scibert", "electra_discriminator")


@pytest.mark.slow(except_for="^electra_discriminator")
@pytest.mark.parametrize(
    "layout",
    [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in sorted(_LAYOUTS)],
)
def test_a_repository_of_each_layout_is_downloaded_and_loaded(
    hub, folder, findings, tmp_path, monkeypatch, layout
):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    hub.folders[ENCODER] = folder / ENCODER.replace("/", "-")
    for path in sorted(folder.glob(f"{layout}-*")):
        name = f"org/{path.name}"
        hub.folders[name] = path
        loaded, expected = (ez.Backbone.from_preset(s) for s in (f"hf://{name}", path))
        for ours, theirs in zip(loaded.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert any(np.any(weight != 0) for weight in loaded.get_weights())
        assert ez.Tokenizer.from_preset(f"hf://{name}").tokenize("a").shape[0] > 0
