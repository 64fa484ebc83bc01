"""Small untrained tasks by name, and texts for them."""

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

BERT = get_family("bert")
TEXTS = ["one two", "three", "four five", "six"]


def make(name: str, family=BERT, **arguments):
    """A task with the backbone and preprocessor that `tiny.task` gives it."""
    return tiny.task(family, getattr(ez, name), **arguments)


def preprocessor(name: str, family=BERT, **arguments):
    """The preprocessor of a task's class."""
    return getattr(ez, name).preprocessor_class(tiny.tokenizer(family), **arguments)


def new(name: str, family=BERT, *, pooler=True, **arguments):
    """A task as its class makes it: of a classifier, the labels too are the caller's."""
    backbone = tiny.backbone(family, pooler=pooler)
    return getattr(ez, name)(backbone, preprocessor(name, family), **arguments)
