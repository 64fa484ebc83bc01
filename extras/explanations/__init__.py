"""Explanations of predictions by the attributions of words."""
