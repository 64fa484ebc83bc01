"""Text embeddings: one vector for each text."""
