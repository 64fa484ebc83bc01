"""`tests/facade/test_typing.py` runs type checkers on the scripts in this folder."""

collect_ignore = ["user.py", "mistakes.py", "all_parts.py"]
