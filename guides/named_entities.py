# %% [markdown]
"""
Title: Named entities
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Fine-tune a bundled BERT to find names in tweets, and look at them highlighted.
Accelerator: None

Everything is on your disk: the preset is in the package, 1,200 sentences of WNUT-17 (CC BY 4.0) are
beside this guide.

WNUT-17 is hard on purpose: its names are rare and new, and people write them carelessly. The best
systems of 2017 found 42 % (F1) on its test set with all of the data and far larger models. A nano
model that reads lower case finds the more usual names, about 36 % here. For results on your own
data take `"bert_base_en_uncased"`, or a folder with a checkpoint.
"""

# %%
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # without TensorFlow's own lines

import keras

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)

# %% [markdown]
"""
## The data

A word, a tab and its tag (O, B-person, I-person) in every line, an empty line after every sentence.
The first 200 sentences are held out.
"""

# %%
words, tags = ez.read_conll(HERE / "data" / "wnut17_excerpt.conll")
held_out_words, held_out_tags = words[:200], tags[:200]
print(list(zip(words[0], tags[0], strict=True)))

# %% [markdown]
"""
## The whole job

Load, and fit on words with tags. The labels are learned from the data.
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
## How good it is

An entity counts as found where its type, its first and its last word are right.
"""

# %%
scores = tagger.evaluate_entities(held_out_words, held_out_tags)
print(f"Held-out entity F1 {scores['f1']:.3f}, of that by type:")
for label, values in scores["per_type"].items():
    counts = f"precision {values['precision']:.2f}, recall {values['recall']:.2f}"
    print(f"  {label:14} {counts}, {values['support']:.0f} true entities")

# %% [markdown]
"""
## Sentences of your own

Starts and ends count the characters of your string.
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
## Right, missed, made up

Held-out sentences beside what people marked in them. A red frame: made up, or not quite right. A
dashed red line: missed.
"""

# %%
shown = [i for i, row in enumerate(held_out_tags) if any(tag != "O" for tag in row)][:20]
sentences = [held_out_words[i] for i in shown]
found = tagger.extract_entities(sentences)
picture = ez.display.entities(sentences, found, true=[held_out_tags[i] for i in shown])
picture.show()
picture.save(OUTPUT / "named_entities.html", title=f"Entity F1 {scores['f1']:.2f}")
