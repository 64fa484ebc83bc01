"""Missing labels in columns and tables of polars, Arrow and datasets: the error, and its advice."""

import re

import datasets
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import encoder_zoo as ez
from encoder_zoo.tasks.preprocessing.given_labels import check_not_missing

pytestmark = pytest.mark.peers
NAN = float("nan")
TEXTS = ["good film", "bad film", "very good", "very bad"]
GAPS = {
    "null": ["up", "down", None, "down"],
    "empty": ["up", "down", "", "down"],
    "blank": ["up", "down", " ", "down"],
    "number": [1, 0, None, 0],
    "NaN": [1.0, 0.0, NAN, 0.0],
}
MADE = {
    "polars": lambda y: pl.DataFrame({"text": TEXTS, "label": y}),
    "arrow": lambda y: pa.table({"text": TEXTS, "label": pa.array(y)}),
    "datasets": lambda y: datasets.Dataset.from_dict({"text": TEXTS, "label": y}),
}


@pytest.fixture(scope="module")
def classifier():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "very", "film"]
    preprocessor = ez.SequenceClassifierPreprocessor(ez.BertTokenizer(words))
    return ez.SequenceClassifier(ez.BertBackbone(9, 1, 1, 4, 8), preprocessor)


@pytest.mark.parametrize("library", MADE)
@pytest.mark.parametrize("gap", GAPS)
def test_row_count_and_cure(classifier, library, gap):
    table = MADE[library](GAPS[gap])
    x, y = table["text"], table["label"]
    with pytest.raises(ValueError) as error:
        classifier.fit(x, y)
    message = str(error.value)
    assert re.match(r"Row 2 has no label: it is .* \(1 of 4 rows\)\. Drop such rows: ", message)
    names = {"x": x, "y": y, "table": table, "dataset": table, "pl": pl, "pa": pa, "pc": pc}
    exec(message.partition("Drop such rows: ")[2], names)
    left = {"arrow": names["y"], "polars": names["table"], "datasets": names["dataset"]}[library]
    left = left if library == "arrow" else left["label"]
    assert len(left) == 3
    check_not_missing(left)


@pytest.mark.parametrize("gap", GAPS)
def test_tables_of_labels(gap):
    for library in ("polars", "arrow"):
        table = MADE[library](GAPS[gap]).select(["label"])
        with pytest.raises(ValueError, match=r"^Row 2 .*1 of 4") as error:
            check_not_missing(table)
        names = {"table": table, "pl": pl, "pc": pc}
        exec(str(error.value).partition("Drop such rows: ")[2], names)
        assert len(names["table"]) == 3
