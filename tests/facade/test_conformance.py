"""What every family's models do, with every task: the registered ones are tested here."""

import json
import pathlib
import shutil
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from paths import CHECKPOINTS
from processes import run

import encoder_zoo as ez
from encoder_zoo.common.layers import list_layers
from encoder_zoo.encoders import list_families
from encoder_zoo.tasks import list_tasks
from encoder_zoo.tasks.preprocessing.packing import join_texts
from encoder_zoo.testing import tiny
from encoder_zoo.testing.comparing import assert_same, compute_outputs
from encoder_zoo.testing.family_conformance import compute_gradients

TEXTS = ["a b ab", "", "c d e a b", "p"]
SLOW = pytest.mark.slow
each_family = pytest.mark.parametrize("family", list_families(), ids=lambda family: family.name)
# In the default run one family of each kind of blocks.
KINDS_OF_BLOCKS = ("bert", "albert", "deberta-v2", "modernbert")
# Families whose graph is BERT's, without segments, a pooler or a head's layer.
BERTS = ("roberta", "distilbert", "electra", "xlm-roberta", "camembert")
each_kind = pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=family.name, marks=[] if family.name in KINDS_OF_BLOCKS else SLOW)
        for family in list_families()
    ],
)

# Of the pairs of a family and a task, the default run has BERT with all tasks, as test_families.py
# checks backbones. The slow tests add pairs that cover: each family with two tasks and each task
# with three families, where so many have it. All pairs are the matrix, which runs before a release.
PAIRS = [
    (family, task) for family in list_families() for task in list_tasks() if task.supports(family)
]


def covering(pairs: list) -> list:
    """Return BERT's pairs, and two of each other family, of the tasks with the fewest so far."""
    chosen = [(family, task) for family, task in pairs if family.name == "bert"]
    for family in list_families():
        tasks = [task for of_family, task in pairs if of_family is family]
        tasks.sort(key=lambda task: sum(task is other for _, other in chosen))
        chosen += [] if family.name == "bert" else [(family, task) for task in tasks[:2]]
    return [pair for pair in pairs if pair in chosen]


USUAL = covering(PAIRS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=family.name, marks=[] if family.name == "bert" else SLOW)
        for family in list_families()
    ],
)
def test_layers_have_the_precision_of_their_model_and_not_that_of_others(family):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")  # of models that say nothing
    try:
        models = [tiny.task(family, task, dtype="float32") for task in of_family(family)]
        wrong = {
            f"{type(model).__name__}: {layer.path}: {layer.dtype_policy.name}"
            for model in models
            for layer in list_layers(model)
            if layer.dtype_policy.name != "float32"
        }
    finally:
        keras.config.set_dtype_policy(before)
    assert not wrong


def of_family(family) -> list:
    return [task for pair, task in USUAL if pair is family]


def test_the_pairs_cover_all_families_and_tasks():
    for task in list_tasks():
        families = [family for family, other in PAIRS if other is task]
        assert sum(other is task for _, other in USUAL) >= min(3, len(families))
    for family in list_families():
        assert sum(other is family for other, _ in USUAL) >= 2


def marked(family, task, *more, name: str, slow: bool = False):
    usual = [SLOW] if slow else []
    marks = usual if (family, task) in USUAL else [SLOW, pytest.mark.matrix]
    return pytest.param(family, task, *more, id=name, marks=marks)


def is_export(check: str) -> bool:
    """Return whether a check traces all graphs again, for seconds; see test_export.py too."""
    return "export" in check


def is_checked(family, task, check: str) -> bool:
    """Return whether a pair has a check: exports are of BERT, and of each family once."""
    usual = [each for of_family, each in USUAL if of_family is family]
    return not is_export(check) or family.name == "bert" or task is usual[0]


each_usual_pair = pytest.mark.parametrize(
    ("family", "task"), [pytest.param(f, t, id=f"{t.__name__}-{f.name}") for f, t in USUAL]
)


def folder_of(family, task) -> pathlib.Path:
    return CHECKPOINTS / f"{family.class_prefix}_{task.record.head}"


STORED = [
    (family, task)
    for family, task in PAIRS
    if folder_of(family, task).is_dir() and task.record.folder.opened_by is None
]


