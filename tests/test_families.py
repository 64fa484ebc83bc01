"""Every family's record holds together, and the floors of the house know only those below."""

import ast
import pathlib

import pytest

import encoder_zoo as ez
from encoder_zoo.common.configuration import argument_rules
from encoder_zoo.encoders import FAMILIES, all_families, family_module
from encoder_zoo.encoders.layers import ACTIVATIONS
from encoder_zoo.presets.config import (
    REQUIRED,
    backbone_arguments,
    backbone_config,
    check_config,
)
from encoder_zoo.presets.formats.checkpoint import backbone_layers, named_weights

ROOT = pathlib.Path(__file__).parents[1]
TASKS = [ez.SequenceClassifier, ez.TokenClassifier, ez.SpanQA, ez.MaskedLM]
CLASSES = {"num_classes": 3}
ARGUMENTS_OF = {
    "vocabulary_size": 21,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 7,
    "dropout": 0.25,
    "attention_dropout": 0.35,
    "activation": "relu",
    "layer_norm_epsilon": 1e-4,
    "max_sequence_length": 9,
}
each_family = pytest.mark.parametrize("family", all_families(), ids=lambda family: family.name)


def arguments_of(family):
    """Those that the family's config.json can say."""
    return {name: value for name, value in ARGUMENTS_OF.items() if name in family.config_keys}


def make(family, **changes):
    pooler = {"pooler": True} if family.pooler else {}
    return family.backbone(**arguments_of(family), **pooler, **changes)


@each_family
def test_every_weight_of_a_backbone_has_one_name(family):
    backbone = make(family)
    named = list(named_weights(backbone, backbone_layers(backbone)))
    assert {id(weight) for _, weight, _ in named} == {id(w) for w in backbone.weights}
    assert len({name for name, _, _ in named}) == len(named) == len(backbone.weights)


@each_family
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_every_weight_of_a_head_has_one_name(family, task):
    options = CLASSES if task in TASKS[:2] else {}
    model = task(make(family), **options)
    head = family.heads[task.checkpoint_class_suffix]
    named = [weight for _, weight, _ in named_weights(model, head.tensors)]
    inside = {id(w) for w in model.backbone.weights}
    trained = [w for w in model.trainable_weights if id(w) not in inside]
    assert {id(w) for w in named} == {id(w) for w in trained}
    assert not head.hidden or head.hidden.activation in (None, *ACTIVATIONS)


@each_family
def test_a_configuration_goes_round_and_passes_its_rules(family):
    backbone = make(family)
    config = backbone_config(backbone, None)
    check_config(config, family, pathlib.Path("config.json"))
    arguments = backbone_arguments(config, family)
    assert {name: getattr(backbone, name) for name in family.config_keys} == arguments
    assert set(REQUIRED) <= set(family.config_keys) <= set(argument_rules(family.backbone))


@each_family
def test_every_number_in_a_configuration_is_checked(family):
    config = backbone_config(make(family), None)
    for argument in arguments_of(family):
        key = family.config_keys[argument]
        with pytest.raises(ValueError, match=rf"config\.json: {key} is 'much'"):
            check_config({**config, key: "much"}, family, pathlib.Path("config.json"))


@each_family
@pytest.mark.parametrize("argument, value", [("layer_norm_epsilon", 1e-4), ("num_segments", 7)])
def test_a_setting_that_config_json_cannot_say_is_not_lost(family, argument, value):
    backbone = family.backbone(**{**arguments_of(family), argument: value})
    if argument in family.config_keys:
        config = backbone_config(backbone, None)
        assert config[family.config_keys[argument]] == value
    else:
        words = f"config.json of {family.name} has no {argument}, .* whose {argument} is {value}"
        with pytest.raises(ValueError, match=words):
            backbone_config(backbone, None)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_registered_family_is_public(name):
    [family] = [family for family in all_families() if family.name == name]
    assert family.backbone.__name__ == FAMILIES[name] in ez.__all__
    assert family.backbone.__module__ == family_module(name)
    assert family.backbone.family is family


FLOORS = ["common", "encoders", "presets", "tasks"]


@pytest.mark.parametrize("floor", FLOORS[:-1])
def test_a_floor_knows_only_those_below(floor):
    above = tuple(f"encoder_zoo.{name}" for name in FLOORS[FLOORS.index(floor) + 1 :])
    for path in sorted((ROOT / floor).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.startswith(above)], path
        if path.name != "preset_door.py":  # the door to the floor above
            assert not [name for name in above if f'"{name}' in text], path
