"""Streams: each source gives what the same data in memory give, on each backend."""

import json
import shutil

import keras
import pytest
from paths import CHECKPOINTS
from processes import run

import encoder_zoo as ez
from encoder_zoo.common.layers import list_layers
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.training.streams import Stream
from encoder_zoo.testing import tiny as facade_tiny

SOURCES = ["PyDataset", "workers", "DataLoader", "grain", "datasets", "generator"]
CODE = """
import importlib.util, json, sys, warnings

warnings.simplefilter("ignore")
import keras
import numpy as np
import encoder_zoo as ez

TEXTS = [f"the cat sat on {'mat ' * (i % 7)}{i}" for i in range(22)]
LABELS = [["a", "b", "c"][i % 3] for i in range(22)]
SIZE = 8


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        rows = slice(i * SIZE, (i + 1) * SIZE)
        return TEXTS[rows], LABELS[rows]


class Rows:
    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, i):
        return TEXTS[i], LABELS[i]


def loader():
    import torch
    return torch.utils.data.DataLoader(Rows(), batch_size=SIZE)


def grain():
    import grain.python
    return grain.python.MapDataset.source(Rows())


def datasets():
    import datasets
    return datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS}).to_iterable_dataset()


MAKE = {
    "PyDataset": Batches,
    "workers": lambda: Batches(workers=3),
    "DataLoader": loader,
    "grain": grain,
    "datasets": datasets,
    "generator": lambda: map(Batches().__getitem__, range(3)),
}
NEEDS = {"DataLoader": "torch", "grain": "grain", "datasets": "datasets"}
settings = {"labels": ["a", "b", "c"], "dropout": 0.0, "attention_dropout": 0.0}
task = ez.SequenceClassifier.from_preset(sys.argv[1], **settings)
task.head.dropout_layer.rate = 0.0
first = task.get_weights()


def outcomes(make):
    labels = [] if callable(make) else [LABELS]
    x = make if callable(make) else lambda: TEXTS
    task.set_weights(first)
    predicted = task.predict(x(), batch_size=SIZE, verbose=0)
    evaluated = task.evaluate(x(), *labels, batch_size=SIZE, verbose=0)
    task.compile(optimizer=keras.optimizers.SGD(0.1))
    steps = {"steps_per_epoch": 3} if make is MAKE["generator"] else {}
    history = task.fit(x(), *labels, batch_size=SIZE, shuffle=False, verbose=0, **steps).history
    values = [predicted, evaluated, history["loss"], *task.get_weights()]
    return [np.asarray(value, "float64") for value in values]


expected, found = outcomes(None), {}
for name, make in MAKE.items():
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        continue
    pairs = zip(outcomes(make), expected, strict=True)
    found[name] = max(float(np.abs(a - b).max()) for a, b in pairs)
try:
    task.fit(MAKE["generator"](), verbose=0)
except ValueError as error:
    found["once"] = str(error)
try:
    task.evaluate(iter([(["a", "b"], ["a", "b"]), (["c", None], ["a", "b"])]), verbose=0)
except Exception as error:
    found["missing"] = str(error)
history = task.fit(Rows and MAKE["PyDataset"](), epochs=2, validation_data=Batches(), verbose=0)
found["epochs"] = len(history.history["val_loss"])
rows = iter([(text, label) for text, label in zip(TEXTS, LABELS)])
losses = task.fit(rows, batch_size=4, steps_per_epoch=6, verbose=0).history["loss"]
found["shuffled"] = bool(np.isfinite(losses).all())
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    "backend", [*(pytest.param(b, marks=pytest.mark.slow) for b in ("jax", "tensorflow")), "torch"]
)
def test_streams_equal_the_same_data_in_memory(backend):
    preset = CHECKPOINTS / "Bert_ForSequenceClassification"
    found = json.loads(run(CODE, preset, KERAS_BACKEND=backend).splitlines()[-1])
    for name in SOURCES:
        assert found.get(name, 0) <= 1e-6, name
    assert {"PyDataset", "workers", "DataLoader", "generator"} <= set(found)
    assert "steps_per_epoch" in found["once"]
    assert "Batch 1 of the stream: texts[1] is None" in found["missing"]
    assert (found["epochs"], found["shuffled"]) == (2, True)


# -- each task, and the edges ---------------------------------------------------------------------

# Called with the names of cases, or "edges".
TABLE = """
import importlib.util, itertools, json, sys, tempfile, warnings

