"""Models that many threads ask while others change them: answers of one state, and no errors."""

import pytest
from processes import run

BEGIN = """
import contextlib, itertools, os, pickle, sys, threading
import keras, numpy as np
import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

keras.utils.set_random_seed(0)
task = tiny.task(get_family("bert"), ez.SequenceClassifier, dropout=0.0, attention_dropout=0.0)
data = task.tiny_data()
x, y = ((list(values) * 4)[:4] * 8 for values in (data.x, data.y))
task.compile("sgd")
task.optimizer.learning_rate = 0.1
task.fit(x, y, verbose=0)


@contextlib.contextmanager
def asking(*questions):
    "Threads that ask until the block ends; yields the lists of answers and of errors."
    answers, errors, ended = [], [], threading.Event()

    def ask(question):
        while not ended.is_set():
            try:
                answers.append((question, question()))
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=ask, args=(one,)) for one in questions]
    [thread.start() for thread in threads]
    try:
        yield answers, errors
    finally:
        ended.set()
        [thread.join() for thread in threads]


def few():  # a single batch
    return task.predict(x[:4], verbose=0)


def several():  # batches, of which the first and the last have the same texts
    found = task.predict(x, batch_size=4, verbose=0)
    np.testing.assert_allclose(found[:4], found[-4:], atol=1e-5)
    return found[:4]


def called():
    return keras.ops.convert_to_numpy(task(inputs))


def of_backbone():
    return task.backbone.predict(inputs, batch_size=2, verbose=0)["sequence_output"]


def copied():  # the weights of a copy
    weights = pickle.loads(pickle.dumps(task)).get_weights()
    return np.concatenate([weight.ravel() for weight in weights if weight.dtype.kind == "f"])


batch = task.preprocessor(x[:4])
inputs = {name: keras.ops.convert_to_numpy(values) for name, values in batch.items()}
"""
CHANGED = """
first = [np.array(weight) for weight in task.get_weights()]
rng = np.random.default_rng(0)
moved = [w + rng.normal(size=w.shape).astype(w.dtype) if w.dtype.kind == "f" else w for w in first]
expected = []
for weights in (first, moved):
    task.set_weights(weights)
    expected.append({one: one() for one in (few, several, called, of_backbone, copied)})
assert all(np.abs(found - expected[1][one]).max() > 0.1 for one, found in expected[0].items())
folder = sys.argv[1]
with asking(few, *expected[0]) as (answers, errors):
    for weights in itertools.islice(itertools.cycle([first, moved]), 12):
        task.set_weights(weights)
        path = os.path.join(folder, "model.weights.h5")
        task.save_to_preset(os.path.join(folder, "preset"))
        task.save_weights(path)
        task.load_weights(path)
        same = zip(task.get_weights(), weights, strict=True)
        assert all(np.array_equal(a, b) for a, b in same)
assert not errors, errors[0]
apart = [min(np.abs(found - state[one]).max() for state in expected) for one, found in answers]
assert len(apart) > 12 and max(apart) < 1e-4, max(apart)
"""
FITTED = """
start = task.get_weights()


def fitted(**options):
    task.set_weights(start)
    return task.fit(x, y, 4, epochs=3, shuffle=False, validation_data=(x, y), verbose=0, **options)


alone = fitted().history
seen, refused = set(), []


class Watch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        seen.add(float(few()[0, 0]))
        if not refused:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()


def second():
    try:
        task.fit(x, y, verbose=0)
    except RuntimeError as error:
        refused.append(str(error))


with asking(few, several, called, of_backbone) as (answers, errors):
    watched = fitted(callbacks=[Watch()]).history
assert not errors, errors[0]
assert answers and len(seen) > 3  # the answers are those of the present step
assert refused and "being trained by another call" in refused[0]
for name, values in alone.items():
    np.testing.assert_allclose(watched[name], values, rtol=1e-5)
"""
COMPILED = """
def evaluated():
    return task.evaluate(x, y, 4, return_dict=True, verbose=0)["loss"]


expected = {one: one() for one in (few, several, called, of_backbone, evaluated)}
with asking(evaluated, *expected) as (answers, errors):
    for _ in range(5):
        task.compile("sgd")
        task.backbone.compile("sgd")
assert not errors, errors[0]
assert answers and all(np.abs(found - expected[one]).max() < 1e-4 for one, found in answers)
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
@pytest.mark.parametrize(
    "changes", [CHANGED, FITTED, COMPILED], ids=["changed", "fitted", "compiled"]
)
def test_answers_are_of_one_state_of_the_weights(backend, changes, tmp_path):
    run(BEGIN + changes, tmp_path, KERAS_BACKEND=backend)
