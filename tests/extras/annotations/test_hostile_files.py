"""Every reader of users' files ends a hostile file in an error that names the file, row and key.

Valid files of each tool are changed at every key, to values of every type; and whole files are cut,
nested, emptied and encoded otherwise. Python's and libraries' own errors must not come through.
"""

import copy
import json
import random
import zlib

import pytest

import encoder_zoo as ez

SPAN = {"start": 3, "end": 7, "text": "Rome", "labels": ["LOC"]}
RESULT = {"type": "labels", "from_name": "label", "to_name": "text", "value": SPAN}
ANNOTATION = {"id": 1, "was_cancelled": False, "ground_truth": False, "result": [RESULT]}
TOOLS = {
    "label_studio.json": [{"id": 1, "data": {"text": "In Rome"}, "annotations": [ANNOTATION]}],
    "json_min.json": [
        {"text": "In Rome", "label": [SPAN], "annotation_id": 1, "lead_time": 1.0, "id": 1}
    ],
    "spacy_2.json": {"classes": ["LOC"], "annotations": [["In Rome", {"entities": [[3, 7, "A"]]}]]},
    "doccano.jsonl": {"id": 1, "text": "In Rome", "label": [[3, 7, "LOC"]], "Comments": []},
    "prodigy.jsonl": {
        "text": "In Rome",
        "_input_hash": 1,
        "tokens": [{"text": "In", "start": 0, "end": 2, "id": 0}],
        "spans": [{"start": 3, "end": 7, "label": "LOC"}],
        "answer": "accept",
    },
    "datasets.jsonl": {"tokens": ["In", "Rome"], "ner_tags": ["O", "B-LOC"]},
    "squad.json": {
        "data": [
            {
                "paragraphs": [
                    {
                        "context": "In Rome",
                        "qas": [
                            {
                                "id": "a",
                                "question": "Where?",
                                "answers": [{"text": "Rome", "answer_start": 3}],
                            }
                        ],
                    }
                ]
            }
        ]
    },
}
VALUES = [
    None,
    True,
    -1,
    1.5,
    float("nan"),
    1e300,
    10**30,
    "",
    "x",
    [],
    {},
    [5],
    [None],
    {"a": 1},
    [[1, 2, 3]],
]
WHOLE = {
    "empty": b"",
    "blank": b" \n \n",
    "null": b"null",
    "number": b"5",
    "cut": b'[{"text": "In Rome", "label": [[3, 7',
    "UTF-16": '[{"text": "a", "label": []}]'.encode("utf-16"),
    "zeros": bytes(64),
    "deep list": b"[" * 100_000,
    "deep object": b'{"text":' * 100_000,
    "digits": b'[{"text": "a", "label": [[0, ' + b"9" * 5000 + b', "X"]]}]',
    "deep cell": json.dumps({"data": {"text": "a"}, "annotations": "[[" * 30_000}).encode(),
}
READERS = {name: ez.read_squad if "squad" in name else ez.read_annotations for name in TOOLS}


def paths_in(value, path=()):
    yield path
    value = dict(enumerate(value)) if isinstance(value, list) else value
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from paths_in(inner, (*path, key))


def changed(value, path, new):
    value = copy.deepcopy(value)
    if not path:
        return new
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = new
    return value


def refusal(read, path) -> str | None:
    """The message of an error, which must be ours and name the file; None if it is read."""
    try:
        read(path)
    except (ValueError, OSError) as error:
        assert type(error) in (ValueError, FileNotFoundError)
        assert path.name in str(error)
        assert len(str(error)) < 1500
        return str(error)
    return None


@pytest.mark.parametrize("name", TOOLS)
def test_a_wrong_value_at_any_key(name, tmp_path):
    rows, path, refused = TOOLS[name], tmp_path / name, 0
    assert READERS[name](written(path, rows))
    for keys in paths_in(rows):
        for value in VALUES:
            message = refusal(READERS[name], written(path, changed(rows, keys, value)))
            refused += message is not None
            assert message is None or "cannot be read" not in message  # said by the row and key
    assert refused > 50


def written(path, value):
    text = json.dumps(value)
    # In a file of lines the second one is wrong.
    good = json.dumps(TOOLS[path.name])
    path.write_text(f"{good}\n{text}\n" if path.suffix == ".jsonl" else text)
    return path


