"""Distillation: a student learns a teacher's answers and inner representations."""
