"""Extractive question answering: task, preprocessor, ranking, SQuAD's scores."""
