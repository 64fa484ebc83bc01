"""Annotations of texts, as the tools that people annotate with write them."""
