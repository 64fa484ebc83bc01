"""Prepared inputs that cannot be meant are refused by name, before anything is traced."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import encoder_zoo as ez
from encoder_zoo.encoders import get_family

SLOW = pytest.mark.slow
IDS = np.array([[2, 5, 6, 3], [2, 7, 3, 0], [2, 8, 9, 3]])
GOOD = {
    "token_ids": IDS,
    "padding_mask": (IDS > 0).astype("int32"),
    "segment_ids": np.zeros_like(IDS),
}


def at_row_1(name, value):
    values = GOOD[name].copy()
    values[1, 2] = value
    return {**GOOD, name: values}


EMPTY_ROW = {**GOOD, "padding_mask": np.array([[1] * 4, [0] * 4, [1] * 4])}
TOO_LONG = {"token_ids": np.full((2, 17), 5)}
# What is in the numbers: these are found in a dataset, too.
WRONG_NUMBERS = [
    (at_row_1("token_ids", -1), "token_ids has -1", "Expected integers from 0 to 29."),
    (at_row_1("token_ids", 30), "token_ids has 30", "Expected integers from 0 to 29."),
    (at_row_1("token_ids", 2**40), "token_ids has 1099511627776", "Expected integers"),
    (at_row_1("segment_ids", 2), "segment_ids has 2", "Expected integers from 0 to 1."),
    (at_row_1("segment_ids", -1), "segment_ids has -1", "Expected integers from 0 to 1."),
    (at_row_1("padding_mask", 2), "padding_mask has 2", "Expected integers from 0 to 1."),
    (EMPTY_ROW, "padding_mask has no token", "Expected 1 for at least one token."),
]
WRONG_FORMS = [
    ({**GOOD, "token_ids": IDS.astype("float32")}, "token_ids has dtype float32"),
    ({**GOOD, "token_ids": IDS > 0}, "token_ids has dtype bool"),
    ({**GOOD, "token_ids": IDS.astype(str)}, "token_ids has dtype <U21"),
    ({**GOOD, "padding_mask": np.ones(IDS.shape)}, "padding_mask has dtype float64"),
    ({**GOOD, "segment_ids": np.ones(IDS.shape)}, "segment_ids has dtype float64"),
    ({**GOOD, "padding_mask": np.ones((3, 5), int)}, r"padding_mask has shape \(3, 5\)"),
    ({**GOOD, "padding_mask": np.ones((2, 4), int)}, r"padding_mask has shape \(2, 4\)"),
    ({"token_ids": IDS[0]}, r"token_ids has shape \(4,\)"),
    ({**GOOD, "tokens": IDS}, "has no input 'tokens'. Did you mean 'token_ids'"),
    ({**GOOD, "attention_mask": IDS}, "has no input 'attention_mask'. Did you mean 'padding_"),
    ({**GOOD, "x": IDS}, "has no input 'x'"),
    ({"input_ids": IDS}, "has no input 'input_ids'. Did you mean 'token_ids'"),
    ({"padding_mask": IDS}, r"token_ids is missing.*\['padding_mask'\]"),
    (TOO_LONG, "token_ids is 17.* 16.*sequence_length"),
]


@pytest.fixture(scope="module")
def model(tiny):
    model = tiny.task(get_family("bert"), "SequenceClassifier")
    model.compile(learning_rate=1e-9)
    return model


def methods(model, x):
    """Everything that takes prepared inputs in memory, called with them."""
    y = np.zeros(len(next(iter(x.values()))), "int32")
    good, labels = dict(GOOD), np.zeros(3, "int32")
    return {
        "fit": lambda: model.fit(x, y, verbose=0),
        "validation": lambda: model.fit(good, labels, validation_data=(x, y), verbose=0),
        "evaluate": lambda: model.evaluate(x, y, verbose=0),
        "predict": lambda: model.predict(x, verbose=0),
        "predict_proba": lambda: model.predict_proba(x),
        "classify": lambda: model.classify(x),
        "predict_on_batch": lambda: model.predict_on_batch(x),
        "train_on_batch": lambda: model.train_on_batch(x, y),
        "test_on_batch": lambda: model.test_on_batch(x, y),
    }


@pytest.mark.parametrize(("x", "what", "expected"), WRONG_NUMBERS)
def test_numbers_in_memory(model, x, what, expected):
    for call in methods(model, x).values():
        with pytest.raises(ValueError, match=f"^{what} in row 1. {expected}"):
            call()


@pytest.mark.parametrize(("x", "message"), WRONG_FORMS)
def test_forms_in_memory(model, x, message):
    for call in methods(model, x).values():
        with pytest.raises(ValueError, match=message):
            call()


def test_texts_are_no_prepared_inputs(model):
    """Texts ended in "dictionary update sequence element #0 has length 9; 2 is required"."""
    texts = ["a b", "c"]
    for call in (model.train_on_batch, model.test_on_batch, model.predict_on_batch):
        with pytest.raises(ValueError, match=r"x is.*preprocessor\(texts\)"):
            call(texts)
    assert model.predict_on_batch(model.preprocessor(texts)).shape[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["lists", "bool", *(pytest.param(kind, marks=SLOW) for kind in ("tensors", "int64", "uint8"))],
)
def test_what_is_right_is_taken_as_before(model, kind):
    expected = model.predict(GOOD, verbose=0)
    convert = {
        "lists": np.ndarray.tolist,
        "tensors": tf.constant,
        "int64": lambda values: values.astype("int64"),
        "uint8": lambda values: values.astype("uint8"),
        "bool": lambda values: values,
    }[kind]
    x = {name: convert(values) for name, values in GOOD.items()}
    if kind == "bool":
        x["padding_mask"] = x["padding_mask"] > 0
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-6)
    assert np.isfinite(model.evaluate(x, np.array([0, 1, 2]), verbose=0)).all()
    assert np.isfinite(model.fit(x, np.array([0, 1, 2]), verbose=0).history["loss"]).all()


@pytest.mark.slow
def test_only_token_ids_must_be_there(model):
    full = {"token_ids": IDS, "padding_mask": np.ones_like(IDS)}
    np.testing.assert_allclose(
        model.predict({"token_ids": IDS}, verbose=0), model.predict(full, verbose=0), atol=1e-6
    )


def test_rows_of_different_lengths_are_named(model):
    with pytest.raises(ValueError, match="token_ids has rows"):
        model.predict({"token_ids": [[2, 3], [2, 5, 3]]})
    with pytest.raises(ValueError, match="token_ids is.*ragged"):
        model.predict({"token_ids": tf.ragged.constant([[2, 3], [2, 5, 3]])})


def dataset_of(x):
    return tf.data.Dataset.from_tensors((x, np.zeros(3, "int32")))


@pytest.mark.slow(except_for="^x0")
@pytest.mark.parametrize(("x", "what", "expected"), WRONG_NUMBERS)
def test_numbers_in_a_dataset(model, x, what, expected):
    for method in (model.evaluate, model.predict):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            method(dataset_of(x), verbose=0)
        assert f"Row 1 of the batch: {what}" in str(error.value)
        assert expected in str(error.value)


@pytest.mark.parametrize(("x", "message"), WRONG_FORMS)
def test_forms_in_a_dataset(model, x, message):
    dataset = tf.data.Dataset.from_tensors((x, np.zeros(3, "int32")))
    message = message.replace("<U21", "string")
    for method in (model.fit, model.evaluate, model.predict):
        with pytest.raises(ValueError, match=message):
            method(dataset, verbose=0)


@pytest.mark.slow
def test_a_right_dataset_gives_what_arrays_give(model):
    x = model.predict(GOOD, verbose=0)
    np.testing.assert_allclose(model.predict(dataset_of(GOOD), verbose=0), x, atol=1e-6)
    by_mask = dataset_of({**GOOD, "padding_mask": GOOD["padding_mask"] > 0})
    np.testing.assert_allclose(model.predict(by_mask, verbose=0), x, atol=1e-6)
    empty = dataset_of({**EMPTY_ROW, "padding_mask": EMPTY_ROW["padding_mask"] > 0})
    with pytest.raises(tf.errors.InvalidArgumentError, match="Row 1.*padding_mask has no token"):
        model.predict(empty, verbose=0)
    weighted = tf.data.Dataset.from_tensors((GOOD, np.zeros(3, "int32"), np.ones(3)))
    unlabelled = tf.data.Dataset.from_tensors(GOOD)
    np.testing.assert_allclose(model.predict(unlabelled, verbose=0), x, atol=1e-6)
    assert np.isfinite(model.fit(weighted, verbose=0).history["loss"]).all()


# -- called directly -----------------------------------------------------------------------------


FORMS_OF_A_CALL = [case for case in WRONG_FORMS if case[0] is not TOO_LONG]


@pytest.mark.parametrize(("x", "message"), FORMS_OF_A_CALL)
def test_direct_calls(model, x, message):
    for called in (model, model.backbone):
        with pytest.raises(ValueError, match=message):
            called(x)


def test_a_backbone_passes_over_what_tasks_alone_read(model):
    inputs = {**GOOD, "mask_positions": IDS[:, :1]}
    found, expected = (model.backbone(x)["sequence_output"] for x in (inputs, GOOD))
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="SequenceClassifier.*'mask_positions'"):
        model(inputs)


def test_direct_calls_of_something_else(model):
    for called, name in ((model, "SequenceClassifier"), (model.backbone, "BertBackbone")):
        for wrong in (IDS, [IDS], "text"):
            with pytest.raises(TypeError, match=f"(?s)^inputs is.*token_ids.*{name}"):
                called(wrong)


@pytest.mark.slow
def test_in_a_functional_model(model):
    names = "token_ids", "padding_mask"
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    outputs = model.backbone(inputs)["sequence_output"]
    found = keras.Model(inputs, outputs)({name: GOOD[name] for name in names})
    expected = model.backbone({name: GOOD[name] for name in names})["sequence_output"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(ValueError, match="token_ids has dtype float32"):
        model.backbone({"token_ids": keras.Input((None,), name="token_ids")})


# -- other tasks ---------------------------------------------------------------------------------


def batch_of(task):
    """What a task's own preprocessor makes."""
    texts = ["abc d", "b"]
    given = {
        "SpanQA": ((texts, ["ab cd", "ef gh"]), None),
        "TokenClassifier": (texts, [[], []]),
        "Pretraining": ((texts, texts), [0, 1]),
    }.get(type(task).__name__, (texts, None))
    batch = task.preprocessor(*given)
    x = keras.utils.unpack_x_y_sample_weight(batch)[0]
    return {name: values.numpy() for name, values in x.items()}


