# %% [markdown]
"""
Title: Named entities
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Fine-tune a bundled BERT to find names in tweets, and highlight the results.
Accelerator: None

Nothing has to be downloaded for this guide. The preset is included in the package, and 1,200
sentences from WNUT-17 (CC BY 4.0) are in this folder.

WNUT-17 is difficult by design, because its names are rare, new and often misspelled. In 2017, the
best systems reached an F1 of 42 % on the test set, with all training data and much larger models.
The nano model in this guide ignores case. It reaches about 36 % and mostly finds common names. For
your data, use a larger preset such as `"bert_base_en_uncased"` or a checkpoint folder.
"""

# %%
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)

# %% [markdown]
"""
## The data

Each line contains a word, a tab and a tag (O, B-person, I-person). Sentences are separated by empty
lines. We hold out the first 200 sentences for evaluation.
"""

# %%
words, tags = ez.read_conll(HERE / "data" / "wnut17_excerpt.conll")
held_out_words, held_out_tags = words[:200], tags[:200]
print(list(zip(words[0], tags[0], strict=True)))

# %% [markdown]
"""
## Training

Load a preset and call `fit` with words and tags. Labels are read from the data.
"""

# %%
tagger = ez.TokenClassifier.from_preset("bert_nano_en_uncased")
history = tagger.fit(
    words[200:],
    tags[200:],
    validation_data=(held_out_words, held_out_tags),
    epochs=8,
    batch_size=16,
    verbose=2,
)
axes = ez.display.learning_curves(history)

# %% [markdown]
"""
## Evaluation

A predicted entity is only counted as correct if its type, first word and last word are correct.
"""

# %%
scores = tagger.evaluate_entities(held_out_words, held_out_tags)
print(f"Held-out entity F1 {scores['f1']:.3f}, by type:")
for label, values in scores["per_type"].items():
    counts = f"precision {values['precision']:.2f}, recall {values['recall']:.2f}"
    print(f"  {label:14} {counts}, {values['support']:.0f} true entities")

# %% [markdown]
"""
## Sentences of your own

Start and end offsets are character positions in the text.
"""

# %%
MINE = [
    "Just landed in Chicago, on my way to London!",
    "Justin is back on Twitter, and so is Nina",
]
found = tagger.extract_entities(MINE)
print(found[0])
ez.display.entities(MINE, found).show()

# %% [markdown]
"""
## Correct, missed and wrong predictions

This compares predictions with the annotations for held-out sentences. A wrong prediction has a red
frame. A missed entity has a dashed red line.
"""

# %%
shown = [i for i, row in enumerate(held_out_tags) if any(tag != "O" for tag in row)][:20]
sentences = [held_out_words[i] for i in shown]
found = tagger.extract_entities(sentences)
picture = ez.display.entities(sentences, found, true=[held_out_tags[i] for i in shown])
picture.show()
picture.save(OUTPUT / "named_entities.html", title=f"Entity F1 {scores['f1']:.2f}")
