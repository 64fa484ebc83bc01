"""Advice works: what the package's messages advise is carried out here, and ends well.

A case provokes a message with an advice, such as "Pass labels=[...]", and then does what it says.
"""

import ast
import contextlib
import logging
import re
import tomllib

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from paths import ROOT

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny


def text_of(node: ast.AST) -> str:
    """Return a string expression, with {} for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
    return text_of(node.left) + text_of(node.right) if isinstance(node, ast.BinOp) else ""


def strings(node: ast.AST) -> list[str]:
    """Return the strings of code, without docstrings."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return []
    text = text_of(node)
    return [text] if text else [s for n in ast.iter_child_nodes(node) for s in strings(n)]


def messages() -> list[str]:
    """Return the package's strings."""
    wings = ("common", "encoders", "presets", "tasks", "facade")
    files = [path for wing in wings for path in sorted((ROOT / wing).rglob("*.py"))]
    return [s for path in files for s in strings(ast.parse(path.read_text(encoding="utf-8")))]


# -- cases -------------------------------------------------------------------------------------

CASES = []


def case(*fragments: str, slow: bool = False):
    """Register a function that provokes messages with these words and does what they advise."""

    def register(function):
        marks = pytest.mark.slow if slow else ()
        CASES.append(pytest.param(function, fragments, marks=marks, id=function.__name__))
        return function

    return register


class Said:
    """Context managers that check that a message is said."""

    def __init__(self, fragments: tuple[str, ...], caplog):
        self.left, self.caplog = list(fragments), caplog

    def _check(self, text: str, words: str | None = None) -> None:
        words = words or self.left[0]
        assert words in text, f"{words!r} is not in: {text}"
        self.left.pop(0)

    @contextlib.contextmanager
    def __call__(self, words: str | None = None):
        """Expect an error with the next fragment, or the words that it has after filling in."""
        with pytest.raises(Exception) as error:
            yield
        self._check(str(error.value), words)

    @contextlib.contextmanager
    def logged(self):
        """Expect a line of the log."""
        with self.caplog.at_level(logging.INFO, logger="encoder_zoo"):
            yield
        self._check(self.caplog.text)


TEXTS = ["one two", "three", "four five", "six"]
BERT, SMALL = get_family("bert"), {"verbose": 0}


def make(name: str, family=BERT, **arguments):
    return tiny.task(family, getattr(ez, name), **arguments)


def preprocessor(name: str, family=BERT, **arguments):
    return getattr(ez, name).preprocessor_class(tiny.tokenizer(family), **arguments)


def new(name: str, family=BERT, *, pooler=True, **arguments):
    backbone = tiny.backbone(family, pooler=pooler)
    return getattr(ez, name)(backbone, preprocessor(name, family), **arguments)


@case("does not know its labels yet")
def labels_are_given(said, folder):
    with said():
        new("SequenceClassifier").classify(TEXTS[0])
    for arguments in ({"labels": ["no", "yes"]}, {"num_classes": 2}):
        assert "label" in new("SequenceClassifier", **arguments).classify(TEXTS[0])


@case("got an unknown argument {}. Leave it out: {}")
def an_argument_of_another_library_is_left_out(said, folder):
    embedder = new("TextEmbedder", pooler=False)
    with said("got an unknown argument 'normalize_embeddings'. Leave it out: vectors have unit"):
        embedder.embed(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(embedder.embed(TEXTS), axis=1), 1, rtol=1e-5)


@case("has no label: it is")
def rows_without_labels_are_dropped(said, folder):
    x, y = TEXTS, ["a", None, "b", "a"]
    classifier = new("SequenceClassifier")
    with said():
        classifier.fit(x, y, **SMALL)
    keep = [i for i, label in enumerate(y) if label is not None]
    classifier.fit([x[i] for i in keep], [y[i] for i in keep], **SMALL)
    assert classifier.labels == ["a", "b"]


