"""Tasks that score texts for a query or a question: reranking and multiple choice."""
