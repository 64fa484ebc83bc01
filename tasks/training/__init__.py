"""Train tasks: default settings, several devices, backups, and checks for divergence."""
