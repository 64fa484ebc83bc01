"""EntityF1: hand-worked cases, masks, averages, and agreement with the reading tag by tag."""

import keras
import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.tasks.tagging.entity_metrics import TokenAccuracy, score_entities, score_tags

TAGS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


def numbers(*sentences: str) -> np.ndarray:
    """Sentences such as "B-PER O", padded with O."""
    rows = [[TAGS.index(tag) for tag in sentence.split()] for sentence in sentences]
    return np.array([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])


def scores(metric: ez.EntityF1) -> dict:
    return {name: float(value) for name, value in metric.result().items()}


@pytest.mark.parametrize(
    "true, predicted, correct, guessed, right",
    [
        ("B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC", 2, 2, 2),
        ("B-PER I-PER O", "B-PER O O", 0, 1, 1),  # too short
        ("B-PER O O", "B-PER I-PER O", 0, 1, 1),  # too long
        ("B-PER I-PER", "B-LOC I-LOC", 0, 1, 1),  # of another type
        ("B-PER I-PER", "B-PER B-PER", 0, 2, 1),  # one split into two
        ("O B-PER I-PER", "O I-PER I-PER", 1, 1, 1),  # ill-formed, but read
        ("B-PER I-PER", "B-PER I-LOC", 0, 2, 1),
        ("O O", "O O", 0, 0, 0),
        ("O B-LOC", "O O", 0, 0, 1),
        ("B-PER", "B-PER", 1, 1, 1),  # at the very end
    ],
)
def test_hand_worked_cases(true, predicted, correct, guessed, right):
    metric = ez.EntityF1(TAGS)
    metric.update_state(numbers(true), numbers(predicted))
    expected = {
        "precision": correct / guessed if guessed else 0.0,
        "recall": correct / right if right else 0.0,
        "f1": 2 * correct / (guessed + right) if guessed + right else 0.0,
    }
    assert scores(metric) == pytest.approx(expected)


def test_masked_positions_are_not_there():
    metric = ez.EntityF1(TAGS)
    true = numbers("O B-PER B-LOC I-PER B-PER O")
    predicted = numbers("B-LOC B-PER O I-PER O B-LOC")
    # What is left: B-PER I-PER on both sides.
    metric.update_state(true, predicted, sample_weight=np.array([[0, 1, 0, 1, 0, 0]]))
    assert scores(metric) == {"precision": 1.0, "recall": 1.0, "f1": 1.0}
    assert float(keras.ops.sum(metric.counts)) == 3


def test_negative_tags_are_masked_too():
    metric = ez.EntityF1(TAGS)
    metric.update_state(np.array([[-100, 3, -100, 4]]), np.array([[1, 3, 1, 4]]))
    assert scores(metric)["precision"] == 1.0


def test_scores_of_logits_and_of_several_batches_add_up():
    metric = ez.EntityF1(TAGS)
    logits = np.eye(5)[numbers("B-PER I-PER O")]
    metric.update_state(numbers("B-PER I-PER O"), logits)
    metric.update_state(numbers("B-LOC"), numbers("O"))
    assert scores(metric) == pytest.approx({"precision": 1.0, "recall": 0.5, "f1": 2 / 3})
    metric.reset_state()
    assert scores(metric)["f1"] == 0.0


def test_averages_over_types():
    # PER: 1 of 1 found, LOC: 0 of 2 found with 1 wrong guess.
    true, predicted = numbers("B-PER O B-LOC O B-LOC O"), numbers("B-PER O O O O B-LOC")
    results = {}
    for average in ("micro", "macro", "weighted"):
        metric = ez.EntityF1(TAGS, average)
        metric.update_state(true, predicted)
        results[average] = scores(metric)
    assert results["micro"] == pytest.approx({"precision": 0.5, "recall": 1 / 3, "f1": 0.4})
    assert results["macro"] == pytest.approx({"precision": 0.5, "recall": 0.5, "f1": 0.5})
    assert results["weighted"]["f1"] == pytest.approx(1 / 3)
    assert metric.report()["LOC"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 2.0}


def test_an_unknown_average_is_refused():
    with pytest.raises(ValueError, match="average is 'mean'"):
        ez.EntityF1(TAGS, "mean")


