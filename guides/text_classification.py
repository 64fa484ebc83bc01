# %% [markdown]
"""
Title: Text classification
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Fine-tune a bundled BERT to classify reviews, and look at its predictions.
Accelerator: None

This guide needs no downloads. The preset is included in the package, and the 3,000 review sentences
(UCI "Sentiment Labelled Sentences", CC BY 4.0) are in the folder of this guide. To use your own
data, replace the table. For better results, use a larger preset such as `"bert_base_en_uncased"`.
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

The table contains sentences and the names of their labels. We shuffle the rows and hold out 600 of
them for the evaluation.
"""

# %%
table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
table = table.sample(frac=1, random_state=0)
texts, labels = table["sentence"], table["label"].map({0: "negative", 1: "positive"})
held_out = texts[:600], labels[:600]

# %% [markdown]
"""
## Training

Load a preset and fit it on raw texts. By default, training uses the recipe of the BERT paper: AdamW
with warmup and linear decay. The names of the labels are read from the data.
"""

# %%
classifier = ez.Classifier.from_preset("bert_nano_en_uncased")
history = classifier.fit(texts[600:], labels[600:], validation_data=held_out, epochs=4, verbose=2)

# %% [markdown]
"""
## Learning curves

The plots show the loss and the accuracy after every epoch. The model begins to overfit when the
blue curve moves away from the grey curve. The confusion matrix of the labels is shown below.
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
Save the model to a folder. Both `from_preset` and `transformers` can load it.
"""

# %%
classifier.save_to_preset(OUTPUT / "review_classifier")
print(f"Pictures and preset: {OUTPUT}")
