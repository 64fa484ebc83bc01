"""Presets from the Hugging Face hub: the real client against a server that plays the hub."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from fake_hub import Hub, environment
from processes import run
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.presets.hub import download_from_hugging_face, select_files


@pytest.fixture
def repository(golden, tmp_path):
    """What lies in the repository: a preset of ours, with files that no preset needs."""
    folder = tmp_path / "repository"
    classifier = ez.SequenceClassifier.from_preset(golden("Bert_ForSequenceClassification").folder)
    classifier.save_to_preset(folder)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.safetensors").write_bytes(b"another")
    return folder


@pytest.fixture
def hub(repository, tmp_path, monkeypatch):
    """The server, and a client that is told to use it and a cache of its own."""
    hub = Hub(repository)
    for name, value in environment(hub, tmp_path).items():
        monkeypatch.setenv(name, value)
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("encoder_zoo.presets.hub_requests._PAUSES", (0.1, 0.1, None))
    yield hub
    hub.stop()


def load() -> ez.Backbone:
    return ez.Backbone.from_preset("hf://org/model")


def assert_equal_weights(a, b) -> None:
    for x, y in zip(a.get_weights(), b.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_the_first_download_takes_what_the_preset_needs_and_nothing_else(hub, repository):
    loaded = ez.SequenceClassifier.from_preset("hf://org/model")
    assert_equal_weights(loaded, ez.SequenceClassifier.from_preset(repository))
    assert loaded.labels == ["O", "B-PER", "I-PER"]
    assert hub.count("GET", "/model.safetensors") == 1
    assert (
        hub.count("GET", "pytorch_model.bin") == 0
        and hub.count("GET", "onnx/model.safetensors") == 0
    )


@pytest.mark.slow
def test_the_second_time_no_file_is_downloaded(hub):
    load()
    hub.log.clear()
    load()
    assert not [path for method, path, _ in hub.log if method == "GET" and "/resolve/" in path]


@pytest.mark.slow
@pytest.mark.matrix
def test_offline_the_cache_serves(hub, tmp_path):
    """In a process of its own: the client reads HF_HUB_OFFLINE once, when it is imported."""
    load()
    hub.log.clear()
    program = """
import encoder_zoo as ez
print(ez.Backbone.from_preset("hf://org/model").num_layers)
try:
    ez.Backbone.from_preset("hf://org/other")
except ValueError as error:
    print(error)
"""
    printed = run(program, **environment(hub, tmp_path), HF_HUB_OFFLINE="1")
    assert hub.log == []
    layers, error = printed.splitlines()
    assert layers == "2"
    assert error.startswith("hf://org/other is not in the cache, and the hub cannot be reached: ")


@pytest.mark.slow
def test_without_a_server_the_cache_serves(hub):
    first = load()
    hub.stop()
    assert_equal_weights(first, load())


@pytest.mark.slow
def test_case_19_an_interrupted_download_is_tried_again_and_is_complete(hub, repository):
    hub.cut["model.safetensors"] = 1
    assert_equal_weights(load(), ez.Backbone.from_preset(repository))
    assert hub.count("GET", "/model.safetensors") == 2
    assert hub.count("GET", "/vocab.txt") == 1  # what came whole is kept


@pytest.mark.matrix
@pytest.mark.slow
def test_case_19_a_download_that_keeps_breaking_off_can_be_tried_again(hub, repository):
    hub.cut["model.safetensors"] = 100
    with pytest.raises(ValueError, match="^hf://org/model: .*[Tt]ry again"):
        load()
    hub.cut.clear()
    assert_equal_weights(load(), ez.Backbone.from_preset(repository))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
def test_case_19_wrong_bytes_of_the_right_size_are_dropped(hub, repository, name):
    hub.wrong[name] = 1
    assert_equal_weights(load(), ez.Backbone.from_preset(repository))
    assert hub.count("GET", f"/{name}") == 2


@pytest.mark.slow
def test_case_19_a_file_that_stays_wrong_is_named_and_not_kept(hub, tmp_path):
    hub.wrong["vocab.txt"] = 100
    with pytest.raises(ValueError, match=r"vocab\.txt.*checksum"):
        load()
    assert not list((tmp_path / "cache").rglob("snapshots/*/vocab.txt"))
    hub.wrong.clear()
    load()


@pytest.mark.slow
def test_a_repository_that_changes_meanwhile_is_not_mixed(hub, repository):
    """All files are asked for by the commit of their list, and have its checksums."""
    hub.commits = ["b" * 40]
    folder = download_from_hugging_face("hf://org/model")
    assert folder.name == "b" * 40
    paths = [path for _, path, _ in hub.log if "/resolve/" in path]
    assert paths and all(f"/resolve/{'b' * 40}/" in path for path in paths)
    (repository / "config.json").write_text("{}")
    hub.commits, hub.listed = [], json.dumps(hub.listing("org/model")).encode()
    (repository / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json.*checksum"):
        load()


@pytest.mark.matrix
@pytest.mark.slow
def test_processes_share_a_cache_also_where_one_is_killed(hub, repository):
    hub.pause = 1.0  # so slow that none is done before one is killed
    code = """
