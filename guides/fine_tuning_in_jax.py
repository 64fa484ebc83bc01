# %% [markdown]
"""
Title: Fine-tuning in JAX
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: The same program on another backend, and what XLA likes.
Accelerator: None

The models are written with `keras.ops`, so the same program can train on TensorFlow, JAX or
PyTorch. On JAX, every step is compiled by XLA, and attention uses a fused kernel if the device
supports it. Texts are tokenized by the library `tokenizers` before the training starts. TensorFlow
is not needed. This guide needs `pip install jax`.
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

We use a part of the review sentences in the folder of this guide (UCI "Sentiment Labelled
Sentences", CC BY 4.0).
"""

# %%
table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
table = table.sample(frac=1, random_state=0)
texts, labels = table["sentence"], table["label"].map({0: "negative", 1: "positive"})

# %% [markdown]
"""
## One length, one program

XLA compiles a program for every shape. To reduce the number of programs, short texts are packed
into sequences of the same length, longer texts are padded to a few lengths, and the last batch is
padded. The compiled programs are stored on disk. With a fixed `sequence_length`, there is only one
program, which is a good choice for TPUs and for short texts such as these. The fused kernels of
GPUs and TPUs do not support dropout in Keras. Set `attention_dropout=0.0` to use them in training.
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

Presets do not depend on the backend. TensorFlow and PyTorch can load models that were trained with
JAX.

To use several devices, add one line before you create the model:

```python
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=jax.devices()))
```
"""

# %%
for answer in classifier.classify(["What a lovely little place!", "It broke after a day."]):
    print(answer)
classifier.save_to_preset(OUTPUT / "trained_in_jax")
