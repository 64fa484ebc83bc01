"""Base classes for all tasks, and code that the tasks share."""
