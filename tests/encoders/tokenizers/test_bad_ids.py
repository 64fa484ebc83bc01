"""Ids that are no ids are refused by name."""

import numpy as np
import pytest

import encoder_zoo as ez

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##do", "it"]


@pytest.mark.parametrize(
    "ids",
    [
        [5, 8],
        [-1],
        [[5], [-100]],
        np.array([[5, 2**40]]),
        [10**30],
        [5.5],
        ["it"],
        [None],
        [True],
        np.array([[5.0]]),
        np.array(5),
        "it",
        None,
        5,
    ],
    ids=repr,
)
def test_ids(ids):
    with pytest.raises(ValueError, match=r"ids(\[\d\])? is.*Expected (ids|integers)"):
        ez.BertTokenizer(TOKENS).detokenize(ids)


@pytest.mark.parametrize(
    "ids", [[5, 6, 7], (5, 6, 7), np.array([5, 6, 7], "uint8"), [np.int64(5), 6, 7]]
)
def test_ids_of_every_type(ids):
    tokenizer = ez.BertTokenizer(TOKENS)
    assert np.asarray(tokenizer.detokenize(ids)).item() == b"undo it"
    assert np.asarray(tokenizer.detokenize([])).item() == b""
