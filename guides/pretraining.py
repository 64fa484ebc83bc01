# %% [markdown]
"""
Title: Pretraining
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Train a vocabulary and pretrain a small BERT or RoBERTa on your own texts.
Accelerator: None

This guide only requires text files with blank lines between documents. They can be larger than
memory:

    python guides/pretraining.py --family bert --output my_bert text1.txt text2.txt.gz

This program trains a vocabulary and saves all token ids to disk as a corpus. It then trains a model
on this corpus with the methods from the papers, and saves a preset, which can be used for every
task:

    classifier = ez.SequenceClassifier.from_preset("my_bert", labels=["bad", "good"])

BERT is trained to predict masked tokens, and whether one segment follows another segment (Devlin et
al. 2019). RoBERTa is only trained to predict masked tokens, in examples that are filled with
sentences (Liu et al. 2019). After an interruption, run the same command again. It will continue
with the next file in the corpus, or with the next batch after the last backup.

Pretraining on few texts gives limited results. For the bundled presets, a larger teacher was used
as well, see guides/small_encoders.py.
"""

# %%
import argparse
import gzip
import itertools
import os
import pathlib
import re
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras
import numpy as np

import encoder_zoo as ez

# A small model with 1.5 million parameters. It processes more than ten thousand tokens per second
# on two CPU cores.
SIZE = {
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 128,
    "intermediate_dim": 512,
    "max_sequence_length": 512,
}
# Higher than 0.15 in BERT, because small models learn more if they predict more tokens per step.
MASK_RATE = 0.3
BACKBONES = {"bert": ez.BertBackbone, "roberta": ez.RobertaBackbone}
VOCABULARY_SENTENCES = 1_000_000  # maximum number of sentences to train the vocabulary
SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+")


def documents(paths: list[pathlib.Path]) -> Iterator[list[str]]:
    """Yield the list of sentences of each document."""
    for path in paths:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            for filled, lines in itertools.groupby(file, key=lambda line: bool(line.strip())):
                if filled:
                    yield [s for line in lines for s in SENTENCE_ENDS.split(line.strip())]


def build(family: str, tokenizer, dropout: float, length: int | None = None):
    """Build the pretraining task of a family with random weights."""
    backbone = BACKBONES[family](
        tokenizer.vocabulary_size,
        **SIZE,
        dropout=dropout,
        attention_dropout=dropout,
        pooler=family == "bert",
    )
    task = {"bert": ez.Pretraining, "roberta": ez.MaskedLM}[family]
    preprocessor = task.record.preprocessor_class(tokenizer, length, mask_rate=MASK_RATE)
    return task(backbone, preprocessor)


def initialize(model) -> None:
    """Initialize kernels with a larger variance and positions with sinusoids.

    The standard deviation of 0.02 in BERT is meant for a width of 768. With this value, a narrow
    model passes on so little context that it only learns word frequencies for thousands of steps.
    With sinusoids, neighbouring positions are similar from the start.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.5, for the waves.
    """
    for weight in model.trainable_variables:
        if weight.path.endswith("kernel"):
            weight.assign(weight * (weight.shape[0] ** -0.5 / 0.02))
        if "position_embedding" in weight.path:
            count, width = weight.shape
            rates = 1000.0 ** -np.linspace(0, 1, width // 2)
            angles = np.arange(count)[:, None] * rates
            weight.assign(0.02 * np.concatenate([np.sin(angles), np.cos(angles)], 1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Pretrain a small BERT or RoBERTa on your own text, from the vocabulary up."
    )
    parser.add_argument("texts", nargs="+", type=pathlib.Path, help="text files, optionally .gz")
    parser.add_argument("--family", choices=sorted(BACKBONES), default="bert")
    parser.add_argument("--output", required=True, help="folder of the new preset")
    parser.add_argument("--vocabulary-size", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=20_000_000, help="number of training tokens")
    parser.add_argument("--length", type=int, default=128, help="tokens per row")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    keras.utils.set_random_seed(options.seed)
    sentences = itertools.chain.from_iterable(documents(options.texts))
    tokenizer = ez.train_vocabulary(
        itertools.islice(sentences, VOCABULARY_SENTENCES), options.vocabulary_size, options.family
    )
    corpus = ez.PretrainingCorpus.from_documents(
        f"{options.output}_corpus", documents(options.texts), tokenizer
    )
    row = options.batch_size * options.length
    steps = max(1, options.tokens // row)
    print(
        f"{corpus}: {steps:,} steps of {row:,} tokens, about "
        f"{steps * row / corpus.num_tokens:.1f} times the corpus",
        flush=True,
    )

    # A small model does not overfit in a few epochs, so dropout would only slow down the training.
    model = build(options.family, tokenizer, dropout=0.0, length=options.length)
    initialize(model)
    model.compile(learning_rate=options.learning_rate, warmup=0.1)
    model.fit(
        corpus,
        batch_size=options.batch_size,
        steps_per_epoch=steps,
        verbose=2,
        callbacks=[
            keras.callbacks.LambdaCallback(on_train_batch_end=report),
            ez.BackupAndRestore(f"{options.output}_backup", save_freq=500),
        ],
    )

    preset = build(options.family, tokenizer, dropout=0.1)  # for fine-tuning
    preset.set_weights(model.get_weights())
    preset.learning_rate = 1e-3  # narrow models need larger learning rates
    preset.save_to_preset(options.output, dtype="float16")


def report(batch: int, logs: dict) -> None:
    """Print the progress from time to time, because a progress bar would fill a log file."""
    if batch % 100 == 99:
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in logs.items())
        print(f"step {batch + 1}: {numbers}", flush=True)


if __name__ == "__main__":
    main()
