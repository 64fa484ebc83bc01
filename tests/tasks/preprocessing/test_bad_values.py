"""Values that no task can mean are refused, with what was expected, by every task and method."""

import json
import logging

import numpy as np
import pytest
import scipy.sparse

import encoder_zoo as ez
from encoder_zoo.encoders import get_family

SURROGATE = "a \udc80 b"
EMBEDDERS = ("TextEmbedder", "LateInteraction", "SparseEncoder")
# One text in a list of its own, in place of a text: rows of one column, or a slip.
NESTED = ([["a"]], [("a",)], [["a"], ["b"]], [[["a"]]], ["a", ["b"]])


@pytest.fixture(scope="module")
def model(tiny):
    made = {}

    def task(name):
        if name not in made:
            made[name] = tiny.task(get_family("bert"), name)
        return made[name]

    return task


CALLS = {
    "SequenceClassifier": {
        "classify": lambda m, x: m.classify(x),
        "predict": lambda m, x: m.predict(x, verbose=0),
        "evaluate": lambda m, x: m.evaluate(x, [0] * len(x), verbose=0),
        "fit": lambda m, x: m.fit(x, [0] * len(x), verbose=0),
        "explain": lambda m, x: m.explain(x),
    },
    "MaskedLM": {
        "fill_mask": lambda m, x: m.fill_mask(x),
        "evaluate": lambda m, x: m.evaluate(x, verbose=0),
        "fit": lambda m, x: m.fit(x, verbose=0),
    },
    "SpanQA": {
        "question": lambda m, x: m.answer(question=x, context=["a"] * len(x)),
        "context": lambda m, x: m.answer(question=["a"] * len(x), context=x),
    },
    "Reranker": {
        "score": lambda m, x: m.score("a", x),
        "rank": lambda m, x: m.rank("a", x),
        "query": lambda m, x: m.rank(x, ["a"]),
    },
    "MultipleChoice": {"question": lambda m, x: m.choose(x, [["a", "b"]] * len(x))},
    **{
        name: {
            "embed": lambda m, x: m.embed(x),
            "predict": lambda m, x: m.predict(x, verbose=0),
            "similarity": lambda m, x: m.similarity(x, ["a"]),
            "other": lambda m, x: m.similarity(["a"], x),
            "chunks": lambda m, x: m.chunks(x, 8),
            "index": lambda m, x: m.index(x),
            "add": lambda m, x: m.index(["a"]).add(x),
            "update": lambda m, x: m.index(["a"], ids=["1"]).update(x, ids=["1"] * len(x)),
            "search": lambda m, x: m.index(["a"]).search(x),
            "mine_negatives": lambda m, x: m.mine_negatives(x, ["a", "b"]),
        }
        for name in EMBEDDERS
    },
    "BM25Index": {
        "index": lambda m, x: ez.BM25Index(x),
        "add": lambda m, x: ez.BM25Index(["a"]).add(x),
        "search": lambda m, x: ez.BM25Index(["a"]).search(x),
    },
}


