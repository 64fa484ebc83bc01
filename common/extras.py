"""Table of objects in `extras` that other folders use. They are imported on first use."""

from __future__ import annotations

import pkgutil
from types import ModuleType
from typing import Any

# Maps names to the objects in `extras`, as "module:object"; without an object, the module itself.
EXTRAS = {
    # Explanations of predictions.
    "explain_labels": "explanations.labels:explain_labels",
    "explain_entities": "explanations.entities:explain_entities",
    "explain_answers": "explanations.answers:explain_answers",
    # Functions that convert annotated texts to inputs for `fit`.
    "read_rows": "annotations.rows:read_rows",
    # KerasHub models in memory, and KerasHub folders to open.
    "load_from_keras_hub": "formats.kerashub_models:load_from_keras_hub",
    "save_for_keras_hub": "formats.kerashub_models:save_for_keras_hub",
    # Formats of presets.
    "kerashub": "formats.kerashub:",
    "tf1": "formats.tf1:",
}


def load_extra(name: str) -> Any:
    """Import the object that `EXTRAS` lists under a name, and return it.

    Example:
        >>> load_extra("explain_labels").__module__
        'encoder_zoo.extras.explanations.labels'
    """
    return pkgutil.resolve_name(f"encoder_zoo.extras.{EXTRAS[name]}")


def load_formats() -> list[ModuleType]:
    """Return the modules for additional preset formats. Each module has these attributes:

    - `WEIGHTS`: The weights file that identifies the format in a repository, or None.
    - `files()`: The file names in this format, or name patterns.
    - `tokenizer_file_names()`: The names of the tokenizer files.
    - `open_checkpoint(files, settings)`: The checkpoint in a folder, or None for another format.
    - `open_tokenizer(files, settings)`: The tokenizer in a folder, or None for another format.
    """
    return [load_extra("tf1"), load_extra("kerashub")]
