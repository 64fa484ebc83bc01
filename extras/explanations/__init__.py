"""Explain predictions by word attributions."""
