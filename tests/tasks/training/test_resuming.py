"""Training that was killed continues as if nothing had happened."""

import functools
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.presets.files.manifest import write_manifest
from encoder_zoo.tasks.preprocessing.batching import LengthGroupedBatcher, Plan
from encoder_zoo.tasks.training import callbacks
from encoder_zoo.tasks.training.callbacks import STATE
from encoder_zoo.tasks.training.sources import DatasetData, compute_examples_checksum

WORDS = "the cat sat on a mat dog ran film was good bad it is not".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TEXTS = [" ".join(WORDS[(i * 7 + j * 3) % 15] for j in range(3 + i % 9)) for i in range(20)]
LABELS = [i % 2 for i in range(20)]
STEPS = 5  # of an epoch, in batches of 4
SMALL = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}

SCRIPT = """
import json, os, signal, sys
import keras
import encoder_zoo as ez

folder, todo, (tokens, texts, small) = *sys.argv[1:3], json.loads(sys.argv[3])
tokenizer = ez.BertTokenizer(tokens)  # traced once


class Log(keras.callbacks.Callback):
    def __init__(self, name, end):
        super().__init__()
        self.file, self.end = open(f"{folder}/{name}.log", "a", buffering=1), end

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.file.write(json.dumps([self.epoch, batch, logs]) + "\\n")
        if (self.epoch, batch) == (1, 3) and self.end:
            self.end()


def train(name, seed, end=None):
    keras.utils.set_random_seed(seed)
    preprocessor = ez.MaskedLMPreprocessor(tokenizer, sequence_length=16)
    # With scaled losses the optimizer is another one, which Keras builds before it trains.
    dtype = "mixed_float16" if keras.config.backend() == "torch" else "float32"
    backbone = ez.BertBackbone(len(tokens), dropout=0.2, dtype=dtype, **small)
    task = ez.MaskedLM(backbone, preprocessor)
    task.compile(learning_rate=1e-2)
    callbacks = [Log(name, end), ez.BackupAndRestore(f"{folder}/{name}", save_freq=2)]
    task.fit(texts, batch_size=4, epochs=3, verbose=0, callbacks=callbacks)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise InterruptedError


if todo == "kill":
    train("killed", 5, kill)
if todo == "fail":
    try:
        train("killed", 5, fail)
    except InterruptedError:
        pass
train("killed", 6)  # weights, order, masking and dropout can come from the backup alone
train("whole", 5)
"""


