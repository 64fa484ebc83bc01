"""A class, or several, or numbers for every text: task, preprocessor, labels."""
