"""Optional features. Other folders only find them through the registry in `common.extras`."""
