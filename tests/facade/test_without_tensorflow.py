"""JAX and PyTorch where TensorFlow is not installed: raw texts train and are answered alike."""

import functools
import json

import numpy as np
import pytest
from processes import run

import encoder_zoo as ez
from encoder_zoo.encoders import list_families
from encoder_zoo.tasks import list_tasks

pytestmark = pytest.mark.slow(every=True)  # one process makes all results

# BERT with all its tasks, each other family with one of its own.
NAMES = []
for i, family in enumerate(list_families()):
    supported = [task.__name__ for task in list_tasks() if task.supports(family)]
    chosen = supported if family.name == "bert" else [supported[i % len(supported)]]
    NAMES += [f"{family.name} {name}" for name in chosen]
# Each result is a line, so that each is a test of its own.
CHECK = """
import json, sys, traceback
sys.modules["tensorflow"] = None
import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks import list_tasks

tasks = {task.__name__: task for task in list_tasks()}
for name in json.loads(sys.argv[1]):
    family, task = name.split(" ")
    for title, check in ez.testing.task_checks(tasks[task], [get_family(family)]):
        if "raw inputs" in title:
            try:
                check()
                error = ""
            except Exception:
                error = traceback.format_exc()
            print("RESULT", json.dumps([name, error]), flush=True)
"""
ANSWER = """
import json, sys
sys.modules["tensorflow"] = None
import encoder_zoo as ez

texts = json.loads(sys.argv[1])
embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
print("RESULT", json.dumps({
    "logits": classifier.predict(texts, batch_size=4, verbose=0).tolist(),
    "few": classifier.classify(texts),
    "entities": ez.TokenClassifier.from_preset("bert_nano_en_uncased_ner").extract_entities(texts),
    "vectors": embedder.embed([text for text in texts if text]).tolist(),
    "fills": ez.MaskedLM.from_preset("roberta_nano_en").fill_mask(["It is <mask>."], top_k=2),
}))
"""
TEXTS = [
    "A great movie!",
    "Anna lives in  Rome.",
    "",
    "naïve Ünï中 \u0301x " * 9,
    "no",
    "[MASK] bad",
]


def lines(backend: str, code: str, argument) -> list:
    """Return what a new process of the backend, without TensorFlow, prints as results."""
    printed = run(code, json.dumps(argument), KERAS_BACKEND=backend).split("\n")
    found = [line for line in printed if line.startswith("RESULT ")]
    return [json.loads(line.removeprefix("RESULT ")) for line in found]


@functools.cache
def errors(backend: str, of_bert: bool) -> dict:
    """Return {family and task: error} of the conformance suite's check of raw inputs."""
    return dict(lines(backend, CHECK, [n for n in NAMES if n.startswith("bert ") == of_bert]))


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name.startswith("bert ") else pytest.mark.matrix)
        for name in NAMES
    ],
)
def test_raw_inputs_are_trained_on(backend, name):
    error = errors(backend, name.startswith("bert "))[name]
    assert not error, error


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_answers_are_those_of_tensorflow(backend):
    [found] = lines(backend, ANSWER, TEXTS)
    classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
    logits = classifier.predict(TEXTS, batch_size=4, verbose=0)
    np.testing.assert_allclose(found["logits"], logits, atol=1e-4)
    expected = classifier.classify(TEXTS)
    assert [answer["label"] for answer in found["few"]] == [a["label"] for a in expected]
    tagger = ez.TokenClassifier.from_preset("bert_nano_en_uncased_ner")
    ours = [
        [(e["label"], e["start"], e["end"], e["text"]) for e in row] for row in found["entities"]
    ]
    theirs = tagger.extract_entities(TEXTS)
    assert ours == [[(e["label"], e["start"], e["end"], e["text"]) for e in row] for row in theirs]
    embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
    np.testing.assert_allclose(
        found["vectors"], embedder.embed([text for text in TEXTS if text]), atol=1e-4
    )
    [fills] = ez.MaskedLM.from_preset("roberta_nano_en").fill_mask(["It is <mask>."], top_k=2)
    assert [fill["text"] for fill in found["fills"][0]] == [fill["text"] for fill in fills]


MORE = """
import sys, tempfile
sys.modules["tensorflow"] = None
import numpy as np
import encoder_zoo as ez

texts, labels = ["A great movie!", "Terrible."] * 4, ["pos", "neg"] * 4

def tried(name, function):
    result = function()
    print("RESULT", '"' + name + '"', flush=True)
    return result

def fresh(cls=ez.SequenceClassifier, **arguments):
    of_classes = {"labels": ["neg", "pos"]} if cls is ez.SequenceClassifier else {}
    arguments = {**of_classes, **arguments}
    return cls.from_preset("bert_nano_en_uncased", **arguments)

classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
tried("explain", lambda: classifier.explain("A great movie!"))
options = {"class_weight": "balanced", "validation_split": 0.25, "epochs": 2, "verbose": 0}
tried("class weights", lambda: fresh().fit(texts, labels, **options))
backup = ez.BackupAndRestore(tempfile.mkdtemp())
tried("backup", lambda: fresh().fit(texts, labels, callbacks=[backup], verbose=0))
packing = fresh(ez.MaskedLM, sequence_length=32, pack_texts=True)
tried("packed", lambda: packing.fit(texts, verbose=0))
windows = fresh(window_length=16, doc_stride=4)
tried("windows", lambda: windows.predict(["a great movie " * 20] * 3, verbose=0))
distillation = ez.Distillation(classifier, fresh(labels=classifier.labels))
tried("distil", lambda: distillation.fit(texts, verbose=0))
embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
tried("index", lambda: embedder.index(["a cat", "red wine"]).search("kitten", top_k=1))
"""


