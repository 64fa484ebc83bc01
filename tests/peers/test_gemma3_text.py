"""EmbeddingGemma beside transformers and sentence-transformers."""

import json
import shutil

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
SIZES = {"vocab_size": 60, "hidden_size": 24, "intermediate_size": 20, "num_attention_heads": 3}
SIZES |= {"num_hidden_layers": 6, "num_key_value_heads": 1, "head_dim": 8}
SIZES |= {"use_bidirectional_attention": True, "query_pre_attn_scalar": 8}
TEXTS = ["the cat sat on the mat", "was the film good?", "é 漢字", "the dog ran " * 30]
PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}


@pytest.mark.parametrize(("window", "length"), [(6, 9), (6, 700), (512, 1500)])
def test_hidden_states_are_theirs_beyond_the_window(window, length, tmp_path):
    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(
        **SIZES, sliding_window=window, max_position_embeddings=2048, initializer_range=0.1
    )
    there = transformers.Gemma3TextModel(config).eval()
    for parameter in there.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    there.save_pretrained(tmp_path / "theirs")
    ids = np.random.default_rng(0).integers(4, 60, (3, length))
    mask = np.arange(length) < np.array([[length], [length * 2 // 3], [1]])
    inputs = torch.tensor(ids), torch.tensor(mask.astype("int64"))
    with torch.inference_mode():
        expected = there.double()(*inputs, output_hidden_states=True).hidden_states
    backbone = ez.Backbone.from_preset(tmp_path / "theirs")
    found = backbone({"token_ids": ids, "padding_mask": mask}, return_hidden_states=True)
    for ours, theirs in zip(found["hidden_states"], expected, strict=True):
        np.testing.assert_allclose(
            ops.convert_to_numpy(ours)[mask], theirs.numpy()[mask], atol=2e-5, rtol=2e-5
        )
    backbone.save_to_preset(tmp_path / "ours")
    again, report = transformers.AutoModel.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert type(again) is transformers.Gemma3TextModel and not any(report.values()), report
    assert again.config.layer_types == config.layer_types
    assert again.config.sliding_window == config.sliding_window
    with torch.inference_mode():
        back = again.eval()(*inputs).last_hidden_state
        np.testing.assert_array_equal(back, there.float()(*inputs).last_hidden_state)


def embedding_gemma(folder):
    """Write a small folder with the modules and prompts of google/embeddinggemma-300m."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    encoder = folder.with_name("encoder")
    shutil.copytree(CHECKPOINTS / "Gemma3Text_Model", encoder)
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
    names |= {"unk_token": "<unk>", "add_bos_token": True, "add_eos_token": True}
    settings = {"tokenizer_class": "GemmaTokenizer", **names}
    (encoder / "tokenizer_config.json").write_text(json.dumps(settings))
    identity = {"bias": False, "activation_function": torch.nn.Identity()}
    modules = [
        Transformer(str(encoder), max_seq_length=32),
        Pooling(8, "mean", include_prompt=True),
        Dense(8, 32, **identity),
        Dense(32, 8, **identity),
        Normalize(),
    ]
    model = SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS).eval()
    model.save(str(folder))
    return model


def test_both_dense_layers_and_the_prompts_go_both_ways(tmp_path):
    from sentence_transformers import SentenceTransformer

    theirs = embedding_gemma(tmp_path / "theirs")
    ours = ez.TextEmbedder.from_preset(tmp_path / "theirs")
    assert [layer.units for layer in ours.dense_layers] == [32, 8]
    assert {name: ours.preprocessor.prompts[name] for name in PROMPTS} == PROMPTS
    ours.save_to_preset(tmp_path / "ours")
    again = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    for name in (None, *PROMPTS):
        options = {} if name is None else {"prompt_name": name}
        expected = theirs.encode(TEXTS, **options)
        np.testing.assert_allclose(ours.embed(TEXTS, prompt=name), expected, atol=2e-5)
        np.testing.assert_allclose(again.encode(TEXTS, **options), expected, atol=2e-5)
    short = theirs.encode(TEXTS, truncate_dim=4, normalize_embeddings=True)
    np.testing.assert_allclose(ours.embed(TEXTS, dim=4), short, atol=2e-5)
