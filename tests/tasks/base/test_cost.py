"""Time and memory follow the size of what is given: each input is doubled three times."""

import functools
import gc
import itertools
import json
import math
import pathlib
import time
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo import display
from encoder_zoo.tasks.base.classes import find_label_rows
from encoder_zoo.tasks.base.confidence import expand_thresholds
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.index_kinds import MultiVectorIndex, SparseIndex, VectorIndex
from encoder_zoo.tasks.tagging.entity_answers import make_label_set
from encoder_zoo.tasks.tagging.entity_metrics import score_entities
from encoder_zoo.tasks.tagging.tags import parse_tags
from tests.tasks.retrieval.test_documents import Dense, Terms, Tokens

PRESET = "bert_nano_en_uncased"
DOUBLINGS = 3
MOST = 1.5  # exponent of growth: 1 of linear cost, 2 of quadratic
LEAST_SECONDS = 0.02  # less is noise
LEAST_BYTES = 2.5e6  # of Python
LEAST_OF_PROCESS = 5e7  # bytes: TensorFlow's allocator takes its memory in large pieces
VOCABULARY = "a cat and the tax law of old Rome sing in May".split()
WORDS = np.random.default_rng(0).choice(VOCABULARY, 10**6)


def text(words: int) -> str:
    return " ".join(WORDS[:words])


def texts(count: int) -> list[str]:
    return [f"{word} {i} {WORDS[-i]}" for i, word in enumerate(WORDS[:count])]


def cycled(values, count: int) -> list:
    return [values[i % len(values)] for i in range(count)]


@functools.cache
def tokenizer():
    return ez.BertTokenizer.from_preset(PRESET)


@functools.cache
def backbone(kind=ez.BertBackbone):
    """Return an encoder that costs next to nothing, so that everything around it is measured."""
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    return kind(vocabulary_size=30522, max_sequence_length=128, **sizes)


@functools.cache
def model(name: str, labels=None, window=None, **arguments):
    """Build a task with weights that are drawn by chance."""
    task = getattr(ez, name)
    of_windows = {"window_length": window} if window else {}
    preprocessor = task.record.preprocessor_class(tokenizer(), **of_windows)
    if labels is not None:
        arguments["labels"] = (
            [f"l{i}" for i in range(labels)] if isinstance(labels, int) else [*labels]
        )
    encoder = backbone(ez.ElectraBackbone if name == "ReplacedTokenDetection" else ez.BertBackbone)
    return task(encoder, preprocessor, **arguments)


def classifier(**arguments):
    return model("SequenceClassifier", **{"labels": 2, **arguments})


def tagger():
    return model("TokenClassifier", labels=("O", "B-X", "I-X"))


@functools.cache
def few_shot():
    few = ez.FewShotClassifier(backbone(), ez.TextEmbedder.record.preprocessor_class(tokenizer()))
    few.fit(texts(4), ["a", "b", "a", "b"], epochs=0, verbose=0)
    return few


@functools.cache
def zero_shot():
    return ez.ZeroShotClassifier(
        model("SequenceClassifier", labels=("contradiction", "neutral", "entailment"))
    )


@functools.cache
def static():
    return model("TextEmbedder").distil_static(dim=8)


@functools.cache
def hybrid(count: int):
    return ez.HybridIndex([dense(count), ez.BM25Index(texts(count), ids=ids_of(count))])


def ids_of(count: int) -> list[str]:
    return [f"{i:x}" for i in range(count)]


@functools.cache
def dense(count: int) -> VectorIndex:
    return new_dense(count)


