"""Code that all packages share: validation, configuration, error messages and lazy imports."""

from encoder_zoo.common import escaping as escaping  # adds a log filter
