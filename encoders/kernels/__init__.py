"""Faster implementations of the formulas of the encoder, which `Backbone` uses."""
