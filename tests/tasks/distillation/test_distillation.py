"""A student learns of a teacher; the losses are those of the papers, computed another way here."""

import functools

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from processes import printed

import encoder_zoo as ez
from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.tasks.distillation import objectives as learned
from encoder_zoo.tasks.distillation.distillation_preprocessor import find_example_positions

WORDS = "the cat sat on a mat and dog ran away with his good bad film".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
INPUTS = {
    "token_ids": np.array([[2, 7, 8, 9, 3], [2, 11, 3, 0, 0]]),
    "padding_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool),
}
ALL = ["soft_labels", "hidden_states", "relations"]
BUNDLED = ["bert_nano_en_uncased", "roberta_nano_en"]


@functools.cache
def tokenizer():
    return ez.BertTokenizer(TOKENS)


def backbone(layers=2, width=8, heads=2, kind=ez.BertBackbone, **arguments):
    model = kind(len(TOKENS), layers, heads, width, 2 * width, **arguments)
    rng = np.random.default_rng(layers)
    for weight in model.weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return model


def classifier(*sizes, labels=("bad", "good"), **arguments):
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer())
    model = ez.Classifier(backbone(*sizes), preprocessor, labels=labels, **arguments)
    if labels:
        kernel = model.head.weights[0]
        kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
    return model


def tagger(*sizes, labels=("O", "B-X")):
    preprocessor = ez.TokenClassifierPreprocessor(tokenizer())
    return ez.TokenClassifier(backbone(*sizes, pooler=False), preprocessor, labels=labels)


def sentences(count):
    rng = np.random.default_rng(0)
    return [list(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(count)]


def distilled(objectives, **arguments):
    """Of a teacher with other depth, width and number of heads."""
    teacher, student = classifier(3, 16, 4), classifier(2, 8, 2)
    return ez.Distillation(teacher, student, objectives=objectives, relation_heads=4, **arguments)


# -- the objectives --------------------------------------------------------------------------------


def divergence(true, found):
    return scipy.special.rel_entr(true, found).sum(-1)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "linear"])
