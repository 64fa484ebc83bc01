"""Token classification and entity extraction: tasks, preprocessors, decoding and metrics."""
