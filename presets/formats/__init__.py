"""The formats of checkpoints, each told in the Hugging Face format's words."""