@pytest.mark.slow(
    only="get config|keras file|preset round|padding and|precision|gradients|(raw|prepared) inputs"
)
@pytest.mark.parametrize(
    ("family", "task", "check"),
    [
        marked(family, task, check, name=name, slow=family.name != "bert" or is_export(name))
        for family, task in PAIRS
        for name, check in ez.testing.task_checks(task, [family])
        if is_checked(family, task, name)
    ],
)
def test_a_task(family, task, check):
    check()


def numbers(model, inputs) -> np.ndarray:
    return ops.convert_to_numpy(model(inputs))


@pytest.fixture(scope="module")
def saved(tiny, tmp_path_factory):
    """{name: model}, and a folder with each as a preset and as a `.keras` file."""
    folder, models = tmp_path_factory.mktemp("saved"), {}
    for name in ("rows", "presets", "files", *KINDS):
        (folder / name).mkdir()
    for family in list_families():
        np.savez(folder / "rows" / f"{family.name}.npz", **tiny.rows(family))
    for family, task in USUAL:
        name = f"{family.name} {task.__name__}"
        models[name] = model = tiny.task(family, task.__name__)
        model.save_to_preset(folder / "presets" / name)
        model.save(folder / "files" / f"{name}.keras")
    return models, folder


# -- beside stored outputs of transformers -----------------------------------------------------


@pytest.mark.slow(only="^(MaskedLM-bart|SequenceClassifier-roberta|SpanQA-bart)")
@pytest.mark.parametrize(
    ("family", "task"), [marked(f, t, name=f"{t.__name__}-{f.name}") for f, t in STORED]
)
def test_a_task_answers_as_transformers_did(golden, family, task, caplog):
    stored = golden(folder_of(family, task).name)
    model = task.from_preset(stored.folder)
    # Nothing is random and nothing is left over.
    assert [record for record in caplog.records if record.name == "encoder_zoo"] == []
    found, real = numbers(model, stored.inputs), stored.inputs["padding_mask"]
    expected = list(stored.expected.values())
    expected = np.stack(expected, axis=1) if len(expected) > 1 else expected[0]
    if found.shape[1:] == (2, real.shape[1]):  # starts and ends
        found, expected = (np.moveaxis(values, 1, 2) for values in (found, expected))
    if found.shape[:2] == real.shape:
        found, expected = found[real], expected[real]
    # Processors add float32 in different orders, which moves sums by a share of their largest term.
    atol = 1e-5 * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)
    if task.record.has_classes:
        assert model.labels == ["O", "B-PER", "I-PER"]


@pytest.mark.slow(only="^(bart|bert|deberta|mpnet|xlnet)")
@each_family
def test_a_backbone_gives_what_transformers_did(golden, family):
    stored = golden(f"{family.class_prefix}_Model")
    backbone = ez.Backbone.from_preset(stored.folder)
    assert type(backbone) is family.backbone
    outputs, real = backbone(stored.inputs), stored.inputs["padding_mask"]
    found = ops.convert_to_numpy(outputs["sequence_output"])
    np.testing.assert_allclose(found[real], stored.expected["last_hidden_state"][real], atol=1e-5)
    assert ("pooled_output" in outputs) == ("pooler_output" in stored.expected)
    if "pooled_output" in outputs:
        found = ops.convert_to_numpy(outputs["pooled_output"])
        np.testing.assert_allclose(found, stored.expected["pooler_output"], atol=1e-5)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("family", "task"),
    [
        marked(f, t, name=f"{t.__name__}-{f.name}", slow=f.name not in KINDS_OF_BLOCKS)
        for f, t in STORED
    ],
)
def test_a_checkpoints_own_settings_are_kept(golden, family, task, tmp_path):
    head = task.get_family_head(family)
    stored = golden(folder_of(family, task).name).folder
    shutil.copytree(stored, tmp_path / "theirs")
    config = json.loads((stored / "config.json").read_text())
    config |= {head.dropout: 0.15} if head.dropout else {}
    settings = {"dropout": 0.35, "attention_dropout": 0.45, "activation": "relu"}
    keys = family.config_keys
    config |= {keys[name]: value for name, value in settings.items() if name in keys}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config))
    model = task.from_preset(tmp_path / "theirs")
    if head.dropout:
        assert model.dropout == config[head.dropout]
    model.save_to_preset(tmp_path / "ours")
    saved = json.loads((tmp_path / "ours" / "config.json").read_text())
    ours = {head.dropout, *keys.values(), "architectures"}
    ours |= {"id2label", "label2id"} if task.record.has_classes else set()
    kept = {key: config[key] for key in ours & config.keys()}
    assert {key: saved.get(key) for key in kept} == kept
    assert {"vocab_size", *(key for key in (head.dropout,) if key)} <= kept.keys()


