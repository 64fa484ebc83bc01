"""Saving: every task and family round, in transformers' format, whole or not at all."""

import errno
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from paths import CHECKPOINTS
from safetensors.numpy import load_file

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.presets.files.atomic import FolderKind, replace_folder
from encoder_zoo.presets.saving import save_task
from encoder_zoo.tasks import list_tasks

FAMILIES = ["Bert", "Roberta"]  # all of them: test_conformance.py
# Those with transformers' heads; of the others test_sentence_transformers.py and test_reranker.py.
TASKS = [
    task
    for task in list_tasks()
    if (CHECKPOINTS / f"Bert_{task.record.head}").is_dir() and task.record.folder.opened_by is None
]


def outputs(model, inputs: dict) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(o) for o in keras.tree.flatten(model(inputs))]


@pytest.fixture
def classifier(golden):
    return ez.SequenceClassifier.from_preset(golden("Bert_ForSequenceClassification").folder)


def test_low_rank_updates_of_embeddings_are_merged(classifier, golden, tmp_path):
    inputs = golden("Bert_ForSequenceClassification").inputs
    table = classifier.backbone.embeddings.token_embedding
    before = outputs(classifier, inputs)
    table.enable_lora(2)
    factor = np.random.default_rng(0).normal(size=table.lora_embeddings_b.shape)
    table.lora_embeddings_b.assign(factor)
    classifier.save_to_preset(tmp_path / "preset")
    expected = outputs(classifier, inputs)
    assert np.abs(expected[0] - before[0]).max() > 1e-3
    found = outputs(ez.SequenceClassifier.from_preset(tmp_path / "preset"), inputs)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-6)


