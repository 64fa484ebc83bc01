"""TextEmbedder beside sentence-transformers: layouts, poolings, families, both ways."""

import importlib.util
import itertools
import json
import pathlib
import shutil

import numpy as np
import pytest
from paths import CHECKPOINTS, GOLDEN

import encoder_zoo as ez

pytestmark = [
    pytest.mark.peers,
    pytest.mark.eager,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TEXTS = [
    "the cat sat on the mat.",
    "a",
    "Good film! It was not bad, it was very good",
    "the dog ran under the mat and the cat ran under the dog, it was very bad " * 3,
    "  dogs  and   cats ",
]
FAMILIES = ["Bert", "Roberta", "XLMRoberta", "DistilBert", "ModernBert", "DebertaV2", "Albert"]
FAMILIES += ["Electra", "Camembert", "MPNet", "NomicBert", "Gte", "EuroBert", "Gemma3Text"]
POOLINGS = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
POOLINGS += [("mean", "cls"), ("cls", "max", "weightedmean")]
PROMPT = "query : "


def encoder(family: str, tmp_path: pathlib.Path, head: str = "Model") -> pathlib.Path:
    """A stored checkpoint, whose tokenizer.json adds the special tokens."""
    folder = shutil.copytree(CHECKPOINTS / f"{family}_{head}", tmp_path / "encoder")
    path = folder / "tokenizer.json"
    if family == "ModernBert":
        from tokenizers import Tokenizer
        from tokenizers.processors import TemplateProcessing

        tokenizer = Tokenizer.from_file(str(path))
        ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
        )
        tokenizer.save(str(path))
    return folder


def st_model(folder, pooling, after=(), include_prompt=True, **arguments):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    encoder = Transformer(str(folder), max_seq_length=20)
    pooled = Pooling(8, pooling, include_prompt=include_prompt)
    model = SentenceTransformer(modules=[encoder, pooled, *after], device="cpu", **arguments)
    return model.eval()


def dense(*arguments, **options):
    from sentence_transformers.base.modules.dense import Dense

    return Dense(*arguments, **options)


def normalize():
    from sentence_transformers.base.modules.normalize import Normalize

    return Normalize()


def old_layout(folder: pathlib.Path) -> None:
    """Rewrite a folder of version 6 as version 2 wrote it."""
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].split('.')[-1]}"
    (folder / "modules.json").write_text(json.dumps(modules))
    path = folder / "1_Pooling" / "config.json"
    config = json.loads(path.read_text())
    modes = config["pooling_mode"]
    modes = [modes] if isinstance(modes, str) else modes
    own = {"lasttoken": "lasttoken", "cls": "cls_token"}
    own |= {"mean_sqrt_len_tokens": "mean_sqrt_len_tokens"}
    flags = {f"pooling_mode_{own.get(mode, f'{mode}_tokens')}": True for mode in modes}
    config = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": False, **flags}
    path.write_text(json.dumps(config))
    length = {"max_seq_length": 20, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(length))


def assert_same(theirs, ours, prompt=None, atol=1e-5) -> None:
    options = {} if prompt is None else {"prompt": prompt}
    expected = theirs.encode(TEXTS, **options)
    found = ours.embed(TEXTS, **options)
    if theirs.truncate_dim and ours.normalize:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_pooling_of_every_family(family, pooling, tmp_path):
    model = st_model(encoder(family, tmp_path), pooling, [normalize()])
    model.save(str(tmp_path / "theirs"))
    ours = ez.TextEmbedder.from_preset(tmp_path / "theirs")
    assert_same(model, ours)
    assert_same(model, ours, PROMPT)
    if pooling != ("mean", "cls"):  # flags have an order of their own
        old_layout(tmp_path / "theirs")
        assert_same(model, ez.TextEmbedder.from_preset(tmp_path / "theirs"))


@pytest.mark.parametrize("family", FAMILIES)
def test_ours_opens_there(family, tmp_path):
    from sentence_transformers import SentenceTransformer

    ours = ez.TextEmbedder.from_preset(
        encoder(family, tmp_path),
        pooling=["cls", "mean"],
        dense=[{"units": 6, "activation": "gelu", "residual": True}, {"units": 6}],
        max_length=20,
        prompts={"query": PROMPT},
        dim=5,
    )
    ours.save_to_preset(tmp_path / "ours")
    theirs = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert_same(theirs, ours)
    assert theirs.prompts["query"] == PROMPT and theirs.max_seq_length == 20
    assert theirs.similarity_fn_name == "cosine"