warnings.simplefilter("ignore")
import keras
import numpy as np
import encoder_zoo as ez
from encoder_zoo.common.layers import list_layers
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

SIZE, COUNT = 4, 11


def made(step, longest):
    numbers = [[(i * step + j * 3) % 16 for j in range(1 + i % longest)] for i in range(COUNT)]
    return [" ".join("abcdefghijklmnop"[n] for n in row) for row in numbers]


texts, others, hard = made(3, 5), made(7, 4), made(5, 3)
words = [text.split() for text in texts]
tags = [["O" if ord(word) % 3 else "B-X" for word in row] for row in words]
choices = [*map(list, zip(others, hard))]
classes, numbers = [i % 3 for i in range(COUNT)], [i / COUNT for i in range(COUNT)]
weights = list(np.linspace(0.2, 2.0, COUNT).astype("float32"))
answers = [{"text": text.split()[0], "answer_start": 0} for text in texts]
CASES = {  # x, y and weights
    "SequenceClassifier": (texts, classes, weights),
    "SequenceClassifier, pairs": ((texts, others), classes, None),
    "TokenClassifier": (words, tags, None),
    "TokenClassifier, spans": (texts, [[(0, 1, "X")] * (i % 2) for i in range(COUNT)], None),
    "SpanQA": ((["a b"] * COUNT, texts), answers, None),
    "MaskedLM": (texts, None, None),
    "Pretraining": ((texts, others), [i % 2 for i in range(COUNT)], None),
    "MultipleChoice": ((texts, choices), [i % 2 for i in range(COUNT)], None),
    "Reranker": ((texts, others), [float(i % 2) for i in range(COUNT)], weights),
    "Reranker, lists": (
        (texts, [*map(list, zip(others, hard))]), [[0.0, 1.0]] * COUNT, None
    ),
    "TextEmbedder, pairs": ((texts, others), None, None),
    "TextEmbedder, negatives": ((texts, others, hard), None, None),
    "TextEmbedder, scores": ((texts, others), numbers, None),
    "LateInteraction": ((texts, others, hard), None, None),
    "SparseEncoder": ((texts, others), None, None),
}


def rows_of(values, rows):
    if isinstance(values, tuple):
        return tuple(part[rows] for part in values)
    return None if values is None else values[rows]


def element(x, y, weight):
    return keras.utils.pack_x_y_sample_weight(x, y) if weight is None else (x, y, weight)


def batches(case):
    for start in range(0, COUNT, SIZE):
        rows = slice(start, start + SIZE)
        yield element(*(rows_of(part, rows) for part in case))


class Batches(keras.utils.PyDataset):
    def __init__(self, case, **options):
        super().__init__(**options)
        self.batches = list(batches(case))

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, i):
        return self.batches[i]


class Rows:
    def __init__(self, case):
        self.case = case

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        return element(*(rows_of(part, i) for part in self.case))


def rows(case):
    return map(Rows(case).__getitem__, range(COUNT))


def loader(case, **options):
    import torch
    return torch.utils.data.DataLoader(Rows(case), batch_size=SIZE, **options)


def loaded_rows(case):  # without batches, whose tuples PyTorch makes lists
    import torch
    return torch.utils.data.DataLoader(Rows(case), batch_size=None)


def columns(case):  # of batches, as PyTorch's users collate lists of unlike lengths
    return loader(case, collate_fn=lambda rows: tuple(
        tuple(map(list, zip(*part))) if isinstance(part[0], tuple) else list(part)
        for part in zip(*rows)
    ))


def grain(case):
    import grain.python
    return grain.python.MapDataset.source(Rows(case))


def grain_iterable(case):
    return grain(case).to_iter_dataset()


def grain_loader(case, shuffle=False):
    from grain import python
    order = python.IndexSampler(COUNT, python.NoSharding(), shuffle, num_epochs=1, seed=3)
    return python.DataLoader(data_source=Rows(case), sampler=order, worker_count=0)


SOURCES = [batches, Batches, rows]
if importlib.util.find_spec("torch"):
    SOURCES += [loader, columns, loaded_rows]
if importlib.util.find_spec("grain"):
    SOURCES += [grain, grain_iterable, grain_loader]


def make(name):
    keras.utils.set_random_seed(0)
    task = tiny.task(get_family("bert"), getattr(ez, name.split(",")[0]))
    for layer in list_layers(task):
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    task.compile(optimizer=keras.optimizers.SGD(0.1))
    return task


