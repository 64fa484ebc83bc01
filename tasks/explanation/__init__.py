"""Explanations of answers: how much each word speaks for them or against them."""
