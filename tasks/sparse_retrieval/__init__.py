"""Sparse vectors of texts, weights of the vocabulary's terms, and search with them (SPLADE)."""