class Steps(keras.callbacks.Callback):
    """Notes what is logged of every step, and raises an error at one of them."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.fails_at = fails_at
        self.logs = {}

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.logs[self.epoch, batch] = logs
        if self.fails_at == (self.epoch, batch):
            raise InterruptedError


def assert_same_curve(left: dict, right: dict):
    assert left.keys() == right.keys()
    for step, logs in left.items():
        np.testing.assert_allclose(
            list(logs.values()), [right[step][name] for name in logs], rtol=0, atol=1e-6
        )


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("backend", "todo"),
    [
        pytest.param("tensorflow", ["kill", "continue"], marks=pytest.mark.slow),
        pytest.param("jax", ["fail"], marks=pytest.mark.slow),
        pytest.param("torch", ["fail"], marks=pytest.mark.slow),
    ],
)
def test_killed_training_continues_with_the_same_losses(backend, todo, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed: `pip install {backend}`")
    codes = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, tmp_path, part, json.dumps([TOKENS, TEXTS, SMALL])],
            env={
                **os.environ,
                "KERAS_BACKEND": backend,
                # The trainings compile the same programs.
                "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            },
            timeout=1800,  # for one that hangs
        ).returncode
        for part in todo
    ]
    assert codes == ([-signal.SIGKILL, 0] if "kill" in todo else [0])

    def curve(name):
        return list(map(json.loads, (tmp_path / f"{name}.log").read_text().splitlines()))

    killed, whole = curve("killed"), curve("whole")
    every = [[epoch, step] for epoch in range(3) for step in range(STEPS)]
    assert [line[:2] for line in whole] == every
    # Epoch 1 was left behind its step 3, with a backup of what there was before its step 2.
    assert [line[:2] for line in killed] == every[: STEPS + 4] + every[STEPS + 2 :]
    of_step = {(epoch, step): logs for epoch, step, logs in whole}
    for epoch, step, logs in killed:
        assert_same_curve({0: logs}, {0: of_step[epoch, step]})
    assert len({line[2]["loss"] for line in whole}) == len(every)
    assert not (tmp_path / "killed").exists()


TOKENIZER = functools.cache(lambda: ez.BertTokenizer(TOKENS))  # traced once


def classifier(**arguments):
    """A classifier with dropout, always with the same weights; small, as each step runs eagerly."""
    keras.utils.set_random_seed(3)
    backbone = ez.BertBackbone(len(TOKENS), dropout=0.2, **SMALL, **arguments)
    task = ez.Classifier(backbone, ez.SequenceClassifierPreprocessor(TOKENIZER()), num_classes=2)
    task.compile(learning_rate=1e-2, run_eagerly=True)  # less work than many graphs
    return task


def train(task, backup_dir=None, fails_at=None, data=(TEXTS, LABELS), save_freq=2, **arguments):
    """(curve, history) of a training that may be interrupted."""
    steps = Steps(fails_at)
    backup = [ez.BackupAndRestore(backup_dir, save_freq)] if backup_dir else []
    arguments = {"epochs": 2, "batch_size": 4, "verbose": 0, **arguments}
    try:
        history = task.fit(*data, callbacks=[steps, *backup], **arguments).history
    except InterruptedError:
        history = None
    return steps.logs, history


@pytest.mark.matrix
@pytest.mark.slow
def test_history_and_validation_of_an_epoch_continued_in_its_middle(tmp_path, capsys):
    arguments = {"validation_split": 0.25, "epochs": 3, "initial_epoch": 1, "verbose": 1}
    whole, history = train(classifier(), **arguments)
    before, _ = train(classifier(), tmp_path / "b", fails_at=(1, 3), **arguments)
    capsys.readouterr()
    keras.utils.set_random_seed(99)
    after, continued = train(classifier(), tmp_path / "b", **arguments)
    assert min(after) == (1, 2)
    assert_same_curve({**before, **after}, whole)
    assert continued.keys() == history.keys()
    for name in history:
        np.testing.assert_allclose(continued[name], history[name], rtol=0, atol=1e-6)
    shown = capsys.readouterr().out
    assert "Epoch 2/3" in shown and "Epoch 1/3" not in shown and "3/4" in shown
    assert "1/4" not in shown.split("Epoch 3/3")[0]


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps_per_epoch", "batched"), [pytest.param(None, False, marks=pytest.mark.slow), (4, True)]
)
def test_datasets_continue_behind_the_batches_that_are_done(tmp_path, steps_per_epoch, batched):
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))
    dataset = dataset.batch(4) if batched else dataset
    arguments = {"data": (dataset,), "epochs": 2, "steps_per_epoch": steps_per_epoch}
    whole, _ = train(classifier(), **arguments)
    before, _ = train(classifier(), tmp_path / "b", fails_at=(1, 3), **arguments)
    after, _ = train(classifier(), tmp_path / "b", **arguments)
    assert min(after) == (1, 2)
    assert_same_curve({**before, **after}, whole)


@pytest.mark.slow
def test_prepared_inputs_continue_with_the_same_losses(tmp_path):
    x, y = classifier().preprocessor(TEXTS, LABELS)
    data = {name: values.numpy() for name, values in x.items()}, y.numpy()
    whole, _ = train(classifier(), data=data)
    before, _ = train(classifier(), tmp_path / "b", fails_at=(1, 3), data=data)
    after, _ = train(classifier(), tmp_path / "b", data=data)
    assert min(after) == (1, 2)
    assert_same_curve({**before, **after}, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed", [{"batch_size": 2}, pytest.param({"shuffle": False}, marks=pytest.mark.slow)]
)
def test_another_order_of_single_examples_is_another_run(tmp_path, changed):
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS))
    arguments = {"data": (dataset,), "steps_per_epoch": 5}
    train(classifier(), tmp_path / "b", fails_at=(0, 3), **arguments)
    with pytest.raises(ValueError, match=f"another run: {next(iter(changed))} is"):
        train(classifier(), tmp_path / "b", **arguments, **changed)


@pytest.mark.slow
def test_masks_of_datasets_change_from_epoch_to_epoch_and_can_be_repeated():
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS[:8]).batch(4)
    preprocessor = ez.MaskedLMPreprocessor(TOKENIZER())
    task = ez.MaskedLM(ez.BertBackbone(len(TOKENS), **SMALL), preprocessor)
    stream = DatasetData(dataset).make_source(Plan(4, range(3)), task.batch_maker)
    ids = [batch[0]["token_ids"].numpy().tolist() for batch in stream.make_batches(7, 0)]
    assert len(ids) == 6
    assert ids[0] != ids[2] != ids[4]
    rest = [batch[0]["token_ids"].numpy().tolist() for batch in stream.make_batches(7, 3)]
    assert rest == ids[3:]


@pytest.mark.slow
def test_no_batch_that_is_done_is_made_again():
    made = []
    rows = classifier().preprocess(TEXTS, LABELS)

    def collate(rows, seed):
        tf.py_function(lambda s: made.append(int(s[1])), [seed], [])
        return rows["labels"]

    _, batches = LengthGroupedBatcher(collate).make_training_batches(rows, Plan(4, range(2)))
    rest = batches(seed=1, done=7)
    assert int(rest.cardinality()) == len(list(rest)) == 3
    assert sorted(made) == [7, 8, 9]


@pytest.fixture(scope="module")
def whole():
    """The curve of a training that was not interrupted."""
    return train(classifier())[0]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """The two backups of a training that was interrupted in step 4 of epoch 1."""
    folder = tmp_path_factory.mktemp("interrupted") / "b"
    train(classifier(), folder, fails_at=(1, 4))
    return folder


def damage_tear(backup):
    file = backup / STATE
    file.write_bytes(file.read_bytes()[:1000])


def damage_bit(backup):
    file = backup / STATE
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def damage_place(backup):
    file = backup / "encoder_zoo.json"
    file.write_text(file.read_text().replace('"step": 4', '"step": 5'))


def damage_half(backup):  # weights without what belongs to them
    (backup / "encoder_zoo.json").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        damage_tear,
        *(pytest.param(d, marks=pytest.mark.slow) for d in (damage_bit, damage_place, damage_half)),
    ],
)
def test_a_damaged_backup_is_passed_over_for_the_one_before(damage, interrupted, tmp_path, caplog):
    older, newer = sorted(shutil.copytree(interrupted, tmp_path / "b").iterdir())
    assert (older.name[-1], newer.name[-1]) == ("2", "4")
    damage(newer)
    with caplog.at_level(logging.WARNING, "encoder_zoo"):
        after, _ = train(classifier(), tmp_path / "b", fails_at=(1, 2))
    assert min(after) == (1, 2)
    assert "A backup is skipped" in caplog.text and newer.name in caplog.text
    if damage is damage_tear:  # and it does not count as one of the two that are kept
        train(classifier(), tmp_path / "b", fails_at=(1, 4))
        assert [path.name[-1] for path in sorted((tmp_path / "b").iterdir())] == ["2", "4"]
        damage(older)
        damage(newer)
        with pytest.raises(ValueError, match="2 backups.*complete"):
            train(classifier(), tmp_path / "b")


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["write_manifest", pytest.param("replace", marks=pytest.mark.slow)]
)
def test_a_kill_while_a_backup_is_written_leaves_the_one_before(
    place, whole, tmp_path, monkeypatch
):
    """As by a kill: nothing behind that point runs, also no cleaning up."""
    folder = tmp_path / "b"
    train(classifier(), folder, fails_at=(0, 3))
    (first,) = folder.iterdir()

    def killed(*arguments):
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        if place == "replace":
            patched.setattr(os, "replace", killed)
        else:
            patched.setattr(callbacks, place, killed)
        train(classifier(), folder)
    assert sorted(p.name.startswith(".") for p in folder.iterdir()) == [False, True]
    after, _ = train(classifier(), folder)
    assert min(after) == (0, int(first.name[-1]))
    assert_same_curve(after, {step: whole[step] for step in after})
    assert not folder.exists()


def signed(backup, training):
    """Write the manifest of a backup anew, with checksums of what is there."""
    file = backup / "encoder_zoo.json"
    task = json.loads(file.read_text())["task"]
    file.unlink()
    write_manifest(backup, {"task": task, "training": training})


@pytest.mark.slow(only="^place0")
@pytest.mark.parametrize("place", [(99, 0), (2, 1), (1, 5), (1, 10**12)])
def test_a_place_beyond_the_training_is_refused(interrupted, tmp_path, place):
    folder = shutil.copytree(interrupted, tmp_path / "b")
    for path in folder.iterdir():
        training = json.loads((path / "encoder_zoo.json").read_text())["training"]
        training["position"] |= {"epoch": place[0], "step": place[1]}
        signed(path, training)
    with pytest.raises(ValueError, match=rf"damaged.*epoch {place[0]} and step {place[1]}\b"):
        train(classifier(), folder)


@pytest.mark.slow(except_for="^int8-model")
@pytest.mark.parametrize("group", ["model", "optimizer"])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float64"])
def test_numbers_of_another_type_are_refused(interrupted, tmp_path, group, dtype):
    folder = shutil.copytree(interrupted, tmp_path / "b")
    for path in folder.iterdir():
        arrays = load_file(path / STATE)
        arrays[f"{group}.3"] = arrays[f"{group}.3"].astype(dtype)
        save_file(arrays, path / STATE)
        signed(path, json.loads((path / "encoder_zoo.json").read_text())["training"])
    with pytest.raises(ValueError, match=rf"{group}\.3 is {dtype} in the backup.*float32 now"):
        train(classifier(), folder)


def test_a_backup_of_an_earlier_version_is_restored(interrupted, tmp_path):
    """Its classes were in other modules."""
    folder = shutil.copytree(interrupted, tmp_path / "b")
    for path in folder.iterdir():
        training = json.loads((path / "encoder_zoo.json").read_text())["training"]
        run = training["run"]
        moved = {n for n, v in run.items() if str(v).startswith("encoder_zoo.")}
        assert {"loss.class", "optimizer.module"} <= moved
        for name in moved:
            old, last = "encoder_zoo.training.logit_metrics", run[name].rpartition(".")[2]
            run[name] = old if name.endswith("module") else f"{old}.{last}"
        signed(path, training)
    after, _ = train(classifier(), folder)
    assert min(after) == (1, 4)


@pytest.mark.slow
def test_a_backup_of_another_run_is_refused(interrupted, tmp_path):
    folder = shutil.copytree(interrupted, tmp_path / "b")
    with pytest.raises(ValueError, match="another run.*batch_size is 4.*8"):
        train(classifier(), folder, batch_size=8)
    with pytest.raises(ValueError, match="another run.*epochs is 2.*3"):
        train(classifier(), folder, epochs=3)
    with pytest.raises(ValueError, match="another run.*examples is 20.*19"):
        train(classifier(), folder, data=(TEXTS[:19], LABELS[:19]))
    with pytest.raises(ValueError, match="another run.*sha256"):
        train(classifier(), folder, data=([*TEXTS[:19], "good"], LABELS))
    with pytest.raises(ValueError, match="another run.*attention_dropout is 0.1.*0.3"):
        train(classifier(attention_dropout=0.3), folder)
    task = classifier()
    task.head.output_dense.trainable = False
    with pytest.raises(ValueError, match="another run: variable optimizer"):
        train(task, folder)
    (tmp_path / "b" / "epoch-000009-step-000000000").mkdir()
    write_manifest(tmp_path / "b" / "epoch-000009-step-000000000", {"task": "masked_lm"})
    after, _ = train(classifier(), folder, fails_at=(1, 2))  # that one has no state
    assert min(after) == (1, 4)


def distillation(seed=3, dropout=0.1, **arguments):
    """A student of the teacher with this seed."""
    teacher = classifier()
    rng = np.random.default_rng(seed)
    for weight in teacher.weights:
        weight.assign(weight + rng.normal(size=weight.shape))
    student = ez.Classifier(
        classifier().backbone, classifier().preprocessor, num_classes=2, dropout=dropout
    )
    task = ez.Distillation(teacher, student, **arguments)
    task.compile(learning_rate=1e-2, run_eagerly=True)
    return task


def test_another_teacher_temperature_or_dropout_is_another_run(tmp_path):
    """Release 0.4.0 continued with them, and its backups do not tell them apart."""
    folder = tmp_path / "b"
    train(distillation(), folder, fails_at=(0, 3))
    others = [
        (distillation(seed=4), r"settings.teacher.sha256"),
        (distillation(temperature=4.0), r"settings.temperature is 2.0 in the backup.* 4.0 now"),
        (distillation(label_weight=0.0), r"settings.label_weight is 0.5 in the backup.* 0.0 now"),
        (distillation(dropout=0.5), r"settings.student.dropout is 0.1 in the backup.* 0.5 now"),
    ]
    for other, message in others:
        with pytest.raises(ValueError, match=f"another run: {message}"):
            train(other, folder)
    after, _ = train(distillation(), folder, fails_at=(0, 3))
    assert min(after) == (0, 2)
    for path in folder.iterdir():
        training = json.loads((path / "encoder_zoo.json").read_text())["training"]
        run = training["run"]
        training["run"] = {n: v for n, v in run.items() if not n.startswith("settings.")}
        assert training["run"] != run
        signed(path, training)
    after, _ = train(distillation(temperature=4.0), folder)
    assert min(after) == (0, 2)


def test_examples_of_another_shape_or_type_are_others():
    ids = np.arange(12, dtype="int32")
    examples = [ids.reshape(2, 6), ids.reshape(2, 3, 2), ids.view("float32").reshape(2, 6)]
    found = [compute_examples_checksum({"token_ids": part}) for part in examples]
    assert {row["examples"] for row in found} == {2}
    assert len({row["sha256"] for row in found}) == 3


class Scaled(keras.losses.Loss):
    """A loss that has no `get_config` of its own."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, y_true, y_pred):
        return self.factor * keras.losses.sparse_categorical_crossentropy(y_true, y_pred, True)


