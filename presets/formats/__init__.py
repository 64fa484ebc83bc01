"""Read and write checkpoint formats. Each reader is a `Checkpoint` with Hugging Face names."""
