"""Additional preset formats, for KerasHub and TensorFlow 1."""
