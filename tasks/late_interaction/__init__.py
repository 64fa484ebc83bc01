"""Texts as vectors of their tokens, compared by late interaction (ColBERT)."""
