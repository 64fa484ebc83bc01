"""The version of the package. The version is also stored in saved files."""

__version__ = "0.4.0"
