"""Distillation: a student learns what a teacher answers, and how it comes to that."""