def test_soft_labels_are_hintons(activation):
    student, teacher = np.random.default_rng(0).normal(0, 3, (2, 4, 5))
    found = learned.compare_labels(student, teacher, 3.0, activation)
    if activation == "softmax":
        softened = (scipy.special.softmax(x / 3, axis=-1) for x in (teacher, student))
        expected = 9 * divergence(*softened)
    elif activation == "sigmoid":
        yes = [scipy.special.expit(x / 3) for x in (teacher, student)]
        both = (np.stack([p, 1 - p], -1) for p in yes)
        expected = 9 * divergence(*both).mean(-1)
    else:
        expected = ((student - teacher) ** 2).mean(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def values_of_last_block(model, heads):
    """(B, A, L, D/A), by the weights."""
    x = np.array(model(INPUTS, return_hidden_states=True)["hidden_states"][-2])
    kernel, bias = (weight.numpy() for weight in model.blocks[-1].attention.value_dense.weights)
    values = (x @ kernel + bias).reshape(*x.shape[:2], heads, -1)
    return values.transpose(0, 2, 1, 3)


@pytest.mark.slow
def test_relations_are_those_of_the_attention_probabilities_and_of_values():
    teacher, student = backbone(3, 16, 2), backbone(2, 8, 2)
    real = INPUTS["padding_mask"]
    expected = np.zeros(real.shape)
    attention = [m.attention_probabilities(INPUTS)[:, -1] for m in (teacher, student)]
    expected += divergence(*map(np.array, attention)).mean(1)
    values = []
    for model in (teacher, student):
        v = values_of_last_block(model, 2)
        scores = v @ v.transpose(0, 1, 3, 2) / v.shape[-1] ** 0.5
        values.append(scipy.special.softmax(scores - 1e9 * ~real[:, None, None], axis=-1))
    expected += divergence(*values).mean(1)
    found = ez.Distillation(teacher, student)(INPUTS)["relations"]
    np.testing.assert_allclose(found[real], expected[real], rtol=1e-3)


@pytest.mark.slow(except_for="^(distilbert|modernbert|mpnet|nomic_bert)")
@pytest.mark.parametrize("name", FAMILIES)
def test_projections_are_what_the_attention_is_made_of(name, tiny):
    family = get_family(name)
    windows = ("local_attention", "attention_window")  # as long as the texts
    sizes = {n: 64 if n in windows else size for n, size in tiny.sizes(family).items()}
    model = tiny.randomize_weights(family.backbone(**sizes, pooler=False))
    inputs = tiny.rows(family)
    inputs.pop("global_mask", None)  # these tokens have projections of their own
    query, key, value = model(inputs, return_projections=True)["projections"]
    assert query.shape == key.shape == value.shape == (3, 16, 2, query.shape[-1])
    if not model.blocks[-1].attention.has_plain_scores:
        return  # what DeBERTa adds for distances is no relation of queries and keys
    scores = np.einsum("bihd,bjhd->bhij", query, key) / query.shape[-1] ** 0.5
    scores -= 1e9 * ~inputs["padding_mask"][:, None, None]
    if name == "bart":  # of its decoder, where no token sees those behind it
        scores -= 1e9 * np.triu(np.ones((16, 16)), 1)
    expected = model.attention_probabilities(inputs)[:, -1]
    found = scipy.special.softmax(scores, axis=-1)
    real = np.broadcast_to(inputs["padding_mask"][:, None, :, None], found.shape)
    np.testing.assert_allclose(found[real], np.array(expected)[real], atol=1e-5)


@pytest.mark.slow
def test_hidden_states_are_those_of_the_layers_that_correspond():
    model = distilled(["hidden_states"])
    kernels = [layer.kernel.numpy() for layer in model.maps]
    states = [
        [np.array(x) for x in m.backbone(INPUTS, return_hidden_states=True)["hidden_states"]]
        for m in (model.student, model.teacher)
    ]
    expected = 0
    for mine, theirs, kernel in ((0, 0, 0), (1, 2, 1), (2, 3, 1)):
        expected += ((states[0][mine] @ kernels[kernel] - states[1][theirs]) ** 2).mean(-1)
    np.testing.assert_allclose(model(INPUTS)["hidden_states"], expected, rtol=1e-4)


# -- the whole loss ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_loss_is_the_sum_of_means_over_what_counts():
    model = distilled(ALL, label_weight=0.7)
    model.compile()
    labels, weights = np.array([1, 0]), np.float32([1.0, 3.0])
    outputs = {name: np.array(value) for name, value in model(INPUTS).items()}
    loss = model.compute_loss(INPUTS, labels, outputs, weights)
    probabilities = scipy.special.log_softmax(outputs["logits"], axis=-1)
    hard = -(probabilities[[0, 1], labels] * weights).sum() / 2  # Keras's mean over the batch
    counts = INPUTS["padding_mask"] * weights[:, None]
    by_token = [(outputs[n] * counts).sum() / counts.sum() for n in ALL[1:]]
    soft = (outputs["soft_labels"] * weights).sum() / 4
    np.testing.assert_allclose(loss, soft + sum(by_token) + 0.7 * hard, rtol=1e-5)
    for mean, expected in zip(model.means, [soft, *by_token], strict=True):
        np.testing.assert_allclose(mean.result(), expected, rtol=1e-5)
    unlabelled = model.compute_loss({**INPUTS, "soft_weights": weights}, None, outputs)
    np.testing.assert_allclose(unlabelled, soft + sum(by_token), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ALL)
def test_all_that_is_trained_has_a_gradient_and_only_the_student_is(objective):
    check_gradients(distilled([objective]), objective)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ALL[1:])
@pytest.mark.parametrize("kind", [ez.ModernBertBackbone, ez.AlbertBackbone])
def test_that_holds_for_blocks_of_other_kinds(objective, kind):
    small, large = backbone(2, 8, 2, kind), backbone(3, 16, 2, kind)
    check_gradients(ez.Distillation(large, small, objectives=[objective]), objective)


