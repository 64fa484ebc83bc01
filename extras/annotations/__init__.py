"""Readers for the annotations of annotation tools and datasets."""