def trained(name, source):
    task, (x, y, weight) = make(name), CASES[name]
    first = task.get_weights()
    labels = {"y": y, "sample_weight": weight} if source is None else {}
    x = x if source is None else source(CASES[name])
    options = {"batch_size": SIZE, "shuffle": False, "steps_per_epoch": 3, "verbose": 0}
    losses = task.fit(x, **labels, **options).history["loss"]
    changes = [a - b for a, b in zip(task.get_weights(), first)]
    assert max(float(np.abs(change).max()) for change in changes) > 1e-4
    return [np.float64(losses), *changes]


def table(names):
    found = {}
    for name in names:
        expected = trained(name, None)
        for source in SOURCES:
            lists = name.startswith("TokenClassifier")
            if source is columns and name != "TokenClassifier" or source is loader and lists:
                continue
            pairs = zip(trained(name, source), expected)
            found[f"{name}: {source.__name__}"] = max(float(np.abs(a - b).max()) for a, b in pairs)
    return found


# -- edges ----------------------------------------------------------------------------------------

CASE = (texts, classes, None)


def early():
    yield from itertools.islice(batches(CASE), 2)


def broken():
    yield next(batches(CASE))
    raise OSError("the disk is gone")


def unlike():
    for first, last in [(0, 1), (1, 6), (6, 8), (8, 11)]:
        yield texts[first:last], classes[first:last]


def tables(**columns):
    import pandas as pd

    whole = pd.DataFrame({"text": texts, **columns})
    return (whole[first : first + 4] for first in range(0, COUNT, 4))


def empty():
    yield texts[:4], classes[:4]
    yield [], []


def after(call):
    "What a call says, and whether the model still answers, as before where nothing was learned."
    task = make("SequenceClassifier")
    before = task.predict(texts, verbose=0)
    try:
        call(task)
        said = ""
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    now = task.predict(texts, verbose=0)
    return said, bool(np.isfinite(now).all()), bool(np.abs(now - before).max() < 1e-6)


class Stop(keras.callbacks.Callback):
    def __init__(self, at=None):
        super().__init__()
        self.at, self.losses = at, []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        if len(self.losses) == self.at:
            raise KeyboardInterrupt


def resumed(source, **options):
    "The largest difference of losses and weights between a run that is resumed and a whole one."
    options = {"epochs": 3, "verbose": 0, **options}
    whole, begun, rest = Stop(), Stop(5), Stop()
    task = make("SequenceClassifier")
    task.fit(source(), callbacks=[whole], **options)
    with tempfile.TemporaryDirectory() as folder:
        backup = lambda: ez.BackupAndRestore(folder, save_freq=1)
        try:
            make("SequenceClassifier").fit(source(), callbacks=[begun, backup()], **options)
        except KeyboardInterrupt:
            pass
        again = make("SequenceClassifier")
        keras.utils.set_random_seed(9)
        again.fit(source(), callbacks=[rest, backup()], **options)
    assert 0 < len(rest.losses) < len(whole.losses) == 9, rest.losses
    pairs = [(np.float64(rest.losses), np.float64(whole.losses[-len(rest.losses) :]))]
    pairs += zip(again.get_weights(), task.get_weights())
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def repeatedly(source):
    return itertools.chain.from_iterable(source(CASE) for _ in range(9))


def in_random_order():
    order = np.random.default_rng().permutation(COUNT)
    return Batches(([texts[i] for i in order], [classes[i] for i in order], None))


