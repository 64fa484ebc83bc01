"""Folders that tests read."""

import pathlib

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
CHECKPOINTS = GOLDEN / "checkpoints"
RECORDED = TESTS / "recorded"
# Of the package; each imports only from those before it.
TOPS = ("common", "encoders", "presets", "tasks", "extras", "facade")
