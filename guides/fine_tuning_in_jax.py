# %% [markdown]
"""
Title: Fine-tuning in JAX
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: The same program on another backend, and what XLA likes.
Accelerator: None

Models here are written in `keras.ops`, so the backend is a setting: the same program trains on
TensorFlow, JAX or PyTorch. On JAX every step is compiled by XLA, and attention is its fused kernel
where the device has one. Texts are tokenized by the library `tokenizers` before training
starts; TensorFlow is not needed. This guide needs `pip install jax`.
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

A part of the review sentences beside this guide (UCI "Sentiment Labelled Sentences", CC BY 4.0).
"""

# %%
table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
table = table.sample(frac=1, random_state=0)
texts, labels = table["sentence"], table["label"].map({0: "negative", 1: "positive"})

# %% [markdown]
"""
## One length, one program

XLA makes a program for every shape that it meets. Short texts are packed into sequences of one
length, longer ones are padded to one of few, and the last batch is filled, so that there are few
programs, which are kept on disk. With a fixed
`sequence_length` there is one, which suits TPUs and short texts such as these.
`attention_dropout=0.0` lets training use the fused kernels of GPUs and TPUs, as they have no
dropout in Keras.
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
## The same weights elsewhere

A preset has no backend: what JAX trained, TensorFlow or PyTorch opens.

Several devices take one line before the model is made:

```python
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=jax.devices()))
```
"""

# %%
for answer in classifier.classify(["What a lovely little place!", "It broke after a day."]):
    print(answer)
classifier.save_to_preset(OUTPUT / "trained_in_jax")
