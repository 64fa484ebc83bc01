"""Encoders: layers, backbones and tokenizers. Each family has one file and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.encoders.family import Family

B = TypeVar("B", bound="type[Backbone]")

# The name of a family (its `model_type` in checkpoints), and its file and backbone in `families/`.
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
}
# Other values of `model_type` in checkpoints, and the matching name in `FAMILIES`.
OTHER_MODEL_TYPES = {"new": "gte"}
_REGISTERED_FAMILIES: dict[str, Family] = {}  # filled by `register_family`


def family_module(name: str) -> str:
    """Return the name of the module that contains a family's backbone and its `FAMILY` record.

    Example:
        >>> family_module("xlm-roberta")
        'encoder_zoo.encoders.families.xlm_roberta'
    """
    return f"encoder_zoo.encoders.families.{name.replace('-', '_')}"


def get_family(name: str) -> Family:
    """Return the `Family` record for a name in `FAMILIES`, and import its module if necessary.

    Example:
        >>> get_family("roberta").class_prefix
        'Roberta'
    """
    if name in _REGISTERED_FAMILIES:
        return _REGISTERED_FAMILIES[name]
    return importlib.import_module(family_module(name)).FAMILY


def find_family(model_type: object) -> Family | None:
    """Find the family for the `model_type` of a checkpoint. Returns None if it is unknown.

    Example:
        >>> find_family("new").name, find_family("gpt2")
        ('gte', None)
    """
    if not isinstance(model_type, str):
        return None
    name = OTHER_MODEL_TYPES.get(model_type, model_type)
    return get_family(name) if name in FAMILIES else None


def all_families() -> list[Family]:
    """Return the records of all families, in the same order as `FAMILIES`."""
    return [get_family(name) for name in FAMILIES]


def register_family(like: Family | None = None, **fields: object) -> Callable[[B], B]:
    """Create a decorator that registers a new encoder family.

    The decorator creates a `Family` record and stores it in the class attribute `family`. It also
    registers the class with Keras if necessary, so that it can be saved in `.keras` files. Use
    `encoder_zoo.testing.check_family` to check the record and the backbone.

    Args:
        like: A `Family` record that provides default values for `fields`. Defaults to None.
        **fields: Fields of the `Family` record, except `backbone`.

    Raises:
        ValueError: If the family name is already used by another class.

    Example:
        >>> from encoder_zoo import BertBackbone
        >>> @register_family(like=BertBackbone.family, name="bert")
        ... class MyBackbone(BertBackbone):
        ...     pass
        Traceback (most recent call last):
        ValueError: The family name 'bert' is taken by BertBackbone. Give MyBackbone another name.
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
                f"The family name {family.name!r} is taken by {taken}. "
                f"Give {cls.__name__} another name."
            )
        make_serializable(cls)
        cls.family = family
        FAMILIES[family.name] = cls.__name__
        _REGISTERED_FAMILIES[family.name] = family
        return cls

    return register
