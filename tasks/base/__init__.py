"""Base classes of tasks; heads, class names and weights, arguments of presets."""
