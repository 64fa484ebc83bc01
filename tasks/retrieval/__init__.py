"""Search among vectors: similarity, index, evaluation, hard negatives."""
