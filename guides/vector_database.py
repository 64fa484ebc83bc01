# %% [markdown]
"""
Title: Search in a vector database
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/27
Description: Store vectors in Qdrant and PostgreSQL, and search with filters.
Accelerator: None

`embedder.index` keeps all vectors in memory and compares a query with all of them. This is exact,
and fast for up to a million texts. Use a database for more texts, to change data during a search,
or for access from several programs. In this case, the embedder is only used to compute vectors.
This guide first stores them with Qdrant in a folder without a server, and then on a PostgreSQL
server:

    pip install qdrant-client "psycopg[binary]"
"""

# %%
import os
import pathlib
import shutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

from qdrant_client import QdrantClient, models

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "output" / "vector_database"

# %% [markdown]
"""
## Fill it

All texts are paragraphs from SQuAD 1.1 (CC BY-SA 4.0). Their length is stored as a field for
filters.
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

# %% [markdown]
"""
## The same on a server

With the extension pgvector, PostgreSQL can store vectors. Use this line to start a server:

    docker run -d -p 5432:5432 -e POSTGRES_PASSWORD=secret pgvector/pgvector:pg18

Set `DATABASE_URL` to `postgresql://postgres:secret@localhost/postgres`. A temporary table is
created in this guide. Remove `TEMPORARY` to create a permanent table. `<=>` is the cosine distance.
With `hnsw.iterative_scan`, a search continues until enough rows match the condition.
"""


# %%
def fill(database, texts: list[str]) -> None:
    """Create the table and its index."""
    vectors = embedder.embed(texts, prompt="document")
    columns = f"text text, words integer, vector vector({embedder.embedding_dim})"
    database.execute("CREATE EXTENSION IF NOT EXISTS vector")
    database.execute(f"CREATE TEMPORARY TABLE paragraphs ({columns})")
    rows = [(t, len(t.split()), str(v.tolist())) for t, v in zip(texts, vectors, strict=True)]
    database.cursor().executemany("INSERT INTO paragraphs VALUES (%s, %s, %s)", rows)
    database.execute("CREATE INDEX ON paragraphs USING hnsw (vector vector_cosine_ops)")
    database.execute("SET hnsw.iterative_scan = strict_order")


def search(database, query: str, most_words: int, top_k: int = 3) -> list[tuple]:
    """Return (score, words, text) of the nearest texts."""
    vector = str(embedder.embed(query, prompt="query").tolist())
    found = database.execute(
        "SELECT 1 - (vector <=> %(vector)s), words, text FROM paragraphs WHERE words < %(most)s"
        " ORDER BY vector <=> %(vector)s LIMIT %(top_k)s",
        {"vector": vector, "most": most_words, "top_k": top_k},
    )
    return found.fetchall()


# %%
address = os.environ.get("DATABASE_URL")
if address is None:
    print("Skipped, because DATABASE_URL is not set to a PostgreSQL server.")
else:
    import psycopg

    with psycopg.connect(address) as postgres:
        fill(postgres, paragraphs)
        for score, words, text in search(postgres, question, most_words=120):
            print(f"  {score:.2f} {words} words: {text[:70]}")
