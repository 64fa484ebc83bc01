# %% [markdown]
"""
Title: Semantic search
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Search your own files by meaning, in under twenty lines.
Accelerator: None

A text embedder turns a text into a vector, such that texts with like meaning have vectors that are
near each other. To search is to find the nearest vectors: a question need not share a word with its
answer. The files here are the pages of this documentation; take any others.
"""

# %%
import pathlib

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent

# %% [markdown]
"""
## Read the files, a paragraph at a time

A vector stands for one text, and the shorter the text, the more exact it is.
"""

# %%
paragraphs = [
    " ".join(paragraph.split())
    for path in sorted((HERE / ".." / "docs" / "pages").rglob("*.md"))
    for paragraph in path.read_text(encoding="utf-8").split("\n\n")
    if len(paragraph) > 60 and not paragraph.startswith(("```", "|", "<"))
]
print(len(paragraphs), "paragraphs")

# %% [markdown]
"""
## An index

The bundled embedder is small (7 MB) and reads English. Any other is opened in the same way, such as
`"all_minilm_l6_en_uncased"` or the folder of a model of sentence-transformers.
"""

# %%
embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
index = embedder.index(paragraphs)
for hit in index.search("Can it go on after the machine crashed?", top_k=3):
    print(f"{hit['score']:.2f}  {hit['text'][:90]}")

# %%
ez.display.neighbours(index, "several graphics cards", top_k=5).show()

# %% [markdown]
"""
## Keep it

A saved index has vectors and texts. In a SavedModel the embedder is there too: question in, texts
and scores out, with TensorFlow alone.
"""

# %%
index.save(HERE / "output" / "search_index")
again = embedder.load_index(HERE / "output" / "search_index")
print(again.search("Which licence does it have?", top_k=1))
index.export(HERE / "output" / "served_search" / "1", top_k=3)
