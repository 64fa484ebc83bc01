"""Replaced-token detection: what is masked, drawn and learnt, and what is saved of it."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from safetensors.numpy import load_file

import encoder_zoo as ez

WORDS = "the cat sat on a mat and dog ran away with his good bad film".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
MASK = 4
# Every word is followed by the same one.
TEXTS = [" ".join(WORDS[(i + j) % 15] for j in range(4 + i % 5)) for i in range(30)]


def preprocessor(**arguments):
    return ez.ReplacedTokenDetectionPreprocessor(ez.BertTokenizer(TOKENS), **arguments)


def backbone(**arguments):
    sizes = {"num_layers": 1, "num_heads": 4, "hidden_dim": 16, "intermediate_dim": 32}
    sizes |= {"embedding_dim": 12, "dropout": 0.0, "attention_dropout": 0.0}
    return ez.ElectraBackbone(len(TOKENS), **{**sizes, **arguments})


def task(**arguments):
    keras.utils.set_random_seed(3)
    return ez.ReplacedTokenDetection(backbone(), preprocessor(), **arguments)


@pytest.mark.slow
def test_all_selected_tokens_become_the_mask_and_no_others():
    x, y, weights = preprocessor(mask_rate=0.3)(TEXTS)
    own, masked = x["token_ids"].numpy(), x["masked_token_ids"].numpy()
    changed = own != masked
    assert (masked[changed] == MASK).all() and not (own == MASK).any()
    assert (own[changed] > MASK).all()  # no special token
    words = np.array([len(text.split()) for text in TEXTS])
    expected = np.maximum(1, np.round(0.3 * words))
    np.testing.assert_array_equal(changed.sum(1), expected)
    np.testing.assert_array_equal(weights.numpy().sum(1), expected)
    there = np.take_along_axis(own, x["mask_positions"].numpy(), 1)
    np.testing.assert_array_equal(there, y)


def test_tokens_are_drawn_with_the_generators_probabilities():
    model = task()
    probabilities = np.array([0.5, 0.25, 0.15, 0.1])
    logits = np.tile(np.log(probabilities, dtype="float32") + 7, (100, 200, 1))
    drawn = ops.convert_to_numpy(model._sample_tokens(logits))
    found = np.bincount(drawn.ravel(), minlength=4)
    error = np.sqrt(20_000 * probabilities * (1 - probabilities))
    assert (np.abs(found - 20_000 * probabilities) < 4 * error).all(), found
    again = ops.convert_to_numpy(model._sample_tokens(logits))
    assert (again != drawn).any()  # others in every step


@pytest.mark.slow
def test_only_masks_are_filled_in():
    model = task()
    x, _, weights = model.preprocessor(TEXTS)
    outputs = model(x)
    own, given = x["token_ids"].numpy(), ops.convert_to_numpy(outputs["token_ids"])
    was_masked = own != x["masked_token_ids"].numpy()
    assert (given == own)[~was_masked].all()
    assert (given != own)[was_masked].any()
    # What the discriminator says is what it says of these tokens alone.
    alone = model({**{n: x[n] for n in ("padding_mask", "segment_ids")}, "token_ids": given})
    np.testing.assert_allclose(alone, outputs["detection"], atol=1e-6)
    assert outputs["generator"].shape == (*weights.shape, len(TOKENS))


@pytest.mark.slow
def test_the_loss_is_the_papers():
    """Clark et al. 2020, section 2: the generator's over the masks, 50 times that of all tokens."""
    model = task()
    x, y, weights = model.preprocessor(TEXTS)
    weights = ops.convert_to_numpy(weights * keras.random.uniform(weights.shape))
    model.compile()
    outputs = model(x)
    logits = ops.convert_to_numpy(outputs["generator"]).astype("float64")
    detection = ops.convert_to_numpy(outputs["detection"]).astype("float64")
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    of_labels = np.take_along_axis(log_probabilities, y.numpy()[..., None], -1)[..., 0]
    generator = -(of_labels * weights).sum() / weights.sum()
    replaced = ops.convert_to_numpy(outputs["token_ids"]) != x["token_ids"].numpy()
    probability = 1 / (1 + np.exp(-detection))
    real = x["padding_mask"].numpy()
    wrong = -np.log(np.where(replaced, probability, 1 - probability))[real].mean()
    found = model.compute_loss(x, y, outputs, weights)
    np.testing.assert_allclose(found, generator + 50 * wrong, rtol=1e-5)


