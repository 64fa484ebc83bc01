"""Checks of arrays in untrusted files before they are read, in any format."""

from __future__ import annotations

import pathlib

import ml_dtypes
import numpy as np

from encoder_zoo.common.wording import shown


def check_held(path: str | pathlib.Path, promised: int, size: int) -> None:
    """Refuses arrays that are larger than what holds them, before any memory is asked for.

    Args:
        path: of the file, for the error.
        promised: bytes of the arrays, by what the file says of their shapes.
        size: bytes that are there.

    Raises:
        ValueError: "...: its arrays have 3600000000 bytes, but only 37000 are there ..."
    """
    if promised > size:
        raise ValueError(
            f"{path}: its arrays have {promised} bytes, but only {size} are there. The file is "
            "damaged, compressed or made up."
        )


def check_floats(dtype: np.dtype, path: str | pathlib.Path, name: str) -> None:
    """Refuses weights that are no floating-point numbers.

    Raises:
        ValueError: "...: 'classifier.weight' is of type int8. Expected float16, bfloat16, float32
            or float64."
    """
    if dtype.kind != "f" and dtype != ml_dtypes.bfloat16:
        raise ValueError(
            f"{path}: {shown(name)} is of type {shown(str(dtype))}. Expected float16, bfloat16, "
            "float32 or float64."
        )
