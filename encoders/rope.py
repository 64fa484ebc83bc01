"""Rotary positions with scaling for long texts, and the fields in config.json.

Comments use these letters for shapes: B batch, L sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.validation import Rule, is_number, one_of
from encoder_zoo.encoders.family import remove_head_width
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.layers import NO_VALUE
from encoder_zoo.encoders.positions import (
    compute_rotation,
    compute_text_lengths,
    compute_text_positions,
)

LINEAR, DYNAMIC, YARN = "linear", "dynamic", "yarn"  # the names in config.json
_TRAINED_LENGTH = "original_max_position_embeddings"
_YARN_OPTIONS = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None}


def is_rope_scaling(value: object) -> bool:
    """Return True if the value is None or valid settings for `compute_scaled_rotation`."""
    if value is None:
        return True
    if not isinstance(value, Mapping) or not {"rope_type", "factor"} <= set(value):
        return False
    kind, others = value["rope_type"], {k: v for k, v in value.items() if k != "rope_type"}
    optional = {name: others.pop(name) for name in _YARN_OPTIONS if name in others}
    expected = {"factor", _TRAINED_LENGTH} if kind == YARN else {"factor"}
    return (
        kind in (LINEAR, DYNAMIC, YARN)
        and set(others) == expected
        and (not optional or kind == YARN)
        and all(is_number(number) and number >= 1 for number in others.values())
        and all(v is None or (is_number(v) and v > 0) for v in optional.values())
    )


RopeScaling = Annotated[
    Mapping | None,
    Rule(
        is_rope_scaling,
        f"an object with rope_type {LINEAR!r}, {DYNAMIC!r} or {YARN!r}, factor and, for {YARN!r}, "
        f"{_TRAINED_LENGTH}, or None",
    ),
]


# Additional rules for config.json, because rotary positions are applied to the whole head.
ROPE_RULES = {"head_dim": NO_VALUE, "partial_rotary_factor": one_of(None, 1)}


class ScaledRotation:
    """Mixin for backbones that pass rotary positions to each block.

    Attributes:
        rope_theta: Float. The base for the rotation angles.
        rope_scaling: Dictionary or None. See `compute_scaled_rotation`.
    """

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        rotation = compute_scaled_rotation(
            inputs,
            self.rope_theta,
            self.hidden_dim // self.num_heads,
            self.rope_scaling,
            self.get_max_unscaled_length(),
        )
        return [{**context, "rotation": rotation} for context in super().block_contexts(inputs)]

    def get_max_unscaled_length(self) -> int:
        """Return the maximum number of tokens for which dynamic scaling has no effect."""
        return self.max_sequence_length


def compute_scaled_rotation(
    inputs: Mapping,
    theta: float,
    head_dim: int,
    scaling: Mapping | None = None,
    trained_length: int = 1,
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Compute cosines and sines for all positions in a batch, with optional scaling.

    Args:
        inputs: Dictionary of tensors. Inputs for the backbone.
        theta: Float. The base for the rotation angles.
        head_dim: Even integer. The head width.
        scaling: Dictionary with "rope_type" and "factor", or None to disable scaling. With
            "linear", positions are divided by the factor. With "dynamic", the base is increased for
            texts with more than `trained_length` tokens (NTK). The base depends on the length of
            each text, but not on other texts in the batch. With "yarn", positions are only divided
            for slow dimensions. See `compute_yarn`.
        trained_length: Integer. The maximum number of tokens used in pretraining. Defaults to 1.

    Returns:
        Two float32 tensors of shape (1 or B, L, 1, head_dim / 2).

    Source: Chen et al. 2023, Extending Context Window of Large Language Models via Positional
    Interpolation, section 2.3. Peng et al. 2023, YaRN, section 3.1 and appendix A.1.

    Example:
        >>> import numpy as np
        >>> inputs = {"token_ids": np.ones((1, 4), int)}
        >>> scaling = {"rope_type": "linear", "factor": 2.0}
        >>> cosines, sines = compute_scaled_rotation(inputs, 10_000.0, 4, scaling)
        >>> np.array(sines)[0, :, 0, 0].round(2).tolist()
        [0.0, 0.47999998927116394, 0.8399999737739563, 1.0]
    """
    starts = inputs.get("text_starts")
    positions = compute_text_positions(starts, ops.shape(inputs["token_ids"])[1])
    if scaling is None:
        return compute_rotation(positions, theta, head_dim)
    factor = scaling["factor"]
    if scaling["rope_type"] == YARN:
        speeds, scale = compute_yarn(theta, head_dim, scaling)
        angles = ops.cast(positions, "float32")[:, :, None, None] * speeds
        return scale * ops.cos(angles), scale * ops.sin(angles)
    if scaling["rope_type"] == LINEAR:
        return compute_rotation(ops.cast(positions, "float32") / factor, theta, head_dim)
    real = add_padding_mask(inputs)["padding_mask"]
    lengths = ops.cast(compute_text_lengths(real, starts), "float32")  # (B, 1 or L)
    stretch = factor * ops.maximum(lengths / trained_length, 1.0) - (factor - 1)
    bases = theta * stretch ** (head_dim / (head_dim - 2))
    return compute_rotation(positions, bases[:, :, None, None], head_dim)


