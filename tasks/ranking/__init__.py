"""Reranking: scores of texts for a query, read together."""
