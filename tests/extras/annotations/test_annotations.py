"""Annotations of each tool, in small files as it writes them: understood, or refused by name."""

import contextlib
import json
import re
import types

import pandas as pd
import pytest

import encoder_zoo as ez
from encoder_zoo.tasks.preprocessing.columns import name_classes
from encoder_zoo.tasks.training.sources import TextData

TEXT = "Ann is in Rome."
SPANS = [
    {"start": 0, "end": 3, "label": "PER"},
    {"start": 10, "end": 14, "label": "LOC"},
]
TRIPLES = [[0, 3, "PER"], [10, 14, "LOC"]]
OFFSETS = [
    {"id": i, "label": span["label"], "start_offset": span["start"], "end_offset": span["end"]}
    for i, span in enumerate(SPANS)
]


def region(start, end, label, text=None, **more):
    value = {"start": start, "end": end, "labels": [label]}
    value |= {} if text is None else {"text": text}
    return {
        "id": "x1",
        "from_name": "label",
        "to_name": "text",
        "type": "labels",
        "origin": "manual",
        "value": value | more,
    }


def choice(*names):
    return {
        "from_name": "sentiment",
        "to_name": "text",
        "type": "choices",
        "value": {"choices": list(names)},
    }


REGIONS = [region(0, 3, "PER", "Ann"), region(10, 14, "LOC", "Rome")]


def task(*annotations, data=None, **more):
    annotations = [
        a if isinstance(a, dict) else {"id": 7, "completed_by": 1, "result": a, "lead_time": 4.2}
        for a in annotations
    ]
    data = {"my_text": TEXT} if data is None else data
    return {"id": 1, "annotations": annotations, "data": data, "predictions": [], **more}


def cancelled(result):
    return {"result": result, "was_cancelled": True}


