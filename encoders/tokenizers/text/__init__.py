"""Texts as tensors of characters: checking, Unicode tables, normalization."""
