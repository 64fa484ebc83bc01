"""Writes the model card of a preset, `README.md`."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.presets.files.manifest import CARD

# A line of the cards written here; a card without it was written by a user and is kept.
MARK = "<!-- Written by encoder_zoo. Delete this line to keep your own version of this file. -->"


class Library(NamedTuple):
    """Another library that opens a preset: its name, its platform, and the code."""

    name: str
    platform: str
    code: str


TRANSFORMERS = Library(
    "transformers",
    "PyTorch",
    """from transformers import {cls}

model = {cls}.from_pretrained("path/to/{name}")""",
)
SENTENCE_TRANSFORMERS = Library(
    "sentence-transformers",
    "PyTorch",
    """from sentence_transformers import {cls}

model = {cls}("path/to/{name}")""",
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
        pipeline: the hub's name of its task.
        our_class: its class in this package.
        library: the other library.
        their_class: its class in that library.
    """

    pipeline: str
    our_class: str
    library: Library
    their_class: str


def write_card(
    new: pathlib.Path,
    folder: pathlib.Path,
    backbone: Backbone,
    dtype: str,
    labels: list[str],
    readers: Readers,
) -> None:
    """Write a model card, or copy the previous one if a user wrote it.

    A symbolic link is replaced: its target may be a private file.

    Args:
        new: folder to write to.
        folder: that is replaced, with the previous card if there is one.
        backbone: the model.
        dtype: of its weights.
        labels: of its classes.
        readers: of the preset.
    """
    path, earlier = new / CARD, folder / CARD
    if earlier.is_file() and not earlier.is_symlink():
        content = earlier.read_bytes()
        if MARK.encode() not in content:
            path.write_bytes(content)
            return
    name, family = folder.name, backbone.family.name
    pipeline, our_class, library, their_class = readers
    more_tags = ["sentence-transformers", pipeline] if library is SENTENCE_TRANSFORMERS else []
    more_tags += ["feature-extraction"] if pipeline == "sentence-similarity" else []
    tags = "\n".join(f"- {tag}" for tag in ["encoder_zoo", family, *more_tags])
    about_labels = f"\nLabels: {', '.join(labels)}.\n" if labels else ""
    card = f"""---
library_name: keras
pipeline_tag: {pipeline}
tags:
{tags}
---

# {name}

{MARK}

A {family} encoder for {pipeline.replace("-", " ")}:
{backbone.num_layers} layers, {backbone.num_heads} heads,
hidden size {backbone.hidden_dim}, vocabulary of {backbone.vocabulary_size},
weights in {dtype}.
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
    path.write_text(card, encoding="utf-8")