def edges():
    options = {"steps_per_epoch": 3, "verbose": 0}
    quiet = {"verbose": 0}
    balanced = {"class_weight": "balanced", **options}
    found = {
        "early": after(lambda task: task.fit(early(), **options)),
        "broken": after(lambda task: task.fit(broken(), **options)),
        "broken evaluate": after(lambda task: task.evaluate(broken(), **quiet)),
        "broken predict": after(lambda task: task.predict((x for x, y in broken()), **quiet)),
        "empty": after(lambda task: task.fit(empty(), **options)),
        "without labels": after(
            lambda task: task.fit(iter([(texts[:4], classes[:4]), texts[4:8]]), **options)),
        "with weights": after(lambda task: task.fit(iter(
            [(texts[:4], classes[:4]), (texts[4:8], classes[4:8], [1.0] * 4)]), **options)),
        "empty at first": after(lambda task: task.fit(iter([([], [])]), **options)),
        "nothing": after(lambda task: task.fit(iter([]), **options)),
        "validation": after(lambda task: task.fit(
            texts, classes, validation_data=batches(CASE), **quiet)),
        "balanced": after(lambda task: task.fit(batches(CASE), **balanced)),
        "random": after(lambda task: resumed(in_random_order)),
    }
    task = make("SequenceClassifier")
    task.compile(optimizer=keras.optimizers.SGD(1e-30))  # moves nothing
    expected, right = task.predict(texts, **quiet), task.evaluate(texts, classes, **quiet)
    gaps = {
        "predict": task.predict((x for x, y in unlike()), **quiet) - expected,
        "evaluate": np.subtract(task.evaluate(unlike(), **quiet), right),
        "predict tables": task.predict(tables(), **quiet) - expected,
        "evaluate tables": np.subtract(task.evaluate(tables(label=classes), **quiet), right),
        "fit": task.fit(unlike(), steps_per_epoch=4, **quiet).history["loss"][0] - right[0],
        "validation": np.subtract(task.fit(
            Batches(CASE), validation_data=Batches(CASE), epochs=2, **quiet
        ).history["val_loss"], right[0]),
        "epochs": task.fit(  # six steps of three batches each: both passes
            Batches(CASE), steps_per_epoch=2, epochs=3, **quiet).history["loss"][0] * 0,
        "weights": np.subtract(*(task.fit(
            *data, class_weight={0: 3.0}, batch_size=SIZE, shuffle=False, **options
        ).history["loss"] for data in ([batches(CASE)], [texts, classes]))),
        "resumed PyDataset": resumed(lambda: Batches(CASE)),
        "resumed batches": resumed(lambda: repeatedly(batches), steps_per_epoch=3),
        "resumed rows": resumed(lambda: repeatedly(rows), batch_size=SIZE, steps_per_epoch=3),
    }
    if loader in SOURCES:
        import torch

        alone = torch.utils.data.DataLoader([(text,) for text in texts], batch_size=4)
        gaps["predict rows of one part"] = task.predict(alone, **quiet) - expected
        gaps["resumed loader"] = resumed(lambda: loader(CASE))
    if grain in SOURCES:
        from grain import python
        endless = python.MapDataset.source(Rows(CASE)).repeat()
        found["endless"] = after(lambda task: task.fit(endless, **quiet))
        gaps |= {
            "resumed grain": resumed(lambda: grain(CASE), batch_size=SIZE),
            "resumed shuffled grain": resumed(
                lambda: grain(CASE).shuffle(seed=3).to_iter_dataset().batch(SIZE)),
            "resumed DataLoader of grain": resumed(
                lambda: grain_loader(CASE, True), batch_size=SIZE),
        }
    task = make("SequenceClassifier")
    seen = []
    encode = task.preprocess
    task.preprocess = lambda x, *labels: (seen.append(len(x)), encode(x, *labels))[1]
    task.fit(rows(CASE), batch_size=2, steps_per_epoch=6, **quiet)
    found["buffer"] = seen  # one of all rows, as there are less than 50 batches of them
    return found | {"gaps": {name: float(np.abs(gap).max()) for name, gap in gaps.items()}}


