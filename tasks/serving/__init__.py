"""Export tasks to files that can be run without this package."""
