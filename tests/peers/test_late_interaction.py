"""LateInteraction beside sentence-transformers' MultiVectorEncoder: folders, both ways, losses."""

import pathlib
import shutil
import string

import numpy as np
import pytest
from paths import CHECKPOINTS, GOLDEN

import encoder_zoo as ez
from encoder_zoo.tasks.losses import max_sim as losses

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
FAMILIES = ["Bert", "Roberta", "XLMRoberta", "DistilBert", "ModernBert", "Albert"]
FAMILIES += ["Electra", "Camembert", "MPNet", "NomicBert", "Gte", "EuroBert", "DebertaV2"]


def encoder(family: str, tmp_path: pathlib.Path) -> pathlib.Path:
    """A stored checkpoint, whose tokenizer.json adds the special tokens."""
    folder = shutil.copytree(CHECKPOINTS / f"{family}_Model", tmp_path / "encoder")
    if family == "ModernBert":
        from tokenizers import Tokenizer
        from tokenizers.processors import TemplateProcessing

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
        )
        tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def their_model(folder, expansion, markers=True, **arguments):
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(0)
    transformer = Transformer(str(folder), document_length=20, query_expansion=expansion)
    if markers:
        tokens = {"additional_special_tokens": ["[Q] ", "[D] "]}
        transformer.tokenizer.add_special_tokens(tokens)
        transformer.model.resize_token_embeddings(len(transformer.tokenizer))
        arguments = {"prompts": {"query": "[Q] ", "document": "[D] "}, **arguments}
    width = transformer.get_embedding_dimension()
    options = {"activation_function": torch.nn.Identity(), "module_input_name": "token_embeddings"}
    dense = Dense(width, 5, bias=False, **options)
    mask = MultiVectorMask(list(string.punctuation))
    modules = [transformer, dense, mask, Normalize(module_input_name="token_embeddings")]
    return MultiVectorEncoder(modules=modules, device="cpu", **arguments).eval()


def assert_same(theirs, ours, atol=1e-5):
    for prompt, encode in (("query", theirs.encode_query), ("document", theirs.encode_document)):
        expected = encode(TEXTS, convert_to_numpy=True)
        for found, right in zip(ours.embed(TEXTS, prompt), expected, strict=True):
            np.testing.assert_allclose(found, right, atol=atol)


@pytest.mark.parametrize("attend", [False, True], ids=["unattended", "attended"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_both_ways(family, attend, tmp_path):
    from sentence_transformers import MultiVectorEncoder

    # Farther from the text than the tiny ModernBert's window, tokens read padding there.
    length = 6 if family == "ModernBert" else 12
    expansion = {"strategy": "fixed", "attend": attend, "length": length}
    theirs = their_model(encoder(family, tmp_path), expansion)
    theirs.save(str(tmp_path / "theirs"))
    ours = ez.LateInteraction.from_preset(tmp_path / "theirs")
    assert ours.preprocessor.query_marker == "[Q] "
    assert_same(theirs, ours)
    ours.save_to_preset(tmp_path / "ours")
    again = MultiVectorEncoder(str(tmp_path / "ours"), device="cpu")
    assert_same(again, ours)


@pytest.mark.parametrize(
    "expansion",
    [None, {"strategy": "min", "attend": False, "length": 9}],
    ids=["none", "min"],
)
def test_other_expansions_and_prompts(expansion, tmp_path):
    from sentence_transformers import MultiVectorEncoder

    prompts = {"query": "query : ", "document": "a film : "}
    folder = encoder("Bert", tmp_path)
    theirs = their_model(folder, expansion, markers=False, prompts=prompts)
    theirs.save(str(tmp_path / "theirs"))
    ours = ez.LateInteraction.from_preset(tmp_path / "theirs")
    assert_same(theirs, ours)
    ours.save_to_preset(tmp_path / "ours")
    assert_same(MultiVectorEncoder(str(tmp_path / "ours"), device="cpu"), ours)
    assert_same(theirs, ez.LateInteraction.from_preset(tmp_path / "ours"))


@pytest.mark.parametrize("form", ["stanford", "pylate", "sentence_transformers"])
def test_stored_folders_open_there_as_here(form, tmp_path):
    from sentence_transformers import MultiVectorEncoder

    folder = GOLDEN / "late_interaction" / form
    theirs = MultiVectorEncoder(str(folder), device="cpu")
    ours = ez.LateInteraction.from_preset(folder)
    assert_same(theirs, ours)
    expected = theirs.similarity(theirs.encode_query(TEXTS), theirs.encode_document(TEXTS)).numpy()
    np.testing.assert_allclose(ours.similarity(TEXTS, TEXTS), expected, rtol=1e-4)
    ours.save_to_preset(tmp_path / "ours")
    assert_same(MultiVectorEncoder(str(tmp_path / "ours"), device="cpu"), ours)


def vectors(rows, texts, length, rng):
    x = rng.normal(size=(rows, texts, length, 4)).astype("float32")
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    lengths = rng.integers(1, length + 1, (rows, texts))
    return x * (np.arange(length) < lengths[..., None])[..., None], lengths


def test_losses_and_gradients_are_theirs():
    import tensorflow as tf
    import torch
    from sentence_transformers.multi_vector_encoder.scoring import colbert_kd_scores, colbert_scores

    rng = np.random.default_rng(0)
    x, lengths = vectors(5, 4, 6, rng)
    teacher = rng.normal(size=(5, 3)).astype("float32")
    numbers = np.arange(20).reshape(5, 4)
    mask = torch.tensor(np.arange(6) < lengths[..., None])
    theirs = torch.tensor(x, requires_grad=True)
    parts = (theirs[:, 0], theirs[:, 1:])
    masks = {"queries_mask": mask[:, 0], "documents_mask": mask[:, 1:]}
    scores = 0.7 * colbert_scores(*parts, **masks)
    contrastive = torch.nn.functional.cross_entropy(scores, torch.arange(5) * 3)
    student = torch.log_softmax(colbert_kd_scores(*parts, **masks) / 2, -1)
    wanted = torch.log_softmax(torch.tensor(teacher) / 2, -1)
    kl = 4 * torch.nn.functional.kl_div(student, wanted, reduction="batchmean", log_target=True)
    ours = tf.constant(x)
    cases = [
        (losses.MaxSimInfoNCE(scale=0.7), numbers, contrastive),
        (losses.MaxSimDistillation(temperature=2.0, min_max=False), teacher, kl),
    ]
    for loss, y_true, expected in cases:
        with tf.GradientTape() as tape:
            tape.watch(ours)
            found = loss(tf.constant(y_true), ours)
        assert float(found) == pytest.approx(float(expected.detach()), rel=1e-5)
        [right] = torch.autograd.grad(expected, theirs, retain_graph=True)
        present = (np.arange(6) < lengths[..., None])[..., None]
        gradient = tape.gradient(found, ours).numpy() * present
        np.testing.assert_allclose(gradient, right.numpy() * present, atol=1e-6)
