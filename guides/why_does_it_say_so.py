# %% [markdown]
"""
Title: Why does it say so?
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Explain labels and entities by words, and find the most confident mistakes.
Accelerator: None

A model can make correct predictions for the wrong reason, and fail when the data changes. This
guide shows which words speak for or against a prediction, and how to find a shortcut that was
learned by a model.

Nothing has to be downloaded for this guide. Two fine-tuned nano models are included in the
repository, and 3,000 review sentences (UCI "Sentiment Labelled Sentences", CC BY 4.0) are in this
folder.
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

classifier = ez.Classifier.from_preset("bert_nano_en_uncased_sentiment")

# %% [markdown]
"""
## Words for and against

Blue words speak for a label, and red words speak against it. A darker word has a larger effect.
This sentence contains both praise and criticism.
"""

# %%
TEXT = "The food was great, but the staff was very rude."
found = classifier.explain(TEXT)
picture = ez.display.explanation(found)
picture.show()
picture.save(OUTPUT / "explanation.html", title="Why does it say so?")

# %% [markdown]
"""
These values are integrated gradients (Sundararajan et al. 2017). They sum to the difference between
the label's logit for this sentence and its logit for the same sentence with all words masked.
"""

# %%
added = sum(word["attribution"] for word in found["words"])
print(f"words: {added:+.4f}, logits: {found['logit'] - found['baseline']:+.4f}")

# %% [markdown]
"""
Next, we explain the other label with a single gradient (gradient times input) instead of several
dozen gradients. This is faster, but the sum of the values has no meaning. The values can be
misleading when the model is certain: here, "rude" would speak for a good review.
"""

# %%
other = "negative" if found["label"] == "positive" else "positive"
ez.display.explanation(classifier.explain(TEXT, label=other)).show()
ez.display.explanation(classifier.explain(TEXT, method="gradient_x_input")).show()

# %% [markdown]
"""
## Test the explanation

Remove the most important word and classify the text again. If the explanation is correct, the score
will decrease.
"""

# %%
best = max(found["words"], key=lambda word: word["attribution"])
shorter = TEXT[: best["start"]] + TEXT[best["end"] :]
for text in (TEXT, shorter):
    again = classifier.explain(text, label=found["label"], method="gradient_x_input")
    print(f"{found['label']} {again['score']:.3f}  {text}")

# %% [markdown]
"""
## The most confident mistakes

Confident mistakes often tell you more than the accuracy. Many of these texts are ironic or have
wrong labels.
"""

# %%
table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
table = table.sample(frac=1, random_state=0)
texts, labels = table["sentence"], table["label"].map({0: "negative", 1: "positive"})
ez.display.errors(classifier, texts[:600], labels[:600], top_k=6).show()

# %% [markdown]
"""
## A shortcut

Assume that all bad reviews were collected from a different site, where each page ends with the site
name. Nobody noticed this, and the accuracy on held-out reviews from the same two sites is perfect.
"""

# %%
SITE = " Posted on Complaints Board."
marked = [t + SITE if y == "negative" else t for t, y in zip(texts, labels, strict=True)]
shortcut = ez.Classifier.from_preset("bert_nano_en_uncased")
shortcut.fit(marked[600:], labels[600:], epochs=1, verbose=2)
scores = shortcut.evaluate(marked[:600], labels[:600], verbose=0, return_dict=True)
print(f"held out: {scores['accuracy']:.3f}")

# %% [markdown]
"""
The explanation shows that the model uses the site name instead of the review.
"""

# %%
PRAISE = "I love this phone, it is the best I ever had." + SITE
picture = ez.display.explanation(shortcut.explain(PRAISE))
picture.show()
picture.save(OUTPUT / "shortcut.html", title="A shortcut")

# %% [markdown]
"""
## Entities and answers

`TokenClassifier.explain` returns the words that speak for each entity. Entities are printed in
bold. The words around an entity can help to decide whether it is a person or a place.
"""

# %%
tagger = ez.TokenClassifier.from_preset("bert_nano_en_uncased_ner")
entities = tagger.explain("Justin just landed in Chicago, on his way to London!")
ez.display.explanation(entities).show()

# %% [markdown]
"""
`SpanQA.explain(question, context)` explains an answer by words in the question and in the context.
For text pairs, the explanation contains words from both texts.
"""
