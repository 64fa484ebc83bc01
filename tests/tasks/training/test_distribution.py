"""Training on several devices and in several processes equals training on one device."""

import contextlib
import json
import os
import shutil
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import CHECKPOINTS
from processes import PATIENCE, cluster_of_two, free_addresses, run, start_process

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks import list_tasks
from encoder_zoo.tasks.losses.batch_loss import BatchLoss
from encoder_zoo.tasks.training.distribution import Distribution, split_batches
from encoder_zoo.testing import tiny

CHECKPOINT = CHECKPOINTS / "Roberta_ForSequenceClassification"
TASKS = ["sequence", "token", "masked", "span", "pairs"]

# All tasks, trained on 17 examples in batches of 8: the last one has a single row, so that one of
# two replicas has none. Called with a mode, the folder of a checkpoint, a file for the results, a
# folder for backups, and the tasks.
SCRIPT = """
import contextlib, functools, gc, json, os, signal, sys, tempfile
import numpy as np
import tensorflow as tf

mode, folder, results_file, backups, *tasks = sys.argv[1:]
strategy, worker = None, 0
if mode == "one_and_mirrored":
    [cpu] = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
else:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    worker = strategy.cluster_resolver.task_id

import keras
import encoder_zoo as ez
from encoder_zoo.tasks.losses.batch_loss import BatchLoss, average_over_replicas

gc.freeze()  # tracing makes many objects, each time for the collector to look through the imports
rng = np.random.default_rng(0)
words = "the cat sat on a mat and dog ran away with his good bad film".split()
sentences = [list(rng.choice(words, rng.integers(2, 12))) for _ in range(17)]
texts = [" ".join(sentence) for sentence in sentences]
tags = [list(rng.choice(["O", "B-X", "I-X"], len(sentence))) for sentence in sentences]
answers = [{"text": s[1], "answer_start": len(s[0]) + 1} for s in sentences]
numbers = list(rng.integers(0, 3, 17))


def sequence():
    model = ez.SequenceClassifier.from_preset(folder, dropout=0.0, attention_dropout=0.0)
    weights = list(rng_of_weights.uniform(0.5, 2, 17))
    return model, (texts, numbers), {"sample_weight": weights}, lambda: model.predict(texts[:5])


def token():
    model = ez.TokenClassifier(backbone(), preprocessor(ez.TokenClassifierPreprocessor))
    model.compile(keras.optimizers.SGD(1.0, global_clipnorm=0.1))
    return model, (sentences, tags), {}, lambda: model.predict(sentences[:3])


def masked():
    model = ez.MaskedLM(backbone(), preprocessor(ez.MaskedLMPreprocessor, mask_rate=0.3))
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(8)
    fill = lambda: [a["score"] for a in model.fill_mask("the [MASK] sat")]
    return model, (dataset,), {"validation_data": dataset}, fill


def span():
    model = ez.SpanQA(backbone(), preprocessor(ez.SpanQAPreprocessor))
    model.compile(learning_rate=1e-2, gradient_accumulation_steps=2)
    data = (["the cat ?"] * 17, texts), answers
    return model, data, {}, lambda: [a["score"] for a in model.answer(["cat ?"] * 3, texts[:3])]


def pairs():
    made = tempfile.mkdtemp() + "/corpus"  # of each worker its own, with the same in it
    documents = [texts[i : i + 3] for i in range(0, 17, 3)]
    corpus = ez.PretrainingCorpus.from_documents(made, documents, tokenizer(), 20, verbose=0)
    model = ez.Pretraining(backbone(pooler=True), preprocessor(ez.PretrainingPreprocessor))
    x = model.preprocessor((texts[:3], texts[3:6]), [0, 1, 0])[0]
    arguments = {"steps_per_epoch": 3, "validation_data": corpus}
    return model, (corpus,), arguments, lambda: model.predict(x, verbose=0).values()


def distillation():
    large = ez.BertBackbone(30, 2, 4, 16, 32, dropout=0.0, attention_dropout=0.0)
    teacher, student = (
        ez.SequenceClassifier(b, preprocessor(ez.SequenceClassifierPreprocessor), num_classes=3)
        for b in (large, backbone(pooler=True))
    )
    objectives = ["soft_labels", "hidden_states", "relations"]
    model = ez.Distillation(teacher, student, objectives=objectives, relation_heads=2)
    return model, (texts, numbers), {}, lambda: student.predict(texts[:5])


def backbone(pooler=False, **arguments):
    sizes = dict(num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    rates = dict(dropout=0.0, attention_dropout=0.0)
    return ez.BertBackbone(30, **sizes, **rates, pooler=pooler, **arguments)


@functools.cache  # traced once
def tokenizer():
    return ez.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])


def preprocessor(kind, **arguments):
    return kind(tokenizer(), **arguments)


class Steps(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch, worker) == (1, 1, 1):
            os.kill(os.getpid(), signal.SIGKILL)


def train(task, strategy, seed=0, callbacks=()):
    global rng_of_weights
    rng_of_weights = np.random.default_rng(1)
    # The second worker's random numbers are others: seeds and weights must be the first one's.
    keras.utils.set_random_seed(seed + worker)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model, data, arguments, ask = task()
        if not model.compiled:
            model.compile(learning_rate=1e-2)
    steps = Steps()
    arguments = {"validation_data": data, "callbacks": [steps, *callbacks], **arguments}
    history = model.fit(*data, epochs=2, batch_size=8, verbose=0, **arguments)
    held_out = arguments["validation_data"]
    held_out = held_out if isinstance(held_out, tuple) else (held_out,)
    evaluated = model.evaluate(*held_out, batch_size=5, verbose=0, return_dict=True)
    found = [np.ravel(values).tolist() for values in ask()]
    return {
        "history": {n: [float(v) for v in vs] for n, vs in history.history.items()},
        "steps": [float(loss) for loss in steps.losses],
        "evaluated": {name: float(value) for name, value in evaluated.items()},
        "found": found,
    }


def half_precision(strategy):
    '''Losses under float16, whose first steps overflow and are left out.'''
    keras.utils.set_random_seed(0)
    with strategy.scope() if strategy else contextlib.nullcontext():
        encoder = backbone(pooler=True, dtype="mixed_float16")
        inputs = preprocessor(ez.SequenceClassifierPreprocessor)
        model = ez.SequenceClassifier(encoder, inputs, num_classes=3)
        model.compile(learning_rate=1e-2)
    return model.fit(texts, numbers, epochs=3, batch_size=8, verbose=0).history["loss"]


def train_all(strategy):
    return {task: train(globals()[task], strategy) for task in tasks if task != "half_precision"}


def losses_of_reductions(strategy):
    '''Loss and gradient of 5 rows with weights, from parts of 3 and 2 rows, and of the whole.'''
    x, y, weight = np.float32([[0, 1, 2, 3, 4], [0, 0, 1, 3, 2], [1, 2, 0, 4, 1]])
    with strategy.scope():
        v = tf.Variable(2.0)
    found = []
    for reduction in ("sum", "mean", "sum_over_batch_size", "mean_with_sample_weight"):
        loss_function = keras.losses.MeanSquaredError(reduction=reduction)

        def whole(rows, added=()):
            with tf.GradientTape() as tape:
                predicted = v * x[rows, None]
                loss, _ = BatchLoss(loss_function)(y[rows, None], predicted, weight[rows])
                loss += average_over_replicas(0.1 * v**2, rows.stop - rows.start)
            return loss, tape.gradient(loss, v)

        def part():
            first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
            return whole(slice(0, 3) if first else slice(3, 5))

        parts = strategy.run(part)
        parts = [float(strategy.reduce("SUM", part, axis=None)) for part in parts]
        found.append([parts, [float(value) for value in whole(slice(0, 5))]])
    return found


backup = ez.BackupAndRestore(backups, save_freq=1)
if mode == "restart":  # with other seeds: weights and order can come from the backup alone
    results = {mode: {"span": train(span, strategy, 7, [backup])}}
else:
    results = {mode: train_all(strategy)}
if mode == "one_and_mirrored":
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = {"one": results[mode], "mirrored": train_all(strategy)}
    if "half_precision" in tasks:
        results["half_precision"] = [half_precision(None), half_precision(strategy)]
    results["reductions"] = losses_of_reductions(strategy)
with open(results_file, "w") as file:
    json.dump(results, file)
if mode == "workers":
    train(span, strategy, 0, [Die(), backup])
"""


