"""BERT's and ALBERT's pretraining: masked tokens, and pairs of segments."""
