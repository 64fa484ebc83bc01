# %% [markdown]
"""
Title: Embed more texts than fit into memory
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Vectors of a file of any size, part by part, resumed after a kill.
Accelerator: None

Millions of texts take hours, and machines fail. This program reads a file line by line, embeds
some thousand lines at a time, and writes the vectors of each part to a file of its own:

    python guides/many_texts.py texts.txt.gz vectors

A part is there or it is absent, never half. Killed and started again, the program goes on with the
first part that is absent. `vectors/00000.npy` has the vectors of the first part, in the order of
the lines.
"""

# %%
import argparse
import gzip
import itertools
import os
import pathlib
from collections.abc import Iterator

import numpy as np

import encoder_zoo as ez

# %% [markdown]
"""
## Read the file in parts
"""


# %%
def parts(path: pathlib.Path, size: int) -> Iterator[list[str]]:
    """Yield the lines of a text file, so many at a time."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        while lines := [line.strip() for line in itertools.islice(file, size)]:
            yield lines


# %% [markdown]
"""
## Write each part at once

`os.replace` renames a file in one step: a part that was being written when the process died has the
other name, and is written again. A line without text has no vector, so it gets one of zeros, which
is near to nothing.
"""


# %%
def embed_file(embedder: ez.TextEmbedder, path: pathlib.Path, folder: pathlib.Path, size: int):
    """Write the vectors of a file's lines, (size, D) for each part."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, texts in enumerate(parts(path, size)):
        target, unfinished = folder / f"{number:05}.npy", folder / "unfinished"
        if target.exists():
            continue
        vectors = np.zeros((len(texts), embedder.embedding_dim), "float32")
        rows = [i for i, text in enumerate(texts) if text]
        vectors[rows] = embedder.embed([texts[i] for i in rows], batch_size=128)
        with open(unfinished, "wb") as file:
            np.save(file, vectors)
        os.replace(unfinished, target)
        print(f"{target}: {len(texts)} texts", flush=True)


# %% [markdown]
"""
## Read the vectors

Memory-mapped, they need no memory before they are used; and an index can be made of them without
embedding the texts again.
"""


# %%
def read_vectors(folder: pathlib.Path) -> Iterator[np.ndarray]:
    """Yield the vectors of each part, in order."""
    for path in sorted(folder.glob("*.npy")):
        yield np.load(path, mmap_mode="r")


# %%
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=pathlib.Path, help="a text on each line; may end in .gz")
    parser.add_argument("vectors", type=pathlib.Path, help="the folder to write to")
    parser.add_argument("--preset", default="bert_nano_en_uncased_embedder")
    parser.add_argument("--part", type=int, default=20_000, help="lines of a part")
    options = parser.parse_args()
    embedder = ez.TextEmbedder.from_preset(options.preset)
    embed_file(embedder, options.texts, options.vectors, options.part)
    print(sum(len(part) for part in read_vectors(options.vectors)), "vectors")


if __name__ == "__main__":
    main()
