"""The service as its command starts it, its guide's container, and Triton's configuration."""

import ast
import concurrent.futures
import contextlib
import importlib.metadata
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from paths import ROOT
from processes import free_addresses
from served import httpx, serve, wait_until
from small_tasks import make
from uvicorn.protocols.http.h11_impl import H11Protocol

import encoder_zoo as ez
from encoder_zoo.serving import __main__, create_app, open_folders

GUIDE = (ROOT / "guides" / "http_service.py").read_text("utf-8")
PRODUCTION = (ROOT / "docs" / "pages" / "topics" / "production.md").read_text("utf-8")
# The guide's text is in docstrings, where a backslash is written twice.
TEXTS = [n.value for n in ast.walk(ast.parse(GUIDE)) if isinstance(n, ast.Constant)]
[DOCKERFILE] = re.findall(r"```dockerfile\n(.*?)```", "".join(map(str, TEXTS)), re.S)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of the guide, without its training."""
    folder = tmp_path_factory.mktemp("models")
    ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment").save_to_preset(
        folder / "reviews"
    )
    embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
    embedder.save_to_preset(folder / "vectors")
    embedder.index(["A cat.", "Tax law."]).save(folder / "notes")
    return folder


@contextlib.contextmanager
def started(command, url):
    """Start the service in a process; return the process when it is ready."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def is_ready():
        assert process.poll() is None, process.stderr.read()
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/health").status_code == 200
        return False

    try:
        wait_until(is_ready, seconds=600)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_command_limits_headers_whatever_is_installed(monkeypatch):
    """httptools has no such limit, and uvicorn uses it if it is installed."""
    given = {}
    monkeypatch.setattr(__main__, "open_app", lambda *arguments: None)
    monkeypatch.setattr(__main__.uvicorn, "run", lambda app, **options: given.update(options))
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    __main__.main(["folder"])
    assert issubclass(given["http"], H11Protocol)


@pytest.mark.parametrize(
    "option",
    [
        ["--port", "99999"],
        ["--port", "-1"],
        ["--port", "http"],
        ["--max-batch-tokens", "-3"],
        ["--max-queue-texts", "0"],
        ["--max-wait", "nan"],
        ["--body-timeout", "inf"],
        ["--max-texts", "5000"],  # more than max-queue-texts
        ["--max-texts", "9" * 30],
    ],
    ids=" ".join,
)
def test_a_bad_argument_ends_the_command_with_its_name(option, capsys):
    with pytest.raises(SystemExit) as ended:
        __main__.main(["folder", *option])
    last = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert "error: " in last and option[0].strip("-") in last.replace("_", "-")


HYBRID = {"format": 1, "task": "hybrid_index", "files": {"../a": {"bytes": 1, "sha256": "a"}}}
MANIFESTS = {
    "no JSON": "[[[",
    "no text": b"\xff\xfe\x00",
    "nested": "[" * 10**5,
    "a list": "[]",
    "no task": '{"format": 1, "files": {}}',
    "a task of a wrong type": '{"format": 1, "task": ["export"], "files": {}}',
    "an unknown task": '{"format": 1, "task": "odd", "files": {}}',
    "an unknown index": '{"format": 1, "task": "odd_index", "files": {}}',
    "another format": '{"format": 99, "task": "export", "files": {}}',
    "no indexes": '{"format": 1, "task": "hybrid_index", "files": {}}',
    "an index of itself": json.dumps(HYBRID | {"indexes": [".."]}),
    "an empty export": '{"format": 1, "task": "export", "files": {}}',
}


def find_error(*sources):
    """Return the message with which the command ends before it serves anything."""
    with pytest.raises(SystemExit) as ended:
        __main__.main(list(map(str, sources)))
    assert str(ended.value.code).startswith("error: ")  # Python prints it and exits with status 1
    return ended.value.code


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_a_bad_manifest_ends_the_command_with_its_folder(manifest, tmp_path):
    content = manifest if isinstance(manifest, bytes) else manifest.encode()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "encoder_zoo.json").write_bytes(content)
    assert str(tmp_path / "bad") in find_error(tmp_path / "bad")


def test_a_bad_folder_ends_the_command_with_its_name(folders, tmp_path):
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        assert name in find_error(tmp_path / name)
    assert "'reviews'" in find_error(folders / "reviews", folders / "vectors" / ".." / "reviews")
    assert "embedder" in find_error(folders / "notes")
    shutil.copytree(folders / "reviews", tmp_path / "changed")
    with open(tmp_path / "changed" / "model.safetensors", "ab") as file:
        file.write(b"x")
    assert "model.safetensors" in find_error(tmp_path / "changed")
    (tmp_path / "changed" / "model.safetensors").unlink()
    assert "model.safetensors" in find_error(tmp_path / "changed")
    for source in ("list_presets=a", "VectorIndex=a", "Limits=a"):  # not the name of a task
        assert source in find_error(source)