# -- saved and opened --------------------------------------------------------------------------


# How models are opened: (what comes before any import, the folder, the call).
WITHOUT_TENSORFLOW = (
    'sys.modules["tensorflow"] = None',
    "presets",
    "getattr(ez, task).from_preset(path)",
)
KINDS = {
    "tensorflow": ("", "files", "keras.saving.load_model(path)"),
    "jax": WITHOUT_TENSORFLOW,
    "torch": WITHOUT_TENSORFLOW,
}
# Writes what each model answers, or why it does not, so that each is a test of its own.
OPEN = """
import pathlib, sys, traceback
{before}
import encoder_zoo as ez
import keras
import numpy as np

folder = pathlib.Path(sys.argv[1])
for path in (folder / "{opened}").iterdir():
    family, task = path.stem.split(" ")
    answers = folder / keras.config.backend() / path.stem
    try:
        model = {open}
        outputs = keras.tree.flatten(model(dict(np.load(folder / "rows" / (family + ".npz")))))
        np.savez(f"{{answers}}.npz", *map(keras.ops.convert_to_numpy, outputs))
    except Exception:
        pathlib.Path(f"{{answers}}.txt").write_text(traceback.format_exc())
"""


@pytest.fixture(scope="module", params=KINDS)
def answers(request, saved):
    """The folder of what the models answered that one new process opened."""
    backend = request.param
    before, opened, call = KINDS[backend]
    run(OPEN.format(before=before, opened=opened, open=call), saved[1], KERAS_BACKEND=backend)
    return saved[1] / backend


@pytest.mark.slow(every=True)  # one process of each backend opens all
@each_usual_pair
def test_another_process_opens_it(tiny, saved, answers, family, task):
    """A `.keras` file after `import encoder_zoo` alone; a preset with JAX and with torch."""
    name = f"{family.name} {task.__name__}"
    error = answers / f"{name}.txt"
    assert not error.exists(), error.read_text()
    expected = compute_outputs(saved[0][name], tiny.rows(family))
    found = np.load(answers / f"{name}.npz")
    # Half a rounding step in the weights of this small ModernBERT moves its logits by 4e-5, and in
    # those of GTE the logits at padding.
    atol = 1e-4 if family.name in ("modernbert", "gte") else 1e-5
    assert_same(list(found.values()), expected, atol=atol)


