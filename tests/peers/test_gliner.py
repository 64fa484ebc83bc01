"""Folders of gliner here, and ours in gliner, which needs an older transformers than other tests.

`ENCODER_ZOO_GLINER` names a Python interpreter that has it, of a virtual environment with
`pip install gliner torch accelerate`.
"""

import json
import os
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import GOLDEN

import encoder_zoo as ez
from encoder_zoo.tasks.tagging.entity_extractor_preprocessor import shuffle_rows

PYTHON = os.environ.get("ENCODER_ZOO_GLINER")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(not PYTHON, reason="ENCODER_ZOO_GLINER names no Python with gliner"),
]
NAMES = ["bert", "bert_wider", "bert_two_lstm", "bert_mean", "bert_max", "bert_last"]
NAMES += ["bert_marker", "bert_first", "bert_markers", "deberta", "deberta_wider", "modernbert"]
NAMES += ["roberta"]
TRAINED = ["bert_nano_en_uncased", "roberta_nano_en"]
TEXTS = [
    "Anna Lee met Bob in Paris.",
    "",
    "well-known state_of_the-art -x- a--b _c_ e-mail: a.b@c.de, 3.50 €!",
    "Zoë ate 🍕🍕 in São-Paulo…\tno\u00a0space\r\nΑθήνα 東京都",
    "  x ",
    "Anna saw Bob and Bob saw Anna in the old town of Paris , near the river . " * 3,
]
LABELS = ["person", "city", "date of birth"]
SCRIPT = """
import json, pathlib, sys
from gliner import GLiNER

texts, settings = json.load(open(sys.argv[2]))
for folder in pathlib.Path(sys.argv[1]).iterdir():
    model = GLiNER.from_pretrained(str(folder))
    found = [[model.inference([text], **given)[0] for text in texts] for given in settings]
    (folder / "found.json").write_text(json.dumps(found))
"""
# Threshold, nested, multi_label.
SETTINGS = [(0.5, False, False), (0.3, True, False), (0.6, False, True), (0.7, True, True)]


def run(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, *map(str, arguments)],
        env={**environment, "USE_TF": "0"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def ask(folders, tmp_path):
    """Have gliner write what it finds in TEXTS with each of SETTINGS into each of the folders."""
    settings = [
        {"labels": LABELS, "threshold": t, "flat_ner": not nested, "multi_label": several}
        for t, nested, several in SETTINGS
    ]
    (tmp_path / "asked.json").write_text(json.dumps([TEXTS, settings]))
    run("-c", SCRIPT, folders, tmp_path / "asked.json")


def found_in(folder):
    return json.loads((folder / "found.json").read_text())


def assert_same(model, theirs):
    for (threshold, nested, several), rows in zip(SETTINGS, theirs, strict=True):
        ours = model.extract_entities(TEXTS, LABELS, threshold, nested, several)
        for text, a, b in zip(TEXTS, ours, rows, strict=True):
            scores = [[entity.pop("score") for entity in row] for row in (a, b)]
            assert a == b, (threshold, nested, several, text)
            np.testing.assert_allclose(*scores, atol=1e-4)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Folders of random weights of many settings, as gliner writes them."""
    folder = tmp_path_factory.mktemp("theirs")
    code = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import make_gliner as m\n"
        "for name in sys.argv[3:]: m.write(pathlib.Path(sys.argv[2]) / name, name)"
    )
    run("-c", code, GOLDEN, folder, *NAMES)
    ask(folder, tmp_path_factory.mktemp("asked"))
    return folder


@pytest.fixture(scope="module")
def ours(theirs, tmp_path_factory):
    """The same folders as they are saved here, and two encoders that were trained here."""
    folder = tmp_path_factory.mktemp("ours")
    for name in NAMES:
        ez.EntityExtractor.from_preset(theirs / name).save_to_preset(folder / name)
    spans = [[(0, 8, "person"), (0, 4, "city")], [], [], [], [], [(0, 4, "person")]]
    for name in TRAINED:
        model = ez.EntityExtractor.from_preset(name, max_width=5, span_dim=20)
        model.fit(TEXTS, spans, verbose=0)
        model.save_to_preset(folder / name)
    ask(folder, tmp_path_factory.mktemp("asked"))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_what_gliner_saves_opens_here(name, theirs):
    assert_same(ez.EntityExtractor.from_preset(theirs / name), found_in(theirs / name))


@pytest.mark.parametrize("name", [*NAMES, *TRAINED])
def test_what_is_saved_here_opens_there(name, ours):
    assert_same(ez.EntityExtractor.from_preset(ours / name), found_in(ours / name))


LEARN = """
import json, sys
import torch
from gliner import GLiNER

given = json.load(open(sys.argv[2]))
model = GLiNER.from_pretrained(sys.argv[1])
for module in model.modules():
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
model.train()  # of the attention and the LSTM dropout is 0 already
examples = []
for text, spans, labels in zip(given["texts"], given["spans"], given["labels"]):
    words = list(model.data_processor.words_splitter(text))
    first = {start: i for i, (_, start, _) in enumerate(words)}
    last = {end: i for i, (_, _, end) in enumerate(words)}
    ner = [[first[start], last[end], label] for start, end, label in spans]
    tokens = [word for word, _, _ in words]
    examples.append({"tokenized_text": tokens, "ner": ner, "ner_labels": labels})
batch = model._create_data_collator()(examples)
optimizer, losses = torch.optim.SGD(model.parameters(), lr=1e-5), []
for _ in range(4):
    loss = model(**batch, **given["loss"], reduction="sum").loss
    losses.append(loss.item())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
open(sys.argv[3], "w").write(json.dumps(losses))
"""


@pytest.mark.parametrize("name", ["bert", "bert_wider", "deberta"])
@pytest.mark.parametrize("alpha,gamma", [(None, 0.0), (0.75, 2.0)])
def test_training_steps_are_those_of_gliner(name, alpha, gamma, tmp_path):
    folder = GOLDEN / "gliner" / name
    texts = ["Anna Lee met Bob in Paris .", "Paris , the old town", "a river in São-Paulo"]
    spans = [[(0, 8, LABELS[0]), (20, 25, LABELS[1])], [(0, 5, LABELS[1])], []]
    options = {"labels": LABELS, "dropout": 0.0, "attention_dropout": 0.0}
    model = ez.EntityExtractor.from_preset(folder, **options)
    model.compile(keras.optimizers.SGD(1e-5), ez.SpanFocalLoss(gamma, alpha, reduction="sum"))
    history = model.fit(texts, spans, batch_size=3, epochs=4, shuffle=False, verbose=0)
    order = shuffle_rows(tf.ragged.constant([range(len(LABELS))] * len(texts)))
    labels = [[LABELS[i] for i in row] for row in order.to_list()]
    loss = {"alpha": -1 if alpha is None else alpha, "gamma": gamma}
    given = {"texts": texts, "spans": spans, "labels": labels, "loss": loss}
    (tmp_path / "given.json").write_text(json.dumps(given))
    run("-c", LEARN, folder, tmp_path / "given.json", tmp_path / "losses.json")
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert losses[0] > 1.001 * losses[3] > 0
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-4)
