"""Check the names, types and shapes of model inputs.

Comments use these letters for shapes: B batch, L sequence, M masked positions, K texts in a row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from encoder_zoo.common.lazy import keras, ops
from encoder_zoo.common.wording import find_close_names, invalid, quote, suggest_names

# Inputs that can be used with every backbone.
BACKBONE_INPUTS = (
    "token_ids",
    "padding_mask",
    "segment_ids",
    "text_starts",
    "attended_mask",
    "global_mask",
)
# Additional inputs for tasks, which are ignored by the backbone.
TASK_INPUTS = (
    "mask_positions",
    "prediction_order",
    "answer_mask",
    "answer_start",
    "masked_token_ids",
    "positions_in_teacher",
    "word_index",
    "word_mask",
    "label_positions",
    "span_marks",
    "soft_weights",
    *(f"teacher_{name}" for name in BACKBONE_INPUTS),
)
CANDIDATE = "candidate_"  # prefix for the inputs of additional texts
# Maps input names in transformers to the names in this package.
TRANSFORMERS_NAMES = {
    "input_ids": "token_ids",
    "attention_mask": "padding_mask",
    "token_type_ids": "segment_ids",
}
# These inputs have the shape (B,), or a second axis of any length. All other inputs have the shape
# of "token_ids", (B, L). The inputs of additional texts, "candidate_...", have the shape of
# "candidate_token_ids", (B, K, L).
OTHER_SHAPES = ("mask_positions", "text_starts", "soft_weights", "choice_index", "answer_start")
OTHER_SHAPES += ("word_mask", "label_positions")


def select_backbone_inputs(inputs: Mapping) -> dict:
    """Remove the inputs that the backbone does not use."""
    return {name: inputs[name] for name in BACKBONE_INPUTS if name in inputs}


def add_padding_mask(inputs: Mapping) -> Mapping:
    """Add a padding mask of ones if the inputs do not contain a padding mask.

    Example:
        >>> import numpy as np
        >>> ops.convert_to_numpy(add_padding_mask({"token_ids": np.array([[5]])})["padding_mask"])
        array([[1]])
    """
    if inputs.get("padding_mask") is not None:
        return inputs
    return {**inputs, "padding_mask": ops.ones_like(inputs["token_ids"])}


def combine_texts(inputs: Mapping) -> dict:
    """Combine the inputs for the first text and for candidates. The result has one row per text.

    Args:
        inputs: Dictionary of tensors. Inputs of the first text have shape (B, L). Inputs of the
            candidates have names that start with "candidate_" and shape (B, K - 1, L).

    Returns:
        Dictionary of tensors of shape (B * K, L).

    Raises:
        ValueError: If an input is missing for the candidates, or has a different length.

    Example:
        >>> import numpy as np
        >>> inputs = {"token_ids": np.array([[1], [2]]),
        ...           "candidate_token_ids": np.array([[[3]], [[4]]])}
        >>> ops.convert_to_numpy(combine_texts(inputs)["token_ids"]).tolist()
        [[1], [3], [2], [4]]
    """
    texts = {}
    for name in BACKBONE_INPUTS:
        if inputs.get(name) is None:
            continue
        first, others = ops.convert_to_tensor(inputs[name]), inputs.get(CANDIDATE + name)
        if others is None:
            raise ValueError(
                f"`inputs` has {name}, but {CANDIDATE}{name} is missing. Pass both inputs."
            )
        lengths = others.shape[-1], first.shape[-1]
        if None not in lengths and lengths[0] != lengths[1]:
            raise ValueError(
                f"{CANDIDATE}{name} has {lengths[0]} positions, but {name} has {lengths[1]}. Pad "
                "both to the same length."
            )
        both = ops.concatenate([first[:, None], ops.cast(others, first.dtype)], axis=1)
        texts[name] = ops.reshape(both, (-1, ops.shape(first)[-1]))
    return texts


def check_inputs(
    inputs: object, names: Collection[str], taker: str, text_method: str | None = None
) -> None:
    """Check the names, types and shapes of preprocessed inputs. Unknown sizes are ignored.

    Args:
        inputs: Dictionary of arrays, tensors or tensor specifications.
        names: Collection of strings. The supported input names.
        taker: String. The model class name to use in error messages.
        text_method: Optional string. The model method that accepts texts, for error messages.

    Raises:
        TypeError: If `inputs` is not a dictionary.
        ValueError: If an input is unknown or missing, or if it has the wrong type or shape.

    Example:
        >>> import numpy as np
        >>> check_inputs({"token_ids": np.array([[0.5]])}, BACKBONE_INPUTS, "BertBackbone")
        Traceback (most recent call last):
        ValueError: token_ids has dtype float64. Expected integers.
        >>> check_inputs({"input_ids": np.array([[5]])}, BACKBONE_INPUTS, "BertBackbone")
        Traceback (most recent call last):
        ValueError: BertBackbone has no input 'input_ids'. Did you mean 'token_ids'?
    """
    if not isinstance(inputs, Mapping):
        more = f". Call {text_method}(texts) for texts" if text_method else ""
        raise invalid(
            "inputs",
            inputs,
            f"a dictionary of token_ids and padding_mask for {taker}{more}",
            error=TypeError,
        )
    _check_names(inputs, names, taker)
    shape = _get_shape(inputs["token_ids"])
    for name, values in inputs.items():
        if hasattr(values, "dtype"):
            _check_type(name, values)
            _check_shape(name, _get_shape(values), _find_expected_shape(name, inputs, shape))


def _check_names(inputs: Mapping, names: Collection[str], taker: str) -> None:
    for name in inputs:
        if name not in names:
            close = find_close_names(str(name), names, cutoff=0.7)
            meant = [TRANSFORMERS_NAMES[name]] if name in TRANSFORMERS_NAMES else close
            hint = suggest_names(meant) or f" Expected one of {', '.join(names)}."
            raise ValueError(f"{taker} has no input {name!r}.{hint}")
    if inputs.get("token_ids") is None:
        raise ValueError(
            f"The input token_ids is missing or None. Received the keys {quote(list(inputs))}. "
            f"Pass a dictionary with token_ids to {taker}."
        )


def _check_type(name: str, values: object) -> None:
    if getattr(values, "ragged_rank", None):
        raise ValueError(f"{name} is a ragged tensor. Pad it to a fixed length with to_tensor().")
    try:
        dtype = keras.backend.standardize_dtype(values.dtype)
    except ValueError:  # not a tensor dtype, for example Python objects
        dtype = str(values.dtype)
    good, expected = "int" in dtype, "integers"
    if name.endswith("soft_weights"):
        good, expected = good or "float" in dtype, "numbers"
    elif name.endswith("_mask"):
        good, expected = good or dtype == "bool", "booleans or the integers 0 and 1"
    if not good:
        raise ValueError(f"{name} has dtype {dtype}. Expected {expected}.")


def _get_shape(values: object) -> tuple | None:
    """Return the shape of an input, using None for unknown sizes. Return None for unknown rank."""
    shape = getattr(values, "shape", None)
    return None if shape is None or getattr(shape, "rank", 2) is None else tuple(shape)


def _find_expected_shape(name: str, inputs: Mapping, token_ids: tuple | None) -> tuple | None:
    """Infer the expected shape of an input from the token ids. Return None if it is unknown."""
    for owner in ("teacher_", CANDIDATE):
        if name.startswith(owner) and f"{owner}token_ids" in inputs:
            token_ids = _get_shape(inputs[f"{owner}token_ids"])
    if name.endswith(OTHER_SHAPES) and token_ids is not None:
        return (token_ids[0], None)
    return token_ids


def _check_shape(name: str, shape: tuple | None, expected: tuple | None) -> None:
    if shape is None:
        return
    ranks, axes = (1, 2) if name.endswith("soft_weights") else (2,), "(batch, sequence)"
    if name.startswith(CANDIDATE):
        ranks, axes = (3,), "(batch, candidates, sequence)"
    if len(shape) not in ranks:
        raise ValueError(f"{name} has shape {shape}. Expected {axes}.")
    both = zip(shape, expected or (), strict=False)
    if any(type(a) is int and type(b) is int and a != b for a, b in both):
        raise ValueError(
            f"{name} has shape {shape}. Expected {expected}, to match the shape of token_ids."
        )
