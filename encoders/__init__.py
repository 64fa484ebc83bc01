"""Encoder layers, backbones and tokenizers. All families are listed in this module."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.encoders.family import Family

B = TypeVar("B", bound="type[Backbone]")

# Maps family names to classes in `families/`. The family name is the `model_type` in checkpoints.
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
    "bart": "BartBackbone",
    "xlnet": "XLNetBackbone",
    "mpnet": "MPNetBackbone",
    "eurobert": "EuroBertBackbone",
    "nomic_bert": "NomicBertBackbone",
    "gte": "GteBackbone",
    "esm": "EsmBackbone",
    "gemma3_text": "Gemma3TextBackbone",
    "longformer": "LongformerBackbone",
}
# Maps other values of `model_type` in checkpoints to family names.
OTHER_MODEL_TYPES = {"new": "gte"}
_REGISTERED_FAMILIES: dict[str, Family] = {}  # filled by `register_family`


def get_family_module(name: str) -> str:
    """Return the name of the module for a family.

    Example:
        >>> get_family_module("xlm-roberta")
        'encoder_zoo.encoders.families.xlm_roberta'
    """
    return f"encoder_zoo.encoders.families.{name.replace('-', '_')}"


def get_family(name: str) -> Family:
    """Return the `Family` with this name. The module is imported on first use.

    Example:
        >>> get_family("roberta").class_prefix
        'Roberta'
    """
    if name in _REGISTERED_FAMILIES:
        return _REGISTERED_FAMILIES[name]
    return importlib.import_module(get_family_module(name)).FAMILY


def find_family(model_type: object) -> Family | None:
    """Return the family for the `model_type` of a checkpoint, or None if the type is unknown.

    Example:
        >>> find_family("new").name, find_family("gpt2")
        ('gte', None)
    """
    if not isinstance(model_type, str):
        return None
    name = OTHER_MODEL_TYPES.get(model_type, model_type)
    return get_family(name) if name in FAMILIES else None


def list_families() -> list[Family]:
    """Return a list of all families, in the order of `FAMILIES`."""
    return [get_family(name) for name in FAMILIES]


def register_family(like: Family | None = None, **fields: object) -> Callable[[B], B]:
    """Class decorator that registers a backbone as a new encoder family.

    The decorator creates a `Family` record and stores it in the class attribute `family`. If
    necessary, it also registers the class with Keras, so that models can be saved in `.keras`
    files. Use `encoder_zoo.testing.check_family` to check the record and the backbone.

    Args:
        like: Optional `Family` record to use for default values.
        **fields: Fields for the `Family` record, except for `backbone`.

    Raises:
        ValueError: If the family name is already used by another class.

    Example:
        >>> from encoder_zoo import BertBackbone
        >>> @register_family(like=BertBackbone.family, name="bert")
        ... class MyBackbone(BertBackbone):
        ...     pass
        Traceback (most recent call last):
        ValueError: The family name 'bert' is already used by BertBackbone. Choose a different name.
    """
    import dataclasses

    from encoder_zoo.common.serializable import make_serializable
    from encoder_zoo.encoders.family import Family

    def register(cls: B) -> B:
        given = {**fields, "backbone": cls}
        family = dataclasses.replace(like, **given) if like else Family(**given)
        taken = FAMILIES.get(family.name, cls.__name__)
        if taken != cls.__name__:
            raise ValueError(
                f"The family name {family.name!r} is already used by {taken}. Choose a different "
                "name."
            )
        make_serializable(cls)
        cls.family = family
        FAMILIES[family.name] = cls.__name__
        _REGISTERED_FAMILIES[family.name] = family
        return cls

    return register
