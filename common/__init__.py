"""Shared by all packages: validation, configuration, error messages, lazy imports."""

from encoder_zoo.common import escaping as escaping  # log lines of all packages pass its filter
