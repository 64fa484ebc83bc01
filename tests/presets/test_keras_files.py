"""Keras's own files: opened by a new process after `import encoder_zoo` alone."""

import importlib
import inspect
import json
import os
import pkgutil
import resource
import time
import zipfile

import keras
import numpy as np
import pytest
from processes import run

import encoder_zoo as ez
from encoder_zoo.encoders import FAMILIES, get_family, list_families
from encoder_zoo.tasks import list_tasks
from encoder_zoo.testing import tiny as testing_tiny
from encoder_zoo.testing.comparing import assert_keras_file_round_trip

TEXTS = ["a good film", "a bad film"]


def every_class() -> list[type]:
    """The classes that the package's modules define, all of them imported."""
    found = []
    for wing in ("encoder_zoo.encoders", "encoder_zoo.presets", "encoder_zoo.tasks"):
        for module in pkgutil.walk_packages(importlib.import_module(wing).__path__, f"{wing}."):
            module = importlib.import_module(module.name)
            classes = inspect.getmembers(module, inspect.isclass)
            found += [cls for _, cls in classes if cls.__module__ == module.__name__]
    return found


REGISTERED = """
    import keras
    from encoder_zoo.names import HOMES, load

    for name, home in HOMES.items():
        load(home, name)
    print(*sorted(keras.saving.get_custom_objects()))
"""


@pytest.mark.slow
@pytest.mark.matrix
def test_public_names_register_all_that_keras_files_hold():
    """So that a file opens whose classes are found by the public ones among them."""
    classes = every_class()
    ours = {name for name in keras.saving.get_custom_objects() if name.startswith("encoder_zoo>")}
    assert ours == set(run(REGISTERED).split())
    bases = {base for cls in classes for base in cls.__mro__[1:]}
    saved = {cls.__name__ for cls in classes if hasattr(cls, "get_config") and cls not in bases}
    assert "GemmaTokenizer" in saved
    # Not in files: of a distillation the student alone is saved, of a recipe its arguments.
    saved -= {"Distillation", "DistillationPreprocessor", "Recipe"}
    assert {f"encoder_zoo>{name}" for name in saved if not name.startswith("_")} <= ours


@pytest.fixture(scope="module")
def models():
    """A classifier and a tagger."""
    bert = ez.SequenceClassifier.from_preset("bert_nano_en_uncased", labels=["no", "yes"])
    return bert, ez.TokenClassifier.from_preset("roberta_nano_en", labels=["O", "B-X", "I-X"])


@pytest.fixture(scope="module")
def files(tmp_path_factory, models):
    """A folder of `.keras` files."""
    folder = tmp_path_factory.mktemp("files")
    for name, model in zip(("checkpoint", "tagger"), models, strict=True):
        model.save(folder / f"{name}.keras")
    return folder


@pytest.fixture(scope="module")
def answered(tmp_path_factory, models):
    """A folder of `.keras` files, one of a checkpoint, and what the models in them answer."""
    folder, (bert, tagger) = tmp_path_factory.mktemp("answered"), models
    tagger.save(folder / "tagger.keras")
    checkpoint = keras.callbacks.ModelCheckpoint(folder / "checkpoint.keras")
    bert.fit(TEXTS, ["yes", "no"], callbacks=[checkpoint], verbose=0)
    names = ("token_ids", "padding_mask")
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in names}
    encoded = ez.RobertaBackbone.from_preset("roberta_nano_en")(inputs)
    users = keras.Model(inputs, keras.layers.Dense(3)(encoded["sequence_output"]))
    users.save(folder / "users.keras")
    ids = {"token_ids": np.array([[0, 9, 2]]), "padding_mask": np.ones([1, 3], int)}
    expected = {
        "checkpoint": bert.predict(TEXTS, verbose=0).tolist(),
        "tagger": np.array(tagger.predict(TEXTS, verbose=0)).tolist(),
        "users": users.predict(ids, verbose=0).tolist(),
    }
    (folder / "expected.json").write_text(json.dumps(expected))
    return folder


OPEN = """
    import json, pathlib, sys
    {imports}
    import numpy as np

    folder = pathlib.Path(sys.argv[1])
    inputs = dict.fromkeys(["checkpoint", "tagger"], ["a good film", "a bad film"])
    inputs["users"] = {{"token_ids": np.array([[0, 9, 2]]), "padding_mask": np.ones([1, 3], int)}}
    for name, expected in json.loads((folder / "expected.json").read_text()).items():
        model = keras.saving.load_model(folder / f"{{name}}.keras")
        answers = model.predict(inputs[name], verbose=0)
        np.testing.assert_allclose(answers, expected, atol=1e-6)
        print(name, type(model).__module__)
    print(model.layers[2:])
"""


@pytest.mark.matrix
@pytest.mark.slow  # test_conformance.py opens those of tasks
@pytest.mark.parametrize("imports", ["import keras, encoder_zoo", "import encoder_zoo, keras"])
def test_a_new_process_opens_tasks_checkpoints_and_models_of_users(answered, imports):
    printed = run(OPEN.format(imports=imports), answered)
    assert printed.split("\n")[:2] == [
        "checkpoint encoder_zoo.tasks.classification.sequence_classifier",
        "tagger encoder_zoo.tasks.tagging.token_classifier",
    ]
    assert "RobertaBackbone" in printed


