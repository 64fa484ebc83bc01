"""Backbones and heads against transformers, over what configurations really vary."""

import numpy as np
import pytest
from keras import ops

import encoder_zoo as ez

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="needs the extra 'peers'")
transformers = pytest.importorskip("transformers", reason="needs the extra 'peers'")

FAMILIES = ["Bert", "Roberta", "Electra"]
BASE = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 52,
    "max_position_embeddings": 40,
    "initializer_range": 0.1,
}
VARIATIONS = [
    {},
    {"hidden_act": "gelu_new"},
    {"hidden_act": "relu"},
    {"layer_norm_eps": 1e-5},
    {"layer_norm_eps": 1e-3},
    {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.0},
    {"type_vocab_size": 1},
    {"type_vocab_size": 3},
    {"type_vocab_size": 4},
    {"hidden_size": 15, "num_attention_heads": 5, "intermediate_size": 7},
    {"num_hidden_layers": 1, "num_attention_heads": 1},
    {"num_attention_heads": 24},
    {"pad_token_id": 3},
]


def make(family: str, head: str, folder, **settings):
    """A randomly initialised model of transformers, saved."""
    config = getattr(transformers, f"{family}Config")(**{**BASE, **settings})
    torch.manual_seed(0)
    model = getattr(transformers, family + head)(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


def inputs(config) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    mask = np.arange(17) < np.array([[17], [9], [1], [16]])
    ids = np.where(mask, rng.integers(4, config.vocab_size, mask.shape), config.pad_token_id)
    segments = np.where(mask, rng.integers(0, config.type_vocab_size, mask.shape), 0)
    return {"token_ids": ids, "padding_mask": mask, "segment_ids": segments}


def ask(model, x):
    with torch.inference_mode():
        return model(
            input_ids=torch.tensor(x["token_ids"]),
            attention_mask=torch.tensor(x["padding_mask"].astype(int)),
            token_type_ids=torch.tensor(x["segment_ids"]),
        )


def check(model, folder, atol=1e-5):
    """Largest differences of both outputs at real tokens."""
    x = inputs(model.config)
    expected, outputs = ask(model, x), ez.Backbone.from_preset(folder)(x)
    real = x["padding_mask"]
    np.testing.assert_allclose(
        ops.convert_to_numpy(outputs["sequence_output"])[real],
        expected.last_hidden_state.numpy()[real],
        atol=atol,
    )
    if getattr(expected, "pooler_output", None) is None:
        assert "pooled_output" not in outputs
    else:
        np.testing.assert_allclose(
            ops.convert_to_numpy(outputs["pooled_output"]), expected.pooler_output, atol=atol
        )


@pytest.mark.parametrize("settings", VARIATIONS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_configurations(family, settings, tmp_path):
    check(make(family, "Model", tmp_path, **settings), tmp_path)


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_without_pooler(family, tmp_path):
    config = getattr(transformers, f"{family}Config")(**BASE)
    model = getattr(transformers, f"{family}Model")(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    check(model, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_tensors(family, dtype, tmp_path):
    model = make(family, "Model", tmp_path).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    check(model.to(torch.float32), tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", ["ForMaskedLM", "ForTokenClassification", "ForPreTraining"])
def test_with_the_familys_prefix(family, head, tmp_path):
    if family == "Roberta" and head == "ForPreTraining":
        pytest.skip("RoBERTa has no such class")
    model = make(family, head, tmp_path)
    base = getattr(model, family.lower())
    check(base, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head, cls", [("ForSequenceClassification", ez.SequenceClassifier)])
@pytest.mark.parametrize("settings", VARIATIONS[:4], ids=str)
def test_heads(family, head, cls, settings, tmp_path, minilm):
    model = make(family, head, tmp_path, **{"num_labels": 3, "vocab_size": 300, **settings})
    write_vocabulary(family, tmp_path)
    x = inputs(model.config)
    logits = ops.convert_to_numpy(cls.from_preset(tmp_path)(x))
    np.testing.assert_allclose(logits, ask(model, x).logits.numpy(), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", VARIATIONS[:4], ids=str)
def test_masked_lm_head(family, settings, tmp_path):
    model = make(family, "ForMaskedLM", tmp_path, **{"vocab_size": 300, **settings})
    write_vocabulary(family, tmp_path)
    x = inputs(model.config)
    logits = ops.convert_to_numpy(ez.MaskedLM.from_preset(tmp_path)(x))
    real = x["padding_mask"]
    np.testing.assert_allclose(logits[real], ask(model, x).logits.numpy()[real], atol=1e-4)


def write_vocabulary(family: str, folder) -> None:
    if family != "Roberta":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(295))]
        (folder / "vocab.txt").write_text("\n".join(words))
        return
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(["a b"], vocab_size=261, special_tokens=special)
    tokenizer.save_model(str(folder))


def test_a_real_pretrained_model(minilm):
    model = transformers.AutoModel.from_pretrained(minilm).eval()
    check(model, minilm)


def test_pairs_equal_transformers_own_encoding(minilm):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    first = ["A short one.", "A much longer first text " * 8, "equal words here", ""]
    second = ["And an answer of some length to be cut", "No.", "equal words here", "alone"]
    preprocessor = ez.SequenceClassifier.from_preset(
        minilm, num_classes=2, sequence_length=12
    ).preprocessor
    ours = preprocessor((first, second))
    theirs = tokenizer(
        first, second, max_length=12, truncation="longest_first", padding="max_length"
    )
    np.testing.assert_array_equal(ours["token_ids"], theirs["input_ids"])
    np.testing.assert_array_equal(ours["segment_ids"], theirs["token_type_ids"])
    np.testing.assert_array_equal(ours["padding_mask"], np.array(theirs["attention_mask"]) == 1)
