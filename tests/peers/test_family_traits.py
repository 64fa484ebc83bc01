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
MODERN = {"local_attention": 4, "pad_token_id": 1, "bos_token_id": 2, "cls_token_id": 2}
MODERN |= {"eos_token_id": 3, "sep_token_id": 3}
EURO = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 1, "mask_token_id": 0}
GEMMA = {"head_dim": 6, "num_key_value_heads": 1, "query_pre_attn_scalar": 6, "sliding_window": 4}
GEMMA |= {"use_bidirectional_attention": True}
SLIDING, FULL = "sliding_attention", "full_attention"
LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 7.0}
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
    ("ModernBert", {**SIZES, **MODERN}),
    ("ModernBert", {**SIZES, **MODERN, "local_attention": 3, "global_attn_every_n_layers": 2}),
    ("ModernBert", {**SIZES, **MODERN, "global_rope_theta": 7.0, "local_rope_theta": 3.0}),
    ("ModernBert", {**SIZES, **MODERN, "hidden_activation": "silu", "norm_eps": 1e-3}),
    ("MPNet", SIZES),
    ("MPNet", {**SIZES, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
    ("NomicBert", {**SIZES, "num_hidden_layers": 2}),
    ("NomicBert", {**SIZES, "hidden_act": "gelu", "rope_parameters": LINEAR}),
    ("Gte", {**SIZES, "type_vocab_size": 0}),
    ("Gte", {**SIZES, "hidden_act": "silu", "rope_parameters": LINEAR}),
    ("EuroBert", {**SIZES, **EURO}),
    ("EuroBert", {**SIZES, **EURO, "num_attention_heads": 4, "num_key_value_heads": 2}),
    ("EuroBert", {**SIZES, **EURO, "rms_norm_eps": 1e-2, "rope_parameters": LINEAR}),
    ("Gemma3Text", {**SIZES, **GEMMA}),
    ("Gemma3Text", {**SIZES, **GEMMA, "num_key_value_heads": 2, "query_pre_attn_scalar": 3}),
    ("Gemma3Text", {**SIZES, **GEMMA, "layer_types": [*[SLIDING, FULL] * 2, SLIDING]}),
    ("Gemma3Text", {**SIZES, **GEMMA, "hidden_activation": "silu", "rms_norm_eps": 1e-2}),
]
IDS = np.array([[2, 17, 29, 8, 3], [2, 9, 3, 1, 1]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
LONG = np.random.default_rng(0).integers(4, 40, (3, 12))


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
    with torch.inference_mode():  # in double precision: its own roundings reach 1e-5
        expected = there.double()(
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
        ours, theirs = ops.convert_to_numpy(ours)[real], theirs.numpy()[real]
        # A sum's error is a share of its largest term, and that of the largest output.
        atol = 1e-5 * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("padded", ["left", "right"])
def test_a_modernbert_classifies_by_either_pooling_padded_on_either_side(
    tiny, padded, pooling, tmp_path
):
    settings = {**SIZES, **MODERN, "classifier_pooling": pooling, "num_labels": 3}
    tokenizer = tiny.tokenizer(ez.ModernBertBackbone.family)
    settings |= sizes_of(tokenizer)
    there = made_there("ModernBert", "ForSequenceClassification", settings)
    mask, ids = np.arange(12) < np.array([[12], [7], [1]]), np.minimum(LONG, 20)
    if padded == "left":
        mask = mask[:, ::-1]
        if pooling == "cls":
            mask = mask | (np.arange(12) == 0)  # they read the first token, padding or not
    save(there, tokenizer, tmp_path)
    with torch.inference_mode():
        expected = there.double()(
            input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask.astype("int64"))
        ).logits
    inputs = {"token_ids": ids, "padding_mask": mask}
    here = ez.SequenceClassifier.from_preset(tmp_path)
    assert here.backbone.pooling == pooling
    np.testing.assert_allclose(here(inputs), expected, rtol=1e-5, atol=1e-5)
    here.save_to_preset(tmp_path / "ours")
    there = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    assert there.config.classifier_pooling == pooling


@pytest.mark.parametrize("pooling", ["bos", "mean", "late"])
@pytest.mark.parametrize("padded", ["left", "right"])
def test_a_eurobert_classifies_by_each_pooling_padded_on_either_side(
    tiny, padded, pooling, tmp_path
):
    tokenizer = tiny.tokenizer(ez.EuroBertBackbone.family)
    settings = {**SIZES, **EURO, "classifier_pooling": pooling, "num_labels": 3}
    there = made_there("EuroBert", "ForSequenceClassification", settings | sizes_of(tokenizer))
    mask, ids = np.arange(12) < np.array([[12], [7], [1]]), np.minimum(LONG, 20)
    mask = mask[:, ::-1] if padded == "left" and pooling != "bos" else mask
    save(there, tokenizer, tmp_path)
    with torch.inference_mode():
        expected = there.double()(
            input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask.astype("int64"))
        ).logits
    here = ez.SequenceClassifier.from_preset(tmp_path)
    assert here.backbone.pooling == pooling
    found = here({"token_ids": ids, "padding_mask": mask})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padded", ["left", "right"])
def test_a_modernberts_outputs_padded_on_either_side(padded, tmp_path):
    there = made_there("ModernBert", "Model", {**SIZES, **MODERN})
    mask = np.arange(12) < np.array([[12], [7], [1]])
    mask = mask[:, ::-1] if padded == "left" else mask
    there.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = there.double()(
            input_ids=torch.tensor(LONG), attention_mask=torch.tensor(mask.astype("int64"))
        ).last_hidden_state.numpy()
    found = ez.Backbone.from_preset(tmp_path)({"token_ids": LONG, "padding_mask": mask})
    found = ops.convert_to_numpy(found["sequence_output"])
    np.testing.assert_allclose(found[mask], expected[mask], rtol=1e-5, atol=1e-5)


def test_a_modernberts_settings_are_read_there(tmp_path):
    sizes = {"num_layers": 4, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}
    settings = {"global_every": 2, "local_attention": 6, "pooling": "mean"}
    bases = {"global_rope_theta": 9.0, "local_rope_theta": 5.0}
    backbone = ez.ModernBertBackbone(40, **sizes, **settings, **bases)
    backbone.save_to_preset(tmp_path)
    there = transformers.AutoModel.from_pretrained(tmp_path)
    config = there.config
    assert config.layer_types == ["full_attention", "sliding_attention"] * 2
    assert {kind: bases["rope_theta"] for kind, bases in config.rope_parameters.items()} == {
        "full_attention": 9.0,
        "sliding_attention": 5.0,
    }
    assert (config.local_attention, config.classifier_pooling) == (6, "mean")
    with torch.inference_mode():
        expected = there.double()(input_ids=torch.tensor(LONG)).last_hidden_state
    found = backbone({"token_ids": LONG})["sequence_output"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_new_weights_are_as_spread_as_theirs():
    sizes = {
        **SIZES,
        "hidden_size": 64,
        "intermediate_size": 96,
        "vocab_size": 99,
        "num_labels": 64,
    }
    config = transformers.ModernBertConfig(**{**sizes, **MODERN})
    there = transformers.ModernBertForSequenceClassification(config)
    sizes = {"num_layers": 5, "num_heads": 2, "hidden_dim": 64, "intermediate_dim": 96}
    here = ez.SequenceClassifier(ez.ModernBertBackbone(99, **sizes), num_classes=64)
    block, theirs = here.backbone.blocks[1], there.model.layers[1]
    for ours, expected in [
        (
            here.backbone.embeddings.token_embedding.embeddings,
            there.model.embeddings.tok_embeddings,
        ),
        (block.attention.query_key_value_dense.kernel, theirs.attn.Wqkv),
        (block.attention.output_dense.kernel, theirs.attn.Wo),
        (block.intermediate_dense.kernel, theirs.mlp.Wi),
        (block.output_dense.kernel, theirs.mlp.Wo),
        (here.head.hidden.dense.kernel, there.head.dense),
        (here.head.output_dense.kernel, there.classifier),
    ]:
        stddev = float(expected.weight.std())
        np.testing.assert_allclose(ops.std(ours), stddev, rtol=0.06)


def test_fresh_sinusoids_are_theirs():
    there = made_there("DistilBert", "Model", {**DISTILBERT, "sinusoidal_pos_embds": True})
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}
    here = ez.DistilBertBackbone(40, **sizes, max_sequence_length=12, sinusoidal_positions=True)
    table = ops.convert_to_numpy(here.embeddings.position_embedding.embeddings)
    expected = there.embeddings.position_embeddings.weight.detach()
    np.testing.assert_allclose(table, expected, atol=1e-6)


def sizes_of(tokenizer) -> dict[str, int]:
    return {"vocab_size": tokenizer.vocabulary_size, "pad_token_id": tokenizer.pad_token_id}


def save(model, tokenizer, folder) -> None:
    model.save_pretrained(folder)
    for name, content in tokenizer.to_files().items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(
    "name, settings", [("DistilBert", DISTILBERT), ("Albert", SIZES), ("XLMRoberta", SIZES)]
)
def test_a_head_for_choices_is_not_taken_for_a_classifiers(tiny, name, settings, tmp_path, caplog):
    family = getattr(ez, f"{name}Backbone").family
    tokenizer = tiny.tokenizer(family)
    there = made_there(name, "ForMultipleChoice", {**settings, **sizes_of(tokenizer)})
    save(there, tokenizer, tmp_path)
    ez.SequenceClassifier.from_preset(tmp_path, num_classes=2)
    said = [record.getMessage() for record in caplog.records if record.name == "encoder_zoo"]
    other = f"the checkpoint has the head of {name}ForMultipleChoice"
    # XLM-RoBERTa's classifiers have no tensor of that name.
    assert ("the checkpoint has no head" if name == "XLMRoberta" else other) in said[0]
