"""Faster forms of the core's formulas: subclasses and functions that `Backbone` chooses."""
