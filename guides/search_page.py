# %% [markdown]
"""
Title: From a folder of files to answers in a browser
Author: the authors of encoder_zoo
Date created: 2026/11/27
Last modified: 2026/11/27
Description: Split files into chunks, search by words and meaning, rerank, and show the results.
Accelerator: None

Everything is run on this machine, with the Python web server and models from the package. This
guide searches the pages in this documentation, but any other files can be used. It requires
`pip install bm25s`.
"""

# %%
import html
import http.server
import os
import pathlib
import re
import threading
import urllib.parse
import urllib.request

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent

# %% [markdown]
"""
## Read, split, index

Split all files into chunks of 64 tokens, which store their file and position. One index is used to
find chunks with a similar meaning, and another index to find chunks with the same rare words.
`HybridIndex` combines their results.
"""

# %%
folder = HERE / ".." / "docs" / "pages"
documents = [
    {"id": path.relative_to(folder).as_posix(), "text": path.read_text(encoding="utf-8")}
    for path in sorted(folder.rglob("*.md"))
]
embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
chunks = embedder.chunks(documents, 64, overlap=16)
index = ez.HybridIndex([embedder.index(chunks), ez.BM25Index(chunks)])
print(len(documents), "files,", len(index), "chunks")

# %% [markdown]
"""
## Search, rerank, highlight

The search returns 20 chunks. The reranker compares every word in these chunks with the question. It
is then used again to compare the lines in a chunk and highlight the best line.
"""

# %%
reranker = ez.LateInteraction.from_preset(
    "bert_nano_en_uncased_embedder", query_length=48, document_length=500
)


def answers(question: str) -> list[dict]:
    """Return the best chunks of five files, each with its best line."""
    hits = index.search(question, top_k=5, reranker=reranker, candidates=20, group_by="document")
    for hit in hits:
        lines = [line for line in hit["text"].splitlines() if line.strip()]
        hit["best"] = reranker.rank(question, lines, top_k=1)[0]["text"]
    return hits


for hit in answers("Can it go on after a crash?")[:3]:
    print(f"{hit['score']:.2f}  {hit['metadata']['document']}: {hit['best']}")

# %% [markdown]
"""
## A page

Questions and files can contain any text, including `<script>`. Use `html.escape` for any text that
is written to the page.
"""

# %%
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Search</title>
<style>body {{ font: 16px/1.5 system-ui; max-width: 46em; margin: 2em auto; padding: 0 1em }}
input {{ font: inherit; width: 100% }} pre {{ white-space: pre-wrap; font: inherit }}</style>
<form><input name="q" value="{question}" placeholder="Ask the files" autofocus></form>{found}</html>
"""


def page(question: str) -> str:
    """Return the page for a question, or a page without answers if the question is empty."""
    found = []
    for hit in answers(question) if question.strip() else []:
        before, _, after = hit["text"].partition(hit["best"])
        text = f"{html.escape(before)}<mark>{html.escape(hit['best'])}</mark>{html.escape(after)}"
        name = html.escape(hit["metadata"]["document"])
        found.append(f"<h3>{name} <small>{hit['score']:.2f}</small></h3><pre>{text}</pre>")
    return PAGE.format(question=html.escape(question), found="".join(found))


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers /?q=a+question."""

    def do_GET(self):
        fields = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        body = page(fields.get("q", [""])[0][:1000]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Disable the log of requests."""


# %% [markdown]
"""
## Serve it

The server uses a free port on 127.0.0.1, so it can only be reached from this machine. Several
threads can search at the same time. Open the address while the notebook is running. In a script,
call `server.serve_forever()` instead of starting a thread, and use Ctrl+C to stop the server. To
make it available for other machines, use a web server with authentication as a proxy.
"""

# %%
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
ADDRESS = f"http://127.0.0.1:{server.server_port}/"
print("Open", ADDRESS)

# %% [markdown]
"""
This is the response for a browser:
"""

# %%
query = urllib.parse.urlencode({"q": "How do I train on several GPUs & machines?"})
with urllib.request.urlopen(f"{ADDRESS}?{query}") as response:
    text = response.read().decode()
print(re.search("<input.*?>", text)[0])
print(*re.findall("<h3>.*?</h3>|<mark>.*?</mark>", text)[:6], sep="\n")
