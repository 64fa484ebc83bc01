"""SparseEncoder beside sentence-transformers: vectors of every family, both ways, and its loss."""

import pathlib
import shutil

import numpy as np
import pytest
from paths import CHECKPOINTS

import encoder_zoo as ez

pytestmark = [
    pytest.mark.peers,
    pytest.mark.eager,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
]
# Those with a class for AutoModelForMaskedLM: not XLNet; the code of Gte is not in transformers.
FAMILIES = ["Bert", "Roberta", "XLMRoberta", "DistilBert", "ModernBert", "DebertaV2", "Albert"]
FAMILIES += ["Electra", "Camembert", "MPNet", "NomicBert", "EuroBert"]
PROMPT = "query : "
TEXTS = [
    "the cat sat on the mat.",
    "a",
    "Good film! It was not bad, it was very good",
    "the dog ran under the mat and the cat ran under the dog, it was very bad " * 3,
    "  dogs  and   cats ",
]


def model_folder(family: str, tmp_path: pathlib.Path) -> pathlib.Path:
    """A stored masked language model, whose tokenizer.json adds the special tokens."""
    folder = shutil.copytree(CHECKPOINTS / f"{family}_ForMaskedLM", tmp_path / "model")
    if family == "ModernBert":
        from tokenizers import Tokenizer
        from tokenizers.processors import TemplateProcessing

        path = str(folder / "tokenizer.json")
        tokenizer = Tokenizer.from_file(path)
        ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
        )
        tokenizer.save(path)
    return folder


def st_model(folder, pooling="max", activation="relu", **arguments):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    first = Transformer(str(folder), max_seq_length=20, transformer_task="fill-mask")
    modules = [first, SpladePooling(pooling, activation)]
    return SparseEncoder(modules=modules, device="cpu", **arguments).eval()


def assert_same(theirs, ours, prompt=None) -> None:
    options = {} if prompt is None else {"prompt": prompt}
    expected = theirs.encode(TEXTS, convert_to_sparse_tensor=False, **options).numpy()
    np.testing.assert_allclose(ours.embed(TEXTS, prompt).toarray(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("pooling", "activation"), [("max", "relu"), ("sum", "log1p_relu")])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_both_ways(family, pooling, activation, tmp_path):
    from sentence_transformers import SparseEncoder

    model = st_model(model_folder(family, tmp_path), pooling, activation)
    model.save(str(tmp_path / "theirs"))
    ours = ez.SparseEncoder.from_preset(tmp_path / "theirs")
    assert_same(model, ours)
    assert_same(model, ours, PROMPT)
    ours.save_to_preset(tmp_path / "ours")
    assert_same(SparseEncoder(str(tmp_path / "ours"), device="cpu"), ours)


def test_settings_open_there(tmp_path):
    from sentence_transformers import SparseEncoder

    ours = ez.SparseEncoder.from_preset(
        model_folder("Bert", tmp_path),
        max_terms=4,
        max_length=20,
        prompts={"query": PROMPT},
        similarity_function="cosine",
    )
    ours.save_to_preset(tmp_path / "ours")
    theirs = SparseEncoder(str(tmp_path / "ours"), device="cpu")
    assert theirs.prompts["query"] == PROMPT and theirs.max_seq_length == 20
    assert (theirs.max_active_dims, theirs.similarity_fn_name) == (4, "cosine")
    assert_same(theirs, ours)
    vectors = theirs.encode(TEXTS)
    expected = theirs.similarity(vectors, vectors).numpy()
    np.testing.assert_allclose(ours.similarity(TEXTS, TEXTS), expected, atol=1e-5)
    decoded = theirs.decode(vectors, top_k=3)
    for one, other in zip(decoded, ours.top_terms(TEXTS, 3), strict=True):
        assert dict(one).keys() == dict(other).keys()


@pytest.mark.parametrize("teacher", [False, True])
def test_the_loss(teacher, tmp_path):
    import torch
    from sentence_transformers.sparse_encoder import losses

    model = st_model(model_folder("Bert", tmp_path))
    rng = np.random.default_rng(0)
    y_pred = np.maximum(rng.normal(size=(5, 3, 9)), 0).astype("float32")
    scores = rng.normal(size=(5, 2)).astype("float32")
    inner = losses.SparseMarginMSELoss if teacher else losses.SparseMultipleNegativesRankingLoss
    theirs = losses.SpladeLoss(
        model, inner(model), document_regularizer_weight=0.3, query_regularizer_weight=0.2
    )
    columns = [torch.tensor(column) for column in y_pred.swapaxes(0, 1)]
    labels = torch.tensor(scores) if teacher else None
    base = theirs.loss.compute_loss_from_embeddings(columns, labels)
    expected = (
        base
        + 0.3 * theirs.document_regularizer.compute_loss_from_embeddings(torch.cat(columns[1:]))
        + 0.2 * theirs.query_regularizer.compute_loss_from_embeddings(columns[0])
    )
    loss = ez.losses.SPLADE(ez.losses.MarginMSE() if teacher else None, 0.2, 0.3)
    y_true = scores if teacher else np.arange(15).reshape(5, 3)
    assert float(loss(y_true, y_pred)) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("place", ["folders", "root"])
@pytest.mark.parametrize("queries", ["frozen", "learned", "second"])
def test_routers_both_ways(queries, place, tmp_path):
    """Also with the encoder of documents in the root, as OpenSearch has it."""
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

    folder = str(model_folder("Bert", tmp_path))
    first = Transformer(folder, max_seq_length=20, transformer_task="fill-mask")
    if queries == "second":
        other = Transformer(folder, max_seq_length=8, transformer_task="fill-mask")
        of_queries = [other, SpladePooling("sum")]
    else:
        weights = torch.randn(len(first.tokenizer.get_vocab()))
        frozen = queries == "frozen"
        of_queries = [SparseStaticEmbedding(first.tokenizer, weights, frozen=frozen)]
    router = Router.for_query_document(of_queries, [first, SpladePooling("max", "log1p_relu")])
    prompts = {"query": PROMPT, "document": "a "}
    model = SparseEncoder(modules=[router], device="cpu", prompts=prompts).eval()
    model.save(str(tmp_path / "theirs"))
    if place == "root":
        inner = tmp_path / "theirs" / "document_0_Transformer"
        for path in inner.iterdir():
            shutil.move(path, tmp_path / "theirs" / path.name)
        config = tmp_path / "theirs" / "router_config.json"
        config.write_text(config.read_text().replace('"document_0_Transformer"', '""'))
    ours = ez.SparseEncoder.from_preset(tmp_path / "theirs")
    ours.save_to_preset(tmp_path / "ours")
    again = SparseEncoder(str(tmp_path / "ours"), device="cpu")
    for one in (model, SparseEncoder(str(tmp_path / "theirs"), device="cpu"), again):
        for role in ("query", "document"):
            encode = getattr(one, f"encode_{role}")
            expected = encode(TEXTS, convert_to_sparse_tensor=False).numpy()
            found = ours.embed(TEXTS, role).toarray()
            np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    if queries != "second":
        assert ours.query_encoder.trainable == (queries == "learned")
        [table] = again[0].sub_modules["query"]
        assert table.frozen == (queries == "frozen")
