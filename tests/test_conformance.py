"""What every family's models do, with every task: a registered family is tested here."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import encoder_zoo as ez
from encoder_zoo.encoders import all_families
from encoder_zoo.tasks.preprocessing.packing import join_texts

TASKS = ["SequenceClassifier", "TokenClassifier", "SpanQA", "MaskedLM"]
TEXTS = ["a b ab", "", "c d e a b", "p"]
SLOW = pytest.mark.slow
each_family = pytest.mark.parametrize("family", all_families(), ids=lambda family: family.name)

# In the default run each family with one task, and BERT with all; with the slow tests all with all.
PAIRS = [(family, task) for family in all_families() for task in TASKS]
USUAL = [
    (family, task)
    for i, family in enumerate(all_families())
    for j, task in enumerate(TASKS)
    if family.name == "bert" or i % len(TASKS) == j
]
each_pair = pytest.mark.parametrize(
    ("family", "task"),
    [
        pytest.param(*pair, id=f"{pair[1]}-{pair[0].name}", marks=[] if pair in USUAL else SLOW)
        for pair in PAIRS
    ],
)


def numbers(model, inputs) -> np.ndarray:
    return ops.convert_to_numpy(model(inputs))


@pytest.fixture(scope="module")
def saved(tiny, tmp_path_factory, slow_too):
    """{(family, task): model}, and a folder with each as a preset and as a `.keras` file."""
    folder, models = tmp_path_factory.mktemp("saved"), {}
    for name in ("rows", "presets", "files", *KINDS):
        (folder / name).mkdir()
    for family in all_families():
        np.savez(folder / "rows" / f"{family.name}.npz", **tiny.rows(family))
    for family, task in PAIRS if slow_too else USUAL:
        models[family.name, task] = model = tiny.task(family, task)
        model.save_to_preset(folder / "presets" / f"{family.name} {task}")
        model.save(folder / "files" / f"{family.name} {task}.keras")
    return models, folder


# -- beside stored outputs of transformers -----------------------------------------------------


@each_pair
def test_a_task_answers_as_transformers_did(golden, family, task, caplog):
    cls = getattr(ez, task)
    stored = golden(f"{family.class_prefix}_{cls.checkpoint_class_suffix}")
    model = cls.from_preset(stored.folder)
    # Nothing is random and nothing is left over.
    assert [record for record in caplog.records if record.name == "encoder_zoo"] == []
    expected = list(stored.expected.values())
    found, real = numbers(model, stored.inputs), stored.inputs["padding_mask"]
    if task == "SpanQA":
        found, expected = np.moveaxis(found, 1, 2), [np.stack(expected, axis=2)]
    if task != "SequenceClassifier":
        found, expected = found[real], [expected[0][real]]
    np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-5)
    if task.endswith("Classifier"):
        assert model.labels == ["O", "B-PER", "I-PER"]


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


@each_pair
def test_a_checkpoints_own_settings_are_kept(golden, family, task, tmp_path):
    cls = getattr(ez, task)
    head = family.heads[cls.checkpoint_class_suffix]
    stored = golden(f"{family.class_prefix}_{cls.checkpoint_class_suffix}").folder
    shutil.copytree(stored, tmp_path / "theirs")
    config = json.loads((stored / "config.json").read_text())
    config |= {head.dropout: 0.15} if head.dropout else {}
    settings = {"dropout": 0.35, "attention_dropout": 0.45, "activation": "relu"}
    config |= {family.config_keys[name]: value for name, value in settings.items()}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config))
    model = cls.from_preset(tmp_path / "theirs")
    if head.dropout:
        assert model.dropout == config[head.dropout]
    model.save_to_preset(tmp_path / "ours")
    saved = json.loads((tmp_path / "ours" / "config.json").read_text())
    ours = {head.dropout, *family.config_keys.values(), "architectures", "id2label", "label2id"}
    kept = {key: config[key] for key in ours & config.keys()}
    assert {key: saved.get(key) for key in kept} == kept
    assert {"vocab_size", *(key for key in (head.dropout,) if key)} <= kept.keys()


# -- saved and opened --------------------------------------------------------------------------


@each_pair
def test_a_preset_comes_back_as_it_was(tiny, saved, family, task, caplog):
    models, folder = saved
    model = models[family.name, task]
    loaded = type(model).from_preset(folder / "presets" / f"{family.name} {task}")
    # Nothing is random and nothing is left over.
    assert [record for record in caplog.records if record.name == "encoder_zoo"] == []
    inputs = tiny.rows(family)
    np.testing.assert_array_equal(numbers(loaded, inputs), numbers(model, inputs))
    before, after = model.preprocessor.tokenizer, loaded.preprocessor.tokenizer
    assert after.get_config() == before.get_config()


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
        outputs = model(dict(np.load(folder / "rows" / (family + ".npz"))))
        np.save(f"{{answers}}.npy", keras.ops.convert_to_numpy(outputs))
    except Exception:
        pathlib.Path(f"{{answers}}.txt").write_text(traceback.format_exc())
"""


