"""Faster implementations for encoder formulas, to be used by `Backbone`."""
