"""Convert docstring sections for mkdocstrings."""

import importlib
import operator
import re
import textwrap

import griffe

# A section name followed by indented lines, for sections that contain plain text.
PLAIN = re.compile(r"^(Returns|Yields):\n((?:(?: .*)?(?:\n|$))+)", re.MULTILINE)
# The same for sections with entries "name: text".
NAMED = re.compile(r"^(Call arguments):\n((?:(?: .*)?(?:\n|$))+)", re.MULTILINE)

# The value of a method that a task has from its answers, such as
# `delegate_to_answers(ClassAnswers.classify)`.
DELEGATED = re.compile(r"(?:lock_weights\()?delegate_to_answers\((\w+)\.\w+.*\)")


class Sections(griffe.Extension):
    """Converts sections to Markdown if Griffe's Google style cannot parse them.

    Methods from `delegate_to_answers` are replaced by the methods of the answers.
    """

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
        in_table = obj.name == "from_preset" and ".tasks." in obj.path  # by `docs/arguments.py`
        if obj.is_function and not in_table:
            show_options(obj)

    def on_class_members(self, *, cls: griffe.Class, **kwargs: object) -> None:
        for name, member in list(cls.members.items()):
            value = "" if member.is_alias else str(getattr(member, "value", ""))
            if delegated := DELEGATED.fullmatch(value):
                cls.set_member(name, griffe.Alias(name, f"{cls.resolve(delegated[1])}.{name}"))


def show_options(function: griffe.Function) -> None:
    """Replace `**options: Unpack[Options]` in a signature by its keyword arguments."""
    for parameter in list(function.parameters):
        unpacked = re.fullmatch(r"(?:\w+\.)*Unpack\[([\w.]+)\]", str(parameter.annotation or ""))
        if unpacked is None:
            continue
        try:
            options = operator.attrgetter(unpacked[1])(
                importlib.import_module(function.module.path)
            )
        except AttributeError:  # imported under TYPE_CHECKING
            continue
        del function.parameters[parameter.name]
        for name, annotation in options.__annotations__.items():
            if name in function.parameters:
                continue
            function.parameters.add(
                griffe.Parameter(
                    name,
                    annotation=getattr(annotation, "__forward_arg__", str(annotation)),
                    kind=griffe.ParameterKind.keyword_only,
                    default="...",
                )
            )


def as_markdown(text: str) -> str:
    """Convert the sections of a docstring to sections that Griffe supports, or to Markdown."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    text = re.sub(r"^Source: ", "**Source:** ", text, flags=re.MULTILINE)
    text = PLAIN.sub(lambda found: section(found[1], found[2]), text)
    return NAMED.sub(lambda found: section(found[1], entries(found[2])), text)


def section(title: str, contents: str) -> str:
    return f"**{title}:**\n\n{textwrap.dedent(contents).strip()}\n\n"


def entries(contents: str) -> str:
    names = re.compile(r"^(\w[\w, ]*):", re.MULTILINE)
    return names.sub(r"- **`\1`**:", textwrap.dedent(contents))
