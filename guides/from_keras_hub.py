# %% [markdown]
"""
Title: Moving from KerasHub
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: Compare the names in both packages, and convert models in both directions.
Accelerator: None

This guide compares the names in both packages, and shows how to convert models in memory or from
presets, and back. You can use both packages in the same program and move step by step.

| KerasHub | encoder_zoo |
|---|---|
| `BertTextClassifier`, `RobertaTextClassifier`, ... | `SequenceClassifier` (`Classifier`), for every family |
| `BertMaskedLM`, ... | `MaskedLM` |
| none | `TokenClassifier`, `SpanQA`, `ReplacedTokenDetection` |
| `BertTextClassifierPreprocessor(tokenizer, sequence_length=512)` | `SequenceClassifierPreprocessor(tokenizer)`, which pads each batch to its longest text |
| `num_classes=2` | `labels=["ham", "spam"]` or `num_classes=2` |
| `predict(texts).argmax(-1)` | `classify(texts)`: labels with scores |
| `backbone(inputs)["pooled_output"]` | the same |
| `"token_ids"`, `"padding_mask"`, `"segment_ids"` | the same |
| `tokenizer(texts)`, `detokenize` | the same, and `tokenize_with_offsets` |
| `from_preset("bert_base_en_uncased")` (Kaggle) | the same name (the hub), or `"kaggle://keras/bert/keras/bert_base_en_uncased"` |
| `save_to_preset(folder)` | the same, in the format of `transformers`, or with `format="keras_hub"` |
| `compile(optimizer=..., loss=..., metrics=...)` | optional; the default settings come from the paper for the family |
"""

# %%
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import keras
import keras_hub
import numpy as np

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "output"
OUTPUT.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)

# %% [markdown]
"""
## A KerasHub model

We build a tiny model, so that nothing is downloaded. Load your own model with `from_preset`.
"""

# %%
WORDS = "the a film game was is good bad dull bright and not".split()
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
tokenizer = keras_hub.models.BertTokenizer(vocabulary=vocabulary, lowercase=True)
backbone = keras_hub.models.BertBackbone(
    vocabulary_size=len(vocabulary),
    num_layers=2,
    num_heads=2,
    hidden_dim=32,
    intermediate_dim=64,
    max_sequence_length=32,
)
theirs = keras_hub.models.BertTextClassifier(
    backbone=backbone,
    num_classes=2,
    preprocessor=keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=32),
)
TEXTS = ["The film was good and bright.", "A dull, bad game."]
their_logits = theirs.predict(TEXTS, verbose=0)
print(their_logits)

# %% [markdown]
"""
## In memory

One line converts the weights, the tokenizer and the head, and sets the names of the labels. The
outputs are the same.
"""

# %%
ours = ez.SequenceClassifier.from_keras_hub(theirs, labels=["bad", "good"])
our_logits = ours.predict(TEXTS, verbose=0)
print(f"largest difference: {np.abs(our_logits - their_logits).max():.1e}")
print(ours.classify(TEXTS))

# %% [markdown]
"""
You can also use the encoder with another head, for tasks that KerasHub does not support. The new
head has to be trained:
"""

# %%
tagger = ez.TokenClassifier.from_keras_hub(theirs, labels=["O", "B-PER", "I-PER"])
print(tagger.labels)

# %% [markdown]
"""
## From presets

`from_preset` loads folders that KerasHub saved, and `kaggle://` URLs.
"""

# %%
theirs.save_to_preset(str(OUTPUT / "keras_hub_preset"))
opened = ez.SequenceClassifier.from_preset(OUTPUT / "keras_hub_preset", labels=["bad", "good"])
print(f"largest difference: {np.abs(opened.predict(TEXTS, verbose=0) - their_logits).max():.1e}")

# %% [markdown]
"""
## Train and convert back

You can call `fit` without `compile`. A model can be converted back if the class in KerasHub
computes the same outputs. For example, BERT in KerasHub always uses the tanh GELU, which is also
used by this model.
"""

# %%
good = [f"the {noun} was {word}" for noun in ("film", "game") for word in ("good", "bright")]
bad = [f"the {noun} was {word}" for noun in ("film", "game") for word in ("bad", "dull")]
ours.compile(learning_rate=5e-3)
history = ours.fit(good + bad, ["good"] * 4 + ["bad"] * 4, epochs=60, batch_size=8, verbose=0)
print(ours.classify(TEXTS))

ours.save_to_preset(OUTPUT / "back_to_keras_hub", format="keras_hub")
back = keras_hub.models.TextClassifier.from_preset(str(OUTPUT / "back_to_keras_hub"))
difference = np.abs(back.predict(TEXTS, verbose=0) - ours.predict(TEXTS, verbose=0)).max()
print(f"largest difference: {difference:.1e}")
