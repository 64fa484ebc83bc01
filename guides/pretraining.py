# %% [markdown]
"""
Title: Pretraining
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Pretrain a small BERT or RoBERTa on your own text, from the vocabulary up.
Accelerator: None

This script made the bundled presets `bert_nano_en_uncased` and `roberta_nano_en`. It needs
nothing but text files, one paragraph per line:

    python guides/pretraining.py --family bert --output my_bert text1.txt text2.txt.gz

What it does, in the order of the code below: trains a vocabulary, cuts the text into chunks, trains
a masked language model on them, and saves a preset that every task can start from:

    classifier = ez.SequenceClassifier.from_preset("my_bert", labels=["bad", "good"])
"""

# %%
import argparse
import gzip
import pathlib
import random

import keras
import numpy as np

import encoder_zoo as ez
from encoder_zoo.tasks.training.recipe import fine_tuning_optimizer

# Small on purpose: 1.5 million parameters, ten thousand tokens a second and more on two CPU cores.
SIZE = {
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 128,
    "intermediate_dim": 512,
    "max_sequence_length": 512,
}
# More than BERT's 0.15: a small model learns more from a step with more to predict.
MASK_RATE = 0.3
CHUNK_WORDS = (8, 12, 16, 24, 32, 64)
BACKBONES = {"bert": ez.BertBackbone, "roberta": ez.RobertaBackbone}


def read_paragraphs(paths: list[pathlib.Path]) -> list[str]:
    """The files' non-empty lines."""
    paragraphs = []
    for path in paths:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            paragraphs += [line.strip() for line in file if line.strip()]
    return paragraphs


def cut(paragraph: str) -> list[str]:
    """Chunks, most of them short: in those a small model sees soonest what goes with what."""
    words, chunks = paragraph.split(" "), []
    while words:
        size = random.choice(CHUNK_WORDS)
        chunks.append(" ".join(words[:size]))
        words = words[size:]
    return chunks


def build(family: str, tokenizer, dropout: float, **preprocessing) -> ez.MaskedLM:
    """A masked language model with random weights."""
    backbone = BACKBONES[family](
        tokenizer.vocabulary_size,
        **SIZE,
        dropout=dropout,
        attention_dropout=dropout,
        pooler=False,
    )
    return ez.MaskedLM(backbone, ez.MaskedLMPreprocessor(tokenizer, **preprocessing))


def initialize(model: ez.MaskedLM) -> None:
    """Wider kernels, and positions as waves, so that the attention begins to learn early.

    BERT's deviation of 0.02 is meant for a width of 768. In a narrow model it lets so little of the
    context through that thousands of steps go by before more is learned than how frequent words
    are. Waves make places that are near each other alike from the start.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.5, for the waves.
    """
    for weight in model.trainable_variables:
        if weight.path.endswith("kernel"):
            weight.assign(weight * (weight.shape[0] ** -0.5 / 0.02))
        if "position_embedding" in weight.path:
            places, width = weight.shape
            rates = 1000.0 ** -np.linspace(0, 1, width // 2)
            angles = np.arange(places)[:, None] * rates
            weight.assign(0.02 * np.concatenate([np.sin(angles), np.cos(angles)], 1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Pretrain a small BERT or RoBERTa on your own text, from the vocabulary up."
    )
    parser.add_argument("texts", nargs="+", type=pathlib.Path, help="text files, .gz or not")
    parser.add_argument("--family", choices=sorted(BACKBONES), default="bert")
    parser.add_argument("--output", required=True, help="folder of the new preset")
    parser.add_argument("--vocabulary-size", type=int, default=8192)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2, help="times over the text")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    keras.utils.set_random_seed(options.seed)
    paragraphs = read_paragraphs(options.texts)
    tokenizer = ez.train_vocabulary(paragraphs, options.vocabulary_size, options.family)

    chunks = [chunk for paragraph in paragraphs for chunk in cut(paragraph)]
    random.shuffle(chunks)
    held_out, chunks = chunks[:1000], chunks[1000:]
    print(f"{len(chunks)} chunks of text, {tokenizer.vocabulary_size} tokens", flush=True)

    # A small model does not overfit in a few passes: dropout would only slow it down.
    model = build(options.family, tokenizer, dropout=0.0, mask_rate=MASK_RATE)
    initialize(model)
    steps = -(-len(chunks) // options.batch_size) * options.epochs
    model.compile(optimizer=fine_tuning_optimizer(steps, options.learning_rate))
    model.fit(
        chunks,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=(held_out,),
        verbose=2,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=report)],
    )

    preset = build(options.family, tokenizer, dropout=0.1)  # fine-tuning wants dropout again
    preset.set_weights(model.get_weights())
    preset.learning_rate = 1e-3  # a narrow model takes larger steps than a wide one
    preset.save_to_preset(options.output, dtype="float16")


def report(batch: int, logs: dict) -> None:
    """A line now and then: the progress bar of a long run would fill a log file."""
    if batch % 100 == 99:
        print(
            f"step {batch + 1}: loss {logs['loss']:.3f}, accuracy {logs['accuracy']:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