def test_what_else_works_without_tensorflow():
    names = ["explain", "class weights", "backup", "packed", "windows", "distil", "index"]
    assert lines("torch", MORE, None) == names


FAILS = """
import sys
sys.modules["tensorflow"] = None
import keras
import encoder_zoo as ez

def fail(*_, **__):
    raise RuntimeError("out of memory")

classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased", labels=["neg", "pos"])
try:
    ends = keras.callbacks.LambdaCallback(on_train_batch_end=fail)
    classifier.fit(["good", "bad"], ["pos", "neg"], callbacks=[ends], verbose=0)
except Exception as error:
    print("RESULT", '"%s"' % error)
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_an_error_in_fit_reaches_the_user(backend):
    assert lines(backend, FAILS, None) == ["out of memory"]


WRONG = """
import json
import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

TEXTS, PAIRS = ["a b", "c"], (["a b", "c"], ["d", "e f"])
WORDS, LISTS = [["a", "b"], ["c"]], (["a", "b"], [["c", "d"], ["e", "f"]])
NAMES, TAGS = {"labels": ["down", "up"]}, {"labels": ["O", "B-X", "I-X"]}
SEVERAL = {**NAMES, "problem_type": "multi_label_classification"}
NUMBER = {"num_classes": 1, "problem_type": "regression"}
CASES = [
    ("SequenceClassifier", NAMES, TEXTS, ["up", "left"]),
    ("SequenceClassifier", NAMES, TEXTS, [1, 2]),
    ("SequenceClassifier", NAMES, TEXTS, [[0.5, 0.6], [1, 0]]),
    ("SequenceClassifier", NAMES, TEXTS, ["up"]),
    ("SequenceClassifier", NAMES, TEXTS, ["up", None]),
    ("SequenceClassifier", NAMES, ["a", None], ["up", "up"]),
    ("SequenceClassifier", SEVERAL, TEXTS, [["up"], ["left"]]),
    ("SequenceClassifier", SEVERAL, TEXTS, [[0, 1], [2, 1]]),
    ("SequenceClassifier", NUMBER, TEXTS, [1.0, float("inf")]),
    ("TokenClassifier", TAGS, WORDS, [["O", "B-X"], ["B-Y"]]),
    ("TokenClassifier", TAGS, WORDS, [["O", "B-X"], ["O", "O"]]),
    ("TokenClassifier", TAGS, TEXTS, [[], [(0, 7, "X")]]),
    ("TokenClassifier", TAGS, TEXTS, [[], [(0, 1, "Y")]]),
    ("TokenClassifier", TAGS, TEXTS, [[(0, 3, "X"), (2, 3, "X")], []]),
    ("SpanQA", {}, PAIRS, [{"text": "d", "answer_start": 0}, {"text": "f", "answer_start": 0}]),
    ("SpanQA", {}, PAIRS, [None, {"text": "\U0001f600", "answer_start": 9}]),
    ("SpanQA", {}, PAIRS, [None, "f"]),
    ("Reranker", {}, PAIRS, [1.0, float("inf")]),
    ("Reranker", {}, LISTS, [[1, 0], [1, 0, 0]]),
    ("Reranker", {}, (["a", "b"], [["c"], ["", "f"]]), [[1], [0, 1]]),
    ("MultipleChoice", {}, LISTS, [0, 2]),
    ("MultipleChoice", {}, (["a", "b"], [["c", "d"], []]), [0, 0]),
    ("TextEmbedder", {}, PAIRS, [0.5, float("inf")]),
    ("TextEmbedder", {}, (["a", ""], ["c", "d"]), None),
]
for name, arguments, x, y in CASES:
    cls, family = getattr(ez, name), get_family("bert")
    preprocessor = cls.record.preprocessor_class(tiny.tokenizer(family))
    backbone = tiny.backbone(family, num_layers=1, pooler=cls.get_family_head(family).pooled)
    try:
        cls(backbone, preprocessor, **arguments).fit(x, y, verbose=0)
        error = "none"
    except Exception as found:
        error = f"{name} {type(found).__name__}: {found}"
    print("RESULT", json.dumps(error))
"""


def test_errors_of_data_are_those_of_tensorflow():
    """The error of an answer that does not stand there ended in one of its own."""
    expected = lines("tensorflow", WRONG, None)
    assert len(expected) > 20 and all(" ValueError: " in error for error in expected), expected
    for backend in ("jax", "torch"):
        code = "import sys; sys.modules['tensorflow'] = None" + WRONG
        for found, error in zip(lines(backend, code, None), expected, strict=True):
            assert found == error
