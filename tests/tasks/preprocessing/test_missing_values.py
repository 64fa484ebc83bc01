"""Labels that are missing: containers x kinds x tasks x methods, all with one error; odd labels."""

import contextlib
import logging
import re

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import torch

import encoder_zoo as ez
from encoder_zoo.common.lazy import use_numpy
from encoder_zoo.common.missing import is_missing
from encoder_zoo.tasks.classification.class_labels import (
    convert_class_indices,
    convert_multi_label_targets,
    learn_classes,
)
from encoder_zoo.tasks.embedding.pair_columns import convert_scores
from encoder_zoo.tasks.preprocessing.given_labels import check_not_missing, log_suspicious_labels
from encoder_zoo.tasks.ranking.reranker_preprocessor import convert_pair_scores, list_scores
from encoder_zoo.tasks.tagging.token_labels import check_tags
from encoder_zoo.tasks.training.sources import TextData

NAN = float("nan")
TEXTS = ["good film", "bad film", "very good", "very bad"]
PAIRS = TEXTS, TEXTS[::-1]
LISTS = TEXTS, [["good", "bad"]] * 4
ERROR = r"^Row 2 has no label: it is {}.* \({} of 4 rows\)\. Drop such rows: "

KINDS = {  # what stands in the place of a label
    "None": None,
    "NaN": NAN,
    "float64 NaN": np.float64("nan"),
    "float32 NaN": np.float32("nan"),
    "NA": pd.NA,
    "NaT": pd.NaT,
    "NumPy's NaT": np.datetime64("NaT"),
    "empty": "",
    "blank": " \t",
    "empty bytes": b"",
}


def with_gap(good: list, gap, rows=(2,)) -> list:
    return [gap if row in rows else value for row, value in enumerate(good)]


def objects(values: list) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def series(values: list, **options) -> pd.Series:
    return pd.Series(values, name="label", **options)


def containers(good: list) -> dict:
    """Return labels of which the third is missing, in all the ways that containers have for it."""
    found = {}
    for kind, gap in KINDS.items():
        values = with_gap(good, gap)
        found |= {
            f"list {kind}": values,
            f"tuple {kind}": tuple(values),
            f"array of objects {kind}": objects(values),
            f"object column {kind}": series(values, dtype=object),
            f"table {kind}": pd.DataFrame({"label": series(values, dtype=object)}),
        }
    found["masked array"] = np.ma.masked_array(good, [0, 0, 1, 0])
    if isinstance(good[0], str):
        for gap in ("", "  "):
            values = with_gap(good, gap)
            found[f"array of str {gap!r}"] = np.array(values)
            found[f"array of bytes {gap!r}"] = np.array(values, "S")
            found[f"tensor {gap!r}"] = tf.constant(values)
            for dtype in ("str", "string", "category"):
                found[f"{dtype} column {gap!r}"] = series(values, dtype=dtype)
        for dtype in ("str", "string", "category"):
            found[f"{dtype} column"] = series(with_gap(good, None), dtype=dtype)
    else:
        values = with_gap(good, NAN)
        found["array of floats"] = np.array(values, "float64")
        found["array of halves"] = np.array(values, "float16")
        found["tensor of floats"] = tf.constant(values)
        for dtype in ("float64", "Float64", *(["Int64", "boolean"] * (good[0] in (0, 1)))):
            found[f"{dtype} column"] = series(with_gap(good, None), dtype=dtype)
    return found


NAMES, NUMBERS = ["up", "down", "up", "down"], [1, 0, 1, 0]
TAGS = [["O", "X"], ["X", "O"], ["O", "X"], ["X", "O"]]


def of_rows(good: list, gaps: dict) -> dict:
    """Return rows of labels of which the third is missing, or has a part that is."""
    found = {f"{kind} for a row": with_gap(good, gap) for kind, gap in KINDS.items()}
    found |= {name: with_gap(good, gap) for name, gap in gaps.items()}
    return found | {f"{name}, column": series(v, dtype=object) for name, v in found.items()}


def in_lists(make) -> dict:
    return {f"{kind} in a row": make(gap) for kind, gap in KINDS.items()}


def rows_of_tags() -> dict:
    return of_rows(TAGS, in_lists(lambda gap: ["O", gap]))


