"""Encoders: layers, backbones, tokenizers; one file and one line here per family."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from encoder_zoo.encoders.family import Family

# family name (a checkpoint's `model_type`): module that defines its `FAMILY` record
FAMILIES = {
    "bert": "encoder_zoo.encoders.families.bert",
    "roberta": "encoder_zoo.encoders.families.roberta",
}


def get_family(name: str) -> Family:
    """The `Family` record of a name in `FAMILIES`; importing it is put off until here.

    Example:
        >>> get_family("roberta").pair_separators
        2
    """
    return importlib.import_module(FAMILIES[name]).FAMILY


def all_families() -> list[Family]:
    """The records of all families, in the order of `FAMILIES`."""
    return [get_family(name) for name in FAMILIES]
