"""Base classes of tasks; heads, windows, labels."""
