"""Read annotations from files and rows created by annotation tools or datasets."""