TOKENS = [{"text": "Ann", "start": 0, "end": 3, "id": 0, "ws": True}]
MIN = {"id": 1, "annotator": 1, "annotation_id": 7, "lead_time": 4.2, "created_at": "2021-03-09"}
OF_TAGGERS = {
    "doccano, JSONL": {"id": 1, "text": TEXT, "label": TRIPLES},
    "doccano, of version 1.0": {"id": 1, "text": TEXT, "labels": TRIPLES, "meta": {}},
    "doccano, text under data": {"id": 1, "data": TEXT, "label": TRIPLES},
    "doccano, relations": {"id": 1, "text": TEXT, "entities": OFFSETS, "relations": []},
    "doccano, comments": {"text": TEXT, "entities": OFFSETS, "relations": [], "Comments": []},
    "doccano, 2018": {"doc_id": 1, "text": TEXT, "entities": TRIPLES, "username": "admin"},
    "Label Studio": task(REGIONS),
    "Label Studio, two texts": task(REGIONS, data={"title": "A title", "body": TEXT}),
    "Label Studio, a relation": task([*REGIONS, {"type": "relation", "from_id": "x1"}]),
    "Label Studio, cancelled": task(cancelled([]), REGIONS),
    "Label Studio, ground truth": task([], {"result": REGIONS, "ground_truth": True}),
    "Label Studio, two agree": task(REGIONS, REGIONS[::-1]),
    "Label Studio, predictions": task(REGIONS, predictions=[{"result": [region(0, 1, "X")]}]),
    "Label Studio, version 0": {"completions": [{"result": REGIONS}], "data": {"t": TEXT}},
    "Label Studio, JSON-MIN": {**MIN, "text": TEXT, "ner": [r["value"] for r in REGIONS]},
    "Label Studio, JSON-MIN label": {**MIN, "text": TEXT, "label": [r["value"] for r in REGIONS]},
    "Prodigy": {"text": TEXT, "tokens": TOKENS, "spans": SPANS, "answer": "accept", "meta": {}},
    "Prodigy, no answer": {"text": TEXT, "spans": SPANS},
    "spaCy 2": (TEXT, {"entities": [tuple(triple) for triple in TRIPLES]}),
    "spaCy 2, from JSON": [TEXT, {"entities": TRIPLES}],
    "a dataset's struct": {
        "text": TEXT,
        "entities": {"start": [0, 10], "end": [3, 14], "label": ["PER", "LOC"]},
    },
    "an empty key before": {"text": TEXT, "label": [], "entities": TRIPLES, "spans": []},
    "an empty key, others behind": {"text": TEXT, "label": [], "annotations": SPANS},
    "LightTag's rows": {"content": TEXT, "annotations": [{**s, "tag": s["label"]} for s in SPANS]},
    "Label Studio, CSV": {**MIN, "text": TEXT, "ner": json.dumps([r["value"] for r in REGIONS])},
    "a CSV of pandas": {"text": TEXT, "label": str([tuple(triple) for triple in TRIPLES])},
    "GATE-like names": {
        "text": TEXT,
        "entities": [{"begin": 0, "end": 3, "type": "PER"}, {"begin": 10, "end": 14, "tag": "LOC"}],
    },
}
NOTHING = {
    "doccano": {"text": TEXT, "label": []},
    "doccano, relations": {"text": TEXT, "entities": [], "relations": []},
    "Label Studio": task([]),
    "Prodigy": {"text": TEXT, "spans": [], "answer": "accept"},
    "Prodigy, no key": {"text": TEXT, "answer": "accept", "_view_id": "ner_manual"},
    "spaCy 2": (TEXT, {"entities": []}),
    "Label Studio, JSON-MIN": {**MIN, "text": TEXT},
}
LEFT_OUT = {
    "Prodigy, rejected": {"text": TEXT, "spans": SPANS, "answer": "reject"},
    "Prodigy, ignored": {"text": TEXT, "answer": "ignore"},
    "Label Studio, skipped": task(cancelled(REGIONS)),
    "Label Studio, not annotated": task(),
}
UNKNOWN = "no annotation.*keys"
REFUSED = {
    "triples turned": ({"text": TEXT, "label": [["PER", 0, 3]]}, UNKNOWN),
    "pairs": ({"text": TEXT, "label": [[0, 3]]}, UNKNOWN),
    "four": ({"text": TEXT, "entities": [[0, 3, "PER", "id"]]}, UNKNOWN),
    "floats": ({"text": TEXT, "entities": [[0.0, 3.0, "PER"]]}, UNKNOWN),
    "texts of numbers": ({"text": TEXT, "spans": [{"start": "0", "end": "3"}]}, "no label"),
    "tokens of Prodigy": ({"text": TEXT, "spans": [{"token_start": 0, "token_end": 0}]}, UNKNOWN),
    "GATE": ({"text": TEXT, "entities": {"Person": [{"indices": [0, 3]}]}}, UNKNOWN),
    "Dataturks": ({"content": TEXT, "annotation": [{"points": [{"start": 0}]}]}, UNKNOWN),
    "LightTag": ({"examples": [{"content": TEXT, "annotations": SPANS}]}, UNKNOWN),
    "spaCy's JSON": ({"id": 0, "paragraphs": [{"raw": TEXT}]}, UNKNOWN),
    "Ground Truth": ({"source": TEXT, "ner": {"annotations": {}}}, "text_key"),
    "Rasa": ({"rasa_nlu_data": {"common_examples": []}}, UNKNOWN),
    "LUIS": ({"text": TEXT, "entities": [{"startPos": 0, "endPos": 2}]}, UNKNOWN),
    "Kili": ({"content": TEXT, "jsonResponse": {"NER": {"annotations": []}}}, UNKNOWN),
    "tagtog": ({"annotatable": {}, "entities": [{"offsets": [{"start": 0}]}]}, UNKNOWN),
    "SpERT": ({"tokens": ["Ann"], "entities": [{"start": 0, "end": 1, "type": "A"}]}, UNKNOWN),
    "nothing given": ({"text": TEXT, "entities": None}, "'entities' is None"),
    "a rating": (task([{"type": "rating", "value": {"rating": 4}}]), "type rating"),
    "predictions": ({"data": {"text": TEXT}, "predictions": [{}]}, "no annotations"),
    "choices of regions": (
        task([{"type": "choices", "value": {"start": 0, "end": 3, "choices": ["A"]}}]),
        "no label",
    ),
    "no annotation": ({"text": TEXT, "meta": {}}, "'text', 'meta'"),
    "no text": ({"id": 1, "label": TRIPLES}, "'id', 'label'"),
    "GLiNER": ({"tokenized_text": ["Ann"], "ner": [[0, 0, "PER"]]}, "'tokenized_text', 'ner'"),
    "not a row": (7, "int.* 7|7.*int"),
    "text is missing": ({"text": None, "label": []}, "Row 1.*'text' is None"),
    "numbers of labels": (
        {"text": TEXT, "annotations": [{"label": 2, "start_offset": 0, "end_offset": 3}]},
        "label.* 2",
    ),
    "no label": ({"text": TEXT, "spans": [{"start": 0, "end": 3}]}, "no label"),
    "two labels": ({"text": TEXT, "spans": [[0, 3, ["A", "B"]]]}, "0 to 3.* 2 labels"),
    "outside": ({"text": TEXT, "label": [[0, 16, "A"]]}, "0 to 16.* 15"),
    "empty": ({"text": TEXT, "label": [[3, 3, "A"]]}, "3 to 3 "),
    "turned": ({"text": TEXT, "label": [[3, 1, "A"]]}, "3 to 1 "),
    "negative": ({"text": TEXT, "label": [[-3, 1, "A"]]}, "-3 to 1 "),
    "other text": (task([region(0, 3, "PER", "Rom")]), "'Rom'.*'Ann'"),
    "HTML": (task([region("/p[1]/text()[1]", "/p[1]/text()[1]", "A")]), "/p.1./text"),
    "annotators": (task(REGIONS, REGIONS[:1]), "2.*annotations"),
    "boxes": (task([{"type": "rectanglelabels", "value": {"x": 1}}]), "type rectanglelabels"),
    "two texts": (task([], data={"a": TEXT, "b": TEXT}), "'a', 'b'.*text_key"),
    "no annotations": ({"data": {"text": TEXT}}, "no annotations.*'data'"),
    "classes": ({"text": TEXT, "label": "pos"}, "spans or tags.*labels"),
    "lengths": ({"tokens": ["a", "b"], "ner_tags": ["O"]}, "2 words.*'ner_tags' has 1"),
    "which tags": ({"tokens": ["a"], "pos": ["N"], "chunk": ["O"]}, "'pos' and 'chunk'"),
}


