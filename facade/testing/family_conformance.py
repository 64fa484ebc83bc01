"""Checks for families, including configuration, saving, loading, batching and gradients."""

from __future__ import annotations

import pathlib
import tempfile

import keras
import numpy as np

from encoder_zoo.common.configuration import get_argument_defaults, get_argument_rules
from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.layers import ACTIVATIONS
from encoder_zoo.presets.formats.checkpoint import map_backbone_layers, map_weights
from encoder_zoo.presets.formats.config import (
    REQUIRED,
    check_config,
    convert_config,
    make_backbone_config,
)
from encoder_zoo.testing import comparing, tiny

CONFIG_PATH = pathlib.Path("config.json")


def check_family_is_registered(family: Family) -> None:
    """Check that the family is registered, and is the `family` of the backbone."""
    assert family.name in FAMILIES, f"FAMILIES has no {family.name!r}"
    assert get_family(family.name) is family, "another family is registered by that name"
    assert family.backbone.family is family, f"{family.backbone.__name__}.family differs"
    assert FAMILIES[family.name] == family.backbone.__name__


def check_every_weight_has_one_name(family: Family) -> None:
    """Check that `tensors` and `pooler` contain a unique name for each weight of the backbone."""
    backbone = tiny.backbone(family)
    named = map_weights(backbone, map_backbone_layers(backbone))
    inside = {id(weight) for weight, _ in named.values()}
    absent = [weight.path for weight in backbone.weights if id(weight) not in inside]
    assert not absent, f"without a name in the checkpoint: {', '.join(absent)}"
    assert len(named) == len(backbone.weights), "a weight has two names"


def check_head_activations_are_known(family: Family) -> None:
    """Check that the activations of all heads are supported."""
    for name, head in family.heads.items():
        known = not head.hidden or head.hidden.activation in (None, *ACTIVATIONS)
        assert known, f"{name}: unknown activation {head.hidden.activation!r}"


def make_changed_arguments(family: Family) -> dict[str, object]:
    """Return arguments for a small backbone with values other than the defaults."""
    rules = get_argument_rules(family.backbone)
    changed = {
        name: comparing.make_other_value(v)
        for name, v in get_argument_defaults(family.backbone).items()
    }
    allowed = {n: v for n, v in changed.items() if n in rules and rules[n].holds(v)}
    return {**allowed, **tiny.sizes(family), "pooler": family.pooler is not None}


def check_config_json_round_trip(family: Family) -> None:
    """Check that backbone arguments are the same after writing and reading config.json."""
    arguments = {n: v for n, v in make_changed_arguments(family).items() if n in family.config_keys}
    backbone = family.backbone(**arguments)
    config = make_backbone_config(backbone, None)
    check_config(config, family, CONFIG_PATH)
    expected = {name: getattr(backbone, name) for name in family.config_keys}
    found = convert_config(config, family)
    assert found == expected, f"{found}, expected {expected}"
    unknown = set(family.config_keys) - set(get_argument_rules(family.backbone))
    assert not unknown, f"arguments without a rule: {', '.join(sorted(unknown))}"
    assert set(REQUIRED) <= set(family.config_keys), f"config_keys must have all of {REQUIRED}"


def check_numbers_in_config_json(family: Family) -> None:
    """Check that errors are raised for strings in the numeric fields of config.json."""
    backbone = tiny.backbone(family)
    config = make_backbone_config(backbone, None)
    for argument in sorted(set(family.config_keys) - {"terms"}):
        key = family.config_keys[argument]
        with comparing.assert_raises(f"{key} is 'much'"):
            check_config({**config, key: "much"}, family, CONFIG_PATH)


def check_settings_outside_config_json(family: Family) -> None:
    """Check that saving raises an error for changed arguments without a field in config.json."""
    for argument, value in {"layer_norm_epsilon": 1e-4, "num_segments": 7}.items():
        if argument not in get_argument_defaults(family.backbone):
            continue
        backbone = family.backbone(**{**tiny.sizes(family), argument: value})
        if argument in family.config_keys:
            assert make_backbone_config(backbone, None)[family.config_keys[argument]] == value
            continue
        with comparing.assert_raises(argument):
            make_backbone_config(backbone, None)


