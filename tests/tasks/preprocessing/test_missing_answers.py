"""Rows without text: every answering method gives None, and the other rows keep their answers."""

import numpy as np
import pandas as pd
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks import list_tasks
from encoder_zoo.testing import tiny

pa = pytest.importorskip("pyarrow")

GAPS = {"None": None, "NaN": float("nan"), "NA": pd.NA, "NaT": pd.NaT, "empty": "", "blank": " \n"}
GAP_ROWS = [1, 4]
FAMILY = {"replaced_token_detection": "electra", "pretraining": "bert"}


def with_gaps(rows, gap) -> list:
    """Return rows with two gaps, in `GAP_ROWS`."""
    rows = list(rows)
    return [rows[0], gap, rows[1], rows[2], gap]


CONTAINERS = {
    "list": list,
    "array": lambda rows: np.array([*rows, None], dtype=object)[:-1],
    "pandas": lambda rows: pd.Series(rows, dtype=object),
    "pandas string": lambda rows: pd.Series(
        rows, dtype="string" if isinstance(rows[0], str) else object
    ),
    "arrow": pa.array,
    "chunked": lambda rows: pa.chunked_array([rows]),
}


def build(cls):
    task = tiny.task(get_family(FAMILY.get(cls.record.name, "bert")), cls)
    task.new_head = None
    return task


def methods() -> dict:
    """Return {name: (method, its columns of texts, further arguments)} of all that answer texts."""
    found = {}
    for cls in list_tasks():
        if cls.record.text_method is None:
            continue
        task = build(cls)
        columns = [[*column, *column][:3] for column in task.tiny_questions()]
        texts = ["a b ab", "c d", "p"]
        columns = [texts if not all(column) else column for column in columns]
        if cls.record.name == "masked_lm":
            mask = task.preprocessor.tokenizer.mask_token
            columns = [[f"a {mask}", f"{mask} b c", f"p {mask}"]]
        if cls.record.name == "entity_extractor":
            columns, options = columns[:1], {"labels": ["a", "c"], "threshold": 0.0}
        else:
            options = {}
        method = cls.record.text_method
        found[f"{cls.__name__}.{method}"] = task, method, columns, options
        texts = [["a b ab", "c d", "p"]]
        if cls is ez.SequenceClassifier:
            found["predict_proba"] = task, "predict_proba", texts, {}
            found["pairs"] = task, "classify", [("a", "b"), ("c", "d"), ("p", "a")], {}
        if cls in (ez.SequenceClassifier, ez.TokenClassifier):
            more = {"method": "gradient_x_input"}
            found[f"{cls.__name__}.explain"] = task, "explain", texts, more
        if cls is ez.LateInteraction:
            found["embed_with_spans"] = task, "embed_with_spans", texts, {}
    found["TokenClassifier of words"] = (
        found["TokenClassifier.extract_entities"][0],
        "extract_entities",
        [[["a", "b"], ["c"], ["p", "d"]]],
        {},
    )
    words = found["TokenClassifier of words"]
    found["predict_tags"] = words[0], "predict_tags", *words[2:]
    return found


@pytest.fixture(scope="module")
def tasks():
    return methods()


def rows_of(answers) -> list:
    if hasattr(answers, "toarray"):
        answers = answers.toarray()
    return [answers[i] for i in range(len(answers))]


def is_none(answer, kind) -> bool:
    if answer is None:
        return True
    values = np.asarray(answer)
    return bool(np.all(values == 0) if kind == "sparse" else np.all(np.isnan(values)))


def assert_same(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list | tuple) and not isinstance(expected, str):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    elif isinstance(expected, str | None):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, atol=1e-5)


NAMES = [
    "SequenceClassifier.classify", "predict_proba", "pairs", "SequenceClassifier.explain",
    "TokenClassifier.extract_entities", "TokenClassifier of words", "predict_tags",
    "TokenClassifier.explain",
    "EntityExtractor.extract_entities", "SpanQA.answer", "MaskedLM.fill_mask",
    "ReplacedTokenDetection.detect", "TextEmbedder.embed", "SparseEncoder.embed",
    "LateInteraction.embed", "embed_with_spans", "Reranker.score", "MultipleChoice.choose",
]  # fmt: skip


@pytest.mark.slow
def test_the_table_has_every_method(tasks):
    assert sorted(tasks) == sorted(NAMES)


