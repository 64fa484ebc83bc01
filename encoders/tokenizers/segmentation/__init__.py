"""The algorithms that split characters into tokens: pre-tokenizers, models, tables of words."""
