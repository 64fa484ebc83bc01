# %% [markdown]
"""
Title: Retrieve and rerank
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Search all texts with an embedder, and rerank the best results.
Accelerator: None

An embedder computes one vector per text without knowing the question. This is fast but imprecise. A
reranker compares each text with the question word by word. This is more precise, but too slow to
use for all texts. To get a fast and precise search, combine both: the reranker only reads texts
that were found by the embedder. All texts are paragraphs from SQuAD 1.1 (CC BY-SA 4.0).
"""

# %%
import math
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent

# %% [markdown]
"""
## Retrieve

For every second question in every third paragraph, we search for this paragraph among all
paragraphs. nDCG@10 is 1 if the correct paragraph is ranked first. It is lower for lower ranks, and
0 if the correct paragraph is not among the first ten results.
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
    """Return the mean of 1 / log2(1 + rank) of the correct paragraphs."""
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

Pass `reranker=` to rerank the 20 nearest texts. Late interaction (ColBERT) uses token vectors: for
each token in the question, the best match in the text is computed, and all best matches are summed.
The bundled embedder can be used for this without further training, because its text vectors are the
mean over token vectors. One paragraph exceeds the maximum length, so a warning is logged for it.
"""

# %%
reranker = ez.LateInteraction.from_preset(
    "bert_nano_en_uncased_embedder", query_length=48, document_length=500
)
after = index.search(questions, top_k=10, reranker=reranker, candidates=20)
print(f"nDCG@10 reranked:   {ndcg(after):.3f}")

# %% [markdown]
"""
Here is the question with the largest improvement, and the best match in the paragraph for each of
its words:
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
## Late interaction with all texts

With an index of token vectors, late interaction is used for the whole search, and no embedder is
needed. This index is larger. `precision="int8"` reduces its size to about a quarter, and
`pool_factor=2` merges tokens with similar vectors to halve it. Use `reranker.index(paragraphs)` to
build an index in one line. Here, vectors are only computed once to build three indexes.
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

A cross-encoder reads the question together with a text. It is slower, but better if it was trained
on hundreds of thousands of questions. Such a model can be loaded from the hub:

    reranker = ez.Reranker.from_preset("hf://cross-encoder/ms-marco-MiniLM-L6-v2")
    index.search(questions, reranker=reranker, candidates=20)

To find names and numbers, it is best to search by words. Install bm25s with `pip install bm25s` to
combine the ranks from two searches:

    hybrid = ez.HybridIndex([index, ez.BM25Index(paragraphs)])
    hybrid.search(questions, reranker=reranker)
"""
