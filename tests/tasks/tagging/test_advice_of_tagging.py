"""Messages about tags and spans advise what works: each is provoked, and what it says is done."""

import json
import re

import keras
import pandas as pd
import pytest
from small_tasks import BERT, TEXTS, new

import encoder_zoo as ez
from encoder_zoo.testing import tiny

WORDS, TAGS = [["one", "two"], ["three"]], [["B-X", "I-X"], ["O"]]
LABELS = ["O", "B-X", "I-X"]


@pytest.mark.slow
def test_scores_of_pairs_of_tags():
    with pytest.raises(ValueError, match=r"crf.*head="):
        new("TokenClassifier", labels=LABELS, crf=True, head=keras.layers.Dense(3))
    tagger = new("TokenClassifier", labels=LABELS, crf=True)
    with pytest.raises(ValueError, match=r"calibrate.*crf.*tune_thresholds"):
        tagger.calibrate(WORDS, TAGS)
    assert tagger.tune_thresholds(WORDS, TAGS).keys() == {"X"}


@pytest.mark.slow
def test_tags_have_labels():
    with pytest.raises(ValueError, match=r"no tags.*labels="):
        new("TokenClassifier", pooler=False).fit([[], []], [[], []], verbose=0)
    tags = [["O", "O"], ["O"]]
    with pytest.raises(ValueError, match=r"'O'.*labels="):
        new("TokenClassifier", pooler=False).fit(WORDS, tags, verbose=0)
    new("TokenClassifier", pooler=False, labels=LABELS).fit(WORDS, tags, verbose=0)


@pytest.mark.slow
def test_numbers_of_tags_have_names(tmp_path):
    tags = [[0, 1], [0]]
    tiny.backbone(BERT).save_to_preset(tmp_path, tokenizer=tiny.tokenizer(BERT))
    with pytest.raises(ValueError, match=r"numbers.*labels=.*num_classes="):
        new("TokenClassifier", pooler=False).fit(WORDS, tags, verbose=0)
    for arguments in ({"labels": ["O", "B-PER"]}, {"num_classes": 2}):
        tagger = ez.TokenClassifier.from_preset(tmp_path, **arguments)
        tagger.fit(WORDS, tags, verbose=0)


@pytest.mark.slow
def test_spans_have_names():
    spans = [[{"start": 0, "end": 3, "label": "X"}], []]
    with pytest.raises(ValueError, match=r"(?i)spans.*labels="):
        new("TokenClassifier", pooler=False, num_classes=3).fit(TEXTS[:2], spans, verbose=0)
    new("TokenClassifier", pooler=False, labels=LABELS).fit(TEXTS[:2], spans, verbose=0)


@pytest.mark.slow
def test_entities_have_names():
    spans = [[{"start": 0, "end": 1, "label": "X"}], []]
    extractor = new("EntityExtractor", pooler=False)
    with pytest.raises(ValueError, match=r"[Nn]o labels.*labels="):
        extractor.extract_entities("a b")
    with pytest.raises(ValueError, match=r"labels.*is empty"):
        extractor.extract_entities(["a b", "c"], [["X"], []])
    extractor.extract_entities(["a b"], [["X"]])
    with pytest.raises(ValueError, match=r"no spans.*labels="):
        extractor.fit(TEXTS[:2], [[], []], verbose=0)
    new("EntityExtractor", pooler=False, labels=["X"]).fit(TEXTS[:2], [[], []], verbose=0)
    extractor.fit(TEXTS[:2], spans, verbose=0)
    extractor.extract_entities("a b")


@pytest.mark.slow
def test_names_of_entities_are_short():
    extractor = new("EntityExtractor", pooler=False, max_width=2)
    marker = extractor.preprocessor.label_marker
    with pytest.raises(ValueError, match=re.escape(f"'a {marker}'")):
        extractor.extract_entities("a b", [f"a {marker}"])
    with pytest.raises(ValueError, match=r"Text 0.*15 of the 14 tokens"):
        extractor.extract_entities("a b", list("abcdefg"))
    extractor.extract_entities("a b", list("abc"))


def test_pictures_have_their_texts():
    found = [[{"label": "LOC", "start": 3, "end": 7, "text": "Rome", "score": 0.9}], []]
    with pytest.raises(ValueError, match=r"'Rome' at 3:7.*'Hm'"):
        ez.display.entities(["Hm", "In Rome"], found)
    assert ez.display.entities(["In Rome", "Hm"], found).text == "In [Rome LOC]\nHm"