def rows_of_names() -> dict:
    return of_rows([["up"], [], ["down"], ["up", "down"]], in_lists(lambda gap: ["up", gap]))


def rows_of_spans() -> dict:
    good = [[(0, 4, "X")], [], [(0, 4, "X")], []]
    dicts = [[dict(zip(("start", "end", "label"), s, strict=True)) for s in row] for row in good]
    return (
        of_rows(good, in_lists(lambda gap: [(0, 4, gap)]))
        | of_rows(dicts, in_lists(lambda gap: [{"start": 0, "end": 4, "label": gap}]))
        | {"start": with_gap(dicts, [{"start": NAN, "end": 4, "label": "X"}])}
        | {"spaCy's": with_gap([{"entities": row} for row in good], {"entities": [(0, 4, None)]})}
    )


def matrices() -> dict:
    good = [[1, 0], [0, 1], [1, 1], [0, 0]]
    values = np.array(with_gap(good, [NAN, 1]))
    columns = {"up": values[:, 0], "down": values[:, 1]}
    return {
        "array": values,
        "masked array": np.ma.masked_array(good, [[0, 0], [0, 0], [0, 1], [0, 0]]),
        "lists": values.tolist(),
        "table": pd.DataFrame(columns),
        "table Int64": pd.DataFrame(columns).astype("Int64"),
        "columns": {name: column.tolist() for name, column in columns.items()},
    }


def rows_of_scores() -> dict:
    numbers = {k: v for k, v in KINDS.items() if is_missing(v)}
    found = of_rows([[1, 0]] * 4, {f"{kind} in a row": [1, v] for kind, v in numbers.items()})
    return found | {"array": np.array(with_gap([[1, 0]] * 4, [1, NAN]), "float32")}


def answers() -> dict:
    """A row of None is a question without an answer, so it is not missing here."""
    good, gaps = [{"text": "good", "answer_start": 0}] * 4, dict(KINDS)
    missing = {kind: gap for kind, gap in gaps.items() if gap is not None and is_missing(gap)}
    return (
        {kind: with_gap(good, gap) for kind, gap in missing.items()}
        | {f"column {kind}": series(with_gap(good, gap)) for kind, gap in missing.items()}
        | {"start": with_gap(good, {"text": "good", "answer_start": None})}
        | {"text": with_gap(good, {"text": None, "answer_start": 0})}
        | {"lists": with_gap(good, {"text": ["good", NAN], "answer_start": [0, 0]})}
    )


SEVERAL = {"problem_type": "multi_label_classification"}
# Task, its arguments, inputs, good labels, and those with a gap.
CASES = {
    "names to learn": ("SequenceClassifier", {}, TEXTS, NAMES, containers(NAMES)),
    "names": ("SequenceClassifier", {"labels": ["down", "up"]}, TEXTS, NAMES, containers(NAMES)),
    "numbers to learn": ("SequenceClassifier", {}, PAIRS, NUMBERS, containers(NUMBERS)),
    "numbers": ("SequenceClassifier", {"num_classes": 2}, TEXTS, NUMBERS, containers(NUMBERS)),
    "regression": (
        "SequenceClassifier",
        {"problem_type": "regression"},
        TEXTS,
        [0.5, 1.0, 2.0, 0.0],
        containers([0.5, 1.0, 2.0, 0.0]),
    ),
    "several to learn": (
        "SequenceClassifier",
        SEVERAL,
        TEXTS,
        [["up"], ["down"]] * 2,
        rows_of_names(),
    ),
    "several": (
        "SequenceClassifier",
        {**SEVERAL, "labels": ["down", "up"]},
        TEXTS,
        [["up"], []] * 2,
        rows_of_names() | matrices(),
    ),
    "no tags": ("TokenClassifier", {}, [t.split() for t in TEXTS], TAGS, rows_of_tags()),
    "tags": (
        "TokenClassifier",
        {"labels": ["O", "X"]},
        [t.split() for t in TEXTS],
        TAGS,
        rows_of_tags(),
    ),
    "spans": ("TokenClassifier", {}, TEXTS, [[(0, 4, "X")], [], [], []], rows_of_spans()),
    "answers": ("SpanQA", {}, (["good"] * 4, ["good film"] * 4), [None] * 4, answers()),
    "scores": ("Reranker", {}, PAIRS, NUMBERS, containers(NUMBERS)),
    "lists of scores": ("Reranker", {}, LISTS, [[1, 0]] * 4, rows_of_scores()),
    "choices": ("MultipleChoice", {}, LISTS, NUMBERS, containers(NUMBERS)),
    "similarities": (
        "TextEmbedder",
        {},
        PAIRS,
        [0.5, 1.0, 0.2, 0.0],
        containers([0.5, 1.0, 0.2, 0.0]),
    ),
    "vectors": (
        "TextEmbedder",
        {},
        TEXTS,
        np.eye(4),
        {"array": np.array(with_gap(np.eye(4).tolist(), [NAN, 0, 0, 0]))},
    ),
    "few examples": ("FewShotClassifier", {}, TEXTS, NAMES, containers(NAMES)),
    "few examples, named": (
        "FewShotClassifier",
        {"labels": ["down", "up"]},
        TEXTS,
        NAMES,
        containers(NAMES),
    ),
    "few examples, several": (
        "FewShotClassifier",
        {**SEVERAL, "labels": ["down", "up"]},
        TEXTS,
        [["up"], []] * 2,
        rows_of_names() | matrices(),
    ),
}


