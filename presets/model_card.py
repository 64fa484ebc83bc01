"""Write the model card `README.md` for presets."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from encoder_zoo.common.escaping import escape_markdown, escape_python, escape_yaml
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.presets.files.manifest import CARD
from encoder_zoo.presets.origin import Origin
from encoder_zoo.presets.registry import REPOSITORY

# This line marks generated cards. Cards without this line were written by users and are kept.
CARD_MARK = (
    "<!-- Written by encoder_zoo. Delete this line to keep your own version of this file. -->"
)


class Library(NamedTuple):
    """Library that can also open a preset.

    Attributes:
        name: String. Name of the library.
        opens: String. Code that opens the preset after importing `cls`.
        imports: String. Code that imports `cls`.
        platform: String. The framework of the library. Defaults to "PyTorch".
    """

    name: str
    opens: str
    imports: str
    platform: str = "PyTorch"


_PRETRAINED = "{cls}.from_pretrained({name})"
TRANSFORMERS = Library("transformers", _PRETRAINED, "from transformers import {cls}")
SENTENCE_TRANSFORMERS = Library(
    "sentence-transformers", "{cls}({name})", "from sentence_transformers import {cls}"
)
GLINER_LIBRARY = Library("gliner", _PRETRAINED, "from gliner import {cls}")
# {`Task.record.text_method`: example call}
EXAMPLES = {
    "classify": 'model.classify("The film was better than the book.")',
    "extract_entities": 'model.extract_entities("Anna lives in Rome.")',
    "answer": 'model.answer("Where does Anna live?", "Anna lives in Rome.")',
    "choose": 'model.choose("Where does Anna live?", ["In Rome.", "It rains."])',
    "fill_mask": 'model.fill_mask("Anna {mask_token} in Rome.")',
    "detect": 'model.detect("Anna lives in Rome.")',
    "embed": 'model.embed(["Anna lives in Rome.", "The film was good."])',
    "score": 'model.rank("Where does Anna live?", ["Anna lives in Rome.", "It rains."])',
}


class Usage(NamedTuple):
    """Classes and example code to load and use a preset.

    Attributes:
        pipeline: String. The name of the task on the hub.
        class_name: String. The class name in this package.
        library: The `Library` that can also open the preset.
        library_class_name: String. The class name in the other library.
        example: String. Example call with raw text, or "" to omit it. Defaults to "".
    """

    pipeline: str
    class_name: str
    library: Library
    library_class_name: str
    example: str = ""


class Description(NamedTuple):
    """Information in a model card.

    Attributes:
        backbone: The `Backbone` of the model.
        usage: The `Usage` of the preset.
        results: Dict {metric name: value}. Results of the last `evaluate`. Defaults to {}.
        repository: Optional string. The repository on the hub, or None for a local folder.
        labels: Tuple of strings. The class names. Defaults to ().
        dtype: String. The dtype of the weights. Defaults to "float32".
    """

    backbone: Backbone
    usage: Usage
    results: Mapping[str, float] = MappingProxyType({})
    repository: str | None = None
    labels: tuple[str, ...] = ()
    dtype: str = "float32"

    @property
    def origin(self) -> Origin:
        """`Origin` of the weights. All fields are empty for an unknown origin."""
        return self.backbone.origin or Origin()


def make_example_call(method: str | None, mask_token: str = "") -> str:
    """Create example code that calls a task with raw text. Return "" for an unknown method.

    Example:
        >>> make_example_call("extract_entities")
        'model.extract_entities("Anna lives in Rome.")'
    """
    return EXAMPLES.get(method, "").replace("{mask_token}", escape_python(mask_token)[1:-1])


def write_card(new: pathlib.Path, folder: pathlib.Path, description: Description) -> None:
    """Write a model card, or copy the previous card if it was written by a user.

    Symbolic links are replaced, because they could point to private files.

    Args:
        new: Path. Folder to write to.
        folder: Path. The folder to replace, which can contain a previous card.
        description: The `Description` with the information in the card.
    """
    path, earlier = new / CARD, folder / CARD
    if earlier.is_file() and not earlier.is_symlink():
        content = earlier.read_bytes()
        if CARD_MARK.encode() not in content:
            path.write_bytes(content)
            return
    path.write_text(make_card(folder.name, description), encoding="utf-8")


def make_card(name: str, description: Description) -> str:
    """Create a model card.

    Args:
        name: String. The name of the folder or repository.
        description: The `Description` with the information in the card.
    """
    backbone, usage = description.backbone, description.usage
    facts = f"""A {backbone.family.name} encoder for {usage.pipeline.replace("-", " ")}:
{backbone.num_layers} layers, {backbone.num_heads} heads,
hidden size {backbone.hidden_dim}, vocabulary of {backbone.vocabulary_size},
weights in {description.dtype}."""
    parts = [
        f"---\n{_format_front_matter(description)}---",
        f"# {escape_markdown(name)}",
        CARD_MARK,
        facts,
        _describe_origin(description.origin),
        f"Labels: {', '.join(map(escape_markdown, description.labels))}."
        if description.labels
        else "",
        _describe_results(description.results),
        _describe_usage(name, description),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _format_front_matter(description: Description) -> str:
    """Create the YAML fields for the hub at the start of the card."""
    usage, origin = description.usage, description.origin
    more_tags = []
    if usage.library is SENTENCE_TRANSFORMERS:
        more_tags += ["sentence-transformers", usage.pipeline]
    more_tags += ["feature-extraction"] if usage.pipeline == "sentence-similarity" else []
    on_hub = REPOSITORY.fullmatch(origin.base_model or "")
    fields = {
        "library_name": "keras",
        "pipeline_tag": usage.pipeline,
        "license": origin.licence,
        "language": list(origin.languages),
        "base_model": origin.base_model if on_hub else None,
        "metrics": [name for name in description.results if name != "loss"],
        "tags": ["encoder_zoo", description.backbone.family.name, *more_tags],
    }
    return "".join(_format_yaml(name, value) for name, value in fields.items() if value)


def _format_yaml(name: str, value: str | list[str]) -> str:
    """Format a YAML field. Values that are not plain words are quoted.

    Example:
        >>> print(_format_yaml("language", ["en", "no"]), end="")
        language:
        - en
        - "no"
    """
    if isinstance(value, list):
        return f"{name}:\n" + "".join(f"- {_format_scalar(item)}\n" for item in value)
    return f"{name}: {_format_scalar(value)}\n"


def _format_scalar(value: str) -> str:
    is_word = re.fullmatch(r"[A-Za-z][\w./-]*", value)
    is_other = value.lower() in ("no", "yes", "on", "off", "y", "n", "true", "false", "null")
    return value if is_word and not is_other else escape_yaml(value)


def _describe_origin(origin: Origin) -> str:
    if origin.base_model is None:
        return ""
    licence = "; its licence is stated there."
    if origin.licence:
        licence = f" (licence: {escape_markdown(origin.licence)})."
    return f"It began from the weights of {escape_markdown(origin.base_model)}{licence}"


def _describe_results(results: Mapping[str, float]) -> str:
    if not results:
        return ""
    rows = "\n".join(
        f"| {escape_markdown(name)} | {value:.4g} |" for name, value in results.items()
    )
    return f"Results of the last evaluation:\n\n| metric | value |\n|---|---|\n{rows}"


def _describe_usage(name: str, description: Description) -> str:
    """Create the section with code to load the preset with this package and another library."""
    usage, repository = description.usage, description.repository
    source, note = (f"hf://{repository}", "") if repository else (name, "  # path of this folder")
    code = f"{usage.library.imports}\n\nmodel = {usage.library.opens}"
    theirs = code.format(cls=usage.library_class_name, name=escape_python(repository or name))
    example = f"\n{usage.example}" if usage.example else ""
    return f"""With encoder_zoo, on Keras 3:

```python
import encoder_zoo as ez

model = ez.{usage.class_name}.from_preset({escape_python(source)}){note}{example}
```

With {usage.library.name}, on {usage.library.platform}:

```python
{theirs}
```"""
