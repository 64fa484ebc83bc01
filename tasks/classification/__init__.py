"""Tasks and preprocessors for sequence classification and regression."""
