"""A full disk and a kill: what was there stays, nothing half-made is left, the error says so."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from safetensors import SafetensorError

import encoder_zoo as ez
from encoder_zoo.presets.files.atomic import FolderKind, replace_file, replace_folder

KIND = FolderKind("notes", lambda manifest: True)
TEXTS = ["a good film", "a bad film"]


@pytest.fixture(scope="module")
def classifier():
    return ez.SequenceClassifier.from_preset("bert_nano_en_uncased", labels=["no", "yes"])


@pytest.fixture
def large(classifier):
    """A classifier whose weights have more than a small disk holds."""
    backbone = ez.BertBackbone(
        30_000, num_layers=1, num_heads=1, hidden_dim=64, intermediate_dim=16, pooler=True
    )
    tokenizer = classifier.preprocessor.tokenizer
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer)
    return ez.SequenceClassifier(backbone, preprocessor, labels=["no", "yes"])


@pytest.mark.slow
def test_an_export_on_a_full_disk_leaves_the_old_one(small_disk, large):
    folder = small_disk / "served" / "1"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_text("old")
    with pytest.raises(OSError, match=f"disk is full: {folder}"):
        large.export(folder)
    assert (folder / "saved_model.pb").read_text() == "old"
    assert [path.name for path in folder.parent.iterdir()] == ["1"]


@pytest.mark.slow
def test_a_backup_on_a_full_disk_is_named(small_disk, large):
    backup = ez.BackupAndRestore(small_disk / "backup")
    with pytest.raises(OSError, match=r"disk is full: .*epoch-000001"):
        large.fit(TEXTS, ["no", "yes"], callbacks=[backup], verbose=0)
    assert not list((small_disk / "backup").iterdir())


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.ResourceExhaustedError(None, None, "x.data-0; No space left on device"),
        SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        ),
        OSError("Can't write data (file write failed: errno = 28, error message = 'No space')"),
        OSError(122, "Disk quota exceeded"),
    ],
    ids=["TensorFlow", "safetensors", "HDF5", "quota"],
)
def test_whatever_library_finds_the_disk_full(tmp_path, error):
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    for target, change in (
        ("folder", lambda path: replace_folder(path, KIND)),
        ("file", replace_file),
        ("new", lambda path: replace_folder(path, KIND)),
    ):
        expected = f"The disk is full: {tmp_path / target} was not saved."
        with pytest.raises(OSError, match=expected), change(tmp_path / target):
            raise error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(tf.errors.InvalidArgumentError), replace_folder(tmp_path / "folder", KIND):
        raise tf.errors.InvalidArgumentError(None, None, "no such node")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="elsewhere no process can be asked")
def test_what_killed_processes_left_is_cleared_away(tmp_path):
    program = """
import os, signal, sys
from encoder_zoo.presets.files.atomic import FolderKind, replace_folder
with replace_folder(sys.argv[1], FolderKind("notes", bool)) as new:
    (new / "part").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    for name in ("preset", "pre[s]et"):
        subprocess.run([sys.executable, "-c", program, str(tmp_path / name)], check=False)
    alive = tmp_path / f".preset.saving-{platform.node()}-{os.getppid()}-abc"
    elsewhere = tmp_path / ".preset.saving-other-1-abc"
    for folder in (alive, elsewhere):
        folder.mkdir()
    assert len(list(tmp_path.iterdir())) == 4
    for name in ("preset", "pre[s]et"):
        with replace_folder(tmp_path / name, KIND) as new:
            (new / "part").write_text("whole")
    kept = {"preset", "pre[s]et", alive.name, elsewhere.name}
    assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.mark.slow
def test_an_export_to_one_file_replaces_it_whole(classifier, tmp_path, monkeypatch):
    import keras

    def export(model, path, *args, **kwargs):
        with open(path, "wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keras.Model, "export", export)
    (tmp_path / "model.tflite").write_text("old")
    with pytest.raises(OSError, match=r"disk is full: .*model.tflite"):
        classifier.export(tmp_path / "model.tflite", "litert")
    assert (tmp_path / "model.tflite").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model.tflite"]
    np.testing.assert_equal(len(classifier.classify(TEXTS)), 2)
