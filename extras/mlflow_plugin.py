"""The plugin by which MLflow's processes open the models of this package.

MLflow imports it with itself, by the entry point "mlflow.run_context_provider" of this package, and
with it the package, which registers its classes with Keras. So a process of MLflow that infers the
requirements of a logged model, or serves it, can open its `.keras` file, and the requirements name
this package.
"""

from __future__ import annotations

import sys

from encoder_zoo.common.version import __version__


class RunContext:
    """Tags the runs of a process in which this package's tasks are used with its version.

    Example:
        >>> RunContext().tags().keys()
        dict_keys(['encoder_zoo.version'])
    """

    def in_context(self) -> bool:
        """Return whether the package's tasks were imported."""
        return "encoder_zoo.tasks" in sys.modules

    def tags(self) -> dict[str, str]:
        """Return the tags of a new run."""
        return {"encoder_zoo.version": __version__}
