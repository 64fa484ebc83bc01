# %% [markdown]
"""
Title: Your own CSV
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: Train on a table of texts and labels, and save the predictions in another table.
Accelerator: None

This guide shows how to train a classifier on a table with a text column and a label column, for
example from a spreadsheet or a database. The predictions are saved to another table. Then the
classifier is loaded again.
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
## Read the table

For this guide, we create a table from review sentences in this folder (UCI "Sentiment Labelled
Sentences", CC BY 4.0). Use `pd.read_csv("reviews.csv")` to read your own table. Drop rows without a
text or a label. Duplicates should also be dropped, because they could be in both the training data
and the test data.
"""

# %%
rows = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
rows["label"] = rows["label"].map({0: "bad", 1: "good"})
rows[["sentence", "label"]].to_csv(OUTPUT / "reviews.csv", index=False)

table = pd.read_csv(OUTPUT / "reviews.csv").dropna().drop_duplicates("sentence")
print(table.head())
print(table["label"].value_counts())

# %% [markdown]
"""
## Hold some rows out

Select these rows at random, because many tables are sorted by label or date.
"""

# %%
held_out = table.sample(frac=0.2, random_state=0)
train = table.drop(held_out.index)

# %% [markdown]
"""
## Train

Pass the table columns directly. By default, label names are read from the column. If a list of
labels is passed, an error will be raised for any typing error in the table.
"""

# %%
classifier = ez.Classifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
history = classifier.fit(
    train["sentence"],
    train["label"],
    validation_data=(held_out["sentence"], held_out["label"]),
    epochs=4,
    verbose=2,
)
axes = ez.display.learning_curves(history)

# %% [markdown]
"""
## Predictions as columns

Check the predictions with the lowest scores. For these rows, the label in the table is often wrong.
"""

# %%
answers = pd.DataFrame(classifier.classify(held_out["sentence"]), index=held_out.index)
result = held_out.assign(answer=answers["label"], score=answers["score"])
result.to_csv(OUTPUT / "answers.csv", index=False)
print(result.sort_values("score").head(5).to_string())
axes = ez.display.confusion_matrix(result["label"], result["answer"])

# %% [markdown]
"""
## Load the model later

Labels and the tokenizer are saved to the same folder.
"""

# %%
classifier.save_to_preset(OUTPUT / "csv_classifier")
again = ez.Classifier.from_preset(OUTPUT / "csv_classifier")
print(again.classify("Works well, I would buy it again."))