def compute_yarn(theta: float, head_dim: int, scaling: Mapping) -> tuple[np.ndarray, float]:
    """Compute the angles per position, and the factor for cosines and sines.

    Pairs of dimensions that turn more than "beta_fast" times within the trained length are not
    changed. The angle is divided by "factor" for pairs that turn less than "beta_slow" times, and
    interpolated for pairs in between.

    Args:
        theta: Float. The base for the rotation angles.
        head_dim: Even integer. The head width.
        scaling: Dictionary with "factor", "original_max_position_embeddings" and optionally
            "beta_fast", "beta_slow" and "attention_factor".

    Returns:
        Float32 array of shape (head_dim / 2,), and a float.

    Source: Peng et al. 2023, YaRN, sections 3.2 and 3.4.

    Example:
        >>> scaling = {"factor": 4.0, "original_max_position_embeddings": 64}
        >>> speeds, scale = compute_yarn(100.0, 8, scaling)
        >>> (speeds * 100 ** (np.arange(4) / 4)).round(3).tolist(), round(scale, 3)
        ([1.0, 0.75, 0.5, 0.25], 1.139)
    """
    given = {name: scaling.get(name) or default for name, default in _YARN_OPTIONS.items()}

    def find_dimension(turns: float) -> float:
        """Find the pair of dimensions with this number of turns in the trained length."""
        wavelength = scaling[_TRAINED_LENGTH] / (2 * math.pi * turns)
        return head_dim * math.log(wavelength) / (2 * math.log(theta))

    low = max(math.floor(find_dimension(given["beta_fast"])), 0)
    high = min(math.ceil(find_dimension(given["beta_slow"])), head_dim - 1)
    share = np.clip((np.arange(head_dim // 2) - low) / (high - low or 0.001), 0, 1)
    speeds = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    scale = given["attention_factor"] or 0.1 * math.log(scaling["factor"]) + 1
    return (speeds * (1 - share + share / scaling["factor"])).astype("float32"), scale


def convert_rope_fields(config: Mapping) -> dict:
    """Convert the fields for rotary positions to `rope_theta` and `rope_scaling`.

    The fields can have the form of any version of transformers. The field `head_dim` is removed if
    it is equal to the hidden size divided by the number of heads.

    Args:
        config: Dictionary with the content of config.json. transformers 5 stores the base and the
            scaling in `rope_parameters`.

    Example:
        >>> parameters = {"rope_type": "dynamic", "rope_theta": 1000, "factor": 2.0}
        >>> convert_rope_fields({"rope_parameters": parameters})
        {'rope_scaling': {'rope_type': 'dynamic', 'factor': 2.0}, 'rope_theta': 1000}
        >>> convert_rope_fields({"rope_theta": 10, "rope_scaling": {"type": "default"}})
        {'rope_theta': 10, 'rope_scaling': None}
    """
    config = dict(config)
    remove_head_width(config, "head_dim")
    # The older name has priority, as in transformers.
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