@pytest.mark.parametrize("package", ["uvicorn", "starlette"])
def test_a_missing_package_ends_the_command_with_its_name(package, folders):
    command = f"""
import sys
sys.modules[{package!r}] = None  # as if it was not installed
sys.argv = ["serving", {str(folders / "reviews")!r}]
import runpy
runpy.run_module("encoder_zoo.serving", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", command], stderr=subprocess.PIPE, text=True)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert last.startswith("error: ") and package in last and "encoder-zoo[serve]" in last


def test_a_model_is_named_after_its_folder(folders, monkeypatch):
    reviews = folders / "reviews"
    monkeypatch.chdir(reviews)
    for source in (".", f"{reviews}/", f"{reviews}/../reviews"):
        models, _ = open_folders([source])
        assert list(models) == ["reviews"]


def instructions():
    """Return the instructions of the guide's Dockerfile."""
    lines = DOCKERFILE.replace("\\\n", " ").splitlines()
    return [line.split(maxsplit=1) for line in lines]


@pytest.mark.slow
def test_folders_are_opened_by_what_they_hold(folders, tmp_path):
    sources = [str(folders / name) for name in ("notes", "reviews", "vectors")]
    models, indexes = open_folders(sources)
    kinds = {name: type(model).__name__ for name, model in (models | indexes).items()}
    assert kinds == {
        "reviews": "SequenceClassifier",
        "vectors": "TextEmbedder",
        "notes": "VectorIndex",
    }
    models, _ = open_folders([f"TextEmbedder={folders / 'reviews'}"])
    assert type(models["reviews"]) is ez.TextEmbedder
    with pytest.raises(ValueError, match="Two folders.*reviews"):
        open_folders([str(folders / "reviews"), "Classifier=a/reviews"])
    with pytest.raises(ValueError, match="the embedder"):
        open_folders([str(folders / "notes"), str(folders / "reviews")])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_folders([str(tmp_path)])


@pytest.mark.slow
def test_hybrid_indexes_find_the_embedders_of_their_parts(folders, tmp_path):
    pytest.importorskip("bm25s")
    texts = ["A cat.", "Tax law."]
    embedder = ez.TextEmbedder.from_preset(folders / "vectors")
    words = ez.BM25Index(texts)
    ez.HybridIndex([embedder.index(texts), words]).save(tmp_path / "both")
    words.save(tmp_path / "words")
    sources = [tmp_path / "both", tmp_path / "words", folders / "vectors"]
    _, indexes = open_folders(map(str, sources))
    for index in indexes.values():
        assert index.search("Tax law.", top_k=1)[0]["text"] == "Tax law."


