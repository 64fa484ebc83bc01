"""Rows of one context are questions about it, not a column of names."""

import json

import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import get_family

pytestmark = pytest.mark.eager


@pytest.mark.parametrize("context", ["The cat sat on the mat.", "東京は日本の首都です。", "Paris"])
def test_three_questions_of_one_paragraph(tiny, tmp_path, context):
    answers = [{"text": context[:3], "answer_start": 0}]
    questions = [{"id": str(i), "question": f"which {i}", "answers": answers} for i in range(3)]
    file = {"data": [{"paragraphs": [{"context": context, "qas": questions}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(file))
    rows = ez.read_squad(tmp_path / "squad.json")
    history = tiny.task(get_family("bert"), "SpanQA").fit(rows, verbose=0).history
    assert history["loss"][0] > 0
