"""Test masked embeddings, predicted contacts and the tags of residues in ESM-2."""

import functools
import json
import shutil

import numpy as np
import pytest
from keras import ops
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez

MASK = 29
SPECIAL = ["<cls>", "<pad>", "<eos>", "<unk>"]
RESIDUES = "LAGVSERTIDPKQNFYMHWCXBUZO.-"


@pytest.fixture(scope="module")
def backbone(tiny):
    return tiny.backbone(ez.EsmBackbone.family)


def numbers(values) -> np.ndarray:
    return ops.convert_to_numpy(values)


# -- masks ---------------------------------------------------------------------------------------


def test_masks_have_no_vector_and_the_others_are_longer_for_it(backbone):
    ids = np.array([[0, 7, MASK, 9, MASK, 2, 1, 1], [0, 7, 8, 9, 5, 6, 7, 2]])
    mask = np.array([[1] * 6 + [0] * 2, [1] * 8])
    found = numbers(backbone.embeddings(ids, padding_mask=mask))
    table = numbers(backbone.embeddings.token_embedding.embeddings)
    kept = 1 - 0.15 * 0.8
    expected = np.zeros_like(found)
    for row, (length, masks) in enumerate([(6, 2), (8, 0)]):
        for column in range(length):
            if ids[row, column] != MASK:
                expected[row, column] = table[ids[row, column]] * kept / (1 - masks / length)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_text_of_masks_alone_has_finite_outputs(backbone):
    inputs = {"token_ids": np.full((1, 4), MASK), "padding_mask": np.ones((1, 4), int)}
    assert np.isfinite(numbers(backbone(inputs)["sequence_output"])).all()


def test_masks_are_counted_in_each_text_of_a_row(backbone):
    texts = [[0, 7, MASK, 9, 2], [0, 8, 9, 2], [0, MASK, MASK, 5, 6, 2]]
    row = [*np.concatenate(texts), 1]
    inputs = {"token_ids": np.array([row]), "padding_mask": np.array([[1] * 15 + [0]])}
    inputs["text_starts"] = np.array([[0, 5, 9, 16]])
    together = numbers(backbone(inputs)["sequence_output"])[0]
    for start, text in zip((0, 5, 9), texts, strict=True):
        alone = numbers(backbone({"token_ids": np.array([text])})["sequence_output"])[0]
        np.testing.assert_allclose(together[start : start + len(text)], alone, atol=1e-5)


# -- contacts ------------------------------------------------------------------------------------


def test_contacts_are_a_regression_on_corrected_attention(backbone):
    ids = np.array([[0, 7, 8, 9, 5, 2], [0, 4, 6, 2, 1, 1]])
    inputs = {"token_ids": ids, "padding_mask": ids != 1}
    found = numbers(backbone.predict_contacts(inputs))
    attention = numbers(backbone.attention_probabilities(inputs))  # (B, N, H, L, L)
    weight, bias = numbers(backbone.contact_weight)[0], numbers(backbone.contact_bias)
    assert found.shape == (2, 4, 4)
    for row, length in enumerate([4, 2]):
        logits = np.full((length, length), bias[0])
        heads = attention[row].reshape(-1, 6, 6)[:, 1 : 1 + length, 1 : 1 + length]
        for factor, head in zip(weight, heads, strict=True):
            head = head + head.T
            logits += factor * (head - np.outer(head.sum(1), head.sum(0)) / head.sum())
        expected = 1 / (1 + np.exp(-logits))
        np.testing.assert_allclose(found[row, :length, :length], expected, atol=1e-5)


# -- checkpoints ---------------------------------------------------------------------------------