def check_gradients(model, objective):
    teachers = {id(weight) for weight in model.teacher.weights}
    assert teachers.isdisjoint(id(weight) for weight in model.weights)
    trained = model.trainable_variables
    assert teachers.isdisjoint(map(id, trained))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(INPUTS, training=True)[objective])
    gradients = tape.gradient(loss, [variable.value for variable in trained])
    assert not [v.path for v, g in zip(trained, gradients, strict=True) if g is None]
    rest = [w for w in model.student.trainable_weights if id(w) not in set(map(id, trained))]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(INPUTS, training=True)[objective])
    assert not any(g is not None for g in tape.gradient(loss, [w.value for w in rest]))


# -- fit -------------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.slow
def test_a_student_comes_to_agree_with_its_teacher_in_one_trace(monkeypatch, tmp_path):
    rng, halves = np.random.default_rng(0), (WORDS[:7], WORDS[7:])
    texts = [" ".join(rng.choice(halves[i % 2], 3 + i % 5)) for i in range(64)]
    sizes = ((2, 64), (1, 32))  # of the teacher and of the student
    teacher, student = (
        ez.Classifier(
            ez.BertBackbone(len(TOKENS), layers, 2, width, width, dropout=0.0),
            ez.SequenceClassifierPreprocessor(tokenizer()),
            num_classes=2,
        )
        for layers, width in sizes
    )
    teacher.compile(learning_rate=1e-2)
    teacher.fit(texts, [i % 2 for i in range(64)], 8, 4, verbose=0)
    truth = teacher.predict(texts, verbose=0).argmax(-1)
    assert (truth == np.arange(64) % 2).all()
    model = ez.Distillation(teacher, student, objectives=["soft_labels", "relations"])
    before = model.teacher.get_weights()
    call, traces = ez.Distillation.call, []

    def counted(self, inputs, training=None):
        traces.append(training)
        return call(self, inputs, training=training)

    monkeypatch.setattr(ez.Distillation, "call", counted)
    model.compile(learning_rate=1e-2)
    model.fit(texts[:8], batch_size=4, verbose=0)
    history = model.fit(texts, epochs=10, batch_size=8, verbose=0).history
    assert traces == [True]
    assert set(history) == {"loss", "soft_labels", "relations", "accuracy"}
    assert history["soft_labels"][-1] < 0.3 * history["soft_labels"][0]
    found = model.student.predict(texts, verbose=0).argmax(-1)
    assert (found == truth).mean() > 0.9
    assert history["accuracy"][-1] > 0.8
    for old, new in zip(before, model.teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    model.student.save_to_preset(tmp_path / "student")
    again = ez.Classifier.from_preset(tmp_path / "student")
    np.testing.assert_array_equal(
        again.predict(texts, verbose=0), model.student.predict(texts, verbose=0)
    )
    with pytest.raises(NotImplementedError, match="save.*student"):
        model.save(tmp_path / "model.keras")


@pytest.mark.matrix
@pytest.mark.slow
def test_a_teacher_of_another_family_has_its_own_rows():
    pieces = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])}
    pieces |= {letter: i for i, letter in enumerate("abcdefghij", len(pieces))}
    preprocessor = ez.SequenceClassifierPreprocessor(ez.RobertaTokenizer(pieces, []))
    teacher = ez.Classifier(
        backbone(1, 8, 1, ez.RobertaBackbone, pooler=False), preprocessor, labels=["no", "yes"]
    )
    student = classifier(labels=None)
    model = ez.Distillation(teacher, student)
    assert student.labels == ["no", "yes"]
    texts = ["bad", "a cat sat", "dog"]
    batch = model.preprocessor(texts, sample_weight=[1, 2, 3])
    inputs = {name: values.numpy() for name, values in batch.items()}
    assert inputs.pop("soft_weights").tolist() == [1, 2, 3]
    outputs = model(inputs)
    np.testing.assert_allclose(outputs["teacher"], teacher.predict(texts, verbose=0), atol=1e-5)
    np.testing.assert_allclose(outputs["logits"], student.predict(texts, verbose=0), atol=1e-5)
    before = student.get_weights()[0]
    model.fit(texts, sample_weight=[1, 2, 3], epochs=2, verbose=0)
    assert np.abs(student.get_weights()[0] - before).max() > 0
    packed = ez.MaskedLM(
        backbone(pooler=False), ez.MaskedLMPreprocessor(tokenizer(), pack_texts=True)
    )
    with pytest.raises(ValueError, match="different tokenizers.*hidden_states"):
        ez.Distillation(teacher, packed, objectives=["hidden_states"])