def test_spans_of_every_tool():
    for name, row in OF_TAGGERS.items():
        assert ez.read_annotations([row], kind="spans") == ([TEXT], [SPANS]), name
        assert ez.read_annotations([row]).y == [SPANS], name


def test_nothing_annotated_is_no_entity():
    for name, row in NOTHING.items():
        found = ez.read_annotations([row, OF_TAGGERS["doccano, JSONL"]])
        assert found == ([TEXT, TEXT], [[], SPANS]), name


def test_rejected_and_skipped_rows_are_counted(caplog):
    for name, row in LEFT_OUT.items():
        caplog.clear()
        found = ez.read_annotations([OF_TAGGERS["Prodigy"], row])
        assert found == ([TEXT], [SPANS]), name
        assert "1 of 2 rows" in caplog.text, name
        assert "row 1" in caplog.text, name
    with pytest.raises(ValueError, match="1 rows"):
        ez.read_annotations([row])


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused(name):
    row, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as error:
        from encoder_zoo.extras.annotations.rows import extract_annotations

        extract_annotations([OF_TAGGERS["doccano, JSONL"], row], ("spans", "tags"))
    assert re.match("Row 1 ?", str(error.value)), error.value


def test_offsets_of_other_units_are_named():
    text = "😀😀 in Rome"  # Rome is at 6
    for start, end, unit in ((8, 12, "UTF-16 units"), (12, 16, "bytes")):
        for more in ({}, {"text": "Rome"}):
            span = {"start": start, "end": end, "label": "LOC", **more}
            with pytest.raises(ValueError, match=unit) as error:
                ez.read_annotations([{"text": text, "spans": [span]}])
            cure = re.search(r"(len\(.*\))", str(error.value)).group(1)
            assert eval(cure, {"text": text, "start": start}) == 6
    span = {"start": 6, "end": 10, "label": "LOC", "text": "Rome"}
    assert ez.read_annotations([{"text": text, "spans": [span]}]).y[0][0]["start"] == 6


OF_CLASSES = {
    "doccano": ({"id": 1, "text": TEXT, "label": ["pos"]}, ["pos"]),
    "doccano, 2018": ({"doc_id": 1, "text": TEXT, "labels": ["a", "b"]}, ["a", "b"]),
    "Label Studio": (task([choice("pos")]), ["pos"]),
    "Label Studio, several": (task([choice("a", "b")]), ["a", "b"]),
    "JSON-MIN": ({**MIN, "text": TEXT, "sentiment": "pos"}, ["pos"]),
    "JSON-MIN, several": ({**MIN, "text": TEXT, "topic": {"choices": ["a", "b"]}}, ["a", "b"]),
    "Prodigy": ({"text": TEXT, "label": "pos", "answer": "accept"}, ["pos"]),
    "Prodigy, choice": (
        {"text": TEXT, "options": [{"id": "pos"}], "accept": ["pos"], "answer": "accept"},
        ["pos"],
    ),
    "spaCy 2": ((TEXT, {"cats": {"pos": 1.0, "neg": 0.0}}), ["pos"]),
    "a dataset's row": ({"sentence": TEXT, "label": "pos", "idx": 3}, ["pos"]),
    "a number": ({"text": TEXT, "label": 1}, [1]),
}


def test_labels_of_texts():
    for name, (row, labels) in OF_CLASSES.items():
        x, y = ez.read_annotations([row])
        assert (x, y) == ([TEXT], labels if len(labels) == 1 else [labels]), name


