"""Create small untrained tasks by name."""

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

BERT = get_family("bert")
TEXTS = ["one two", "three", "four five", "six"]


def make(name: str, family=BERT, **arguments):
    """Create a task with the settings of `tiny.task`. The arguments are for its backbone."""
    return tiny.task(family, getattr(ez, name), **arguments)


def preprocessor(name: str, family=BERT, **arguments):
    """Create a preprocessor for a task class."""
    return getattr(ez, name).record.preprocessor_class(tiny.tokenizer(family), **arguments)


def new(name: str, family=BERT, *, pooler=True, **arguments):
    """Create a task with a tiny backbone. The arguments, such as `labels`, are for the task."""
    backbone = tiny.backbone(family, pooler=pooler)
    return getattr(ez, name)(backbone, preprocessor(name, family), **arguments)
