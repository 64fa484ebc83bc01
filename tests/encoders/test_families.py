"""Every family passes its checks, and the floors of the house know only those below."""

import ast

import pytest
from paths import ROOT, TOPS

import encoder_zoo as ez
from encoder_zoo.encoders import FAMILIES, get_family_module, list_families

# In the default run, the checks that build and train models are of one family of each kind of
# blocks; of the others, whose blocks are BERT's, what is their own: the record, and its preset.
KINDS = ("bert", "albert", "deberta-v2", "modernbert")
SLOW = pytest.mark.slow
BUILDS = ("gradients", "mixed precision", "padding", "keras file", "get config")


def is_slow(family, name: str) -> bool:
    return family.name not in KINDS and any(part in name for part in BUILDS)


@pytest.mark.slow(
    only="get config|keras file|preset round trip|padding and|mixed precision|gradients reach"
)
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=name, marks=SLOW if is_slow(family, name) else [])
        for family in list_families()
        for name, check in ez.testing.family_checks(family)
    ],
)
def test_a_family(check):
    check()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_registered_family_is_public(name):
    [family] = [family for family in list_families() if family.name == name]
    assert family.backbone.__name__ == FAMILIES[name] in ez.__all__
    assert family.backbone.__module__ == get_family_module(name)
    assert family.backbone.family is family


FLOORS = TOPS[:-1]
# Their `from_preset` and `save_to_preset`; and the registry of extras.
UP = "backbone.py", "tokenizer.py", "extras.py"


@pytest.mark.slow(only=r"^(tasks)$")
@pytest.mark.parametrize("floor", FLOORS[:-1])
def test_a_floor_knows_only_those_below(floor):
    above = tuple(f"encoder_zoo.{name}" for name in FLOORS[FLOORS.index(floor) + 1 :])
    for path in sorted((ROOT / floor).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.startswith(above)], path
        if path.name not in UP:
            assert not [name for name in above if f'"{name}' in text], path
