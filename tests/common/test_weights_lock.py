"""The lock of a model's weights: readers together, a writer alone, all in fair turns."""

import copy
import os
import pickle
import signal
import threading
import time

import keras
import numpy as np
import pytest
from processes import run

from encoder_zoo.common.weights_lock import WeightsLock, get_weights_lock, hold_lock

SECONDS = 10


def started(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_readers_are_in_it_together():
    lock, meet = WeightsLock(), threading.Barrier(2, timeout=SECONDS)

    def read():
        with lock.shared():
            meet.wait()

    threads = [started(read) for _ in range(2)]
    [thread.join(SECONDS) for thread in threads]
    assert not meet.broken


def test_a_writer_is_alone_and_goes_before_readers_that_come_later():
    lock, order, reading, leave = WeightsLock(), [], threading.Event(), threading.Event()

    def read_first():
        with lock.shared():
            reading.set()
            leave.wait(SECONDS)
            with lock.shared():  # again, though a writer waits
                order.append("first reader")

    def write():
        with lock.exclusive(), lock.exclusive(), lock.shared():
            order.append("writer")

    def read_later():
        with lock.shared():
            order.append("later reader")

    threads = [started(read_first)]
    assert reading.wait(SECONDS)
    threads.append(started(write))
    while not lock._waiting:
        pass
    threads.append(started(read_later))
    leave.set()
    [thread.join(SECONDS) for thread in threads]
    assert order == ["first reader", "writer", "later reader"]


@pytest.mark.parametrize(
    ("busy", "other"),
    [
        ("exclusive", "shared"),
        ("shared", "exclusive"),
        ("exclusive", "exclusive"),
        ("of_metrics", "of_metrics"),
    ],
)
def test_a_thread_without_pause_leaves_turns_to_another(busy, other):
    lock, turns, ended = WeightsLock(), [], threading.Event()

    def hold(way):
        return lock.of_metrics if way == "of_metrics" else getattr(lock, way)()

    def without_pause():
        while not ended.is_set():
            with hold(busy):
                time.sleep(0.001)

    def take_turns():
        for turn in range(100):
            with hold(other):
                turns.append(turn)

    # Of two readers one is always in it.
    threads = [started(without_pause) for _ in range(2)]
    try:
        started(take_turns).join(SECONDS)
    finally:
        ended.set()
    [thread.join(SECONDS) for thread in threads]
    assert len(turns) == 100


def test_readers_and_writers_in_any_order_see_whole_changes():
    lock, state, wrong = WeightsLock(), [0, 0], []

    def read():
        for _ in range(200):
            with lock.shared():
                before = state[0]
                time.sleep(0)
                wrong.extend([] if before == state[0] == state[1] else [list(state)])

    def write():
        for _ in range(200):
            with lock.exclusive():
                state[0] += 1
                time.sleep(0)
                with lock.shared(), lock.exclusive():
                    state[1] += 1

    threads = [started(function) for function in (read, write) * 3]
    [thread.join(SECONDS) for thread in threads]
    assert not wrong and state == [600, 600] and lock.version == 1200


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
@pytest.mark.parametrize(("held", "asked"), [("exclusive", "shared"), ("shared", "exclusive")])
def test_a_thread_that_is_interrupted_while_it_waits_is_in_nobodys_way(held, asked):
    lock, holding, leave = WeightsLock(), threading.Event(), threading.Event()

    def hold():
        with getattr(lock, held)():
            holding.set()
            leave.wait(SECONDS)

    def interrupt(*_):
        raise KeyboardInterrupt

    threads = [started(hold)]
    assert holding.wait(SECONDS)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt), getattr(lock, asked)():
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
    if held == "shared":  # no writer waits any more
        with lock.shared():
            pass
    leave.set()
    threads += [started(lambda: lock.exclusive().__enter__())]
    [thread.join(SECONDS) for thread in threads]
    assert not any(thread.is_alive() for thread in threads)


