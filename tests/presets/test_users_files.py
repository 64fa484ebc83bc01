"""What lies in a folder that we write to stays as it is: every writer x what may lie there.

Writers: see WRITERS. What lies there: files, folders, links, pipes, read-only ones, and files and
folders with the names of ours.
"""

import logging
import os
import pathlib
import shutil
import stat

import keras
import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.extras.display.picture import Picture
from encoder_zoo.presets.files import atomic
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.tasks.serving import export, model_files
from encoder_zoo.tasks.training.callbacks import BackupFolder, Position

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes are made")


@pytest.fixture(scope="module")
def parts(tiny):
    """Models that are made once."""
    bert = ez.BertBackbone.family
    return {
        "classifier": tiny.task(bert, "SequenceClassifier"),
        "adapted": _adapted(tiny.task(bert, "SequenceClassifier")),
        "embedder": tiny.task(bert, "TextEmbedder"),
    }


def _adapted(task):
    task.enable_lora(1)
    return task


def _write_saved_model(module, folder, signatures) -> None:
    """As TensorFlow does, in no time."""
    folder = pathlib.Path(folder)
    (folder / "variables").mkdir(parents=True)
    (folder / "assets").mkdir()
    for name in ("saved_model.pb", "fingerprint.pb", "variables/variables.index"):
        (folder / name).write_bytes(os.urandom(8))


def _write_model(task, path, *args, **options) -> None:
    pathlib.Path(path).write_bytes(os.urandom(8) + model_files.DEFAULT_DESCRIPTION.encode())


def save_backup(parts, folder):
    backups = BackupFolder(folder)
    path = backups.write(Position(1, 0, 7), {"model.0": np.random.rand(3)}, "t", {"a": 1}, [])
    backups.remove_all_but(path)


def save_and_remove_backup(parts, folder):
    save_backup(parts, folder)
    BackupFolder(folder).remove()


def answer(parts, folder):
    texts = folder.with_name("texts.txt")
    texts.write_text("a b\nc\n")
    ez.answer_files(parts["classifier"], texts, folder, shard_rows=1, verbose=0)


def write_corpus(parts, folder):
    tokenizer = parts["classifier"].preprocessor.tokenizer
    ez.PretrainingCorpus.from_documents(folder, [["a b"], ["c d"]], tokenizer, 1, verbose=0)


WRITERS = {
    "preset": lambda p, f: p["classifier"].save_to_preset(f, shard_bytes=9000),
    "backbone": lambda p, f: p["classifier"].backbone.save_to_preset(f),
    "modules": lambda p, f: p["embedder"].save_to_preset(f),
    "adapters": lambda p, f: p["adapted"].save_adapters(f),
    "index": lambda p, f: p["embedder"].index(["a b", "c"]).save(f),
    "bm25": lambda p, f: ez.BM25Index(["a b", "c"]).save(f),
    "hybrid": lambda p, f: ez.HybridIndex([ez.BM25Index(["a b"]), ez.BM25Index(["a b"])]).save(f),
    "backup": save_backup,
    "backup, removed": save_and_remove_backup,
    "answers": answer,
    "corpus": write_corpus,
    "export": lambda p, f: p["classifier"].export(f),
    "onnx": lambda p, f: p["classifier"].export(f / "model.onnx", "onnx"),
    "litert": lambda p, f: p["classifier"].export(f / "model.tflite", "litert"),
    "page": lambda p, f: Picture(f"<b>{os.urandom(4).hex()}</b>", "b").save(f / "page.html"),
}
WRITES_FILES = ("onnx", "litert", "page")  # into a folder that the caller made
REFUSALS = (ValueError, OSError)