def scaled(y_true, y_pred, factor=1.0):
    return factor * keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


def with_loss(loss):
    task = classifier()
    task.compile(loss=loss)
    return task


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "other", "message"),
    [
        (lambda: Scaled(2.0), lambda: Scaled(3.0), "loss.factor is 2.0 in the backup.* 3.0 now"),
        (lambda: scaled, lambda: Scaled(2.0), "loss.*is.*scaled.*in the backup"),
        (
            lambda: functools.partial(scaled, factor=2.0),
            lambda: functools.partial(scaled, factor=3.0),
            "loss.keywords.factor is 2.0 in the backup.* 3.0 now",
        ),
        (
            lambda: keras.losses.SparseCategoricalCrossentropy(True),
            lambda: keras.losses.SparseCategoricalCrossentropy(True, ignore_class=0),
            "ignore_class is None in the backup.* 0 now",
        ),
        (lambda: lambda y, z: scaled(y, z), lambda: scaled, "loss is.*<lambda>.*in the backup"),
    ],
)
def test_another_loss_is_another_run(tmp_path, loss, other, message):
    train(with_loss(loss()), tmp_path / "b", fails_at=(0, 3))
    with pytest.raises(ValueError, match=f"another run: .*{message}"):
        train(with_loss(other()), tmp_path / "b")
    after, _ = train(with_loss(loss()), tmp_path / "b", fails_at=(0, 3))
    assert min(after) == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{1: 3.0}, {"1": 3.0}, "balanced"])
