"""Formats of presets of other libraries: KerasHub, TensorFlow 1."""