def test_rows_without_an_annotation():
    rows = [{"text": "In Rome", "label": [[3, 7, "LOC"]]}, {"text": "Hm", "label": None}]
    with pytest.raises(ValueError, match=r"Row 1.*'label' is None"):
        ez.read_annotations(rows)
    assert ez.read_annotations(rows[:1]).x == ["In Rome"]
    assert ez.read_annotations([rows[0], {**rows[1], "label": []}]).y[1] == []


def test_annotations_of_a_table():
    table = pd.DataFrame({"text": ["In Rome", "Hm"], "spans": [[[3, 7, "LOC"]], []]})
    with pytest.raises(ValueError, match=r"'text', 'spans'.*to_dict\("):
        ez.read_annotations(table)
    assert ez.read_annotations(table.to_dict("records")).y[0][0]["label"] == "LOC"


def test_annotations_in_a_file(tmp_path):
    rows = [{"text": "In Rome", "label": [[3, 7, "LOC"]]}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=r"a\.json"):
        ez.read_annotations(tmp_path)
    assert ez.read_annotations(tmp_path / "a.json").x == ["In Rome"]


@pytest.mark.slow
def test_tags_of_one_column():
    rows = [{"tokens": ["In", "Rome"], "coarse": ["O", "B-X"], "fine": ["O", "B-Y"]}]
    with pytest.raises(ValueError, match=r"Row 0.*'coarse' and 'fine'"):
        ez.read_annotations(rows)
    tagger = new("TokenClassifier", pooler=False)
    tagger.fit([row["tokens"] for row in rows], [row["coarse"] for row in rows], verbose=0)
    assert tagger.labels == ["O", "B-X"]


def test_annotations_that_differ():
    def annotation(label: str) -> dict:
        value = {"start": 3, "end": 7, "text": "Rome", "labels": [label]}
        return {"result": [{"type": "labels", "value": value}]}

    first, second = annotation("LOC"), annotation("PER")
    data = {"text": "In Rome"}
    with pytest.raises(ValueError, match="Row 0 has 2 "):
        ez.read_annotations([{"data": data, "annotations": [first, second]}])
    expected = ez.read_annotations([{"text": "In Rome", "label": [[3, 7, "LOC"]]}])
    for kept in ([first], [first | {"ground_truth": True}, second]):
        assert ez.read_annotations([{"data": data, "annotations": kept}]) == expected


def test_one_of_two_annotated_texts():
    unquoted = {"type": "labels", "value": {"start": 0, "end": 2, "labels": ["X"]}}
    task = {"data": {"a": "In Rome", "b": "In Oslo"}, "annotations": [{"result": [unquoted]}]}
    with pytest.raises(ValueError, match=r"'a', 'b'.*text_key"):
        ez.read_annotations([task])
    assert ez.read_annotations([task], text_key="a").x == ["In Rome"]


def test_columns_with_labels():
    row = {"text": "In Rome", "annotation_id": 1, "site": "web", "mood": "up"}
    with pytest.raises(ValueError, match="Row 0.*'site', 'mood'"):
        ez.read_annotations([row])
    row["label"] = row.pop("mood")
    assert ez.read_annotations([row]).y == ["up"]


def test_columns_of_words_and_tags(tmp_path):
    (tmp_path / "a.conll").write_text("1 Rome B-X _\n2 is O _\n")
    with pytest.raises(ValueError, match=r"a\.conll.*word_column=.*column="):
        ez.read_conll(tmp_path / "a.conll")
    found = ez.read_conll(tmp_path / "a.conll", word_column=1, column=2)
    assert found == ([["Rome", "is"]], [["B-X", "O"]])


@pytest.mark.slow
def test_tables_are_read_by_pandas(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\nIn Rome\tup\nIn Oslo\tdown\n")
    with pytest.raises(ValueError, match=r"a\.tsv.*'In Rome'.*pandas"):
        ez.read_annotations(tmp_path / "a.tsv")
    table = pd.read_csv(tmp_path / "a.tsv", sep="\t")
    classifier = new("SequenceClassifier")
    classifier.fit(table["text"], table["label"], verbose=0)
    assert classifier.labels == ["down", "up"]