def test_other_class_weights_are_another_run(tmp_path, given):
    task = ez.Classifier(classifier().backbone, classifier().preprocessor, labels=["0", "1"])
    task.compile(learning_rate=1e-2, run_eagerly=True)
    data = (TEXTS, [str(int(i > 4)) for i in range(20)])
    if given == {1: 3.0}:
        task, data = classifier(), (TEXTS, LABELS)
    train(task, tmp_path / "b", fails_at=(0, 3), data=data, class_weight=given)
    weights = r"\[2.0, 0.66.*\]" if given == "balanced" else r"\[1.0, 3.0\]"  # of 5 and 15 texts
    for other, shown in ((None, "None"), ({key(given): 9.0}, r"\[1.0, 9.0\]")):
        with pytest.raises(
            ValueError, match=f"class_weight is {weights} in the backup.*{shown} now"
        ):
            train(task, tmp_path / "b", data=data, class_weight=other)
    after, _ = train(task, tmp_path / "b", fails_at=(0, 3), data=data, class_weight=given)
    assert min(after) == (0, 2)


def key(given):
    return next(iter(given)) if isinstance(given, dict) else "1"


@pytest.mark.matrix
@pytest.mark.slow
def test_finished_training_removes_its_backups_only(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    train(classifier(), tmp_path, save_freq="epoch")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    kept = ez.BackupAndRestore(tmp_path / "b", delete_checkpoint=False)
    task = classifier()
    task.fit(TEXTS, LABELS, 4, callbacks=[kept], verbose=0)
    again = classifier()
    assert not again.fit(TEXTS, LABELS, 4, callbacks=[kept], verbose=0).history
    np.testing.assert_array_equal(again.predict(TEXTS, verbose=0), task.predict(TEXTS, verbose=0))


@pytest.mark.slow
def test_what_backup_and_restore_does_not_take(tmp_path):
    for wrong in (0, -1, True, "batch"):
        with pytest.raises(ValueError, match="save_freq is"):
            ez.BackupAndRestore(tmp_path, save_freq=wrong)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse")
    with pytest.raises(ValueError, match="keras.callbacks.BackupAndRestore"):
        model.fit(np.ones((2, 1)), np.ones(2), callbacks=[ez.BackupAndRestore(tmp_path)])


def saved_preset(folder):
    classifier().save_to_preset(folder)
    return folder


@pytest.mark.slow
def test_a_folder_of_something_else_is_no_place_for_backups(tmp_path):
    preset = saved_preset(tmp_path / "preset")
    before = {path.name: path.read_bytes() for path in preset.iterdir()}
    with pytest.raises(ValueError, match="backup_dir is.*preset'.*encoder_zoo.json"):
        train(classifier(), preset)
    assert {path.name: path.read_bytes() for path in preset.iterdir()} == before
    (preset / "encoder_zoo.json").unlink()
    with pytest.raises(ValueError, match="backup_dir is.*preset'.*config.json"):
        train(classifier(), preset)
    with pytest.raises(ValueError, match="backup_dir is.*vocab.txt'"):
        train(classifier(), preset / "vocab.txt")


@pytest.mark.matrix
@pytest.mark.slow
def test_a_preset_in_the_place_of_a_backup_is_passed_over(tmp_path, caplog):
    folder = tmp_path / "b"
    before, _ = train(classifier(), folder, fails_at=(1, 2))
    newest = saved_preset(folder / "epoch-000009-step-000000000")
    (newest / "state.safetensors").write_bytes((newest / "model.safetensors").read_bytes())
    (newest / "encoder_zoo.json").unlink()
    write_manifest(newest, {"task": "sequence_classifier"})
    after, _ = train(classifier(), folder)
    assert max(before) == min(after) == (1, 2)
    assert "step-000000000" in caplog.text


@pytest.mark.slow(except_for=r"^training7$")
@pytest.mark.parametrize(
    "training",
    [
        5,
        {},
        {"position": {"epoch": 0, "step": 0, "seed": 1}},
        {"position": {"epoch": 0, "step": -1, "seed": 1}, "run": {}},
        {"position": {"epoch": 0, "step": 0}, "run": {}},
        {"position": {"epoch": 0, "step": "2", "seed": 1}, "run": {}},
        {"position": {"epoch": 0, "step": 0, "seed": 1}, "run": []},
        {"position": {"epoch": 0, "step": 0, "seed": 1}, "run": {}, "window_sizes": 5},
    ],
)
def test_manifests_of_no_backup(tmp_path, training):
    only = tmp_path / "b" / "epoch-000000-step-000000002"
    only.mkdir(parents=True)
    save_file({"model.0": np.zeros(1)}, only / STATE)
    write_manifest(only, {"task": "sequence_classifier", "training": training})
    with pytest.raises(ValueError, match="1 backups in.*complete"):
        train(classifier(), tmp_path / "b")


@pytest.mark.slow
def test_files_of_others_beside_backups_stay(tmp_path):
    for name in ("epoch-01.keras", ".epoch-notes", "epoch-of-nothing"):
        (tmp_path / name).write_text("mine")
    train(classifier(), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"epoch-01.keras", ".epoch-notes", "epoch-of-nothing"}


class Spoil(keras.callbacks.Callback):
    """Makes a weight NaN before a step."""

    async_safe = True

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.step:
            bias = self.model.trainable_variables[-1]
            bias.assign(np.full(bias.shape, np.nan))


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_the_training_and_names_the_step(tmp_path):
    saved = keras.callbacks.ModelCheckpoint(
        tmp_path / "saved.weights.h5", save_freq=1, save_weights_only=True
    )
    with pytest.raises(FloatingPointError, match="Epoch 1/2, step 1/5: the loss is nan.*clip"):
        classifier().fit(
            TEXTS, LABELS, 4, 2, callbacks=[Spoil(0), saved], verbose=0, validation_split=0
        )
    assert not (tmp_path / "saved.weights.h5").exists()
    with pytest.raises(FloatingPointError, match="Epoch 1/2, step 5/5: the loss is nan"):
        classifier().fit(TEXTS, LABELS, 4, 2, callbacks=[Spoil(4)], verbose=0)
    quietly = keras.callbacks.TerminateOnNaN()
    history = classifier().fit(TEXTS, LABELS, 4, 2, callbacks=[Spoil(2), quietly], verbose=0)
    assert len(history.epoch) == 1


@pytest.mark.slow
def test_weights_that_are_no_numbers_are_not_backed_up(tmp_path):
    backup = ez.BackupAndRestore(tmp_path / "b", save_freq=2)
    with pytest.raises(FloatingPointError, match="Epoch 1/2, step 4/5: the weights or the loss"):
        classifier().fit(TEXTS, LABELS, 4, 2, callbacks=[Spoil(4), backup], verbose=0)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["epoch-000000-step-000000002"]


def other_worker(monkeypatch, numbers):
    """Has a second worker call with these numbers where the first one calls with as many."""
    monkeypatch.setattr(
        callbacks, "gather_from_workers", lambda strategy, mine: [mine, numbers[len(mine)]]
    )


def test_workers_that_call_fit_differently_are_told(tmp_path, monkeypatch):
    task = classifier()
    other_worker(monkeypatch, {3: [1, 9, 0]})
    with pytest.raises(ValueError, match="5 steps and backups / 9 steps"):
        train(task, tmp_path / "b")


def test_workers_with_different_backups_are_told(tmp_path, monkeypatch):
    task = classifier()
    others = {3: [1, STEPS, 1], 2: [1, 4]}  # seed, steps and backups; epoch and step
    other_worker(monkeypatch, others)
    with pytest.raises(ValueError, match="epoch 1, step 0 / epoch 2, step 4"):
        train(task, tmp_path / "b")
