"""Preprocessing of raw inputs: examples of token ids, and padded batches of them."""
