"""What the package uses of `extras`: each imported when it is first asked for by its name."""

from __future__ import annotations

import importlib
from typing import Any

# name: module in `extras`, and what it has there
EXTRAS = {
    # Why a task gives an answer.
    "explain_labels": "explanations.labels.explain_labels",
    "explain_entities": "explanations.entities.explain_entities",
    "explain_answers": "explanations.answers.explain_answers",
}


def extra(name: str) -> Any:
    """Return what has a name in `EXTRAS`.

    Example:
        >>> extra("explain_labels").__module__
        'encoder_zoo.extras.explanations.labels'
    """
    module, _, member = EXTRAS[name].rpartition(".")
    return getattr(importlib.import_module(f"encoder_zoo.extras.{module}"), member)