def new_dense(count: int) -> VectorIndex:
    vectors = np.random.default_rng(0).standard_normal((count, 16)).astype("float32")
    fields = [{"group": i // 3, "day": i % 7} for i in range(count)]
    return VectorIndex.from_vectors(
        Dense(), vectors, texts(count), ids=ids_of(count), metadata=fields
    )


def each(change, count: int) -> None:
    """Apply a change in ten parts."""
    index = new_dense(count)
    for part in range(10):
        change(index, [f"{i:x}" for i in range(part, count // 2, 10)])


def words_of(count: int) -> list[list[str]]:
    return [WORDS[i : i + 4].tolist() for i in range(count)]


def tags_of(rows: list[list[str]], tags=("B-X", "I-X", "O")) -> list[list[str]]:
    return [cycled(tags, len(row)) for row in rows]


def spans_of(count: int) -> list[list[dict]]:
    return [[{"start": 0, "end": len(row.split()[0]), "label": "x"}] for row in texts(count)]


def asked(count: int) -> list[dict]:
    return [
        {
            "question": f"Who {i}?",
            "context": row,
            "answers": {"text": [row.split()[0]], "answer_start": [0]},
        }
        for i, row in enumerate(texts(count))
    ]


def tokens(make):
    return lambda n: tokenizer().tokenize_with_offsets([make(n)])


def entities(labels=("x", "y"), **options):
    extractor = model("EntityExtractor", max_width=4)
    return lambda n: extractor.extract_entities(text(n), labels=[*labels], **options)


def labelled(method: str, count: int, labels: int = 2, **arguments):
    task = classifier(labels=labels, **arguments)
    return getattr(task, method)(texts(count), cycled(task.labels, count))


def several(method: str, count: int):
    task = classifier(problem_type="multi_label_classification", labels=3)
    return getattr(task, method)(texts(count), [[task.labels[i % 3]] for i in range(count)])


@functools.cache
def bm25(count: int):
    return ez.BM25Index(texts(count))


@functools.cache
def terms(count: int):
    return SparseIndex.build(Terms(), texts(count))


def add(index, ids) -> None:
    index.add(["w1 w2"] * len(ids), ids=[f"new {i}" for i in ids], metadata=[{"day": 1}] * len(ids))


def unknown(count: int) -> None:
    with pytest.raises(ValueError, match="zzz"):
        dense(count).remove(["zzz"])


def words_add(count: int) -> None:
    index = ez.BM25Index(texts(10))
    for _ in range(10):
        index.add(texts(count // 10))


def hybrid_remove(count: int) -> None:
    index = ez.HybridIndex([new_dense(count), ez.BM25Index(texts(count), ids=ids_of(count))])
    index.remove(ids_of(count // 2))


def judge(count: int) -> None:
    dense(2000).evaluate([f"w{i}" for i in range(count)], ids_of(count), cutoffs=[1])


def with_added(count: int):
    return ez.BertTokenizer(
        [*"[PAD] [UNK] [CLS] [SEP] [MASK] a".split()], added_tokens=[f"<{i}>" for i in range(count)]
    )


def in_graph(tokenizer) -> None:
    tf.function(tokenizer.tokenize)(tf.constant(["a <7>"]))


def score_types(count: int) -> None:
    rows = [{(f"type {i}", 0, 1)} for i in range(count)]
    assert score_entities(rows, rows)["f1"] == 1.0


# What runs: of which size it begins, and what it does with one of n.
TOKENIZERS = {
    "tokenize words": (20_000, lambda: tokens(text)),
    "tokenize one word": (100_000, lambda: tokens(lambda n: "a" * n)),
    "tokenize blanks": (200_000, lambda: tokens(lambda n: " " * n)),
    "tokenize marks": (50_000, lambda: tokens(lambda n: "e" + "\u0301" * n)),
    "tokenize punctuation": (50_000, lambda: tokens(lambda n: "-" * n)),
    "tokenize special": (20_000, lambda: tokens(lambda n: "[MASK]" * n)),
    "tokenize Chinese": (50_000, lambda: tokens(lambda n: "东西" * (n // 2))),
    "tokenize many": (5_000, lambda: lambda n: tokenizer().tokenize(texts(n))),
    "tokenize rows of words": (5_000, lambda: lambda n: tokenizer().tokenize_words(words_of(n))),
    "detokenize": (20_000, lambda: lambda n: tokenizer().detokenize([[2000] * n])),
    "detokenize many": (5_000, lambda: lambda n: tokenizer().detokenize([[2000] * 4] * n)),
    "added tokens in graphs": (500, lambda: lambda n: in_graph(with_added(n))),
}
CLASSES = {
    "classify windows": (4_000, lambda: lambda n: classifier(window=128).classify([text(n)])),
    "classify many": (500, lambda: lambda n: classifier().classify(texts(n))),
    "classify labels": (
        500,
        lambda: lambda n: classifier(labels=n).classify(texts(20)),
    ),
    "predict_proba": (500, lambda: lambda n: classifier().predict_proba(texts(n))),
    "evaluate_classes": (500, lambda: functools.partial(labelled, "evaluate_classes")),
    "evaluate_classes labels": (
        250,
        lambda: lambda n: labelled("evaluate_classes", 2_000, labels=n),
    ),
    "evaluate_coverage": (500, lambda: functools.partial(labelled, "evaluate_coverage")),
    "calibrate": (500, lambda: functools.partial(labelled, "calibrate")),
    "tune_thresholds": (500, lambda: functools.partial(several, "tune_thresholds")),
    "evaluate_classes several": (500, lambda: functools.partial(several, "evaluate_classes")),
    "few-shot classify": (500, lambda: lambda n: few_shot().classify(texts(n))),
    "few-shot evaluate_classes": (
        500,
        lambda: lambda n: few_shot().evaluate_classes(texts(n), cycled(["a", "b"], n)),
    ),
    "zero-shot classify texts": (
        100,
        lambda: lambda n: zero_shot().classify(texts(n), ["law", "pets"]),
    ),
    "zero-shot classify labels": (
        100,
        lambda: lambda n: zero_shot().classify(["A cat."], [f"law {i}" for i in range(n)]),
    ),
    "explain text": (
        40,
        lambda: lambda n: classifier().explain(text(n), method="gradient_x_input"),
    ),
    "explain many": (
        50,
        lambda: lambda n: classifier().explain(texts(n), method="gradient_x_input"),
    ),
    "display.errors": (
        500,
        lambda: lambda n: display.errors(classifier(), texts(n), cycled(["l0", "l1"], n)),
    ),
    "display.confusion_matrix": (
        20_000,
        lambda: lambda n: display.confusion_matrix(cycled("abc", n), cycled("abcd", n)),
    ),
}
TAGS = {
    "extract_entities text": (2_000, lambda: lambda n: tagger().extract_entities(text(n))),
    "extract_entities many": (500, lambda: lambda n: tagger().extract_entities(texts(n))),
    "explain windows": (
        1_000,
        lambda: lambda n: classifier(window=128).explain(text(n), method="gradient_x_input"),
    ),
    "explain answers": (
        1_000,
        lambda: lambda n: model("SpanQA").explain("Who?", text(n), method="gradient_x_input"),
    ),
    "explain entities": (
        25,
        lambda: lambda n: tagger().explain(text(n), method="gradient_x_input"),
    ),
    "predict_tags": (500, lambda: lambda n: tagger().predict_tags(words_of(n))),
    "predict_tags long": (
        2_000,
        lambda: lambda n: tagger().predict_tags([WORDS[:n].tolist()]),
    ),
    "evaluate_entities": (
        500,
        lambda: lambda n: tagger().evaluate_entities(words_of(n), tags_of(words_of(n))),
    ),
    "evaluate_entities long": (
        2_000,
        lambda: (
            lambda n: tagger().evaluate_entities(
                [WORDS[:n].tolist()], tags_of([WORDS[:n].tolist()])
            )
        ),
    ),
    "tune_thresholds of tags": (
        500,
        lambda: lambda n: tagger().tune_thresholds(words_of(n), tags_of(words_of(n))),
    ),
    "calibrate tags": (
        500,
        lambda: lambda n: tagger().calibrate(words_of(n), tags_of(words_of(n))),
    ),
    "extract few": (500, lambda: entities(threshold=0.99)),
    "extract flat": (250, lambda: entities(threshold=0.0)),
    "extract all": (250, lambda: entities(threshold=0.0, nested=True, multi_label=True)),
    "extract labels": (
        50,
        lambda: lambda n: entities([f"kind {i}" for i in range(n)], threshold=0.9)(20),
    ),
    "evaluate spans": (
        200,
        lambda: (
            lambda n: model("EntityExtractor", max_width=4).evaluate_entities(
                texts(n), spans_of(n), labels=["x", "y"]
            )
        ),
    ),
    "tune_thresholds of spans": (
        200,
        lambda: (
            lambda n: model("EntityExtractor", max_width=4).tune_thresholds(
                texts(n), spans_of(n), labels=["x", "y"]
            )
        ),
    ),
}
ANSWERS = {
    "answer context": (
        4_000,
        lambda: lambda n: model("SpanQA").answer("Who sings?", text(n)),
    ),
    "answer many": (
        200,
        lambda: lambda n: model("SpanQA").answer(["Who?"] * n, texts(n)),
    ),
    "answer long and short": (
        100,
        lambda: (
            lambda n: model("SpanQA").answer(
                ["Who?"] * n, [text(20 * n), *texts(n - 1)], top_k=20, max_answer_length=2
            )
        ),
    ),
    "answer passages": (200, lambda: lambda n: model("SpanQA").answer("Who?", texts(n))),
    "answer top_k": (500, lambda: lambda n: model("SpanQA").answer("Who?", text(2_000), top_k=n)),
    "answer length": (
        5,
        lambda: lambda n: model("SpanQA").answer("Who?", text(2_000), max_answer_length=n),
    ),
    "evaluate_answers": (200, lambda: lambda n: model("SpanQA").evaluate_answers(asked(n))),
    "fill_mask masks": (10, lambda: lambda n: model("MaskedLM").fill_mask("[MASK] " * n)),
    "fill_mask many": (
        100,
        lambda: lambda n: model("MaskedLM").fill_mask([f"{t} [MASK]" for t in texts(n)]),
    ),
    "fill_mask top_k": (
        1_000,
        lambda: lambda n: model("MaskedLM").fill_mask("A [MASK].", top_k=n),
    ),
    "detect many": (200, lambda: lambda n: model("ReplacedTokenDetection").detect(texts(n))),
    "rank": (500, lambda: lambda n: model("Reranker").rank("Who?", texts(n))),
    "score": (500, lambda: lambda n: model("Reranker").score(texts(n), texts(n))),
    "evaluate_ranking": (
        100,
        lambda: (
            lambda n: model("Reranker").evaluate_ranking(
                texts(n), [texts(4)] * n, [[1, 0, 0, 0]] * n
            )
        ),
    ),
    "evaluate_ranking long": (
        250,
        lambda: (
            lambda n: model("Reranker").evaluate_ranking(
                ["Who?"], [texts(n)], [[1.0] + [0.0] * (n - 1)]
            )
        ),
    ),
    "choose choices": (100, lambda: lambda n: model("MultipleChoice").choose("Who?", texts(n))),
    "choose many": (
        50,
        lambda: lambda n: model("MultipleChoice").choose(texts(n), [texts(2)] * n),
    ),
}
VECTORS = {
    "embed windows": (
        4_000,
        lambda: lambda n: model("TextEmbedder").embed([text(n)], windows="mean"),
    ),
    "embed many": (500, lambda: lambda n: model("TextEmbedder").embed(texts(n))),
    "late embed": (500, lambda: lambda n: model("LateInteraction").embed(texts(n))),
    "sparse embed": (100, lambda: lambda n: model("SparseEncoder").embed(texts(n))),
    "top_terms k": (250, lambda: lambda n: model("SparseEncoder").top_terms(texts(8), k=n)),
    "static embed many": (5_000, lambda: lambda n: static().embed(texts(n))),
    "static embed text": (20_000, lambda: lambda n: static().embed(text(n))),
    "evaluate_retrieval": (
        250,
        lambda: lambda n: model("TextEmbedder").evaluate_retrieval(texts(20), texts(n), [0] * 20),
    ),
    "evaluate_similarity": (
        500,
        lambda: (
            lambda n: model("TextEmbedder").evaluate_similarity((texts(n), texts(n)), [*range(n)])
        ),
    ),
    "mine_negatives": (
        250,
        lambda: lambda n: model("TextEmbedder").mine_negatives(texts(20), texts(n), [0] * 20),
    ),
    "embedder.rank": (500, lambda: lambda n: model("TextEmbedder").rank("Who?", texts(n))),
    "chunks": (
        20_000,
        lambda: lambda n: model("TextEmbedder").chunks([text(n)], length=32, overlap=8),
    ),
    "late chunks": (
        2_000,
        lambda: lambda n: model("TextEmbedder").chunks([text(n)], length=32, late=True),
    ),
}
INDEXES = {
    "build an index": (5_000, lambda: new_dense),
    "search documents": (5_000, lambda: lambda n: dense(n).search("w1")),
    "search queries": (100, lambda: lambda n: dense(20_000).search(texts(n))),
    "search top_k": (2_500, lambda: lambda n: dense(20_000).search("w1", top_k=n)),
    "search offset": (2_500, lambda: lambda n: dense(20_000).search("w1", offset=n - 1)),
    "search where": (5_000, lambda: lambda n: dense(n).search("w1", where={"day": 3})),
    "search a function": (
        5_000,
        lambda: lambda n: dense(n).search("w1", where=lambda row: row["day"] == 3),
    ),
    "group": (5_000, lambda: lambda n: dense(n).search("w1", top_k=20, group_by="group")),
    "group in few": (5_000, lambda: lambda n: dense(n).search("w1", top_k=20, group_by="day")),
    "group all": (
        2_500,
        lambda: lambda n: dense(20_000).search("w1", top_k=n, group_by="group"),
    ),
    "add by parts": (1_000, lambda: lambda n: each(add, n)),
    "remove by ids": (2_500, lambda: lambda n: each(lambda index, ids: index.remove(ids), n)),
    "remove where": (
        2_500,
        lambda: lambda n: new_dense(n).remove(where={"day": 3}),
    ),
    "update by ids": (
        1_000,
        lambda: lambda n: each(lambda i, ids: i.update(["w1 w2"] * len(ids), ids=ids), n),
    ),
    "unknown id": (5_000, lambda: unknown),
    "filter": (
        20_000,
        lambda: (
            lambda n: Documents(["w"] * n, metadata=[{"v": i} for i in range(n)]).where(
                {"v": {"$gt": 10, "$ne": 12}}
            )
        ),
    ),
    "filter by many": (
        1_000,
        lambda: lambda n: dense(20_000).search("w1", where={"group": {"$in": [*range(n)]}}),
    ),
    "evaluate": (250, lambda: judge),
    "words": (2_500, lambda: lambda n: ez.BM25Index(texts(n))),
    "words search": (5_000, lambda: lambda n: bm25(n).search("Rome 7")),
    "words add": (5_000, lambda: words_add),
    "words query": (1_000, lambda: lambda n: bm25(5_000).search(text(n))),
    "token vectors": (
        500,
        lambda: lambda n: MultiVectorIndex.build(Tokens(), texts(n)).search("Rome 7"),
    ),
    "token vectors int8": (
        500,
        lambda: lambda n: MultiVectorIndex.build(Tokens(), texts(n), precision="int8").search("7"),
    ),
    "terms": (2_000, lambda: lambda n: SparseIndex.build(Terms(), texts(n))),
    "terms search": (2_000, lambda: lambda n: terms(n).search("w7")),
    "hybrid": (5_000, lambda: lambda n: hybrid(n).search("Rome 7", top_k=20)),
    "hybrid top_k": (1_000, lambda: lambda n: hybrid(10_000).search("Rome 7", top_k=n)),
    "hybrid remove": (2_500, lambda: hybrid_remove),
}
NAMES = {  # of labels, tags and tokens; no model is asked
    "labels of a dataset": (2_000, lambda: lambda n: find_label_rows(ids_of(n), ids_of(n)[::-1])),
    "No labels": (2_000, lambda: lambda n: make_label_set(ids_of(n))),
    "thresholds": (
        2_000,
        lambda: lambda n: expand_thresholds(dict.fromkeys(ids_of(n), 0.5), ids_of(n), 0),
    ),
    "types of tags": (
        2_000,
        lambda: lambda n: parse_tags([f"{p}-{i}" for i in range(n) for p in "BI"]),
    ),
    "types of entities": (2_000, lambda: score_types),
    "added tokens": (1_000, lambda: lambda n: with_added(n).tokenize("a <7>")),
}
CASES = {**TOKENIZERS, **CLASSES, **TAGS, **ANSWERS, **VECTORS, **INDEXES}


def index_file(count: int, folder) -> None:
    new_dense(count).save(folder)
    ez.load_index(folder, Dense())


def hybrid_file(count: int, folder) -> None:
    hybrid(count).save(folder)
    ez.HybridIndex.load(folder, [Dense(), None])


def squad_file(count: int, folder) -> None:
    path, answers = folder / "squad.json", [{"text": "cat", "answer_start": 2}]
    rows = [{"id": str(i), "question": f"Who {i}?", "answers": answers} for i in range(count)]
    paragraph = {"context": "A cat sleeps.", "qas": rows}
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    ez.read_squad(path)


def conll_file(count: int, folder) -> None:
    path = folder / "words.conll"
    path.write_text("\n".join("" if i % 9 == 8 else f"{WORDS[i]} O" for i in range(count)))
    ez.read_conll(path)


def conll_sentence(count: int, folder) -> None:
    path = folder / "words.conll"
    path.write_text("\n".join(f"{word} B-X" for word in WORDS[:count]))
    ez.read_conll(path)


def annotated_texts(count: int, folder) -> None:
    path = folder / "rows.jsonl"
    rows = ({"text": row, "label": [[0, 1, "x"]]} for row in texts(count))
    path.write_text("\n".join(map(json.dumps, rows)))
    ez.read_annotations(path)


def annotated_spans(count: int, folder) -> None:
    path = folder / "rows.jsonl"
    spans = [[2 * i, 2 * i + 1, f"l{i % 5}"] for i in range(count)]
    path.write_text(json.dumps({"text": "a " * count, "label": spans}))
    ez.read_annotations(path)


def brat_files(count: int, folder) -> None:
    (folder / "a.txt").write_text("a " * count)
    spans = (f"T{i}\tx {2 * i} {2 * i + 1}\ta" for i in range(count))
    (folder / "a.ann").write_text("\n".join(spans))
    ez.read_annotations(folder)


def vocabulary_file(count: int, folder) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ids_of(count)]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    ez.Tokenizer.from_preset(folder)


def added_file(count: int, folder) -> None:
    added = {str(i + 6): {"content": f"<{i}>"} for i in range(count)}
    config = {"tokenizer_class": "BertTokenizer", "added_tokens_decoder": added}
    special = {"additional_special_tokens": [f"<{i}>" for i in range(count)]}
    (folder / "vocab.txt").write_text("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] a".split()))
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **special}))
    ez.Tokenizer.from_preset(folder).tokenize("a <7>")


def merges_file(count: int, folder) -> None:
    letters = [chr(ord("!") + i) for i in range(90)]
    pairs = [(a, b) for a in letters for b in letters][:count]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *letters, *(a + b for a, b in pairs)]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("\n".join(f"{a} {b}" for a, b in pairs))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    ez.Tokenizer.from_preset(folder).tokenize("abc")


def tokenizer_json_file(count: int, folder) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ids_of(count)]
    added = [f"<{i}>" for i in range(count // 10)]
    file = json.loads(ez.BertTokenizer(tokens, added_tokens=added).to_files()["tokenizer.json"])
    file["pre_tokenizer"] = {"type": "WhitespaceSplit"}  # of no named class
    (folder / "tokenizer.json").write_text(json.dumps(file))
    ez.Tokenizer.from_preset(folder).tokenize("1 <7>")


def preset_folder(count: int, folder) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ids_of(count)]
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    encoder = ez.BertBackbone(vocabulary_size=len(tokens), **sizes)
    preprocessor = ez.SequenceClassifierPreprocessor(ez.BertTokenizer(tokens))
    ez.SequenceClassifier(encoder, preprocessor, labels=ids_of(count)).save_to_preset(folder)
    ez.SequenceClassifier.from_preset(folder)


def doc_bin_file(count: int, folder) -> None:
    spacy = pytest.importorskip("spacy")
    words = spacy.blank("en")
    docs = [words.make_doc(row) for row in texts(count)]
    for doc in docs:
        doc.set_ents([spacy.tokens.Span(doc, 0, 1, label="x")])
    spacy.tokens.DocBin(docs=docs).to_disk(folder / "rows.spacy")
    ez.read_annotations(folder / "rows.spacy")


def answered_file(count: int, folder) -> None:
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts(count)))
    ez.answer_files(classifier(), folder / "texts.jsonl", folder / f"answers {count}", verbose=0)


# {name: (size of the first, what it does with a size and an empty folder)}
FILES = {
    "index": (2_500, index_file),
    "hybrid index": (1_000, hybrid_file),
    "SQuAD": (2_000, squad_file),
    "CoNLL": (20_000, conll_file),
    "CoNLL of one sentence": (20_000, conll_sentence),
    "texts of JSONL": (2_500, annotated_texts),
    "spans of JSONL": (5_000, annotated_spans),
    "brat": (2_500, brat_files),
    "vocab.txt": (10_000, vocabulary_file),
    "added tokens of a file": (500, added_file),
    "merges": (1_000, merges_file),
    "tokenizer.json": (5_000, tokenizer_json_file),
    "preset": (5_000, preset_folder),
    "DocBin": (500, doc_bin_file),
    "answer_files": (500, answered_file),
}


def saved_model(task, folder, **options):
    task.export(folder, **options)
    loaded = tf.saved_model.load(str(folder))
    served = loaded.signatures["serving_default"]

    def run(**inputs):
        _ = loaded  # alive while it is asked
        return served(**{name: tf.constant(values) for name, values in inputs.items()})

    return run


def opened(task, folder):
    pytest.importorskip("tf2onnx")
    task.export(folder, format="onnx")
    return ez.open_export(folder)


def served_spans(folder):
    run = saved_model(model("EntityExtractor", labels=("x", "y"), max_width=4), folder)
    return lambda n: run(text=[text(n)], labels=[["x", "y"]])


def served_classes(folder):
    run = saved_model(classifier(window=128), folder)
    return lambda n: run(text=[text(n)])


def served_many(folder):
    run = saved_model(classifier(), folder)
    return lambda n: run(text=texts(n))


def served_tags(folder):
    run = saved_model(tagger(), folder)
    return lambda n: run(text=[text(n)])


def served_answers(folder):
    run = saved_model(model("SpanQA"), folder)
    return lambda n: run(question=["Who?"], context=[text(n)])


def opened_classes(folder):
    model = opened(classifier(window=128), folder)
    return lambda n: model.classify([text(n)])


def opened_many(folder):
    model = opened(classifier(), folder)
    return lambda n: model.classify(texts(n))


def opened_tags(folder):
    model = opened(tagger(), folder)
    return lambda n: model.extract_entities(text(n))


EXPORTS = {
    "SavedModel of spans": (250, served_spans),
    "SavedModel of windows": (2_000, served_classes),
    "SavedModel of many": (500, served_many),
    "SavedModel of tags": (1_000, served_tags),
    "SavedModel of answers": (1_000, served_answers),
    "ONNX of windows": (2_000, opened_classes),
    "ONNX of many": (500, opened_many),
    "ONNX of tags": (1_000, opened_tags),
}


def seconds_of(run, size: int) -> float:
    """Return the CPU time of a run; objects of all tests before it are not looked through."""
    gc.collect()
    gc.disable()
    try:
        begin = time.process_time()
        run(size)
        return time.process_time() - begin
    finally:
        gc.enable()


def peaks_of(run, size: int) -> tuple[float, float]:
    """Return the most bytes that Python and the process take in addition during a run."""
    peak_of_process = pathlib.Path("/proc/self/clear_refs")  # of Linux; 5 forgets the peak
    if peak_of_process.exists():
        peak_of_process.write_text("5")
    before = memory("VmRSS")
    tracemalloc.start()
    try:
        run(size)
        return tracemalloc.get_traced_memory()[1], memory("VmHWM") - before
    finally:
        tracemalloc.stop()


def memory(field: str) -> int:
    status = pathlib.Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def exponent(values: list[float], least: float) -> float:
    """Return the mean exponent of growth with the size: 1 if doubled sizes double the values."""
    return math.log2(max(values[-1], least) / max(values[0], least)) / DOUBLINGS


def check_growth(run, first: int) -> None:
    sizes = [first << doubling for doubling in range(DOUBLINGS + 1)]
    run(first)  # loads and imports what it needs
    memories = [peaks_of(run, size) for size in sizes]  # which also fills what is cached by size
    seconds = [min(seconds_of(run, size) for _ in range(2)) for size in (sizes[0], sizes[-1])]
    of_python, of_process = map(list, zip(*memories, strict=True))
    found = {
        "seconds": exponent(seconds, LEAST_SECONDS),
        "bytes of Python": exponent(of_python, LEAST_BYTES),
        "bytes of the process": exponent(of_process, LEAST_OF_PROCESS),
    }
    print(found, seconds, of_python, of_process)  # for `pytest -rP`
    assert max(found.values()) < MOST, (found, seconds, memories)


@pytest.mark.slow(only="^added tokens$")
@pytest.mark.parametrize("name", NAMES)
def test_cost_of_names_follows_their_number(name):
    first, make = NAMES[name]
    check_growth(make(), first)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_cost_follows_size(name):
    first, make = CASES[name]
    check_growth(make(), first)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_cost_of_files_follows_size(name, tmp_path):
    first, run = FILES[name]
    numbers = itertools.count()

    def in_new_folder(size):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        run(size, folder)

    check_growth(in_new_folder, first)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")  # of Keras's export
@pytest.mark.parametrize("name", EXPORTS)
def test_cost_of_exports_follows_size(name, tmp_path):
    first, make = EXPORTS[name]
    check_growth(make(tmp_path / "served"), first)
