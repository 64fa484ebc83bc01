"""Compute predictions for texts that do not fit into memory, from files or batch by batch."""
