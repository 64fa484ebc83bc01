"""Create the table of keyword arguments that `from_preset` of a task accepts."""

import inspect
import re
import textwrap
import typing

import encoder_zoo as ez
from encoder_zoo.presets.files.folder_files import Safeguards
from encoder_zoo.tasks.base.task import TaskPresetArguments

COMMON = TaskPresetArguments.__annotations__
SECTION = re.compile(r"^(?:Args|Attributes):\n((?:(?: .*)?(?:\n|$))+)", re.MULTILINE)
ENTRY = re.compile(r"^(\w[\w, ]*): (.+(?:\n .*)*)", re.MULTILINE)
# These arguments have another meaning in `from_preset` than in a constructor, or none there.
DESCRIBED = {
    "preprocessor": "Another preprocessor for this preset. None creates a task that only accepts "
    "preprocessed inputs.",
    "added_tokens": "List of strings. Words or markers to add to the vocabulary.",
    "dtype": 'String. Data type or policy, such as "mixed_bfloat16". Defaults to "float32".',
    "dropout": "Float between 0 and 1. Dropout rate. Defaults to the value in the preset.",
    "sequence_length": "Integer. Maximum number of tokens per text or window. Defaults to None, "
    "which means the longest text in a batch, up to the limit of the model.",
}


def read_descriptions(documented: object) -> dict[str, str]:
    """Return the descriptions of arguments in a docstring."""
    found = {}
    for entries in SECTION.findall(inspect.getdoc(documented) or ""):
        for names, text in ENTRY.findall(textwrap.dedent(entries)):
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def list_arguments(task: type) -> dict[str, str]:
    """Return the description of each argument, except rarely used ones of the backbone."""
    annotation = inspect.signature(task.from_preset).parameters["arguments"].annotation
    names = {**vars(typing), **vars(inspect.getmodule(task))}
    [options] = typing.get_args(eval(annotation, names))
    described = {}
    classes = [Safeguards, *task.record.preprocessor_class.__mro__[::-1], *task.__mro__[::-1]]
    for documented in classes:
        described |= read_descriptions(documented)
    described |= DESCRIBED
    # Arguments of this task come before arguments of all tasks.
    names = sorted(options.__annotations__, key=lambda name: name in COMMON)
    return {name: described[name] for name in names if name in described}


def table_of_arguments(name: str) -> str:
    """Create the table for a task, or "" for a class without an own list of arguments."""
    task = getattr(ez, name)
    if not hasattr(task, "record"):  # `HybridEmbedder`
        return ""
    found = list_arguments(task)
    lines = ["| argument of `from_preset` | description |", "|---|---|"]
    lines += [f"| `{key}` | {text.replace('|', chr(92) + '|')} |" for key, text in found.items()]
    return "\n".join(lines)
