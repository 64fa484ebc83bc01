# %% [markdown]
"""
Title: Your own CSV
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: From a table with texts and labels to a table with answers.
Accelerator: None

You have a table with a column of texts and a column of labels, from a spreadsheet or a database.
This is all that it takes to train on it, to save the answers in another table, and to use the model
again.
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
## Read the table

Here it is made from the review sentences of this folder (UCI "Sentiment Labelled Sentences", CC BY
4.0); yours is read by `pd.read_csv("reviews.csv")`. Rows without text or label are of no use, and
rows that stand there twice would be in training and in the test.
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

At random: tables are often sorted, by label or by date.
"""

# %%
held_out = table.sample(frac=0.2, random_state=0)
train = table.drop(held_out.index)

# %% [markdown]
"""
## Train

Columns go in as they are. Without a list of labels, they would be learned from the column; with it,
a typing error in the table is an error here.
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
## Answers as columns

The least certain ones are worth reading: they are often wrong in the table.
"""

# %%
answers = pd.DataFrame(classifier.classify(held_out["sentence"]), index=held_out.index)
result = held_out.assign(answer=answers["label"], score=answers["score"])
result.to_csv(OUTPUT / "answers.csv", index=False)
print(result.sort_values("score").head(5).to_string())
axes = ez.display.confusion_matrix(result["label"], result["answer"])

# %% [markdown]
"""
## Another day

The saved folder has labels and tokenizer with it.
"""

# %%
classifier.save_to_preset(OUTPUT / "csv_classifier")
again = ez.Classifier.from_preset(OUTPUT / "csv_classifier")
print(again.classify("Works well, I would buy it again."))
