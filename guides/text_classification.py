# %% [markdown]
"""
Title: Text classification
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Fine-tune a bundled BERT to classify reviews, and look at its predictions.
Accelerator: None

Nothing has to be downloaded for this guide. The preset is included in the package, and 3,000 review
sentences (UCI "Sentiment Labelled Sentences", CC BY 4.0) are in this folder. Replace the table to
use your own data. A larger preset, such as `"bert_base_en_uncased"`, will give better results.
"""

# %%
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras
import pandas as pd

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)

# %% [markdown]
"""
## The data

The table contains sentences with label names. We shuffle the rows and hold out 600 of them for
evaluation.
"""

# %%
table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
table = table.sample(frac=1, random_state=0)
texts, labels = table["sentence"], table["label"].map({0: "negative", 1: "positive"})
held_out = texts[:600], labels[:600]

# %% [markdown]
"""
## Training

Load a preset and call `fit` with raw texts. By default, this uses the training settings from the
BERT paper: AdamW with warmup and linear decay. Label names are read from the data.
"""

# %%
classifier = ez.Classifier.from_preset("bert_nano_en_uncased")
history = classifier.fit(texts[600:], labels[600:], validation_data=held_out, epochs=4, verbose=2)

# %% [markdown]
"""
## Learning curves

These plots show the loss and accuracy after each epoch. When the blue curve moves away from the
grey curve, the model begins to overfit. A confusion matrix for the labels is shown below.
"""

# %%
axes = ez.display.learning_curves(history)
axes[0].figure.savefig(OUTPUT / "learning_curves.png")
axes = ez.display.confusion_matrix(held_out[1], classifier.classify(held_out[0]))
axes.figure.savefig(OUTPUT / "confusion_matrix.png")

# %% [markdown]
"""
## Sentences of your own
"""

# %%
MINE = [
    "The battery died after two days and nobody answered my mails.",
    "What a lovely little place, we will be back next week!",
    "A waste of time, the plot makes no sense.",
]
for text, answer in zip(MINE, classifier.classify(MINE), strict=True):
    print(f"{answer['label']} ({answer['score']:.2f})  {text}")

# %% [markdown]
"""
Save the model to a folder, which can be loaded with `from_preset` or in `transformers`.
"""

# %%
classifier.save_to_preset(OUTPUT / "review_classifier")
print(f"Pictures and preset: {OUTPUT}")
