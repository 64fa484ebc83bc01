"""Base classes for tasks, with heads, class names and weights, and preset arguments."""
