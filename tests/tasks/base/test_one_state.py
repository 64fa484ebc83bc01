"""Every public call that answers holds the weights' lock once, over all that it asks the model.

So its answers are of one state of the weights, whatever another thread does with them.
"""

import collections
import functools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo import display
from encoder_zoo.common.weights_lock import WeightsLock, get_weights_lock
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.training.text_model import TextModel
from encoder_zoo.testing import tiny

BERT = get_family("bert")
LONG = "a b ab c d e p " * 6
TEXTS = ["a b ab", "c", "d e", LONG, "p a"]
QUERIES, DOCUMENTS = ["a b", "c d"], ["ab c", "d", "e p a", "b", "c c"]
SMALL = {"batch_size": 2}  # several batches


def labels(task):
    return [task.labels[i % len(task.labels)] for i in range(len(TEXTS))]


def prepared(task, *texts):
    examples = task.preprocessor.encode(*texts or [TEXTS])
    return {name: np.asarray(values) for name, values in task.preprocessor.pad(examples).items()}


def dataset(*columns):
    return tf.data.Dataset.from_tensor_slices(columns if len(columns) > 1 else columns[0]).batch(2)


def rows_of(task):
    """Texts with labels of token classification, several batches of them."""
    data = task.tiny_data()
    return [*data.x, *data.x], [*data.y, *data.y]


def index_of(task, **options):
    return task.index(DOCUMENTS, batch_size=2, **options)


def hybrid_of(task):
    return ez.HybridIndex([index_of(task), ez.BM25Index(DOCUMENTS)])


def updated(index):
    getattr(index, "indexes", [index])[0].documents.ids = list("abcdefgh"[: len(index)])
    index.update(["a b"], ids=["a"])


def few_shot_of(task):
    few = ez.FewShotClassifier(task.backbone, task.preprocessor)
    few.fit(TEXTS[:4], ["a", "b", "a", "b"], epochs=0)
    return few


def zero_shot_of(task):
    return ez.ZeroShotClassifier(task)


@functools.cache
def reranker():
    return tiny.task(BERT, ez.Reranker)


