"""Sequence classification and regression: task, preprocessor, labels."""
