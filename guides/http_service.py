# %% [markdown]
"""
Title: A service over HTTP
Author: the authors of encoder_zoo
Date created: 2026/11/28
Last modified: 2026/11/28
Description: From a trained model to a container that answers curl, httpx and the OpenAI client.
Accelerator: None

The HTTP service combines requests from many clients into batches. It requires three small packages:
`pip install "encoder-zoo[serve]"`. The review sentences (UCI "Sentiment Labelled Sentences", CC BY
4.0) are in this folder, and the models are included in the package.
"""

# %%
import os
import pathlib
import shutil
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import httpx
import keras
import pandas as pd

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
MODELS = HERE / "output" / "http_service" / "models"
keras.utils.set_random_seed(0)

# %% [markdown]
"""
## Train and save

We save a review classifier, an embedder, and an index with 500 reviews to separate folders. The
folder names will be used as model names.
"""

# %%
table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
table = table.sample(frac=1, random_state=0)
texts, labels = table["sentence"], table["label"].map({0: "negative", 1: "positive"})
classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased")
classifier.fit(texts[500:], labels[500:], epochs=3, verbose=2)
classifier.save_to_preset(MODELS / "reviews")

embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
embedder.save_to_preset(MODELS / "vectors")
embedder.index(texts[:500]).save(MODELS / "notes")

# %% [markdown]
"""
## Start

Use a single command to start the service:

```bash
python -m encoder_zoo.serving models/reviews models/vectors models/notes --port 8000
```

After the warm-up, `/health` returns 200.
"""

# %%
URL = "http://127.0.0.1:8000"
FOLDERS = [str(MODELS / name) for name in ("reviews", "vectors", "notes")]
service = subprocess.Popen(
    [sys.executable, "-m", "encoder_zoo.serving", *FOLDERS, "--port", "8000"],
    stderr=subprocess.DEVNULL,
)


def is_ready() -> bool:
    try:
        return httpx.get(f"{URL}/health").status_code == 200
    except httpx.TransportError:
        return False


while not is_ready():
    if service.poll() is not None:
        raise SystemExit("The service has ended. Is the port 8000 in use?")
    time.sleep(0.5)

# %% [markdown]
"""
## Ask with curl

Requests can be sent by any HTTP client.
"""

# %%
body = '{"texts": ["The battery died.", "What a lovely little place!"]}'
if shutil.which("curl"):
    command = ["curl", "-s", f"{URL}/classify", "-d", body]
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

# %% [markdown]
"""
## Ask with httpx

The predictions are the same as in Python.
"""

# %%
with httpx.Client(base_url=URL) as client:
    mine = ["The battery died.", "What a lovely little place!"]
    answers = client.post("/classify", json={"texts": mine}).json()["answers"]
    for text, found in zip(mine, answers, strict=True):
        print(f"{found['label']} ({found['score']:.2f}): {text}")

    fields = {"query": "the phone does not charge", "top_k": 3}
    [hits] = client.post("/search", json=fields).json()["answers"]
    for hit in hits:
        print(f"{hit['score']:.2f} {hit['text']}")

    wrong = client.post("/classify", json={"texts": "Nice.", "top_k": 0})
    print(wrong.status_code, wrong.json()["error"]["message"])

# %% [markdown]
"""
## Ask with the OpenAI client

`/v1/embeddings` is compatible with the OpenAI API. To use the OpenAI client, change `base_url` and
pass the folder name as the model. The key is not used by the service.

```python
import openai

client = openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
answer = client.embeddings.create(model="vectors", input=["A cat.", "Tax law."], dimensions=64)
vectors = [row.embedding for row in answer.data]
```
"""

# %%
print(httpx.post(f"{URL}/v1/embeddings", json={"input": "A cat.", "dimensions": 4}).json())

# %% [markdown]
"""
## Watch

`/metrics` returns metrics for Prometheus: requests per route and status, seconds, texts and tokens
per batch, and the queue length.
"""

# %%
lines = httpx.get(f"{URL}/metrics").text.splitlines()
print(*[line for line in lines if line.startswith("encoder_zoo_requests_total")], sep="\n")

# %% [markdown]
"""
## Stop

After SIGTERM, the service does not accept any new requests. It finishes all accepted requests and
then exits.
"""

# %%
service.terminate()
service.wait()

# %% [markdown]
"""
## Into a container

The image contains the package, the model folders and one command. To build the wheel, run `pip
wheel --no-deps -w dist .` in the repository. Save the following `Dockerfile` next to `dist` and
`models`:

```dockerfile
FROM python:3.12-slim
COPY dist /dist
RUN pip install --no-cache-dir --find-links /dist "encoder-zoo[serve,tensorflow]"
COPY models /models
RUN useradd service
USER service
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", \\
    "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
CMD ["python", "-m", "encoder_zoo.serving", \\
    "/models/reviews", "/models/vectors", "/models/notes", \\
    "--host", "0.0.0.0", "--port", "8000"]
```

```bash
docker build -t my-models . && docker run -p 8000:8000 my-models
```

The service does not support passwords or encryption. To make it available outside a private
network, use a proxy such as nginx or Caddy. Clients cannot access files by name, because all
folders are set in the command.
"""
