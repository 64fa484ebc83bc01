# %% [markdown]
"""
Title: Moving from transformers
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: The names in both packages, and checkpoints in both directions.
Accelerator: None

A preset here is a checkpoint folder of `transformers`: `config.json`, `model.safetensors`,
tokenizer files. There is nothing to convert, in either direction; only the names in Python differ.

| transformers | encoder_zoo |
|---|---|
| `AutoModel.from_pretrained(name)` | `Backbone.from_preset("hf://" + name)` |
| `AutoModelForSequenceClassification` | `SequenceClassifier` (`Classifier`) |
| `AutoModelForTokenClassification` | `TokenClassifier` |
| `AutoModelForQuestionAnswering` | `SpanQA` |
| `AutoModelForMaskedLM` | `MaskedLM` |
| `ElectraForPreTraining` | `ReplacedTokenDetection` |
| `AutoTokenizer` | `Tokenizer`; tasks have theirs inside |
| `pipeline("text-classification")(texts)` | `classify(texts)` |
| `pipeline("ner", aggregation_strategy="first")` | `extract_entities(texts, strategy="first")` |
| `pipeline("question-answering")` | `answer(question, context)` |
| `pipeline("fill-mask")` | `fill_mask(texts)` |
| `num_labels=2`, `id2label` | `num_classes=2`, or `labels=[...]` |
| `problem_type="multi_label_classification"` | the same |
| `tokenizer(texts, truncation=True, max_length=128)` | `from_preset(..., sequence_length=128)` |
| `input_ids`, `attention_mask`, `token_type_ids` | `token_ids`, `padding_mask`, `segment_ids` |
| `last_hidden_state`, `pooler_output` | `sequence_output`, `pooled_output` |
| `output_attentions=True` | `backbone.attention_probabilities(inputs)` |
| `hidden_size`, `num_hidden_layers`, `num_attention_heads`, `intermediate_size` | `hidden_dim`, `num_layers`, `num_heads`, `intermediate_dim` |
| `Trainer(...).train()` | `fit(texts, labels)` |
| `TrainingArguments(gradient_accumulation_steps=4)` | `compile(gradient_accumulation_steps=4)` |
| `gradient_checkpointing_enable()` | `backbone.enable_gradient_checkpointing()` |
| `DataCollatorForLanguageModeling(mlm_probability=0.15)` | `MaskedLMPreprocessor(tokenizer, mask_rate=0.15)` |
| `save_pretrained(folder)` | `save_to_preset(folder)` |
"""

# %%
import json
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
## A training loop

The equivalent of a tokenizer, `map`, a collator, `TrainingArguments` and a `Trainer` there:
"""

# %%
TEXTS = ["A lovely film.", "Dull and far too long.", "I laughed a lot.", "What a waste of time."]
LABELS = ["good", "bad", "good", "bad"]
classifier = ez.Classifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
history = classifier.fit(TEXTS, LABELS, epochs=10, verbose=0)
print(classifier.classify(TEXTS[:2]))

# %% [markdown]
"""
## The saved files

The names in `config.json` are those of `transformers`, the labels among them.
"""

# %%
folder = OUTPUT / "for_transformers"
classifier.save_to_preset(folder)
print(sorted(path.name for path in folder.iterdir()))
config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
print({name: config[name] for name in ("architectures", "model_type", "hidden_size", "id2label")})

# %% [markdown]
"""
So this opens it, and gives the same numbers to within 1e-5:

```python
from transformers import pipeline

pipeline("text-classification", model="guides/output/for_transformers")("A lovely film.")
```

In the other direction `from_preset` takes a folder that `save_pretrained` wrote, with its head if
the task is the same; with another task the encoder is taken, and the head is new.
"""

# %%
again = ez.SequenceClassifier.from_preset(folder)
print(again.classify(TEXTS[:2]))
tagger = ez.TokenClassifier.from_preset(folder, labels=["O", "B-PER", "I-PER"])

# %% [markdown]
"""
## The encoder alone

Token ids are those of `transformers`' tokenizer, and the outputs have other names:
"""

# %%
backbone = ez.Backbone.from_preset(folder)
inputs = classifier.preprocessor(TEXTS)
outputs = backbone(inputs)
print({name: tuple(values.shape) for name, values in inputs.items()})
print({name: tuple(values.shape) for name, values in outputs.items()})

# %% [markdown]
"""
## Masked words
"""

# %%
masked = ez.MaskedLM.from_preset("bert_nano_en_uncased")
for candidate in masked.fill_mask("The film was a [MASK] success."):
    print(f"{candidate['score']:.3f}  {candidate['text']}")