TEXTS = ["Naïve, unbelievable—he sang!", "", "a b", "The cats sat on mats " * 9, "日本 ok 😀"]
PAIRS = (TEXTS, [*TEXTS[1:], "Yes, unthinkably so."])


@pytest.mark.slow
@pytest.mark.parametrize("names", [BUNDLED, pytest.param(BUNDLED[::-1], marks=pytest.mark.slow)])
@pytest.mark.parametrize("texts", [(TEXTS,), PAIRS], ids=["texts", "pairs"])
def test_tokens_of_other_tokenizers_correspond_by_their_characters(names, texts):
    student, teacher = (
        ez.SequenceClassifierPreprocessor.from_preset(name, sequence_length=length)
        for name, length in zip(names, (24, 40), strict=True)
    )
    found = find_example_positions([tf.constant(part) for part in texts], student, teacher)
    assert found.row_lengths().numpy().tolist() == [
        len(row) for row in student.encode(texts if len(texts) == 2 else texts[0])["token_ids"]
    ]
    for row, places in enumerate(found.to_list()):
        mine, theirs = (spans_of_row(p, [part[row] for part in texts]) for p in (student, teacher))
        assert places[0] == 0
        for span, place in list(zip(mine, places, strict=True))[1:]:
            holders = [i for i, other in enumerate(theirs) if span and holds(other, span)]
            assert (place in holders) if holders else place == -1


@pytest.mark.slow
@pytest.mark.parametrize("texts", [(TEXTS,), PAIRS], ids=["texts", "pairs"])
def test_tokens_of_much_text_are_placed_chunk_by_chunk(texts, monkeypatch):
    student, teacher = map(ez.SequenceClassifierPreprocessor.from_preset, BUNDLED)
    columns = [tf.constant(part) for part in texts]
    at_once = find_example_positions(columns, student, teacher).to_list()
    monkeypatch.setattr("encoder_zoo.encoders.tokenizers.text.ragged.CHUNK_BYTES", 8)
    assert find_example_positions(columns, student, teacher).to_list() == at_once
    none = find_example_positions([part[:0] for part in columns], student, teacher)
    assert none.to_list() == []