def test_tags_of_words():
    words, tags = ["Ann", "sings"], ["B-PER", "O"]
    for row in (
        {"tokens": words, "ner_tags": tags, "pos_tags": ["N", "V"]},
        {"words": words, "labels": tags, "id": "7"},
        {"tokens": words, "tags": tags, "text": "Ann sings"},
    ):
        assert ez.read_annotations([row]) == ([words], [tags])


def test_several_annotators_of_one_text(caplog):
    """In the JSON, and in rows that share what their tool gives a text."""
    spans = [[region["value"]] for region in REGIONS]
    prodigy = {"text": TEXT, "answer": "accept", "_input_hash": 5}
    for rows in (
        [{**MIN, "text": TEXT, "ner": found} for found in spans],
        [{**MIN, "text": TEXT, "mood": found} for found in ("up", "down")],
        [{**prodigy, "spans": [span]} for span in SPANS],
    ):
        with pytest.raises(ValueError, match="Rows 0 and 1.*'Ann "):
            ez.read_annotations(rows)
        key = "_input_hash" if "_input_hash" in rows[0] else "id"
        x = ez.read_annotations([rows[0], rows[0], {**rows[1], key: 6}]).x
        assert len(x) == 2 and "1 of 3 rows" in caplog.text
        caplog.clear()
    other = {"text": TEXT, "label": [[0, 3, "LOC"]]}
    of_its_own = {"text": "In Rome", "label": [[3, 7, "LOC"]]}
    ez.read_annotations([OF_TAGGERS["doccano, JSONL"], of_its_own, other])
    assert "1 rows" in caplog.text
    assert "rows 0 and 2" in caplog.text


def test_other_names_of_as_many_classes_are_logged(caplog):
    class Column(list):  # as a column of Hugging Face's datasets
        features = types.SimpleNamespace(names=["x", "y"])

    assert name_classes(Column([0, 1]), ["a", "b"]) == [0, 1]
    assert "x, y in the dataset and a, b in the model" in caplog.text
    assert name_classes(Column([0, 1]), ["y", "x"]) == ["x", "y"]


def test_relations_are_counted(caplog):
    related = {"from_id": 0, "to_id": 1, "type": "in"}
    for row in (
        {"text": TEXT, "entities": OFFSETS, "relations": [related]},
        task([*REGIONS, {"type": "relation", "from_id": "x1"}]),
    ):
        caplog.clear()
        ez.read_annotations([OF_TAGGERS["Prodigy"], row])
        assert all(word in caplog.text for word in ("relations", "1 rows", "row 1"))


def test_kinds_are_not_mixed():
    rows = [OF_TAGGERS["doccano, JSONL"], {"text": TEXT, "label": ["PER"]}]
    with pytest.raises(ValueError, match="Row 0.*spans, .*row 1.*labels"):
        ez.read_annotations(rows)
    with pytest.raises(ValueError, match="Row 0.*'site'.* 'mood'"):
        ez.read_annotations([{**MIN, "text": TEXT, "site": "web", "mood": "up"}])


@pytest.mark.parametrize("gap", [None, float("nan"), pd.NA])
@pytest.mark.parametrize(
    "row",
    [
        {"text": "In Rome", "label": [[3, 7, "LOC"]]},
        {"text": "In Rome", "entities": [[3, 7, "LOC"]]},
        {"tokens": ["In", "Rome"], "ner_tags": ["O", "B-LOC"]},
        {"text": "In Rome", "tokens": ["In", "Rome"], "ner_tags": ["O", "B-LOC"]},
    ],
)
def test_a_missing_annotation_is_named(row, gap):
    key = [*row][-1]
    with pytest.raises(ValueError, match=f"^Row 1.*'{key}' is {gap}"):
        ez.read_annotations([row, {**row, key: gap}])


@pytest.mark.parametrize(
    "source, advice",
    [
        ({"text": "Hm", "label": "up"}, "[source]"),
        ({"classes": 1, "annotations": [["Hm", {"entities": []}]]}, "source['annotations']"),
    ],
)
def test_an_object_that_is_no_list_of_rows(source, advice):
    with pytest.raises(ValueError, match=re.escape(advice)) as error:
        ez.read_annotations(source)
    cure = re.search(r"(\[source\]|source\['annotations'\])", str(error.value))[0]
    assert ez.read_annotations(eval(cure, {"source": source})).x == ["Hm"]


def test_a_key_of_the_text_is_given():
    row = {"review": TEXT, "label": TRIPLES}
    with pytest.raises(ValueError, match="text_key="):
        ez.read_annotations([row])
    assert ez.read_annotations([row], text_key="review") == ([TEXT], [SPANS])