def start(mode, path, tasks=TASKS, **environment):
    """A process that runs the script and writes what it prints into a file beside `path`."""
    arguments = [mode, CHECKPOINT, path, path.parent / "backups", *tasks]
    environment = {"KERAS_BACKEND": "tensorflow", **environment}
    return start_process(SCRIPT, f"{path}.log", *arguments, **environment)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of one device, of two replicas, and the reductions of losses."""
    return one_and_mirrored(tmp_path_factory, ["sequence"])


@pytest.fixture(scope="module")
def results_of_all(tmp_path_factory):
    """The same, of every task and of float16."""
    return one_and_mirrored(tmp_path_factory, [*TASKS, "distillation", "half_precision"])


def one_and_mirrored(tmp_path_factory, tasks):
    path = tmp_path_factory.mktemp("mirrored") / "results.json"
    process = start("one_and_mirrored", path, tasks)
    try:
        assert process.wait(PATIENCE) == 0, path.with_suffix(".json.log").read_text()[-3000:]
    finally:
        process.kill()
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Results of two workers, of which the second is then killed; what the first says to that."""
    folder = tmp_path_factory.mktemp("workers")
    processes = start_two("workers", folder)
    try:
        processes[1].wait(PATIENCE)
        code = processes[0].wait(PATIENCE)
    finally:
        for process in processes:
            process.kill()
    return {
        "workers": read_results("workers", folder),
        "killed": processes[1].returncode,
        "survivor": (code, (folder / "workers0.json.log").read_text()),
        "folder": folder,
    }