@pytest.mark.matrix
@SLOW
def test_a_savedmodel_of_sentencepiece_answers_as_classify_does(tiny, tmp_path):
    """Those of WordPiece and of byte pairs are in test_export.py."""
    classifier = tiny.task(ez.DebertaV2Backbone.family, "SequenceClassifier")
    classifier.export(tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    found = served(text=tf.constant(TEXTS))
    expected = classifier.classify(TEXTS, top_k=3)
    labels = [[label.decode() for label in row] for row in found["label"].numpy()]
    assert labels == [[answer["label"] for answer in row] for row in expected]
    scores = [[answer["score"] for answer in row] for row in expected]
    np.testing.assert_allclose(found["score"], scores, atol=1e-5)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [family for family in list_families() if family.name not in BERTS],
    ids=lambda family: family.name,
)
@pytest.mark.filterwarnings("ignore")  # of the converters
def test_onnx_and_litert_say_what_the_model_does(tiny, family, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    classifier, rows = tiny.task(family, "SequenceClassifier"), tiny.rows(family)
    classifier.export(tmp_path / "model.onnx", format="onnx")
    classifier.export(tmp_path / "model.tflite", format="litert")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    lite = tf.lite.Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
    for length in (16, 9):
        inputs = {
            put.name: np.asarray(rows[put.name][:, :length], "int32")
            for put in session.get_inputs()
        }
        assert {"token_ids", "padding_mask"} <= inputs.keys()
        expected = numbers(classifier, inputs)
        np.testing.assert_allclose(session.run(["logits"], inputs)[0], expected, atol=1e-4)
        np.testing.assert_allclose(lite(**inputs)["logits"], expected, atol=1e-4)


# -- trained -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(f, id=f.name, marks=[] if f.name == "modernbert" else SLOW)
        for f in list_families()
    ],
)
def test_fit_trains_on_raw_text_by_the_familys_recipe(tiny, family):
    classifier = tiny.task(family, "SequenceClassifier", dropout=0.0, attention_dropout=0.0)
    classifier.head.dropout_layer.rate = 0.0  # some heads have one of their own
    classifier.compile(run_eagerly=True)
    before = [ops.convert_to_numpy(weight) for weight in classifier.trainable_weights]
    history = classifier.fit(TEXTS, ["O", "B-X", "I-X", "O"], epochs=12, batch_size=4, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert classifier.optimizer.weight_decay == family.weight_decay
    assert classifier.learning_rate == family.learning_rate
    after = [ops.convert_to_numpy(weight) for weight in classifier.trainable_weights]
    same = [
        weight.path
        for weight, a, b in zip(classifier.trainable_weights, after, before, strict=True)
        if (a == b).all()
    ]
    if family.name == "longformer":  # the first token of the last block only has global attention
        local = [f"block_1/attention/{part}/bias" for part in ("query", "key", "value")]
        same = [path for path in same if not path.endswith(tuple(local))]
    assert same == []


@pytest.mark.slow(except_for="^modernbert")
@each_kind
def test_gradient_checkpointing_computes_twice(tiny, family):
    """With the same gradients, as `ez.testing.family_checks` checks."""
    backbone, calls = tiny.backbone(family), []
    cls = type(backbone.blocks[0])
    for _ in range(2):
        with mock.patch.object(cls, "call", autospec=True, side_effect=cls.call) as call:
            compute_gradients(backbone, tiny.rows(family))
        calls.append(call.call_count)
        backbone.enable_gradient_checkpointing()
    assert calls[1] == 2 * calls[0]


@pytest.mark.slow(except_for="^bert")
@each_kind
def test_lora_trains_its_updates_and_the_head_alone(tiny, family):
    classifier, inputs = tiny.task(family, "SequenceClassifier", dropout=0.0), tiny.rows(family)
    before = numbers(classifier, inputs)
    classifier.backbone.enable_lora(rank=2)
    np.testing.assert_allclose(numbers(classifier, inputs), before, atol=1e-5)
    values = {id(v): ops.convert_to_numpy(v) for v in classifier.weights}
    optimizer = keras.optimizers.SGD(0.1)
    for _ in range(2):  # one of an update's two matrices begins at zero
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(classifier(inputs, training=True)))
        variables = classifier.trainable_variables
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
    after = {id(v): ops.convert_to_numpy(v) for v in classifier.weights}
    changed = {key for key, value in after.items() if (values[key] != value).any()}
    blocks = classifier.backbone.blocks
    layers = [dense for block in blocks for dense in block.attention.lora_layers]
    updates = {id(v) for dense in layers for v in (dense.lora_kernel_a, dense.lora_kernel_b)}
    biases = {id(dense.bias) for dense in layers if dense.bias is not None}
    assert updates and updates <= changed
    assert changed <= updates | biases | {id(v) for v in classifier.head.weights}


@pytest.mark.slow(except_for="^modernbert")
@each_kind
def test_texts_in_one_row_have_the_outputs_of_rows_of_their_own(tiny, family):
    task = tiny.task(family, "MaskedLM")
    backbone = tiny.backbone(family)
    rows = task.preprocess(TEXTS)
    alone = task.preprocessor.pad(rows)
    grouped = {  # the first two texts in one row, the others in another
        name: tf.RaggedTensor.from_row_lengths(values, [2, 2]) for name, values in rows.items()
    }
    joined = join_texts(grouped)
    shared = task.preprocessor.pad(joined)
    shared["text_starts"] = joined["text_starts"].to_tensor(shared["token_ids"].shape[1])
    logits = numbers(task, alone), numbers(task, shared)
    if family.pooler:
        pooled = [ops.convert_to_numpy(backbone(x)["pooled_output"]) for x in (alone, shared)]
        np.testing.assert_allclose(pooled[1].reshape(pooled[0].shape), pooled[0], atol=1e-5)
    lengths = rows["token_ids"].row_lengths().numpy()
    for text, (row, number) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        start, length = shared["text_starts"][row, number].numpy(), lengths[text]
        here = logits[1][row, start : start + length]
        np.testing.assert_allclose(here, logits[0][text, :length], atol=1e-5)
