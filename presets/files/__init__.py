"""Reads and writes the files of presets: weights, JSON, text; none of them is trusted."""
