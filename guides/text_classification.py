# %% [markdown]
"""
Title: Text classification
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Fine-tune a bundled BERT to tell good reviews from bad ones, and look at it.
Accelerator: None

Everything is on your disk: the preset is in the package, the 3,000 review sentences (UCI "Sentiment
Labelled Sentences", CC BY 4.0) are beside this guide. For your own data change the table and the
preset's name: `"bert_base_en_uncased"` fetches the large model.
"""

# %%
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # without TensorFlow's own lines

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

Sentences and the names of their labels, shuffled; 600 are held out.
"""

# %%
table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
table = table.sample(frac=1, random_state=0)
texts, labels = table["sentence"], table["label"].map({0: "negative", 1: "positive"})
held_out = texts[:600], labels[:600]

# %% [markdown]
"""
## The whole job

Load, and fit on raw text. The recipe is that of BERT's paper: AdamW, warmup, linear decay. The
names of the labels are learned from the data.
"""

# %%
classifier = ez.Classifier.from_preset("bert_nano_en_uncased")
history = classifier.fit(texts[600:], labels[600:], validation_data=held_out, epochs=4, verbose=2)

# %% [markdown]
"""
## The training

The loss and the accuracy, epoch by epoch. Where the blue curve leaves the grey one, the model
begins to overfit. Below, the confusion matrix of the labels.
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
The preset is a folder that `from_preset` opens, and `transformers` too.
"""

# %%
classifier.save_to_preset(OUTPUT / "review_classifier")
print(f"Pictures and preset: {OUTPUT}")
