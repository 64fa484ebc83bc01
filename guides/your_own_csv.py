# %% [markdown]
"""
Title: Your own CSV
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: Train on a table of texts and labels, and save the predictions in another table.
Accelerator: None

This guide starts with a table that has a column of texts and a column of labels, for example from a
spreadsheet or a database. It trains a classifier, saves the predictions in another table, and loads
the classifier again.
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

We create the table from the review sentences in this folder (UCI "Sentiment Labelled Sentences",
CC BY 4.0). Read your own table with `pd.read_csv("reviews.csv")`. Drop rows without a text or a
label. Also drop duplicates, because they could occur in both the training and the test data.
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

Choose the rows at random, because tables are often sorted by label or date.
"""

# %%
held_out = table.sample(frac=0.2, random_state=0)
train = table.drop(held_out.index)

# %% [markdown]
"""
## Train

Pass the columns of the table directly. Without a list of labels, the labels are read from the
column. With a list, typing errors in the table raise an error.
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

Look at the least certain predictions. Their labels in the table are often wrong.
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

The saved folder also contains the labels and the tokenizer.
"""

# %%
classifier.save_to_preset(OUTPUT / "csv_classifier")
again = ez.Classifier.from_preset(OUTPUT / "csv_classifier")
print(again.classify("Works well, I would buy it again."))
