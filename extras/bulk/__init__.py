"""Compute predictions for more texts than fit into memory, from files or batch by batch."""
