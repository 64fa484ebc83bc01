"""ESM-2's contacts and residues beside transformers."""

import random

import numpy as np
import pytest
from keras import ops
from paths import CHECKPOINTS

import encoder_zoo as ez

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]
FOLDER = CHECKPOINTS / "Esm_ForMaskedLM"


def test_contacts_are_theirs():
    there = transformers.EsmForMaskedLM.from_pretrained(FOLDER, attn_implementation="eager").eval()
    ids = np.array([[0, 20, 15, 7, 32, 5, 2], [0, 20, 9, 10, 2, 1, 1]])
    mask = ids != 1
    with torch.inference_mode():
        expected = there.predict_contacts(torch.tensor(ids), torch.tensor(mask.astype("int64")))
    backbone = ez.Backbone.from_preset(FOLDER)
    found = backbone.predict_contacts({"token_ids": ids, "padding_mask": mask})
    for row, length in enumerate([5, 3]):
        ours = ops.convert_to_numpy(found)[row, :length, :length]
        np.testing.assert_allclose(ours, expected[row, :length, :length].numpy(), atol=2e-5)


@pytest.mark.parametrize("special", [True, False])
def test_ids_are_theirs(special):
    there = transformers.EsmTokenizer(str(FOLDER / "vocab.txt"))
    tokens = list(there.all_tokens)
    ours = ez.EsmTokenizer(tokens, special_tokens_in_text=special)
    others = [" ", "  ", "\t", "\n", "a", "é", "中", "<", "<nu", "1>", "|", "*", "\\", "\u00a0"]
    pool = [*(tokens if special else tokens[4:31]), *tokens[4:31], *others]
    rng = random.Random(0)
    texts = ["".join(rng.choices(pool, k=rng.randint(0, 40))) for _ in range(2000)]
    expected = there(texts, add_special_tokens=False)["input_ids"]
    assert ours.library.texts_to_ids(np.array([t.encode() for t in texts])).to_list() == expected
    assert ours.graph.texts_to_ids(texts).to_list() == expected
