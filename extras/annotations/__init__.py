"""Annotations of tools and of datasets: files, folders and rows."""
