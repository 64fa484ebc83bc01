"""The version of the package, which files that it writes name."""

__version__ = "0.3.0"
