"""Fine-tune a bundled BERT, export it, and ask the export in a process that has TensorFlow alone.

    python guides/serving.py

Everything is on your disk: the preset is in the package, the review sentences (UCI "Sentiment
Labelled Sentences", CC BY 4.0) are beside this file. Afterwards `guides/output/served/1/` is a
version folder as TensorFlow Serving wants it. To serve it, where there is Docker:

    docker run -p 8501:8501 -e MODEL_NAME=reviews \\
        -v "$PWD/guides/output/served:/models/reviews" tensorflow/serving
    curl -d '{"instances": ["I love it!"]}' localhost:8501/v1/models/reviews:predict

A new version goes to `served/2`; the server takes it up by itself.
"""

import argparse
import csv
import json
import pathlib
import random
import subprocess
import sys
import time

import keras

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
SERVED = HERE / "output" / "served"
LABELS = ["negative", "positive"]
MINE = [
    "The battery died after two days and nobody answered my mails.",
    "What a lovely little place, we will be back next week!",
]
# What another machine needs in order to ask: TensorFlow and these lines.
CLIENT = """
import json, statistics, sys, time
import tensorflow as tf

start = time.perf_counter()
model = tf.saved_model.load(sys.argv[1])
classify = model.signatures["serving_default"]
assert "encoder_zoo" not in sys.modules
print(f"loaded without encoder_zoo in {time.perf_counter() - start:.1f} s")

texts = json.loads(sys.argv[2])
answer = classify(text=tf.constant(texts))
for text, labels, scores in zip(texts, answer["label"].numpy(), answer["score"].numpy()):
    print(f"  {labels[0].decode()} ({scores[0]:.2f}): {text}")

times = []
for text in texts * 100:
    start = time.perf_counter()
    classify(text=tf.constant([text]))
    times.append(1000 * (time.perf_counter() - start))
print(f"one sentence: {statistics.median(times):.1f} ms in the middle, "
      f"{statistics.quantiles(times, n=100)[-1]:.1f} ms for the slowest of a hundred")
"""


def read_sentences() -> tuple[list[str], list[str]]:
    """Sentences and the names of their labels, shuffled."""
    with open(HERE / "data" / "sentiment_sentences.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    random.Random(0).shuffle(rows)
    return [row["sentence"] for row in rows], [LABELS[int(row["label"])] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, help="train on so many sentences only")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)

    # Fine-tune, as in text_classification.py.
    texts, labels = read_sentences()
    held_out, held_out_labels = texts[:500], labels[:500]
    texts, labels = texts[500:][: options.limit], labels[500:][: options.limit]
    classifier = ez.SequenceClassifier.from_preset(options.preset, labels=LABELS)
    classifier.fit(texts, labels, epochs=options.epochs, verbose=2)
    accuracy = classifier.evaluate(held_out, held_out_labels, verbose=0, return_dict=True)
    print(f"held-out accuracy: {accuracy['accuracy']:.3f}")

    # Export: one line. The folder's name is the version.
    start = time.perf_counter()
    classifier.export(SERVED / "1")
    size = sum(path.stat().st_size for path in SERVED.rglob("*") if path.is_file())
    print(f"exported in {time.perf_counter() - start:.1f} s, {size / 1e6:.1f} MB: {SERVED / '1'}")

    # Ask, as another machine would.
    print("\nA process with TensorFlow alone:", flush=True)
    command = [sys.executable, "-c", CLIENT, str(SERVED / "1"), json.dumps(MINE)]
    subprocess.run(command, check=True)
    print("\nThe same from Python:")
    for text, found in zip(MINE, classifier.classify(MINE), strict=True):
        print(f"  {found['label']} ({found['score']:.2f}): {text}")


if __name__ == "__main__":
    main()
