"""Scores of texts that are read with a query or a question: reranking, multiple choice."""
