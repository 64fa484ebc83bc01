"""Extractive question answering: task, preprocessor, ranking and SQuAD metrics."""
