"""Low-rank updates alone: saved and opened again, and what is refused before anything is made."""

import json

import numpy as np
import pytest
from keras import ops
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez

TASK = "Bert_ForSequenceClassification"


@pytest.fixture
def saved(golden, tmp_path):
    """Adapters in a folder, the model that they are of, and a new one of the same checkpoint."""
    checkpoint = golden(TASK)
    model = ez.SequenceClassifier.from_preset(checkpoint.folder)
    model.enable_lora(2, layers=["query", "output"], alpha=6)
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape))
    model.save_adapters(tmp_path)
    fresh = ez.SequenceClassifier.from_preset(checkpoint.folder)
    return tmp_path, fresh, ops.convert_to_numpy(model(checkpoint.inputs)), checkpoint.inputs


@pytest.mark.slow
def test_they_come_back(saved):
    folder, fresh, expected, inputs = saved
    fresh.load_adapters(folder)
    np.testing.assert_array_equal(ops.convert_to_numpy(fresh(inputs)), expected)


@pytest.mark.slow(only="^(0|2$)")
@pytest.mark.parametrize("rank", [0, -1, 2.0, "2", None, True, 2**60, [2]])
def test_a_rank_that_is_none(saved, rank):
    folder, fresh, *_ = saved
    rewrite(folder, r=rank)
    with pytest.raises(ValueError, match=r"adapter_config.json: r is "):
        fresh.load_adapters(folder)
    assert_untouched(fresh)


def test_a_rank_that_the_arrays_do_not_have(saved):
    folder, fresh, *_ = saved
    rewrite(folder, r=2**30)
    with pytest.raises(ValueError, match=r"lora_A.weight \(.*\(2, \d+\).*\(1073741824,"):
        fresh.load_adapters(folder)
    assert_untouched(fresh)


@pytest.mark.slow(except_for="^6")
@pytest.mark.parametrize("alpha", ["6", float("inf"), 0, [6]])
def test_an_alpha_that_is_none(saved, alpha):
    folder, fresh, *_ = saved
    rewrite(folder, lora_alpha=alpha)
    with pytest.raises(ValueError):
        fresh.load_adapters(folder)
    assert_untouched(fresh)


@pytest.mark.slow(except_for=r"^<lambda>-int32$")
@pytest.mark.parametrize(
    "change, message",
    [
        (lambda arrays: {**arrays, "x" * 10**5: np.ones(2, "float32")}, r"\+ 'xxx"),
        (
            lambda arrays: {n: a for n, a in arrays.items() if "0.output.dense.lora_B" not in n},
            r"0.output.dense.lora_B",
        ),
        (lambda arrays: {n: a * np.nan for n, a in arrays.items()}, "NaN"),
        (lambda arrays: {n: a.astype("int32") for n, a in arrays.items()}, "int32"),
        (lambda arrays: {n: a[..., :1].copy() for n, a in arrays.items()}, r"lora_A.*1\)"),
    ],
)
def test_arrays_that_do_not_fit(saved, change, message):
    folder, fresh, *_ = saved
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)
    with pytest.raises(ValueError, match=message) as error:
        fresh.load_adapters(folder)
    assert len(str(error.value)) < 3000
    assert_untouched(fresh)


def rewrite(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def assert_untouched(model):
    """No layer has an update, and all is trained as before."""
    assert not any(block.attention.query_dense.lora_enabled for block in model.backbone.blocks)
    assert not model.non_trainable_weights
