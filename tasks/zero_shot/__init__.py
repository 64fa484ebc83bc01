"""Zero-shot classification: labels that are chosen when texts are classified."""
