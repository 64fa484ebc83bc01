# %% [markdown]
"""
Title: Semantic search
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Search your own files by meaning: chunks, filters, changes.
Accelerator: None

A text embedder converts texts to vectors, such that texts with similar meanings have similar
vectors. To search, the nearest vectors are found. A question and its answer do not have to share
any words. This guide searches the pages in this documentation, but any other files can be used.
"""

# %%
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent

# %% [markdown]
"""
## Read the files

A document consists of a text, an id and fields. We use the file name as the id. Fields can be used
to filter a search.
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

A vector is more precise for a short text than for a long text. For this reason, `chunks` splits
each file into chunks with a maximum number of tokens. Words are not split. The file and the
position are stored for every chunk. The bundled embedder is small (7 MB) and only supports English.
Other embedders can be loaded in the same way, such as `"all_minilm_l6_en_uncased"` or a folder with
a sentence-transformers model.
"""

# %%
embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
index = embedder.index(embedder.chunks(documents, 64, overlap=16))
print(len(index), "chunks")

# %% [markdown]
"""
## Search

Use `group_by="document"` to return only the best chunk per file. Use filters to search only in
documents with matching fields.
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

Call `add`, `update` and `remove` with ids to change the index. A saved index contains vectors,
texts, ids and fields. A SavedModel also contains the embedder. It takes questions, returns texts
and scores, and only requires TensorFlow.
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
