"""Tasks as files that answer without this package."""
