"""Test long-running work: interrupted training, concurrent threads, and memory growth.

    KERAS_BACKEND=jax python benchmarks/endurance.py kills --times 20
    KERAS_BACKEND=jax python benchmarks/endurance.py memory --models 200
    KERAS_BACKEND=jax python benchmarks/endurance.py calls --calls 500
    KERAS_BACKEND=jax python benchmarks/endurance.py stream --rows 5000000 --most 200000
    KERAS_BACKEND=jax python benchmarks/endurance.py threads --only "TextEmbedder (fit|save)"

`kills` trains a small classifier with `BackupAndRestore` and kills the process at a random time. A
second process resumes the training. The final weights are compared to the weights of a training
that was not interrupted.

`memory` repeatedly opens the bundled model, trains it, uses it and deletes it, and prints resident
memory. `calls` repeatedly calls small models for all tasks. `stream` trains on a dataset that is
never fully loaded into memory.

`threads` calls small models from several threads while other code changes them. It counts outputs
that do not match any single state of the weights.
"""

import argparse
import gc
import itertools
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import pickle
import random
import re
import tempfile
import threading
import time

TEXTS = ["a good film", "a bad film about a dog", "it was fine", "a dog"] * 16
LABELS = ["good", "bad", "fine", "dog"] * 16
MEASURED = (1, 2, 5, 10, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200)  # number of models


def train(folder: pathlib.Path, name: str, steps: multiprocessing.connection.Connection) -> None:
    """Train with a backup every three steps, print each step, and save the final weights."""
    import keras
    import numpy as np

    import encoder_zoo as ez

    class Send(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.send(batch)

    keras.utils.set_random_seed(7)
    classifier = ez.Classifier.from_preset(
        "bert_nano_en_uncased", labels=sorted(set(LABELS)), sequence_length=8
    )
    backup = ez.BackupAndRestore(folder / f"{name}_backup", save_freq=3)
    options = {"batch_size": 8, "epochs": 6, "verbose": 0}
    classifier.fit(TEXTS, LABELS, callbacks=[Send(), backup], **options)
    weights = [keras.ops.convert_to_numpy(weight) for weight in classifier.weights]
    np.savez(folder / f"{name}.npz", *weights)


def kills(times: int) -> None:
    """Kill training processes. Print the steps of the kills and the difference of final weights."""
    import numpy as np

    backend, draw, most = os.environ.get("KERAS_BACKEND", "tensorflow"), random.Random(0), 0.0
    processes = multiprocessing.get_context("forkserver")  # imports slow modules only once
    processes.set_forkserver_preload(["encoder_zoo.tasks.classification.sequence_classifier"])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def run(name: str, until: int | None = None) -> int:
            """Train, optionally killing the process after `until` steps. Return the step count."""
            steps, of_process = processes.Pipe(duplex=False)
            process = processes.Process(target=train, args=(folder, name, of_process))
            process.start()
            of_process.close()
            made = 0
            while made != until:
                try:
                    steps.recv()
                except EOFError:
                    break
                made += 1
            if until:
                time.sleep(draw.random() * 0.05)  # the kill can happen during a step or a backup
                process.kill()
            process.join()
            return made

        steps = run("whole")
        expected = list(np.load(folder / "whole.npz").values())
        for number in range(times):
            after = run(f"run{number}", draw.randrange(1, steps))
            left = run(f"run{number}")
            found = list(np.load(folder / f"run{number}.npz").values())
            apart = max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))
            most = max(most, apart)
            row = {"killed after step": after, "steps again": left, "weights apart": apart}
            print(json.dumps({"backend": backend, **row}), flush=True)
    print(json.dumps({"backend": backend, "kills": times, "weights apart at most": most}))


def memory(models: int) -> None:
    """Open and delete `models` models one after another, and print the resident memory in MB."""
    import keras

    import encoder_zoo as ez

    logging.getLogger("encoder_zoo").setLevel(logging.ERROR)
    for number in range(1, models + 1):
        classifier = ez.Classifier.from_preset(
            "bert_nano_en_uncased", labels=sorted(set(LABELS)), sequence_length=8
        )
        classifier.fit(TEXTS[:8], LABELS[:8], batch_size=4, verbose=0)
        classifier.classify(TEXTS[:8])
        classifier.predict(TEXTS[:8], verbose=0)
        del classifier
        gc.collect()  # Keras models contain reference cycles
        if number in MEASURED or number == models:
            row = {"backend": keras.config.backend(), "models": number, "MB": resident()}
            print(json.dumps(row), flush=True)


