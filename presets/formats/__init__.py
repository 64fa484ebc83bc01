"""Reads checkpoint formats. Each reader is a `Checkpoint` that uses Hugging Face names."""
