"""On TensorFlow, an answer to one text is one call of the model's graph and work in NumPy."""

import collections

import keras
import pytest
import small_tasks
from tensorflow.python import pywrap_tfe

if keras.config.backend() != "tensorflow":
    pytest.skip("counts operations of TensorFlow", allow_module_level=True)

ANSWERS = {
    "SequenceClassifier": lambda task: task.classify("one two"),
    "TokenClassifier": lambda task: task.extract_entities("one two"),
    "EntityExtractor": lambda task: task.extract_entities("one two", ["three"]),
    "SpanQA": lambda task: task.answer("one?", "two three"),
    "MaskedLM": lambda task: task.fill_mask(f"one {task.preprocessor.tokenizer.mask_token}"),
    "ReplacedTokenDetection": lambda task: task.detect("one two"),
    "MultipleChoice": lambda task: task.choose("one?", ["two", "three"]),
    "Reranker": lambda task: task.rank("one?", ["two", "three"]),
    "TextEmbedder": lambda task: task.embed("one two"),
    "LateInteraction": lambda task: task.embed("one two"),
    "SparseEncoder": lambda task: task.embed("one two"),
}
FAMILIES = {"ReplacedTokenDetection": "electra"}
MOST = 10  # operations outside of graphs


@pytest.fixture
def executed(monkeypatch):
    """The number of calls that run operations and graphs."""
    counts = collections.Counter()

    def count(name, function):
        def call(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    for name in ("TFE_Py_FastPathExecute", "TFE_Py_Execute"):
        monkeypatch.setattr(pywrap_tfe, name, count(name, getattr(pywrap_tfe, name)))
    return counts


@pytest.mark.parametrize("name", ANSWERS)
def test_one_text_runs_one_graph_and_few_operations(name, executed):
    task = small_tasks.make(name, small_tasks.get_family(FAMILIES.get(name, "bert")))
    expected = ANSWERS[name](task)  # traces the graph
    executed.clear()
    assert str(ANSWERS[name](task)) == str(expected)
    assert executed["TFE_Py_Execute"] == 1
    assert executed["TFE_Py_FastPathExecute"] <= MOST
