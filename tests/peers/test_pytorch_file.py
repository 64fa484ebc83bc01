"""State dicts of transformers' models, saved by torch in both formats and read here."""

import pytest

from encoder_zoo.presets.files.pytorch_file import PyTorchFile

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "embedding_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "stream"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "albert", "deberta-v2"])
def test_models_with_tied_weights(tmp_path, name, dtype, is_zip):
    config = transformers.AutoConfig.for_model(name, **SIZES)
    model = transformers.AutoModelForMaskedLM.from_config(config).to(getattr(torch, dtype))
    state = model.state_dict()
    path = tmp_path / "pytorch_model.bin"
    torch.save(state, path, _use_new_zipfile_serialization=is_zip)
    with open(path, "rb") as file:
        tensors = PyTorchFile(file)
        assert list(tensors.shapes) == list(state)
        assert len({value.data_ptr() for value in state.values()}) < len(state)  # some are tied
        for key, expected in state.items():
            found = tensors.read(key)
            assert (found.dtype.name, found.shape) == (dtype, tuple(expected.shape))
            assert (found.astype("float64") == expected.double().numpy()).all()
