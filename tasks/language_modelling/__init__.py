"""Masked language modelling: pretraining, and filling in missing words."""