def hand_written_loss(x, y, outputs, of_texts, masks):
    """The sum of both losses, (B,) weights of texts times the masks (B, M) that count."""
    own, real = np.asarray(x["token_ids"]), np.asarray(x["padding_mask"]).astype("float64")
    logits = ops.convert_to_numpy(outputs["generator"]).astype("float64")
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    of_labels = np.take_along_axis(log_probabilities, np.asarray(y)[..., None], -1)[..., 0]
    masks, real = masks * of_texts[:, None], real * of_texts[:, None]
    probability = 1 / (1 + np.exp(-ops.convert_to_numpy(outputs["detection"]).astype("float64")))
    replaced = ops.convert_to_numpy(outputs["token_ids"]) != own
    wrong = -np.log(np.where(replaced, probability, 1 - probability))
    generator = -(of_labels * masks).sum() / masks.sum()
    return generator + 50 * (wrong * real).sum() / real.sum()


@pytest.fixture
def drawing_the_first(monkeypatch):
    """The generator draws the likeliest tokens, the same in every call."""
    drawn = lambda self, logits: ops.cast(ops.argmax(logits, -1), "int32")  # noqa: E731
    monkeypatch.setattr(ez.ReplacedTokenDetection, "_sample_tokens", drawn)


OF_TEXTS = np.random.default_rng(0).uniform(0.1, 2.0, len(TEXTS)).astype("float32")
OF_TEXTS[3] = 0.0


@pytest.mark.slow
@pytest.mark.parametrize("data", ["texts", "prepared", "dataset"])
def test_weights_of_texts_are_those_of_both_losses(data, drawing_the_first):
    model = task()
    model.preprocessor.dynamic = False  # the same masks of the same texts in every call
    model.compile()
    x, y, masks = model.preprocessor(TEXTS)
    expected = hand_written_loss(x, y, model(x), OF_TEXTS, masks.numpy())
    if data == "prepared":
        given = model.preprocessor(TEXTS, sample_weight=OF_TEXTS)
        x, y, weights = keras.tree.map_structure(np.asarray, given)
        found = model.evaluate(x, y, 30, sample_weight=weights, verbose=0)
    elif data == "dataset":
        dataset = tf.data.Dataset.from_tensors(model.preprocessor(TEXTS, sample_weight=OF_TEXTS))
        found = model.evaluate(dataset, verbose=0)
    else:
        found = model.evaluate(TEXTS, batch_size=30, sample_weight=OF_TEXTS, verbose=0)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4)
    unweighted = hand_written_loss(x, y, model(x), np.ones(len(TEXTS)), masks.numpy())
    assert abs(unweighted - expected) > 1e-3


@pytest.mark.slow
def test_a_text_of_weight_zero_trains_nothing(drawing_the_first):
    gradients = []
    prepared = task().preprocessor(TEXTS[:4], sample_weight=OF_TEXTS[:4])
    for given in (prepared, keras.tree.map_structure(lambda values: values[:3], prepared)):
        model = task()
        model.compile()
        x, y, of_tokens = given
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True), of_tokens)
        found = tape.gradient(loss, [v.value for v in model.trainable_variables])
        gradients.append([tf.convert_to_tensor(g) for g in found if g is not None])
    for first, second in zip(*gradients, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-4)


@pytest.mark.slow
def test_weights_of_packed_texts_are_of_their_tokens():
    model = ez.ReplacedTokenDetection(backbone(), preprocessor(pack_texts=True, sequence_length=32))
    examples = model.preprocessor.encode(TEXTS[:2], sample_weight=[0.5, 2.0])
    packed = {
        name: tf.RaggedTensor.from_row_lengths(values, [2]) for name, values in examples.items()
    }
    x, _, weights = model.preprocessor.collate(packed)
    lengths = examples["token_ids"].row_lengths().numpy()
    expected = np.zeros(32)
    expected[: lengths.sum()] = np.repeat([0.5, 2.0], lengths)
    np.testing.assert_allclose(weights["detection"], expected[None])
    there = np.take_along_axis(expected[None], x["mask_positions"].numpy(), 1)
    of_masks = weights["generator"].numpy()
    np.testing.assert_allclose(of_masks[of_masks > 0], there[of_masks > 0])


