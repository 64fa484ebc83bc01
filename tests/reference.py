"""List the names that the reference documents."""

import importlib
import re

import yaml
from paths import ROOT

PAGES = ROOT / "docs" / "pages"
BLOCK = re.compile(r"^::: encoder_zoo\.(\S+)\n((?:    .*\n)*)", re.MULTILINE)


def documented_names() -> dict[str, list[str]]:
    """Return a dict from names without "encoder_zoo." to their documented members."""
    found = {}
    for path in sorted((PAGES / "reference").rglob("*.md")):
        for name, options in BLOCK.findall(path.read_text(encoding="utf-8") + "\n"):
            assert name not in found, f"{name} is documented twice."
            found[name] = ((yaml.safe_load(options) or {}).get("options", {})).get("members", [])
    return found


def find_object(name: str) -> object:
    """Return the object with a documented name."""
    owner = importlib.import_module("encoder_zoo")
    for part in name.split("."):
        try:
            owner = getattr(owner, part)
        except AttributeError:
            owner = importlib.import_module(f"{owner.__name__}.{part}")
    return owner
