"""Encoders: layers, backbones, tokenizers; one file and one line here per family."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from encoder_zoo.encoders.family import Family

# family name (a checkpoint's `model_type`), and its file in `families/`: its backbone
FAMILIES = {
    "bert": "BertBackbone",
    "roberta": "RobertaBackbone",
    "electra": "ElectraBackbone",
    "distilbert": "DistilBertBackbone",
    "albert": "AlbertBackbone",
    "xlm-roberta": "XLMRobertaBackbone",
    "camembert": "CamembertBackbone",
    "modernbert": "ModernBertBackbone",
    "deberta-v2": "DebertaV2Backbone",
}


def family_module(name: str) -> str:
    """The module that defines a family's backbone and its `FAMILY` record.

    Example:
        >>> family_module("xlm-roberta")
        'encoder_zoo.encoders.families.xlm_roberta'
    """
    return f"encoder_zoo.encoders.families.{name.replace('-', '_')}"


def get_family(name: str) -> Family:
    """The `Family` record of a name in `FAMILIES`; importing it is put off until here.

    Example:
        >>> get_family("roberta").class_prefix
        'Roberta'
    """
    return importlib.import_module(family_module(name)).FAMILY


def all_families() -> list[Family]:
    """The records of all families, in the order of `FAMILIES`."""
    return [get_family(name) for name in FAMILIES]