def test_an_error_in_the_block_frees_it():
    lock = WeightsLock()
    for hold in (lock.shared, lock.exclusive, lock.fitting):
        with pytest.raises(KeyError), hold():
            raise KeyError
    thread = started(lambda: [lock.exclusive().__enter__(), lock.fitting().__enter__()])
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_a_second_fit_is_refused():
    class Model(keras.Model):
        @hold_lock("fitting")
        def fit(self, function):
            function()

    model = Model()
    with pytest.raises(RuntimeError, match="being trained"):
        model.fit(lambda: model.fit(print))
    model.fit(lambda: None)


def test_tasks_of_a_backbone_share_its_lock(tiny):
    import encoder_zoo as ez
    from encoder_zoo.encoders import get_family

    task = tiny.task(get_family("bert"), "SequenceClassifier")
    assert get_weights_lock(task) is get_weights_lock(task.backbone)
    other = ez.TokenClassifier(task.backbone, labels=["O", "B-A"])
    assert get_weights_lock(other) is get_weights_lock(task)
    assert get_weights_lock(keras.Sequential()) is not get_weights_lock(task)


@pytest.mark.matrix
@pytest.mark.slow
def test_changes_are_counted_once(tiny):
    from encoder_zoo.encoders import get_family

    task = tiny.task(get_family("bert"), "SequenceClassifier")
    data = task.tiny_data()
    counts = [task.weights_version]
    for change in (
        lambda: task.fit(list(data.x), list(data.y), verbose=0),
        lambda: task.set_weights(task.get_weights()),
        lambda: task.backbone.enable_lora(2),
    ):
        change()
        counts.append(task.backbone.weights_version)
    task.predict(list(data.x), verbose=0)
    task.evaluate(list(data.x), list(data.y), verbose=0)
    assert counts == [0, *counts[1:]] and len({*counts}) == 4
    assert task.weights_version == counts[-1]


class Held(Exception):
    """The lock was asked for."""


class Telling:
    """A lock that says how it was asked for, before any work."""

    def shared(self):
        raise Held("shared")

    def exclusive(self, changes=True):
        raise Held("exclusive")

    def compiling(self):
        raise Held("more than shared: exclusive, and of_metrics")

    def evaluating(self):
        raise Held("of_metrics, and shared")

    def fitting(self):
        raise Held("fitting")

    @property
    def of_metrics(self):
        raise Held("of_metrics")


ASKED = {
    "shared": {
        "__call__": lambda m, x: m(x),
        "predict": lambda m, x: m.predict(x, verbose=0),
        "predict_on_batch": lambda m, x: m.predict_on_batch(x),
        "get_weights": lambda m, x: m.get_weights(),
        "get_state_tree": lambda m, x: m.get_state_tree(),
        "save": lambda m, x: m.save("model.keras"),
        "save_weights": lambda m, x: m.save_weights("model.weights.h5"),
        "save_to_preset": lambda m, x: m.save_to_preset("preset"),
        "save_adapters": lambda m, x: m.save_adapters("adapters"),
        "export": lambda m, x: m.export("1"),
        "for_cpu": lambda m, x: m.for_cpu("float32"),
        "__reduce__": lambda m, x: pickle.dumps(m),
        "__reduce_ex__": lambda m, x: copy.deepcopy(m),
    },
    "exclusive": {
        "set_weights": lambda m, x: m.set_weights([]),
        "set_state_tree": lambda m, x: m.set_state_tree({}),
        "load_weights": lambda m, x: m.load_weights("model.weights.h5"),
        "quantize": lambda m, x: m.quantize("int8"),
        "enable_lora": lambda m, x: m.enable_lora(1),
        "load_adapters": lambda m, x: m.load_adapters("adapters"),
    },
    "fitting": {
        "fit": lambda m, x: m.fit(x),
        "train_on_batch": lambda m, x: m.train_on_batch(x),
    },
    "of_metrics": {
        "evaluate": lambda m, x: m.evaluate(x),
        "test_on_batch": lambda m, x: m.test_on_batch(x),
    },
}


