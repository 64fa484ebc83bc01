"""Files of lines are read with the line endings of every system, and with spaces around tabs."""

import json

import pytest

import encoder_zoo as ez

ENDINGS = {"Linux": "\n", "Windows": "\r\n", "old Mac": "\r"}
CONLL = [["EU", "calls"], ["Rome"]], [["B-ORG", "O"], ["B-LOC"]]


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
class TestEndings:
    @pytest.mark.parametrize("tab", ["\t", " ", " \t ", "  "])
    def test_conll(self, ending, tab, tmp_path):
        lines = [f"EU{tab}B-ORG", f"calls{tab}O", "", f"Rome{tab}B-LOC", ""]
        (tmp_path / "a.conll").write_bytes(ending.join(lines).encode())
        assert ez.read_conll(tmp_path / "a.conll") == CONLL

    def test_rows_of_json(self, ending, tmp_path):
        rows = [{"text": "In Rome", "label": [[3, 7, "LOC"]]}, {"text": "\x85", "label": []}]
        text = ending.join([json.dumps(row, ensure_ascii=False) for row in rows] + [""])
        (tmp_path / "a.jsonl").write_bytes(text.encode())
        assert ez.read_annotations(tmp_path / "a.jsonl").x == ["In Rome", "\x85"]

    def test_brat(self, ending, tmp_path):
        (tmp_path / "a.txt").write_text("In Rome now")
        lines = ["T1\tLOC 3 7\tRome", "T2\tTIME 8 11\tnow"]
        (tmp_path / "a.ann").write_bytes(ending.join(lines).encode())
        [spans] = ez.read_annotations(tmp_path / "a.ann").y
        assert [span["label"] for span in spans] == ["LOC", "TIME"]


@pytest.mark.parametrize("line", ["#a=b O", "#a=b\tO"])
def test_a_hashtag_is_a_word(line, tmp_path):
    (tmp_path / "a.conll").write_text(f"{line}\n")
    assert ez.read_conll(tmp_path / "a.conll") == ([["#a=b"]], [["O"]])


@pytest.mark.parametrize("comment", ["# text = a b", "#id = 1", "#id=1"])
def test_a_comment_is_no_word(comment, tmp_path):
    (tmp_path / "a.conll").write_text(f"{comment}\nEU B-ORG\n")
    assert ez.read_conll(tmp_path / "a.conll") == ([["EU"]], [["B-ORG"]])


def test_words_with_their_tags_are_refused(tmp_path):
    (tmp_path / "wiki.iob").write_text("EU|NNP|I-ORG calls|VBZ|O\nRome|NNP|I-LOC .|.|O\n")
    with pytest.raises(ValueError, match="wiki.iob.*EU.NNP.I-ORG"):
        ez.read_conll(tmp_path / "wiki.iob")
