"""Checks for tasks, including training, prediction, saving, loading and export."""

from __future__ import annotations

import inspect
import tempfile

import keras
import numpy as np

from encoder_zoo.common.configuration import get_argument_names
from encoder_zoo.encoders.family import Family
from encoder_zoo.presets.formats.checkpoint import map_weights
from encoder_zoo.tasks import TASKS, get_task
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.testing import comparing, tiny
from encoder_zoo.testing.family_conformance import assert_all_reached


def check_task_is_registered(cls: type[Task], family: Family) -> None:
    """Check that the task is registered, and supports its preprocessor and the family."""
    record = cls.record
    name, method = record.name, record.text_method
    assert name in TASKS and get_task(name) is cls, f"{name!r} is another class in TASKS"
    theirs = record.preprocessor_class.task_name
    assert theirs == name or issubclass(cls, get_task(theirs)), (
        f"{record.preprocessor_class.__name__}.task_name is {theirs!r}, expected {name!r}"
    )
    assert cls.supports(family), f"{family.name} has no head {record.head}"
    assert not method or hasattr(cls, method), f"no method {method}"


def check_every_head_weight_has_one_name(cls: type[Task], family: Family) -> None:
    """Check that `Head.tensors` contains a unique name for each trainable weight in the head."""
    task = tiny.task(family, cls)
    named = [weight for weight, _ in map_weights(task, task.head_record.tensors).values()]
    parts = [part for part in vars(task).values() if isinstance(part, keras.Model)]
    inside = {id(weight) for part in parts for weight in part.weights}
    inside |= {id(weight) for weight in task.record.folder.list_additional_weights(task)}
    own = [weight for weight in task.trainable_weights if id(weight) not in inside]
    absent = [w.path for w in own if id(w) not in {id(n) for n in named}]
    assert not absent, f"without a name in the checkpoint: {', '.join(absent)}"
    assert len(named) == len(own), "two weights have the same name, or a name has no weight"


def check_get_config_round_trip(cls: type[Task], family: Family) -> None:
    """Check that arguments and outputs are the same after `from_config`."""
    task, inputs = tiny.task(family, cls, dropout=0.35), tiny.examples(family)
    again = cls.from_config(task.get_config())
    for name in set(get_argument_names(cls)) - {"backbone", "preprocessor", "head"}:
        found, expected = getattr(again, name), getattr(task, name)
        assert found == expected, f"{name} is {found!r}, expected {expected!r}"
    again.set_weights(task.get_weights())
    comparing.assert_same_outputs(again, task, inputs)


def check_keras_file_round_trip(cls: type[Task], family: Family) -> None:
    """Check that outputs are the same after `save` and `keras.saving.load_model`."""
    comparing.assert_keras_file_round_trip(tiny.task(family, cls), tiny.examples(family))


def check_preset_round_trip(cls: type[Task], family: Family) -> None:
    """Check that outputs, labels and tokenizer are the same after `from_preset`."""
    task, inputs = tiny.task(family, cls), tiny.examples(family)
    with tempfile.TemporaryDirectory() as folder, comparing.assert_no_warnings():
        task.save_to_preset(folder)
        again = cls.from_preset(folder)
    comparing.assert_same_outputs(again, task, inputs)
    assert again.labels == task.labels, f"labels are {again.labels}, expected {task.labels}"
    found, expected = (each.preprocessor.tokenizer.get_config() for each in (again, task))
    # Rerankers save the sequence length as `model_max_length`, as in sentence-transformers.
    found["model_max_length"] = expected["model_max_length"]
    assert found == expected, "another tokenizer"


def check_padding_and_batching_change_nothing(cls: type[Task], family: Family) -> None:
    """Check that padding ids and other examples in the batch do not change outputs."""
    comparing.assert_batching_changes_nothing(tiny.task(family, cls), tiny.examples(family))


def check_mixed_precision_is_close(cls: type[Task], family: Family) -> None:
    """Check that the outputs with mixed_bfloat16 are in float32, and nearly the same."""
    exact, mixed = tiny.task(family, cls), tiny.task(family, cls, dtype="mixed_bfloat16")
    inputs = tiny.examples(family)
    comparing.assert_mixed_precision_is_close(exact, mixed, inputs)
    kinds = {str(values.dtype) for values in comparing.compute_outputs(mixed, inputs)}
    assert kinds == {"float32"}, f"outputs are {kinds}, expected float32"


def check_gradients_reach_every_weight(cls: type[Task], family: Family) -> None:
    """Check that all trainable weights have gradients, based on the loss for raw inputs."""
    import tensorflow as tf

    task, data = tiny.task(family, cls), cls.tiny_data()
    given = task._read_data(data.x, data.y)
    batch = task.preprocessor(given.x, given.y)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    with tf.GradientTape() as tape:
        loss = task.compute_loss(x, y, task(x, training=True), sample_weight)
    assert np.isfinite(loss), f"the loss is {float(loss)}"
    found = tape.gradient(loss, [weight.value for weight in task.trainable_weights])
    assert_all_reached(task, found)