def spans_of_row(preprocessor, texts):
    """For each token of the row its text and characters, None of a special token."""
    parts = [preprocessor.tokenizer.tokenize_with_offsets(text) for text in texts]
    spans = [
        [(i, int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
        for i, (_, starts, ends) in enumerate(parts)
    ]
    separators = preprocessor.tokenizer.pair_separators
    room = preprocessor.sequence_length - 2 - (separators if len(texts) == 2 else 0)
    while sum(map(len, spans)) > room:  # the longer loses a token, of equal ones the second
        longer = 0 if len(spans) == 1 or len(spans[0]) > len(spans[1]) else 1
        spans[longer].pop()
    row = [None, *spans[0], None]
    return row if len(spans) == 1 else [*row[:-1], *[None] * separators, *spans[1], None]


def holds(other, span):
    return other and other[0] == span[0] and other[1] <= span[2] - 1 < other[2]


@pytest.mark.matrix
@pytest.mark.slow
def test_a_student_with_other_tokens_learns_of_those_that_hold_its_own():
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    spelled = ez.BertTokenizer([*TOKENS[:5], *letters, *(f"##{letter}" for letter in letters)])
    student = ez.MaskedLM(
        ez.BertBackbone(spelled.vocabulary_size, 2, 2, 8, 16, pooler=False),
        ez.MaskedLMPreprocessor(spelled, mask_rate=0.3),
    )
    teacher = classifier(3, 16, 4)
    model = ez.Distillation(
        teacher, student, objectives=["hidden_states", "relations"], relation_heads=2
    )
    texts = ["the cat", "a bad film ran"]
    inputs, labels, weights = keras.tree.map_structure(np.array, model.preprocessor(texts))
    assert inputs["positions_in_teacher"].tolist()[0][:8] == [0, 1, 1, 1, 2, 2, 2, -1]
    outputs = model(inputs)
    assert outputs["logits"].shape[:2] == labels.shape
    whole = teacher.preprocessor(texts)  # nothing is masked for the teacher
    states = [
        [np.array(x) for x in net(x, return_hidden_states=True)["hidden_states"]]
        for net, x in ((student.backbone, inputs), (teacher.backbone, whole))
    ]
    expected = 0
    for mine, theirs, layer in ((0, 0, 0), (1, 2, 1), (2, 3, 1)):
        there = np.stack(
            [x[p] for x, p in zip(states[1][theirs], inputs["positions_in_teacher"], strict=True)]
        )
        mapped = states[0][mine] @ model.maps[layer].kernel.numpy()
        expected = expected + ((mapped - there) ** 2).mean(-1)
    counted = inputs["padding_mask"] & (inputs["positions_in_teacher"] >= 0)
    np.testing.assert_allclose(
        np.array(outputs["hidden_states"])[counted], expected[counted], rtol=1e-4
    )

    model.compile(learning_rate=1e-2)
    parts = {name: np.array(outputs[name])[counted].mean() for name in model.objectives}
    masked = scipy.special.log_softmax(np.array(outputs["logits"]), -1)
    masked = -np.take_along_axis(masked, labels[..., None], -1)[..., 0]
    expected = sum(parts.values()) + 0.5 * (masked * weights).sum() / weights.sum()
    loss = model.compute_loss(inputs, labels, model(inputs), weights)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    head = student.get_weights()[-1]
    history = model.fit(texts * 8, epochs=8, batch_size=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] and 0 <= history["accuracy"][0] <= 1
    assert np.abs(student.get_weights()[-1] - head).max() > 0


@pytest.mark.slow
def test_a_teacher_with_segments_gets_those_of_pairs():
    teacher, words = classifier(1, 8, 1), tokenizer().get_vocabulary()
    plain = ez.BertTokenizer(words, uses_segments=False)
    student = ez.Classifier(
        backbone(1, 8, 1, ez.DistilBertBackbone, pooler=False, num_segments=0),
        ez.SequenceClassifierPreprocessor(plain),
    )
    model = ez.Distillation(teacher, student, objectives=["soft_labels", "hidden_states"])
    pairs = (["a cat", "bad"], ["the dog", "film"])
    inputs = {name: values.numpy() for name, values in model.preprocessor(pairs).items()}
    assert "segment_ids" not in inputs
    expected = teacher.predict(pairs, verbose=0)
    np.testing.assert_allclose(model(inputs)["teacher"], expected, atol=1e-5)


WORD_LISTS = [["cat", "films", "dog"], ["bad"]]


@pytest.mark.matrix
@pytest.mark.slow
def test_the_pieces_that_count_are_the_same_without_labels():
    model = ez.Distillation(tagger(3, 16, 4), tagger(labels=None))
    labelled = model.preprocessor(WORD_LISTS, [["O", "B-X", "O"], ["O"]])[2]
    unlabelled = model.preprocessor(WORD_LISTS)["soft_weights"]
    np.testing.assert_array_equal(unlabelled, labelled)
    history = model.fit(WORD_LISTS, verbose=0).history
    assert history["soft_labels"][0] > 0 and "f1" in history


@pytest.mark.matrix
@pytest.mark.slow
def test_the_pieces_that_count_are_the_same_in_datasets_and_of_texts():
    preprocessor = ez.Distillation(tagger(3, 16, 4), tagger(labels=None)).preprocessor
    expected = preprocessor(WORD_LISTS)["soft_weights"]
    texts = [" ".join(words) for words in WORD_LISTS]
    for data in (tf.ragged.constant(WORD_LISTS), tf.constant(texts)):
        [batch] = tf.data.Dataset.from_tensors(data).map(preprocessor)
        np.testing.assert_array_equal(batch["soft_weights"], expected)
    np.testing.assert_array_equal(preprocessor(texts)["soft_weights"], expected)


@pytest.mark.slow
def test_masked_language_models_teach_what_stands_behind_a_mask():
    def masked(*sizes):
        preprocessor = ez.MaskedLMPreprocessor(tokenizer(), mask_rate=0.4)
        return ez.MaskedLM(backbone(*sizes, pooler=False), preprocessor)

    model = ez.Distillation(masked(3, 16, 4), masked())
    inputs, labels, weights = (
        keras.tree.map_structure(np.array, part) for part in model.preprocessor(["a cat", "dog"])
    )
    outputs = model(inputs)
    assert outputs["soft_labels"].shape == labels.shape == weights.shape
    np.testing.assert_allclose(outputs["teacher"], model.teacher(inputs), atol=1e-5)


@pytest.mark.matrix
@pytest.mark.slow
def test_two_backbones_learn_from_texts_in_half_precision():
    teacher, small = backbone(3, 16, 2), backbone(dtype="mixed_bfloat16")
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer())
    model = ez.Distillation(teacher, small, preprocessor, ["hidden_states", "relations"])
    assert model.maps[0].compute_dtype == "bfloat16"
    model.compile(learning_rate=1e-2)
    texts = [" ".join(words) for words in sentences(16)]
    history = model.fit(texts, epochs=6, batch_size=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    with pytest.raises(ValueError, match=r"objectives is \["):
        model.fit(texts, [0] * 16)


def of_itself(model):
    return ez.Distillation(model, model)


def masked_lm(tokens):
    preprocessor = ez.MaskedLMPreprocessor(ez.BertTokenizer(tokens))
    return ez.MaskedLM(ez.BertBackbone(len(tokens), 1, 2, 8, 16), preprocessor)


def of_one_backbone(teacher, student):
    shared = backbone()
    return ez.Distillation(teacher(shared), student(shared), objectives=["relations"])


@pytest.mark.slow(
    except_for="^(<lambda>-different|<lambda>-objectives is 7|<lambda>-scores|<lambda>-share)"
)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ez.Distillation(classifier(), backbone(), objectives=["soft_labels"]),
            "same class",
        ),
        (
            lambda: ez.Distillation(classifier(), classifier(), objectives=["logits"]),
            r"objectives is \['logits'\]",
        ),
        (lambda: ez.Distillation(classifier(), classifier(), objectives=[]), r"objectives is \[\]"),
        (lambda: of_one_backbone(lambda backbone: backbone, lambda backbone: backbone), "share"),
        (lambda: of_one_backbone(ez.MaskedLM, lambda backbone: backbone), "share.*weights"),
        (
            lambda: ez.Distillation(classifier(), classifier(), objectives="relations"),
            "objectives is 'relations'",
        ),
        (lambda: ez.Distillation(classifier(), classifier(), objectives=7), "objectives is 7"),
        (lambda: of_itself(classifier()), "share.*weights"),
        (lambda: of_itself(tagger()), "share.*weights"),
        (lambda: of_itself(ez.MaskedLM(backbone())), "share.*weights"),
        (lambda: of_itself(backbone()), "share.*weights"),
        (
            lambda: ez.Distillation(masked_lm(TOKENS), masked_lm(TOKENS[::-1])),
            "different tokenizer",
        ),
        (
            lambda: ez.Distillation(masked_lm(TOKENS), masked_lm([*TOKENS, "x"])),
            "21 for the student.* 20",
        ),
        (lambda: ez.Distillation(classifier(), "student"), "student is 'student'"),
        (
            lambda: ez.Distillation(classifier(labels=["good", "bad"]), classifier()),
            "labels is.*student",
        ),
        (
            lambda: ez.Distillation(backbone(2, 16, 4), backbone()),
            "4 attention heads",
        ),
        (
            lambda: ez.Distillation(backbone(2, 16, 4), backbone(), relation_heads=16),
            "relation_heads.* 16.* 8",
        ),
        (
            lambda: ez.Distillation(
                backbone(max_sequence_length=9),
                backbone(),
                ez.SequenceClassifierPreprocessor(tokenizer()),
            ),
            "lengths, 9.* 512",
        ),
        (lambda: distilled(ALL, temperature=0.0), "temperature is 0.0"),
    ],
)
def test_what_does_not_fit_is_refused_early(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.slow
def test_a_student_outside_of_the_strategy_is_refused():
    teacher, student = classifier(), classifier()
    with (
        tf.distribute.OneDeviceStrategy("CPU:0").scope(),
        pytest.raises(ValueError, match="strategies"),
    ):
        ez.Distillation(teacher, student)


BACKENDS = """
import keras
import numpy as np
import encoder_zoo as ez


def classifier(layers, width):
    backbone = ez.BertBackbone(30, layers, 2, width, 16, dropout=0.0, attention_dropout=0.0)
    model = ez.Classifier(backbone, labels=["bad", "good"])
    rng = np.random.default_rng(layers)
    for weight in model.weights:
        weight.assign(0.3 * rng.normal(size=weight.shape))
    return model


teacher, student = classifier(2, 16), classifier(1, 8)
before = teacher.get_weights()
objectives = ["soft_labels", "hidden_states", "relations"]
model = ez.Distillation(teacher, student, objectives=objectives)
for layer in model.maps:
    layer.kernel.assign(np.random.default_rng(9).normal(size=layer.kernel.shape))
model.compile(learning_rate=1e-3)
x = {"token_ids": np.arange(5, 29).reshape(4, 6), "padding_mask": np.ones((4, 6), bool)}
history = model.fit(x, np.array([0, 1, 1, 0]), epochs=3, batch_size=2, shuffle=False, verbose=0)
second = model.fit(x, epochs=2, batch_size=2, shuffle=False, verbose=0)
for old, new in zip(before, teacher.get_weights(), strict=True):
    np.testing.assert_array_equal(old, new)
relations = ez.Distillation(teacher.backbone, student.backbone)  # some weights are not reached
head = [w for w in student.backbone.blocks[-1].output_dense.get_weights()]
third = relations.fit(x, epochs=2, batch_size=2, shuffle=False, verbose=0)
for old, new in zip(head, student.backbone.blocks[-1].output_dense.get_weights(), strict=True):
    np.testing.assert_array_equal(old, new)
# A teacher that reads the same text otherwise: from behind, with a token less.
aligned = {
    **x,
    "teacher_token_ids": x["token_ids"][:, :0:-1],
    "teacher_padding_mask": x["padding_mask"][:, 1:],
    "positions_in_teacher": np.tile(np.arange(4, -2, -1), (4, 1)),
}
other = ez.Distillation(teacher, student, objectives=["hidden_states", "relations"])
for layer in other.maps:
    layer.kernel.assign(np.random.default_rng(9).normal(size=layer.kernel.shape))
fourth = other.fit(aligned, epochs=2, batch_size=2, shuffle=False, verbose=0)
for run in (history, second, third, fourth):
    print(*(value for values in run.history.values() for value in values))
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_every_backend_learns_the_same(backend):
    results = [np.array(printed(BACKENDS, name).split(), float) for name in (backend, "tensorflow")]
    np.testing.assert_allclose(*results, rtol=1e-3, atol=1e-4)
