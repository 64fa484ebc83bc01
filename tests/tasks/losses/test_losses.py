"""Losses of embeddings: values worked out in NumPy, properties, configuration, errors."""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import run

from encoder_zoo.tasks import losses
from encoder_zoo.tasks.losses.batch_loss import BatchLoss
from encoder_zoo.tasks.losses.ranking import RankingLoss

# One loss of each kind, with every argument away from its default, and labels for rows of 4 texts.
SCORES = np.array([[0.9, 0.1, 0.5], [0.2, 0.2, 0.7], [1.0, 0.0, 0.3], [0.4, 0.8, 0.6]])
NUMBERS = np.array([[0, 1, 2, 3], [4, 1, 5, 2], [6, 7, 8, 9], [0, 10, 11, 12]])
VECTORS = np.random.default_rng(3).normal(size=(4, 4, 6))
LOSSES = {
    "InfoNCE": ({"scale": 5.0, "similarity": "dot", "symmetric": True, "margin": 0.5}, NUMBERS),
    "GuidedInfoNCE": ({"scale": 7.0, "margin": 0.1}, VECTORS),
    "CoSENT": ({"scale": 3.0}, SCORES),
    "AnglE": ({"scale": 3.0}, SCORES),
    "CosineSimilarity": ({}, SCORES),
    "Triplet": ({"margin": 0.4, "distance": "cosine"}, NUMBERS),
    "Contrastive": ({"margin": 2.0, "distance": "euclidean"}, np.round(SCORES)),
    "OnlineContrastive": ({"margin": 2.0, "distance": "euclidean"}, np.round(SCORES)),
    "MarginMSE": ({"similarity": "cosine"}, SCORES),
    "ScoreDistillation": ({"temperature": 2.0, "similarity": "cosine", "min_max": True}, SCORES),
    "VectorDistillation": ({"distance": "mse"}, VECTORS),
    "SPLADE": (
        {"loss": losses.InfoNCE(1.0, "dot"), "query_weight": 0.1, "document_weight": 0.2},
        NUMBERS,
    ),
    "Matryoshka": (
        {"loss": losses.InfoNCE(2.0), "dims": [6, 3], "weights": [1.0, 0.5]},
        NUMBERS,
    ),
}


def vectors(rows=4, texts=4, width=6, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, texts, width)).astype("float32")


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def made(name):
    return getattr(losses, name)(**LOSSES[name][0])


def test_all_losses_are_tested():
    classes = {n: v for n, v in vars(losses).items() if isinstance(v, type)}
    elsewhere = {"MaxSimInfoNCE", "MaxSimDistillation"}  # test_max_sim.py
    own = {n for n, v in classes.items() if not issubclass(v, RankingLoss)}
    assert set(LOSSES) | elsewhere == own


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_comes_back_from_its_configuration(name):
    loss, (arguments, y_true) = made(name), LOSSES[name]
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(loss)))
    again = keras.saving.deserialize_keras_object(saved)
    assert type(again).__name__ == name
    for argument, value in arguments.items():
        if argument != "loss":
            assert getattr(again, argument) == value
    assert float(again(y_true, vectors())) == float(loss(y_true, vectors()))
    assert type(loss).from_config(loss.get_config()).name == loss.name


@pytest.mark.slow(except_for=r"^VectorDistillation$")
@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_finite_for_zeros_and_for_large_vectors(name):
    """Equal vectors, zeros and large numbers make square roots and exponentials overflow."""
    for y_pred in (np.zeros((4, 4, 6)), np.ones((4, 4, 6)), 100 * vectors()):
        x = tf.constant(y_pred, "float32")
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = made(name).call(tf.constant(LOSSES[name][1], "float32"), x)
        assert values.shape == (4,)
        assert np.isfinite(values).all() and np.isfinite(tape.gradient(values, x)).all()


@pytest.mark.slow(except_for=r"^VectorDistillation$")
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_one_graph_for_batches_of_any_size(name):
    loss, y_true = made(name), LOSSES[name][1].astype("float32")
    shapes = [tf.TensorSpec((None, *y_true.shape[1:])), tf.TensorSpec((None, None, 6))]
    graph = tf.function(lambda y_true, y_pred: loss(y_true, y_pred), input_signature=shapes)
    for rows in (4, 2):
        y_pred = vectors()[:rows]
        np.testing.assert_allclose(
            graph(y_true[:rows], y_pred), loss(y_true[:rows], y_pred), rtol=1e-5, atol=1e-6
        )


