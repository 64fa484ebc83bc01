"""Reads checkpoint formats, each as a `Checkpoint` with the names of the Hugging Face format."""
