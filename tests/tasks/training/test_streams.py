"""Streams: each source gives what the same data in memory give, on each backend."""

import json

import pytest
from paths import CHECKPOINTS
from processes import run

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


@pytest.mark.parametrize(
    "backend", [*(pytest.param(b, marks=pytest.mark.slow) for b in ("jax", "tensorflow")), "torch"]
)
def test_streams_equal_the_same_data_in_memory(backend):
    preset = CHECKPOINTS / "Bert_ForSequenceClassification"
    found = json.loads(run(CODE, preset, KERAS_BACKEND=backend).splitlines()[-1])
    for name in SOURCES:
        assert found.get(name, 0) <= 1e-6, name
    assert {"PyDataset", "workers", "DataLoader", "generator"} <= set(found)
    assert "which can be read only once. Say how many batches an epoch has" in found["once"]
    assert "Batch 1 of the stream: texts[1] is None" in found["missing"]
    assert (found["epochs"], found["shuffled"]) == (2, True)
