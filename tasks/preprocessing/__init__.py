"""Preprocess raw inputs: encode them as examples of token ids, and pad them to batches."""