import os
from encoder_zoo.presets.hub import download_from_hugging_face

# One process imports TensorFlow and becomes eight, which share the cache and nothing else.
children = []
for _ in range(8):
    child = os.fork()
    if not child:
        os.write(1, f"{download_from_hugging_face('hf://org/model')}\\n".encode())
        os._exit(0)
    children.append(child)
    if len(children) == 1:
        print(child, flush=True)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
    # Where the cache is comes from the environment: see `environment`.
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    first = int(parent.stdout.readline())
    while not hub.count("GET", "/model.safetensors"):
        assert parent.poll() is None
        time.sleep(0.01)
    os.kill(first, signal.SIGKILL)
    hub.pause = 0.02
    *folders, codes = parent.communicate(timeout=600)[0].splitlines()
    assert json.loads(codes) == [-9, *[0] * 7]
    assert len(folders) == 7
    [folder] = set(folders)
    for name in os.listdir(folder):
        assert (pathlib.Path(folder) / name).read_bytes() == (repository / name).read_bytes()
    assert_equal_weights(load(), ez.Backbone.from_preset(repository))


@pytest.mark.slow
def test_a_busy_server_is_asked_again(hub, repository):
    hub.fail["config.json"] = 2
    assert_equal_weights(load(), ez.Backbone.from_preset(repository))
    assert hub.count("GET", "/config.json") == 3


@pytest.mark.slow
def test_every_file_has_attempts_of_its_own(hub, repository):
    names = [path.name for path in repository.iterdir() if path.name != "README.md"]
    hub.fail.update(dict.fromkeys(names, 1))
    assert len(names) > 3  # the attempts of one file
    assert_equal_weights(load(), ez.Backbone.from_preset(repository))


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_listing_is_asked_for_again(hub, repository, status):
    hub.statuses = [status, status]
    assert_equal_weights(load(), ez.Backbone.from_preset(repository))
    assert hub.statuses == []


@pytest.mark.slow
def test_a_hub_that_stays_busy_is_named_or_the_cache_serves(hub):
    hub.statuses = [503] * 100
    with pytest.raises(ValueError, match="hub.* 503"):
        load()
    hub.statuses = []
    first = load()
    hub.statuses = [503] * 100
    assert_equal_weights(first, load())


@pytest.mark.slow(except_for="^401")
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, r"\(401\). Set HF_TOKEN"),
        (403, r"denies access \(403\)"),
        (404, "does not exist"),
        (410, "deleted"),
    ],
)
def test_a_refusal_is_named_and_not_asked_again(hub, status, words):
    hub.statuses = [status] * 100
    with pytest.raises(ValueError, match=f"^hf://org/model: .*{words}"):
        load()
    assert len(hub.statuses) == 99


@pytest.mark.slow
def test_a_listing_that_leads_to_itself_is_named(hub):
    hub.statuses = [302] * 1000
    with pytest.raises(ValueError, match="(?i)hub.*redirect"):
        load()


