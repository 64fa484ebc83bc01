"""Checkpoints that hold a tied weight once, under any of its names, as safetensors writes them."""

import json

import numpy as np
import pytest
import safetensors.numpy

import encoder_zoo as ez
from encoder_zoo.encoders import FAMILIES, get_family


def rename_in_file(folder, old: str, new: str) -> None:
    """Write a tensor under another name, as `safetensors.torch.save_model` may choose it."""
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors[new] = tensors.pop(old)
    (folder / "encoder_zoo.json").unlink()  # it has the checksum of the first file
    safetensors.numpy.save_file(tensors, path)


def stored_name(folder, name: str) -> str | None:
    names = safetensors.numpy.load_file(folder / "model.safetensors")
    return next((n for n in names if n == name or n.endswith(f".{name}")), None)


@pytest.mark.slow(except_for="^(bert|bart)-")
@pytest.mark.parametrize(
    ("family", "name"), [(f, n) for f in FAMILIES for n in get_family(f).tied], ids=str
)
def test_a_masked_lm_opens_with_the_weight_under_either_name(tiny, tmp_path, family, name):
    task = tiny.task(get_family(family), "MaskedLM")
    task.save_to_preset(tmp_path)
    twin = stored_name(tmp_path, get_family(family).tied[name])
    if twin is None:
        pytest.skip("the twin belongs to a head that a MaskedLM does not have")
    rename_in_file(tmp_path, twin, name)
    opened = ez.MaskedLM.from_preset(tmp_path)
    for ours, theirs in zip(task.get_weights(), opened.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_an_output_that_is_not_tied_is_no_embedding(tiny, tmp_path):
    family = get_family("bert")
    tiny.task(family, "MaskedLM").save_to_preset(tmp_path)
    twin = stored_name(tmp_path, family.tied["cls.predictions.decoder.weight"])
    rename_in_file(tmp_path, twin, "cls.predictions.decoder.weight")
    config = tmp_path / "config.json"
    settings = {**json.loads(config.read_text()), "tie_word_embeddings": False}
    config.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="word_embeddings"):
        ez.MaskedLM.from_preset(tmp_path)
