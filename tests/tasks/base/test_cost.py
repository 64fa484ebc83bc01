"""Time and memory follow the size of what is given: each input is doubled three times."""

import functools
import json
import resource
import time
import tracemalloc

import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.index_kinds import VectorIndex
from tests.tasks.retrieval.test_documents import Dense

PRESET = "bert_nano_en_uncased"
VOCABULARY = "a cat and the tax law of old Rome sing in May".split()
WORDS = np.random.default_rng(0).choice(VOCABULARY, 10**6)
DOUBLINGS = 3
MOST_PER_DOUBLING = 2.9  # 2 of linear cost, 4 of quadratic
LEAST_SECONDS, LEAST_BYTES = 0.15, 2e7  # less is noise


def text(words: int) -> str:
    return " ".join(WORDS[:words])


def texts(count: int) -> list[str]:
    return [f"{word} {i} {WORDS[-i]}" for i, word in enumerate(WORDS[:count])]


@functools.cache
def model(name: str, **arguments):
    return getattr(ez, name).from_preset(PRESET, **arguments)


def tokenizer():
    return model("TextEmbedder").preprocessor.tokenizer


def dense(count: int) -> VectorIndex:
    vectors = np.random.default_rng(0).standard_normal((count, 16)).astype("float32")
    fields = [{"group": i // 3, "day": i % 7} for i in range(count)]
    ids = [f"{i:x}" for i in range(count)]
    return VectorIndex.from_vectors(Dense(), vectors, texts(count), ids=ids, metadata=fields)


def each(change, count: int) -> None:
    """Apply a change in ten parts."""
    index = dense(count)
    for part in range(10):
        change(index, [f"{i:x}" for i in range(part, count // 2, 10)])


def index_file(count: int, folder) -> None:
    dense(count).save(folder)
    ez.load_index(folder, Dense())


def judge(count: int) -> None:
    index = dense(2000)
    own = [f"{i:x}" for i in range(count)]
    index.evaluate([f"w{i}" for i in range(count)], own, cutoffs=[1])


def tokens(make):
    return lambda n: tokenizer().tokenize_with_offsets([make(n)])


def entities(**options):
    extractor = model("EntityExtractor", max_width=4)
    return lambda n: extractor.extract_entities(text(n), labels=["x", "y"], **options)


# What runs: of which size it begins, and what it does with one of n.
CASES = {
    "tokenize words": (20_000, lambda: tokens(text)),
    "tokenize one word": (100_000, lambda: tokens(lambda n: "a" * n)),
    "tokenize blanks": (200_000, lambda: tokens(lambda n: " " * n)),
    "tokenize marks": (50_000, lambda: tokens(lambda n: "e" + "\u0301" * n)),
    "tokenize punctuation": (50_000, lambda: tokens(lambda n: "-" * n)),
    "tokenize Chinese": (50_000, lambda: tokens(lambda n: "东西" * (n // 2))),
    "tokenize many": (5_000, lambda: lambda n: tokenizer().tokenize(texts(n))),
    "detokenize": (20_000, lambda: lambda n: tokenizer().detokenize([[2000] * n])),
    "classify in windows": (
        2_000,
        lambda: (
            lambda n: model("SequenceClassifier", num_classes=2, window_length=128).classify(
                [text(n)]
            )
        ),
    ),
    "classify many": (
        100,
        lambda: lambda n: model("SequenceClassifier", num_classes=2).classify(texts(n)),
    ),
    "embed in windows": (
        4_000,
        lambda: lambda n: model("TextEmbedder").embed([text(n)], windows="mean"),
    ),
    "answer": (
        2_000,
        lambda: lambda n: model("SpanQA").answer(question="Who sings?", context=text(n)),
    ),
    "answer many": (
        50,
        lambda: lambda n: model("SpanQA").answer(question=["Who?"] * n, context=texts(n)),
    ),
    "fill many masks": (60, lambda: lambda n: model("MaskedLM").fill_mask("[MASK] " * n)),
    "extract few": (500, lambda: entities(threshold=0.99)),
    "extract all": (250, lambda: entities(threshold=0.0, nested=True, multi_label=True)),
    "rank": (200, lambda: lambda n: model("Reranker").rank("Who?", texts(n))),
    "choose": (50, lambda: lambda n: model("MultipleChoice").choose("Who?", texts(n))),
    "explain": (40, lambda: lambda n: model("SequenceClassifier", num_classes=2).explain(text(n))),
    "late embed": (100, lambda: lambda n: model("LateInteraction").embed(texts(n))),
    "sparse embed": (50, lambda: lambda n: model("SparseEncoder").embed(texts(n))),
    "evaluate classes": (
        50,
        lambda: (
            lambda n: model("SequenceClassifier", num_classes=2).evaluate_classes(
                texts(n), [i % 2 for i in range(n)]
            )
        ),
    ),
    "chunks": (
        20_000,
        lambda: lambda n: model("TextEmbedder").chunks([text(n)], length=32, overlap=8),
    ),
    "build an index": (20_000, lambda: dense),
    "remove by ids": (10_000, lambda: lambda n: each(lambda index, ids: index.remove(ids), n)),
    "update by ids": (
        1_000,
        lambda: lambda n: each(lambda i, ids: i.update(["w1 w2"] * len(ids), ids=ids), n),
    ),
    "filter": (
        20_000,
        lambda: (
            lambda n: Documents(["w"] * n, metadata=[{"v": i} for i in range(n)]).where(
                {"v": {"$gt": 10, "$ne": 12}}
            )
        ),
    ),
    "group": (20_000, lambda: lambda n: dense(n).search("w1", top_k=20, group_by="group")),
    "judge": (250, lambda: judge),
    "words": (10_000, lambda: lambda n: ez.BM25Index(texts(n)).search("Rome 7")),
}
FILES = {
    "index": (5_000, index_file),
    "SQuAD": (2_000, lambda n, folder: ez.read_squad(squad_file(n, folder))),
    "CoNLL": (20_000, lambda n, folder: ez.read_conll(conll_file(n, folder))),
}


def squad_file(count: int, folder):
    path, answers = folder / "squad.json", [{"text": "cat", "answer_start": 2}]
    asked = [{"id": str(i), "question": f"Who {i}?", "answers": answers} for i in range(count)]
    paragraph = {"context": "A cat sleeps.", "qas": asked}
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    return path


def conll_file(count: int, folder):
    path = folder / "words.conll"
    path.write_text("\n".join("" if i % 9 == 8 else f"{WORDS[i]} O" for i in range(count)))
    return path


def check_growth(run, first: int) -> None:
    run(first)
    run(2 * first)  # traced, loaded and imported
    seconds, peaks = [], []
    for doubling in range(DOUBLINGS + 1):
        size = first << doubling
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        begin = time.process_time()
        run(size)
        seconds.append(time.process_time() - begin)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        tracemalloc.start()
        run(size)
        peaks.append(max(grown, tracemalloc.get_traced_memory()[1]))
        tracemalloc.stop()
    most = MOST_PER_DOUBLING**DOUBLINGS
    assert seconds[-1] < most * max(seconds[0], LEAST_SECONDS / 4), seconds
    for least, found in ((LEAST_SECONDS, seconds), (LEAST_BYTES, peaks)):
        ratio = found[-1] / max(found[-2], least)
        assert ratio < MOST_PER_DOUBLING, (found, ratio)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_cost_follows_size(name):
    first, make = CASES[name]
    check_growth(make(), first)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_cost_of_files_follows_size(name, tmp_path):
    first, run = FILES[name]
    check_growth(lambda n: run(n, tmp_path), first)
