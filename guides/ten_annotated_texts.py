# %% [markdown]
"""
Title: From ten annotated texts
Author: the authors of encoder_zoo
Date created: 2026/11/27
Last modified: 2026/11/27
Description: Start with ten, annotate where it helps, fine-tune, know which answers to trust.
Accelerator: None

Every text has several labels here: what it is about, a product, a film or a restaurant, and whether
it is praise or a complaint. The texts are review sentences (UCI "Sentiment Labelled Sentences", CC
BY 4.0), whose labels we know; the guide plays the annotator, and looks at those of ten texts first.
"""

# %%
import json
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras
import numpy as np
import pandas as pd

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)

# %%
table = pd.read_csv(HERE / "data" / "sentiment_sentences.tsv", sep="\t", quoting=3)
table = table.sample(frac=1, random_state=0)
about = table["source"].map({"amazon": "product", "imdb": "film", "yelp": "restaurant"})
mood = table["label"].map({0: "complaint", 1: "praise"})
texts, labels = list(table["sentence"]), [list(row) for row in zip(about, mood, strict=True)]
test = texts[:600], labels[:600]
texts, labels = texts[600:], labels[600:]

# %% [markdown]
"""
## Ten texts, and an annotation file

This is the file that Label Studio exports; doccano, Prodigy and others are read in the same way.
"""

# %%
tasks = [
    {"data": {"text": text}, "annotations": [{"result": [{
        "type": "choices", "from_name": "labels", "to_name": "text", "value": {"choices": row},
    }]}]}
    for text, row in zip(texts[:10], labels[:10], strict=True)
]  # fmt: skip
(OUTPUT / "label_studio.json").write_text(json.dumps(tasks), encoding="utf-8")
annotated = ez.read_annotations(OUTPUT / "label_studio.json")
for text, row in zip(*annotated, strict=True):
    print(row, text)

# %% [markdown]
"""
## A few-shot classifier

An embedder has learned before which texts are alike. `FewShotClassifier` fits a logistic regression
of its vectors for each label; `epochs=0` leaves the embedder itself as it is, which takes a second.
"""

# %%
PRESET, SEVERAL = "bert_nano_en_uncased_embedder", "multi_label_classification"


def few_shot(texts, labels):
    """Return a classifier of few texts, and print its F1 of held-out texts."""
    model = ez.FewShotClassifier.from_preset(PRESET, problem_type=SEVERAL)
    model.fit(texts, labels, epochs=0, verbose=0)
    print(f"{len(texts):4} texts: F1 {model.evaluate(*test)['f1']:.3f}")
    return model


model = few_shot(*annotated)

# %% [markdown]
"""
Ten texts show that file and code work, not more: most scores are far below 0.5, and few labels are
given. A hundred are an hour of work.
"""

# %%
model = few_shot(texts[:100], labels[:100])

# %% [markdown]
"""
## Which to annotate next

Those that the model doubts: where the score of some label is nearest to 0.5. Here it picks another
100, beside the next 100 of the pile. The gain is small, and the model of ten texts picked worse
than chance (F1 0.57 of its hundred, beside 0.66): it does not know yet what to doubt. So compare,
as here, before you rely on it.
"""

# %%
doubt = np.abs(model.predict_proba(texts[100:]) - 0.5).min(axis=1)
picked = [*range(100), *(100 + np.argsort(doubt)[:100])]
few_shot([texts[i] for i in picked], [labels[i] for i in picked])
few_shot(texts[:200], labels[:200])
model = few_shot(texts[:400], labels[:400])

# %% [markdown]
"""
## Many texts: fine-tune

With some hundred texts of each label it is time to train the whole encoder. The last 400 are kept
for what comes after the training. Compare its F1 with that of
the few-shot classifier, which had a fifth of the texts and took a second.
"""

# %%
tuned = ez.SequenceClassifier.from_preset("bert_nano_en_uncased", problem_type=SEVERAL)
tuned.compile(metrics=["f1"])
tuned.fit(texts[:-400], labels[:-400], epochs=6, verbose=2)
print(f"F1 {tuned.evaluate(*test, verbose=0, return_dict=True)['f1']:.3f}")

# %% [markdown]
"""
## Scores to rely on

A score of 0.9 should be right nine times in ten. `calibrate` finds the temperature that makes it
so, and `tune_thresholds` for each label the least score at which it is given, here the one with the
best F1. Both look at texts that the model was not trained on, and both are saved with it.
"""

# %%
held_out = texts[-400:], labels[-400:]
found = tuned.calibrate(*held_out)
print(f"temperature {found['temperature']:.2f}, error of the scores {found['error_before']:.3f}, "
      f"then {found['error']:.3f}")  # fmt: skip
print(tuned.tune_thresholds(*held_out))
axes = ez.display.thresholds(tuned, *held_out)
axes[0].figure.savefig(OUTPUT / "ten_annotated_thresholds.png")

# %% [markdown]
"""
The picture shows what another choice would cost. Who may not miss a complaint takes a lower
threshold of it, `classify(texts, threshold={"complaint": 0.2})`, and reads what the precision there
says.

## Which answers to trust

What is certain goes through by itself, the rest is read by somebody. A text is certain here if each
of its labels is, given or not.
"""

# %%
scores = tuned.predict_proba(test[0])
certain = np.maximum(scores, 1 - scores).min(axis=1)
given = [{answer["label"] for answer in row} for row in tuned.classify(test[0])]
exact = np.array([row == {*true} for row, true in zip(given, test[1], strict=True)])
for least in (0.5, 0.6, 0.7, 0.8, 0.9):
    through = certain >= least
    print(f"certain from {least}: {through.mean():4.0%} of the texts, {exact[through].mean():.0%} "
          "of these have exactly the right labels")  # fmt: skip

# %%
tuned.save_to_preset(OUTPUT / "review_tagger")
again = ez.SequenceClassifier.from_preset(OUTPUT / "review_tagger")
print(again.classify(["The soup was cold and nobody said sorry.", "What a lovely film!"]))
