"""Token classification: task, preprocessor, labels, decoding, metrics."""
