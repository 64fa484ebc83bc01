# %% [markdown]
"""
Title: Fine-tuning in JAX
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: Train on the JAX backend, and reduce the number of programs that XLA compiles.
Accelerator: None

All models are written with `keras.ops`. For this reason, the same program can be used to train on
TensorFlow, JAX or PyTorch. On JAX, every step is compiled by XLA, and a fused attention kernel is
used if the device supports it. Before training starts, texts are tokenized by the library
`tokenizers`. TensorFlow is not needed. Run `pip install jax` before you start.
"""

# %%
import os

os.environ["KERAS_BACKEND"] = "jax"  # before keras is imported, and once for a process

import pathlib

import jax
import keras
import pandas as pd

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)
print(keras.backend.backend(), jax.devices())

# %% [markdown]
"""
## The data

We use some of the review sentences in this folder (UCI "Sentiment Labelled Sentences", CC BY 4.0).
"""

# %%
table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
table = table.sample(frac=1, random_state=0)
texts, labels = table["sentence"], table["label"].map({0: "negative", 1: "positive"})

# %% [markdown]
"""
## One length, one program

XLA compiles a program for every shape. To reduce the number of programs, short texts are packed
into sequences with the same length, longer texts are padded to a few lengths, and the last batch is
padded. Compiled programs are saved to disk. With a fixed `sequence_length`, there is only one
program. This is recommended for TPUs, and for short texts as in this guide. In Keras, the fused
kernels for GPUs and TPUs do not support dropout. Set `attention_dropout=0.0` to use them during
training.
"""

# %%
classifier = ez.Classifier.from_preset(
    "bert_nano_en_uncased", sequence_length=48, attention_dropout=0.0
)
history = classifier.fit(
    texts[200:1480],
    labels[200:1480],
    validation_data=(texts[:192], labels[:192]),
    epochs=3,
    batch_size=32,
    verbose=2,
)
axes = ez.display.learning_curves(history)

# %% [markdown]
"""
## Load the weights on other backends

Presets do not depend on the backend. A model that was trained on JAX can be loaded on TensorFlow or
PyTorch.

To use several devices, add this line before the model is created:

```python
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=jax.devices()))
```
"""

# %%
for answer in classifier.classify(["What a lovely little place!", "It broke after a day."]):
    print(answer)
classifier.save_to_preset(OUTPUT / "trained_in_jax")
