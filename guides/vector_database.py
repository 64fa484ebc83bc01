# %% [markdown]
"""
Title: Search in a vector database
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Vectors in an embedded Qdrant, with filters, on the disk.
Accelerator: None

`embedder.index` keeps vectors in memory and compares all of them, which is exact and fast up to a
million texts. A database is for more: filters by other fields, changes while it is searched,
several programs. The embedder only makes the vectors; here Qdrant keeps them, in a folder, without
a server:

    pip install qdrant-client
"""

# %%
import os
import pathlib
import shutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # without TensorFlow's own lines

from qdrant_client import QdrantClient, models

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "output" / "vector_database"

# %% [markdown]
"""
## Fill it

Paragraphs of SQuAD 1.1 (CC BY-SA 4.0), with their length as a field to filter by.
"""

# %%
examples = ez.read_squad(HERE / "data" / "squad_excerpt.json")
paragraphs = list(dict.fromkeys(example["context"] for example in examples))
embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")

shutil.rmtree(FOLDER, ignore_errors=True)
database = QdrantClient(path=str(FOLDER))
size = models.VectorParams(size=embedder.embedding_dim, distance=models.Distance.COSINE)
database.create_collection("paragraphs", vectors_config=size)
database.upload_collection(
    "paragraphs",
    vectors=embedder.embed(paragraphs, prompt="document"),
    payload=[{"text": text, "words": len(text.split())} for text in paragraphs],
)
print(database.count("paragraphs").count, "paragraphs")

# %% [markdown]
"""
## Search it
"""

# %%
question = examples[0]["question"]
short = models.FieldCondition(key="words", range=models.Range(lt=120))
for conditions in (None, models.Filter(must=[short])):
    found = database.query_points(
        "paragraphs",
        query=embedder.embed(question, prompt="query"),
        query_filter=conditions,
        limit=3,
    )
    print(question)
    for hit in found.points:
        print(f"  {hit.score:.2f} {hit.payload['words']} words: {hit.payload['text'][:70]}")
database.close()