@pytest.mark.slow
def test_weights_of_texts_of_prepared_inputs_are_refused():
    model = task()
    model.compile()
    x, y, _ = keras.tree.map_structure(np.asarray, model.preprocessor(TEXTS))
    with pytest.raises(ValueError, match="sample_weight.*shape"):
        model.fit(x, y, sample_weight=OF_TEXTS, verbose=0)


@pytest.mark.slow
def test_nothing_flows_back_through_the_drawing():
    """The generator's own layers learn of the masks alone, whatever the detection's weight."""
    gradients = []
    for detection_weight in (0.0, 50.0):
        model = task(detection_weight=detection_weight)
        model.compile()
        x, y, weights = model.preprocessor(TEXTS)
        own = [v for b in model.generator.backbone.blocks for v in b.trainable_variables]
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True), weights)
        gradients.append(tape.gradient(loss, [v.value for v in own]))
    for first, second in zip(*gradients, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-6)
        assert np.abs(first).max() > 0


def test_generator_and_discriminator_share_their_embeddings():
    model = task()
    mine, generators = model.backbone.embeddings, model.generator.backbone.embeddings
    assert generators.token_embedding is mine.token_embedding
    assert generators.position_embedding is mine.position_embedding
    assert generators.projection is not mine.projection
    assert model.generator.backbone.hidden_dim == 4
    ids = [id(v) for v in model.trainable_variables]
    assert len(set(ids)) == len(ids)


@pytest.mark.matrix
@pytest.mark.slow
def test_both_learn_on_raw_texts():
    texts = [" ".join([word] * (5 + i % 4)) for i, word in enumerate(WORDS)] * 8
    keras.utils.set_random_seed(0)
    large = backbone(hidden_dim=64, intermediate_dim=128, embedding_dim=64)
    model = ez.ReplacedTokenDetection(large, preprocessor(), generator_size=0.5)
    model.compile(learning_rate=0.005)
    history = model.fit(texts, epochs=40, verbose=0).history
    assert history["generator_loss"][-1] < 0.9 * np.log(15)  # of one who knows the words alone
    found = model.evaluate(texts, return_dict=True, verbose=0)
    replaced = 0.15 * (1 - found["generator_accuracy"])
    knows_their_share = -replaced * np.log(replaced) - (1 - replaced) * np.log(1 - replaced)
    assert found["detection_loss"] < 0.9 * knows_their_share


def deberta(tiny):
    return tiny.task(ez.DebertaV2Backbone.family, "ReplacedTokenDetection")


@pytest.mark.slow
def test_debertas_head_compares_every_token_with_the_first(tiny):
    """As Microsoft's code does: LayerNorm of the sum, dense layer, activation, one logit."""
    model, inputs = deberta(tiny), tiny.rows(ez.DebertaV2Backbone.family)
    x = ops.convert_to_numpy(model.backbone(inputs)["sequence_output"]).astype("float64")
    head = model.head
    norm, dense, last = (
        [w.numpy().astype("float64") for w in layer.weights]
        for layer in (head.first_norm, head.hidden.dense, head.output_dense)
    )
    summed = x + x[:, :1]
    centred = summed - summed.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-7) * norm[0] + norm[1]
    hidden = normed @ dense[0] + dense[1]
    hidden = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / np.sqrt(2)))
    expected = (hidden @ last[0] + last[1])[..., 0]
    real = inputs["padding_mask"]
    np.testing.assert_allclose(ops.convert_to_numpy(model(inputs))[real], expected[real], atol=1e-5)


@pytest.mark.slow
def test_debertas_generator_is_as_wide_and_half_as_deep(tiny):
    family = ez.DebertaV2Backbone.family
    large = family.backbone(**{**tiny.sizes(family), "num_layers": 6})
    generator = ez.ReplacedTokenDetection(large).generator.backbone
    assert (generator.num_layers, generator.hidden_dim) == (3, large.hidden_dim)
    assert generator.embeddings.token_embedding is large.embeddings.token_embedding
    smaller = ez.ReplacedTokenDetection(large, generator_size=0.5, generator_depth=0.34).generator
    assert (smaller.backbone.num_layers, smaller.backbone.num_heads) == (2, 1)
    smallest = ez.ReplacedTokenDetection(large, generator_depth=0.01).generator
    assert smallest.backbone.num_layers == 1


