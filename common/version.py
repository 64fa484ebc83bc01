"""The version of the package, which is stored in saved files."""

__version__ = "0.3.0"
