# %% [markdown]
"""
Title: Named entities
Author: the authors of encoder_zoo
Date created: 2026/11/21
Last modified: 2026/11/22
Description: Fine-tune a bundled BERT to find names in tweets, and highlight the results.
Accelerator: None

This guide needs no downloads. The preset is included in the package, and 1,200 sentences of WNUT-17
(CC BY 4.0) are in the folder of this guide.

WNUT-17 is difficult by design. Its names are rare and new, and people often misspell them. The best
systems of 2017 reached an F1 of 42 % on the test set with all of the data and much larger models.
Here, a nano model that ignores case reaches about 36 % and mostly finds common names. For your own
data, use a larger preset such as `"bert_base_en_uncased"` or a folder with a checkpoint.
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

Every line contains a word, a tab and a tag (O, B-person, I-person). Sentences are separated by
empty lines. We hold out the first 200 sentences.
"""

# %%
words, tags = ez.read_conll(HERE / "data" / "wnut17_excerpt.conll")
held_out_words, held_out_tags = words[:200], tags[:200]
print(list(zip(words[0], tags[0], strict=True)))

# %% [markdown]
"""
## Training

Load a preset and fit it on words and tags. The labels are read from the data.
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

A prediction is correct if the type, the first word and the last word of the entity are correct.
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

The start and end offsets of entities count the characters of the text.
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

Compare the predictions with the annotations of held-out sentences. A red frame marks a wrong
prediction. A dashed red line marks an entity that the model missed.
"""

# %%
shown = [i for i, row in enumerate(held_out_tags) if any(tag != "O" for tag in row)][:20]
sentences = [held_out_words[i] for i in shown]
found = tagger.extract_entities(sentences)
picture = ez.display.entities(sentences, found, true=[held_out_tags[i] for i in shown])
picture.show()
picture.save(OUTPUT / "named_entities.html", title=f"Entity F1 {scores['f1']:.2f}")
