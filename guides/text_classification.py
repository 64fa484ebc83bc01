"""Fine-tune a bundled BERT to tell good reviews from bad ones, and look at what it learned.

    python guides/text_classification.py

Everything is on your disk: the preset is in the package, the 3,000 review sentences (UCI "Sentiment
Labelled Sentences", CC BY 4.0) are beside this file. Afterwards `guides/output/` holds a picture
with the learning curves and the confusion matrix, and the fine-tuned preset.

For your own data change three things: the texts, the labels, and the preset's name.
"""

import argparse
import csv
import pathlib
import random
import time

import keras
import matplotlib
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix
from sklearn.pipeline import make_pipeline

import encoder_zoo as ez

matplotlib.use("Agg")  # draws into a file, no screen needed
import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
LABELS = ["negative", "positive"]
MINE = [
    "The battery died after two days and nobody answered my mails.",
    "What a lovely little place, we will be back next week!",
    "Two hours of my life that I want back.",
]


def read_sentences() -> tuple[list[str], list[str]]:
    """Sentences and the names of their labels, shuffled."""
    with open(HERE / "data" / "sentiment_sentences.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    random.Random(0).shuffle(rows)
    return [row["sentence"] for row in rows], [LABELS[int(row["label"])] for row in rows]


def bag_of_words_accuracy(texts, labels, held_out_texts, held_out_labels) -> float:
    """What counting words and pairs of words achieves: the baseline to beat."""
    baseline = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(C=10, max_iter=1000),
    )
    return baseline.fit(texts, labels).score(held_out_texts, held_out_labels)


def draw(history: dict, matrix: np.ndarray, path: pathlib.Path) -> None:
    """Learning curves on the left, confusion matrix on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    epochs = range(1, len(history["accuracy"]) + 1)
    left.plot(epochs, history["accuracy"], "o-", color="#9aa5b1", label="training")
    left.plot(epochs, history["val_accuracy"], "o-", color="#1f6feb", label="held out")
    left.set(title="Accuracy", xlabel="epoch", xticks=list(epochs))
    left.spines[["top", "right"]].set_visible(False)
    left.grid(axis="y", alpha=0.3)
    left.legend(frameon=False, loc="lower right")

    right.imshow(matrix, cmap="Blues")
    right.set(
        title=f"{matrix.sum()} held-out sentences",
        xlabel="predicted",
        ylabel="true",
        xticks=range(2),
        yticks=range(2),
        xticklabels=LABELS,
        yticklabels=LABELS,
    )
    for row, column in np.ndindex(matrix.shape):
        dark = matrix[row, column] > matrix.max() / 2
        right.text(
            column,
            row,
            matrix[row, column],
            ha="center",
            va="center",
            fontsize=16,
            color="white" if dark else "black",
        )
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    start = time.perf_counter()
    keras.utils.set_random_seed(0)
    OUTPUT.mkdir(exist_ok=True)

    texts, labels = read_sentences()
    held_out_texts, held_out_labels = texts[:600], labels[:600]
    texts, labels = texts[600:], labels[600:]

    # The whole job: load, fit on raw text, ask.
    classifier = ez.Classifier.from_preset(options.preset, labels=LABELS)
    history = classifier.fit(
        texts,
        labels,
        validation_data=(held_out_texts, held_out_labels),
        epochs=options.epochs,
        batch_size=32,
    ).history
    answers = [answer["label"] for answer in classifier.classify(held_out_texts)]

    accuracy = np.mean([a == b for a, b in zip(answers, held_out_labels, strict=True)])
    baseline = bag_of_words_accuracy(texts, labels, held_out_texts, held_out_labels)
    print(f"\nAccuracy on {len(held_out_texts)} held-out sentences: {accuracy:.3f}")
    print(f"Bag of words with logistic regression:    {baseline:.3f}\n")
    for text, answer in zip(MINE, classifier.classify(MINE), strict=True):
        print(f"{answer['label']} ({answer['score']:.2f})  {text}")

    picture = OUTPUT / "text_classification.png"
    draw(history, confusion_matrix(held_out_labels, answers, labels=LABELS), picture)
    classifier.save_to_preset(OUTPUT / "review_classifier")
    print(f"\nPicture: {picture}\nPreset:  {OUTPUT / 'review_classifier'}")
    print(f"{time.perf_counter() - start:.0f} seconds in all")


if __name__ == "__main__":
    main()
