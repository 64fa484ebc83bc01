"""How tasks are trained: recipe, several devices, resuming, divergence."""