def info_nce(y_true, y_pred, scale, similarity, symmetric, margin):
    """InfoNCE, row by row, by its definition."""
    x = unit(y_pred) if similarity == "cosine" else y_pred
    rows, texts = y_true.shape

    def one(i, query, passages):
        own = x[i, query] @ x[i, passages[0]]
        total = np.exp(scale * own)
        partners = {
            y_true[j, passages[0]] for j in range(rows) if y_true[j, query] == y_true[i, query]
        }
        for j in range(rows):
            for k in passages:
                right = y_true[j, k] in {*partners, y_true[i, query]}
                score = x[i, query] @ x[j, k]
                near = margin is not None and score > own - margin
                if (j, k) != (i, passages[0]) and not right and not near:
                    total += np.exp(scale * score)
        return np.log(total) - scale * own

    forward = [one(i, 0, range(1, texts)) for i in range(rows)]
    backward = [one(i, 1, [0]) for i in range(rows)]
    return np.mean([forward, backward], axis=0) if symmetric else np.array(forward)


@pytest.mark.slow(except_for=r"^None-False-dot$")
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("margin", [None, 0.3])
def test_info_nce_is_its_definition(similarity, symmetric, margin):
    arguments = {"similarity": similarity, "symmetric": symmetric, "margin": margin}
    for seed in range(5):
        y_true = np.random.default_rng(seed).integers(0, 12, (6, 4))  # many equal texts
        y_pred = vectors(6, 4, seed=seed)
        found = losses.InfoNCE(3.0, **arguments).call(tf.constant(y_true, "float32"), y_pred)
        expected = info_nce(y_true, y_pred.astype("float64"), 3.0, **arguments)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_equal_text_is_no_negative():
    """Two questions of one passage: by hand, each has a single candidate and no loss."""
    y_pred = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [0.0, 1.0]]])
    assert float(losses.InfoNCE()(np.array([[0, 1], [2, 1]]), y_pred)) == 0
    assert float(losses.InfoNCE(symmetric=True)(np.array([[0, 1], [2, 1]]), y_pred)) == 0
    apart = float(losses.InfoNCE()(np.array([[0, 1], [2, 3]]), y_pred))
    assert apart == pytest.approx(np.log(2))  # of two equal candidates


def test_a_hard_negative_is_a_candidate_of_every_row():
    pairs, rows = vectors(3, 2), vectors(3, 3)
    rows[:, :2] = pairs
    numbers = np.arange(9).reshape(3, 3)
    without = losses.InfoNCE().call(tf.constant(numbers[:, :2], "float32"), pairs).numpy()
    one_row = rows.copy()
    one_row[1, 2] = one_row[0, 0]  # the negative of row 1 is like the question of row 0
    found = losses.InfoNCE().call(tf.constant(numbers, "float32"), one_row).numpy()
    assert found[0] > without[0] + 0.1
    assert (found >= without - 1e-5).all()


@pytest.mark.slow
def test_the_gradient_moves_a_text_to_its_passage_and_away_from_others():
    x = tf.Variable(vectors(4, 3))
    loss, y_true = losses.InfoNCE(), np.arange(12).reshape(4, 3)
    before = unit(x.numpy())
    for _ in range(50):
        with tf.GradientTape() as tape:
            value = loss(y_true, x)
        x.assign_sub(tape.gradient(value, x))
    after = unit(x.numpy())
    nearer = [(v[:, 0] * (v[:, 1] - v[:, 2])).sum(-1).mean() for v in (before, after)]
    assert nearer[1] > nearer[0] + 0.1
    assert float(loss(y_true, x)) < 0.05