MASKED = [f"a [MASK] c {text}" for text in TEXTS]
QUESTIONS, CONTEXTS = ["a b", "c", "d", "e", "p"], [LONG, "a b", LONG, "c", "d e p"]
EXACT = {"method": "gradient_x_input", "batch_size": 2}
ASKS = {
    "predict": lambda t: t.predict(TEXTS, 2, verbose=0),
    "predict prepared": lambda t: t.predict(prepared(t), 2, verbose=0),
    "predict dataset": lambda t: t.predict(dataset(TEXTS), verbose=0),
}
VECTORS = {
    "embed": lambda t: t.embed(TEXTS, **SMALL),
    "similarity": lambda t: t.similarity(QUERIES, DOCUMENTS),
    "rank": lambda t: t.rank("a b", DOCUMENTS, **SMALL),
    "index": index_of,
    "index.search": lambda t: index_of(t).search(QUERIES, reranker=reranker()),
    "index.evaluate": lambda t: index_of(t).evaluate(QUERIES, [0, 1], reranker=reranker()),
    "index.add": lambda t: index_of(t).add(DOCUMENTS, batch_size=2),
    "index.update": lambda t: updated(index_of(t)),
    "hybrid.update": lambda t: updated(hybrid_of(t)),
    "hybrid.search": lambda t: hybrid_of(t).search(QUERIES),
    "hybrid.evaluate": lambda t: hybrid_of(t).evaluate(QUERIES, [0, 1]),
    "hybrid.add": lambda t: hybrid_of(t).add(DOCUMENTS),
    "evaluate_retrieval": lambda t: t.evaluate_retrieval(QUERIES, DOCUMENTS, [0, 1], **SMALL),
    "evaluate_similarity": lambda t: t.evaluate_similarity(PAIRS, [1, 2, 3, 4, 5.0], **SMALL),
    "mine_negatives": lambda t: t.mine_negatives(
        QUERIES, DOCUMENTS, [0, 1], reranker=reranker(), **SMALL
    ),
}
PAIRS = (TEXTS, TEXTS[::-1])
FEW = {
    "few_shot.predict": lambda f: f.predict(TEXTS, 2),
    "few_shot.predict_proba": lambda f: f.predict_proba(TEXTS, 2),
    "few_shot.classify": lambda f: f.classify(TEXTS, 2),
    "few_shot.evaluate": lambda f: f.evaluate(TEXTS, ["a", "b", "a", "b", "a"], 2),
    "display.errors": lambda f: display.errors(f, TEXTS, ["a", "b", "a", "b", "a"]),
}
# {task: {name: call}}
CALLS = {
    "SequenceClassifier": {
        **ASKS,
        "classify": lambda t: t.classify(TEXTS, **SMALL),
        "predict_proba": lambda t: t.predict_proba(TEXTS, **SMALL),
        "calibrate": lambda t: t.calibrate(TEXTS, labels(t), **SMALL),
        "evaluate_classes": lambda t: t.evaluate_classes(TEXTS, labels(t), **SMALL),
        "evaluate_coverage": lambda t: t.evaluate_coverage(TEXTS, labels(t), **SMALL),
        "explain": lambda t: t.explain(TEXTS[:2], **EXACT),
        "explain integrated": lambda t: t.explain("a b", batch_size=8),
        "evaluate": lambda t: t.evaluate(TEXTS, labels(t), 2, verbose=0),
        "evaluate dataset": lambda t: t.evaluate(dataset(TEXTS, labels(t)), verbose=0),
        "display.errors": lambda t: display.errors(t, TEXTS, labels(t)),
        "display.attention": lambda t: display.attention(t, "a b"),
    },
    "TokenClassifier": {
        **ASKS,
        "extract_entities": lambda t: t.extract_entities(TEXTS, **SMALL),
        "predict_tags": lambda t: t.predict_tags([text.split() for text in TEXTS], **SMALL),
        "evaluate_entities": lambda t: t.evaluate_entities(*rows_of(t), **SMALL),
        "display.thresholds": lambda t: display.thresholds(t, *rows_of(t)),
        "calibrate": lambda t: t.calibrate(*rows_of(t), **SMALL),
        "explain": lambda t: t.explain(TEXTS, **EXACT),
        "evaluate": lambda t: t.evaluate(*rows_of(t), 2, verbose=0),
    },
    "EntityExtractor": {
        **ASKS,
        "extract_entities": lambda t: t.extract_entities(TEXTS, **SMALL),
        "evaluate_entities": lambda t: t.evaluate_entities(*t.tiny_data()[1:3], **SMALL),
        "evaluate": lambda t: t.evaluate(*t.tiny_data()[1:3], 2, verbose=0),
    },
    "SpanQA": {
        "answer": lambda t: t.answer(QUESTIONS, CONTEXTS, **SMALL),
        "answer passages": lambda t: t.answer("a b", CONTEXTS, **SMALL),
        "evaluate_answers": lambda t: t.evaluate_answers(*t.tiny_data()[1:3], **SMALL),
        "explain": lambda t: t.explain(QUESTIONS[:2], CONTEXTS[:2], "gradient_x_input", **SMALL),
        "predict": lambda t: t.predict((QUESTIONS, CONTEXTS), 2, verbose=0),
        "evaluate": lambda t: t.evaluate(*t.tiny_data()[1:3], 1, verbose=0),
    },
    "MaskedLM": {
        "fill_mask": lambda t: t.fill_mask(MASKED, **SMALL),
        "evaluate": lambda t: t.evaluate(TEXTS, batch_size=2, verbose=0),
    },
    "Pretraining": {"evaluate": lambda t: t.evaluate(*t.tiny_data()[1:3], 2, verbose=0)},
    "ReplacedTokenDetection": {
        "detect": lambda t: t.detect(TEXTS, **SMALL),
        "evaluate": lambda t: t.evaluate(TEXTS, batch_size=2, verbose=0),
    },
    "TextEmbedder": {
        **VECTORS,
        **ASKS,
        "embed_documents": lambda t: t.embed_documents(TEXTS[:2]),
        "embed_query": lambda t: t.embed_query("a b"),
        "embed windows": lambda t: t.embed(TEXTS, windows="mean", **SMALL),
        "distil_static": lambda t: t.distil_static(dim=2, **SMALL),
    },
    "SparseEncoder": {
        **VECTORS,
        "top_terms": lambda t: t.top_terms(TEXTS, **SMALL),
    },
    "LateInteraction": {
        **VECTORS,
        "embed_with_spans": lambda t: t.embed_with_spans(TEXTS, **SMALL),
        "display.matches": lambda t: display.matches(t, "a b", "c d"),
    },
    "Reranker": {
        "score": lambda t: t.score("a b", DOCUMENTS, **SMALL),
        "rank": lambda t: t.rank("a b", DOCUMENTS, **SMALL),
        "evaluate_ranking": lambda t: t.evaluate_ranking(
            QUERIES, [DOCUMENTS, DOCUMENTS[:2]], [[1, 0, 0, 0, 0], [0, 1]], **SMALL
        ),
        "evaluate": lambda t: t.evaluate(*t.tiny_data()[1:3], 2, verbose=0),
    },
    "MultipleChoice": {
        "choose": lambda t: t.choose(*t.tiny_questions(), batch_size=2),
        "evaluate": lambda t: t.evaluate(*t.tiny_data()[1:3], 2, verbose=0),
    },
}
# Public methods of tasks and indexes that answer nothing: what they read of weights is saved, or
# they are steps of a call of the model, which waits for nobody.
SILENT = """make_backbone_inputs build_head read_checkpoint_arguments enable_lora encode_inputs
compare_vocabulary for_cpu from_keras_hub from_preset explain_head_mismatch get_family_head
input_ranges find_kept_classes trim_vocabulary load_adapters count_min_weights logits_of
objective list_input_names preprocess push_to_hub save_adapters save_to_preset signatures
make_step_function supports tiny_data tiny_questions check_savable train_pooler train_step
index_class load_index scale_weights chunks tune_thresholds encode_queries
forget_stale_functions compute_batch_outputs sum_penalties forward""".split()
SILENT_OF_INDEXES = ["build", "from_vectors", "load", "save", "export", "remove"]


