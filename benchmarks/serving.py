"""Measure exported models: speed compared to other libraries, behavior under load, and CPU copies.

    python benchmarks/serving.py speed
    python benchmarks/serving.py load
    python benchmarks/serving.py cpu --works sst2 conll2003 squad --seeds 0 1 2

`speed` loads one checkpoint (all-MiniLM-L6-v2 from a Python package, with a random head) in three
ways: as a SavedModel exported by this package, in a text-classification pipeline in transformers on
torch, and as an ONNX file exported by this package on onnxruntime, with a transformers tokenizer.
All of them map texts to labels. They run in turns for each sentence and each batch, so that other
programs on the machine affect all of them equally. This requires the extra `peers`, onnxruntime,
onnx and tf2onnx.

`load` calls a SavedModel from many threads to find entities in texts with 1 to 512 words. All
results are compared to `extract_entities`. Memory and the number of graphs are monitored.

`cpu` fine-tunes MiniLM with the recipe from benchmarks/quality.py and compares `for_cpu`, using
LiteRT and OpenVINO, to the original model: scores on held-out examples, and examples per CPU second
over all cores. For int8 on OpenVINO, ranges are calibrated on 300 training examples. The data is
described in benchmarks/quality.py. This requires the extras `litert` and `openvino`.
"""

import argparse
import concurrent.futures
import csv
import os
import pathlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import entities
import keras
import numpy as np
import question_answering
import sst2
import tensorflow as tf
import token_classification
from sources import DATA, MINILM
from tensorflow.python.eager import context

import encoder_zoo as ez

ROOT = pathlib.Path(__file__).parents[1]
LABELS = ["negative", "positive"]
PIPELINE = "transformers pipeline, torch"
OURS = "SavedModel"


def read_sentences(count: int) -> list[str]:
    """Read and shuffle review sentences."""
    path = ROOT / "guides" / "data" / "sentiment_sentences.tsv"
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row["sentence"] for row in csv.DictReader(file, delimiter="\t", quoting=3)]
    random.Random(0).shuffle(rows)
    return rows[:count]


def write_models(folder: pathlib.Path) -> None:
    """Save a classifier as a checkpoint, a SavedModel and an ONNX file."""
    classifier = ez.SequenceClassifier.from_preset(MINILM, labels=LABELS)
    classifier.save_to_preset(folder / "checkpoint")
    classifier.export(folder / "served" / "1")
    classifier.export(folder / "model.onnx", format="onnx")


def saved_model(folder: pathlib.Path) -> Callable[[list[str]], list[tuple[str, float]]]:
    served = tf.saved_model.load(str(folder / "served" / "1")).signatures["serving_default"]

    def classify(texts):
        found = served(text=tf.constant(texts))
        labels, scores = found["label"].numpy()[:, 0], found["score"].numpy()[:, 0]
        return [(label.decode(), score) for label, score in zip(labels, scores, strict=True)]

    return classify


def pipeline(folder: pathlib.Path) -> Callable[[list[str]], list[tuple[str, float]]]:
    import transformers

    run = transformers.pipeline("text-classification", model=str(folder / "checkpoint"))
    return lambda texts: [(a["label"], a["score"]) for a in run(texts, batch_size=32)]


def onnx(folder: pathlib.Path) -> Callable[[list[str]], list[tuple[str, float]]]:
    import onnxruntime
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / "checkpoint"))
    session = onnxruntime.InferenceSession(folder / "model.onnx")

    def classify_batch(texts):
        ids = tokenizer(texts, padding=True, truncation=True, return_tensors="np")
        names = {"input_ids": "token_ids", "attention_mask": "padding_mask"}
        names["token_type_ids"] = "segment_ids"
        inputs = {name: ids[theirs].astype("int32") for theirs, name in names.items()}
        [logits] = session.run(None, inputs)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores = odds / odds.sum(axis=1, keepdims=True)
        return [(LABELS[i], row[i]) for i, row in zip(scores.argmax(1), scores, strict=True)]

    def classify(texts):
        return [a for i in range(0, len(texts), 32) for a in classify_batch(texts[i : i + 32])]

    return classify


def disagreement(answers: dict[str, list]) -> float:
    """Return the largest difference between scores. Raise an error if labels differ."""
    reference = answers[PIPELINE]
    for name, found in answers.items():
        for i, ((label, score), (right, _)) in enumerate(zip(found, reference, strict=True)):
            if label != right and abs(score - 0.5) > 1e-4:
                raise AssertionError(f"{name} predicts {label} for sentence {i}. Expected {right}.")
    scores = np.array([[score for _, score in found] for found in answers.values()])
    return float(np.ptp(scores, axis=0).max())


