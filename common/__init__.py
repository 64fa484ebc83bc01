"""Shared by all packages: validation, configuration, error messages, lazy imports."""