def _compile_for_few_steps(task: Task) -> None:
    """Compile a task for a few training steps.

    To save time, no graph is used on TensorFlow. On JAX, the step is compiled, because eager
    execution would compile each operation separately.
    """
    task.compile(run_eagerly=keras.backend.backend() == "tensorflow")


def check_training_on_raw_inputs(cls: type[Task], family: Family) -> None:
    """Check that `fit`, `evaluate` and `predict` accept raw inputs, and `fit` updates weights."""
    task, data = tiny.task(family, cls), cls.tiny_data()
    before = [keras.ops.convert_to_numpy(weight) for weight in task.trainable_weights]
    _compile_for_few_steps(task)
    loss = task.fit(data.x, data.y, batch_size=1, verbose=0).history["loss"]
    assert np.isfinite(loss).all(), f"the loss is {loss}"
    after = [keras.ops.convert_to_numpy(weight) for weight in task.trainable_weights]
    changed = [np.any(a != b) for a, b in zip(after, before, strict=True)]
    assert any(changed), "fit did not change any weight"
    results = task.evaluate(data.x, data.y, verbose=0, return_dict=True)
    assert np.isfinite(results["loss"]), f"evaluate returned {results}"
    count = len(data.x[0] if isinstance(data.x, tuple) else data.x)
    if task.record.instead_of_predict is None:
        found = len(task.predict(data.x, verbose=0))
        assert found == count, f"predict returned {found} outputs for {count} inputs"
    else:
        with comparing.assert_raises("preprocessed inputs"):
            task.predict(data.x, verbose=0)
    if task.record.text_method:
        answers = getattr(task, task.record.text_method)(*task.tiny_questions())
        found = answers.shape[0] if hasattr(answers, "shape") else len(answers)
        name = task.record.text_method
        assert found == count, f"{name} returned {found} results for {count} inputs"


def check_preprocessed_inputs(cls: type[Task], family: Family) -> None:
    """Check that `predict` accepts preprocessed inputs, and raises errors for invalid inputs."""
    task, inputs = tiny.task(family, cls), tiny.examples(family)
    _compile_for_few_steps(task)
    outputs = keras.tree.flatten(task.predict(inputs, verbose=0))
    comparing.assert_same(outputs, comparing.compute_outputs(task, inputs), atol=1e-5)
    ids = inputs["token_ids"]
    for wrong, name in (({"token_ids": ids + 1000}, "token_ids"), ({"ids": ids}, "ids")):
        with comparing.assert_raises(name):
            task.predict({**inputs, **wrong}, verbose=0)


def check_other_preprocessor_raises(cls: type[Task], family: Family) -> None:
    """Check that the preprocessor of another task raises an error that names the expected class."""
    preprocessor = cls.record.preprocessor_class(tiny.tokenizer(family))
    preprocessor.task_name = "another"
    backbone = tiny.backbone(family, pooler=cls.get_family_head(family).pooled)
    with comparing.assert_raises(f"Expected {cls.record.preprocessor_class.__name__}"):
        cls(backbone, preprocessor, **cls.tiny_data().arguments)


def check_export_has_same_outputs(cls: type[Task], family: Family) -> None:
    """Check that the outputs of an exported SavedModel are the same as for the task."""
    import tensorflow as tf

    task = tiny.task(family, cls)
    if task.record.text_method is None:
        return
    function = task.signatures()["serving_default"]
    given = dict(zip(inspect.signature(function).parameters, task.tiny_questions(), strict=True))
    inputs = {name: tf.constant(texts) for name, texts in given.items()}
    with tempfile.TemporaryDirectory() as folder:
        task.export(f"{folder}/1")
        loaded = tf.saved_model.load(f"{folder}/1")
        found = loaded.signatures["serving_default"](**inputs)
    expected = tf.function(function)(**inputs)  # the difference would be larger for eager execution
    assert found.keys() == expected.keys(), f"{sorted(found)}, expected {sorted(expected)}"
    for name, values in expected.items():
        if values.dtype.is_floating:
            np.testing.assert_allclose(found[name], values, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], values, err_msg=name)


TASK_CHECKS = [
    check_task_is_registered,
    check_every_head_weight_has_one_name,
    check_get_config_round_trip,
    check_keras_file_round_trip,
    check_preset_round_trip,
    check_padding_and_batching_change_nothing,
    check_mixed_precision_is_close,
    check_training_on_raw_inputs,
    check_preprocessed_inputs,
    check_other_preprocessor_raises,
]
if keras.config.backend() == "tensorflow":
    TASK_CHECKS += [check_gradients_reach_every_weight, check_export_has_same_outputs]
