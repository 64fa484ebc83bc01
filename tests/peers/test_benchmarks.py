"""Each side of a benchmark pays for itself alone."""

import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.peers

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


def test_the_side_of_transformers_pays_for_no_import_of_ours():
    code = "import speed_torch, sys; print({'keras', 'tensorflow', 'encoder_zoo'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "set()\n", done.stderr
