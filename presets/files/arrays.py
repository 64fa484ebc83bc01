"""Checks arrays in untrusted files of any format before they are read."""

from __future__ import annotations

import pathlib

import ml_dtypes
import numpy as np

from encoder_zoo.common.wording import shown


def check_stored(path: str | pathlib.Path, declared: int, size: int) -> None:
    """Raise an error if arrays are larger than the file, before memory is allocated.

    Args:
        path: of the file, for the error message.
        declared: bytes of the arrays, by their shapes.
        size: bytes that are stored.

    Raises:
        ValueError: "...: its arrays have 3600000000 bytes, but only 37000 are there ..."
    """
    if declared > size:
        raise ValueError(
            f"{path}: its arrays have {declared} bytes, but only {size} are there. The file is "
            "damaged, compressed or made up."
        )


def check_floats(dtype: np.dtype, path: str | pathlib.Path, name: str) -> None:
    """Raise an error if weights are not floating-point numbers.

    Raises:
        ValueError: "...: 'classifier.weight' is of type int8. Expected float16, bfloat16, float32
            or float64."
    """
    if dtype.kind != "f" and dtype != ml_dtypes.bfloat16:
        raise ValueError(
            f"{path}: {shown(name)} is of type {shown(str(dtype))}. Expected float16, bfloat16, "
            "float32 or float64."
        )
