# %% [markdown]
"""
Title: Retrieve and rerank
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: An index finds fifty passages fast; a reranker reads each with the question.
Accelerator: None

An embedder reads question and passage apart, so that a million passages are searched in
milliseconds. A reranker reads both together: it sees more, and takes a pass of the model for every
pair. So one finds the candidates, and the other orders the few that are left (Nogueira and Cho
2019). Here both are small and learn from a few hundred questions, an excerpt of SQuAD 1.1 (CC BY-SA
4.0).
"""

# %%
import pathlib
import random

import keras

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)

# %%
examples = ez.read_squad(HERE / "data" / "squad_excerpt.json")
passages = list(dict.fromkeys(example["context"] for example in examples))
held_back = set(passages[::4])
train = [e for e in examples if e["context"] not in held_back]
test = [e for e in examples if e["context"] in held_back]

# %% [markdown]
"""
## Find candidates
"""

# %%
embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
index = embedder.index(passages)
questions = [e["question"] for e in test]
found = index.search(questions, top_k=10)

# %% [markdown]
"""
## Train a reranker

For each question a list of texts: its passage, and those that the index takes for the next best.
The loss looks at their order. A model of the hub that has read a million questions needs no
training: `ez.Reranker.from_preset("cross-encoder/ms-marco-MiniLM-L6-v2")`.
"""

# %%
queries, lists, relevance = [], [], []
for example, hits in zip(train, index.search([e["question"] for e in train], top_k=5), strict=True):
    others = [hit["text"] for hit in hits if hit["text"] != example["context"]]
    texts = [example["context"], *random.Random(0).sample(others, 3)]
    queries.append(example["question"])
    lists.append(texts)
    relevance.append([1.0] + [0.0] * 3)

reranker = ez.Reranker.from_preset("bert_nano_en_uncased", max_length=128)
reranker.compile(learning_rate=2e-4)
reranker.fit((queries, lists), relevance, epochs=2, batch_size=8, verbose=2)

# %% [markdown]
"""
## Both together

How often the right passage comes first: as the embedder ranks them, and as the reranker orders the
ten that it found.
"""


# %%
def first_right(hits: list[list[dict]]) -> float:
    right = [e["context"] == one[0]["text"] for e, one in zip(test, hits, strict=True)]
    return sum(right) / len(right)


reranked = index.search(questions, top_k=3, reranker=reranker, candidates=10)
print(f"first is right: {first_right(found):.3f}, reranked {first_right(reranked):.3f}")

# %%
question = questions[0]
print(question)
for hit in index.search(question, top_k=3, reranker=reranker, candidates=10):
    print(f"  {hit['score']:.2f}  {hit['text'][:80]}")

# %%
reranker.save_to_preset(OUTPUT / "squad_reranker")  # opens as sentence-transformers' CrossEncoder
