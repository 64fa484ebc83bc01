"""Faster forms of what the core computes."""
