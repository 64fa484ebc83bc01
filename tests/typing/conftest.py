"""The scripts in this folder are read by type checkers; `tests/facade/test_typing.py` runs them."""

collect_ignore = ["user.py", "mistakes.py", "all_parts.py"]