OF_WEBANNO = (
    "#FORMAT=WebAnno TSV 3.3\n#T_SP=custom.NamedEntity|value\n\n#Text=Ann\n1-1\t0-3\tAnn\tPER\t\n"
)
OF_CONLL_U = "# text = Ann sings\n1\tAnn\tPROPN\t_\n2\tsings\tVERB\tSpaceAfter=No\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", OF_WEBANNO, "WebAnno.*CoNLL"),
        ("a.conllu", OF_CONLL_U, "column 0.*'1'.*word_column=1"),
        ("a.conll", "0 Ann B-PER\n1 is O\n", "column 0.*'0'"),
        ("a.conll", "Ann B-PER\nNew York B-LOC\n", "line 2.* 3.*line 1.* 2.*tabs"),
        ("a.conll", "Ann B-PER\n\nNew York B-LOC\n", "line 3.* 3.*line 1.* 2"),
        ("a.tsv", "Ann\tB-PER\nis\tO\tx\n", "line 2.* 3 "),
        ("a.tsv", "Ann\tB-PER\t\nis\tO\t\n", "column -1.*blank"),
        ("a.conll", "Ann NNP _\nis VBZ _\n", "column -1.*'_'"),
        ("a.conll", "B-PER Ann\nO sings\n", "column 0.*tags"),
        ("a.tsv", "text\tlabel\nAnn is in.\tup\nHm it\tdown\n", "a.tsv.*'Ann is"),
        ("a.txt", "Ann is in Rome.\nSo it is.\n", "line 2.* 3.*line 1.* 4"),
        ("a.conll", "Ann,B-PER\nis,O\n", "a.conll.*tag"),
        ("a.xml", "<GateDocument/>", "a.xml"),
        ("a.csv", "text,label", "a.csv.*to_dict"),
    ],
)
def test_files_of_other_columns_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        ez.read_annotations(tmp_path / name)


def test_the_advice_for_other_columns(tmp_path):
    (tmp_path / "a.conllu").write_text(OF_CONLL_U)
    expected = [["Ann", "sings"]], [["PROPN", "VERB"]]
    assert ez.read_conll(tmp_path / "a.conllu", column=2, word_column=1) == expected
    germeval = "#\thttp://a\t[2009]\n1\tAnn\tB-PER\tO\n2\tsings\tO\tO\n"
    (tmp_path / "a.tsv").write_text(germeval)
    found = ez.read_conll(tmp_path / "a.tsv", column=2, word_column=1)
    assert found == ([["Ann", "sings"]], [["B-PER", "O"]])
    (tmp_path / "a.conll").write_text("A x B-X (0\n\nB x O - -\nC x O - -\n")  # of CoNLL-2012
    found = ez.read_conll(tmp_path / "a.conll", column=2)
    assert found == ([["A"], ["B", "C"]], [["B-X"], ["O", "O"]])


