"""The tokenizers of the checkpoints, exact to the id, and what they are made of."""