def test_tensors_and_names_give_the_same_on_random_tags():
    rng = np.random.default_rng(0)
    tags = [*TAGS, "E-PER", "S-PER", "E-LOC", "S-LOC"]
    true, predicted = rng.integers(0, len(tags), (2, 200, 9))
    metric = ez.EntityF1(tags)
    metric.update_state(true, predicted)
    named = score_tags(*([[tags[i] for i in row] for row in rows] for rows in (true, predicted)))
    assert {**scores(metric), "per_type": metric.report()} == named
    assert 0 < named["f1"] < 1


def test_a_stray_tag_is_of_a_known_type():
    true, predicted = [["S-LOC", "O"]], [["S-LOC", "E-PER"]]
    scores = score_tags(true, predicted, tag_set=["O", "S-LOC", "B-PER", "E-PER"])
    assert set(scores["per_type"]) == {"LOC", "PER"}


@pytest.mark.parametrize(
    "true, predicted, f1_of_types",
    [
        (
            [{("B-cell", 0, 4)}, {("DNA", 0, 3)}],
            [{("B-cell", 0, 4)}, set()],
            {"B-cell": 1, "DNA": 0},
        ),
        ([{("B-cell", 0, 4), ("cell", 5, 9)}], [{("B-cell", 0, 4)}], {"B-cell": 1, "cell": 0}),
        ([{("O", 0, 4), ("U-Boot", 5, 9)}], [{("U-Boot", 5, 9)}], {"O": 0, "U-Boot": 1}),
    ],
)
def test_a_type_may_look_like_a_tag(true, predicted, f1_of_types):
    found = score_entities(true, predicted)
    assert {kind: scores["f1"] for kind, scores in found["per_type"].items()} == f1_of_types
    assert (found["precision"], found["recall"]) == (1.0, 0.5)


def test_tags_of_types_that_look_like_tags():
    true = [["B-B-cell", "I-B-cell", "O", "B-cell"], ["B-DNA"]]
    predicted = [["B-B-cell", "I-B-cell", "O", "O"], ["O"]]
    found = score_tags(true, predicted)["per_type"]
    assert {kind: scores["f1"] for kind, scores in found.items()} == {
        "B-cell": 1.0,
        "DNA": 0.0,
        "cell": 0.0,
    }


def test_long_rows_need_little_memory():
    # Every position against every other would take 10 GB.
    metric = ez.EntityF1(TAGS)
    tags = np.zeros((1, 100_000), "int32")
    tags[0, ::3] = 3
    metric.update_state(tags, tags)
    assert float(metric.counts[2, 1]) == 33334


def test_sentences_of_different_length_are_refused():
    with pytest.raises(ValueError, match="Sentence 1 has 2 true.*1 predicted tags"):
        score_tags([["O"], ["O", "O"]], [["O"], ["O"]])


def test_it_comes_back_from_its_configuration():
    metric = ez.EntityF1(TAGS, average="macro", name="entities")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert (again.labels, again.average, again.name) == (TAGS, "macro", "entities")


def test_accuracy_does_not_depend_on_padding():
    metric = TokenAccuracy()
    # 1 of 2 words right in a batch of length 2, 1 of 1 in one of length 4.
    metric.update_state([[1, 1]], np.eye(2)[[[1, 0]]], np.ones((1, 2)))
    metric.update_state([[1, 0, 0, 0]], np.eye(2)[[[1, 1, 1, 1]]], [[1.0, 0.0, 0.0, 0.0]])
    assert float(metric.result()) == pytest.approx(2 / 3)


def test_the_accuracy_of_tokens_by_name_is_that_of_the_default():
    backbone = ez.BertBackbone(20, 1, 1, 4, 8, pooler=False)
    found = []
    for metrics in (None, ["accuracy"]):
        model = ez.TokenClassifier(backbone, labels=["O", "B-X"])
        model.compile(metrics=metrics)
        for length, right in ((2, [1, 0]), (4, [1, 0, 0, 0])):
            logits = np.float32(np.eye(2)[[1] * length])[None]
            weights = np.float32([[1.0, 1.0] if length == 2 else [1.0, 0.0, 0.0, 0.0]])
            x = {"token_ids": np.full((1, length), 7)}
            results = model.compute_metrics(x, np.array([right]), logits, weights)
        found.append(float(results["accuracy"]))
    assert found == pytest.approx([2 / 3] * 2)