def test_files(tmp_path):
    rows = [OF_TAGGERS["doccano, JSONL"]] * 2
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "b.json").write_text(json.dumps(rows))
    tool = {"classes": ["PER"], "annotations": [[TEXT, {"entities": TRIPLES}], None] * 2}
    (tmp_path / "c.json").write_text(json.dumps(tool))
    for name in ("a.jsonl", "b.json", "c.json"):
        assert ez.read_annotations(tmp_path / name) == ([TEXT] * 2, [SPANS] * 2)
    (tmp_path / "d.conll").write_text("-DOCSTART- -X- O\n\nAnn -X- _ B-PER\nsings -X- _ O\n")
    words, tags = ez.read_annotations(str(tmp_path / "d.conll"))
    assert (words, tags) == ([["Ann", "sings"]], [["B-PER", "O"]])
    squad = {"data": [{"paragraphs": []}]}
    for content, message in (
        (json.dumps(squad), "read_squad"),
        ("[]", "e.json.*rows"),
        ('{"text": 1}\n{', "line 2"),
        ("{", "line 1"),
    ):
        (tmp_path / "e.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            ez.read_annotations(tmp_path / "e.json")
    (tmp_path / "f.csv").write_text("text,label")
    with pytest.raises(ValueError, match="f.csv.*pandas"):
        ez.read_annotations(tmp_path / "f.csv")
    with pytest.raises(FileNotFoundError):
        ez.read_annotations(tmp_path / "g.json")


class TestBrat:
    ANN = "T1\tPER 0 3\tAnn\nT2\tLOC 10 14\tRome\nR1\tIn Arg1:T1 Arg2:T2\t\n#1\tNotes T1\tsure\n"

    def write(self, folder, annotations, text=TEXT):
        folder.mkdir(exist_ok=True)
        (folder / "a.txt").write_bytes(text.encode())
        (folder / "a.ann").write_text(annotations)

    def test_a_folder_and_its_files(self, tmp_path, caplog):
        self.write(tmp_path / "more", self.ANN)
        (tmp_path / "b.txt").write_text("Nothing")
        (tmp_path / "b.ann").write_text("")
        expected = ["Nothing", TEXT], [[], SPANS]
        assert ez.read_annotations(tmp_path) == expected
        assert "2 lines" in caplog.text
        for name in ("a.txt", "a.ann"):
            assert ez.read_annotations(tmp_path / "more" / name) == ([TEXT], [SPANS])

    def test_offsets_count_every_character_of_the_file(self, tmp_path):
        self.write(tmp_path, "T1\tLOC 9 13\tRome\n", "Hi 😀 \r\n\r\nRome")
        assert ez.read_annotations(tmp_path).y == [[{"start": 9, "end": 13, "label": "LOC"}]]

    def test_a_mark_of_the_byte_order_is_no_text(self, tmp_path):
        self.write(tmp_path, "\ufeff" + self.ANN)
        assert ez.read_annotations(tmp_path).y == [SPANS]

    def test_a_part_ends_at_a_line_break(self, tmp_path):
        self.write(tmp_path, "T1\tLOC 0 3;4 8\tNew York\n", "New\nYork")
        assert ez.read_annotations(tmp_path).y == [[{"start": 0, "end": 8, "label": "LOC"}]]

    @pytest.mark.parametrize(
        ("annotations", "message"),
        [
            ("T1\tX 0 3;10 14\tAnn Rome\n", "a.ann, line 1.*'Ann Rome'.* 2 "),
            ("\nT1\tX 0 3\tBob\n", "a.ann, line 2.*'Ann'"),
            ("T1 X 0 3 Ann\n", "a.ann, line 1.*'T1 X 0 3 Ann'"),
            ("t1\tX 0 3\tAnn\n", "a.ann, line 1.*'t1"),
        ],
    )
    def test_refusals(self, tmp_path, annotations, message):
        self.write(tmp_path, annotations)
        with pytest.raises(ValueError, match=message):
            ez.read_annotations(tmp_path)

    def test_half_of_a_pair(self, tmp_path):
        self.write(tmp_path, "")
        (tmp_path / "b.txt").write_text("Not annotated")
        with pytest.raises(ValueError, match="b.ann"):
            ez.read_annotations(tmp_path)
        with pytest.raises(ValueError, match="none.json"):
            (tmp_path / "empty").mkdir()
            (tmp_path / "empty" / "none.json").write_text("[]")
            ez.read_annotations(tmp_path / "empty")


@pytest.fixture(scope="module")
def build():
    tokenizer = ez.BertTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ann", "is", "in", "rome", "."]
    )

    def build(task="Token", **arguments):
        task, preprocessor = (getattr(ez, f"{task}Classifier{end}") for end in ("", "Preprocessor"))
        backbone = ez.BertBackbone(10, 1, 1, 4, 8, pooler=task is ez.SequenceClassifier)
        return task(backbone, preprocessor(tokenizer), **arguments)

    return build


LABELS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