@pytest.fixture
def write(request, parts, monkeypatch):
    """Calls a writer; exports are those of stubs."""
    monkeypatch.setattr(atomic, "_sync_to_disk", lambda folder: None)  # it is slow
    monkeypatch.setattr(tf.saved_model, "save", _write_saved_model)
    monkeypatch.setattr(
        export, "write_warm_up", lambda folder, _: (folder / "assets.extra").mkdir()
    )
    monkeypatch.setattr(keras.Model, "export", _write_model)
    for name in ("_register_tf2onnx_operations", "_describe_onnx", "_describe_litert"):
        monkeypatch.setattr(model_files, name, lambda *_: None)
    for name in ("_make_text_function", "_make_id_function"):
        monkeypatch.setattr(export, name, lambda *_: None)
    monkeypatch.setattr(export, "_make_warm_up_requests", lambda *_: [])
    return lambda folder: WRITERS[request.param](parts, folder)


writers = pytest.mark.parametrize("write", WRITERS, indirect=True)


@pytest.mark.slow
@pytest.mark.parametrize("write", ["export"], indirect=True)
def test_tensorflow_logs_after_an_export_as_before(write, tmp_path):
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        write(tmp_path / "served")
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)


def state(path: pathlib.Path) -> dict[str, tuple]:
    """Everything in a folder: kind, permissions, and content."""
    found = {}
    for parent, folders, files in os.walk(path):
        for inner in (pathlib.Path(parent, name) for name in [*folders, *files]):
            mode = inner.lstat().st_mode
            content = None
            if stat.S_ISLNK(mode):
                content = os.readlink(inner)
            elif stat.S_ISREG(mode):
                content = inner.read_bytes()
            found[inner.relative_to(path).as_posix()] = (mode, content)
    return found


def attempt(write, folder) -> bool:
    """Whether a writer wrote, and did not refuse."""
    try:
        write(folder)
    except REFUSALS as error:
        assert str(error)
        return False
    return True


def test_the_table_has_every_writer():
    """`Task` and `Picture` have no further method that writes to a path."""
    methods = {n for n in dir(Task) if n.startswith(("save", "export", "push"))}
    ours = {"save_to_preset", "save_pretrained", "save_adapters", "push_to_hub"}  # one is refused
    assert methods - set(dir(keras.Model)) == ours


