"""Replaced-token detection: what is masked, drawn and learnt, and what is saved of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

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
    drawn = ops.convert_to_numpy(model._drawn(logits))
    found = np.bincount(drawn.ravel(), minlength=4)
    error = np.sqrt(20_000 * probabilities * (1 - probabilities))
    assert (np.abs(found - 20_000 * probabilities) < 4 * error).all(), found
    again = ops.convert_to_numpy(model._drawn(logits))
    assert (again != drawn).any()  # others in every step


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


def test_the_loss_is_the_papers():
    """Clark et al. 2020, section 2: the generator's over the masks, 50 times that of all tokens."""
    model = task()
    x, y, weights = model.preprocessor(TEXTS)
    weights = (weights * tf.random.uniform(weights.shape)).numpy()
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


def test_it_comes_back_from_files(tmp_path):
    model = task()
    for weight in model.weights:
        weight.assign(weight + tf.random.normal(weight.shape, stddev=0.1))
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
    with pytest.raises(ValueError, match="The family 'bert' has no head that tells replaced"):
        bert = ez.BertBackbone(9, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4)
        ez.ReplacedTokenDetection(bert)
    with pytest.raises(ValueError, match=r"generator_size is 1\.5"):
        ez.ReplacedTokenDetection(backbone(), generator_size=1.5)
    with pytest.raises(ValueError, match=r"Use detect\(texts\)"):
        task().predict(TEXTS)
