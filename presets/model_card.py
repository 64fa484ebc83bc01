"""`README.md`: what a person or a hub wants to know of a preset."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

# Written cards bear this line; a card without it is a person's own and is kept.
MARK = "<!-- Written by encoder_zoo. Delete this line to keep your own version of this file. -->"

# Task: (the hub's name for it, class here, class in transformers)
_TASKS = {
    "backbone": ("feature-extraction", "Backbone", "AutoModel"),
    "sequence_classifier": (
        "text-classification", "SequenceClassifier", "AutoModelForSequenceClassification"
    ),
    "token_classifier": (
        "token-classification", "TokenClassifier", "AutoModelForTokenClassification"
    ),
    "span_qa": ("question-answering", "SpanQA", "AutoModelForQuestionAnswering"),
    "masked_lm": ("fill-mask", "MaskedLM", "AutoModelForMaskedLM"),
}  # fmt: skip


def model_card(
    path: pathlib.Path, earlier: pathlib.Path, name: str, config: Mapping, settings: Mapping
) -> None:
    """Writes a model card, or copies the earlier one where a person wrote it.

    Args:
        path: file to write.
        earlier: file that may be there already.
        name: of the preset.
        config: contents of config.json.
        settings: contents of encoder_zoo.json.
    """
    if earlier.is_file():
        text = earlier.read_text(encoding="utf-8")
        if MARK not in text:
            path.write_text(text, encoding="utf-8")
            return
    path.write_text(_card(name, config, settings["task"]), encoding="utf-8")


def _card(name: str, config: Mapping, task: str) -> str:
    pipeline, our_class, their_class = _TASKS[task]
    labels = list(config.get("id2label", {}).values())
    about_labels = f"\nLabels: {', '.join(labels)}.\n" if labels else ""
    return f"""---
library_name: keras
pipeline_tag: {pipeline}
tags:
- encoder_zoo
- {config["model_type"]}
---

# {name}

{MARK}

A {config["model_type"]} encoder for {pipeline.replace("-", " ")}:
{config["num_hidden_layers"]} layers, {config["num_attention_heads"]} heads,
hidden size {config["hidden_size"]}, vocabulary of {config["vocab_size"]},
weights in {config["dtype"]}.
{about_labels}
With encoder_zoo, on Keras 3:

```python
import encoder_zoo as ez

model = ez.{our_class}.from_preset("path/to/{name}")
```

With transformers, on PyTorch:

```python
from transformers import {their_class}

model = {their_class}.from_pretrained("path/to/{name}")
```
"""