@case(
    "has the lone surrogate",
    "share {} weights",
    "whose products float32 does not hold. Divide all by one",
)
def texts_weights_and_numbers_are_made_right(said, folder):
    embedder, texts = make("TextEmbedder"), [*TEXTS, "a \ud800 b"]
    with said():
        embedder.index(texts)
    embedder.index([text.encode("utf-8", "replace").decode() for text in texts])
    new("SequenceClassifier", labels=["no", "yes"]).save_to_preset(folder / "teacher")
    teacher = ez.SequenceClassifier.from_preset(folder / "teacher")
    with said("weights, "):
        ez.Distillation(teacher, teacher)
    ez.Distillation(teacher, ez.SequenceClassifier.from_preset(folder / "teacher"))
    vectors = embedder.embed(TEXTS) * np.float32(1e30)
    with said("beyond 1e+17, whose products float32 does not hold. Divide all by one number"):
        ez.VectorIndex.from_vectors(embedder, vectors)
    ez.VectorIndex.from_vectors(embedder, vectors / vectors.max())


@case("Make one with the same tokenizer")
def preprocessors_of_their_task(said, folder):
    theirs = preprocessor("MaskedLM")
    with said():
        ez.SequenceClassifier(tiny.backbone(BERT, pooler=True), theirs)
    own = ez.SequenceClassifier.preprocessor_class(theirs.tokenizer)
    ez.SequenceClassifier(tiny.backbone(BERT, pooler=True), own)


@case("reads the pooler's output. Build the backbone", "Pretraining reads the pooler's output")
def heads_have_their_pooler(said, folder):
    with said():
        new("SequenceClassifier", pooler=False, labels=["a", "b"])
    new("SequenceClassifier", pooler=True, labels=["a", "b"])
    tiny.backbone(BERT, pooler=False).save_to_preset(folder / "p", tokenizer=tiny.tokenizer(BERT))
    assert ez.SequenceClassifier.from_preset(folder / "p", labels=["a", "b"]).backbone.pooler
    with said():
        new("Pretraining", pooler=False)
    new("Pretraining", pooler=True)


@case("x has the splits", slow=True)
def one_split_is_passed(said, folder):
    splits = {"train": pd.DataFrame({"text": TEXTS, "label": ["a", "b", "a", "b"]})}
    splits["test"] = splits["train"]
    classifier = new("SequenceClassifier")
    with said():
        classifier.fit(splits, **SMALL)
    classifier.fit(splits["train"]["text"], splits["train"]["label"], **SMALL)


@case("Name those that hold them, in this order", slow=True)
def columns_of_texts_are_named(said, folder):
    table = pd.DataFrame({"id": [1, 2], "a": ["one", "two"], "b": ["three", "four"]})
    classifier = new("SequenceClassifier", labels=["a", "b"])
    with said():
        classifier.predict(table)
    own = preprocessor("SequenceClassifier", text_columns=["a", "b"])
    named = ez.SequenceClassifier(tiny.backbone(BERT, pooler=True), own, labels=["a", "b"])
    assert len(named.predict(table, **SMALL)) == 2
    numbered = table.assign(a=[7, 8])[["a", "b"]]
    with pytest.raises(ValueError, match="Or, if these are texts, name the columns"):
        classifier.predict(numbered)
    assert len(classifier.predict(numbered["b"], **SMALL)) == 2


@case("'regression' or, for yes or no, 'multi_label_classification'")
def one_class_is_a_number_or_yes_or_no(said, folder):
    with said():
        new("SequenceClassifier", num_classes=1)
    for problem in ("regression", "multi_label_classification"):
        new("SequenceClassifier", num_classes=1, problem_type=problem)


@case("has no head that tells replaced tokens", "has no second head for pairs")
def families_have_their_pretraining(said, folder):
    electra = get_family("electra")
    with said():
        new("ReplacedTokenDetection", pooler=False)
    new("Pretraining"), new("MaskedLM", pooler=False)
    with said():
        new("Pretraining", electra)
    new("MaskedLM", electra, pooler=False)
    new("ReplacedTokenDetection", electra, pooler=False)


