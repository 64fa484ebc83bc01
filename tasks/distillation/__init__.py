"""Distillation trains a student model on the answers and hidden states of a teacher model."""