@pytest.mark.slow(except_for=r"^of_metrics-task$")
@pytest.mark.parametrize("of", ["task", "backbone"])
@pytest.mark.parametrize("kind", ASKED)
def test_what_reads_or_changes_weights_holds_the_lock(kind, of, tiny, monkeypatch):
    from encoder_zoo.encoders import get_family

    task = tiny.task(get_family("bert"), "SequenceClassifier")
    model = task if of == "task" else task.backbone
    inputs = {name: np.ones((2, 4), "int32") for name in ("token_ids", "padding_mask")}
    monkeypatch.setitem(vars(task.backbone), "_weights_lock", Telling())
    for name, call in ASKED[kind].items():
        if hasattr(model, name):
            with pytest.raises(Held, match=kind):
                call(model, inputs)


# In a fork of a process that has a model, calls all that asks, changes or makes one, and prints the
# errors. A call that waits for threads which are not there ends the fork.
FORKED = """
import os, signal, sys, warnings
import numpy as np
import encoder_zoo as ez
from encoder_zoo.testing import tiny

warnings.simplefilter("ignore")  # of Python and JAX, about forks
family, asked = ez.BertBackbone.family, sys.argv[2] == "asked"
model = tiny.task(family, ez.SequenceClassifier)
embedder = tiny.task(family, ez.TextEmbedder)
model.save_to_preset(sys.argv[1])
inputs, index = tiny.examples(family), None
if asked:
    model.classify(["a b"])
    index = embedder.index(["a b", "c"])
calls = {
    "classify": lambda: model.classify(["a b"]),
    "predict": lambda: model.predict(inputs, verbose=0),
    "predict_on_batch": lambda: model.predict_on_batch(inputs),
    "call": lambda: model(inputs),
    "backbone": lambda: model.backbone(inputs),
    "backbone.predict": lambda: model.backbone.predict(inputs, verbose=0),
    "fit": lambda: model.fit(["a", "b"], [0, 1], verbose=0),
    "train_on_batch": lambda: model.train_on_batch(inputs, np.array([0, 1, 0])),
    "evaluate": lambda: model.evaluate(["a", "b"], [0, 1], verbose=0),
    "explain": lambda: model.explain(["a"]),
    "save": lambda: model.save_to_preset(sys.argv[1]),
    "load": lambda: ez.SequenceClassifier.from_preset(sys.argv[1]),
    "construct": lambda: tiny.backbone(family),
    "embed": lambda: embedder.embed(["a"]),
    "index": lambda: embedder.index(["a"]),
}
if asked:
    calls["search"] = lambda: index.search("a")
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]) % 256)
signal.alarm(120)
for name, call in calls.items():
    try:
        call()
    except RuntimeError as error:
        print(name, error, flush=True)
if os.environ["KERAS_BACKEND"] != "tensorflow":  # texts are read without it
    print("tokens", model.preprocessor.tokenizer.tokenize(["a b"]).to_list())
os._exit(0)
"""
CALLS_IN_FORKS = 15


@pytest.mark.slow(every=True)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("asked", ["asked", "made"])
@pytest.mark.parametrize(
    ("backend", "name"), [("tensorflow", "TensorFlow"), ("jax", "JAX"), ("torch", "PyTorch")]
)
def test_a_fork_refuses_every_model_at_once(backend, name, asked, tmp_path):
    lines = run(FORKED, tmp_path / "preset", asked, KERAS_BACKEND=backend).splitlines()
    refused = [line for line in lines if f"forked from a process that used {name}" in line]
    assert len(refused) == CALLS_IN_FORKS + (asked == "asked"), lines
    assert ("tokens [[5, 6]]" in lines) == (backend != "tensorflow")


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_fork_may_make_the_first_model(backend):
    code = """
import os, warnings
import encoder_zoo as ez

warnings.simplefilter("ignore")
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]) % 256)
model = ez.SequenceClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
print(len(model.classify(["a b"])), flush=True)
os._exit(0)
"""
    assert run(code, KERAS_BACKEND=backend).splitlines()[-1] == "1"