@case(
    "is for a reranker. Pass reranker=",
    "is the index of another embedder",
    "Pass the embedder that the index was built with",
    "Pass the embedder that it was built with",
    "The embedder has changed since the index was built",
    "embeds no queries. Received",
    "An export holds an embedder and its vectors",
    slow=True,
)
def indexes(said, folder):
    embedder = make("TextEmbedder")
    index = embedder.index(TEXTS)
    with said():
        index.search("one", candidates=3)
    assert index.search("one", candidates=3, reranker=make("Reranker"))
    index.save(folder / "index")
    other = tiny.moved(make("TextEmbedder"))
    with said():
        ez.VectorIndex.load(folder / "index", other)
    with said():
        ez.load_index(folder / "index", make("SparseEncoder"))
    with said():
        ez.load_index(folder / "index")
    assert ez.load_index(folder / "index", embedder).search("one")
    other.index(TEXTS).save(folder / "again")
    assert ez.VectorIndex.load(folder / "again", other).search("one")
    tiny.moved(embedder)
    with said():
        index.save(folder / "changed")
    embedder.index(TEXTS).save(folder / "changed")
    words = ez.BM25Index(TEXTS)
    with said():
        words.search("one", prompt="query")
    assert words.search("one")
    with said():
        words.export(folder / "exported")
    embedder.index(TEXTS).export(folder / "exported")


@case("This FewShotClassifier has no classes yet", slow=True)
def few_shot_classes(said, folder):
    few = ez.FewShotClassifier(tiny.backbone(BERT, pooler=False), preprocessor("TextEmbedder"))
    with said():
        few.classify("one")
    few.fit(TEXTS, ["a", "b", "a", "b"])
    assert few.classify("one")["label"] in "ab"


@case("missing ({}), the first is row", slow=True)
def missing_texts_are_dropped(said, folder):
    table = pd.DataFrame({"text": ["one", None, "two"], "label": ["a", "b", "b"]})
    classifier = new("SequenceClassifier")
    with said("missing (NaN), the first is row 1"):
        classifier.fit(table["text"], table["label"], **SMALL)
    table = table.dropna(subset=["text"])
    classifier.fit(table["text"], table["label"], **SMALL)
    assert classifier.labels == ["a", "b"]


@case("Drop such rows before they are batched", slow=True)
def missing_labels_of_datasets_are_dropped(said, folder):
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, ["a", " ", "b", "a"]))
    classifier = new("SequenceClassifier", labels=["a", "b"])
    with said():
        classifier.fit(dataset.batch(4), **SMALL)
    dataset = dataset.filter(lambda x, y, *_: tf.reduce_all(tf.strings.strip(y) != ""))
    assert classifier.fit(dataset.batch(4), **SMALL).history["loss"]


@case("and the last of projections has", "make vectors of {}. Leave dim out")
def widths_of_late_interaction(said, folder):
    backbone = tiny.backbone(BERT, pooler=False)
    layers = [{"units": 6}, {"units": 4}]
    with said():
        ez.LateInteraction(backbone, dim=3, projections=layers)
    for arguments in ({"projections": layers}, {"dim": 3}):
        own = ez.LateInteraction(backbone, preprocessor("LateInteraction"), **arguments)
    own.save_to_preset(folder / "p")
    with said("make vectors of 3. Leave dim out"):
        ez.LateInteraction.from_preset(folder / "p", dim=5)
    assert ez.LateInteraction.from_preset(folder / "p").embed("one").shape[-1] == 3
    other = ez.LateInteraction.from_preset(folder / "p", dim=5, projections=[])
    assert other.embed("one").shape[-1] == 5


@case("or pass an array, whose columns are taken in their order")
def columns_of_labels_have_their_names(said, folder):
    classifier = new("SequenceClassifier", labels=["a", "b"])
    table = pd.DataFrame({"b": [0, 1, 0, 1], "x": [1, 0, 1, 0]})
    with said():
        classifier.fit(TEXTS, table, **SMALL)
    y = table.rename(columns={"x": "a"})
    expected = classifier.evaluate(TEXTS, ["a", "b", "a", "b"], verbose=0)
    assert classifier.evaluate(TEXTS, y, verbose=0) == expected
    assert classifier.evaluate(TEXTS, y[["a", "b"]].to_numpy(), verbose=0) == expected


