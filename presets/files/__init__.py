"""Read and write the files of presets: weights, JSON and text. Files are not trusted."""
