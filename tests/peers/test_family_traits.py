"""What single families' configurations vary, beside transformers; their pretraining's heads."""

import numpy as np
import pytest
from keras import ops

import encoder_zoo as ez

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]

DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
VARIATIONS = [
    ("DistilBert", {**DISTILBERT, "activation": "relu"}),
    ("DistilBert", {**DISTILBERT, "sinusoidal_pos_embds": True}),
    ("Albert", {**SIZES, "embedding_size": 8, "num_hidden_groups": 2}),
    ("Albert", {**SIZES, "embedding_size": 8, "num_hidden_groups": 5}),
    ("Albert", {**SIZES, "embedding_size": 16}),
    ("Albert", {**SIZES, "embedding_size": 8, "hidden_act": "gelu", "hidden_dropout_prob": 0.1}),
    ("Electra", {**SIZES, "embedding_size": 16}),
    ("Electra", {**SIZES, "embedding_size": 24}),  # as the generators of base and large
    ("XLMRoberta", {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    ("Camembert", {**SIZES, "type_vocab_size": 1}),
]
IDS = np.array([[2, 17, 29, 8, 3], [2, 9, 3, 1, 1]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def made_there(name: str, head: str, settings: dict):
    """A small model of transformers with large random weights."""
    sizes = {"vocab_size": 40, "max_position_embeddings": 12, "initializer_range": 0.5}
    config = getattr(transformers, f"{name}Config")(**{**sizes, **settings})
    torch.manual_seed(0)
    return getattr(transformers, f"{name}{head}")(config).eval()


@pytest.mark.parametrize("name, settings", VARIATIONS, ids=str)
def test_every_hidden_state_is_theirs(name, settings, tmp_path):
    there = made_there(name, "Model", settings)
    there.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = there(
            input_ids=torch.tensor(IDS),
            attention_mask=torch.tensor(MASK),
            output_hidden_states=True,
        ).hidden_states
    backbone = ez.Backbone.from_preset(tmp_path)
    assert backbone.count_params() == sum(p.numel() for p in there.parameters())
    inputs = {"token_ids": IDS, "padding_mask": MASK}
    found = backbone(inputs, return_hidden_states=True)["hidden_states"]
    # What they record before ALBERT's first block has its embeddings' width.
    first = 1 if name == "Albert" else 0
    assert len(found) == len(expected) == backbone.num_layers + 1
    for ours, theirs in list(zip(found, expected, strict=True))[first:]:
        real = MASK == 1
        np.testing.assert_allclose(ops.convert_to_numpy(ours)[real], theirs[real], atol=1e-5)


def test_fresh_sinusoids_are_theirs():
    there = made_there("DistilBert", "Model", {**DISTILBERT, "sinusoidal_pos_embds": True})
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}
    here = ez.DistilBertBackbone(40, **sizes, max_sequence_length=12, sinusoidal_positions=True)
    table = ops.convert_to_numpy(here.embeddings.position_embedding.embeddings)
    expected = there.embeddings.position_embeddings.weight.detach()
    np.testing.assert_allclose(table, expected, atol=1e-6)


def save(model, tokenizer, folder) -> None:
    model.save_pretrained(folder)
    for name, content in tokenizer.to_files().items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(
    "name, settings", [("DistilBert", DISTILBERT), ("Albert", SIZES), ("XLMRoberta", SIZES)]
)
def test_a_head_for_choices_is_not_taken_for_a_classifiers(tiny, name, settings, tmp_path, caplog):
    family = getattr(ez, f"{name}Backbone").family
    save(made_there(name, "ForMultipleChoice", settings), tiny.tokenizer(family), tmp_path)
    ez.SequenceClassifier.from_preset(tmp_path, num_classes=2)
    said = [record.getMessage() for record in caplog.records if record.name == "encoder_zoo"]
    assert f"the checkpoint's is of {name}ForMultipleChoice" in said[0]