class TestFit:
    @pytest.mark.slow
    @pytest.mark.matrix
    def test_rows_into_a_tagger_whose_labels_are_known(self, build):
        """REPORTS.md, 6: doccano's rows trained every word as O."""
        tagger = build(labels=LABELS)
        rows = [OF_TAGGERS["doccano, JSONL"]] * 2
        for given in (rows, [OF_TAGGERS["Label Studio"]] * 2, ez.read_annotations(rows)):
            _, y, _ = tagger.preprocessor(*tagger.preprocessor.separate(given, None))
            assert y.numpy().tolist() == [[0, 3, 0, 0, 1, 0, 0]] * 2
        history = tagger.fit(rows, validation_data=ez.read_annotations(rows), verbose=0).history
        assert "val_f1" in history
        assert tagger.evaluate_entities(rows, None)["per_type"]["PER"]["support"] == 2
        with pytest.raises(ValueError, match="'text', 'meta'"):
            tagger.fit([{"text": TEXT, "meta": {}}])

    def test_numbers_without_names(self, build):
        """REPORTS.md, 6: LABEL_0 was counted as an entity."""
        with pytest.raises(ValueError, match="numbers.* 1.*labels="):
            build().fit([["ann", "is"]], [[1, 0]])
        with pytest.raises(ValueError, match="numbers.* 1.*labels="):
            build().fit([{"tokens": ["ann", "is"], "ner_tags": [1, 0]}])

    def test_numbers_as_texts(self, build):
        with pytest.raises(ValueError, match="numbers.* 1.*labels="):
            build().fit([["ann", "is"]], [["1", "0"]])

    def test_labels_of_spans_that_look_like_tags(self, build, caplog):
        build()._adapt_to_data(TextData([TEXT], [[(0, 3, "B-PER")]]))
        assert "'B-PER'" in caplog.text

    @pytest.mark.slow(only="^(labels1-y0|labels1-y1$|labels1-y11)")
    @pytest.mark.parametrize(
        "y",
        [
            ['[{"start": 0, "end": 3, "labels": ["PER"]}]'],
            ["[(0, 3, 'PER')]"],
            [{"text": TEXT, "label": TRIPLES}],
            [{"PER": ["Ann"]}],
            ["B-PER O O O O"],
            [["B-PER", "O", "O", "O", "O"]],
            [[("PER", 0, 3)]],
            [[(0, 3, "PER", 1)]],
            [[(0, 3)]],
            [[("0", "3", "PER")]],
            [[{"start": 0, "end": 3, "value": "PER"}]],
            [[(0, 3, "PER"), (0, 6, "LOC")]],
        ],
    )
    @pytest.mark.parametrize("labels", [None, LABELS])
    def test_labels_that_are_no_spans(self, build, labels, y):
        with pytest.raises(ValueError, match="Example 0"):
            build(labels=labels).fit([TEXT], y)

    @pytest.mark.slow
    def test_a_notation_is_named_once(self, build, caplog):
        tagger = build()
        tags = [["B-PER", "M-PER", "E-PER", "O", "S-PER"]]
        for _ in range(2):
            given = TextData([["ann", "is", "in", "rome", "."]], tags)
            tagger._adapt_to_data(given)
            tagger._prepare_training(given, None)
        assert caplog.text.count("BMES") == 1
        assert tagger.labels == ["O", "B-PER", "M-PER", "E-PER", "S-PER"]
        assert tagger.valid_tags is True
        _, y, _ = tagger.preprocessor([TEXT], [[(0, 3, "PER"), (4, 14, "PER")]])
        assert y.numpy().tolist() == [[0, 4, 1, 2, 3, 0, 0]]

    def test_labels_of_texts(self, build):
        classifier = build("Sequence")
        rows = [{"text": TEXT, "label": ["pos"]}, {"text": TEXT, "label": ["neg"]}]
        assert classifier.preprocessor.separate(rows, None) == ([TEXT] * 2, ["pos", "neg"])
        classifier._adapt_to_data(TextData(*classifier.preprocessor.separate(rows, None)))
        assert classifier.labels == ["neg", "pos"]
        several = build("Sequence", problem_type="multi_label_classification")
        assert several.preprocessor.separate(rows, None)[1] == [["pos"], ["neg"]]
        for labels, message in (([], "Row 1.*no label"), (["a", "b"], r"Row 1.*'a', 'b'")):
            with pytest.raises(ValueError, match=message):
                classifier.fit([rows[0], {"text": TEXT, "label": labels}])
        with pytest.raises(ValueError, match="Row 0.*spans"):
            classifier.fit([OF_TAGGERS["doccano, JSONL"]])


class TestRowsWithLabels:
    """The other tasks that learn classes take rows as `SequenceClassifier` does."""

    ROWS = (("ann is in", "up"), ("rome", "down"), ("is ann", "up"), ("in rome", "down"))

    @pytest.fixture
    def rows(self):
        return [{"text": text, "label": [label]} for text, label in self.ROWS]

    @pytest.mark.slow
    def test_few_shot(self, build, rows):
        tokenizer = build().preprocessor.tokenizer
        preprocessor = ez.TextEmbedderPreprocessor(tokenizer)
        few = ez.FewShotClassifier(ez.BertBackbone(10, 1, 1, 4, 8, pooler=False), preprocessor)
        few.fit(rows, epochs=0)
        assert few.labels == ["down", "up"]
        expected = few.evaluate(*map(list, zip(*self.ROWS, strict=True)))
        assert few.evaluate(rows) == few.evaluate(ez.read_annotations(rows)) == expected
        with pytest.raises(ValueError, match="labels are missing"):
            few.fit(["ann"])
        with pytest.raises(ValueError, match="'text', 'meta'"):
            few.fit([{"text": TEXT, "meta": {}}])

    def test_estimators(self, rows, monkeypatch):
        sklearn = pytest.importorskip("encoder_zoo.sklearn")
        given = []
        for estimator, labels in ((sklearn.TextClassifier, None), (sklearn.TextRegressor, [4, 1])):
            if labels:
                rows = [{"text": row["text"], "label": labels[i % 2]} for i, row in enumerate(rows)]
            monkeypatch.setattr(
                estimator, "_fine_tune", lambda self, x, y, w, **_: given.append((x, list(y)))
            )
            with contextlib.suppress(AttributeError):  # of the model that is not made
                estimator().fit(rows)
            with pytest.raises(ValueError, match=r"\by\b"):
                estimator().fit(["ann"])
            with pytest.raises(ValueError, match="'text', 'meta'"):
                estimator().fit([{"text": TEXT, "meta": {}}])
        texts = [text for text, _ in self.ROWS]
        assert given[0] == (texts, ["up", "down", "up", "down"])
        assert given[1] == (texts, [1, -1, 1, -1])


