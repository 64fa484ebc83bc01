"""Read annotations from the files and rows of annotation tools and datasets."""