asked = sys.argv[1:]
print(json.dumps(edges() if asked == ["edges"] else table(asked or CASES)))
"""
FEW = ["TokenClassifier", "Reranker", "TextEmbedder, negatives"]
BACKENDS = [pytest.param(name, marks=pytest.mark.slow) for name in ("torch", "tensorflow", "jax")]


@pytest.mark.matrix
@pytest.mark.parametrize("backend", BACKENDS)
def test_streams_train_each_task_as_the_same_data_in_memory(backend):
    names = [] if backend == "torch" else FEW  # what is compiled takes long
    found = json.loads(run(TABLE, *names, KERAS_BACKEND=backend).splitlines()[-1])
    assert len(found) >= (40 if backend == "torch" else 9)
    for name, gap in found.items():
        assert gap <= 1e-6, name


SAYS = {
    "early": "2 batches. Expected 3",
    "broken": "the disk is gone",
    "broken evaluate": "the disk is gone",
    "broken predict": "the disk is gone",
    "empty": "Batch 1 of the stream: The batch is empty",
    "without labels": "Batch 1 of the stream: The batch has no labels",
    "with weights": "Batch 1 of the stream: The batch has some weights",
    "empty at first": "The batch is empty",
    "nothing": "The stream is empty",
    "validation": "validation_data is <generator",
    "balanced": "class_weight=",
    "random": "another run: first_batch is",
    "endless": "steps_per_epoch",
}
LEARNED_BEFORE = {"early", "broken", "empty", "without labels", "with weights"}


@pytest.mark.matrix
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_edges_of_streams(backend):
    found = json.loads(run(TABLE, "edges", KERAS_BACKEND=backend).splitlines()[-1])
    assert found.pop("buffer") == [11]
    for name, gap in found.pop("gaps").items():
        assert gap <= 1e-6, name
    for name, (said, answers, as_before) in found.items():
        kind, _, words = said.partition(": ")
        assert kind == ("OSError" if name.startswith("broken") else "ValueError"), name
        assert SAYS[name] in words, name
        assert answers and as_before is (name not in LEARNED_BEFORE), name


@pytest.mark.eager
@pytest.mark.slow(except_for="^TokenClassifier|^SequenceClassifier")
@pytest.mark.parametrize(
    ("name", "arguments", "x", "y"),
    [
        (
            "SequenceClassifier",
            {"labels": ["x", "y", "z"], "problem_type": "multi_label_classification"},
            ["a b", "c"],
            [["x"], ["y", "z"]],
        ),
        (
            "EntityExtractor",
            {"labels": ["x", "y"], "max_width": 3},
            ["a b", "c d"],
            [[{"start": 0, "end": 1, "label": "x"}], []],
        ),
    ],
)
def test_a_generator_has_labels_of_the_sizes_of_the_outputs(name, arguments, x, y):
    """A model that has seen no data: the sizes of a stream's labels are not known."""
    losses = []
    for in_memory in (False, True):
        keras.utils.set_random_seed(0)
        cls, family = getattr(ez, name), get_family("bert")
        pooled = cls.get_family_head(family).pooled
        backbone = facade_tiny.backbone(family, dropout=0.0, pooler=pooled)
        task = cls(
            backbone, cls.record.preprocessor_class(facade_tiny.tokenizer(family)), **arguments
        )
        for layer in list_layers(task):
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0
        data = (x, y) if in_memory else (iter([(x, y)]),)
        steps = None if in_memory else 1
        history = task.fit(*data, steps_per_epoch=steps, shuffle=False, verbose=0)
        losses += history.history["loss"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_labels_are_not_learned_from_a_stream(tiny):
    family = get_family("bert")
    for name, row in {
        "SequenceClassifier": ("a b", "x"),
        "TokenClassifier": (["a", "b"], ["O", "B-X"]),
        "EntityExtractor": ("a b", [(0, 1, "x")]),
    }.items():
        task = getattr(ez, name)(
            tiny.backbone(family), getattr(ez, f"{name}Preprocessor")(tiny.tokenizer(family))
        )
        with pytest.raises(ValueError, match=r"stream.*labels=\["):
            task.fit(iter([row]), steps_per_epoch=1)


def test_words_that_pytorch_put_together_by_columns_are_refused(tiny):
    torch = pytest.importorskip("torch")
    task = tiny.task(get_family("bert"), "TokenClassifier")
    loader = torch.utils.data.DataLoader([(["a", "b"], ["O", "O"]), (["c", "d"], ["O", "B-X"])], 2)
    with pytest.raises(ValueError, match="DataLoader.*collate_fn="):
        task.fit(loader)


class Estimated(keras.utils.PyDataset):
    """Batches whose number is only estimated."""

    num_batches = 1

    def __getitem__(self, i):
        return ["a"], [0]

    def __len__(self):
        raise TypeError("unknown length")

    def __length_hint__(self):
        return 5


def test_an_estimated_length_is_not_the_length_of_a_stream(tiny):
    maker = tiny.task(get_family("bert"), "SequenceClassifier").batch_maker
    assert not Stream(Estimated(), maker).has_length


def test_a_generator_is_predicted_and_calibrated_as_a_list(tiny):
    texts, labels = ["a b", "c a", "b"], [0, 1, 1]
    task = tiny.task(get_family("bert"), "SequenceClassifier")
    expected = task.predict(texts, verbose=0)
    assert task.predict(iter(texts), verbose=0) == pytest.approx(expected, abs=1e-5)
    assert task.predict(iter([texts[:2], texts[2:]]), verbose=0) == pytest.approx(
        expected, abs=1e-5
    )
    found = task.calibrate(texts, labels)
    task.temperature = 1.0
    assert task.calibrate(iter(texts), labels) == pytest.approx(found, rel=1e-3)
    with pytest.raises(ValueError, match="labels are missing"):
        task.calibrate(iter(texts))


@pytest.mark.parametrize("kind", ["batches", "rows"])
def test_spans_of_a_stream_train_as_those_in_memory(tiny, kind):
    """The first batches show whether spans cut words, and are trained on as well."""
    texts = ["a b", "c a", "b", "c b a", "a"]
    spans = [[{"start": 0, "end": 1, "label": "X"}] * (i % 2) for i in range(5)]
    rows = list(zip(texts, spans, strict=True))
    batches = [(texts[i : i + 2], spans[i : i + 2]) for i in (0, 2, 4)]
    losses = []
    for data in ((texts, spans), (iter(batches if kind == "batches" else rows),)):
        keras.utils.set_random_seed(0)
        task = tiny.task(get_family("bert"), "TokenClassifier", dropout=0.0)
        task.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
        options = {"batch_size": 2, "steps_per_epoch": 3, "shuffle": False, "verbose": 0}
        losses.append(task.fit(*data, **options).history["loss"])
        assert task.strategy == "first"
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


# -- tokens in a folder ---------------------------------------------------------------------------


class Counted(keras.utils.PyDataset):
    """Batches of 2 texts, and how often each was read."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.read = rows, []

    def __len__(self):
        return -(-len(self.rows) // 2)

    def __getitem__(self, i):
        self.read.append(i)
        return tuple(map(list, zip(*self.rows[2 * i : 2 * i + 2], strict=True)))


SENTENCES = [(" ".join("abcdefgh"[(i * j) % 8] for j in range(1 + i % 5)), i % 3) for i in range(7)]


def classifier(tiny):
    keras.utils.set_random_seed(1)
    task = tiny.task(get_family("bert"), "SequenceClassifier")
    for layer in list_layers(task):  # PyTorch's DataLoader draws of the numbers of its dropout
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    task.compile(optimizer=keras.optimizers.SGD(0.1))
    return task


def losses(task, source, **options):
    history = task.fit(source, epochs=3, batch_size=2, verbose=0, **options).history
    return [number for name in sorted(history) for number in history[name]]


@pytest.mark.slow
def test_a_token_cache_trains_as_its_stream_does(tiny, tmp_path):
    rows = Counted(SENTENCES)
    cache = ez.TokenCache(rows, tmp_path / "tokens")
    options = {"validation_data": Counted(SENTENCES[:3])}
    expected = losses(classifier(tiny), Counted(SENTENCES), **options)
    assert losses(classifier(tiny), cache, **options) == expected
    assert rows.read.count(3) == 1  # the last batch, in three epochs
    rows.read.clear()
    again = ez.TokenCache(rows, tmp_path / "tokens")  # as in another process
    assert losses(classifier(tiny), again, **options) == expected
    assert set(rows.read) == {0}
    assert classifier(tiny).evaluate(again, verbose=0) == pytest.approx(
        classifier(tiny).evaluate(Counted(SENTENCES), verbose=0)
    )


@pytest.mark.slow(every=True)
def test_a_token_cache_of_single_rows_is_shuffled_in_each_epoch(tiny, tmp_path):
    data = pytest.importorskip("torch").utils.data
    rows = data.DataLoader(SENTENCES, batch_size=None)
    expected = losses(classifier(tiny), rows)
    cache = ez.TokenCache(rows, tmp_path)
    assert losses(classifier(tiny), cache) == expected
    assert losses(classifier(tiny), cache) == expected
    assert len(set(expected)) > 1  # each epoch in an order of its own


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(
    "task_name", ["TokenClassifier", "MultipleChoice", "TextEmbedder", "Distillation"]
)
def test_a_token_cache_keeps_what_each_task_reads(tiny, tmp_path, task_name):
    rows = {
        "TokenClassifier": [(["a", "b"] * n, ["O", "B-X"] * n) for n in range(1, 5)],
        "MultipleChoice": [(("a" * n, ["b c", "d"]), n % 2) for n in range(1, 5)],
        "TextEmbedder": [((("a " * n, "b c"),), None) for n in range(1, 5)],
        "Distillation": [("a b" * n, n % 3) for n in range(1, 5)],
    }[task_name]

    class Rows(Counted):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            pairs = x if isinstance(x[0], tuple) else None
            if task_name == "TextEmbedder":
                return (tuple(map(list, zip(*(row[0] for row in x), strict=True))),)
            return (tuple(map(list, zip(*pairs, strict=True))) if pairs else x), y

    def trained(source):
        keras.utils.set_random_seed(1)
        if task_name == "Distillation":
            models = (tiny.task(get_family("bert"), "SequenceClassifier") for _ in range(2))
            return losses(ez.Distillation(*models, objectives=["soft_labels"]), source)
        return losses(tiny.task(get_family("bert"), task_name), source)

    expected = trained(Rows(rows))
    assert trained(ez.TokenCache(Rows(rows), tmp_path)) == expected
    assert trained(ez.TokenCache(Rows(rows), tmp_path)) == expected


@pytest.mark.slow(every=True)
def test_a_token_cache_goes_on_after_an_error(tiny, tmp_path):
    class Broken(Counted):
        def __getitem__(self, i):
            if i == 2:
                raise OSError("the disk is gone")
            return super().__getitem__(i)

    with pytest.raises(Exception, match="the disk is gone"):
        losses(classifier(tiny), ez.TokenCache(Broken(SENTENCES), tmp_path))
    written = sorted(tmp_path.glob("*/*.safetensors"))
    changed = [path.stat().st_mtime_ns for path in written]
    assert len(written) == 2
    rows = Counted(SENTENCES)
    assert losses(classifier(tiny), ez.TokenCache(rows, tmp_path)) == losses(classifier(tiny), rows)
    assert [path.stat().st_mtime_ns for path in written] == changed


@pytest.mark.slow
def test_a_token_cache_of_something_else_is_refused(tiny, tmp_path):
    task = classifier(tiny)
    losses(task, ez.TokenCache(Counted(SENTENCES), tmp_path))
    with pytest.raises(ValueError, match="holds tokens of another"):
        task.fit(ez.TokenCache(Counted(SENTENCES[::-1]), tmp_path), batch_size=2)
    task.fit(ez.TokenCache(Counted(SENTENCES[::-1]), tmp_path / "other"), batch_size=2, verbose=0)
    other = tiny.task(get_family("bert"), "TokenClassifier")
    with pytest.raises(ValueError, match="holds tokens of another"):
        other.fit(ez.TokenCache(Counted([(["a"], ["O"])] * 4), tmp_path), batch_size=2)
    for source in (iter(SENTENCES), SENTENCES):
        with pytest.raises(ValueError, match="TokenCache is.*DataLoader"):
            task.fit(ez.TokenCache(source, tmp_path), steps_per_epoch=1)
    with pytest.raises(ValueError, match="TokenCache.*preprocessed"):
        prepared = Counted(SENTENCES)
        prepared.__class__ = type(
            "Prepared",
            (Counted,),
            {"__getitem__": lambda self, i: task.preprocessor(*Counted.__getitem__(self, i))},
        )
        task.fit(ez.TokenCache(prepared, tmp_path / "prepared"), batch_size=2)
    task.fit(prepared, verbose=0)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "harm",
    ["changed", *(pytest.param(n, marks=pytest.mark.slow) for n in ("cut", "gone", "manifest"))],
)
def test_damage_of_a_token_cache_is_found(tiny, tmp_path, harm):
    task, cache = classifier(tiny), ez.TokenCache(Counted(SENTENCES), tmp_path)
    losses(task, cache)
    path = tmp_path / "batches" / "tokens-000001.safetensors"
    path = path.with_name("tokens.json") if harm == "manifest" else path
    content = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(content[:-4])
    else:
        content[-20] ^= 1
        path.write_bytes(content)
    with pytest.raises(Exception, match="damaged|truncated|JSON"):
        losses(task, cache)
    shutil.rmtree(path.parent)
    assert losses(task, cache)


@pytest.mark.slow
def test_a_stream_logs_once_that_texts_are_cut(tiny, caplog):
    task = tiny.task(get_family("bert"), "SequenceClassifier")
    long = [(f"{text} {'a ' * 40}", label) for text, label in SENTENCES]
    task.fit(Counted(long), epochs=2, batch_size=2, verbose=0)
    [line] = [line for line in caplog.messages if "longer than" in line]
    assert line.startswith("In a batch of the stream, 2 of 2 texts are longer than")
