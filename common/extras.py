"""Import functions and modules from `extras` on first use."""

from __future__ import annotations

import pkgutil
from types import ModuleType
from typing import Any

# Maps names to "module:object", or to "module:" for a whole module.
EXTRAS = {
    # Explain predictions.
    "explain_labels": "explanations.labels:explain_labels",
    "explain_entities": "explanations.entities:explain_entities",
    "explain_answers": "explanations.answers:explain_answers",
    # Convert annotated texts to inputs for `fit`.
    "read_rows": "annotations.rows:read_rows",
    # Convert models from and to KerasHub.
    "load_from_keras_hub": "formats.kerashub_models:load_from_keras_hub",
    "save_for_keras_hub": "formats.kerashub_models:save_for_keras_hub",
    # Preset formats.
    "kerashub": "formats.kerashub:",
    "tf1": "formats.tf1:",
}


def load_extra(name: str) -> Any:
    """Import an object listed in `EXTRAS`.

    Example:
        >>> load_extra("explain_labels").__module__
        'encoder_zoo.extras.explanations.labels'
    """
    return pkgutil.resolve_name(f"encoder_zoo.extras.{EXTRAS[name]}")


def load_formats() -> list[ModuleType]:
    """Return the modules for additional preset formats. Each module has these attributes:

    - `WEIGHTS`: Name of a weights file to recognize the format, or None.
    - `list_files()`: Return all file names or patterns for this format.
    - `list_tokenizer_file_names()`: Return the names of tokenizer files.
    - `open_checkpoint(files, settings)`: Open the checkpoint. Return None for other formats.
    - `open_tokenizer(files, settings)`: Open the tokenizer. Return None for other formats.
    """
    return [load_extra("tf1"), load_extra("kerashub")]
