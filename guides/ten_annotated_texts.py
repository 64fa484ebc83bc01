# %% [markdown]
"""
Title: From ten annotated texts
Author: the authors of encoder_zoo
Date created: 2026/11/27
Last modified: 2026/11/27
Description: Start with ten texts, choose texts to annotate, fine-tune, and calibrate the scores.
Accelerator: None

In this guide, every text has several labels: a topic (product, film or restaurant), and whether it
is praise or a complaint. The texts are review sentences (UCI "Sentiment Labelled Sentences", CC BY
4.0). Because all labels are known, we can simulate an annotator who starts with ten texts.
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

We write a file in the Label Studio export format. Files from doccano, Prodigy and other tools can
be read in the same way.
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

An embedder can already compute which texts are similar. For each label, `FewShotClassifier` fits a
logistic regression to its vectors. With `epochs=0`, the embedder is not trained, so this only takes
a second.
"""

# %%
PRESET, SEVERAL = "bert_nano_en_uncased_embedder", "multi_label_classification"


def few_shot(texts, labels):
    """Train a classifier on few texts, and print its F1 on held-out texts."""
    model = ez.FewShotClassifier.from_preset(PRESET, problem_type=SEVERAL)
    model.fit(texts, labels, epochs=0, verbose=0)
    print(f"{len(texts):4} texts: F1 {model.evaluate(*test)['f1']:.3f}")
    return model


model = few_shot(*annotated)

# %% [markdown]
"""
Ten texts are only enough to test the file and the code. Most scores are far below 0.5, so few
labels are predicted. It takes about an hour to annotate a hundred texts.
"""

# %%
model = few_shot(texts[:100], labels[:100])

# %% [markdown]
"""
## Choose the next texts

Annotate uncertain texts next, for which the score of a label is close to 0.5. We compare 100
uncertain texts with the next 100 texts. The improvement is small. When the model was only trained
on ten texts, uncertain texts were even worse than random texts (F1 of 0.57 instead of 0.66),
because the scores were not reliable yet. Make this comparison for your data before you rely on
uncertain texts.
"""

# %%
doubt = np.abs(model.predict_proba(texts[100:]) - 0.5).min(axis=1)
picked = [*range(100), *(100 + np.argsort(doubt)[:100])]
few_shot([texts[i] for i in picked], [labels[i] for i in picked])
few_shot(texts[:200], labels[:200])
model = few_shot(texts[:400], labels[:400])

# %% [markdown]
"""
## Fine-tune with more texts

With a few hundred texts per label, the whole encoder can be fine-tuned. The last 400 texts are used
for calibration. Compare F1 with the few-shot classifier, which was trained on a fifth of the texts
in one second.
"""

# %%
tuned = ez.SequenceClassifier.from_preset("bert_nano_en_uncased", problem_type=SEVERAL)
tuned.compile(metrics=["f1"])
tuned.fit(texts[:-400], labels[:-400], epochs=6, verbose=2)
print(f"F1 {tuned.evaluate(*test, verbose=0, return_dict=True)['f1']:.3f}")

# %% [markdown]
"""
## Calibrate the scores

A prediction with a score of 0.9 should be correct nine times out of ten. `calibrate` finds a
temperature for this. `tune_thresholds` finds the threshold with the best F1 for each label. For
both methods, use texts that were not used for training. The results are saved with the model.
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
This plot shows precision and recall for other thresholds. To find nearly all complaints, use a
lower threshold, `classify(texts, threshold={"complaint": 0.2})`, and check the precision for this
threshold.

## Accept certain predictions

Certain predictions can be accepted automatically, while a person reads all other texts. Here, a
text is certain if the model is certain about each label.
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