def as_released(stored, folder, **fields):
    """The names of the published files: frequencies for each block, and a table without use."""
    shutil.copytree(stored, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    tensors = load_file(folder / "model.safetensors")
    [name] = [name for name in tensors if "inv_freq" in name]
    rounded = tensors.pop(name).astype("float16").astype("float32") * 1.01
    for i in range(2):
        of_block = name.replace("*", str(i)).replace("esm.rotary", f"esm.encoder.layer.{i}")
        tensors[of_block] = rounded
    tensors["esm.embeddings.position_embeddings.weight"] = np.zeros((32, 8), "float32")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder, rounded


def test_the_frequencies_of_a_released_checkpoint_count_and_are_saved(golden, tmp_path, caplog):
    stored = golden("Esm_ForMaskedLM").folder
    folder, rounded = as_released(stored, tmp_path / "released")
    task = ez.MaskedLM.from_preset(folder, added_tokens=["J"])
    assert not caplog.records
    task.save_to_preset(tmp_path / "again")
    tensors = load_file(tmp_path / "again" / "model.safetensors")
    for found in (numbers(task.backbone.inverse_frequencies), *(
        values for name, values in tensors.items() if "inv_freq" in name
    )):  # fmt: skip
        np.testing.assert_array_equal(found, rounded)
    assert task.backbone.vocabulary_size == 34
    first = load_file(stored / "model.safetensors")
    name = "esm.contact_head.regression.weight"
    np.testing.assert_array_equal(tensors[name], first[name])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position_embedding_type", "absolute"),
        ("emb_layer_norm_before", True),
        ("is_folding_model", True),
        ("is_decoder", True),
        ("rope_theta", 5.0),
    ],
)
def test_an_esm_that_is_not_implemented_is_refused(golden, tmp_path, field, value):
    folder, _ = as_released(golden("Esm_ForMaskedLM").folder, tmp_path / "x", **{field: value})
    with pytest.raises(ValueError, match=field):
        ez.Backbone.from_preset(folder)


# -- residues ------------------------------------------------------------------------------------


@functools.cache  # its graph is traced once
def residue_tokenizer(**options):
    return ez.EsmTokenizer([*SPECIAL, *RESIDUES, "<null_1>", "<mask>"], **options)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("MKT", ["M", "K", "T"]),
        (" M K\nT ", ["M", "K", "T"]),
        ("MkkT", ["M", "<unk>", "T"]),
        ("M-.<null_1>K", ["M", "-", ".", "<null_1>", "K"]),
        ("<cls>M", ["<unk>", "M"]),  # a text cannot change the structure of its input
        ("", []),
    ],
)
def test_each_residue_is_a_token(text, tokens):
    tokenizer = residue_tokenizer()
    ids, starts, ends = (part.numpy().tolist() for part in tokenizer.tokenize_with_offsets(text))
    assert [tokenizer.id_to_token(i) for i in ids] == tokens
    spans = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    assert [token for token in tokens if token != "<unk>"] == [s for s in spans if s in tokens]
    assert tokenizer.graph.texts_to_ids([text]).to_list() == [ids]


def test_special_tokens_are_found_on_demand():
    tokenizer = residue_tokenizer(special_tokens_in_text=True)
    assert tokenizer.tokenize("M<mask>K").numpy().tolist() == [20, 32, 15]


def test_a_sequence_is_spelled_without_spaces():
    tokenizer = residue_tokenizer()
    assert tokenizer.detokenize(tokenizer.tokenize(["MKTV L"])).numpy().tolist() == [b"MKTVL"]


def test_a_mask_is_filled_without_spaces(golden):
    task = ez.MaskedLM.from_preset(golden("Esm_ForMaskedLM").folder)
    found = task.fill_mask("MK<mask>V", targets=["A", "G"])
    assert {answer["text"] for answer in found} == {"MKAV", "MKGV"}
    inputs = {"token_ids": np.array([[0, 20, 15, 32, 7, 2]]), "mask_positions": np.array([[3]])}
    logits = numbers(task(inputs))[0, 0]
    scores = {answer["token"]: answer["score"] for answer in found}
    ratio = np.exp(logits[5] - logits[6])  # of A and G
    assert scores["A"] / scores["G"] == pytest.approx(ratio, rel=1e-4)


def test_each_residue_of_a_text_has_a_label(golden, caplog):
    task = ez.TokenClassifier.from_preset(golden("Esm_ForTokenClassification").folder)
    inputs, labels, weights = task.preprocessor(["MKT VL"], [[(1, 3, "PER")]])
    assert inputs["token_ids"].numpy().tolist() == [[0, 20, 15, 11, 7, 4, 2]]
    assert labels.numpy().tolist() == [[0, 0, 1, 2, 0, 0, 0]]
    assert weights.numpy().tolist() == [[0, 1, 1, 1, 1, 1, 0]]
    assert not caplog.records  # the span does not cut a word
