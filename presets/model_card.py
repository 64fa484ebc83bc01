"""`README.md`, the model card of a preset."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

from encoder_zoo.encoders.backbone import Backbone

# Written cards bear this line; a card without it is a person's own and is kept.
MARK = "<!-- Written by encoder_zoo. Delete this line to keep your own version of this file. -->"


class Library(NamedTuple):
    """Another library that opens a preset: its name, what it runs on, and the call."""

    name: str
    platform: str
    code: str


TRANSFORMERS = Library(
    "transformers",
    "PyTorch",
    """from transformers import {cls}

model = {cls}.from_pretrained("path/to/{name}")""",
)
KERAS_HUB = Library(
    "KerasHub",
    "Keras 3",
    """import keras_hub

model = keras_hub.models.{cls}.from_preset("path/to/{name}")""",
)


class Readers(NamedTuple):
    """The libraries and classes that open a preset.

    Attributes:
        pipeline: the hub's name for what it does.
        our_class: its class here.
        library: that opens it too.
        their_class: its class there.
    """

    pipeline: str
    our_class: str
    library: Library
    their_class: str


class CardFacts(NamedTuple):
    """The facts in a card: the folder's name, the model, the type of its weights, labels."""

    name: str
    backbone: Backbone
    dtype: str
    labels: list[str]


def write_card(
    path: pathlib.Path, earlier: pathlib.Path, facts: CardFacts, readers: Readers
) -> None:
    """Write a model card, or copy the earlier one if a person wrote it.

    A symbolic link is replaced: its target may be a private file.

    Args:
        path: file to write.
        earlier: file that may be there already.
        facts: of the preset.
        readers: of the preset.
    """
    if earlier.is_file() and not earlier.is_symlink():
        content = earlier.read_bytes()
        if MARK.encode() not in content:
            path.write_bytes(content)
            return
    path.write_text(_card(facts, readers), encoding="utf-8")


def _card(facts: CardFacts, readers: Readers) -> str:
    name, backbone, family = facts.name, facts.backbone, facts.backbone.family.name
    pipeline, our_class, library, their_class = readers
    about_labels = f"\nLabels: {', '.join(facts.labels)}.\n" if facts.labels else ""
    return f"""---
library_name: keras
pipeline_tag: {pipeline}
tags:
- encoder_zoo
- {family}
---

# {name}

{MARK}

A {family} encoder for {pipeline.replace("-", " ")}:
{backbone.num_layers} layers, {backbone.num_heads} heads,
hidden size {backbone.hidden_dim}, vocabulary of {backbone.vocabulary_size},
weights in {facts.dtype}.
{about_labels}
With encoder_zoo, on Keras 3:

```python
import encoder_zoo as ez

model = ez.{our_class}.from_preset("path/to/{name}")
```

With {library.name}, on {library.platform}:

```python
{library.code.format(cls=their_class, name=name)}
```
"""