@pytest.fixture(scope="module", params=KINDS)
def answers(request, saved):
    """The folder of what the models answered that one new process opened."""
    backend = request.param
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed: `pip install {backend}`")
    before, opened, call = KINDS[backend]
    code = OPEN.format(before=before, opened=opened, open=call)
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved[1])],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend},
        timeout=1800,  # for one that hangs
    )
    assert done.returncode == 0, done.stderr
    return saved[1] / backend


@each_pair
def test_another_process_opens_it(tiny, saved, answers, family, task):
    """A `.keras` file after `import encoder_zoo` alone; a preset with JAX and with torch."""
    error = answers / f"{family.name} {task}.txt"
    assert not error.exists(), error.read_text()
    expected = numbers(saved[0][family.name, task], tiny.rows(family))
    found = np.load(answers / f"{family.name} {task}.npy")
    # Half a rounding step in the weights of this small ModernBERT moves its logits by 4e-5.
    atol = 1e-4 if family.name == "modernbert" else 1e-5
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)


# One of each kind of tokenizer; the others when the slow tests run.
EXPORTED = [
    family if family.name in ("bert", "roberta", "deberta-v2") else pytest.param(family, marks=SLOW)
    for family in all_families()
]


@pytest.mark.parametrize("family", EXPORTED, ids=lambda family: family.name)
def test_a_savedmodel_answers_as_classify_does(tiny, family, tmp_path):
    classifier = tiny.task(family, "SequenceClassifier")
    classifier.export(tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    found = served(text=tf.constant(TEXTS))
    expected = classifier.classify(TEXTS, top_k=3)
    labels = [[label.decode() for label in row] for row in found["label"].numpy()]
    assert labels == [[answer["label"] for answer in row] for row in expected]
    scores = [[answer["score"] for answer in row] for row in expected]
    np.testing.assert_allclose(found["score"], scores, atol=1e-5)


@SLOW
@each_family
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


def outputs_and_gradients(backbone, inputs):
    """In training, of a function whose gradient differs from element to element."""
    variables = [v.value for v in backbone.trainable_variables]
    with tf.GradientTape() as tape:
        outputs = backbone(inputs, training=True)
        total = sum(tf.reduce_sum(tf.sin(3 * y)) for y in outputs.values())
    return outputs["sequence_output"], tape.gradient(total, variables)


@each_family
def test_fit_trains_on_raw_text_by_the_familys_recipe(tiny, family):
    classifier = tiny.task(family, "SequenceClassifier", dropout=0.0, attention_dropout=0.0)
    before = [ops.convert_to_numpy(weight) for weight in classifier.trainable_weights]
    history = classifier.fit(TEXTS, ["O", "B-X", "I-X", "O"], epochs=12, batch_size=4, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert classifier.optimizer.weight_decay == family.weight_decay
    assert classifier.learning_rate == family.learning_rate
    after = [ops.convert_to_numpy(weight) for weight in classifier.trainable_weights]
    assert all((a != b).any() for a, b in zip(after, before, strict=True))


@each_family
def test_gradient_checkpointing_computes_twice_and_changes_nothing(tiny, family):
    found, calls = [], []
    for checkpointing in (False, True):
        keras.utils.set_random_seed(0)
        backbone = tiny.backbone(family, dropout=0.2, attention_dropout=0.2)
        if checkpointing:
            backbone.enable_gradient_checkpointing()
        cls = type(backbone.blocks[0])
        with mock.patch.object(cls, "call", autospec=True, side_effect=cls.call) as call:
            found.append(outputs_and_gradients(backbone, tiny.rows(family)))
        calls.append(call.call_count)
    assert calls[1] == 2 * calls[0]
    (output, gradients), (output_again, gradients_again) = found
    np.testing.assert_allclose(output_again, output, atol=1e-5)
    for variable, first, second in zip(
        backbone.trainable_variables, gradients, gradients_again, strict=True
    ):
        first, second = (tf.convert_to_tensor(gradient).numpy() for gradient in (first, second))
        np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-4, err_msg=variable.path)


@each_family
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


@each_pair
def test_mixed_precision_is_close(tiny, saved, family, task):
    exact = saved[0][family.name, task]
    mixed = tiny.task(family, task, dtype="mixed_bfloat16")
    mixed.set_weights(exact.get_weights())
    assert {v.dtype for v in mixed.weights} == {"float32"}
    inputs = tiny.rows(family)
    assert mixed.backbone(inputs)["sequence_output"].dtype == "bfloat16"
    expected, found = numbers(exact, inputs), numbers(mixed, inputs)
    assert found.dtype == "float32"
    difference = np.abs(found - expected)
    # Weights as large as these let the roundings of a tiny model grow.
    assert 0 < difference.mean() < 0.25 * expected.std()
    assert np.quantile(difference, 0.98) < expected.std()


@each_family
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
