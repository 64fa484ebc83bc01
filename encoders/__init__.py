"""Encoders: layers, backbones, tokenizers; one file and one line here per family."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.encoders.family import Family

B = TypeVar("B", bound="type[Backbone]")

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
    "bart": "BartBackbone",
    "xlnet": "XLNetBackbone",
    "mpnet": "MPNetBackbone",
    "eurobert": "EuroBertBackbone",
    "nomic_bert": "NomicBertBackbone",
    "gte": "GteBackbone",
}
# {another `model_type`: name in `FAMILIES`}
OTHER_MODEL_TYPES = {"new": "gte"}
_REGISTERED: dict[str, Family] = {}  # by `register_family`


def family_module(name: str) -> str:
    """Return the name of the module with a family's backbone and its `FAMILY` record.

    Example:
        >>> family_module("xlm-roberta")
        'encoder_zoo.encoders.families.xlm_roberta'
    """
    return f"encoder_zoo.encoders.families.{name.replace('-', '_')}"


def get_family(name: str) -> Family:
    """Return the `Family` record of a name in `FAMILIES`, which is imported at first use.

    Example:
        >>> get_family("roberta").class_prefix
        'Roberta'
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    return importlib.import_module(family_module(name)).FAMILY


def find_family(model_type: object) -> Family | None:
    """Return the family of a checkpoint's `model_type`; None if it is unknown.

    Example:
        >>> find_family("new").name, find_family("gpt2")
        ('gte', None)
    """
    if not isinstance(model_type, str):
        return None
    name = OTHER_MODEL_TYPES.get(model_type, model_type)
    return get_family(name) if name in FAMILIES else None


def all_families() -> list[Family]:
    """Return the records of all families, in the order of `FAMILIES`."""
    return [get_family(name) for name in FAMILIES]


def register_family(like: Family | None = None, **fields: object) -> Callable[[B], B]:
    """Make a decorator that adds a backbone's family to the registered ones.

    The decorator makes the `Family` record, which becomes the attribute `family` of the class, and
    registers the class with Keras, where it is not yet, so that `.keras` files hold it.
    `encoder_zoo.testing.check_family` checks the record and the backbone.

    Args:
        like: a record with the defaults of `fields`; None if there are none.
        **fields: of the `Family`, without `backbone`.

    Raises:
        ValueError: If the name of the family belongs to another class.

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
        _REGISTERED[family.name] = family
        return cls

    return register
