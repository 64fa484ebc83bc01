"""Faster forms of the core's formulas, which know nothing of the core."""
