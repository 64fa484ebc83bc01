# %% [markdown]
"""
Title: Text classification
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Fine-tune a bundled BERT to tell good reviews from bad ones, and look at it.
Accelerator: None

Everything is on your disk: the preset is in the package, the 3,000 review sentences (UCI "Sentiment
Labelled Sentences", CC BY 4.0) are beside this guide. For your own data change three things: the
texts, the labels, and the preset's name.
"""

# %%
import csv
import pathlib
import random

import keras
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

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
LABELS = ["negative", "positive"]
with open(HERE / "data" / "sentiment_sentences.tsv", encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
random.Random(0).shuffle(rows)
texts = [row["sentence"] for row in rows]
labels = [LABELS[int(row["label"])] for row in rows]
held_out_texts, held_out_labels = texts[:600], labels[:600]
texts, labels = texts[600:], labels[600:]
print(f"{len(texts)} sentences, the first one: {texts[0]!r}, {labels[0]}")

# %% [markdown]
"""
## The whole job

Load, and fit on raw text. The recipe is that of BERT's paper: AdamW, warmup, linear decay.
`"bert_base_en_uncased"` instead of the bundled name fetches the large model.
"""

# %%
classifier = ez.Classifier.from_preset("bert_nano_en_uncased", labels=LABELS)
history = classifier.fit(
    texts,
    labels,
    validation_data=(held_out_texts, held_out_labels),
    epochs=6,
    batch_size=32,
    verbose=2,
)

# %% [markdown]
"""
## What it learned

The loss and the accuracy, epoch by epoch. Where the blue curve leaves the grey one, the model
begins to learn the training sentences by heart.
"""

# %%
axes = ez.display.learning_curves(history)
axes[0].figure.savefig(OUTPUT / "learning_curves.png")

# %% [markdown]
"""
Which label was taken for which:
"""

# %%
answers = classifier.classify(held_out_texts)
axes = ez.display.confusion_matrix(held_out_labels, answers, labels=LABELS)
axes.figure.savefig(OUTPUT / "confusion_matrix.png")

# %% [markdown]
"""
## Beside a bag of words

What counting words and pairs of words achieves is the baseline to beat.
"""

# %%
baseline = make_pipeline(
    TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
    LogisticRegression(C=10, max_iter=1000),
)
baseline.fit(texts, labels)
right = sum(a["label"] == b for a, b in zip(answers, held_out_labels, strict=True))
counted = baseline.score(held_out_texts, held_out_labels)
print(f"Accuracy on {len(answers)} held-out sentences: {right / len(answers):.3f}")
print(f"Bag of words with logistic regression:    {counted:.3f}")

# %% [markdown]
"""
## Sentences of your own
"""

# %%
MINE = [
    "The battery died after two days and nobody answered my mails.",
    "What a lovely little place, we will be back next week!",
    "Two hours of my life that I want back.",
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
