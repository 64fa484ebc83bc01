"""The graphs of tokenizers: their rules in TensorFlow's core operations."""
