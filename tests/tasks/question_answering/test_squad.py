"""SQuAD's scores, worked by hand from the official scripts' rules, and the reader."""

import json

import pytest

import encoder_zoo as ez
from encoder_zoo.tasks.question_answering.squad import (
    compute_exact_match,
    compute_squad_scores,
    compute_squad_v2_scores,
    compute_word_f1,
    normalize_answer,
)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("The Cat", "cat"),
        ("a  an\tthe\n", ""),
        ("theatre another", "theatre another"),
        ("U.S.-led", "usled"),
        ("the-cat", "thecat"),  # punctuation goes before articles
        ("“Cat”", "“cat”"),  # only ASCII punctuation goes
        ("ÉCOLE", "école"),
        ("$5,000 (a year)", "5000 year"),
    ],
)
def test_normalization(text, expected):
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    "prediction, answer, exact, f1",
    [
        ("the cat", "Cat!", 1.0, 1.0),
        ("black cat", "cat", 0.0, 2 / 3),
        ("cat cat", "cat", 0.0, 2 / 3),  # words count as often as they stand
        ("cat cat dog", "cat cat", 0.0, 0.8),
        ("dog", "cat", 0.0, 0.0),
        ("", "cat", 0.0, 0.0),
    ],
)
def test_scores_of_one_answer(prediction, answer, exact, f1):
    assert compute_exact_match(prediction, answer) == exact
    assert compute_word_f1(prediction, answer) == pytest.approx(f1)


def test_texts_without_words_agree_in_v2_only():
    assert compute_word_f1("the", "a") == 1.0
    assert compute_word_f1("the", "a", empty_matches=False) == 0.0


def test_v1_takes_the_best_over_the_answers():
    scores = compute_squad_scores(["big cat", "dog"], [["small cat", "big cats", "big"], ["wolf"]])
    assert scores == {"exact_match": 0.0, "f1": pytest.approx(100 / 3), "total": 2}


ANSWERS = [["cat"], ["dog", "a dog"], [], []]
GUESSES = ["cat", "big dog", "fish", ""]


def test_v2_without_null_scores():
    scores = compute_squad_v2_scores(GUESSES, ANSWERS)
    assert scores == {
        "exact_match": 50.0,
        "f1": pytest.approx((1 + 2 / 3 + 0 + 1) / 4 * 100),
        "total": 4,
        "HasAns_exact_match": 50.0,
        "HasAns_f1": pytest.approx((1 + 2 / 3) / 2 * 100),
        "HasAns_total": 2,
        "NoAns_exact_match": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }


def test_v2_with_a_threshold():
    # Above the threshold: the second and the third question count as unanswered.
    scores = compute_squad_v2_scores(GUESSES, ANSWERS, [-5.0, 3.0, 2.0, 0.0], null_threshold=1.0)
    assert (scores["HasAns_exact_match"], scores["NoAns_exact_match"]) == (50.0, 100.0)
    assert (scores["exact_match"], scores["f1"]) == (75.0, 75.0)


def test_the_best_threshold_by_hand():
    # Silence everywhere: 2 of 4. In the order of the null scores: cat (-5) +1 = 3; "" (0) costs
    # nothing; fish (2) -1 = 2; big dog (3) exact +0 = 2, F1 +2/3 = 2.67.
    scores = compute_squad_v2_scores(GUESSES, ANSWERS, [-5.0, 3.0, 2.0, 0.0])
    assert (scores["best_exact_match"], scores["best_exact_match_thresh"]) == (75.0, -5.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (75.0, -5.0)
    eager = compute_squad_v2_scores(GUESSES, ANSWERS, [-5.0, 1.0, 2.0, 0.0])
    assert eager["best_f1"] == pytest.approx((2 + 1 + 2 / 3) / 4 * 100)
    assert eager["best_f1_thresh"] == 1.0


def test_it_is_best_to_answer_nothing():
    scores = compute_squad_v2_scores(["x", "y"], [[], []], [-1.0, 1.0])
    assert (scores["best_exact_match"], scores["best_exact_match_thresh"]) == (100.0, 0.0)


def test_counts_must_agree():
    with pytest.raises(ValueError, match="1 predictions.* 2 "):
        compute_squad_scores(["x"], [["x"], ["y"]])


def test_the_reader(tmp_path):
    answer = {"text": "Anna", "answer_start": 0}
    questions = [
        {"id": "1", "question": "Who?", "answers": [answer]},
        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    paragraph = {"context": "Anna sings.", "qas": questions}
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [paragraph]}]}))
    first, second = ez.read_squad(path)
    assert first == {
        "id": "1",
        "question": "Who?",
        "context": "Anna sings.",
        "answers": [answer],
    }
    assert second["answers"] == []


@pytest.mark.parametrize("content", ["[]", "{}", '{"data": [{"x": 1}]}', "no JSON"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="SQuAD"):
        ez.read_squad(path)