def build(name: str, **arguments):
    task = getattr(ez, name)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "very", "film"]
    preprocessor = task.record.preprocessor_class(ez.BertTokenizer(words))
    return task(ez.BertBackbone(len(words), 1, 1, 4, 8), preprocessor, **arguments)


def state(task) -> tuple:
    weights = [np.array(w) for w in task.backbone.weights]
    head = getattr(task, "head", None)
    steps = int(task.optimizer.iterations) if getattr(task, "optimizer", None) else 0
    return getattr(task, "labels", None), head, steps, weights


@pytest.mark.parametrize("case", CASES)
def test_every_task_says_it_before_it_does_anything(case):
    name, arguments, x, good, missing = CASES[case]
    task = build(name, **arguments)
    before = state(task)
    uses = {"fit": lambda y: task.fit(x, y)}
    if name != "FewShotClassifier":
        uses["validation"] = lambda y: task.fit(x, good, validation_data=(x, y))
    if before[1] is not None or not name.endswith("Classifier"):
        uses["evaluate"] = lambda y: task.evaluate(x, y)
    tried = 0
    for use, call in uses.items():
        for container, y in missing.items():
            with pytest.raises(ValueError) as error:
                call(y)
            assert re.search(ERROR.format(".*", 1), str(error.value)), (use, container, error.value)
            tried += 1
    after = state(task)
    assert after[:3] == before[:3] and after[2] == 0
    for value, other in zip(after[3], before[3], strict=True):
        np.testing.assert_array_equal(value, other)
    assert tried == len(uses) * len(missing) > 0


def test_how_many_are_tried():
    assert sum(len(missing) for *_, missing in CASES.values()) > 700


@pytest.mark.parametrize("y", [*containers(NAMES).values(), *containers(NUMBERS).values()])
@pytest.mark.parametrize("x", [TEXTS, PAIRS], ids=["texts", "pairs"])
def test_the_advice_is_code_that_works(x, y):
    with pytest.raises(ValueError) as error:
        check_not_missing(y, x)
    names = {"x": x, "y": y, "pd": pd}
    if getattr(y, "name", None) or isinstance(y, pd.DataFrame):
        names["table"] = pd.DataFrame({"text": TEXTS, "label": y if y.ndim == 1 else y["label"]})
    exec(str(error.value).partition("Drop such rows: ")[2], names)
    left = names["table"]["label"] if "table" in names else names["y"]
    assert len(left) == 3 and check_not_missing(left) is left
    if "table" not in names:
        assert names["x"] == (
            [TEXTS[0], TEXTS[1], TEXTS[3]]
            if x is TEXTS
            else tuple([column[0], column[1], column[3]] for column in PAIRS)
        )