def measure_speed(sentences: int, rounds: int) -> None:
    """Print the latency of one sentence, and the throughput of lists of 32 and of all sentences."""
    texts = read_sentences(sentences)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_models(folder)
        makers = {OURS: saved_model, PIPELINE: pipeline, "tokenizer, onnxruntime": onnx}
        contestants = {who: make(folder) for who, make in makers.items()}
    difference = disagreement({who: ask(texts) for who, ask in contestants.items()})
    print(f"{len(texts)} sentences; the same labels, scores within {difference:.1e}")

    times: dict[str, list] = {who: [] for who in contestants}
    for text in texts:
        for who, ask in contestants.items():
            times[who].append(seconds(ask, [text]))
    rates: dict[str, dict[int, float]] = {who: {} for who in contestants}
    for size in (32, len(texts)):
        batches = [texts[i : i + size] for i in range(0, len(texts), size)]
        for who, ask in contestants.items():
            best = min(sum(seconds(ask, batch) for batch in batches) for _ in range(rounds))
            rates[who][size] = len(texts) / best
    for who in contestants:
        middle, slowest = (1000 * np.percentile(times[who], p) for p in (50, 99))
        speed = ", ".join(f"{rate:.0f}/s in lists of {n}" for n, rate in rates[who].items())
        print(f"{who:30} p50 {middle:6.2f} ms, p99 {slowest:6.2f} ms; {speed}")
    ours, theirs = (statistics.median(times[who]) for who in (OURS, PIPELINE))
    print(f"p50 is {ours / theirs:.2f} times the pipeline's (target: at most 0.5)")


def seconds(function: Callable, argument: list[str]) -> float:
    start = time.perf_counter()
    function(argument)
    return time.perf_counter() - start