def test_a_guide_leaves_out_what_it_finds_nearer_than_the_passage():
    """By hand: for the guide the first two passages are equal, so neither is a negative."""
    one, two, diagonal = np.eye(2)[0], np.eye(2)[1], np.ones(2)
    y_pred = np.array([[one, one], [one, two], [two, two]])
    guide = np.array([[one, diagonal], [-one, diagonal], [two, -two]])
    found = losses.GuidedInfoNCE(scale=1.0, margin=1e-3).call(
        tf.constant(guide, "float32"), tf.constant(y_pred, "float32")
    )
    # Row 0: cosines of the guide with its own passage 0.71; passages: own, 0.71, 0; questions -1
    # and 0 ; passages with the own passage: 1, -0.71. Left: own, the third passage, questions 1
    # and 2, passage 2.
    e = np.exp
    own, left = e(1), [e(0), e(1), e(0), e(0)]
    np.testing.assert_allclose(found[0], np.log(own + sum(left)) - 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["CoSENT", "AnglE"])
def test_pairs_are_ordered_by_score_over_the_whole_batch(name):
    y_pred, scores = vectors(5, 3), np.random.default_rng(1).integers(0, 4, (5, 2)) / 4
    x = unit(y_pred.astype("float64"))
    if name == "CoSENT":
        like = (x[:, :1] * x[:, 1:]).sum(-1).ravel()
    else:
        first, other = (v[..., :3] + 1j * v[..., 3:] for v in (x[:, :1], x[:, 1:]))
        products = (first * other.conj()).sum(-1).ravel()
        like = np.abs(products.real + products.imag)
    y = scores.ravel()
    total = sum(
        np.exp(20 * (like[i] - like[j])) for i in range(10) for j in range(10) if y[i] < y[j]
    )
    found = getattr(losses, name)().call(tf.constant(scores, "float32"), y_pred)
    np.testing.assert_allclose(found, np.full(5, np.log(1 + total)), rtol=1e-5)
    column = losses.CoSENT().call(tf.constant(scores[:, :1], "float32"), y_pred[:, :2])
    flat = losses.CoSENT().call(tf.constant(scores[:, 0], "float32"), y_pred[:, :2])
    np.testing.assert_array_equal(column, flat)


def test_cosent_of_pairs_in_order_is_near_zero():
    y_pred = np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    assert float(losses.CoSENT()(np.array([3.0, 1.0]), y_pred)) < 1e-6
    assert float(losses.CoSENT()(np.array([1.0, 1.0]), y_pred)) == 0  # nothing to order
    assert float(losses.CoSENT()(np.array([1.0, 3.0]), y_pred)) == pytest.approx(20)


def test_distances_and_margins_by_hand():
    y_pred = np.array([[[0.0, 2.0], [3.0, 6.0], [0.0, 4.0]]])  # euclidean 5, 2; cosine .894, 1
    euclidean = losses.Triplet()(np.zeros((1, 3)), y_pred)
    assert float(euclidean) == pytest.approx(5 - 2 + 5)
    cosine = losses.Triplet(margin=0.5, distance="cosine")(np.zeros((1, 3)), y_pred)
    assert float(cosine) == pytest.approx(1 - 6 / np.sqrt(45) + 0.5, rel=1e-5)
    contrastive = losses.Contrastive(margin=3.0, distance="euclidean")
    assert float(contrastive(np.array([[1, 0]]), y_pred)) == pytest.approx((25 + 1) / 2 / 2)
    margins = losses.MarginMSE()(np.array([[3.0, 1.0]]), y_pred)  # scores 12 and 8
    assert float(margins) == pytest.approx((4 - 2) ** 2)
    squared = losses.CosineSimilarity()(np.array([[1.0, 0.0]]), y_pred)
    assert float(squared) == pytest.approx(((6 / np.sqrt(45) - 1) ** 2 + 1) / 2, rel=1e-5)


def test_online_contrastive_takes_hard_pairs_alone():
    """Distances .2 and .6 of pairs that belong together, .1 and .9 of others, by hand."""
    away = np.array([0.2, 0.6, 0.1, 0.9])
    y_pred = np.stack(
        [np.tile([1.0, 0.0], (4, 1)), np.stack([1 - away, np.sqrt(1 - (1 - away) ** 2)], 1)], 1
    )
    y_true = np.array([1, 1, 0, 0])
    expected = 0.2**2 + 0.6**2 + 0.4**2
    assert float(losses.OnlineContrastive()(y_true, y_pred)) == pytest.approx(expected, rel=1e-4)
    # One pair of each kind: each is compared with the mean of its own kind, and none is beyond.
    assert float(losses.OnlineContrastive()(y_true[[0, 3]], y_pred[[0, 3]])) == 0