@pytest.mark.slow(only="^(backbone|bm25|index|preset)")
@writers
def test_other_things_in_the_folder_stay(write, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file.txt").write_text("outside")
    folder = tmp_path / "folder"
    for turn in range(3):  # the first time into a folder that holds nothing of ours
        mine = folder / f"mine_{turn}"
        (mine / "deep").mkdir(parents=True)
        (mine / "empty").mkdir()
        for name in ("notes.txt", "deep/model.bin", ".hidden", "read_only.txt"):
            (mine / name).write_text("mine")
        (mine / "read_only.txt").chmod(0o444)
        (mine / "to_file").symlink_to("../../outside/file.txt")
        (mine / "to_folder").symlink_to("../../outside")
        (mine / "to_nothing").symlink_to("nowhere")
        os.mkfifo(mine / "pipe")
        for path in (mine, *[p for p in mine.iterdir() if not p.name.startswith("deep")]):
            there = folder / f"{turn}_mine_{path.name}"  # at the top of the folder, too
            if path.is_symlink() or path.is_file():
                shutil.copy2(path, there, follow_symlinks=False)
        kept = {n: v for n, v in state(folder).items() if "mine_" in n}
        others = state(outside)
        attempt(write, folder)
        after = state(folder)
        assert {name: after.get(name) for name in kept} == kept
        assert state(outside) == others
    assert sorted(p.name for p in tmp_path.iterdir() if ".saving" in p.name) == []


def written_files(write, folder) -> list[str]:
    """The files that a writer makes."""
    folder.mkdir()
    write(folder)
    return [name for name, (mode, _) in state(folder).items() if stat.S_ISREG(mode)]


@pytest.mark.slow(
    only="^(empty-answers|file-(answers|index)|folder-modules|link to folder-(modules|preset))"
)
@writers
@pytest.mark.parametrize("there", ["file", "empty", "folder", "link", "link to folder", "pipe"])
def test_a_users_file_with_a_name_of_ours_stays(write, tmp_path, there):
    names = written_files(write, tmp_path / "first")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file.txt").write_text("outside")
    for i, name in enumerate(names):
        folder = tmp_path / f"folder_{i}"
        path = folder / name
        path.parent.mkdir(parents=True)
        if there in ("file", "empty"):
            path.write_text("" if there[0] == "e" else '{"mine": 1}')
        elif there == "folder":
            path.mkdir()
            (path / "mine.txt").write_text("mine")
        elif there == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(outside / "file.txt" if there == "link" else outside)
        before, others = state(folder), state(outside)
        attempt(write, folder)
        after = state(folder)
        mine = {n: v for n, v in before.items() if n == name or n.startswith(f"{name}/")}
        assert {n: after.get(n) for n in mine} == mine, name
        assert state(outside) == others, name


@pytest.mark.slow(only="-(preset|modules|index|answers)$")
@writers
@pytest.mark.parametrize("change", ["link", "read-only", "changed", "folder"])
def test_a_file_of_ours_that_became_a_users_is_kept_or_named(write, tmp_path, change, caplog):
    names = written_files(write, tmp_path / "first")
    for i, name in enumerate(names):
        folder, caplog_before = tmp_path / f"folder_{i}", len(caplog.records)
        folder.mkdir()
        write(folder)
        path, outside = folder / name, tmp_path / f"outside_{i}"
        if change == "link":
            os.replace(path, outside)
            path.symlink_to(outside)
        elif change == "read-only":
            path.chmod(0o444)
        elif change == "folder":
            path.unlink()
            path.mkdir()
            (path / "mine").write_text("mine")
        else:
            path.write_bytes(path.read_bytes() + b"\nmine")
        before = state(folder)
        content = outside.read_bytes() if change == "link" else None
        attempt(write, folder)
        after = state(folder)
        if change == "changed":
            said = " ".join(r.getMessage() for r in caplog.records[caplog_before:])
            kept = after.get(name) == before[name]
            assert kept or path.name in said or name.endswith(("page.html", ".onnx", ".tflite"))
        else:
            mine = {n: v for n, v in before.items() if n == name or n.startswith(f"{name}/")}
            assert {n: after.get(n) for n in mine} == mine, name
        assert content is None or outside.read_bytes() == content


@writers
@pytest.mark.parametrize("there", ["link", "broken link", "read-only"])
def test_a_folder_that_is_a_link_or_read_only_is_not_written_to(write, tmp_path, there, request):
    outside = tmp_path / "outside"
    if there != "broken link":
        outside.mkdir()
        write(outside)
    outside.mkdir(exist_ok=True)
    folder = tmp_path / "folder"
    if there == "read-only":
        folder = outside
        outside.chmod(0o555)
    else:
        folder.symlink_to("outside" if there == "link" else "nowhere")
    (tmp_path / "texts.txt").touch()  # which one writer reads
    before = state(outside), state(tmp_path).keys()
    wrote = attempt(write, folder)
    writer = request.node.callspec.params["write"]
    if writer in (*WRITES_FILES, "backup", "backup, removed"):
        return  # what they write has a path of its own, below
    assert not wrote
    assert (state(outside), state(tmp_path).keys()) == before
    outside.chmod(0o755)


@pytest.mark.slow
def test_a_folder_of_another_kind_is_not_written_over(parts, tmp_path):
    """An index where a preset is, and so on: each needs its own manifest."""
    kinds = ("preset", "index", "bm25", "answers", "corpus")
    for first in kinds:
        for second in kinds:
            if first == second or {first, second} == {"index", "bm25"}:
                continue
            folder = tmp_path / f"{first}_{second}"
            WRITERS[first](parts, folder)
            before = state(folder)
            attempt(lambda path, second=second: WRITERS[second](parts, path), folder)
            after = state(folder)
            assert {name: after.get(name) for name in before} == before, (first, second)
