"""Longformer beside transformers: longer texts, and the tokens that a task makes global."""

import keras
import numpy as np
import pytest

import encoder_zoo as ez

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]
SEP = 2


@pytest.mark.parametrize("question", [30, 500])  # fewer and more tokens than there are slots
@pytest.mark.parametrize("name", ["SequenceClassifier", "SpanQA", "MultipleChoice"])
def test_longer_texts_are_theirs(tiny, tmp_path, name, question):
    task = getattr(ez, name)
    family = ez.LongformerBackbone.family
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LongformerConfig(
        vocab_size=30, **sizes, intermediate_size=16, max_position_embeddings=1202,
        type_vocab_size=1, attention_window=[64, 16], initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    there = getattr(transformers, f"Longformer{task.record.head}")(config).eval()
    there.save_pretrained(tmp_path)
    for file, text in tiny.tokenizer(family).to_files().items():
        (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    ids = np.random.default_rng(0).integers(5, 29, (2, 1100))
    ids[:, 0] = 0
    ids[0, [question, question + 1, -1]] = ids[1, [3, 4, -7]] = SEP
    ids[1, -6:] = config.pad_token_id
    mask = ids != config.pad_token_id
    given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask.astype(int))}
    if name == "MultipleChoice":
        given = {key: value[:, None] for key, value in given.items()}
    with torch.inference_mode():
        outputs = there.double()(**given)
    here = task.from_preset(tmp_path)({"token_ids": ids.astype("int32"), "padding_mask": mask})
    here = keras.ops.convert_to_numpy(here)
    if name == "SpanQA":
        expected = torch.stack([outputs.start_logits, outputs.end_logits], dim=1).numpy()
        here, expected = (np.moveaxis(value, 1, 2)[mask] for value in (here, expected))
    else:
        expected = outputs.logits.numpy()
    np.testing.assert_allclose(here, expected, atol=2e-5 * max(1.0, np.abs(expected).max()))
