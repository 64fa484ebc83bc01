"""Messages about exports, `for_cpu` and many texts advise what works: they are followed here."""

import contextlib
import json
import shutil
from unittest import mock

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from small_tasks import BERT, TEXTS, make, new, preprocessor

import encoder_zoo as ez
from encoder_zoo.testing import tiny


@pytest.mark.slow
def test_litert_quantizes_itself(tmp_path):
    classifier = new("SequenceClassifier", labels=["a", "b"])
    again = new("SequenceClassifier", labels=["a", "b"])
    classifier.quantize("int8", filters="logits")
    with pytest.raises(ValueError, match=r"quantize.*tf\.lite\.Optimize\.DEFAULT"):
        classifier.export(tmp_path / "m.tflite", "litert")
    again.export(tmp_path / "m.tflite", "litert", optimizations=[tf.lite.Optimize.DEFAULT])
    assert (tmp_path / "m.tflite").exists()


@pytest.mark.slow
def test_exports_have_a_preprocessor(tmp_path):
    backbone = tiny.backbone(BERT, pooler=True)
    with pytest.raises(ValueError, match="preprocessor"):
        ez.SequenceClassifier(backbone, labels=["a", "b"]).export(tmp_path / "1")
    own = preprocessor("SequenceClassifier")
    ez.SequenceClassifier(backbone, own, labels=["a", "b"]).export(tmp_path / "1")
    assert (tmp_path / "1" / "saved_model.pb").exists()


def advice_of(export) -> str:
    """Return the error of an export on another backend.

    The backend is only said to be another; presets of one open on another in test_package.py.
    """
    patched = mock.patch.object(keras.config, "backend", lambda: "jax")
    with patched, pytest.raises(ValueError, match="pip install tensorflow") as error:
        export()
    assert "jax" in str(error.value) and "KERAS_BACKEND=tensorflow" in str(error.value)
    return str(error.value)


def follow(advice: str, folder) -> None:
    """Run the Python code that follows the first line."""
    with contextlib.chdir(folder):
        exec(advice.partition("\n")[2].replace("    ", ""), {})


@pytest.mark.slow
def test_tasks_are_exported_on_tensorflow(tmp_path):
    task = new("SequenceClassifier", labels=["a", "b"])
    advice = advice_of(lambda: task.export(tmp_path / "1"))
    assert "ez.SequenceClassifier.from_preset('my_preset').export(" in advice
    task.save_to_preset(tmp_path / "my_preset")
    follow(advice, tmp_path)
    assert (tmp_path / "1" / "saved_model.pb").exists()


@pytest.mark.slow
def test_zero_shot_classifiers_are_exported_on_tensorflow(tmp_path):
    task = new("SequenceClassifier", labels=["contradiction", "neutral", "entailment"])
    zero_shot = ez.ZeroShotClassifier(task)
    advice = advice_of(lambda: zero_shot.export(tmp_path / "2", labels=["x", "y"]))
    task.save_to_preset(tmp_path / "my_preset")
    follow(advice, tmp_path)
    assert (tmp_path / "2" / "saved_model.pb").exists()


@pytest.mark.slow
def test_indexes_are_exported_on_tensorflow(tmp_path):
    embedder = make("TextEmbedder")
    index = embedder.index(TEXTS)
    advice_of(lambda: index.export(tmp_path / "3"))
    embedder.save_to_preset(tmp_path / "embedder")
    index.save(tmp_path / "index")
    loaded = ez.TextEmbedder.from_preset(tmp_path / "embedder")
    ez.VectorIndex.load(tmp_path / "index", loaded).export(tmp_path / "3")
    assert (tmp_path / "3" / "saved_model.pb").exists()


@pytest.mark.slow
def test_for_cpu_in_float32(tmp_path):
    new("SequenceClassifier", labels=["a", "b"]).save_to_preset(tmp_path)
    half = ez.SequenceClassifier.from_preset(tmp_path, dtype="mixed_bfloat16")
    with pytest.raises(ValueError, match=r"bfloat16.*for_cpu.*dtype='float32'"):
        half.for_cpu()
    whole = ez.SequenceClassifier.from_preset(tmp_path, dtype="float32")
    fast = whole.for_cpu()
    with pytest.raises(ValueError, match=r"for_cpu.*fit"):
        fast.fit(TEXTS, ["a", "b", "a", "b"])
    whole.fit(TEXTS, ["a", "b", "a", "b"], verbose=0)
    assert whole.for_cpu().classify("one")


@pytest.mark.slow
def test_columns_of_batches_are_kept():
    answers = ez.BatchAnswers(new("SequenceClassifier", labels=["a", "b"]))
    batch = {"text": TEXTS, "label": [1, 2, 3, 4]}
    with pytest.raises(ValueError, match=r"'label'.*label, score"):
        answers(batch)
    assert answers({"text": TEXTS}).column_names == ["text", "label", "score"]
    batch["true"] = batch.pop("label")
    assert answers(batch)["true"].to_pylist() == [1, 2, 3, 4]


def write_rows(file, *numbers) -> None:
    rows = ({"text": text, "id": number} for text, number in zip(TEXTS, numbers, strict=False))
    file.write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.slow
def test_answers_of_another_run_are_kept(tmp_path):
    classifier = new("SequenceClassifier", labels=["a", "b"])
    write_rows(tmp_path / "a.jsonl", 1, 2)
    ez.answer_files(classifier, tmp_path / "a.jsonl", tmp_path / "out", keep=["id"], verbose=0)
    with pytest.raises(ValueError, match=r"out.*keep was \['id'\].*\[\] now"):
        ez.answer_files(classifier, tmp_path / "a.jsonl", tmp_path / "out", verbose=0)
    ez.answer_files(classifier, tmp_path / "a.jsonl", tmp_path / "again", verbose=0)
    shutil.rmtree(tmp_path / "out")
    ez.answer_files(classifier, tmp_path / "a.jsonl", tmp_path / "out", verbose=0)


@pytest.mark.slow(except_for=r"^1180591620717411303424-64$")
@pytest.mark.parametrize(("number", "limit"), [(2**70, "64"), (2**60 + 1, r"2\*\*53")])
def test_large_integers_are_kept_as_texts(number, limit, tmp_path):
    classifier, file = new("SequenceClassifier", labels=["a", "b"]), tmp_path / "a.jsonl"
    write_rows(file, 0.5, number)
    with pytest.raises(ValueError, match=rf"a\.jsonl, row 1.*'id' is {number}.*{limit}"):
        ez.answer_files(classifier, file, tmp_path / "out", keep=["id"], verbose=0)
    write_rows(file, "0.5", str(number))
    [answers] = ez.answer_files(classifier, file, tmp_path / "out", keep=["id"], verbose=0)
    assert pd.read_parquet(answers)["id"].tolist() == ["0.5", str(number)]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["litert", "openvino"])
def test_a_single_head_is_exported_to_other_formats(format, tmp_path):
    pytest.importorskip({"litert": "ai_edge_litert"}.get(format, format))
    own = preprocessor("SequenceClassifier")
    backbone = tiny.backbone(BERT, num_heads=1)
    model = ez.SequenceClassifier(backbone, own, labels=["a", "b"])
    with pytest.raises(ValueError, match=f"num_heads.*'{format}'"):
        model.export(tmp_path / "m", format="onnx")
    assert not (tmp_path / "m").exists()
    model.export(tmp_path / "m", format=format)
    opened = ez.open_export(tmp_path / "m")
    np.testing.assert_allclose(opened.predict(TEXTS), model.predict(TEXTS), atol=1e-5)
