# %% [markdown]
"""
Title: Moving from transformers
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: Compare the names in both packages, and exchange checkpoints.
Accelerator: None

A preset has the same format as a checkpoint folder of `transformers`, with `config.json`,
`model.safetensors` and tokenizer files. No conversion is needed in either direction. Only the names
in Python differ.

| transformers | encoder_zoo |
|---|---|
| `AutoModel.from_pretrained(name)` | `Backbone.from_preset("hf://" + name)` |
| `AutoModelForSequenceClassification` | `SequenceClassifier` (`Classifier`) |
| `AutoModelForTokenClassification` | `TokenClassifier` |
| `AutoModelForQuestionAnswering` | `SpanQA` |
| `AutoModelForMaskedLM` | `MaskedLM` |
| `ElectraForPreTraining` | `ReplacedTokenDetection` |
| `AutoTokenizer` | `Tokenizer` (tasks tokenize texts themselves) |
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

These lines replace a tokenizer, `map`, a collator, `TrainingArguments` and a `Trainer`:
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

`config.json` uses the names of `transformers`, also for the labels.
"""

# %%
folder = OUTPUT / "for_transformers"
classifier.save_to_preset(folder)
print(sorted(path.name for path in folder.iterdir()))
config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
print({name: config[name] for name in ("architectures", "model_type", "hidden_size", "id2label")})

# %% [markdown]
"""
transformers can therefore load the folder. The scores are equal up to 1e-5:

```python
from transformers import pipeline

pipeline("text-classification", model="guides/output/for_transformers")("A lovely film.")
```

In the other direction, `from_preset` loads a folder that was written by `save_pretrained`. If the
task is the same, the head is loaded too. For another task, only the encoder is loaded and the head
is new.
"""

# %%
again = ez.SequenceClassifier.from_preset(folder)
print(again.classify(TEXTS[:2]))
tagger = ez.TokenClassifier.from_preset(folder, labels=["O", "B-PER", "I-PER"])

# %% [markdown]
"""
## Only the encoder

The token ids are the same as in `transformers`, and the outputs have different names:
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