def test_matryoshka_is_the_weighted_sum_of_losses_of_cut_vectors():
    y_pred, y_true = vectors(), NUMBERS
    inner = losses.Triplet(margin=1.0)
    found = losses.Matryoshka(inner, dims=[6, 2], weights=[2.0, 0.5])(y_true, y_pred)
    parts = [float(inner(y_true, unit(y_pred[..., :dim]))) for dim in (6, 2)]
    assert float(found) == pytest.approx(2 * parts[0] + 0.5 * parts[1], rel=1e-5)
    plain = losses.Matryoshka(losses.InfoNCE(), dims=[6])(y_true, y_pred)
    assert float(plain) == pytest.approx(float(losses.InfoNCE()(y_true, y_pred)), rel=1e-5)


def test_a_student_equal_to_its_teacher_has_no_loss():
    y_pred = vectors()
    scores = (y_pred[:, :1] * y_pred[:, 1:]).sum(-1)
    assert float(losses.ScoreDistillation()(scores, y_pred)) == pytest.approx(0, abs=1e-5)
    assert float(losses.ScoreDistillation(min_max=True)(3 * scores + 7, y_pred)) < 1e-5
    assert float(losses.MarginMSE()(scores + 5, y_pred)) == pytest.approx(0, abs=1e-5)
    margins = scores[:, 0] - scores[:, 1]
    assert float(losses.MarginMSE()(margins, y_pred[:, :3])) < 1e-5
    assert float(losses.VectorDistillation()(2 * y_pred, y_pred)) == pytest.approx(0, abs=1e-5)
    assert float(losses.VectorDistillation("mse")(y_pred, y_pred)) == 0
    one = losses.VectorDistillation()(y_pred[:, 0], y_pred[:, :1])
    assert float(one) == pytest.approx(0, abs=1e-5)
    assert float(losses.VectorDistillation()(y_pred[:, 0], y_pred[:, 0])) < 1e-5