@case("Pass those of texts and labels to fit", "Name two of them: fit(", slow=True)
def tables_are_read_by_column(said, folder):
    table = pd.DataFrame({"text": ["In Rome", "Hm"], "spans": [[[3, 7, "LOC"]], []]})
    with said():
        ez.read_annotations(table)
    assert ez.read_annotations(table.to_dict("records")).y[0][0]["label"] == "LOC"
    classifier = new("SequenceClassifier")
    named = pd.DataFrame({"words of it": TEXTS, "mood": ["a", "b", "a", "b"]})
    with said():
        classifier.fit(named, **SMALL)
    classifier.fit(named["words of it"], named["mood"], **SMALL)
    assert classifier.labels == ["a", "b"]


@case(
    "Give all documents {}",
    "Give all documents metadata",
    "Build it with ids",
    "Build the index with metadata",
    "Name that of the texts",
    "Make another index instead",
    "Rename it",
    "Rename them",
)
def documents_have_ids_and_fields(said, folder):
    index = ez.BM25Index(TEXTS, ids=list("abcd"))
    with said("Give all documents ids"):
        index.add(["more"])
    index.add(["more"], ids=["e"])
    with said():
        index.update(["more"], ids=["e"], metadata=[{"year": 2024}])
    index.update(["much more"], ids=["e"])
    plain = ez.BM25Index(TEXTS)
    with said():
        plain.remove("a")
    with said():
        index.search("one", where={"year": 2024})
    with said():
        ez.BM25Index({"body": TEXTS})
    table = {"body": TEXTS, "id": list("abcd"), "year": [1, 2, 3, 4]}
    index = ez.BM25Index(table, text_column="body")
    assert index.search("one", where={"year": 1})
    with said():
        index.remove(list("abcd"))
    index.remove(list("abc"))
    embedder = make("TextEmbedder")
    with said():
        embedder.chunks(TEXTS, 4, metadata=[{"start": 1}] * 4)
    assert len(embedder.chunks(TEXTS, 4, metadata=[{"begun": 1}] * 4)) >= 4
    table = pd.DataFrame([["one", 1], ["two", 2]], columns=["text", "text"])
    with said():
        ez.BM25Index(table)
    table.columns = ["text", "year"]
    assert ez.BM25Index(table).metadata == [{"year": 1}, {"year": 2}]


@case("It would be taken for", slow=True)
def columns_of_pairs_are_passed(said, folder):
    table = pd.DataFrame({"q": TEXTS, "d": TEXTS[::-1], "source": ["web"] * 4})
    embedder = make("TextEmbedder")
    with said():
        embedder.fit(table, **SMALL)
    embedder.fit((table["q"], table["d"]), **SMALL)


@case("Split them into shorter texts", "Split long texts into passages", slow=True)
def texts_are_split(said, folder):
    text = " ".join("abcdefgh" * 3)
    parts = [text[i : i + 16] for i in range(0, len(text), 16)]
    detector, reranker = make("ReplacedTokenDetection", get_family("electra")), make("Reranker")
    with said.logged():
        detector.detect(text)
    with said.logged():
        reranker.rank("a", [text])
    said.caplog.clear()
    detector.detect(parts)
    assert len(reranker.rank("a", parts)) == len(parts)
    assert "not read" not in said.caplog.text


@case("Shorten it, or take longer windows", slow=True)
def windows_have_room(said, folder):
    first, second = " ".join("abcdefgh" * 2), "a b c d"

    def read(window: int, pair):
        own = preprocessor("SequenceClassifier", window_length=window)
        backbone = tiny.backbone(BERT, pooler=True)
        task = ez.SequenceClassifier(backbone, own, labels=["a", "b"])
        return task.classify([pair])

    with said.logged():
        read(8, (first, second))
    said.caplog.clear()
    read(8, (first, "a"))
    read(16, (first, second))
    assert not said.caplog.text


@case(
    "query_learning_rate needs a query_encoder",
    "whose files have no place for a query_encoder. Save both",
    "query_encoder has no preprocessor, so its folder",
    slow=True,
)
def encoders_of_queries(said, folder):
    encoder = make("SparseEncoder")
    with said():
        encoder.compile(query_learning_rate=1e-3)
    encoder.compile()
    backbone, own = encoder.backbone, encoder.preprocessor
    table = ez.TermTable(own.tokenizer, vocabulary_size=backbone.vocabulary_size)
    of_tokens = ez.SparseEncoder(backbone, own, pooling="token_weights", query_encoder=table)
    with said():
        of_tokens.save_to_preset(folder / "m")
    ez.SparseEncoder(backbone, own, pooling="token_weights").save_to_preset(folder / "m")
    two = ez.SparseEncoder(backbone, own, query_encoder=ez.SparseEncoder(backbone))
    with said():
        two.save_to_preset(folder / "m")
    two = ez.SparseEncoder(backbone, own, query_encoder=ez.SparseEncoder(backbone, own))
    two.save_to_preset(folder / "m")
    assert ez.SparseEncoder.from_preset(folder / "m").query_encoder is not None


