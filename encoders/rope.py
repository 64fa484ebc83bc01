"""Rotary positions of texts longer than in pretraining, and their fields in config.json.

Comment letters: B batch, L sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import keras
from keras import ops

from encoder_zoo.common.validation import Rule, is_number, one_of
from encoder_zoo.encoders.inputs import with_padding_mask
from encoder_zoo.encoders.layers import ABSENT
from encoder_zoo.encoders.positions import positions_in_texts, rotation, text_lengths

LINEAR, DYNAMIC = "linear", "dynamic"  # in config.json


def _is_scaling(value: object) -> bool:
    return value is None or (
        isinstance(value, Mapping)
        and set(value) == {"rope_type", "factor"}
        and value["rope_type"] in (LINEAR, DYNAMIC)
        and is_number(value["factor"])
        and value["factor"] >= 1
    )


RopeScaling = Annotated[
    Mapping | None,
    Rule(
        _is_scaling,
        f"an object of rope_type, {LINEAR!r} or {DYNAMIC!r}, and factor, 1 or more; or nothing. "
        "Newer files say it in rope_parameters",
    ),
]


# Rules of config.json, beside those of the backbones' arguments: heads are rotated whole.
ROPE_RULES = {"head_dim": ABSENT, "partial_rotary_factor": one_of(None, 1)}


class ScaledRotation:
    """Mixin of backbones: every block rotates queries and keys, as these say.

    Attributes:
        rope_theta: base of the angles.
        rope_scaling: see `scaled_rotation`.
    """

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        rotation = scaled_rotation(
            inputs,
            self.rope_theta,
            self.hidden_dim // self.num_heads,
            self.rope_scaling,
            self._longest_unscaled(),
        )
        return [{**context, "rotation": rotation} for context in super().block_contexts(inputs)]

    def _longest_unscaled(self) -> int:
        """Return the number of tokens from which on dynamic scaling begins."""
        return self.max_sequence_length


def scaled_rotation(
    inputs: Mapping,
    theta: float,
    head_dim: int,
    scaling: Mapping | None = None,
    trained_length: int = 1,
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Return `rotation` of the positions of a batch.

    Args:
        inputs: of the backbone.
        theta: base of the angles.
        head_dim: numbers of a head.
        scaling: None, or `{"rope_type", "factor"}`: "linear" divides positions by the factor;
            "dynamic" raises the base for texts of more than `trained_length` tokens (NTK). It
            depends on a text's own length, and not on that of the longest text of its batch.
        trained_length: number of tokens of the longest texts in pretraining.

    Returns:
        Two (1 or B, L, 1, head_dim / 2) float32.

    Source: Chen et al. 2023, Extending Context Window of Large Language Models via Positional
    Interpolation, section 2.3; Peng et al. 2023, YaRN, section 3.1 and appendix A.1.

    Example:
        >>> import numpy as np
        >>> inputs = {"token_ids": np.ones((1, 4), int)}
        >>> scaling = {"rope_type": "linear", "factor": 2.0}
        >>> cosines, sines = scaled_rotation(inputs, 10_000.0, 4, scaling)
        >>> np.array(sines)[0, :, 0, 0].round(2).tolist()
        [0.0, 0.47999998927116394, 0.8399999737739563, 1.0]
    """
    starts = inputs.get("text_starts")
    positions = positions_in_texts(starts, ops.shape(inputs["token_ids"])[1])
    if scaling is None:
        return rotation(positions, theta, head_dim)
    factor = scaling["factor"]
    if scaling["rope_type"] == LINEAR:
        return rotation(ops.cast(positions, "float32") / factor, theta, head_dim)
    real = with_padding_mask(inputs)["padding_mask"]
    lengths = ops.cast(text_lengths(real, starts), "float32")  # (B, 1 or L)
    stretch = factor * ops.maximum(lengths / trained_length, 1.0) - (factor - 1)
    bases = theta * stretch ** (head_dim / (head_dim - 2))
    return rotation(positions, bases[:, :, None, None], head_dim)


def read_rope(config: Mapping) -> dict:
    """Return a configuration with `rope_theta` and `rope_scaling` of any version of transformers.

    A `head_dim` that is no other than the quotient of two fields is left out.

    Args:
        config: contents of config.json; version 5 has both in `rope_parameters`.

    Example:
        >>> parameters = {"rope_type": "dynamic", "rope_theta": 1000, "factor": 2.0}
        >>> read_rope({"rope_parameters": parameters})
        {'rope_scaling': {'rope_type': 'dynamic', 'factor': 2.0}, 'rope_theta': 1000}
        >>> read_rope({"rope_theta": 10, "rope_scaling": {"type": "default"}})
        {'rope_theta': 10, 'rope_scaling': None}
    """
    config = dict(config)
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if type(width) is type(heads) is int and heads > 0 and config.get("head_dim") == width / heads:
        del config["head_dim"]
    # The older name counts first, as in transformers.
    found = config.pop("rope_parameters", None)
    found = config.get("rope_scaling") or found
    if not isinstance(found, dict):
        return config if found is None else {**config, "rope_scaling": found}
    own = ("rope_type", "type", "rope_theta")
    others = {name: value for name, value in found.items() if name not in own}
    kind = found.get("rope_type", found.get("type", "default"))
    if others.get("partial_rotary_factor") == 1:
        del others["partial_rotary_factor"]
    config["rope_scaling"] = {"rope_type": kind, **others}
    if config["rope_scaling"] == {"rope_type": "default"}:
        config["rope_scaling"] = None
    if "rope_theta" in found:
        config["rope_theta"] = found["rope_theta"]
    return config