def test_distilled_scores_by_their_definition():
    y_pred = vectors()
    scores = (y_pred[:, :1] * y_pred[:, 1:]).sum(-1).astype("float64")

    def probabilities(values):
        values = np.exp(values / 2 - (values / 2).max(-1, keepdims=True))
        return values / values.sum(-1, keepdims=True)

    teacher, student = probabilities(SCORES), probabilities(scores)
    expected = 4 * (teacher * np.log(teacher / student)).sum(-1)
    found = losses.ScoreDistillation(temperature=2.0).call(tf.constant(SCORES, "float32"), y_pred)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize(
    "loss, y_true, y_pred, message",
    [
        (
            losses.InfoNCE(),
            (4, 3),
            (4, 3),
            r"InfoNCE: y_pred.* \(4, 3\)\.",
        ),
        (losses.InfoNCE(), (4, 1), (4, 1, 6), r"InfoNCE: y_pred.* \(4, 1, 6\)"),
        (losses.InfoNCE(), (4,), (4, 3, 6), r"InfoNCE: y_true.* \(4,\).* \(4, 3, 6\).*`fit`"),
        (losses.InfoNCE(), (4, 2), (4, 3, 6), r"InfoNCE: y_true.* \(4, 2\).* \(4, 3, 6\)"),
        (losses.GuidedInfoNCE(), (4, 3), (4, 3, 6), r"GuidedInfoNCE: y_true.* \(4, 3\)\."),
        (losses.CoSENT(), (4,), (4, 3, 6), r"CoSENT: y_true.* \(4, 1\)\..* \(B, 2\)"),
        (losses.AnglE(), (4, 2, 6), (4, 3, 6), r"AnglE: y_true.* \(4, 2, 6\)\."),
        (losses.Triplet(), (4, 2), (4, 2, 6), r"Triplet: y_pred.* \(4, 2, 6\)\..* 3 texts"),
        (
            losses.MarginMSE(),
            (4, 3),
            (4, 3, 6),
            r"MarginMSE: y_true.* \(4, 3\)\..* \(B, 2\)",
        ),
        (
            losses.ScoreDistillation(),
            (4, 1),
            (4, 2, 6),
            r"y_pred.* \(4, 2, 6\)\..* 3 texts",
        ),
        (
            losses.VectorDistillation(),
            (4, 5),
            (4, 2, 6),
            r"y_true.* \(4, 1, 5\)\..*y_pred",
        ),
        (
            losses.VectorDistillation(),
            (4, 3, 6),
            (4, 2, 6),
            r"VectorDistillation: y_true.* \(4, 3, 6\)\..* \(4, 2, 6\)",
        ),
        (
            losses.Matryoshka(losses.CoSENT(), [7]),
            (4,),
            (4, 2, 6),
            "dims.*is 7.* 6",
        ),
    ],
)
def test_wrong_shapes_are_errors(loss, y_true, y_pred, message):
    with pytest.raises(ValueError, match=message):
        loss(np.zeros(y_true), np.zeros(y_pred))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: losses.InfoNCE(scale=0), "scale is 0"),
        (lambda: losses.InfoNCE(similarity="cos"), "similarity is 'cos'"),
        (lambda: losses.InfoNCE(margin=-0.1), "margin is -0.1"),
        (lambda: losses.Triplet(distance="dot"), "distance is 'dot'"),
        (lambda: losses.Matryoshka("mse", [3]), "loss is 'mse'"),
        (lambda: losses.Matryoshka(losses.CoSENT(), []), r"dims is \[\]"),
        (lambda: losses.Matryoshka(losses.CoSENT(), [3], [1, 1]), "weights.*is 2.* 1.*dims"),
    ],
)
def test_wrong_arguments_are_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_a_loss_is_for_any_keras_model():
    model = keras.Sequential([keras.layers.Dense(4)])
    model.compile("adam", loss=losses.Matryoshka(losses.InfoNCE(), dims=[4, 2]))
    numbers = np.arange(16).reshape(8, 2)
    history = model.fit(vectors(8, 2), numbers, epochs=30, batch_size=8, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]


# -- other backends -------------------------------------------------------------------------------

SCRIPT = """
import json, sys
import numpy as np
sys.path[:0] = [sys.argv[1]]
from test_losses import LOSSES, made, vectors
from keras import ops
print(json.dumps({n: float(made(n)(y, vectors())) for n, (_, y) in LOSSES.items()}))
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_compute_the_same(backend):
    done = run(SCRIPT, pathlib.Path(__file__).parent, KERAS_BACKEND=backend)
    found = json.loads(done.splitlines()[-1])
    for name, (_, y_true) in LOSSES.items():
        assert found[name] == pytest.approx(float(made(name)(y_true, vectors())), rel=1e-5), name


# -- rows that only fill a batch ------------------------------------------------------------------

OF_TOKENS = {  # y_pred (B, 1 + K, L, D)
    "MaxSimInfoNCE": (losses.MaxSimInfoNCE(), NUMBERS),
    "MaxSimDistillation": (losses.MaxSimDistillation(), SCORES),
}


@pytest.mark.slow(except_for=r"^VectorDistillation-sum$")
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
@pytest.mark.parametrize("name", [*LOSSES, *OF_TOKENS])
def test_rows_that_fill_a_batch_change_no_loss_and_no_gradient(name, reduction):
    if name in OF_TOKENS:
        loss, y = OF_TOKENS[name]
        x = np.random.default_rng(0).normal(size=(4, 4, 5, 6)).astype("float32")
    else:
        loss, y, x = made(name), LOSSES[name][1], vectors()
    loss.reduction, filled, y = reduction, np.array([0, 1, 2, 3, 3, 3, 3]), np.float32(y)

    def computed(rows, real):
        y_pred = tf.Variable(x[rows])
        with tf.GradientTape() as tape:
            value, _ = BatchLoss(loss)(y[rows], y_pred, rows=real)
        return value, tf.convert_to_tensor(tape.gradient(value, y_pred)).numpy()

    expected, gradient = computed(filled[:4], None)
    real = tf.constant(np.arange(7) < 4)
    found, changed = computed(filled, real)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(changed[:4], gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(changed[4:], 0, atol=1e-7)
