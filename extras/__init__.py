"""Rooms that most readers skip. Each is found by the name that users know, or by a registry."""