def test_the_container_installs_and_copies_what_its_command_needs(folders):
    steps = instructions()
    assert [name for name, _ in steps] == (
        "FROM COPY RUN COPY RUN USER EXPOSE HEALTHCHECK CMD".split()
    )
    text = dict(steps)
    version = tuple(map(int, re.findall(r"python:(\d+)\.(\d+)", text["FROM"])[0]))
    assert f"Programming Language :: Python :: {version[0]}.{version[1]}" in (
        importlib.metadata.metadata("encoder-zoo").get_all("Classifier")
    )
    install = shlex.split(steps[2][1])
    assert install[:2] == ["pip", "install"] and install[-1] == "encoder-zoo[serve,tensorflow]"
    command = json.loads(text["CMD"])
    assert {path.removeprefix("/models/") for path in command if path.startswith("/models/")} == {
        path.name for path in folders.iterdir()
    }
    assert command[command.index("--port") + 1] == text["EXPOSE"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")  # of Keras's export
def test_exports_answer_as_their_tasks(folders, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    tasks = {
        "reviews": ez.SequenceClassifier.from_preset(folders / "reviews"),
        "pairs": make("Reranker"),
    }
    for name, task in tasks.items():
        task.export(tmp_path / name, format="onnx")
    models, _ = open_folders([str(tmp_path / name) for name in tasks])
    assert all(isinstance(model, ez.OpenedExport) for model in models.values())
    with serve(create_app(models)) as client:
        [found] = client.post("/classify", json={"texts": "I love it."}).json()["answers"]
        [expected] = tasks["reviews"].classify(["I love it."])
        assert found["label"] == expected["label"]
        assert found["score"] == pytest.approx(expected["score"], abs=1e-5)
        ranked = client.post("/rerank", json={"query": "one", "texts": ["two", "three"]}).json()
        scores = {
            row["index"]: row["score"] for row in tasks["pairs"].rank("one", ["two", "three"])
        }
        assert {row["index"]: row["score"] for row in ranked} == pytest.approx(scores, abs=1e-5)


@pytest.mark.slow
def test_the_containers_command_and_its_health_check(folders):
    text = dict(instructions())
    [address] = free_addresses(1)
    port = address.split(":")[1]

    def here(command):
        replaced = [part.replace("/models", str(folders)).replace("8000", port) for part in command]
        assert replaced[0] == "python"
        return [sys.executable, *replaced[1:]]

    check = here(json.loads(text["HEALTHCHECK"].removeprefix("CMD ")))
    assert subprocess.run(check, stderr=subprocess.DEVNULL).returncode != 0
    with started(here(json.loads(text["CMD"])), f"http://127.0.0.1:{port}") as process:
        assert subprocess.run(check).returncode == 0
        found = httpx.post(f"http://{address}/search", json={"query": "law", "top_k": 1}).json()
        assert found["answers"][0][0]["text"] == "Tax law."
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_sigterm_under_load_answers_what_was_accepted(folders):
    [address] = free_addresses(1)
    command = [sys.executable, "-m", "encoder_zoo.serving", str(folders / "reviews"), "--port"]
    texts = [f"{i} {'nice ' * 50}" for i in range(60)]
    expected = ez.SequenceClassifier.from_preset(folders / "reviews").classify(texts)

    def ask(_):
        return httpx.post(f"http://{address}/classify", json={"texts": texts}, timeout=60)

    with (
        started([*command, address.split(":")[1]], f"http://{address}") as process,
        concurrent.futures.ThreadPoolExecutor(20) as pool,
    ):
        asked = [pool.submit(ask, i) for i in range(20)]
        queue = re.compile(r"^encoder_zoo_queue_texts (.*)$", re.M)
        metrics = f"http://{address}/metrics"
        wait_until(lambda: float(queue.findall(httpx.get(metrics).text)[0]) >= 10 * len(texts))
        process.send_signal(signal.SIGTERM)
        responses = [future.result() for future in asked if not is_refused(future)]
        process.wait(60)
        assert "Traceback" not in process.stderr.read()
    answered = [response.json()["answers"] for response in responses if response.is_success]
    assert len(answered) >= 10 and {response.status_code for response in responses} <= {200, 503}
    for answers in answered:
        assert [a["label"] for a in answers] == [a["label"] for a in expected]
        np.testing.assert_allclose(
            [a["score"] for a in answers], [a["score"] for a in expected], atol=1e-5
        )
    with pytest.raises(httpx.ConnectError):
        ask(0)


@pytest.mark.slow
def test_sigterm_in_the_warm_up_ends_the_service(folders):
    [address] = free_addresses(1)
    command = [sys.executable, "-m", "encoder_zoo.serving", *map(str, folders.iterdir()), "--port"]
    process = subprocess.Popen([*command, address.split(":")[1]], stderr=subprocess.PIPE, text=True)

    def find_status():
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://{address}/health").json()["status"]

    try:
        wait_until(lambda: find_status() or process.poll() is not None, seconds=600)
        assert find_status() == "warming up"
        process.send_signal(signal.SIGTERM)
        _, printed = process.communicate(timeout=60)
        assert "Traceback" not in printed and "shutdown complete" in printed
    finally:
        process.kill()


@pytest.mark.slow
def test_a_port_in_use_ends_the_service(folders):
    command = [sys.executable, "-m", "encoder_zoo.serving", str(folders / "reviews"), "--port"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run([*command, port], stderr=subprocess.PIPE, text=True, timeout=600)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr and port in done.stderr


def is_refused(future):
    """Return whether a request was too late: its connection was closed without an answer."""
    return isinstance(future.exception(), httpx.TransportError)


@pytest.mark.slow
@pytest.mark.peers
def test_the_openai_client_of_the_guide(folders):
    pytest.importorskip("openai")
    [address] = free_addresses(1)
    port = address.split(":")[1]
    command = [
        sys.executable,
        "-m",
        "encoder_zoo.serving",
        str(folders / "vectors"),
        "--port",
        port,
    ]
    [code] = [c for c in re.findall(r"```python\n(.*?)```", GUIDE, re.S) if "openai" in c]
    with started(command, f"http://{address}"):
        names = {}
        exec(code.replace("127.0.0.1:8000", address), names)
        embedder = ez.TextEmbedder.from_preset(folders / "vectors")
        expected = embedder.embed(["A cat.", "Tax law."], dim=64)
        np.testing.assert_allclose(names["vectors"], expected, atol=1e-5)
        openai, client = names["openai"], names["client"]
        with pytest.raises(openai.NotFoundError, match="vectors"):
            client.embeddings.create(model="gpt", input="a")
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            client.embeddings.create(model="vectors", input=[1, 2])
        assert caught.value.param == "input"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")  # of Keras's export
def test_tritons_configuration_is_that_of_the_onnx_file(folders, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    [config] = [c for c in re.findall(r"```text\n(.*?)```", PRODUCTION, re.S) if "backend" in c]
    [file] = re.findall(r'classifier\.export\("(models/reviews/1/model\.onnx)"', PRODUCTION)
    assert f"models/{re.findall('^name: .(.*).$', config, re.M)[0]}/1/model.onnx" == file
    ez.SequenceClassifier.from_preset(folders / "reviews").export(
        tmp_path / "model.onnx", format="onnx"
    )
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    types = {"tensor(int32)": "TYPE_INT32", "tensor(float)": "TYPE_FP32"}
    described = re.findall(r'name: "(\w+)", data_type: (\w+), dims: \[ (-?\d+) \]', config)
    expected = [
        (put.name, types[put.type], str(put.shape[1] if isinstance(put.shape[1], int) else -1))
        for put in [*session.get_inputs(), *session.get_outputs()]
    ]
    assert sorted(described) == sorted(expected)
