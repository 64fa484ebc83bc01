"""Small untrained tasks by name, and texts for them."""

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

BERT = get_family("bert")
TEXTS = ["one two", "three", "four five", "six"]


def make(name: str, family=BERT, **arguments):
    """The task of `tiny.task`, with labels and so on; the arguments are those of its backbone."""
    return tiny.task(family, getattr(ez, name), **arguments)


def preprocessor(name: str, family=BERT, **arguments):
    """The preprocessor of a task's class."""
    return getattr(ez, name).record.preprocessor_class(tiny.tokenizer(family), **arguments)


def new(name: str, family=BERT, *, pooler=True, **arguments):
    """A task with the caller's arguments alone, such as `labels`, and a tiny backbone."""
    backbone = tiny.backbone(family, pooler=pooler)
    return getattr(ez, name)(backbone, preprocessor(name, family), **arguments)
