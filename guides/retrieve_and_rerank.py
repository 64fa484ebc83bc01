# %% [markdown]
"""
Title: Retrieve and rerank
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: A fast search among all texts, and a closer look at the first of them.
Accelerator: None

An embedder makes one vector of each text, without knowing the question: fast, and coarse. A
reranker compares the question with a text word by word, which is too slow for all texts and better
for the few that the search found. Together they are fast and good. The texts here are paragraphs of
SQuAD 1.1 (CC BY-SA 4.0).
"""

# %%
import math
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # without TensorFlow's own lines

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent

# %% [markdown]
"""
## Retrieve

Every second question of every third paragraph is asked, and should find its paragraph among all.
nDCG@10 is 1 where the right paragraph comes first, less the further down it is, and 0 where it is
not among the first ten.
"""

# %%
examples = ez.read_squad(HERE / "data" / "squad_excerpt.json")
paragraphs = list(dict.fromkeys(example["context"] for example in examples))
asked = set(paragraphs[::3])
test = [example for example in examples if example["context"] in asked][::2]
questions = [example["question"] for example in test]
right = [paragraphs.index(example["context"]) for example in test]
print(len(questions), "questions,", len(paragraphs), "paragraphs")


def ndcg(results):
    """The mean of 1 / log2(1 + rank) of the right paragraphs."""
    total = 0.0
    for hits, index in zip(results, right, strict=True):
        ranks = [hit["index"] for hit in hits[:10]]
        total += 1 / math.log2(2 + ranks.index(index)) if index in ranks else 0.0
    return total / len(right)


embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
index = embedder.index(paragraphs)
before = index.search(questions, top_k=10)
print(f"nDCG@10 of vectors: {ndcg(before):.3f}")

# %% [markdown]
"""
## Rerank

With `reranker=` the nearest 20 are ordered anew. Late interaction (ColBERT) keeps the vector of
each token, and sums up for each token of the question the best match in the text. The bundled
embedder can do this without further training: a vector of its text is the mean of its tokens'. One
paragraph has more tokens than it reads, and a line says so whenever that one is compared.
"""

# %%
reranker = ez.LateInteraction.from_preset(
    "bert_nano_en_uncased_embedder", query_length=48, document_length=500
)
after = index.search(questions, top_k=10, reranker=reranker, candidates=20)
print(f"nDCG@10 reranked:   {ndcg(after):.3f}")

# %% [markdown]
"""
The question that gained most by it, and which word of the paragraph each of its words found:
"""


# %%
def rank(hits, index):
    found = [hit["index"] for hit in hits]
    return found.index(index) if index in found else len(found)


gains = [rank(a, i) - rank(b, i) for a, b, i in zip(before, after, right, strict=True)]
best = gains.index(max(gains))
print(questions[best], "\nfrom place", rank(before[best], right[best]) + 1,
      "to place", rank(after[best], right[best]) + 1)  # fmt: skip
ez.display.matches(reranker, questions[best], paragraphs[right[best]]).show()

# %% [markdown]
"""
## All texts, token by token

An index of tokens' vectors searches by late interaction from the start, without an embedder. It is
larger: `precision="int8"` makes it a fourth of that, a little more where there are few texts, and
`pool_factor=2` halves it, as it joins tokens with like meanings. `reranker.index(paragraphs)` makes
one in a line; here the vectors serve for three.
"""

# %%
vectors = reranker.embed(paragraphs)
for options in ({}, {"precision": "int8"}, {"precision": "int8", "pool_factor": 2}):
    tokens = ez.MultiVectorIndex.from_vectors(reranker, vectors, paragraphs, **options)
    found = tokens.search(questions, top_k=10)
    print(f"{tokens.nbytes / 1e6:5.1f} MB, nDCG@10 {ndcg(found):.3f}  {options}")
print(f"{index.nbytes / 1e6:5.1f} MB, the embedder's index")

# %% [markdown]
"""
## Larger models

A cross-encoder reads the question and a text together, which is slower and better still, if it has
learned from hundreds of thousands of questions. Such a one comes from the hub:

    reranker = ez.Reranker.from_preset("hf://cross-encoder/ms-marco-MiniLM-L6-v2")
    index.search(questions, reranker=reranker, candidates=20)

Names and numbers are found best by words. With `pip install bm25s` two searches become one, by
their ranks:

    hybrid = ez.HybridIndex([index, ez.BM25Index(paragraphs)])
    hybrid.search(questions, reranker=reranker)
"""