def check_get_config_round_trip(family: Family) -> None:
    """Check that all arguments are the same after `from_config`."""
    backbone = family.backbone(**make_changed_arguments(family))
    again = family.backbone.from_config(backbone.get_config())
    assert again.get_config() == backbone.get_config(), "from_config changes arguments"
    again.set_weights(backbone.get_weights())
    inputs = tiny.examples(family)
    comparing.assert_same_outputs(again, backbone, inputs)


def check_keras_file_round_trip(family: Family) -> None:
    """Check that outputs are the same after `save` and `keras.saving.load_model`."""
    comparing.assert_keras_file_round_trip(tiny.backbone(family), tiny.examples(family))


def check_preset_round_trip(family: Family) -> None:
    """Check that the class and the outputs are the same after `Backbone.from_preset`."""
    backbone, inputs = tiny.backbone(family), tiny.examples(family)
    with tempfile.TemporaryDirectory() as folder, comparing.assert_no_warnings():
        backbone.save_to_preset(folder, tiny.tokenizer(family))
        again = Backbone.from_preset(folder)
        tokenizer = family.tokenizer.load().from_preset(folder)
    assert type(again) is family.backbone, f"loaded a {type(again).__name__}"
    comparing.assert_same_outputs(again, backbone, inputs)
    assert tokenizer.get_config() == tiny.tokenizer(family).get_config(), "another tokenizer"


def check_padding_and_batching_change_nothing(family: Family) -> None:
    """Check that padding ids and other examples in the batch do not change outputs."""
    comparing.assert_batching_changes_nothing(tiny.backbone(family), tiny.examples(family))


def check_mixed_precision_is_close(family: Family) -> None:
    """Check that outputs are nearly the same with mixed_bfloat16."""
    exact, inputs = tiny.backbone(family), tiny.examples(family)
    mixed = tiny.backbone(family, dtype="mixed_bfloat16")
    assert mixed(inputs)["sequence_output"].dtype == "bfloat16", "sequence_output is not bfloat16"
    comparing.assert_mixed_precision_is_close(exact, mixed, inputs)


def check_gradients_reach_every_weight(family: Family) -> None:
    """Check that all weights have gradients, and that checkpointing does not change them."""
    inputs, found = tiny.examples(family), []
    for checkpointing in (False, True):
        keras.utils.set_random_seed(0)
        backbone = tiny.backbone(family, dropout=0.2, attention_dropout=0.2)
        if checkpointing:
            backbone.enable_gradient_checkpointing()
        found.append(compute_gradients(backbone, inputs))
    for weight, first, second in zip(backbone.trainable_weights, *found, strict=True):
        np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-4, err_msg=weight.path)


def compute_gradients(model: keras.Model, inputs: dict) -> list[np.ndarray]:
    """Compute the gradients of a nonlinear function of all outputs in training mode."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        outputs = keras.tree.flatten(model(inputs, training=True))
        total = sum(tf.reduce_sum(tf.sin(3 * values)) for values in outputs)
    found = tape.gradient(total, [weight.value for weight in model.trainable_weights])
    assert_all_reached(model, found)
    return [tf.convert_to_tensor(values).numpy() for values in found]


def assert_all_reached(model: keras.Model, gradients: list) -> None:
    """Assert that all trainable weights have gradients."""
    pairs = zip(model.trainable_weights, gradients, strict=True)
    absent = [weight.path for weight, values in pairs if values is None]
    assert not absent, f"no gradient of {', '.join(absent)}"


FAMILY_CHECKS = [
    check_family_is_registered,
    check_every_weight_has_one_name,
    check_head_activations_are_known,
    check_config_json_round_trip,
    check_numbers_in_config_json,
    check_settings_outside_config_json,
    check_get_config_round_trip,
    check_keras_file_round_trip,
    check_preset_round_trip,
    check_padding_and_batching_change_nothing,
    check_mixed_precision_is_close,
]
if keras.config.backend() == "tensorflow":
    FAMILY_CHECKS.append(check_gradients_reach_every_weight)
