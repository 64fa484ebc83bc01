"""Tokenizer graphs, implemented with TensorFlow core operations."""