@pytest.mark.slow(except_for="^MaskedLM-Bert")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_a_task_comes_back_as_it_was(golden, family, task, tmp_path, caplog):
    checkpoint = golden(f"{family}_{task.record.head}")
    model = task.from_preset(checkpoint.folder)
    model.save_to_preset(tmp_path / "preset")
    caplog.clear()
    loaded = task.from_preset(tmp_path / "preset")
    # Nothing is random and nothing is left over.
    assert [record for record in caplog.records if record.name == "encoder_zoo"] == []
    for a, b in zip(
        outputs(model, checkpoint.inputs), outputs(loaded, checkpoint.inputs), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    config = json.loads((tmp_path / "preset" / "config.json").read_text())
    assert config["architectures"] == [f"{family}{task.record.head}"]
    original = load_file(checkpoint.folder / "model.safetensors")
    saved = load_file(tmp_path / "preset" / "model.safetensors")
    assert saved.keys() == original.keys()  # transformers' own names
    for name, value in original.items():
        np.testing.assert_array_equal(saved[name], value, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given, labels",
    [({"labels": ["LABEL_0", "LABEL_1"]}, ["LABEL_0", "LABEL_1"]), ({"num_classes": 2}, None)],
)
@pytest.mark.parametrize("cls", [ez.SequenceClassifier, ez.TokenClassifier])
def test_names_as_of_classes_without_names_come_back(golden, tmp_path, cls, given, labels):
    """transformers writes LABEL_0, LABEL_1 for classes that have no names."""
    cls.from_preset(golden("Bert_Model").folder, **given).save_to_preset(tmp_path / "preset")
    config = json.loads((tmp_path / "preset" / "config.json").read_text())
    assert config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert cls.from_preset(tmp_path / "preset").labels == labels
    assert cls.from_preset(tmp_path / "preset", labels=None).labels is None
    assert cls.from_preset(tmp_path / "preset", labels=["no", "yes"]).labels == ["no", "yes"]
    assert cls.from_preset(tmp_path / "preset", num_classes=3).labels is None
    # A checkpoint of the hub has no encoder_zoo.json.
    (tmp_path / "preset" / "encoder_zoo.json").unlink()
    hub = cls.from_preset(tmp_path / "preset")
    assert (hub.labels, hub.num_classes) == (None, 2)


@pytest.mark.parametrize(
    "given",
    [
        {"problem_type": "multi_label_classification"},
        {"head": None},
        {"labels": ["negative", "positive"]},
        {"num_classes": 2},
    ],
    ids=str,
)
def test_arguments_that_a_folder_has_already_change_nothing(tmp_path, given):
    problem = {"problem_type": "multi_label_classification"}
    tuned = {"temperature": 2.0, "thresholds": {"negative": 0.25, "positive": 0.75}}
    name = "bert_nano_en_uncased_sentiment"
    ez.SequenceClassifier.from_preset(name, **problem, **tuned).save_to_preset(tmp_path)
    again = ez.SequenceClassifier.from_preset(tmp_path, **given)
    assert again.labels == ["negative", "positive"] and again.problem_type in problem.values()
    assert (again.temperature, dict(again.thresholds)) == tuple(tuned.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_configuration_says_what_transformers_said(golden, family, tmp_path):
    folder = golden(f"{family}_ForSequenceClassification").folder
    ez.SequenceClassifier.from_preset(folder).save_to_preset(tmp_path / "preset")
    original = json.loads((folder / "config.json").read_text())
    saved = json.loads((tmp_path / "preset" / "config.json").read_text())
    same = set(original) & set(saved) - {"initializer_range", "classifier_dropout", "problem_type"}
    assert {"vocab_size", "hidden_act", "id2label", "label2id", "max_position_embeddings"} <= same
    assert {name: saved[name] for name in same} == {name: original[name] for name in same}


@pytest.mark.slow
def test_every_setting_away_from_its_default_comes_back(tmp_path):
    arguments = {
        "vocabulary_size": 21,
        "num_layers": 1,
        "num_heads": 3,
        "hidden_dim": 6,
        "intermediate_dim": 7,
        "dropout": 0.25,
        "attention_dropout": 0.35,
        "activation": "relu",
        "layer_norm_epsilon": 1e-4,
        "max_sequence_length": 9,
        "num_segments": 3,
        "pooler": False,
    }
    for cls, more in ((ez.BertBackbone, {}), (ez.RobertaBackbone, {"pad_token_id": 4})):
        cls(**arguments, **more).save_to_preset(tmp_path / "preset")
        loaded = ez.Backbone.from_preset(tmp_path / "preset")
        assert type(loaded) is cls
        for name, value in {**arguments, **more}.items():
            assert getattr(loaded, name) == value, name


@pytest.mark.slow
def test_labels_settings_and_learning_rate_come_back(golden, tmp_path):
    tokenizer = ez.SequenceClassifier.from_preset(
        golden("Bert_ForSequenceClassification").folder
    ).preprocessor.tokenizer
    backbone = ez.Backbone.from_preset(golden("Bert_Model").folder)
    classifier = ez.SequenceClassifier(
        backbone,
        ez.SequenceClassifierPreprocessor(tokenizer, sequence_length=17),
        labels=["né", "漢字"],
        problem_type="multi_label_classification",
        dropout=0.3,
    )
    classifier.learning_rate = 3e-4
    classifier.save_to_preset(tmp_path / "preset")
    loaded = ez.SequenceClassifier.from_preset(tmp_path / "preset")
    assert loaded.labels == ["né", "漢字"]
    assert loaded.problem_type == "multi_label_classification"
    assert loaded.dropout == 0.3
    assert loaded.preprocessor.sequence_length == 17
    assert loaded.learning_rate == 3e-4
    other = ez.SequenceClassifier.from_preset(tmp_path / "preset", sequence_length=9)
    assert other.preprocessor.sequence_length == 9  # the caller's word goes first
    # Another task takes the recommended rate, and not the settings of this one's preprocessor.
    masked = ez.MaskedLM.from_preset(tmp_path / "preset")
    assert masked.learning_rate == 3e-4 and masked.preprocessor.sequence_length is None


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_halves_the_file_and_keeps_the_numbers_near(
    classifier, golden, dtype, tmp_path
):
    classifier.save_to_preset(tmp_path / "full")
    classifier.save_to_preset(tmp_path / "half", dtype=dtype)
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("full", "half")]
    weights = sum(int(np.prod(w.shape)) for w in classifier.weights)
    assert sizes[0] - sizes[1] == pytest.approx(2 * weights, rel=0.02)
    inputs = golden("Bert_ForSequenceClassification").inputs
    half = outputs(ez.SequenceClassifier.from_preset(tmp_path / "half"), inputs)
    np.testing.assert_allclose(outputs(classifier, inputs), half, atol=0.2)
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == dtype
    with pytest.raises(ValueError, match="dtype is 'int4'"):
        classifier.save_to_preset(tmp_path / "none", dtype="int4")


@pytest.mark.slow
def test_large_weights_go_into_shards(classifier, golden, tmp_path):
    classifier.save_to_preset(tmp_path / "preset", shard_bytes=4000)
    shards = sorted(path.name for path in (tmp_path / "preset").glob("*.safetensors"))
    assert len(shards) > 2 and shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    index = json.loads((tmp_path / "preset" / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == shards
    inputs = golden("Bert_ForSequenceClassification").inputs
    loaded = ez.SequenceClassifier.from_preset(tmp_path / "preset")
    np.testing.assert_array_equal(outputs(classifier, inputs), outputs(loaded, inputs))
    classifier.save_to_preset(tmp_path / "preset")  # and back: no shard stays behind
    assert [path.name for path in (tmp_path / "preset").glob("*.safetensors*")] == [
        "model.safetensors"
    ]


@pytest.mark.slow(except_for=r"^-1$")
@pytest.mark.parametrize("wrong", [0, -1, 1.5, "1 GB", None, True, np.nan])
def test_sizes_of_shards_that_mean_nothing_are_refused(classifier, tmp_path, wrong):
    for save in (classifier.save_to_preset, classifier.backbone.save_to_preset):
        with pytest.raises(ValueError, match="^shard_bytes is "):
            save(tmp_path / "preset", shard_bytes=wrong)
    assert not list(tmp_path.iterdir())


def test_shards_may_have_many_gigabytes(classifier, tmp_path):
    classifier.save_to_preset(tmp_path / "preset", shard_bytes=2**40)
    assert (tmp_path / "preset" / "model.safetensors").exists()
    with pytest.raises(TypeError, match="'shard_byte'.*'shard_bytes'"):
        classifier.save_to_preset(tmp_path / "preset", shard_byte=5)


@pytest.mark.slow(except_for="^(latin-1-huggingface|utf-16-huggingface|utf-8-huggingface)")
@pytest.mark.parametrize("format", ["huggingface", "keras_hub"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8"])
def test_a_card_of_a_person_is_kept_byte_by_byte(tmp_path, encoding, format):
    backbone = ez.RobertaBackbone(9, 1, 2, 4, 8, max_sequence_length=16, pooler=False)
    folder = tmp_path / "preset"
    backbone.save_to_preset(folder, format=format)
    own = "naïve\r\nrésumé".encode(encoding)
    (folder / "README.md").write_bytes(own)
    ez.Backbone.from_preset(folder).save_to_preset(folder, format=format)
    assert (folder / "README.md").read_bytes() == own
    again = ez.Backbone.from_preset(folder, verify=True)
    assert again.num_layers == 1


@pytest.mark.slow
def test_lora_is_merged_and_quantized_weights_are_refused(classifier, golden, tmp_path):
    inputs = golden("Bert_ForSequenceClassification").inputs
    classifier.backbone.enable_lora(2)
    for weight in classifier.weights:
        if "lora" in weight.path:
            weight.assign(np.full(weight.shape, 0.3))
    classifier.save_to_preset(tmp_path / "lora")
    loaded = ez.SequenceClassifier.from_preset(tmp_path / "lora")
    np.testing.assert_allclose(outputs(classifier, inputs), outputs(loaded, inputs), atol=1e-5)

    loaded.backbone.blocks[1].output_dense.quantize("int8")
    with pytest.raises(ValueError, match="int8"):
        loaded.save_to_preset(tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("Bert", "bert.encoder.layer.0.attention.self.query.weight"),
        ("XLNet", "transformer.layer.0.rel_attn.q"),  # not transposed
    ],
)
def test_low_rank_updates_keep_the_precision_of_weights(golden, tmp_path, family, name, dtype):
    folder = golden(f"{family}_ForSequenceClassification").folder
    classifier = ez.SequenceClassifier.from_preset(folder, dtype=dtype)
    classifier.backbone.enable_lora(2, alpha=3.0)
    layer = classifier.backbone.blocks[0].attention.query_dense
    layer.lora_kernel_b.assign(np.full(layer.lora_kernel_b.shape, 0.3))
    classifier.save_to_preset(tmp_path / "preset")
    a, b = (np.asarray(w) for w in (layer.lora_kernel_a, layer.lora_kernel_b))
    saved = load_file(tmp_path / "preset" / "model.safetensors")
    original = load_file(folder / "model.safetensors")[name]
    assert saved[name].dtype == np.float32
    update = 1.5 * a @ b
    update = update.T if family == "Bert" else update
    np.testing.assert_allclose(saved[name], original + update, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_low_rank_updates_that_are_too_large_for_a_dtype(classifier, tmp_path):
    classifier.backbone.enable_lora(2)
    layer = classifier.backbone.blocks[0].attention.query_dense
    for factor in (layer.lora_kernel_a, layer.lora_kernel_b):
        factor.assign(np.full(factor.shape, 1e3))
    with pytest.raises(ValueError, match="2e[+]06.*float16.*dtype='bfloat16'"):
        classifier.save_to_preset(tmp_path / "preset", dtype="float16")


@pytest.mark.slow
def test_a_persons_model_card_and_other_files_are_kept(classifier, tmp_path):
    folder = tmp_path / "preset"
    classifier.save_to_preset(folder)
    card = (folder / "README.md").read_text()
    assert card.startswith("---\n") and "pipeline_tag: text-classification" in card
    (folder / "notes").mkdir()
    (folder / "notes" / "a.txt").write_text("mine")
    (folder / "README.md").write_text("# My own card")
    (folder / "vocab.txt").write_text("stale")
    (folder / "adapter_model.safetensors").write_bytes(b"mine")
    classifier.save_to_preset(folder)
    assert (folder / "adapter_model.safetensors").read_bytes() == b"mine"
    assert (folder / "README.md").read_text() == "# My own card"
    assert (folder / "notes" / "a.txt").read_text() == "mine"
    assert "stale" not in (folder / "vocab.txt").read_text()
    ez.SequenceClassifier.from_preset(folder)


def test_a_target_that_cannot_be_replaced_at_once_is_refused(classifier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="working directory"):
        classifier.save_to_preset(".")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        classifier.save_to_preset("file")


def test_a_failure_leaves_the_old_preset_and_nothing_beside_it(classifier, tmp_path):
    classifier.save_to_preset(tmp_path / "preset")
    before = {path.name: path.read_bytes() for path in (tmp_path / "preset").iterdir()}
    with (
        pytest.raises(RuntimeError),
        replace_folder(tmp_path / "preset", FolderKind("a preset", bool)) as new,
    ):
        (new / "config.json").write_text("{")
        raise RuntimeError
    assert {path.name: path.read_bytes() for path in (tmp_path / "preset").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]


# Saves two presets in turn into the same folder and says so after each; in a fork for each kill, so
# that the libraries are imported once.
SAVER = """
import os
import sys
import keras
import encoder_zoo as ez

keras.utils.set_random_seed(0)
sizes = dict(num_layers=1, num_heads=2, hidden_dim=64, intermediate_dim=256)
models = [ez.BertBackbone(1000 + i, **sizes) for i in range(2)]
while True:
    child = os.fork()
    if not child:
        print(os.getpid(), flush=True)
        while True:
            for model in models:
                model.save_to_preset(sys.argv[1])
                # In one write: print() can make two (PYTHONUNBUFFERED), and a kill fall between.
                os.write(1, b"saved\\n")
    sys.stdin.readline()
    os.waitpid(child, 0)
    print("reaped", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="where folders can be exchanged in one step")
def test_case_17_after_a_kill_at_any_moment_the_preset_is_whole(tmp_path):
    folder = tmp_path / "preset"
    rng = random.Random(0)
    seen, pause = set(), 0.0
    server = subprocess.Popen(
        [sys.executable, "-c", SAVER, str(folder)],
        env={**os.environ, "KERAS_BACKEND": "numpy"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for kill in range(30):
            child = int(server.stdout.readline())
            begin, saves = time.monotonic(), rng.randrange(3) if kill else 2
            for _ in range(saves):
                assert server.stdout.readline() == "saved\n"
            # At any moment of the next saving, as long as this machine takes for one.
            pause = pause or (time.monotonic() - begin) / saves
            time.sleep(rng.uniform(0, pause))
            os.kill(child, signal.SIGKILL)
            server.stdin.write("dead\n")
            server.stdin.flush()
            while (line := server.stdout.readline()) != "reaped\n":
                assert line == "saved\n"
            if folder.exists():
                seen.add(ez.Backbone.from_preset(folder).vocabulary_size)
            server.stdin.write("next\n")
            server.stdin.flush()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()
    assert seen == {1000, 1001}


@pytest.mark.slow
def test_case_18_a_full_disk_leaves_the_old_preset_and_is_named(small_disk, classifier):
    folder = small_disk / "preset"
    classifier.save_to_preset(folder)
    weights = classifier.get_weights()
    large = ez.BertBackbone(100_000, num_layers=1, num_heads=1, hidden_dim=16, intermediate_dim=16)
    with pytest.raises(OSError) as caught:
        large.save_to_preset(folder)
    assert caught.value.errno == errno.ENOSPC
    assert f"disk is full: {folder}" in str(caught.value)
    loaded = ez.SequenceClassifier.from_preset(folder)
    for a, b in zip(weights, loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [path.name for path in small_disk.iterdir()] == ["preset"]
    with pytest.raises(ValueError, match="is a mount point"):
        classifier.save_to_preset(small_disk)


def test_a_full_disk_is_named_also_where_none_can_be_mounted(classifier, tmp_path, monkeypatch):
    def write(arrays, path, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("encoder_zoo.presets.saving.save_file", write)
    with pytest.raises(OSError, match="disk is full: .*preset"):
        save_task(classifier, tmp_path / "preset")
    assert list(tmp_path.iterdir()) == []


def test_a_preset_is_as_readable_as_any_new_file(classifier, tmp_path):
    classifier.save_to_preset(tmp_path / "preset")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    modes = [pathlib.Path(tmp_path / name).stat().st_mode for name in ("preset", "other")]
    assert modes[0] == modes[1]
    expected = (tmp_path / "other" / "file").stat().st_mode
    assert {path.stat().st_mode for path in (tmp_path / "preset").iterdir()} == {expected}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "xlnet", "gte"])
def test_a_saved_folder_says_how_long_its_texts_may_be(tiny, tmp_path, name):
    """transformers' pipelines truncate by it, and fail for long texts without it."""
    task = tiny.task(get_family(name), "SequenceClassifier")
    task.save_to_preset(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == task.backbone.max_sequence_length
    again = ez.SequenceClassifier.from_preset(tmp_path).preprocessor.tokenizer
    assert again.get_config() == task.preprocessor.tokenizer.get_config()


def test_values_that_are_too_large_for_a_dtype_are_refused(tiny, tmp_path):
    model = tiny.task(get_family("bert"), "SequenceClassifier")
    model.save_to_preset(tmp_path / "preset", dtype="float16")
    bias = model.backbone.blocks[0].attention.query_dense.bias
    bias.assign(bias + 70_000)  # float16 ends at 65,504
    with pytest.raises(ValueError, match="query.*float16"):
        model.save_to_preset(tmp_path / "preset", dtype="float16")
    ez.SequenceClassifier.from_preset(tmp_path / "preset")  # the first one is still there
    model.save_to_preset(tmp_path / "other", dtype="bfloat16")
