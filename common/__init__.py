"""What every floor needs: validation, configuration, wording, lazy imports."""
