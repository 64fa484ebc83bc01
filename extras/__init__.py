"""What most readers skip: each room is found by the name that users know, or by a registry."""
