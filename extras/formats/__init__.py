"""Preset formats of other libraries: KerasHub and TensorFlow 1."""