@pytest.mark.slow(except_for="^null")
@pytest.mark.parametrize(
    "listed",
    [
        b"{}",
        b"[]",
        b"null",
        b"no json",
        b'"text"',
        b'{"id": "org/model", "siblings": "config.json"}',
        b'{"id": "org/model", "siblings": [{"rfilename": 7, "size": 1}]}',
        b'{"id": "org/model", "siblings": [{"rfilename": "config.json", "size": "many"}]}',
        b'{"id": "org/model", "siblings": [{"rfilename": "model.safetensors", "size": -5}]}',
    ],
)
def test_a_listing_of_another_shape_is_named(hub, listed):
    hub.listed = listed
    with pytest.raises(ValueError, match=hub.address):
        load()


@pytest.mark.slow
def test_a_repository_without_weights_that_are_read_is_refused_without_a_download(hub, repository):
    (repository / "model.safetensors").unlink()
    (repository / "pytorch_model.bin").rename(repository / "flax_model.msgpack")
    with pytest.raises(ValueError, match="pytorch_model.bin.*flax_model.msgpack"):
        load()
    assert not [path for _, path, _ in hub.log if "/resolve/" in path]


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
def test_a_repository_with_pytorch_weights_alone_is_downloaded_and_read(hub, repository, shards):
    torch = pytest.importorskip("torch")
    expected = ez.Backbone.from_preset(repository)
    (repository / "encoder_zoo.json").unlink()
    tensors = load_file(repository / "model.safetensors")
    (repository / "model.safetensors").unlink()
    (repository / "pytorch_model.bin").unlink()
    names, index = [*tensors], {}
    for i in range(shards):
        part = {name: torch.from_numpy(tensors[name]) for name in names[i::shards]}
        file = f"pytorch_model-{i + 1:05}-of-{shards:05}.bin" if shards > 1 else "pytorch_model.bin"
        torch.save(part, repository / file)
        index |= dict.fromkeys(part, file)
    if shards > 1:
        content = json.dumps({"metadata": {}, "weight_map": index})
        (repository / "pytorch_model.bin.index.json").write_text(content)
    assert_equal_weights(load(), expected)
    hub.statuses = [503] * 100
    assert_equal_weights(load(), expected)  # from the cache


@pytest.mark.slow
def test_for_a_tokenizer_no_weights_are_downloaded(hub, repository):
    folder = download_from_hugging_face("hf://org/model", weights=False)
    assert not list(folder.glob("*.safetensors")) and (folder / "vocab.txt").exists()
    hub.statuses = [503] * 100
    assert download_from_hugging_face("hf://org/model", weights=False) == folder
    with pytest.raises(ValueError, match="weights of hf://org/model"):
        load()


@pytest.mark.slow
def test_a_repository_beyond_the_budget_is_refused_without_a_download(hub):
    with pytest.raises(ValueError, match=r"max_bytes="):
        ez.Backbone.from_preset("hf://org/model", max_bytes=100)
    assert not [path for _, path, _ in hub.log if "/resolve/" in path]


@pytest.mark.slow
def test_a_repository_that_does_not_exist_is_named(hub):
    with pytest.raises(ValueError, match="hf://org/other"):
        ez.Backbone.from_preset("hf://org/other")


@pytest.mark.parametrize(
    "address", ["hf://model", "hf://a/b/c", "hf://../..", "hf://a/b@", "hf://"]
)
def test_addresses_that_are_none_are_refused(address):
    with pytest.raises(ValueError, match="hf://organisation/name"):
        ez.Backbone.from_preset(address)


@pytest.mark.slow
def test_a_revision_is_asked_for(hub):
    ez.Backbone.from_preset("hf://org/model@refs/pr/3")
    assert any("refs%2Fpr%2F3" in path for _, path, _ in hub.log)


def test_sharded_and_kerashub_repositories_are_taken_whole():
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    names = ["config.json", "model.safetensors.index.json", *shards, "a.bin", "x/config.json"]
    assert select_files("", names) == names[:4]
    kerashub = ["config.json", "model.weights.h5", "assets/tokenizer/vocabulary.txt"]
    assert select_files("", [*kerashub, "train.py"]) == kerashub