@pytest.mark.parametrize(
    ("bias", "residual", "normalized"),
    [(True, False, True), (False, True, False), (True, True, True)],
)
@pytest.mark.parametrize("activation", ["Tanh", "Identity", "GELU", "ReLU", "Sigmoid", "SiLU"])
def test_dense_layers(activation, bias, residual, normalized, tmp_path):
    import torch

    torch.manual_seed(0)
    function = getattr(torch.nn, activation)()
    layers = [
        dense(16, 6, bias=bias, activation_function=function, use_residual=residual),
        dense(6, 6, bias=bias, activation_function=function, use_residual=residual),
    ]
    after = [*layers, normalize()] if normalized else layers
    model = st_model(CHECKPOINTS / "Bert_Model", ("max", "mean"), after)
    model.save(str(tmp_path / "theirs"))
    ours = ez.TextEmbedder.from_preset(tmp_path / "theirs")
    assert_same(model, ours)
    ours.save_to_preset(tmp_path / "ours")
    from sentence_transformers import SentenceTransformer

    assert_same(SentenceTransformer(str(tmp_path / "ours"), device="cpu"), ours)


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_prompts_that_are_not_pooled(pooling, tmp_path):
    prompts = {"query": PROMPT, "document": "a film : "}
    arguments = {"prompts": prompts, "default_prompt_name": "document"}
    model = st_model(CHECKPOINTS / "Bert_Model", pooling, include_prompt=False, **arguments)
    model.save(str(tmp_path / "theirs"))
    ours = ez.TextEmbedder.from_preset(tmp_path / "theirs")
    assert_same(model, ours)
    assert_same(model, ours, PROMPT)
    ours.save_to_preset(tmp_path / "ours")
    np.testing.assert_array_equal(
        ez.TextEmbedder.from_preset(tmp_path / "ours").embed(TEXTS), ours.embed(TEXTS)
    )
    for name, encode in (("query", model.encode_query), ("document", model.encode_document)):
        np.testing.assert_allclose(ours.embed(TEXTS, prompt=name), encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_truncated_vectors_and_similarities(similarity, tmp_path):
    arguments = {"truncate_dim": 5, "similarity_fn_name": similarity}
    model = st_model(CHECKPOINTS / "Bert_Model", "mean", **arguments)
    model.save(str(tmp_path / "theirs"))
    ours = ez.TextEmbedder.from_preset(tmp_path / "theirs")
    assert_same(model, ours)
    expected = model.similarity(model.encode(TEXTS[:2]), model.encode(TEXTS[2:])).numpy()
    np.testing.assert_allclose(ours.similarity(TEXTS[:2], TEXTS[2:]), expected, atol=2e-5)


def sre_folder() -> pathlib.Path:
    found = importlib.util.find_spec("sre_embedding_model")
    if found is None:
        pytest.skip("sre-embedding-model is not installed")
    return pathlib.Path(found.submodule_search_locations[0]) / "model_weights"


@pytest.mark.parametrize("name", ["minilm", "sre"])
def test_real_models_both_ways(name, minilm, tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = minilm if name == "minilm" else sre_folder()
    texts = ["A text.", "Naïve café — déjà vu?", "漢字 と かな", "word " * 700, "a\tb\nc", "UPPER"]
    theirs = SentenceTransformer(str(folder), device="cpu")
    ours = ez.TextEmbedder.from_preset(folder)
    np.testing.assert_allclose(ours.embed(texts), theirs.encode(texts), atol=1e-5)
    ours.save_to_preset(tmp_path / "ours")
    again = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(again.encode(texts), theirs.encode(texts), atol=1e-6)
    theirs.save(str(tmp_path / "theirs"))
    np.testing.assert_array_equal(
        ez.TextEmbedder.from_preset(tmp_path / "theirs").embed(texts), ours.embed(texts)
    )


def versions() -> list[str]:
    return sorted(path.name for path in (GOLDEN / "sentence_transformers").iterdir())


@pytest.mark.parametrize("version", versions())
def test_stored_folders_saved_by_us_open_there(version, tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = GOLDEN / "sentence_transformers" / version
    ez.TextEmbedder.from_preset(folder).save_to_preset(tmp_path / "ours")
    stored = np.load(folder / "expected.npz")
    again = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(again.encode(stored["texts"]), stored["vectors"], atol=1e-5)


@pytest.mark.parametrize("family", ["Bert", "Roberta", "XLMRoberta", "ModernBert"])
@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
def test_cross_encoders_of_the_newest_layout(family, activation, tmp_path):
    import torch
    from sentence_transformers import CrossEncoder

    folder = encoder(family, tmp_path, "ForSequenceClassification")
    model = CrossEncoder(
        str(folder),
        num_labels=1,
        device="cpu",
        activation_fn=getattr(torch.nn, activation)(),
        model_kwargs={"ignore_mismatched_sizes": True},
    )
    model.max_seq_length = 20
    model.save_pretrained(str(tmp_path / "theirs"))
    ours = ez.Reranker.from_preset(tmp_path / "theirs")
    pairs = list(itertools.permutations(TEXTS, 2))
    first, second = map(list, zip(*pairs, strict=True))
    expected = model.predict(pairs)
    np.testing.assert_allclose(ours.score((first, second)), expected, atol=1e-5)
    ours.save_to_preset(tmp_path / "ours")
    again = CrossEncoder(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(again.predict(pairs), expected, atol=1e-5)
    shutil.rmtree(tmp_path / "ours")