class Watched:
    """Counts how often a thread takes a lock that it does not have, and asks without one."""

    def __init__(self, monkeypatch):
        self.taken, self.unheld, shared = collections.Counter(), [], WeightsLock.shared
        called, watched = TextModel.__call__, self

        def is_held(lock):
            me = threading.get_ident()
            return me in lock._readers or lock._writer == me

        def counting(lock):
            watched.taken[lock] += not is_held(lock)
            return shared(lock)

        def asked(model, *args, **kwargs):
            if not is_held(get_weights_lock(model)):
                watched.unheld.append(model)
            return called(model, *args, **kwargs)

        monkeypatch.setattr(WeightsLock, "shared", counting)
        monkeypatch.setattr(TextModel, "__call__", asked)


@functools.cache
def task_of(name):
    cls = getattr(ez, name)
    task = tiny.task(get_family("electra" if name == "ReplacedTokenDetection" else "bert"), cls)
    task.compile()
    return task


def check_one_state(call, monkeypatch):
    watched = Watched(monkeypatch)
    call()
    assert not watched.unheld, "asked without the lock of the weights"
    assert watched.taken and set(watched.taken.values()) == {1}, watched.taken


# Of the default run; the others are slow.
FIRST = [
    "SequenceClassifier explain",
    "SpanQA answer",
    "TextEmbedder index.search",
    "Reranker rank",
]


@pytest.mark.slow(except_for="^SequenceClassifier explain$")
@pytest.mark.parametrize(
    ("task", "name"),
    [
        pytest.param(
            task,
            name,
            marks=[] if f"{task} {name}" in FIRST else pytest.mark.slow,
            id=f"{task} {name}",
        )
        for task, calls in CALLS.items()
        for name in calls
    ],
)
def test_a_call_holds_the_weights_once(task, name, monkeypatch):
    model, call = task_of(task), CALLS[task][name]
    if name.startswith(("index.", "hybrid.")):
        for make in (index_of, hybrid_of):  # built before
            made = make(model)
            monkeypatch.setitem(globals(), make.__name__, lambda task, made=made: made)
    check_one_state(lambda: call(model), monkeypatch)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_a_call_of_few_shot_holds_the_weights_once(name, monkeypatch):
    few = few_shot_of(task_of("TextEmbedder"))
    check_one_state(lambda: FEW[name](few), monkeypatch)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("method", ["classify", "predict_proba"])
def test_a_call_of_zero_shot_holds_the_weights_once(method, monkeypatch):
    like, names = task_of("SequenceClassifier"), ["contradiction", "neutral", "entailment"]
    nli = ez.SequenceClassifier(like.backbone, like.preprocessor, labels=names)
    zero = ez.ZeroShotClassifier(nli)
    call = functools.partial(getattr(zero, method), TEXTS, ["a", "b"], batch_size=2)
    check_one_state(call, monkeypatch)


@pytest.mark.matrix
@pytest.mark.slow
def test_files_are_answered_by_one_state(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    model, arguments = task_of("SequenceClassifier"), (tmp_path / "texts.txt", tmp_path / "answers")
    call = functools.partial(ez.answer_files, model, *arguments, shard_rows=2, verbose=0)
    check_one_state(call, monkeypatch)


@pytest.mark.parametrize("name", CALLS)
def test_every_public_method_that_answers_is_among_these(name):
    cls, tried = getattr(ez, name), " ".join(CALLS[name]).split()
    public = {n for n in dir(cls) if n[0] != "_" and callable(getattr(cls, n, None))}
    assert public - {*dir(keras.Model), *tried, *SILENT} == set()
    indexes = (cls.index_class, ez.HybridIndex) if hasattr(cls, "index_class") else ()
    for index in indexes:
        public = {n for n in dir(index) if n[0] != "_" and callable(getattr(index, n, None))}
        assert public - {*SILENT_OF_INDEXES} <= {n.split(".")[-1] for n in tried}