@pytest.mark.parametrize("content", WHOLE)
@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".conll", ".spacy", ".ann"])
def test_whole_files(content, suffix, tmp_path):
    if suffix == ".spacy":
        pytest.importorskip("spacy")
    path = tmp_path / f"file{suffix}"
    path.write_bytes(WHOLE[content])
    if suffix == ".ann":
        path.with_suffix(".txt").write_text("In Rome")
    found = refusal(ez.read_annotations, path)
    may_be_empty = suffix == ".ann" and content in ("empty", "blank")
    assert found is not None or suffix == ".conll" or may_be_empty
    if suffix == ".json":
        assert refusal(ez.read_squad, path)
    if suffix == ".conll":
        refusal(ez.read_conll, path)


def test_random_bytes_in_a_valid_file(tmp_path):
    drawn = random.Random(0)
    for name, rows in TOOLS.items():
        content = json.dumps(rows).encode()
        for _ in range(40):
            new = bytearray(content)
            for _ in range(drawn.randint(1, 4)):
                new[drawn.randrange(len(new))] = drawn.choice(b'"[]{},:0a\\\xff\x00')
            cut = new[: drawn.choice([len(new), drawn.randrange(len(new))])]
            (tmp_path / name).write_bytes(bytes(cut))
            refusal(READERS[name], tmp_path / name)


@pytest.mark.parametrize("name", ["folder.json", "folder.spacy", "folder.conll", "absent.json"])
def test_folders_and_missing_files(name, tmp_path):
    if "folder" in name:
        (tmp_path / name).mkdir()
    for read in (ez.read_annotations, ez.read_conll, ez.read_squad):
        assert refusal(read, tmp_path / name)


@pytest.mark.parametrize("path", [5, None, "a\0b", [], b"x"])
def test_what_is_no_path(path):
    for read in (ez.read_squad, ez.read_conll):
        with pytest.raises(ValueError, match="path is "):
            read(path)


@pytest.mark.parametrize(
    "keys, value, message",
    [
        ((0, "annotations"), {"result": []}, "'annotations' is {'result': []}"),
        ((0, "annotations", 0), 5, "'was_cancelled'"),
        ((0, "annotations", 0, "result"), "x", "'result' is 'x'"),
        ((0, "annotations", 0, "result", 0), None, "'type'"),
        ((0, "annotations", 0, "result", 0, "value"), [3, 7], "'value' is [3, 7]"),
        ((0, "annotations", 0, "result", 0, "value", "start"), None, "start=None"),
    ],
)
def test_the_error_names_row_and_key(keys, value, message, tmp_path):
    path = tmp_path / "label_studio.json"
    found = refusal(ez.read_annotations, written(path, changed(TOOLS[path.name], keys, value)))
    assert "Row 0" in found and message in found


def test_squad_names_the_place(tmp_path):
    path = tmp_path / "squad.json"
    keys = ("data", 0, "paragraphs", 0, "qas", 0, "answers", 0, "answer_start")
    found = refusal(ez.read_squad, written(path, changed(TOOLS["squad.json"], keys, "3")))
    assert "data[0].paragraphs[0].qas[0].answers[0]: 'answer_start' is '3'" in found


def test_a_small_file_does_not_become_a_large_one(tmp_path, monkeypatch):
    pytest.importorskip("spacy")
    from encoder_zoo.extras.annotations import files as annotation_files

    monkeypatch.setattr(annotation_files, "MAX_UNPACKED_BYTES", 2**22)
    path = tmp_path / "bomb.spacy"
    path.write_bytes(zlib.compress(bytes(2**24)))
    assert "bytes of memory" in refusal(ez.read_annotations, path)


@pytest.mark.parametrize(
    "line, message",
    [
        ("T1\tLOC 3 " + "9" * 5000 + "\tRome", "line 1 is 'T1"),
        ("T1\tLOC 3 7", "line 1 is 'T1"),
        ("T1\tLOC 30 70\tRome", "line 1: the span from 30 to 70 "),
    ],
)
def test_brat_names_the_line(line, message, tmp_path):
    (tmp_path / "a.txt").write_text("In Rome")
    (tmp_path / "a.ann").write_text(line)
    assert f"a.ann, {message}" in refusal(ez.read_annotations, tmp_path / "a.ann")