class TestTables:
    """Roles of columns are logged, and what holds no texts is asked about."""

    TEXTS = ("ann is in rome", "rome is in ann", "is ann in", "in rome is")

    @pytest.fixture
    def make(self, build):
        tokenizer = build().preprocessor.tokenizer

        def make(name, **arguments):
            task = getattr(ez, name)
            preprocessor = getattr(ez, f"{name}Preprocessor")(tokenizer)
            return task(ez.BertBackbone(10, 1, 1, 4, 8), preprocessor, **arguments)

        return make

    def table(self, **columns):
        return pd.DataFrame({"q": [*self.TEXTS], "d": [*self.TEXTS[::-1]], **columns})

    @pytest.mark.parametrize("name", ["TextEmbedder", "SparseEncoder", "LateInteraction"])
    def test_an_embedder_asks_about_repeated_columns(self, make, name):
        """REPORTS.md, 6: "forum" was everybody's hard negative."""
        task = make(name)
        for source in (["forum"] * 4, ["web forum"] * 4, ["Fürth"] * 4):
            with pytest.raises(ValueError, match=r"'source'.*fit\(\(x\['q"):
                task.fit(self.table(source=source))
        many = pd.concat([self.table(source=["web forum", "news"] * 2)] * 5)
        with pytest.raises(ValueError, match="'source'.* 2 "):
            task.fit(many)
        with pytest.raises(ValueError, match=r"'score'.*fit\(\(x\['q'\], x\['d'\]\), x\['s"):
            task.fit(self.table(score=[1.0, 0.5, 0.2, 0.1]))

    def test_a_reranker_too(self, make):
        reranker, scores = make("Reranker"), [1, 0, 1, 0]
        table = pd.DataFrame({"query": [*self.TEXTS], "source": ["forum"] * 4})
        with pytest.raises(ValueError, match="'source' "):
            reranker.fit(table, scores)
        one_query = pd.DataFrame({"query": ["rome"] * 4, "text": [*self.TEXTS]})
        assert reranker.preprocessor.inputs.get_columns(one_query) == (["rome"] * 4, [*self.TEXTS])
        with pytest.raises(ValueError, match=r"fit\(\(x\['query'\], x\['text'\]\), x\['label"):
            reranker.fit(one_query.assign(label=scores))

    def test_roles_are_logged_once(self, make, caplog):
        given = make("TextEmbedder")._read_data(self.table(), None)
        assert len(given.x) == 2
        assert caplog.text.count("anchors 'q', positives 'd'") == 1

    def test_a_table_without_labels_is_answered_with_the_line_to_type(self, build):
        table = pd.DataFrame({"id": [1, 2], "text": [*self.TEXTS[:2]], "label": ["up", "down"]})
        line = r"'id', 'text', 'label'.*fit\(x\['text'\], x\['label'\]\)"
        classifier = build("Sequence", labels=["down", "up"])
        for x, y in ((table, None), (table.to_dict("list"), None), (table, "label")):
            with pytest.raises(ValueError, match=line):
                classifier.fit(x, y)
            with pytest.raises(ValueError, match=line):
                classifier.evaluate(x, y)
        table = pd.DataFrame({"tokens": [["ann"]], "ner_tags": [["B-PER"]]})
        with pytest.raises(ValueError, match=r"fit\(x\['tokens'\], x\['ner_tags'\]\)"):
            build(labels=LABELS).fit(table)

    def test_a_path_is_no_text(self, build, make):
        with pytest.raises(ValueError, match=r"ez.read_annotations\('train.json'\)"):
            build().fit("train.json")
        with pytest.raises(ValueError, match=r"fit\(ez.read_squad\('train.json'\)\)"):
            make("SpanQA").fit("train.json")
        with pytest.raises(ValueError, match=r"'train', 'test'.*x\['train'\]"):
            build().fit({"train": self.table(), "test": self.table()})
