"""Files as plain data, with limits; written whole or not at all."""
