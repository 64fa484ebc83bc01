"""Simulate that a package is not installed."""

import sys

from encoder_zoo.common.lazy import LazyModule


def hide(monkeypatch, module: LazyModule) -> None:
    """Hide a module for the rest of a test, even if it has already been imported."""
    fresh = vars(LazyModule(module.__name__, module._missing))
    for name in vars(module).keys() - fresh.keys():
        monkeypatch.delitem(vars(module), name)
    monkeypatch.setitem(vars(module), "_module", None)
    monkeypatch.setitem(sys.modules, module.__name__, None)