@pytest.mark.slow
def test_texts_that_share_a_row_are_compared_with_their_own_first_token(tiny):
    model = deberta(tiny)
    texts = [np.array([2, 9, 12, 3]), np.array([2, 11, 3])]
    row = {"token_ids": np.concatenate(texts)[None], "text_starts": np.array([[0, 4]])}
    packed = ops.convert_to_numpy(model(row))[0]
    alone = [ops.convert_to_numpy(model({"token_ids": text[None]}))[0] for text in texts]
    np.testing.assert_allclose(packed, np.concatenate(alone), atol=1e-5)


@pytest.mark.slow
def test_debertas_discriminator_comes_back_from_files(tiny, tmp_path, caplog):
    model, inputs = deberta(tiny), tiny.rows(ez.DebertaV2Backbone.family)
    model.save_to_preset(tmp_path / "preset")
    model.save(tmp_path / "model.keras")
    names = {name for name in load_file(tmp_path / "preset/model.safetensors") if "mask" in name}
    layers = ("LayerNorm", "classifier", "dense")  # in Microsoft's published files
    assert names == {f"mask_predictions.{n}.{w}" for n in layers for w in ("bias", "weight")}
    loaded = ez.ReplacedTokenDetection.from_preset(tmp_path / "preset")
    assert [record for record in caplog.records if record.name == "encoder_zoo"] == []
    whole = keras.saving.load_model(tmp_path / "model.keras")
    for other in (loaded, whole):
        np.testing.assert_array_equal(other(inputs), model(inputs))


@pytest.mark.slow
def test_it_comes_back_from_files(tmp_path):
    model = task()
    for weight in model.weights:
        weight.assign(weight + keras.random.normal(weight.shape, stddev=0.1))
    inputs = {"token_ids": np.array([[2, 5, 6, 7, 3]])}
    model.save_to_preset(tmp_path / "preset")
    model.generator.save_to_preset(tmp_path / "generator")
    model.save(tmp_path / "model.keras")
    loaded = ez.ReplacedTokenDetection.from_preset(tmp_path / "preset")
    np.testing.assert_array_equal(loaded(inputs), model(inputs))
    generator = ez.MaskedLM.from_preset(tmp_path / "generator")
    np.testing.assert_array_equal(generator(inputs), model.generator(inputs))
    whole = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(whole(inputs), model(inputs))
    np.testing.assert_array_equal(whole.generator(inputs), model.generator(inputs))
    # What is fine-tuned is the discriminator.
    classifier = ez.SequenceClassifier.from_preset(tmp_path / "preset", num_classes=2)
    expected, found = (m.backbone(inputs)["sequence_output"] for m in (model, classifier))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.matrix
@pytest.mark.slow
def test_a_savedmodel_says_what_detect_says(tmp_path):
    model = task()
    texts = [TEXTS[0], "", "cat unknown"]
    model.export(tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    found = {name: values.numpy() for name, values in served(text=tf.constant(texts)).items()}
    for i, tokens in enumerate(model.detect(texts)):
        assert found["count"][i] == len(tokens)
        assert [t.decode() for t in found["token"][i][: len(tokens)]] == [
            token["token"] for token in tokens
        ]
        for name in ("start", "end", "score"):
            expected = [token[name] for token in tokens]
            np.testing.assert_allclose(found[name][i][: len(tokens)], expected, atol=1e-6)


def test_bad_input_gets_an_error_early():
    with pytest.raises(ValueError, match="'bert' has no head"):
        bert = ez.BertBackbone(9, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4)
        ez.ReplacedTokenDetection(bert)
    with pytest.raises(ValueError, match=r"generator_size is 1\.5"):
        ez.ReplacedTokenDetection(backbone(), generator_size=1.5)
    with pytest.raises(ValueError, match="generator_depth is 0"):
        ez.ReplacedTokenDetection(backbone(), generator_depth=0)
    with pytest.raises(ValueError, match=r"detect\(texts\)"):
        task().predict(TEXTS)
