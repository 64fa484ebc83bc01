"""Export of tasks to files that run without this package."""
