"""A hub that lies in a hundred ways: nothing is written outside of the cache, nothing hangs."""

import json
import os
import pathlib
import sys
import time

import pytest
from fake_hub import COMMIT, Hub, environment

from encoder_zoo.presets.hub import download_from_hugging_face

CONFIG = json.dumps({"model_type": "bert", "hidden_size": 8}).encode()
FILES = {"config.json": CONFIG, "model.safetensors": bytes(range(256)) * 40, "vocab.txt": b"a\nb\n"}
WRITTEN: list[str] | None = None  # paths, while a list


def _hook(event: str, arguments: tuple) -> None:
    if WRITTEN is None:
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, str | bytes) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            WRITTEN.append(os.fsdecode(path))
    elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod"):
        WRITTEN.extend(os.fsdecode(a) for a in arguments[:2] if isinstance(a, str | bytes))
    elif event in ("os.symlink", "os.link"):
        WRITTEN.append(os.fsdecode(arguments[1]))
    elif event in ("subprocess.Popen", "os.system", "os.exec", "pickle.find_class"):
        WRITTEN.append(f"/{event}")


sys.addaudithook(_hook)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    repository.mkdir()
    for name, content in FILES.items():
        (repository / name).write_bytes(content)
    hub = Hub(repository)
    for name, value in environment(hub, tmp_path).items():
        monkeypatch.setenv(name, value)
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("encoder_zoo.presets.hub_requests._PAUSES", (0.01, 0.01, None))
    monkeypatch.setattr("encoder_zoo.presets.hub_requests._TIMEOUT_SECONDS", 2)
    yield hub
    hub.stop()


def download(hub, tmp_path) -> pathlib.Path | str:
    """The folder that was downloaded, whole and right; or the error."""
    global WRITTEN
    from huggingface_hub import HfApi  # noqa: F401  it writes when it is imported

    WRITTEN, begun = [], time.monotonic()
    try:
        result = download_from_hugging_face("hf://org/model")
    except ValueError as error:
        result = str(error)
    finally:
        written, WRITTEN = WRITTEN, None
    assert time.monotonic() - begun < 30
    cache = tmp_path / "cache"
    allowed = (str(cache), "/dev/null", str(pathlib.Path(sys.prefix)), "/proc/")
    outside = [p for p in written if not os.path.abspath(p).startswith(allowed)]
    assert not [p for p in outside if not p.endswith(".pyc") and "__pycache__" not in p]
    for parent, folders, files in os.walk(tmp_path):
        for path in (pathlib.Path(parent, name) for name in [*folders, *files]):
            inside = cache in path.parents or path in (cache, tmp_path / "repository")
            assert inside or path.parent == tmp_path / "repository", path
            if path.is_symlink():
                assert path.resolve().parent.name == "blobs", path
    if isinstance(result, pathlib.Path):
        for name, content in FILES.items():
            assert not (result / name).exists() or (result / name).read_bytes() == content
    else:
        assert result.startswith("hf://org/model")
    return result


BAD = ["../../../x", "/etc/x", "..", ".", "a/b", "a" * 63, "a" * 65, "g" * 64, "A" * 64, "a" * 39]
BAD += ["A" * 40, "a" * 40 + "\n", "\x00" * 40, "%2e%2e/x", "..\\..\\x", "C:x", "a" * 10_000, " "]
BAD += ["٣" * 40, "~", "$(id)", "a" * 64 + "/../../x", "a" * 40 + "/x"]
ODD = [7, -1, 1.5, True, [], {}, ["a" * 40], {"a": 1}]
HEADERS = {
    "ETag": ["../../../../x", '"../../x"', "/etc/x", "", "a/b", '"' + "b" * 64 + '"'],
    "X-Linked-ETag": ["../../../../x", '"/tmp/x"', "c" * 64],
    "X-Repo-Commit": ["../../../x", "/etc", "b" * 40, "main", "", ".."],
    "X-Linked-Size": ["9" * 30, "-1", "x"],
    "Content-Disposition": ['attachment; filename="../../../x"', 'inline; filename="/etc/x"'],
    "Content-Range": ["bytes 5-9/10", "bytes x", "bytes 0-1/*"],
    "Content-Type": ["application/x-python", "text/html", "x" * 1000],
    "X-Xet-Hash": ["../../x"],
    "Link": ['<file:///etc/passwd>; rel="next"', '<http://127.0.0.1:1/>; rel="xet-auth"'],
}


def listing_with(hub, where: str, value: object) -> bytes:
    listing = hub.listing("org/model")
    [config] = [f for f in listing["siblings"] if f["rfilename"] == "config.json"]
    [weights] = [f for f in listing["siblings"] if f["rfilename"] == "model.safetensors"]
    if where == "commit":
        listing["sha"] = value
    elif where == "sha256":
        weights["lfs"]["sha256"] = value
    elif where == "blob":
        config["blobId"] = value
    elif where == "size":
        weights["size"] = value
    elif where == "name":
        config["rfilename"] = value
    elif where == "more":
        listing["siblings"].append({"rfilename": value, "size": 1, "blobId": "a" * 40})
    return json.dumps(listing).encode()


