"""Few-shot classification: contrastive training of an embedder, then a logistic head."""