@case(
    "the layer of token weights starts from random weights",
    "pooling is 'token_weights', which are max(0, x)",
    "as in BGE-M3. Save each by itself",
    slow=True,
)
def token_weights(said, folder):
    make("SparseEncoder").save_to_preset(folder / "terms")
    with said.logged():
        encoder = ez.SparseEncoder.from_preset(folder / "terms", pooling="token_weights")
    encoder.fit((TEXTS, TEXTS), verbose=0)
    with said():
        ez.SparseEncoder(encoder.backbone, pooling="token_weights", activation="log1p_relu")
    whole = ez.HybridEmbedder.from_preset(ROOT / "tests" / "golden" / "bge_m3")
    whole.terms.similarity_function = "cosine"
    with said():
        whole.save_to_preset(folder / "whole")
    whole.terms.save_to_preset(folder / "whole")
    again = ez.SparseEncoder.from_preset(folder / "whole")
    assert again.similarity_function == "cosine"


@case("which has no add. Make a HybridIndex", "which cannot be saved in another", slow=True)
def parts_of_hybrid_indexes(said, folder):
    embedder = make("TextEmbedder")

    class Pages:
        search = embedder.index(TEXTS).search

        def __len__(self):
            return len(TEXTS)

    first = embedder.index(TEXTS)
    index = ez.HybridIndex([first, Pages()])
    with said():
        index.add(["seven"])
    again = ez.HybridIndex([embedder.index([*TEXTS, "seven"]), embedder.index([*TEXTS, "seven"])])
    assert len(again) == 5
    with said():
        index.save(folder / "index")
    first.save(folder / "first")
    loaded = ez.VectorIndex.load(folder / "first", embedder)
    assert ez.HybridIndex([loaded, Pages()]).search("one") == index.search("one")


@case(
    "Name them in the order of the checkpoint's card",
    "natural-language inference (NLI), or fit a SequenceClassifier",
    slow=True,
)
def classes_of_zero_shot(said, folder):
    new("SequenceClassifier", num_classes=3).save_to_preset(folder / "numbered")
    new("SequenceClassifier", labels=["good", "bad"]).save_to_preset(folder / "other")
    names = ["contradiction", "neutral", "entailment"]
    with said():
        ez.ZeroShotClassifier.from_preset(folder / "numbered")
    task = ez.ZeroShotClassifier.from_preset(folder / "numbered", labels=names)
    assert task.classify("one", labels=["x", "y"])["label"] in "xy"
    with said():
        ez.ZeroShotClassifier.from_preset(folder / "other")
    nli = new("SequenceClassifier", labels=names)
    nli.fit((TEXTS[:3], TEXTS[1:]), names, **SMALL)
    nli.save_to_preset(folder / "nli")
    assert ez.ZeroShotClassifier.from_preset(folder / "nli").classify("one", labels=["x", "y"])


def test_packages_that_are_advised_have_these_names():
    """They are those of pyproject.toml's extras, which pip installs."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = extras["optional-dependencies"].values()
    named = [*extras["dependencies"], *(name for names in optional for name in names)]
    known = {re.split(r"[\[><=;~ ]", name)[0].lower() for name in named}
    advised = {
        name
        for message in messages()
        for line in re.findall(r"pip install ([\w -]+)`", message)
        for name in line.split()
        if not name.startswith("-")
    }
    assert len(advised) > 10 and advised <= known, advised - known


@pytest.mark.slow
@pytest.mark.slow(every=True)
@pytest.mark.parametrize(("function", "fragments"), CASES)
def test_the_advice_ends_well(function, fragments, tmp_path, caplog):
    said = Said(fragments, caplog)
    function(said, tmp_path)
    assert not said.left, f"not said: {said.left}"
