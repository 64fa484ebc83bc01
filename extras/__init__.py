"""Optional features. They are imported by their public name or found through a registry."""
