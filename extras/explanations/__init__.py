"""Explain predictions by the words that support or contradict them."""