@pytest.mark.parametrize("rows", [rows_of_names(), rows_of_tags(), rows_of_spans(), matrices()])
def test_the_advice_for_rows_of_labels(rows):
    for y in rows.values():
        with pytest.raises(ValueError) as error:
            check_not_missing(y, TEXTS)
        table = y.to_frame() if isinstance(y, pd.Series) else y
        names = {"x": TEXTS, "y": y, "pd": pd, "table": table}
        exec(str(error.value).partition("Drop such rows: ")[2], names)
        left = names["table"] if names["table"] is not table else names["y"]
        assert len(left) == 3 and check_not_missing(left) is left


@pytest.mark.parametrize("context", [contextlib.nullcontext, use_numpy])
@pytest.mark.parametrize(
    "y",
    [
        tf.constant(["up", "down", " ", "up"]),
        tf.constant([0.0, 1.0, NAN, 1.0]),
        torch.tensor([0.0, 1.0, NAN, 1.0], requires_grad=True),
        jnp.array([0.0, 1.0, NAN, 1.0]),
    ],
    ids=["texts in TensorFlow", "TensorFlow", "PyTorch", "JAX"],
)
def test_tensors_of_every_package(y, context):
    """Other backends than TensorFlow check labels in NumPy, as inside `use_numpy`."""
    with context(), pytest.raises(ValueError, match="Row 2 has no label"):
        check_not_missing(y)


class TestEstimators:
    @pytest.mark.parametrize("estimator", ["TextClassifier", "TextRegressor"])
    def test_of_scikit_learn(self, estimator):
        sklearn = pytest.importorskip("encoder_zoo.sklearn")
        good = NAMES if estimator == "TextClassifier" else NUMBERS
        for y in containers(good).values():
            with pytest.raises(ValueError, match=ERROR.format(".*", 1)):
                getattr(sklearn, estimator)().fit(TEXTS, y)

    def test_of_several_labels(self):
        sklearn = pytest.importorskip("encoder_zoo.sklearn")
        for y in matrices().values():
            if not isinstance(y, dict):
                with pytest.raises(ValueError, match=ERROR.format(".*", 1)):
                    sklearn.TextClassifier().fit(TEXTS, y)

    def test_whole_floats_are_not_names(self):
        assert learn_classes(["1", 1.0, 2]) == ["1", "2"]


def dataset(y) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((TEXTS, y))


class TestDatasets:
    @pytest.mark.slow(except_for=r"^None-y1$")
    @pytest.mark.parametrize("y", [with_gap(NAMES, ""), [1.0, 0.0, NAN, 0.0]])
    @pytest.mark.parametrize("batch", [None, 2])
    def test_labels_to_learn(self, y, batch):
        data = dataset(y) if batch is None else dataset(y).batch(batch)
        with pytest.raises(ValueError, match=ERROR.format(".*", 1)) as error:
            build("SequenceClassifier").fit(data)
        cure = str(error.value).partition("Drop such rows: ")[2]
        left = eval(cure, {"dataset": data, "tf": tf})
        assert len(list(left if batch is None else left.unbatch())) == 3

    @pytest.mark.matrix
    @pytest.mark.parametrize(
        ("arguments", "y"),
        [
            ({"labels": ["down", "up"]}, with_gap(NAMES, " ")),
            pytest.param({"num_classes": 2}, [1.0, 0.0, NAN, 0.0], marks=pytest.mark.slow),
            pytest.param(
                {"problem_type": "regression"}, [1.0, 0.0, NAN, 0.0], marks=pytest.mark.slow
            ),
        ],
    )
    def test_labels_that_are_known(self, arguments, y):
        task = build("SequenceClassifier", **arguments)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Row 2 of the batch has no label"):
            list(dataset(y).batch(4).map(lambda _, y: task.preprocessor.encode_labels(y)))

    @pytest.mark.matrix
    @pytest.mark.parametrize(
        ("check", "y"),
        [
            (lambda y: check_tags(y, y.row_lengths(), ["O"], 1), [["O"], ["O", "", "O"]]),
            *(
                pytest.param(*case, marks=pytest.mark.slow)
                for case in (
                    (convert_pair_scores, [1.0, NAN]),
                    (lambda y: list_scores(y, y.row_lengths()), [[1.0], [0.0, NAN]]),
                    (convert_scores, [1.0, NAN]),
                    (lambda y: convert_multi_label_targets(y, None, 2), [[1.0, 0.0], [NAN, 0.0]]),
                )
            ),
        ],
    )
    def test_of_other_tasks(self, check, y):
        y = tf.constant(y) if len(set(map(np.size, y))) == 1 else tf.ragged.constant(y)
        with pytest.raises(tf.errors.InvalidArgumentError, match="1 of the batch has no label"):
            list(tf.data.Dataset.from_tensors(y).map(check))