@pytest.mark.slow(only="fill_mask|SpanQA|ReplacedToken|EntityExtractor")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * n.endswith("explain")) for n in NAMES]
)
def test_rows_without_text_get_none(tasks, name):
    task, method, columns, options = tasks[name]
    answer = getattr(task, method)
    given = (list(columns),) if name == "pairs" else tuple(columns)
    expected = rows_of(answer(*given, **options))
    kind = "sparse" if name == "SparseEncoder.embed" else ""
    tried = [("list", gap) for gap in GAPS] + [(c, "None") for c in CONTAINERS]
    for container, gap in tried:
        make = CONTAINERS[container]
        if not isinstance(columns[0][0], str) and container not in ("list", "pandas"):
            continue  # lists of words, or pairs, are rows of Python
        gapped = tuple(make(with_gaps(column, GAPS[gap])) for column in given)
        found = rows_of(answer(*gapped, missing="none", **options))
        assert len(found) == 5, (container, gap)
        assert all(is_none(found[row], kind) for row in GAP_ROWS), (container, gap)
        assert_same([found[0], found[2], found[3]], expected)
    empty = rows_of(answer(*([None, None] for _ in given), missing="none", **options))
    assert len(empty) == 2 and all(is_none(row, kind) for row in empty)
    if len(given) == 1:
        assert answer(None, missing="none", **options) is None


@pytest.mark.slow
def test_a_gap_in_one_column_of_two(tasks):
    classifier, pair = tasks["pairs"][0], (["a", "b", None], ["c", "", "d"])
    expected = classifier.classify((["a"], ["c"]))
    for given in (
        pair,
        pd.DataFrame({"text": pair[0], "text_pair": pair[1]}),
        pa.table({"text": pair[0], "text_pair": pair[1]}),
        [*zip(*pair, strict=True)],
    ):
        assert_same(classifier.classify(given, missing="none"), [*expected, None, None])
    assert classifier.classify(("a", None), missing="none") is None
    qa = tasks["SpanQA.answer"][0]
    found = qa.answer(["a", "b"], ["a c", None], missing="none")
    assert_same(found, [*qa.answer(["a"], ["a c"]), None])
    reranker = tasks["Reranker.score"][0]
    found = reranker.score("a", ["b", None, "c d"], missing="none")
    np.testing.assert_allclose(found[[0, 2]], reranker.score("a", ["b", "c d"]), atol=1e-5)
    assert np.isnan(found[1])


@pytest.mark.slow
def test_labels_of_each_text_stay_with_it(tasks):
    extractor = tasks["EntityExtractor.extract_entities"][0]
    found = extractor.extract_entities(
        ["a b", None, "c d"], [["a"], ["b"], ["c"]], threshold=0.0, missing="none"
    )
    assert found[1] is None
    assert {e["label"] for e in found[0]} <= {"a"} and {e["label"] for e in found[2]} <= {"c"}


def test_other_columns_of_a_table_may_have_gaps(tasks):
    classifier = ez.SequenceClassifier(
        tasks["pairs"][0].backbone,
        ez.SequenceClassifierPreprocessor(
            tasks["pairs"][0].preprocessor.tokenizer, text_columns=["body"]
        ),
        num_classes=2,
    )
    table = pd.DataFrame({"body": ["a", None, "b"], "label": [None, 1, None]})
    found = classifier.classify(table, missing="none")
    assert [row is None for row in found] == [False, True, False]


def test_what_cannot_be_filtered_is_refused(tasks):
    classifier, qa = tasks["pairs"][0], tasks["SpanQA.answer"][0]
    with pytest.raises(ValueError, match="missing='none' is <generator"):
        classifier.classify((text for text in ["a"]), missing="none")
    with pytest.raises(ValueError, match="missing='none'.*question"):
        qa.answer("a", ["b c", None], missing="none")
    assert qa.answer("a", ["b c", "d"], missing="none")["passage"] in (0, 1, None)
    with pytest.raises(ValueError, match="missing is 'skip'"):
        classifier.classify(["a"], missing="skip")
    with pytest.raises(ValueError, match='missing="none"'):
        classifier.classify(["a", None])


def test_few_shot_and_zero_shot(tasks):
    model = ez.FewShotClassifier(
        tasks["TextEmbedder.embed"][0].backbone,
        ez.TextEmbedderPreprocessor(tasks["TextEmbedder.embed"][0].preprocessor.tokenizer),
        labels=["x", "y"],
    )
    model.fit(["a b", "c d", "p a", "d e"], ["x", "y", "x", "y"], epochs=0, verbose=0)
    assert [row is None for row in model.classify(["a", None], missing="none")] == [False, True]
    assert np.isnan(model.predict_proba(["a", None], missing="none")).any(axis=1).tolist() == [
        False,
        True,
    ]


def test_the_advice_keeps_every_row(tasks):
    column = pd.Series(["a", None, "b"], dtype=object)
    with pytest.raises(ValueError, match=r"`column.fillna\(\"\"\)`") as error:
        tasks["pairs"][0].fit((["a", "b", "c"], column), ["O", "B-X", "O"])
    assert "rop" not in str(error.value)
    filled = eval('column.fillna("")', {"column": column})
    assert len(filled) == 3 and tasks["pairs"][0].preprocessor.read_texts((filled, filled))