@pytest.fixture(scope="module")
def restarted(workers):
    """Results of two workers that are started again after one was killed."""
    folder = workers["folder"]
    processes = start_two("restart", folder)
    try:
        for process in processes:
            process.wait(PATIENCE)
    finally:
        for process in processes:
            process.kill()
    return read_results("restart", folder)


def start_two(mode, folder):
    """Two processes that train together."""
    return [
        start(mode, folder / f"{mode}{i}.json", TF_CONFIG=config)
        for i, config in enumerate(cluster_of_two())
    ]


def read_results(mode, folder):
    """The results of two processes."""
    paths = [folder / f"{mode}{i}.json" for i in range(2)]
    log = (folder / f"{mode}0.json.log").read_text()
    assert all(path.exists() for path in paths), log[-3000:]
    return [json.loads(path.read_text())[mode] for path in paths]


def check_equal(got, expected):
    """Adam divides by small gradients, so float32's rounding grows from step to step."""
    for name, values in expected["history"].items():
        np.testing.assert_allclose(got["history"][name], values, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(got["steps"], expected["steps"], rtol=1e-3)
    assert got["history"].keys() == expected["history"].keys()
    assert got["evaluated"].keys() == expected["evaluated"].keys()
    for name, value in expected["evaluated"].items():
        np.testing.assert_allclose(got["evaluated"][name], value, rtol=1e-3, atol=1e-5)
    for values, right in zip(got["found"], expected["found"], strict=True):
        np.testing.assert_allclose(values, right, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.matrix
def test_two_replicas_learn_what_one_device_learns(results):
    check_equal(results["mirrored"]["sequence"], results["one"]["sequence"])
    assert len(results["one"]["sequence"]["steps"]) == 6  # 3 batches in each of 2 epochs


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("task", [*TASKS, "distillation"])
def test_two_replicas_learn_every_task_as_one_device(task, results_of_all):
    check_equal(results_of_all["mirrored"][task], results_of_all["one"][task])


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_two_processes_learn_what_one_device_learns(task, results_of_all, workers):
    for got in workers["workers"]:
        check_equal(got[task], results_of_all["one"][task])


@pytest.mark.matrix
@pytest.mark.slow
def test_a_killed_worker_ends_the_other_with_an_error_that_says_what_to_do(workers):
    assert workers["killed"] == -9
    code, log = workers["survivor"]
    assert code == 1
    assert "RuntimeError: Another worker was killed" in log


@pytest.mark.matrix
@pytest.mark.slow
def test_restarted_workers_continue_with_the_same_losses(workers, restarted):
    for whole, rest in zip(workers["workers"], restarted, strict=True):
        whole, rest = whole["span"], rest["span"]
        # Five of the six steps were done; whether that was backed up is a race.
        assert len(rest["steps"]) in (1, 2)
        tail = whole["steps"][-len(rest["steps"]) :]
        np.testing.assert_allclose(rest["steps"], tail, rtol=0, atol=1e-6)
        for name, values in rest["history"].items():
            np.testing.assert_allclose(values, whole["history"][name][1:], rtol=0, atol=1e-6)
        for values, right in zip(rest["found"], whole["found"], strict=True):
            np.testing.assert_allclose(values, right, rtol=0, atol=1e-6)


@pytest.mark.matrix
@pytest.mark.slow
def test_an_overflow_in_one_replica_leaves_out_the_step_in_all(results_of_all):
    one, mirrored = results_of_all["half_precision"]
    # Half the gradients overflow less: not every step that one device leaves out.
    np.testing.assert_allclose(mirrored, one, rtol=0.2)
    assert one[-1] < one[0]


@pytest.mark.slow
@pytest.mark.matrix
def test_losses_and_gradients_of_uneven_parts_add_up_to_those_of_the_whole(results):
    for parts, whole in results["reductions"]:
        np.testing.assert_allclose(parts, whole, rtol=1e-6)
    assert len({whole[0] for _, whole in results["reductions"]}) == 3  # two of them mean the same


@pytest.mark.slow(only=r"^(4)$")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_row_of_a_batch_goes_to_one_replica(workers):
    batches = [np.arange(8), np.arange(5), np.arange(3), np.arange(1)]
    dataset = tf.data.Dataset.from_generator(
        lambda: ({"ids": b[:, None]} for b in batches),
        output_signature={"ids": tf.TensorSpec((None, 1), tf.int64)},
    )
    parts = []
    for worker in range(workers):
        context = tf.distribute.InputContext(workers, worker, num_replicas_in_sync=4)
        mine = [part[0]["ids"].numpy()[:, 0] for part in split_batches(dataset, context)]
        parts.append(np.array(mine, object).reshape(len(batches), -1))
    for step, batch in enumerate(batches):
        sizes = {len(part) for row in parts for part in row[step]}
        assert max(sizes) - min(sizes) <= 1
        # The order in which Keras puts predictions of several workers together.
        order = [parts[w][step][r] for r in range(4 // workers) for w in range(workers)]
        np.testing.assert_array_equal(np.concatenate(order), batch)


def test_a_worker_with_its_own_examples_keeps_them_all():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = tf.data.Dataset.range(6).batch(6).with_options(options)
    context = tf.distribute.InputContext(2, 1, num_replicas_in_sync=4)
    parts = [part[0].numpy().tolist() for part in split_batches(dataset, context)]
    assert parts == [[0, 1, 2], [3, 4, 5]]


class OddLoss(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return 0.0


def test_a_loss_that_reduces_itself_is_refused():
    with pytest.raises(ValueError, match="`__call__`"):
        BatchLoss(OddLoss()).check_is_summable()


@pytest.mark.matrix
@pytest.mark.slow
def test_classes_are_weighted_under_a_strategy_as_without():
    sizes = {"num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
    ids, y = {"token_ids": np.arange(12).reshape(4, 3) % 9}, np.array([0, 1, 1, 1])
    losses = []
    for scope in (contextlib.nullcontext(), tf.distribute.OneDeviceStrategy("CPU:0").scope()):
        keras.utils.set_random_seed(0)
        with scope:
            backbone = ez.BertBackbone(9, **sizes, dropout=0.0, attention_dropout=0.0)
            classifier = ez.SequenceClassifier(backbone, num_classes=2, dropout=0.0)
        history = classifier.fit(ids, y, class_weight={0: 3.0, 1: 1.0}, epochs=2, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


# -- TPUs: programs of fixed shape, without strings ----------------------------------------------

# Without dropout, whose random numbers XLA needs long to compile for a CPU.
SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, "dropout": 0.0}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat"]
TEXTS = ["the cat sat", "the mat", "sat on the mat", "cat"]
TAGS = [["O"] * len(text.split()) for text in TEXTS]
ANSWERS = [{"text": text.split()[0], "answer_start": 0} for text in TEXTS]
STATIC = {
    "SequenceClassifier": ({"num_classes": 2}, TEXTS, [0, 1, 0, 1]),
    "TokenClassifier": ({"labels": ["O", "B-X"]}, [text.split() for text in TEXTS], TAGS),
    "MaskedLM": ({}, TEXTS, None),
    "SpanQA": ({}, (["the cat"] * 4, TEXTS), ANSWERS),
}


def operations(graph):
    """All operations of a graph and of the functions in it."""
    yield from graph.get_operations()
    for function in graph._functions.values():
        yield from operations(function.graph)


@pytest.fixture(scope="module")
def tokenizer():
    return ez.BertTokenizer(WORDS)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    "name",
    [
        name if name == "SequenceClassifier" else pytest.param(name, marks=pytest.mark.slow)
        for name in STATIC
    ],
)
def test_steps_compile_with_fixed_shapes_and_without_strings(name, tokenizer):
    arguments, x, y = STATIC[name]
    task_class, preprocessor_class = getattr(ez, name), getattr(ez, f"{name}Preprocessor")
    preprocessor = preprocessor_class(tokenizer, sequence_length=16)
    backbone = ez.BertBackbone(
        30, **SIZES, attention_dropout=0.0, pooler=name == "SequenceClassifier"
    )
    task = task_class(backbone, preprocessor, **arguments)
    task.compile()
    data = task.preprocessor(x, y)

    @tf.function(jit_compile=True)
    def steps(data):
        return task.predict_step(data), task.train_step(data)

    expected = task(data[0], training=False)
    program = steps.get_concrete_function(data)
    for operation in operations(program.graph):
        for tensor in operation.outputs:
            assert tensor.dtype not in (tf.string, tf.variant), operation.name
            assert tensor.dtype == tf.resource or tensor.shape.is_fully_defined(), tensor
    outputs, logs = program(data)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    assert np.isfinite(logs["loss"])


# -- JAX ------------------------------------------------------------------------------------------

JAX_SCRIPT = """
import dataclasses
import sys
import jax
import keras
import numpy as np
import encoder_zoo as ez

# One device alone makes other batches where they are packed.
ez.Classifier.record = dataclasses.replace(ez.Classifier.record, packs_batches=False)
texts, labels = ["the cat sat", "a dog", "the film was good", "bad"] * 5, [0, 1, 2, 1] * 5


def train():
    keras.utils.set_random_seed(0)
    model = ez.Classifier.from_preset(sys.argv[1], dropout=0.0, attention_dropout=0.0)
    model.compile(learning_rate=1e-2)
    history = model.fit(texts[:19], labels[:19], epochs=2, batch_size=8, verbose=0).history
    evaluated = model.evaluate(texts[:19], labels[:19], verbose=0)
    return [*history["loss"], *evaluated, *model.predict(texts[:5], verbose=0).ravel()], model


one, made_before = train()
devices = jax.devices()
assert len(devices) == 2
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
answers = made_before.predict(texts[:3], verbose=0)
for call in (made_before.fit, made_before.evaluate, made_before.compile):
    try:
        call() if call == made_before.compile else call(texts, labels, verbose=0)
    except ValueError as error:
        assert "set_distribution" in str(error), error
    else:
        raise AssertionError(call)
two, model = train()
np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)
assert all(len(v.value.sharding.device_set) == 2 for v in model.trainable_variables)
keras.distribution.set_distribution(None)
np.testing.assert_allclose(made_before.predict(texts[:3], verbose=0), answers, atol=1e-6)
made_before.fit(texts, labels, verbose=0)
"""


@pytest.mark.matrix
@pytest.mark.slow
def test_jax_data_parallel_equals_one_device():
    pytest.importorskip("jax")
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"
    run(JAX_SCRIPT, CHECKPOINT, KERAS_BACKEND="jax", XLA_FLAGS=flags)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["SequenceClassifier, pairs", "TextEmbedder, pairs"], marks=pytest.mark.slow),
        pytest.param([], marks=pytest.mark.peers),  # all take an hour
    ],
)
def test_calls_on_devices_that_do_not_divide_the_rows_equal_one_device(names):
    pytest.importorskip("jax")
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=3"
    code = "import sys, device_table as t; t.main('jax', 3, sys.argv[1:] or t.TASKS, rows=(5,))"
    run(code, *names, KERAS_BACKEND="jax", XLA_FLAGS=flags)


@pytest.mark.slow
def test_a_distribution_that_the_backend_leaves_aside_is_refused():
    task = tiny.task(get_family("bert"), ez.SequenceClassifier)
    data = ["a", "b"], [0, 1]
    try:
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
        for call in (task.fit, task.evaluate, lambda x, y: ez.SequenceClassifier(task.backbone)):
            with pytest.raises(ValueError, match="keras.distribution.*KERAS_BACKEND=jax"):
                call(*data)
    finally:
        keras.distribution.set_distribution(None)
    task.fit(*data, verbose=0)


# One of the processes of torch.distributed, or one alone; called with its number, how many there
# are, the address of the first and a file for the weights.
TORCH_PROCESS = """
import sys
import keras
import numpy as np
import torch
import encoder_zoo as ez

number, count, address, folder, results = sys.argv[1:]
number, count = int(number), int(count)
torch.distributed.init_process_group(
    "gloo", init_method=f"tcp://{address}", rank=number, world_size=count
)
texts, labels = ["the cat sat", "a dog", "the film was good", "bad"] * 4, [0, 1, 2, 1] * 4
model = ez.Classifier.from_preset(folder, dropout=0.0, attention_dropout=0.0)
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
for start in range(0, 16, 8):
    part = slice(start + 8 * number // count, start + 8 * (number + 1) // count)
    x, y = model.preprocessor(texts[part], labels[part])
    outputs = parallel(x, training=True)
    loss = torch.nn.functional.cross_entropy(outputs, torch.as_tensor(np.asarray(y)).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
np.savez(results, *model.get_weights(), predicted=model.predict(texts, verbose=0))
model.fit(texts, labels, verbose=0)
"""


def torch_processes(script, count, folder):
    """Return files and logs of processes of torch.distributed, which have ended well."""
    pytest.importorskip("torch")
    [address] = free_addresses(1)
    files = [folder / f"{number}_of_{count}.npz" for number in range(count)]
    logs = [folder / f"{file.name}.log" for file in files]
    processes = [
        start_process(
            script, log, *(number, count, address, CHECKPOINT, file), KERAS_BACKEND="torch"
        )
        for number, (file, log) in enumerate(zip(files, logs, strict=True))
    ]
    for log, process in zip(logs, processes, strict=True):
        assert process.wait(PATIENCE) == 0, log.read_text()[-3000:]
    return [np.load(file) for file in files], [log.read_text() for log in logs]


@pytest.mark.matrix
@pytest.mark.slow
def test_two_processes_of_torch_learn_what_one_learns(tmp_path):
    [one], [alone] = torch_processes(TORCH_PROCESS, 1, tmp_path)
    two, logs = torch_processes(TORCH_PROCESS, 2, tmp_path)
    for name in one:
        for part in two:
            np.testing.assert_allclose(part[name], one[name], rtol=1e-4, atol=1e-5)
    joined = any("Keras trains and evaluates one model in the 2 processes" in log for log in logs)
    said = "one model in the 2 processes" if joined else "in this process. Each of the 2"
    assert [said in log for log in (alone, *logs)] == [False, True, True]


# `fit` where Keras joins the processes, each with its part of every batch of 4. Where it does not,
# each trains alone.
JOINED_PROCESS = """
import sys
import keras
import numpy as np
import torch
import encoder_zoo as ez
from encoder_zoo.tasks.training.distribution import supports_distribution

number, count, address, folder, results = sys.argv[1:]
number, count = int(number), int(count)
torch.distributed.init_process_group(
    "gloo", init_method=f"tcp://{address}", rank=number, world_size=count
)
if supports_distribution():
    keras.distribution.set_distribution(keras.distribution.DataParallel())
model = ez.Classifier.from_preset(folder, dropout=0.0, attention_dropout=0.0)
parts = count if hasattr(model, "ddp_model") else 1
texts, labels = ["the cat sat", "a dog", "the film was good", "bad"] * 4, [0, 1, 2, 1, 2, 0] * 3
rows = [i for i in range(16) if parts == 1 or i % 4 * parts // 4 == number]
mine = [texts[i] for i in rows], [labels[i] for i in rows]
model.compile(keras.optimizers.SGD(0.1), metrics=["accuracy", "auc"])
options = {"batch_size": 4 // parts, "verbose": 0}
history = model.fit(*mine, shuffle=False, validation_data=mine, **options).history
found = model.evaluate(*mine, return_dict=True, **options)
history = {f"fit {name}": value for name, [value] in history.items()}
np.savez(results, *model.get_weights(), **history, **found)
if parts > 1:
    few = 4 + 4 * number
    for call in (model.fit, model.evaluate):
        try:
            call(texts[:few], labels[:few], batch_size=4, verbose=0)
        except ValueError as error:
            assert "1 x 2" in str(error) and "process 1" in str(error), error
        else:
            raise AssertionError
"""


@pytest.mark.matrix
@pytest.mark.slow
def test_fit_in_processes_that_keras_joins_is_fit_in_one(tmp_path):
    [one], _ = torch_processes(JOINED_PROCESS, 1, tmp_path)
    two, _ = torch_processes(JOINED_PROCESS, 2, tmp_path)
    assert {"auc", "fit val_auc", "fit loss"} < set(one)
    for name in one:
        for part in two:
            np.testing.assert_allclose(part[name], one[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.matrix
@pytest.mark.slow
def test_torch_and_jax_refuse_the_distributions_of_others():
    code = """
    import keras
    import tensorflow as tf
    import encoder_zoo as ez
    from encoder_zoo.tasks.training.distribution import supports_distribution
    from encoder_zoo.encoders import get_family
    from encoder_zoo.testing import tiny

    try:
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            tiny.task(get_family("bert"), ez.SequenceClassifier)
    except ValueError as error:
        assert "KERAS_BACKEND=tensorflow" in str(error), error
    else:
        raise AssertionError
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        tiny.task(get_family("bert"), ez.SequenceClassifier)
    except ValueError as error:
        assert "KERAS_BACKEND=jax" in str(error), error
        assert keras.config.backend() == "torch" and not supports_distribution()
    else:
        assert supports_distribution()
    if keras.config.backend() == "torch":
        mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
        layout = keras.distribution.LayoutMap(mesh)
        keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout))
        try:
            tiny.task(get_family("bert"), ez.SequenceClassifier)
        except ValueError as error:
            assert "ModelParallel" in str(error) and "KERAS_BACKEND=jax" in str(error), error
        else:
            raise AssertionError
    """
    for backend in ("torch", "jax"):
        run(code, KERAS_BACKEND=backend)


def test_a_parameter_server_is_refused():
    strategy = type("ParameterServerStrategyV2", (), {})()
    with pytest.raises(ValueError, match="ParameterServerStrategy.* MirroredStrategy"):
        Distribution(strategy)


# Two processes of JAX that train as one, or one alone; called with the number of the process or
# "alone", the port of the first, the folder of a checkpoint, a file for the results, a folder for
# backups, and what to do.
JAX_PROCESSES = """
import json, os, signal, sys
import keras
import numpy as np

number, address, folder, results, backups, todo = sys.argv[1:]
if number != "alone":
    keras.distribution.initialize(address, num_processes=2, process_id=int(number))
    keras.distribution.set_distribution(keras.distribution.DataParallel())

import dataclasses
import jax
import tensorflow as tf
import encoder_zoo as ez

assert len(jax.devices()) == (1 if number == "alone" else 2)
# One device alone makes other batches where they are packed.
ez.Classifier.record = dataclasses.replace(ez.Classifier.record, packs_batches=False)
texts, labels = ["the cat sat", "a dog", "the film was good", "bad"] * 5, [0, 1, 2, 1] * 5


class Steps(keras.callbacks.Callback):
    losses = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        if todo == "die" and (self.epoch, batch, number) == (1, 1, "1"):
            os.kill(os.getpid(), signal.SIGKILL)


# Resumed with another seed: order and weights can come from the backup alone.
keras.utils.set_random_seed(7 if todo == "resume" else 0)
model = ez.Classifier.from_preset(folder, dropout=0.1, attention_dropout=0.0)
model.compile(learning_rate=1e-2)
backup = ez.BackupAndRestore(backups, save_freq=1)
callbacks = [Steps()] if todo == "train" else [Steps(), backup]
history = model.fit(
    texts[:19], labels[:19], validation_data=(texts[:7], labels[:7]), epochs=2, batch_size=8,
    verbose=0, callbacks=callbacks,
)
dataset = tf.data.Dataset.from_tensor_slices((texts[:11], labels[:11])).batch(4)
found = {
    "losses": Steps.losses,
    "dataset": model.evaluate(dataset, verbose=0),
    "val_loss": history.history["val_loss"],
    "evaluated": model.evaluate(texts[:11], labels[:11], batch_size=4, verbose=0),
    "few": model.predict(texts[:5], verbose=0).tolist(),
    "many": model.predict(texts[:19], batch_size=4, verbose=0).tolist(),
    "labels": [answer["label"] for answer in model.classify(texts[:5])],
    "weights": [float(np.sum(np.abs(w))) for w in model.get_weights()],
}
if number != "alone":
    try:
        model.fit(model.preprocessor(texts), np.array(labels))
    except ValueError as error:
        assert "from_tensor_slices" in str(error), error
with open(results, "w") as file:
    json.dump(found, file)
"""


class TestProcessesOfJax:
    def start(self, number, address, folder, todo):
        path = folder / f"{todo}{number}.json"
        arguments = [number, address, CHECKPOINT, path, folder / f"backups_{todo[0]}", todo]
        environment = {
            "KERAS_BACKEND": "jax",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        }
        return path, start_process(JAX_PROCESSES, f"{path}.log", *arguments, **environment)

    def run_two(self, folder, todo):
        """Run two processes; return their exit codes, results and logs."""
        [address] = free_addresses(1)
        started = [self.start(number, address, folder, todo) for number in "01"]
        limit = time.monotonic() + PATIENCE
        try:
            started[1][1].wait(PATIENCE)
            log = folder / f"{started[0][0].name}.log"
            while started[0][1].poll() is None and time.monotonic() < limit:
                if "Another worker was killed" in log.read_text():  # it ends a minute later
                    break
                time.sleep(0.5)
        finally:
            for _, process in started:
                process.kill()
                process.wait()
        codes = [process.returncode for _, process in started]
        logs = [(folder / f"{path.name}.log").read_text() for path, _ in started]
        found = [json.loads(path.read_text()) for path, _ in started if path.exists()]
        return codes, found, logs

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_two_learn_what_one_learns_also_after_a_kill(self, tmp_path):
        pytest.importorskip("jax")
        path, process = self.start("alone", "", tmp_path, "train")
        assert process.wait(PATIENCE) == 0, (tmp_path / f"{path.name}.log").read_text()[-3000:]
        one = json.loads(path.read_text())
        codes, two, logs = self.run_two(tmp_path, "train")
        assert codes == [0, 0], logs[1][-3000:]
        codes, _, logs = self.run_two(tmp_path, "die")
        assert codes[1] == -signal.SIGKILL
        assert "RuntimeError: Another worker was killed" in logs[0], logs[0][-3000:]
        shutil.copytree(tmp_path / "backups_d", tmp_path / "backups_r")
        codes, resumed, logs = self.run_two(tmp_path, "resume")
        assert codes == [0, 0], logs[1][-3000:]
        assert len(resumed[0]["losses"]) < len(one["losses"])
        for found in (*two, *resumed):
            count = len(found["losses"])
            np.testing.assert_allclose(found["losses"], one["losses"][-count:], rtol=1e-3)
            assert found["labels"] == one["labels"]
            for name in ("evaluated", "dataset", "few", "many", "weights"):
                np.testing.assert_allclose(found[name], one[name], rtol=2e-3, atol=2e-3)


@pytest.mark.slow(except_for=r"^TokenClassifier$")
@pytest.mark.parametrize("task", list_tasks(), ids=lambda task: task.__name__)
def test_default_losses_add_up_over_replicas(task):
    """In the default run; the table of `plain_training.py` compares their gradients."""
    model = tiny.task(get_family("bert" if task.supports(get_family("bert")) else "electra"), task)
    BatchLoss(model.objective.default_loss()).check_is_summable()
    if task is ez.SequenceClassifier:
        for problem in ("regression", "multi_label_classification"):
            other = task(model.backbone, num_classes=2, problem_type=problem)
            BatchLoss(other.objective.default_loss()).check_is_summable()
