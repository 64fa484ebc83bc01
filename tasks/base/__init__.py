"""What tasks share: backbone, head and preprocessor; windows; labels."""
