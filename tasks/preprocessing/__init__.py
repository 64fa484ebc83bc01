"""Raw inputs to examples of token ids, and examples to padded batches."""