@pytest.mark.slow
def test_a_kaggle_preset_in_the_cache_is_found_and_a_bad_address_refused(
    golden, tmp_path, monkeypatch
):
    handle = "keras/bert/keras/tiny/3"
    cached = tmp_path / "models" / handle
    shutil.copytree(golden("Bert_Model").folder, cached)
    marker = tmp_path / "models" / "keras/bert/keras/tiny/3.complete"
    marker.touch()
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path))
    assert ez.Backbone.from_preset(f"kaggle://{handle}").num_layers == 2
    with pytest.raises(ValueError, match="kaggle://keras"):
        ez.Backbone.from_preset("kaggle://keras/bert")


@pytest.mark.matrix
@pytest.mark.slow
def test_a_download_that_was_killed_goes_on_in_another_process(hub, repository):
    """The client writes 10 MB at a time; here 64 KB."""
    os.remove(repository / "pytorch_model.bin")
    (repository / "model.safetensors").rename(repository / "kept")
    save_file({"x": np.zeros(2**18, "float32")}, repository / "model.safetensors")
    hub.pause = 0.1  # 26 seconds in all, of which it lives for 3 or 4
    code = """
import huggingface_hub.constants
huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 2**16
from encoder_zoo.presets.hub import download_from_hugging_face
print(download_from_hugging_face("hf://org/model"))
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    cache = pathlib.Path(os.environ["HF_HOME"]) / "hub"
    while not any(path.stat().st_size > 2**17 for path in cache.rglob("*.part")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    [part] = cache.rglob("*.part")
    begun = part.stat().st_size
    hub.pause = 0.0
    folder = download_from_hugging_face("hf://org/model")
    expected = (repository / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").read_bytes() == expected
    ranges = [asked for method, path, asked in hub.log if path.endswith("/model.safetensors")]
    assert f"bytes={begun}-" in ranges and not list(cache.rglob("*.part"))


@pytest.mark.slow
def test_what_broke_off_with_other_bytes_is_downloaded_anew(hub, repository, tmp_path):
    expected = load()
    [blob] = [p for p in (tmp_path / "cache").rglob("blobs/*") if len(p.name) == 64]
    blob.rename(blob.with_name(f"{blob.name}.part"))
    part = blob.with_name(f"{blob.name}.part")
    part.write_bytes(b"other" + part.read_bytes()[5:100])
    assert_equal_weights(load(), expected)
    assert not part.exists()


@pytest.mark.slow
def test_how_much_is_to_come_is_printed_once_and_can_be_silenced(hub, monkeypatch, capsys, caplog):
    import huggingface_hub.utils as utils

    # The client reads HF_HUB_DISABLE_PROGRESS_BARS once, when it is imported.
    monkeypatch.setattr(utils, "are_progress_bars_disabled", lambda: True)
    load()
    assert "downloading" not in capsys.readouterr().err
    shutil.rmtree(os.environ["HF_HOME"])
    monkeypatch.setattr(utils, "are_progress_bars_disabled", lambda: False)
    load()
    said = capsys.readouterr().err
    assert re.search(r"hf://org/model: downloading \d files, 0\.\d MB, into.*models--org--", said)
    load()
    assert "downloading" not in capsys.readouterr().err
    shutil.rmtree(os.environ["HF_HOME"])
    with caplog.at_level("INFO", "encoder_zoo"):
        load()
    assert "downloading" in caplog.text and "downloading" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("discussions", ["ours", "others", "none", "failing"])
def test_the_hubs_own_conversion_is_named_and_not_taken(hub, repository, discussions):
    (repository / "model.safetensors").unlink()
    (repository / "pytorch_model.bin").rename(repository / "flax_model.msgpack")
    request = {
        "num": 4,
        "title": "Adding `safetensors` variant of this model",
        "author": {"name": "SFconvertbot" if discussions == "ours" else "somebody"},
        "isPullRequest": True,
        "status": "open",
        "repo": {"name": "org/model", "type": "model"},
        "createdAt": "2024-01-01T00:00:00.000Z",
    }
    hub.discussions = {"none": [], "failing": None}.get(discussions, [request])
    with pytest.raises(ValueError, match="flax_model.msgpack") as caught:
        load()
    assert ("hf://org/model@refs/pr/4" in str(caught.value)) == (discussions == "ours")
    assert not [path for _, path, _ in hub.log if "/resolve/" in path]


@pytest.mark.slow
def test_a_file_that_another_process_dropped_is_downloaded_again(hub, repository):
    folder = download_from_hugging_face("hf://org/model")
    (folder / "vocab.txt").unlink()
    assert (download_from_hugging_face("hf://org/model") / "vocab.txt").exists()
    (folder / "config.json").resolve().unlink()
    download_from_hugging_face("hf://org/model")
    assert (folder / "config.json").read_bytes() == (repository / "config.json").read_bytes()


@pytest.mark.slow
def test_files_without_a_checksum_come_too(hub, repository):
    (repository / "modules.json").write_text("[]")
    (repository / "1_Pooling").mkdir()
    (repository / "1_Pooling" / "config.json").write_text("{}")
    listing = hub.listing("org/model")
    for file in listing["siblings"]:
        file.pop("blobId")
        file.pop("lfs", None)
    hub.listed = json.dumps(listing).encode()
    folder = download_from_hugging_face("hf://org/model")
    for name in ("1_Pooling/config.json", "model.safetensors"):
        assert (folder / name).read_bytes() == (repository / name).read_bytes()
    hub.log.clear()
    assert download_from_hugging_face("hf://org/model") == folder
    assert not [path for _, path, _ in hub.log if "/resolve/" in path]


@pytest.mark.slow
def test_damaged_files_in_the_cache_are_named_or_downloaded_again(hub, repository):
    folder = download_from_hugging_face("hf://org/model")
    (folder / "vocab.txt").resolve().write_bytes(b"other")
    hub.statuses = [503] * 3
    with pytest.raises(ValueError, match=r"hf://org/model.*vocab\.txt.* 503"):
        download_from_hugging_face("hf://org/model")
    assert download_from_hugging_face("hf://org/model", verify=False) == folder
    hub.statuses = []
    download_from_hugging_face("hf://org/model")
    assert (folder / "vocab.txt").read_bytes() == (repository / "vocab.txt").read_bytes()


@pytest.mark.slow
def test_heads_and_adapters_are_named_as_of_a_local_folder(golden, hub, repository, caplog):
    shutil.rmtree(repository)
    shutil.copytree(golden("Bert_Model").folder, repository)
    names = ("model_head.pkl", "classifier.bin", "head.safetensors", "optimizer.pt", "tf_model.h5")
    for name in names:  # as of SetFit, of somebody's own code, and files that hold no head
        (repository / name).write_bytes(b"1")
    (repository / "pytorch_model.bin").write_bytes(b"pickle")
    logs = []
    for source in (repository, "hf://org/model"):
        caplog.clear()
        ez.SequenceClassifier.from_preset(source, labels=["a", "b"])
        [line] = [r.getMessage() for r in caplog.records if "random weights" in r.getMessage()]
        logs.append(line.partition(": ")[2])
    assert logs[0] == logs[1]
    assert "Not read: classifier.bin, head.safetensors, model_head.pkl." in logs[1]
    assert not any(hub.count("GET", name) for name in names)


@pytest.mark.slow
def test_adapters_are_downloaded_for_load_adapters(golden, hub, repository, caplog):
    there = ez.SequenceClassifier.from_preset(golden("Bert_ForSequenceClassification").folder)
    there.backbone.enable_lora(2)
    for weight in there.backbone.weights:
        if "lora" in weight.path:
            weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    there.save_adapters(repository)
    here = ez.SequenceClassifier.from_preset("hf://org/model")
    [folder] = re.findall(r"load_adapters\('(.*)'\)", caplog.text)  # the advice is carried out
    here.load_adapters(folder)
    np.testing.assert_allclose(here.predict(["a cat"]), there.predict(["a cat"]), atol=1e-6)
