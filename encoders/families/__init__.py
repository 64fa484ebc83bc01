"""The supported encoder families, one file per family."""