@pytest.mark.slow(except_for="^commit")
@pytest.mark.parametrize("where", ["commit", "sha256", "blob"])
def test_digests_that_are_none_are_refused(hub, tmp_path, where):
    for value in [*BAD, *ODD]:
        hub.listed = listing_with(hub, where, value)
        result = download(hub, tmp_path)
        if value or where == "commit":
            assert isinstance(result, str), value
            assert "did not send a valid list of files" in result or "reached" in result
    assert not [path for _, path, _ in hub.log if "/resolve/" in path] or where == "sha256"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["name", "more"])
def test_names_that_no_preset_has_are_not_taken(hub, tmp_path, where):
    names = [f"{name}/config.json" for name in ("..", "/", "0_x/..", "../0_x", ".", "0_x\\..")]
    names += ["../config.json", "/etc/config.json", "config.json/../../x", "vocab.txt", "a\0b", ""]
    names += ["0_/../x", "modules.json/x", "\u0660_x/config.json", "model-1-of-1.safetensors/../x"]
    for name in [*names, *ODD]:
        hub.listed = listing_with(hub, where, name)
        download(hub, tmp_path)


@pytest.mark.slow
def test_sizes_that_are_wrong_are_noticed(hub, tmp_path):
    right = len(FILES["model.safetensors"])
    for size in [right - 1, right + 1, 1, 10**6, 2**62, 2**70, -1, 1.5, "7", True, None, [], {}]:
        hub.listed = listing_with(hub, "size", size)
        assert isinstance(download(hub, tmp_path), str), size


@pytest.mark.slow(except_for="^ETag")
@pytest.mark.parametrize("name", HEADERS)
def test_what_comes_with_a_file_names_no_path(hub, tmp_path, name):
    for value in HEADERS[name]:
        hub.headers = {name: value}
        download(hub, tmp_path)
    hub.headers = {}
    assert (download(hub, tmp_path)).name == COMMIT


@pytest.mark.slow(except_for="^listing-headers0")
@pytest.mark.parametrize("headers", [{"Retry-After": "100000"}, {"RateLimit": '"api";r=0;t=99999'}])
@pytest.mark.parametrize("where", ["listing", "file"])
def test_a_wait_that_the_server_asks_for_is_bounded(hub, tmp_path, headers, where):
    hub.headers = headers
    if where == "listing":
        hub.statuses = [429] * 100
    else:
        hub.fail["model.safetensors"] = 100
    result = download(hub, tmp_path)
    assert "within 2 seconds" in result or "429" in result or "503" in result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_drips_or_breaks_off_is_given_up(hub, tmp_path, name):
    hub.cut[name] = 100
    assert "download failed" in download(hub, tmp_path)
    hub.cut = {}
    hub.wrong[name] = 100
    assert "does not match its checksum" in download(hub, tmp_path)
    hub.wrong = {}
    assert isinstance(download(hub, tmp_path), pathlib.Path)


@pytest.mark.slow
def test_nothing_is_written_where_nothing_is_missing(hub, tmp_path):
    """So that a cache may be read-only."""
    global WRITTEN
    folder = download(hub, tmp_path)
    WRITTEN = []
    try:
        assert download_from_hugging_face("hf://org/model") == folder
    finally:
        written, WRITTEN = WRITTEN, None
    assert not [path for path in written if str(tmp_path) in path]


@pytest.mark.slow(except_for="^blob-pipe")
@pytest.mark.skipif(os.name != "posix", reason="pipes and links are made")
@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "link to nothing"])
@pytest.mark.parametrize("which", ["blob", "part", "pointer"])
def test_a_cache_with_odd_things_is_refused_or_mended(hub, tmp_path, kind, which):
    folder = download(hub, tmp_path)
    mine = tmp_path / "repository" / "mine"
    mine.write_text("mine")
    for name in FILES:
        pointer = folder / name
        blob = pointer.resolve()
        path = {"blob": blob, "part": blob.with_name(f"{blob.name}.part"), "pointer": pointer}[
            which
        ]
        blob.unlink()
        if which == "part":
            pointer.unlink()
        else:
            path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(mine if kind == "link" else tmp_path / "repository" / "nowhere")
        begun = time.monotonic()
        try:
            download_from_hugging_face("hf://org/model")
        except (ValueError, OSError) as error:
            assert str(path.name) in str(error) or "download failed" in str(error)
        assert time.monotonic() - begun < 20
        assert mine.read_text() == "mine"
        assert not (tmp_path / "repository" / "nowhere").exists()
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        folder = download_from_hugging_face("hf://org/model")
        assert (folder / name).read_bytes() == FILES[name]


@pytest.mark.slow(except_for=r"^\.\.$")
@pytest.mark.parametrize("revision", ["..", "a/../../x", "a//b", "./x", "refs/../../x", "a/."])
def test_a_revision_is_no_path(hub, revision):
    with pytest.raises(ValueError, match="hf://"):
        download_from_hugging_face(f"hf://org/model@{revision}")
    assert hub.log == []
