"""MLflow plugin that allows MLflow processes to load models of this package.

MLflow finds the plugin by the entry point "mlflow.run_context_provider" and imports it together
with this package. The import registers all classes with Keras, so that MLflow can load `.keras`
files when it serves a model or infers its requirements. The requirements include this package.
"""

from __future__ import annotations

import sys

from encoder_zoo.common.version import __version__


class RunContext:
    """Add the package version to the tags of MLflow runs that use this package.

    Example:
        >>> RunContext().tags().keys()
        dict_keys(['encoder_zoo.version'])
    """

    def in_context(self) -> bool:
        """Return whether the tasks of this package were imported in this process."""
        return "encoder_zoo.tasks" in sys.modules

    def tags(self) -> dict[str, str]:
        """Return tags for a new run."""
        return {"encoder_zoo.version": __version__}
