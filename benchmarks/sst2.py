"""Fine-tune a preset on SST-2. Prints dev set accuracy and sentences per second.

    python benchmarks/sst2.py --preset minilm
    python benchmarks/sst2.py --preset bert_nano_en_uncased --epochs 2 --learning-rate 2e-4
    python benchmarks/sst2.py --preset bert_nano_en_uncased --random-weights

To provide the data, set `ENCODER_ZOO_DATA` to a folder with `sst2/train.tsv` and `sst2/dev.tsv`
(one header line, then `label<TAB>sentence`).
"""

import argparse
import time

import keras
from sources import DATA, MINILM, need_data

import encoder_zoo as ez


def read(name: str) -> tuple[list[str], list[int]]:
    """Read sentences and labels. The files do not use quotes."""
    lines = (DATA / "sst2" / f"{name}.tsv").read_text(encoding="utf-8").split("\n")[1:]
    rows = [line.split("\t") for line in lines if line]
    return [sentence for _, sentence in rows], [int(label) for label, _ in rows]


def load(preset: str, random_weights: bool) -> ez.SequenceClassifier:
    """Load the classifier to train. Optionally, initialize it with random weights."""
    folder = MINILM if preset == "minilm" else preset
    classifier = ez.SequenceClassifier.from_preset(folder, labels=["negative", "positive"])
    if not random_weights:
        return classifier
    fresh = ez.SequenceClassifier(
        type(classifier.backbone).from_config(classifier.backbone.get_config()),
        classifier.preprocessor,
        labels=classifier.labels,
    )
    fresh.learning_rate = classifier.learning_rate
    return fresh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, help="default: the value in the preset")
    parser.add_argument("--limit", type=int, help="maximum training sentences")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    need_data("sst2")

    keras.utils.set_random_seed(options.seed)
    texts, labels = read("train")
    texts, labels = texts[: options.limit], labels[: options.limit]
    classifier = load(options.preset, options.random_weights)
    if options.learning_rate:
        classifier.compile(learning_rate=options.learning_rate)

    start = time.perf_counter()
    classifier.fit(texts, labels, epochs=options.epochs, batch_size=options.batch_size, verbose=2)
    speed = options.epochs * len(texts) / (time.perf_counter() - start)
    accuracy = classifier.evaluate(*read("dev"), verbose=0, return_dict=True)["accuracy"]
    weights = "random weights" if options.random_weights else "pretrained"
    print(
        f"{options.preset}, {weights}, {keras.config.backend()}, seed {options.seed}: dev accuracy "
        f"{accuracy:.4f} after {options.epochs} epoch(s), {speed:.1f} sentences/s in training"
    )


if __name__ == "__main__":
    main()
