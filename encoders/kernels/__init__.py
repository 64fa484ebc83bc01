"""Faster implementations of the encoder formulas, which `Backbone` uses."""
