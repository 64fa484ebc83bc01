# %% [markdown]
"""
Title: Serving
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Fine-tune a bundled BERT, export it, and use it with only TensorFlow installed.
Accelerator: None

Nothing has to be downloaded for this guide. The preset is included in the package, and the review
sentences (UCI "Sentiment Labelled Sentences", CC BY 4.0) are in this folder.
"""

# %%
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras
import pandas as pd

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
SERVED = HERE / "output" / "served"
keras.utils.set_random_seed(0)

# %% [markdown]
"""
## Fine-tune

The guide on text classification explains this training.
"""

# %%
table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
table = table.sample(frac=1, random_state=0)
texts, labels = table["sentence"], table["label"].map({0: "negative", 1: "positive"})
classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased")
classifier.fit(texts[500:], labels[500:], epochs=5, verbose=2)
accuracy = classifier.evaluate(texts[:500], labels[:500], verbose=0, return_dict=True)
print(f"held-out accuracy: {accuracy['accuracy']:.3f}")

# %% [markdown]
"""
## Export

A single line is needed to export the model. The folder name is the version. When a new version is
exported to `served/2`, it will be loaded automatically by TensorFlow Serving.
"""

# %%
start = time.perf_counter()
classifier.export(SERVED / "1")
size = sum(path.stat().st_size for path in SERVED.rglob("*") if path.is_file())
print(f"exported in {time.perf_counter() - start:.1f} s, {size / 1e6:.1f} MB")

# %% [markdown]
"""
## Use the export on another machine

On the other machine, only TensorFlow and the following lines are required.
"""

# %%
CLIENT = """
import json, statistics, sys, time
import tensorflow as tf

start = time.perf_counter()
model = tf.saved_model.load(sys.argv[1])
classify = model.signatures["serving_default"]
assert "encoder_zoo" not in sys.modules
print(f"loaded without encoder_zoo in {time.perf_counter() - start:.1f} s")

texts = json.loads(sys.argv[2])
answer = classify(text=tf.constant(texts))
for text, labels, scores in zip(texts, answer["label"].numpy(), answer["score"].numpy()):
    print(f"  {labels[0].decode()} ({scores[0]:.2f}): {text}")

times = []
for text in texts * 100:
    start = time.perf_counter()
    classify(text=tf.constant([text]))
    times.append(1000 * (time.perf_counter() - start))
print(f"one sentence: {statistics.median(times):.1f} ms (median), "
      f"{statistics.quantiles(times, n=100)[-1]:.1f} ms for the slowest of a hundred")
"""
MINE = [
    "The battery died after two days and nobody answered my mails.",
    "What a lovely little place, we will be back next week!",
]
command = [sys.executable, "-c", CLIENT, str(SERVED / "1"), json.dumps(MINE)]
print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

# %% [markdown]
"""
The same predictions are returned by the model in this process:
"""

# %%
for text, found in zip(MINE, classifier.classify(MINE), strict=True):
    print(f"{found['label']} ({found['score']:.2f}): {text}")

# %% [markdown]
"""
## A server

Start TensorFlow Serving with Docker:

```bash
SERVED="$PWD/guides/output/served"
docker run -p 8501:8501 -e MODEL_NAME=reviews -v "$SERVED:/models/reviews" tensorflow/serving
curl -d '{"instances": ["I love it!"]}' localhost:8501/v1/models/reviews:predict
```
"""