def logged(caplog, y) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        log_suspicious_labels(y)
    return [record.getMessage() for record in caplog.records]


class TestOddLabels:
    @pytest.mark.parametrize(
        ("y", "words"),
        [
            (["a", "nan", "b", "nan"], ["'nan' (2 times, first in row 1)"]),
            (np.asarray(["a", NAN]), ["'nan' (1 times, first in row 1)"]),
            (["a", "None", "NA", "<NA>", "null"], ["'None'", "'NA'", "'<NA>'", "'null'"]),
            (["good ", "good", "bad"], ["start or end with spaces: 'good '", "addition to 'good'"]),
            (["bad", " good"], ["start or end with spaces: ' good'"]),
            (["good", "Good", "bad"], ["'Good', 'good'"]),
            (["caf\u00e9", "cafe\u0301", "tea"], [r"'caf\xe9'", r"'cafe\u0301'"]),
            ([1, "2", "a"], ["1 (int), '2' (str)"]),
            ([1, "1", 2], ["1, '1' are one class"]),
            ([0, "0", "b"], ["0, '0' are one class"]),
            ([True, 0, 1], ["True (bool), 0 (int)", "True is 1 and False 0"]),
            ([True, False], ["booleans: True, False"]),
            (pd.Series([1.0, 0.0]), ["floats without decimals: 1.0, 0.0", "1, 0."]),
            ([["O", "X "], ["O"]], ["start or end with spaces: 'X '"]),
            ([[(0, 4, "per")], [(0, 2, "PER")]], ["'PER', 'per'"]),
            ([["up", "Up"], []], ["'Up', 'up'"]),
        ],
    )  # fmt: skip
    def test_one_line_names_them(self, caplog, y, words):
        [line] = logged(caplog, y)
        assert all(word in line for word in words), line

    @pytest.mark.parametrize(
        "y",
        [
            NAMES,
            NUMBERS,
            ["1", "2"],
            [0.5, 1.0],
            np.eye(3),
            [[0, 1, 1], [1, 0, 0]],
            TAGS,
            [[(0, 4, "X")], []],
            pd.Series(NUMBERS, dtype="Int64"),
            pd.Series(NAMES, dtype="category"),
        ],
    )
    def test_ordinary_labels_are_not_logged(self, caplog, y):
        assert not logged(caplog, y)

    @pytest.mark.parametrize(
        ("y", "names", "numbers"),
        [
            ([1, "2", "a"], ["1", "2", "a"], [0, 1, 2]),
            ([1, "1", 2.0], ["1", "2"], [0, 0, 1]),
            ([0, "0", "b"], ["0", "b"], [0, 0, 1]),
            ([1.0, "a", "1"], ["1", "a"], [0, 1, 0]),
            ([True, "a"], ["True", "a"], [0, 1]),
            (["good ", "good"], ["good", "good "], [1, 0]),
            ([1.5, "a"], ["1.5", "a"], [0, 1]),
        ],
    )
    def test_what_is_learned_of_them(self, y, names, numbers):
        assert learn_classes(y) == names
        assert np.asarray(convert_class_indices(y, names, len(names))).tolist() == numbers

    def test_fit_logs_them(self, caplog):
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            build("SequenceClassifier")._adapt_to_data(
                TextData(TEXTS, ["good ", "good", "bad", "bad"])
            )
        assert sum("start or end with spaces" in r.getMessage() for r in caplog.records) == 1


class TestTexts:
    def test_missing_ones_are_counted(self):
        task = build("SequenceClassifier", num_classes=2)
        for name, texts in containers(TEXTS).items():
            if "empty" in name or "blank" in name or name.endswith("'") or name.startswith("tuple"):
                continue  # an empty text is a text, and a tuple has columns
            for use in (task.preprocessor, lambda x: task.fit(x, NUMBERS), task.classify):
                with pytest.raises(ValueError, match=r"1 of 4 rows of \w+ is missing.*row 2"):
                    use(texts)
