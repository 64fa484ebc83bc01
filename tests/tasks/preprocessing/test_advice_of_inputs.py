"""Messages about texts, tables and labels advise what works: each is provoked, and followed."""

import pandas as pd
import pytest
import tensorflow as tf
from small_tasks import BERT, TEXTS, make, new, preprocessor

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

Y = ["a", "b", "a", "b"]


@pytest.mark.slow
def test_labels_are_given():
    with pytest.raises(ValueError, match=r"labels=.*num_classes.*fit"):
        new("SequenceClassifier").classify(TEXTS[0])
    for arguments in ({"labels": ["no", "yes"]}, {"num_classes": 2}):
        assert "label" in new("SequenceClassifier", **arguments).classify(TEXTS[0])


@pytest.mark.slow
def test_one_class_is_a_number_or_yes_or_no():
    with pytest.raises(ValueError, match=r"'multi_label.*'regression'"):
        new("SequenceClassifier", num_classes=1)
    for problem in ("regression", "multi_label_classification"):
        new("SequenceClassifier", num_classes=1, problem_type=problem)


@pytest.mark.slow
def test_rows_without_labels_are_dropped():
    x, y = TEXTS, ["a", None, "b", "a"]
    classifier = new("SequenceClassifier")
    with pytest.raises(ValueError, match=r"Row 1.*None.*x, y = "):
        classifier.fit(x, y, verbose=0)
    keep = [i for i, label in enumerate(y) if label is not None]
    classifier.fit([x[i] for i in keep], [y[i] for i in keep], verbose=0)
    assert classifier.labels == ["a", "b"]


