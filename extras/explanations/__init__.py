"""Explanations: how much each word says for an answer, or against it."""