def resident_megabytes() -> float:
    """Return the memory of this process, as reported by Linux."""
    status = pathlib.Path("/proc/self/status").read_text()
    [line] = [line for line in status.split("\n") if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def create_texts(longest: int) -> list[str]:
    """Create one text for each number of words from 1 to `longest`."""
    draw = random.Random(0)
    words = "the cat sat on a mat naïve 中国 dog's 🙂 Straße film good bad , . and not".split(" ")
    return [" ".join(draw.choices(words, k=length)) for length in range(1, longest + 1)]


def is_right(found: dict, entities: list[dict]) -> bool:
    """Check whether tensors for one text match the result from `extract_entities`."""
    values = {name: tensor.numpy()[0] for name, tensor in found.items()}
    if values.pop("count") != len(entities):
        return False
    for i, entity in enumerate(entities):
        if abs(values["score"][i] - entity["score"]) > 1e-5:
            return False
        for name in ("label", "text"):
            if values[name][i].decode() != entity[name]:
                return False
        if (values["start"][i], values["end"][i]) != (entity["start"], entity["end"]):
            return False
    return True


def measure_load(requests: int, threads: int, longest: int) -> None:
    """Send many concurrent requests. Print wrong results, memory growth and new graphs."""
    checkpoint = ROOT / "tests" / "golden" / "checkpoints" / "Bert_ForTokenClassification"
    classifier = ez.TokenClassifier.from_preset(str(checkpoint))
    texts = create_texts(longest)
    expected = classifier.extract_entities(texts)
    with tempfile.TemporaryDirectory() as folder:
        classifier.export(pathlib.Path(folder) / "1")
        served = tf.saved_model.load(f"{folder}/1").signatures["serving_default"]

    def ask(number: int) -> tuple[bool, float]:
        start = time.perf_counter()
        found = served(text=tf.constant([texts[number]]))
        took = time.perf_counter() - start
        return is_right(found, expected[number]), took

    order = random.Random(1).choices(range(len(texts)), k=requests)
    warm_up = max(len(texts), requests // 10)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(ask, (i % len(texts) for i in range(warm_up))))
        memory, graphs = resident_megabytes(), len(context.context().list_function_names())
        start = time.perf_counter()
        right, times = zip(*pool.map(ask, order), strict=True)
        took = time.perf_counter() - start
    growth = resident_megabytes() / memory - 1
    new_graphs = len(context.context().list_function_names()) - graphs
    middle, slowest = (1000 * np.percentile(times, p) for p in (50, 99))
    print(
        f"{requests} requests of 1 to {longest} words, {threads} threads: {requests / took:.0f}/s"
    )
    print(f"p50 {middle:.1f} ms, p99 {slowest:.1f} ms; wrong answers: {right.count(False)}")
    print(f"memory after {warm_up} requests {memory:.0f} MB, grown by {100 * growth:.1f} %")
    print(f"new graphs: {new_graphs}")


# -- answers of for_cpu --------------------------------------------------------------------------


CALIBRATED = 300
NANO = "bert_nano_en_uncased"


def learn_sst2(limit: int) -> tuple:
    """Train a model. Return the model, calibration inputs, test set size and score function."""
    texts, labels = sst2.read("train")
    held_out, right = sst2.read("dev")
    model = ez.SequenceClassifier.from_preset(MINILM, num_classes=2)
    model.fit(texts[:limit], labels[:limit], verbose=2)

    def score(model):
        return 100 * np.mean(model.predict(held_out, verbose=0).argmax(-1) == right)

    return model, texts[:CALIBRATED], len(right), score


def learn_conll2003(limit: int) -> tuple:
    train, held_out = token_classification.read("conll2003", limit)
    words, tags = held_out["testa"]
    model = ez.TokenClassifier.from_preset(MINILM)
    model.fit(*train, epochs=3, verbose=2)
    typical = train[0][:CALIBRATED]
    return model, typical, len(words), lambda m: 100 * m.evaluate_entities(words, tags)["f1"]


def learn_squad(limit: int) -> tuple:
    train, held_out = question_answering.read("squad", limit)
    sizes = {"window_length": question_answering.LENGTH, "doc_stride": question_answering.STRIDE}
    model = ez.SpanQA.from_preset(MINILM, **sizes)
    model.fit(train, epochs=2, batch_size=16, verbose=2)
    held_out = held_out[:: -(-len(held_out) // 1000)]  # from all articles
    typical = train[:: -(-len(train) // 100)]
    return model, typical, len(held_out), lambda m: m.evaluate_answers(held_out)["f1"]


def learn_entities(limit: int) -> tuple:
    data = DATA / "ner" / "conll2003"
    train = entities.read(data / "train.conll", entities.TRAINED, limit)
    held_out = entities.read(data / "testa.conll", entities.TRAINED, None)
    model = ez.EntityExtractor.from_preset(NANO, added_tokens=entities.MARKERS)
    loss = ez.SpanFocalLoss(2.0, 0.75, reduction="sum")
    model.compile(learning_rate=5e-4, loss=loss)
    model.fit(*train, epochs=4, batch_size=8, verbose=2)
    typical = train[0][:CALIBRATED]
    return (
        model,
        typical,
        len(held_out[0]),
        lambda m: 100 * m.evaluate_entities(*held_out)["f1"],
    )


WORKS = {  # function to train it, measure, and number of examples
    "sst2": (learn_sst2, "SST-2, accuracy", 20_000),
    "conll2003": (learn_conll2003, "CoNLL-2003 testa, F1", 7_000),
    "entities": (learn_entities, "CoNLL-2003 testa by names, F1", 3_000),
    "squad": (learn_squad, "SQuAD v1.1, F1", 4_000),
}


def measure_cpu(works: list[str], seeds: list[int], limit: int | None) -> None:
    """Print scores and speed for a model and its CPU copies."""
    print("| held out | seed | model | score | examples in a CPU second |")
    print("|---" * 5 + "|")
    for work in works:
        learn, title, usual = WORKS[work]
        for seed in seeds:
            keras.utils.set_random_seed(seed)
            model, typical, count, score = learn(limit or usual)
            models = {"predict": model}
            models |= {f'for_cpu("{kind}")': model.for_cpu(kind) for kind in ("float32", "int8")}
            for kind in ("float32", "bfloat16", "int8"):
                texts = typical if kind == "int8" else None
                fast = model.for_cpu(kind, engine="openvino", texts=texts)
                models[f'for_cpu("{kind}", engine="openvino")'] = fast
            for name, each in models.items():
                value = score(each)  # creates graphs on first use
                start = time.process_time()
                score(each)
                speed = count / (time.process_time() - start)
                print(f"| {title} | {seed} | {name} | {value:.2f} | {speed:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["speed", "load", "cpu"])
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the fastest counts")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--longest", type=int, default=512, help="maximum words per text")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=["sst2", "conll2003"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="number of training examples")
    options = parser.parse_args()
    if options.what == "speed":
        measure_speed(options.sentences, options.rounds)
    elif options.what == "cpu":
        measure_cpu(options.works, options.seeds, options.limit)
    else:
        measure_load(options.requests, options.threads, options.longest)


if __name__ == "__main__":
    main()