def edited(file, folder, change):
    """A copy of a `.keras` file, its configuration changed."""
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(folder / "evil.keras", "w") as copy:
        for name in source.namelist():
            content = source.read(name)
            if name == "config.json":
                config = json.loads(content)
                change(config)
                content = json.dumps(config)
            copy.writestr(name, content)
    return folder / "evil.keras"


@pytest.mark.slow
def test_a_module_that_a_file_names_is_not_imported(files, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("import pathlib\npathlib.Path(__file__ + '.mark').touch()\n")
    monkeypatch.syspath_prepend(os.fspath(tmp_path))

    def change(config):
        config["module"] = config["config"]["backbone"]["module"] = "evil"

    file = edited(files / "checkpoint.keras", tmp_path, change)
    # By its name: where doctests are collected too, pytest imports every module a second time.
    assert type(keras.saving.load_model(file)).__name__ == "SequenceClassifier"

    for name in ("Evil", "list_presets", "testing"):

        def rename(config, name=name):
            config.update(module="evil", class_name=name, registered_name=f"encoder_zoo>{name}")

        with pytest.raises(TypeError, match=f"'{name}'"):
            keras.saving.load_model(edited(files / "checkpoint.keras", tmp_path, rename))
    assert not (tmp_path / "evil.py.mark").exists()


@pytest.mark.slow(except_for="^tagger-merges")
@pytest.mark.parametrize(
    ("file", "argument"),
    [("checkpoint", "vocabulary"), ("tagger", "vocabulary"), ("tagger", "merges")],
)
def test_a_file_that_a_file_names_is_not_read(files, tmp_path, file, argument):
    def change(config):
        tokenizer = config["config"]["preprocessor"]["config"]["tokenizer"]["config"]
        tokenizer[argument] = os.fspath(tmp_path / "secret.txt")

    (tmp_path / "secret.txt").write_text("secret")
    with pytest.raises(ValueError, match=rf"{argument} is '"):
        keras.saving.load_model(edited(files / f"{file}.keras", tmp_path, change))


def set_in_backbone(**sizes):
    return lambda config: config["config"]["backbone"]["config"].update(sizes)


@pytest.mark.parametrize(
    "change",
    [
        set_in_backbone(vocabulary_size=300_000_000),
        set_in_backbone(intermediate_dim=10**9),
        set_in_backbone(num_layers=200_000),
        set_in_backbone(hidden_dim=10**6, num_heads=1),
        set_in_backbone(max_sequence_length=10**9),
        set_in_backbone(num_segments=10**9),
        lambda config: config["config"].update(num_classes=10**9, labels=None),
    ],
    ids=["vocabulary", "intermediate", "layers", "hidden", "positions", "segments", "classes"],
)
def test_sizes_that_a_file_has_no_weights_for_are_refused_at_once(files, tmp_path, change):
    file = edited(files / "checkpoint.keras", tmp_path, change)
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"bytes of weights"):
        keras.saving.load_model(file)
    assert time.monotonic() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # KiB


@pytest.mark.parametrize("family", list_families(), ids=lambda family: family.name)
def test_sizes_are_not_overestimated(tmp_path, family):
    backbone = testing_tiny.backbone(family)
    config = {**backbone.get_config(), "quantized": {}}
    assert type(backbone).count_min_weights(config) <= backbone.count_params()
    # Of sizes as real ones have, where the large matrices are nearly all.
    large = {**config, "vocabulary_size": 10**6, "intermediate_dim": 10**6}
    assert type(backbone).count_min_weights(large) > 10**6 * config["hidden_dim"]


@pytest.mark.slow
def test_narrow_layers_before_wide_ones_open(tmp_path):
    family = get_family("bert")
    backbone = testing_tiny.backbone(family)
    dense = [{"units": 2, "activation": "linear"}, {"units": 3000, "activation": "linear"}]
    narrow = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(3000)])
    for model in (
        ez.TextEmbedder(backbone, dense=dense),
        ez.SequenceClassifier(backbone, num_classes=3000, head=narrow),
    ):
        model.save(tmp_path / "model.keras")
        opened = keras.saving.load_model(tmp_path / "model.keras")
        assert opened.count_params() == model.count_params()


QUANTIZED = [
    ("SequenceClassifier", "int8"),
    ("MaskedLM", "int8"),
    *[
        pytest.param(name, mode, marks=pytest.mark.slow)
        for name, mode in [
            *((task.__name__, "int8") for task in list_tasks()),
            ("SequenceClassifier", "int4"),
            ("SequenceClassifier", "float8"),
        ]
    ],
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Invalid quantization mode")  # float8, of embeddings
@pytest.mark.parametrize(("name", "mode"), QUANTIZED)
def test_quantized_tasks_open_with_equal_outputs(tiny, name, mode, tmp_path):
    """As the error of `save_to_preset` advises; "17 objects could not be loaded" it was."""
    family = get_family("electra" if name == "ReplacedTokenDetection" else "bert")
    task = tiny.randomize_weights(tiny.task(family, name))
    inputs = tiny.rows(family)
    task.quantize(mode)
    with pytest.raises(ValueError, match=r"\.save\("):
        task.save_to_preset(tmp_path / "preset")
    assert_keras_file_round_trip(task, inputs)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("family", list(FAMILIES))
def test_quantized_backbones_open_with_equal_outputs(tiny, family):
    backbone = tiny.randomize_weights(tiny.backbone(get_family(family)))
    backbone.quantize("int8")
    assert any(weight.dtype == "int8" for weight in backbone.weights)
    assert_keras_file_round_trip(backbone, tiny.rows(get_family(family)))
