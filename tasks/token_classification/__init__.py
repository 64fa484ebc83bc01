"""A label for every word: task, preprocessor, labels, decoding, metrics."""
