"""Predict more texts than fit into memory, from files to files or batch by batch."""