@pytest.mark.slow
def test_missing_labels_of_datasets_are_dropped():
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, ["a", " ", "b", "a"]))
    classifier = new("SequenceClassifier", labels=["a", "b"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Row 1.*dataset\.filter"):
        classifier.fit(dataset.batch(4), verbose=0)
    dataset = dataset.filter(lambda x, y, *_: tf.reduce_all(tf.strings.strip(y) != ""))
    assert classifier.fit(dataset.batch(4), verbose=0).history["loss"]


@pytest.mark.slow
def test_missing_texts_are_dropped():
    table = pd.DataFrame({"text": ["one", None, "two"], "label": ["a", "b", "b"]})
    classifier = new("SequenceClassifier")
    with pytest.raises(ValueError, match=r"texts\[1\].*NaN.*row 1.*fillna"):
        classifier.fit(table["text"], table["label"], verbose=0)
    table = table.dropna(subset=["text"])
    classifier.fit(table["text"], table["label"], verbose=0)
    assert classifier.labels == ["a", "b"]


@pytest.mark.slow
def test_columns_of_labels_have_their_names():
    classifier = new("SequenceClassifier", labels=["a", "b"])
    table = pd.DataFrame({"b": [0, 1, 0, 1], "x": [1, 0, 1, 0]})
    with pytest.raises(ValueError, match=r"'b', 'x'.*'a', 'b'"):
        classifier.fit(TEXTS, table, verbose=0)
    y = table.rename(columns={"x": "a"})
    expected = classifier.evaluate(TEXTS, Y, verbose=0)
    assert classifier.evaluate(TEXTS, y, verbose=0) == expected
    assert classifier.evaluate(TEXTS, y[["a", "b"]].to_numpy(), verbose=0) == expected


@pytest.mark.slow
def test_columns_of_labels_are_passed():
    table = pd.DataFrame({"words of it": TEXTS, "mood": Y})
    classifier = new("SequenceClassifier")
    with pytest.raises(ValueError, match=r"'words of it', 'mood'.*fit\(x\["):
        classifier.fit(table, verbose=0)
    classifier.fit(table["words of it"], table["mood"], verbose=0)
    assert classifier.labels == ["a", "b"]


@pytest.mark.slow
def test_one_split_is_passed():
    splits = {"train": pd.DataFrame({"text": TEXTS, "label": Y})}
    splits["test"] = splits["train"]
    classifier = new("SequenceClassifier")
    with pytest.raises(ValueError, match=r"'train', 'test'.*fit\(x\['train'\]\)"):
        classifier.fit(splits, verbose=0)
    classifier.fit(splits["train"]["text"], splits["train"]["label"], verbose=0)


@pytest.mark.slow
def test_columns_of_texts_are_named():
    table = pd.DataFrame({"id": [1, 2], "a": ["one", "two"], "b": ["three", "four"]})
    classifier = new("SequenceClassifier", labels=["a", "b"])
    with pytest.raises(ValueError, match=r"'id', 'a', 'b'.*text_columns="):
        classifier.predict(table)
    own = preprocessor("SequenceClassifier", text_columns=["a", "b"])
    named = ez.SequenceClassifier(tiny.backbone(BERT, pooler=True), own, labels=["a", "b"])
    assert len(named.predict(table, verbose=0)) == 2
    numbered = table.assign(a=[7, 8])[["a", "b"]]
    with pytest.raises(ValueError, match=r"'a'.* 7.*text_columns="):
        classifier.predict(numbered)
    assert len(classifier.predict(numbered["b"], verbose=0)) == 2


@pytest.mark.slow
def test_surrogates_are_replaced():
    embedder, texts = make("TextEmbedder"), [*TEXTS, "a \ud800 b"]
    with pytest.raises(ValueError, match=r"documents\[4\].*character 2.*encode"):
        embedder.index(texts)
    embedder.index([text.encode("utf-8", "replace").decode() for text in texts])


def test_preprocessors_are_of_their_task():
    theirs = preprocessor("MaskedLM")
    with pytest.raises(TypeError, match=r"MaskedLMPreprocessor.*same tokenizer"):
        ez.SequenceClassifier(tiny.backbone(BERT, pooler=True), theirs)
    own = ez.SequenceClassifier.record.preprocessor_class(theirs.tokenizer)
    ez.SequenceClassifier(tiny.backbone(BERT, pooler=True), own)


@pytest.mark.slow
def test_long_texts_are_split(caplog):
    text = " ".join("abcdefgh" * 3)
    detector = make("ReplacedTokenDetection", get_family("electra"))
    detector.detect(text)
    assert "16 tokens" in caplog.text and "Split" in caplog.text
    caplog.clear()
    detector.detect([text[i : i + 16] for i in range(0, len(text), 16)])
    assert not caplog.text


@pytest.mark.slow
def test_windows_have_room(caplog):
    first, second = " ".join("abcdefgh" * 2), "a b c d"

    def read(window: int, pair):
        own = preprocessor("SequenceClassifier", window_length=window)
        backbone = tiny.backbone(BERT, pooler=True)
        task = ez.SequenceClassifier(backbone, own, labels=["a", "b"])
        return task.classify([pair])

    read(8, (first, second))
    assert "window of 8 tokens" in caplog.text
    caplog.clear()
    read(8, (first, "a"))
    read(16, (first, second))
    assert not caplog.text


@pytest.mark.slow
def test_classes_of_zero_shot_have_names(tmp_path):
    new("SequenceClassifier", num_classes=3).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match=r"LABEL_0.*labels="):
        ez.ZeroShotClassifier.from_preset(tmp_path)
    names = ["contradiction", "neutral", "entailment"]
    task = ez.ZeroShotClassifier.from_preset(tmp_path, labels=names)
    assert task.classify("one", labels=["x", "y"])["label"] in "xy"


@pytest.mark.slow
def test_classes_of_zero_shot_are_of_nli(tmp_path):
    new("SequenceClassifier", labels=["good", "bad"]).save_to_preset(tmp_path / "other")
    with pytest.raises(ValueError, match=r"good, bad.*entailment, neutral"):
        ez.ZeroShotClassifier.from_preset(tmp_path / "other")
    names = ["contradiction", "neutral", "entailment"]
    nli = new("SequenceClassifier", labels=names)
    nli.fit((TEXTS[:3], TEXTS[1:]), names, verbose=0)
    nli.save_to_preset(tmp_path / "nli")
    assert ez.ZeroShotClassifier.from_preset(tmp_path / "nli").classify("one", labels=["x", "y"])
