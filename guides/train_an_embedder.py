# %% [markdown]
"""
Title: Train an embedder on your pairs
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Train a search engine for your domain on questions and passages.
Accelerator: None

To train an embedder, only pairs of related texts are needed, such as questions and answers, titles
and articles, or queries and clicked results. Other texts in the same batch are used as negatives
(InfoNCE). This guide uses questions and paragraphs from SQuAD 1.1 (an excerpt, CC BY-SA 4.0).
"""

# %%
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)

# %% [markdown]
"""
## The pairs

We hold out whole paragraphs, and use the questions for these paragraphs to evaluate the search.
"""

# %%
examples = ez.read_squad(HERE / "data" / "squad_excerpt.json")
passages = list(dict.fromkeys(example["context"] for example in examples))
held_back = set(passages[::4])
train = [e for e in examples if e["context"] not in held_back]
test = [e for e in examples if e["context"] in held_back]
questions = [e["question"] for e in test]
relevant = [passages.index(e["context"]) for e in test]
print(len(train), "pairs to learn from;", len(test), "questions to find among", len(passages))

# %% [markdown]
"""
## Before and after

`evaluate_retrieval` ranks all passages for each question. nDCG@10 is 1 if the correct passage is
ranked first. It is lower for a lower rank.
"""

# %%
embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
before = embedder.evaluate_retrieval(questions, passages, relevant)
embedder.compile(
    loss=ez.losses.Matryoshka(ez.losses.InfoNCE(scale=20), dims=[384, 128, 32]),
    learning_rate=1e-4,
)
pairs = [e["question"] for e in train], [e["context"] for e in train]
embedder.fit(pairs, epochs=3, batch_size=64, verbose=2)
after = embedder.evaluate_retrieval(questions, passages, relevant)
for name in ("ndcg@10", "recall@1", "recall@10"):
    print(f"{name:10} {before[name]:.3f} -> {after[name]:.3f}")

# %% [markdown]
"""
## Shorter vectors

The loss was also computed for the first 32 and the first 128 dimensions (Matryoshka representation
learning, Kusupati et al. 2022). Therefore, vectors can be truncated to reduce the index size.
"""

# %%
for dim in (384, 128, 32):
    found = embedder.evaluate_retrieval(questions, passages, relevant, dim=dim)
    print(f"{dim:4} dimensions: nDCG@10 {found['ndcg@10']:.3f}")

# %% [markdown]
"""
## Harder negatives

For training, wrong passages that are similar to the answer are more useful than random passages.
"""

# %%
mined = embedder.mine_negatives(*pairs, num_negatives=1, relative_margin=0.05)
embedder.compile(learning_rate=5e-5)
embedder.fit(mined, epochs=1, batch_size=64, verbose=2)
harder = embedder.evaluate_retrieval(questions, passages, relevant)
print(f"nDCG@10 {harder['ndcg@10']:.3f}")

# %% [markdown]
"""
The saved folder can also be loaded in sentence-transformers.
"""

# %%
embedder.save_to_preset(OUTPUT / "squad_embedder")
