"""Folders that tests read."""

import pathlib

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
CHECKPOINTS = GOLDEN / "checkpoints"
RECORDED = TESTS / "recorded"
