"""Losses of embeddings beside sentence-transformers'."""

import numpy as np
import pytest
import tensorflow as tf

from encoder_zoo.tasks import losses

pytestmark = pytest.mark.peers

B, D = 7, 8
RNG = np.random.default_rng(0)
NUMBERS = np.arange(3 * B).reshape(B, 3)
SCORES = RNG.uniform(0, 1, (B, 3)).astype("float32")
BINARY = np.array([1, 0, 0, 1, 1, 0, 1], "float32")


class Model:
    """Stands for a model of sentence-transformers, whose losses are given vectors here."""

    def __init__(self, vectors):
        self.vectors = vectors

    def __call__(self, features, *args, **kwargs):
        return {"sentence_embedding": features["vectors"]}


def texts(count, seed=1):
    return np.random.default_rng(seed).normal(size=(B, count, D)).astype("float32")


def theirs(loss, x, labels):
    """Return the value of their loss and its gradient by the vectors (B, 1 + K, D)."""
    import torch

    x = torch.tensor(x, requires_grad=True)
    columns = [x[:, i] for i in range(x.shape[1])]
    labels = None if labels is None else torch.tensor(labels)
    value = loss([{"vectors": column} for column in columns], labels)
    value.backward()
    return float(value.detach()), x.grad.numpy()


def ours(loss, x, labels):
    x = tf.Variable(x)
    with tf.GradientTape() as tape:
        value = loss(labels, x)
    return float(value), tape.gradient(value, x).numpy()


def names():
    from sentence_transformers import util
    from sentence_transformers.sentence_transformer import losses as st

    model, cosine, dot = Model(None), util.cos_sim, util.dot_score
    first = SCORES[:, 0]
    pairs = ("query_to_doc", "doc_to_query")
    symmetric = {"directions": pairs, "partition_mode": "per_direction"}
    return {
        "pairs": (
            losses.InfoNCE(),
            st.MultipleNegativesRankingLoss(model),
            2,
            NUMBERS[:, :2],
            None,
        ),
        "negatives": (
            losses.InfoNCE(10.0),
            st.MultipleNegativesRankingLoss(model, 10.0),
            3,
            NUMBERS,
            None,
        ),
        "dot": (
            losses.InfoNCE(1.0, "dot"),
            st.MultipleNegativesRankingLoss(model, 1.0, dot),
            3,
            NUMBERS,
            None,
        ),
        "symmetric": (
            losses.InfoNCE(symmetric=True),
            st.MultipleNegativesRankingLoss(model, 20.0, cosine, **symmetric),
            3,
            NUMBERS,
            None,
        ),
        "cosent": (losses.CoSENT(), st.CoSENTLoss(model), 2, first, first),
        "ties": (losses.CoSENT(), st.CoSENTLoss(model), 2, BINARY, BINARY),
        "angle": (losses.AnglE(), st.AnglELoss(model), 2, first, first),
        "cosine": (
            losses.CosineSimilarity(),
            st.CosineSimilarityLoss(model),
            2,
            first,
            first,
        ),
        "triplet": (losses.Triplet(), st.TripletLoss(model), 3, NUMBERS, None),
        "cosine_triplet": (
            losses.Triplet(0.5, "cosine"),
            st.TripletLoss(model, st.TripletDistanceMetric.COSINE, 0.5),
            3,
            NUMBERS,
            None,
        ),
        "contrastive": (losses.Contrastive(), st.ContrastiveLoss(model), 2, BINARY, BINARY),
        "online": (losses.OnlineContrastive(), st.OnlineContrastiveLoss(model), 2, BINARY, BINARY),
        "margin_mse": (losses.MarginMSE(), st.MarginMSELoss(model), 4, SCORES, SCORES),
        "one_margin": (
            losses.MarginMSE(),
            st.MarginMSELoss(model),
            3,
            first,
            first,
        ),
        "kl": (
            losses.ScoreDistillation(temperature=2.0),
            st.DistillKLDivLoss(model, temperature=2.0),
            4,
            SCORES,
            SCORES,
        ),
        "vectors": (
            losses.VectorDistillation(),
            st.EmbedDistillLoss(model),
            2,
            texts(2, 5),
            texts(2, 5),
        ),
        "mse": (
            losses.VectorDistillation("mse"),
            st.MSELoss(model),
            2,
            texts(1, 5)[:, 0],
            texts(1, 5)[:, 0],
        ),
    }


CASES = (
    "pairs negatives dot symmetric cosent ties angle cosine triplet cosine_triplet contrastive "
    "online margin_mse one_margin kl vectors mse"
).split()


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_equal_sentence_transformers(case):
    loss, peer, count, labels, peer_labels = names()[case]
    x = texts(count)
    if case != "triplet":  # near to each other, as of a trained model
        x[:, 1:] += x[:, :1]
    value, gradient = ours(loss, x, labels)
    peer_value, peer_gradient = theirs(peer, x, peer_labels)
    assert value > 0.001
    assert value == pytest.approx(peer_value, rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(gradient, peer_gradient, rtol=1e-4, atol=1e-5)


def test_all_cases_are_run():
    assert set(names()) == set(CASES)


@pytest.mark.parametrize("count", [2, 3])
def test_guided_info_nce_equals_sentence_transformers(count):
    """Their loss calls model and guide on features; here both find vectors in these."""
    import torch
    from sentence_transformers.sentence_transformer import losses as st

    class GIST(st.GISTEmbedLoss):
        def __init__(self, guide, margin):
            torch.nn.Module.__init__(self)
            self.model, self.guide = Model(None), guide
            self.temperature, self.margin, self.margin_strategy = 0.01, margin, "absolute"
            self.contrast_anchors = self.contrast_positives = True
            self.must_retokenize = self.gather_across_devices = False
            self.similarity_fct = torch.nn.CosineSimilarity(dim=-1)
            self.cross_entropy_loss = torch.nn.CrossEntropyLoss()

    x, guide = texts(count), texts(count, 9)
    x[:, 1:] += x[:, :1]
    guide[:, 1:] += 2 * guide[:, :1]
    columns = iter(guide.transpose(1, 0, 2))
    peer = GIST(lambda _: {"sentence_embedding": torch.tensor(next(columns))}, 0.1)
    value, gradient = ours(losses.GuidedInfoNCE(margin=0.1), x, guide)
    peer_value, peer_gradient = theirs(peer, x, None)
    assert value == pytest.approx(peer_value, rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(gradient, peer_gradient, rtol=1e-4, atol=1e-4)


def test_matryoshka_equals_sentence_transformers():
    """Their wrapper cuts the outputs of a model; of vectors alone it is this sum."""
    import torch
    from sentence_transformers.sentence_transformer import losses as st

    x, inner = texts(3), st.MultipleNegativesRankingLoss(Model(None))
    variable = torch.tensor(x, requires_grad=True)
    value = 0
    for dim, weight in ((8, 1.0), (4, 0.5)):
        cut = torch.nn.functional.normalize(variable[..., :dim], dim=-1)
        value = value + weight * inner.compute_loss_from_embeddings(list(cut.unbind(1)), None)
    value.backward()
    loss = losses.Matryoshka(losses.InfoNCE(), dims=[8, 4], weights=[1.0, 0.5])
    found, gradient = ours(loss, x, NUMBERS)
    assert found == pytest.approx(float(value.detach()), rel=1e-5)
    np.testing.assert_allclose(gradient, variable.grad.numpy(), rtol=1e-4, atol=1e-6)
