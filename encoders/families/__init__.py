"""The families of encoders: one file each."""
