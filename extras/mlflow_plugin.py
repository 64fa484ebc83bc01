"""Plugin that allows MLflow processes to load models from this package.

MLflow imports the plugin by the entry point "mlflow.run_context_provider" of this package.
Importing this package registers its classes with Keras. MLflow can then load `.keras` files to
serve a logged model or to infer its requirements, which will include this package.
"""

from __future__ import annotations

import sys

from encoder_zoo.common.version import __version__


class RunContext:
    """Tags runs with the package version in processes that use any task.

    Example:
        >>> RunContext().tags().keys()
        dict_keys(['encoder_zoo.version'])
    """

    def in_context(self) -> bool:
        """Check whether this package's tasks were imported."""
        return "encoder_zoo.tasks" in sys.modules

    def tags(self) -> dict[str, str]:
        """Return tags for a new run."""
        return {"encoder_zoo.version": __version__}
