"""Semantic search: indexes, similarity functions, evaluation and hard negatives."""
