"""Reading files as plain data, with limits; writing them atomically."""