def resident() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def calls(calls: int) -> None:
    """For each method, print the resident memory after 20 % and 100 % of the calls."""
    import keras

    from encoder_zoo.encoders import get_family
    from encoder_zoo.tasks import list_tasks
    from encoder_zoo.testing import tiny

    logging.getLogger("encoder_zoo").setLevel(logging.ERROR)
    for cls in list_tasks():
        if not cls.record.text_method:
            continue
        family = "electra" if cls.__name__ == "ReplacedTokenDetection" else "bert"
        task = tiny.task(get_family(family), cls)
        for method, ask in make_calls(task).items():
            measured = []
            for number in range(1, calls + 1):
                ask()
                if number in (calls // 5, calls):
                    measured.append(resident())
            row = {"backend": keras.config.backend(), "task": cls.__name__, "method": method}
            print(json.dumps({**row, "calls": calls, "MB": measured}), flush=True)


def make_calls(task) -> dict:
    """Return a dict from names to functions that call the inference methods of a small task."""
    questions, x = task.tiny_questions(), task.tiny_data().x
    calls = {task.record.text_method: lambda: getattr(task, task.record.text_method)(*questions)}
    if type(task).__name__ not in ("MaskedLM", "ReplacedTokenDetection"):  # random masks
        calls["predict"] = lambda: task.predict(x, verbose=0)
    if hasattr(task, "explain"):
        calls["explain"] = lambda: task.explain(*(values[0] for values in questions))
    return calls


def stream(rows: int, most: int) -> None:
    """Print resident memory while training a classifier on a streamed dataset.

    Args:
        rows: Integer. Number of rows in the dataset.
        most: Integer. Number of rows after which to stop training.
    """
    import keras
    import tensorflow as tf

    import encoder_zoo as ez
    from encoder_zoo.encoders import get_family
    from encoder_zoo.testing import tiny

    class Measure(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            done = (batch + 1) * 64
            if done % (most // 64 // 10 * 64) == 0:
                row = {"backend": keras.config.backend(), "rows": done, "MB": resident()}
                print(json.dumps(row), flush=True)

    task = tiny.task(get_family("bert"), ez.SequenceClassifier)
    names = tf.constant(task.labels)
    dataset = tf.data.Dataset.range(rows).map(
        lambda i: (tf.strings.join(["a b ", tf.strings.as_string(i), " c d"]), names[i % 2])
    )
    steps = min(rows, most) // 64
    task.fit(dataset.batch(64), steps_per_epoch=steps, verbose=0, callbacks=[Measure()])


# -- threads --------------------------------------------------------------------------------------


QUESTIONS = {
    "SequenceClassifier": (
        "one_batch",
        "batches",
        "called",
        "backbone",
        "classify",
        "explain",
        "evaluate",
    ),
    "TextEmbedder": ("one_batch", "batches", "called", "backbone", "embed", "search"),
    "TokenClassifier": ("one_batch", "batches", "entities"),
}


class SharedModel:
    """A small model that threads call, and the expected outputs for each state of its weights.

    Args:
        cls: Task class.
        trained: Boolean. Whether to train the model first. Defaults to True.
    """

    def __init__(self, cls, trained: bool = True):
        import keras

        from encoder_zoo.encoders import get_family
        from encoder_zoo.testing import tiny

        keras.utils.set_random_seed(0)
        self.task = tiny.task(get_family("bert"), cls, dropout=0.0, attention_dropout=0.0)
        data = self.task.tiny_data()
        self.x, self.y = ((list(values) * 4)[:4] * 6 for values in (data.x, data.y))
        self.states, self.questions = [], []
        if trained:
            self.compile()
            self.fit()
        self.inputs = {
            name: convert_to_numpy(value)
            for name, value in self.task.preprocessor(self.x[:4]).items()
        }
        if hasattr(self.task, "index"):
            self.found_in = self.task.index(self.x[:4])

    def compile(self) -> None:
        self.task.compile("sgd")
        self.task.optimizer.learning_rate = 0.3

    def fit(self, **options):
        return self.task.fit(self.x, self.y, 8, shuffle=False, verbose=0, **options)

    # Methods to call from threads. Each method returns floats.

    def one_batch(self):
        return flatten_outputs(self.task.predict(self.x[:4], verbose=0))

    def batches(self):
        return flatten_outputs(self.task.predict(self.x, batch_size=4, verbose=0))

    def called(self):
        return flatten_outputs([convert_to_numpy(self.task(self.inputs))])

    def backbone(self):
        return flatten_outputs(
            [self.task.backbone.predict(self.inputs, verbose=0)["sequence_output"]]
        )

    def classify(self):
        found = self.task.classify(self.x[:8], top_k=3)
        return [row["score"] for rows in found for row in sorted(rows, key=lambda r: r["label"])]

    def explain(self):
        return [word["attribution"] for word in self.task.explain(self.x[2])["words"]]

    def evaluate(self):
        return self.task.evaluate(self.x, self.y, 8, return_dict=True, verbose=0)["loss"]

    def embed(self):
        return flatten_outputs(self.task.embed(self.x[:8]))

    def search(self):
        try:
            found = self.found_in.search(self.x[:4], top_k=4)
        except ValueError as error:
            if "Build the index again" not in str(error):
                raise
            return [-1.0] * 16  # the index was built with other weights, and raises an error
        return [hit["score"] for hits in found for hit in sorted(hits, key=lambda h: h["index"])]

    def entities(self):
        names = "start", "end", "score"
        found = self.task.extract_entities(self.x[:8])
        return [sum(one[name] for one in row) for row in found for name in names]

    def ask(self, name: str):
        import numpy as np

        return np.asarray(getattr(self, name)(), "float64").reshape(-1)

    def record_outputs(self) -> None:
        """Compute and store all outputs for the current weights."""
        self.states.append({name: self.ask(name) for name in self.questions})


def convert_to_numpy(tensor):
    import keras

    return keras.ops.convert_to_numpy(tensor)


def flatten_outputs(outputs):
    """Concatenate all task outputs to one vector."""
    import numpy as np

    return np.concatenate([np.reshape(one, -1) for one in outputs])


class OutputRecorder:
    """Callback that stores the expected outputs after every step."""

    def __new__(cls, shared: SharedModel):
        import keras

        class Callback(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                shared.record_outputs()

        return Callback()


def make_two_states(shared: SharedModel) -> list:
    """Return a copy of the current weights and a copy of different weights."""
    import numpy as np

    rng, now = np.random.default_rng(0), shared.task.get_weights()
    return now, [w + rng.normal(size=w.shape).astype(w.dtype) * (w.dtype.kind == "f") for w in now]


def alternate(shared: SharedModel, change) -> None:
    """Store the outputs of two states of the weights, and switch between the two states."""
    now, others = make_two_states(shared)
    for weights in (others, now):
        change(weights)
        shared.record_outputs()


def load_weights(shared: SharedModel, folder: pathlib.Path) -> None:
    now, others = make_two_states(shared)
    paths = [folder / "now.weights.h5", folder / "others.weights.h5"]
    for weights, path in ((others, paths[1]), (now, paths[0])):
        shared.task.set_weights(weights)
        shared.record_outputs()
        shared.task.save_weights(path)
    for path in reversed(paths):
        shared.task.load_weights(path)
        shared.record_outputs()


def adapters(shared: SharedModel, folder: pathlib.Path) -> None:
    shared.task.enable_lora(2)
    shared.record_outputs()
    shared.compile()
    shared.fit(callbacks=[OutputRecorder(shared)])
    shared.task.save_adapters(folder / "adapters")
    alternate(shared, shared.task.set_weights)
    shared.task.load_adapters(folder / "adapters")
    shared.record_outputs()


def quantize(shared: SharedModel, folder: pathlib.Path) -> None:
    shared.task.quantize("int8")
    shared.record_outputs()


def first_fit(shared: SharedModel, folder: pathlib.Path) -> None:
    shared.task.fit(shared.x, shared.y, 8, epochs=3, verbose=0, callbacks=[OutputRecorder(shared)])


def validated(shared: SharedModel, folder: pathlib.Path) -> None:
    shared.fit(epochs=2, validation_data=(shared.x, shared.y), callbacks=[OutputRecorder(shared)])


def train_on_batch(shared: SharedModel, folder: pathlib.Path) -> None:
    inputs = shared.task.preprocessor(shared.x, shared.y)
    for _ in range(3):
        shared.task.train_on_batch(*inputs)
        shared.record_outputs()


def second_fit(shared: SharedModel, folder: pathlib.Path) -> None:
    """Call `fit` in another thread at every step, and check that this raises an error."""
    import keras

    refused = []

    def refuse():
        try:
            shared.fit()
        except RuntimeError as error:
            refused.append("being trained by another call" in str(error))

    class Second(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            thread = threading.Thread(target=refuse)
            thread.start()
            thread.join()

    shared.fit(callbacks=[OutputRecorder(shared), Second()])
    if refused != [True] * 3:
        raise AssertionError(f"The second call to fit did not raise an error: {refused}.")


def fit_of_shared(shared: SharedModel, folder: pathlib.Path) -> None:
    """Train another task that uses the same backbone."""
    import encoder_zoo as ez

    preprocessor = ez.SequenceClassifierPreprocessor(shared.task.preprocessor.tokenizer)
    other = ez.SequenceClassifier(shared.task.backbone, preprocessor, labels=["a", "b"])
    other.compile("sgd")
    other.optimizer.learning_rate = 0.3
    other.fit(shared.x, ["a", "b"] * 12, 8, verbose=0, callbacks=[OutputRecorder(shared)])


def distilled(shared: SharedModel, folder: pathlib.Path) -> None:
    """Train the model as a student while its teacher is trained too."""
    import encoder_zoo as ez

    teacher = SharedModel(type(shared.task))
    distillation = ez.Distillation(teacher.task, shared.task)
    distillation.compile("sgd")
    distillation.optimizer.learning_rate = 0.3
    failed = []

    def train_teacher():
        try:
            for _ in range(3):
                teacher.fit()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=train_teacher)
    thread.start()
    distillation.fit(
        shared.x, batch_size=8, epochs=3, verbose=0, callbacks=[OutputRecorder(shared)]
    )
    thread.join()
    if failed:
        raise failed[0]


def backed_up(shared: SharedModel, folder: pathlib.Path) -> None:
    import encoder_zoo as ez

    best = keras_callbacks().EarlyStopping("loss", patience=0, restore_best_weights=True)
    backup = ez.BackupAndRestore(folder / "backup", save_freq=1)
    shared.fit(callbacks=[OutputRecorder(shared), backup, best], epochs=2)
    shared.record_outputs()


def keras_callbacks():
    import keras

    return keras.callbacks


def copied(shared: SharedModel, folder: pathlib.Path, copy) -> None:
    """Copy the model while its weights change. The weights of a copy must be from a single step.

    Args:
        shared: `SharedModel`. Model to copy.
        folder: Path to write to.
        copy: Function to call with a task and a folder. It returns a copy.
    """
    import numpy as np

    now, others = make_two_states(shared)
    expected, found, ended = [], [], threading.Event()
    for weights in (others, now):
        shared.task.set_weights(weights)
        shared.record_outputs()
        expected.append(flatten_outputs(copy(shared.task, folder).predict(shared.x[:4], verbose=0)))

    def change():
        while not ended.is_set():
            for weights in (others, now):
                shared.task.set_weights(weights)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(4):
            found.append(
                flatten_outputs(copy(shared.task, folder).predict(shared.x[:4], verbose=0))
            )
    finally:
        ended.set()
        thread.join()
    apart = [min(np.abs(one - state).max() for state in expected) for one in found]
    if max(apart) > 1e-4:
        raise AssertionError(
            f"A copy mixes two states of the weights: {apart}. Expected a single state."
        )


def by_preset(task, folder: pathlib.Path):
    task.save_to_preset(folder / "preset")
    return type(task).from_preset(folder / "preset")


def by_keras_file(task, folder: pathlib.Path):
    import keras

    task.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def by_weights(task, folder: pathlib.Path):
    task.save_weights(folder / "copy.weights.h5")
    other = SharedModel(type(task)).task
    other.load_weights(folder / "copy.weights.h5")
    return other


def by_export(task, folder: pathlib.Path):
    """Export a task and return its outputs in an object that only supports `predict`."""
    import types

    import tensorflow as tf

    task.export(folder / "1")
    signature = tf.saved_model.load(folder / "1").signatures["serving_default"]

    def predict(x, verbose):
        found = signature(text=tf.constant(x))
        return [found[name].numpy() for name in sorted(found) if found[name].dtype == tf.float32]

    return types.SimpleNamespace(predict=predict)


def by_pickle(task, folder: pathlib.Path):
    return pickle.loads(pickle.dumps(task))


def answered(shared: SharedModel, folder: pathlib.Path) -> None:
    import encoder_zoo as ez

    (folder / "texts.txt").write_text("\n".join(shared.x * 10))
    for name in ("first", "second"):
        ez.answer_files(shared.task, folder / "texts.txt", folder / name, verbose=0, shard_rows=60)


def indexed(shared: SharedModel, folder: pathlib.Path) -> None:
    index = shared.task.index(shared.x)
    for _ in range(3):
        index.add(shared.x)
        index.save(folder / "index")
        shared.task.load_index(folder / "index").search(shared.x[:2])


# {operation: (function, whether to train the model first, supported backends)}
ALL, TF = ("tensorflow", "jax", "torch"), ("tensorflow",)
OPERATIONS = {
    "set_weights": (lambda a, f: alternate(a, a.task.set_weights), True, ALL),
    "save_weights, load_weights": (load_weights, True, ALL),
    "save_weights while they change": (lambda a, f: copied(a, f, by_weights), True, ALL),
    "save_to_preset": (lambda a, f: copied(a, f, by_preset), True, ALL),
    "save .keras": (lambda a, f: copied(a, f, by_keras_file), True, ALL),
    "pickle": (lambda a, f: copied(a, f, by_pickle), True, ALL),
    "export SavedModel": (lambda a, f: copied(a, f, by_export), True, TF),
    "export LiteRT": (lambda a, f: a.task.export(f / "m.tflite", "litert"), True, TF),
    "export ONNX": (lambda a, f: a.task.export(f / "m.onnx", "onnx"), True, TF),
    "for_cpu int8": (lambda a, f: copied(a, f, lambda t, _: t.for_cpu()), True, TF),
    "for_cpu float32": (lambda a, f: copied(a, f, lambda t, _: t.for_cpu("float32")), True, TF),
    "quantize int8": (quantize, True, ALL),
    "adapters enable, fit, save, load": (adapters, True, ALL),
    "compile": (lambda a, f: a.compile(), True, ALL),
    "first fit": (first_fit, False, ALL),
    "fit": (lambda a, f: a.fit(epochs=3, callbacks=[OutputRecorder(a)]), True, ALL),
    "fit with validation": (validated, True, ALL),
    "fit with backup, early stopping": (backed_up, True, ALL),
    "fit twice at once": (second_fit, True, ALL),
    "train_on_batch": (train_on_batch, True, ALL),
    "fit of a task with its backbone": (fit_of_shared, True, ALL),
    "distillation": (distilled, True, ALL),
    "evaluate": (lambda a, f: a.evaluate(), True, ALL),
    "answer_files": (answered, True, ALL),
    "index, add, save, load": (indexed, True, ALL),
}
OF_FIT = {name for name in OPERATIONS if "fit" in name or "distil" in name or "train" in name}


# These operations change the model, so the next operation needs a new model.
LASTS = {"quantize int8", "adapters enable, fit, save, load", "first fit"}


def threads(seconds: float, only: str, questions: list[str]) -> None:
    """For each task and operation, count the outputs that match a single state of the weights.

    Args:
        seconds: Float. Minimum duration. Shorter operations are repeated.
        only: String. Regular expression to select tasks and operations.
        questions: List of strings. Methods to call. If empty, all methods are called.
    """
    import keras

    import encoder_zoo as ez

    logging.getLogger("encoder_zoo").setLevel(logging.ERROR)
    backend = keras.config.backend()
    for cls in (ez.SequenceClassifier, ez.TextEmbedder, ez.TokenClassifier):
        shared = None  # only created when needed, because compiling is slow
        for name, (change, trained, backends) in OPERATIONS.items():
            skipped = name.startswith("index") != (cls is ez.TextEmbedder) and name.startswith("i")
            if backend in backends and not skipped and re.search(only, f"{cls.__name__} {name}"):
                if shared is None or not trained:
                    shared = SharedModel(cls, trained)
                    first = shared.task.get_weights()
                try:
                    row = ask_while(shared, name, change, seconds, questions)
                    if name not in LASTS:
                        shared.task.set_weights(first)
                except Exception as error:  # the model can no longer be used
                    row, shared = {"operation": name, "failed": repr(error)[:500]}, None
                if name in LASTS:
                    shared = None
                print(json.dumps({"backend": backend, "task": cls.__name__, **row}), flush=True)


def ask_while(shared: SharedModel, name: str, change, seconds: float, questions: list[str]) -> dict:
    """Call a model from threads during an operation, and count its outputs."""
    import numpy as np

    without = set()
    if name in OF_FIT:
        without = {"evaluate"}  # evaluate waits until fit has ended
    elif name.startswith("quantize"):
        without = {"evaluate", "explain"}  # int8 does not have gradients
    known = [n for n in QUESTIONS[type(shared.task).__name__] if not questions or n in questions]
    shared.questions, shared.states = [n for n in known if n not in without], []
    shared.record_outputs()
    answers, errors, ended, times, failed = [], [], threading.Event(), 0, None

    def ask(question):
        while not ended.is_set():
            try:
                answers.append((question, shared.ask(question)))
            except Exception as error:
                errors.append(f"{question}: {error!r}"[:300])

    asking = [threading.Thread(target=ask, args=(one,)) for one in shared.questions]
    with tempfile.TemporaryDirectory() as folder:
        for thread in asking:
            thread.start()
        end = time.time() + seconds
        try:
            while not times or time.time() < end:
                change(shared, pathlib.Path(folder))
                times += 1
                if "adapters" in name or "quantize" in name or "first" in name:
                    time.sleep(max(0, end - time.time()))
                    break
        except Exception as error:
            failed = repr(error)[:500]
        ended.set()
        for thread in asking:
            thread.join()
    shared.record_outputs()
    apart = [min(np.abs(found - state[q]).max() for state in shared.states) for q, found in answers]
    states = [state[shared.questions[0]] for state in shared.states]
    steps = [np.abs(a - b).max() for a, b in itertools.pairwise(states)]
    return {
        "operation": name,
        "times": times,
        "states": len({state.round(4).tobytes() for state in states}),
        "answers": len(answers),
        "errors": len(errors),
        "mixed": sum(float(one) > 1e-4 for one in apart),
        "apart": float(max(apart, default=0)),
        "states apart": float(np.median([s for s in steps if s > 1e-4] or [0])),
        "failed": failed,
        "first error": errors[:1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="what", required=True)
    parts.add_parser("kills").add_argument("--times", type=int, default=20)
    parts.add_parser("memory").add_argument("--models", type=int, default=200)
    parts.add_parser("calls").add_argument("--calls", type=int, default=500)
    of_stream = parts.add_parser("stream")
    of_stream.add_argument("--rows", type=int, default=5_000_000)
    of_stream.add_argument("--most", type=int, default=200_000)
    of_threads = parts.add_parser("threads")
    of_threads.add_argument("--seconds", type=float, default=4)
    of_threads.add_argument("--only", default="")
    of_threads.add_argument("--questions", nargs="*", default=[])
    arguments = vars(parser.parse_args())
    functions = {f.__name__: f for f in (kills, memory, calls, stream, threads)}
    functions[arguments.pop("what")](**arguments)


if __name__ == "__main__":
    main()
