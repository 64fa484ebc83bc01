# %% [markdown]
"""
Title: Semantic search
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Search your own files by meaning: chunks, filters, changes.
Accelerator: None

A text embedder turns a text into a vector, such that texts with like meaning have vectors that are
near each other. To search is to find the nearest vectors: a question need not share a word with its
answer. The files here are the pages of this documentation; take any others.
"""

# %%
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # without TensorFlow's own lines

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent

# %% [markdown]
"""
## Read the files

A document is a text with an id, here the name of its file, and fields, by which a search can be
narrowed down.
"""

# %%
pages = HERE / ".." / "docs" / "pages"
documents = [
    {
        "id": path.relative_to(pages).as_posix(),
        "text": path.read_text(encoding="utf-8"),
        "folder": path.relative_to(pages).parts[0] if path.parent != pages else "front",
    }
    for path in sorted(pages.rglob("*.md"))
]
print(len(documents), "files, such as", documents[0]["id"])

# %% [markdown]
"""
## An index of chunks

A vector stands for one text, and the shorter the text, the more exact it is: `chunks` cuts the
files, at the ends of words, into parts of so many tokens. Each knows its file and where it stands
there. The bundled embedder is small (7 MB) and reads English. Any other is opened in the same way,
such as `"all_minilm_l6_en_uncased"` or the folder of a model of sentence-transformers.
"""

# %%
embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
index = embedder.index(embedder.chunks(documents, 64, overlap=16))
print(len(index), "chunks")

# %% [markdown]
"""
## Search

`group_by="document"` gives of each file the best chunk. Fields narrow the search, and only what
meets them is compared.
"""

# %%
for hit in index.search("Can it go on after a crash?", top_k=3, group_by="document"):
    text = " ".join(hit["text"].split())
    print(f"{hit['score']:.2f}  {hit['metadata']['document']}: {text[:70]}")

# %%
[hit] = index.search("several graphics cards", top_k=1, where={"folder": ["topics", "front"]})
print(hit["id"], hit["metadata"])

# %% [markdown]
"""
## Change it, and keep it

Files come and go: `add`, `update` and `remove` take ids. A saved index has vectors, texts, ids and
fields. In a SavedModel the embedder is there too: question in, texts and scores out, with
TensorFlow alone.
"""

# %%
note = {"id": "note", "text": "The key is under the mat.", "folder": "mine"}
index.add(embedder.chunks([note], 64))
print(index.search("Where is the key?", top_k=1)[0]["id"])
index.remove("note#0")
index.save(HERE / "output" / "search_index")
again = embedder.load_index(HERE / "output" / "search_index")
print(again.search("Which licence does it have?", top_k=1, group_by="document")[0]["id"])
index.export(HERE / "output" / "served_search" / "1", top_k=3)
