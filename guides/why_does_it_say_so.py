# %% [markdown]
"""
Title: Why does it say so?
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: The words behind a label or an entity, and the most confident mistakes.
Accelerator: None

A model that is right for the wrong reason is right until the reason goes away. This guide looks at
the words that speak for an answer and against it, and finds a shortcut that a model has learned.

Everything is on your disk: two fine-tuned nano models are in the package, the 3,000 review
sentences (UCI "Sentiment Labelled Sentences", CC BY 4.0) beside this guide.
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

Blue words speak for the label, red ones against it; the deeper, the more. The sentence is mixed,
and the model weighs it.
"""

# %%
TEXT = "The food was great, but the staff was very rude."
found = classifier.explain(TEXT)
picture = ez.display.explanation(found)
picture.show()
picture.save(OUTPUT / "explanation.html", title="Why does it say so?")

# %% [markdown]
"""
The numbers are integrated gradients (Sundararajan et al. 2017). They share out a difference: the
label's logit for the sentence, less the logit for the same sentence with all its words masked.
Their sum is this difference, so that nothing is left over.
"""

# %%
added = sum(word["attribution"] for word in found["words"])
print(f"words: {added:+.4f}, logits: {found['logit'] - found['baseline']:+.4f}")

# %% [markdown]
"""
The same for the other label; and by a single gradient (gradient times input) in place of some
dozens. That is quick, but its numbers have no such sum, and where a model is sure they mislead:
here "rude" would speak for a good review.
"""

# %%
other = "negative" if found["label"] == "positive" else "positive"
ez.display.explanation(classifier.explain(TEXT, label=other)).show()
ez.display.explanation(classifier.explain(TEXT, method="gradient_x_input")).show()

# %% [markdown]
"""
## Can it be believed?

Leave the strongest word out and ask again. An explanation that tells the truth names words without
which the score falls.
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

What a model gets wrong and is sure of is worth more than its accuracy: often it is irony, often a
label that is wrong itself.
"""

# %%
table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
table = table.sample(frac=1, random_state=0)
texts, labels = table["sentence"], table["label"].map({0: "negative", 1: "positive"})
ez.display.errors(classifier, texts[:600], labels[:600], top_k=6).show()

# %% [markdown]
"""
## A shortcut

Bad reviews were collected on another site, whose pages end with its name. Nobody noticed, and the
accuracy on held-out reviews of the same two sites is perfect.
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
Ask why, and the reason is on the page: not what people wrote, but where.
"""

# %%
PRAISE = "I love this phone, it is the best I ever had." + SITE
picture = ez.display.explanation(shortcut.explain(PRAISE))
picture.show()
picture.save(OUTPUT / "shortcut.html", title="A shortcut")

# %% [markdown]
"""
## Entities and answers

`TokenClassifier.explain` gives for each entity the words that speak for it. The entity itself is
bold; beside its own letters it is the words around it that tell a person from a place.
"""

# %%
tagger = ez.TokenClassifier.from_preset("bert_nano_en_uncased_ner")
entities = tagger.explain("Justin just landed in Chicago, on his way to London!")
ez.display.explanation(entities).show()

# %% [markdown]
"""
`SpanQA.explain(question, context)` does the same for an answer, with the words of the question and
of the context; pairs of texts have the words of both.
"""