OTHERS = [
    ("bert", "TokenClassifier", ("span_marks",)),
    pytest.param("bert", "SpanQA", (), marks=SLOW),
    pytest.param("bert", "MaskedLM", ("mask_positions",), marks=SLOW),
    pytest.param("bert", "Pretraining", ("mask_positions",), marks=SLOW),
    ("electra", "ReplacedTokenDetection", ("mask_positions", "masked_token_ids")),
    pytest.param("roberta", "MaskedLM", ("mask_positions",), marks=SLOW),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name", "extra"), OTHERS)
def test_every_task_takes_what_its_preprocessor_makes_and_no_more(tiny, family, name, extra):
    task = tiny.task(get_family(family), name)
    x = batch_of(task)
    assert set(extra) == set(x) - {"token_ids", "padding_mask", "segment_ids"}
    outputs = keras.tree.flatten(task.predict(x, verbose=0))
    assert all(np.isfinite(values).all() for values in outputs)
    with pytest.raises(ValueError, match=f"^{name} has no input 'labels'"):
        task.predict({**x, "labels": x["token_ids"]})
    for key in extra:
        last = x["token_ids"].shape[1] - 1
        most = {"masked_token_ids": 29, "span_marks": 2**16}.get(key, last)
        for wrong in (-1, most + 1):
            values = x[key].copy()
            values[1, 0] = wrong
            with pytest.raises(ValueError, match=f"^{key} has {wrong} in row 1. .* 0 to {most}."):
                task.predict({**x, key: values})


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    ["modernbert", *(pytest.param(name, marks=SLOW) for name in ("roberta", "distilbert"))],
)
def test_families_without_segments_take_segment_0_only(tiny, family):
    backbone = tiny.backbone(get_family(family), pooler=False)
    task = ez.TokenClassifier(backbone, num_classes=2)
    task.predict(GOOD, verbose=0)
    with pytest.raises(ValueError, match="segment_ids has 1 in row 1"):
        task.predict(at_row_1("segment_ids", 1))


@pytest.mark.slow
def test_families_without_positions_have_a_longest_row_too(tiny):
    task = ez.TokenClassifier(tiny.backbone(get_family("modernbert"), pooler=False), num_classes=2)
    with pytest.raises(ValueError, match="token_ids is 17.* 16"):
        task.predict(TOO_LONG)


@pytest.mark.slow
def test_weights_of_validation_data_count(model):
    y, weights = np.array([0, 1, 0]), np.array([0.0, 3.0, 1.0])
    data = (GOOD, y, weights)
    found = model.fit(GOOD, y, validation_data=data, verbose=0).history["val_loss"][0]
    alone = model.evaluate(GOOD, y, sample_weight=weights, verbose=0)[0]
    assert found == pytest.approx(alone, rel=1e-5)
    assert found != pytest.approx(model.evaluate(GOOD, y, verbose=0)[0], rel=1e-5)