@pytest.mark.slow(
    only=r"^(LateInteraction-\[\['a'\]\]$|SparseEncoder-\[\['a'\]\]$|TextEmbedder-\[\['a'\]\]$)"
)
@pytest.mark.parametrize("x", NESTED, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_texts_in_lists_of_their_own_are_refused(name, x, model):
    task = None if name == "BM25Index" else model(name)
    for method, call in CALLS[name].items():
        with pytest.raises(ValueError, match="nested list|query is|(texts|anchors)"):
            pytest.fail(f"{method} -> {call(task, x)}")


def test_rows_of_pairs_and_arrays_of_one_column_are_read(model):
    """The forms that are documented."""
    classifier = model("SequenceClassifier")
    pair = classifier.predict((["a"], ["b"]), verbose=0)
    np.testing.assert_allclose(classifier.predict([["a", "b"]], verbose=0), pair, atol=1e-6)
    one = classifier.predict(["a"], verbose=0)
    np.testing.assert_allclose(classifier.predict(np.array([["a"]]), verbose=0), one, atol=1e-6)


@pytest.mark.parametrize(
    "prompt", [7, 0.5, True, b"q", ["query"], {"query": 1}, SURROGATE], ids=repr
)
@pytest.mark.parametrize("name", EMBEDDERS)
def test_prompts_that_are_no_texts_are_refused(name, prompt, model):
    embedder, wrong = model(name), pytest.raises(ValueError, match="prompt (is|has the lone)")
    index = embedder.index(["a"])
    with wrong:
        embedder.embed(["a"], prompt=prompt)
    with wrong:
        embedder.index(["a"], prompt=prompt)
    with wrong:
        index.search("a", prompt=prompt)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (7, r"prompts is 7"),
        (["query"], "Expected a dict"),
        ({"query": 7}, r"prompts\['query'\] is 7"),
        ({7: "query: "}, "A name of prompts is 7"),
        ({"query": SURROGATE}, r"prompts\['query'\] has the lone surrogate"),
        ({SURROGATE: "query: "}, "A name of prompts has the lone surrogate"),
    ],
)
@pytest.mark.parametrize("name", EMBEDDERS)
def test_prompts_of_a_model_are_names_and_texts(name, prompts, message, model):
    preprocessor = model(name).preprocessor
    with pytest.raises(ValueError, match=message):
        type(preprocessor)(preprocessor.tokenizer, prompts=prompts)


@pytest.mark.parametrize("dim", [17, 10**9, 0, -1, 2.5, True, "8", [8]], ids=repr)
def test_widths_that_the_vectors_do_not_have_are_refused(dim, model):
    embedder = model("TextEmbedder")
    for call in (embedder.embed, embedder.index):
        with pytest.raises(ValueError, match="dim is"):
            call(["a"], dim=dim)


@pytest.mark.parametrize("row", [{"text": SURROGATE}, {"text": "a", "id": SURROGATE}], ids=str)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_answered_rows_that_no_file_holds_are_named(row, ending, model, tmp_path):
    path = tmp_path / "texts.jsonl"
    rows = [{"text": "a", "id": "1"}, {"id": "2", **row}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"row 1.*'(text|id)'.*surrogate"):
        ez.answer_files(model("SequenceClassifier"), path, tmp_path / "out", keep=["id"], verbose=0)
    assert not list(tmp_path.glob("out/*.parquet"))


NOT_TEXTS = {
    "numbers": np.zeros((2, 3)),
    "one number each": np.zeros((2, 1)),
    "numbers of a row": np.zeros(2),
    "three texts each": np.array([["a", "b", "c"], ["d", "e", "f"]]),
    "three axes": np.array([[["a"]], [["b"]]]),
    "no column": np.zeros((2, 0)),
    "nested": [["a"], ["b"]],
    "a text": "ab",
    "sparse": scipy.sparse.eye(2).tocsr(),
}


@pytest.mark.slow(except_for="^three texts")
@pytest.mark.parametrize("kind", NOT_TEXTS)
def test_estimators_refuse_what_is_no_column_of_texts(kind):
    from encoder_zoo import sklearn

    logging.getLogger("encoder_zoo").setLevel(logging.ERROR)
    x, preset = NOT_TEXTS[kind], "bert_nano_en_uncased"
    fitted = sklearn.TextVectorizer().fit(["a"])
    for call in (
        lambda: sklearn.TextClassifier(preset, epochs=1).fit(x, [0, 1]),
        lambda: sklearn.TextRegressor(preset, epochs=1).fit(x, [0.0, 1.0]),
        lambda: sklearn.TextVectorizer(preset).fit(x),
        lambda: sklearn.TextVectorizer(preset).fit_transform(x),
        lambda: fitted.transform(x),
    ):
        with pytest.raises(ValueError, match="Expected|expected"):
            call()


@pytest.mark.parametrize("weights", [[[1.0, 0.0], [1.0]], [1.0, "a"], [1.0, None]])
def test_weights_that_are_not_numbers_are_named(model, weights):
    with pytest.raises(ValueError, match="sample_weight"):
        model("SequenceClassifier").evaluate(["a", "b"], [0, 1], sample_weight=weights, verbose=0)
