"""Answers as spans of a text: task, preprocessor, ranking, SQuAD's scores."""
