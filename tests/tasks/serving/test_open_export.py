"""Exports in folders: the answers of the task without Keras, and clear errors for bad folders."""

import copy
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from not_installed import hide
from paths import ROOT
from safetensors.numpy import save_file

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.presets.files.manifest import compute_checksum, compute_manifest_digest
from encoder_zoo.tasks import list_tasks
from encoder_zoo.tasks.serving import engines
from encoder_zoo.testing import tiny

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
BERT, ELECTRA = get_family("bert"), get_family("electra")
# (task, format) that no folder is written of, and a word of the reason.
REFUSED = {
    ("EntityExtractor", "onnx"): "LSTM",
    ("EntityExtractor", "openvino"): "LSTM",
    ("EntityExtractor", "litert"): "LSTM",
    ("Pretraining", "onnx"): "no method",
    ("Pretraining", "openvino"): "no method",
    ("Pretraining", "litert"): "no method",
}
PACKAGES = {"onnx": "tf2onnx", "openvino": "openvino", "litert": "ai_edge_litert"}


def assert_same(found, expected):
    """Assert that answers are equal, numbers to 1e-4 of their size and 1e-5."""
    if hasattr(found, "toarray"):
        found, expected = found.toarray(), expected.toarray()
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
        for name in found:
            assert_same(found[name], expected[name])
    elif isinstance(found, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(found, float | np.ndarray | np.floating):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    else:
        assert found == expected


NAMES = [cls.__name__ for cls in (*list_tasks(), ez.FewShotClassifier)]


def tiny_task(name):
    cls = getattr(ez, name)
    if issubclass(cls, ez.TextEmbedder):  # of pooling that all formats have
        backbone, preprocessor = tiny.backbone(BERT), cls.record.preprocessor_class
        task = cls(backbone, preprocessor(tiny.tokenizer(BERT)), pooling=["mean", "cls"])
        if name == "FewShotClassifier":  # its head is made by `fit`
            task.fit(["a b", "c d"], ["x", "y"], epochs=0)
        return task
    return tiny.task(ELECTRA if name == "ReplacedTokenDetection" else BERT, cls)


def questions_of(task):
    if task.record.text_method != "fill_mask":
        return task.tiny_questions()
    mask = task.preprocessor.tokenizer.mask_token
    return ([f"a {mask} b", f"{mask} c {mask}"],)


@pytest.mark.parametrize("format", PACKAGES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow(except_for="onnx-(SequenceClassifier|TextEmbedder)|EntityExtractor|Pretraining")
def test_every_task_answers_as_before_or_is_refused_by_name(name, format, tmp_path):
    pytest.importorskip(PACKAGES[format])
    task = tiny_task(name)
    if (name, format) in REFUSED:
        with pytest.raises(ValueError, match=f"{name}.*{REFUSED[name, format]}"):
            task.export(tmp_path / "served", format=format)
        assert not (tmp_path / "served").exists()
        return
    task.export(tmp_path / "served", format=format)
    opened, asked = ez.open_export(tmp_path / "served"), questions_of(task)
    own_name = "few_shot_classifier" if name == "FewShotClassifier" else task.record.name
    assert opened.task == own_name and task.record.text_method in opened.methods
    for method in opened.methods:
        if method == "rank":
            answers = (model.rank(asked[0][0], asked[1]) for model in (opened, task))
        elif method == "predict_tags":
            answers = (model.predict_tags([["a", "b"], ["c"]]) for model in (opened, task))
        else:
            answers = (getattr(model, method)(*asked) for model in (opened, task))
        assert_same(*answers)
    x = asked if len(asked) > 1 else asked[0]
    if task.record.instead_of_predict:
        with pytest.raises(ValueError, match=r"^x is.*preprocessed"):
            opened.predict(x)
    else:
        assert_same(opened.predict(x, verbose=0), task.predict(x, verbose=0))


def test_the_page_lists_what_every_engine_answers():
    page = (ROOT / "docs" / "pages" / "topics" / "production.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+)\b.* \| (\w+)\b.* \| (\w+)\b.* \|$", page, re.M)
    listed = {
        (name, format): word
        for name, *words in rows
        for format, word in zip(PACKAGES, words, strict=True)
    }
    expected = {(name, f): "equal" for name in NAMES for f in PACKAGES}
    assert listed == {**expected, **dict.fromkeys(REFUSED, "refused")}


@pytest.fixture(scope="module")
def classifier():
    preprocessor = ez.SequenceClassifierPreprocessor(tiny.tokenizer(BERT), window_length=6)
    settings = {"labels": ["no", "yes"], "temperature": 2.0, "thresholds": {"yes": 0.75}}
    return ez.SequenceClassifier(tiny.backbone(BERT), preprocessor, **settings)


@pytest.fixture(scope="module")
def served(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "served"
    classifier.export(folder, format="onnx")
    return folder


def test_a_table_with_a_column_of_texts(classifier, served):
    opened, table = ez.open_export(served), {"text": ["a b", "c"]}
    assert_same(opened.classify(table), classifier.classify(table))
    assert_same(opened.predict(table), classifier.predict(table, verbose=0))
    with pytest.raises(ValueError, match="`x` are .'input_ids'.*'token_ids'"):
        opened.predict({"input_ids": np.array([[2, 3]])})


@pytest.mark.parametrize(
    "changed, match",
    [
        ({"token_ids": [2, 3]}, "token_ids.*(2,).*batch, length"),
        ({"token_ids": [[2, 3], [2]]}, "token_ids has rows of different lengths"),
        ({"token_ids": [[2.5, 3.0]]}, "token_ids.*float64.*integers"),
        ({"token_ids": [[2, -1]]}, "token_ids has -1 in row 0"),
        ({"token_ids": [[2, 3], [2, 10_000]]}, "token_ids has 10000 in row 1.*from 0 to"),
        ({"token_ids": [[2] * 1000]}, "length of token_ids is 1000.*at most"),
        ({"token_ids": [[2, 3]], "padding_mask": [[1, 2]]}, "padding_mask has 2 in row 0"),
        ({"token_ids": [[2, 3]], "padding_mask": [[1]]}, r"shape of padding_mask.*\(1, 2\)"),
        ({"token_ids": [[2, 3]], "segment_ids": [[0, 7]]}, "segment_ids has 7 in row 0"),
    ],
)
def test_preprocessed_inputs_are_checked(served, changed, match):
    with pytest.raises(ValueError, match=match):
        ez.open_export(served).predict(changed)


def test_preprocessed_inputs_can_be_lists(classifier, served):
    x = {"token_ids": [[2, 5, 3]], "padding_mask": [[True, True, True]]}
    expected = classifier.predict({name: np.array(values) for name, values in x.items()}, verbose=0)
    assert_same(ez.open_export(served).predict(x), expected)


@pytest.fixture(scope="module")
def nano():
    return ez.TextEmbedder.from_preset("bert_nano_en_uncased_embedder")


@pytest.fixture
def copied(served, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in served.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def change(folder, **fields):
    """Change fields of the manifest's export, and its checksum, as an attacker would."""
    path = folder / "encoder_zoo.json"
    manifest = json.loads(path.read_text())
    for name, value in fields.items():
        *outer, last = ["export", *name.split("__")]
        part = manifest
        for key in outer:
            part = part[key]
        part[last] = value
    manifest["sha256"] = compute_manifest_digest(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.slow
def test_long_texts_thresholds_and_batches(classifier, served):
    opened = ez.open_export(served)
    texts = ["a b c d e f g h " * 3, "c", "a b ab", *"abcdefghijklmnop"] * 3
    assert_same(opened.predict(texts), classifier.predict(texts, verbose=0))
    assert_same(opened.classify(texts, batch_size=4), classifier.classify(texts))
    assert_same(opened.classify([None, "a"], missing="none")[1], classifier.classify("a"))
    assert opened.classify([]) == [] and opened.predict([]).shape == (0, 2)
    assert (opened.temperature, opened.thresholds) == (2.0, {"yes": 0.75})
    x = {name: np.asarray(v)[:, :4] for name, v in classifier.preprocessor(["a b"]).items()}
    x = {name: values for name, values in x.items() if not name.startswith("candidate_")}
    assert_same(opened.predict(x), classifier.predict(x, verbose=0))
    with pytest.raises(ValueError, match="inputs"):
        opened.predict({**x, "answer_start": x["token_ids"]})


def test_a_tagger_with_settings_answers_as_before(tmp_path):
    pytest.importorskip("tf2onnx")
    preprocessor = ez.TokenClassifierPreprocessor(tiny.tokenizer(BERT))
    settings = {"labels": ["O", "B-X", "I-X"], "strategy": "max", "split_symbols": True}
    settings |= {"thresholds": {"X": 0.1}, "crf": True}
    task = tiny.randomize_weights(ez.TokenClassifier(tiny.backbone(BERT), preprocessor, **settings))
    task.export(tmp_path / "served", format="onnx")
    opened, texts = ez.open_export(tmp_path / "served"), ["a b c-d", "ab"]
    assert opened.strategy == "max"
    for strategy in (None, "none", "first"):
        expected = task.extract_entities(texts, strategy=strategy)
        assert_same(opened.extract_entities(texts, strategy=strategy), expected)
    with pytest.raises(ValueError, match="strategy"):
        opened.extract_entities(texts, strategy="last")


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "litert"])
def test_int8_is_close_and_measured(nano, format, tmp_path):
    texts = ["A cat sleeps on the mat.", "Stocks fell sharply.", "It rains."]
    nano.export(tmp_path / "float32", format=format)
    nano.export(tmp_path / "int8", format=format, dtype="int8", texts=texts)
    opened = ez.open_export(tmp_path / "int8")
    cosines = np.sum(opened.embed(texts) * nano.embed(texts), axis=1)
    assert 0.97 < cosines.min() < cosines.max() < 0.99999
    assert opened.agreement["mean_cosine"] == pytest.approx(cosines.mean(), abs=1e-4)
    assert opened.agreement["least_cosine"] == pytest.approx(cosines.min(), abs=1e-4)
    sizes = [
        sum(path.stat().st_size for path in (tmp_path / dtype).glob("model.*"))
        for dtype in ("int8", "float32")
    ]
    assert sizes[0] < 0.4 * sizes[1]


def test_int8_and_texts_that_do_not_fit(classifier, tmp_path):
    for format, options, words in (
        ("openvino", {"dtype": "int8"}, "dtype is 'int8'.*engine='openvino'"),
        ("onnx", {"dtype": "bfloat16"}, "dtype is 'bfloat16'"),
        ("onnx", {"texts": ["a"]}, "texts is.*int8"),
        ("onnx", {"dtype": "int8", "texts": []}, r"texts is \[\]"),
    ):
        with pytest.raises(ValueError, match=words):
            classifier.export(tmp_path / "served", format=format, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TextEmbedder", "SparseEncoder", "LateInteraction"])
def test_search_is_as_with_the_task_on_both_sides(name, tmp_path):
    task = tiny_task(name)
    task.export(tmp_path / "served", format="onnx")
    opened = ez.open_export(tmp_path / "served")
    documents, query = ["a b c", "d e", "c d e a b", "p"], "a b"
    assert_same(opened.similarity(query, documents), task.similarity(query, documents))
    vectors = task.embed(documents)
    assert_same(opened.similarity(vectors, vectors), task.similarity(vectors, vectors))
    assert_same(opened.rank(query, documents, top_k=2), task.rank(query, documents, top_k=2))
    expected = task.index(documents).search(query, top_k=3)
    assert_same(opened.index(documents).search(query, top_k=3), expected)
    for writer, reader in ((task, opened), (opened, task)):
        folder = tmp_path / f"index of {type(writer).__name__}"
        writer.index(documents).save(folder)
        assert_same(reader.load_index(folder).search(query, top_k=3), expected)
        assert_same(ez.load_index(folder, embedder=reader).search(query, top_k=3), expected)


@pytest.mark.slow
def test_a_search_is_reranked_as_with_the_task(nano, tmp_path):
    reranker = tiny_task("Reranker")
    reranker.export(tmp_path / "served", format="onnx")
    opened = ez.open_export(tmp_path / "served")
    index = nano.index(["a b c", "d e", "c d e a b", "p"])
    found = (index.search("a b", top_k=2, reranker=model) for model in (opened, reranker))
    assert_same(*found)


@pytest.mark.slow
def test_a_method_of_other_tasks_is_named(served):
    opened = ez.open_export(served)
    with pytest.raises(AttributeError, match="embed.*classify"):
        opened.embed("a")
    assert "classify" in dir(opened) and "sequence_classifier" in repr(opened)


FRAMEWORKS = "keras tensorflow jax torch onnx scipy pandas".split()
# Parts that answers do not need: the indexes, evaluation, readers of presets, and writing.
UNUSED = """
numpy.ma ml_dtypes safetensors importlib.abc
encoder_zoo.presets.files.atomic encoder_zoo.presets.files.safetensors_file
encoder_zoo.presets.formats.embedding_folder encoder_zoo.tasks.retrieval.evaluation
encoder_zoo.tasks.retrieval.index encoder_zoo.tasks.retrieval.vectors
""".split()
SCRIPT = """
import sys
import encoder_zoo as ez
opened = ez.open_export(sys.argv[1])
getattr(opened, sys.argv[2])("a b")
print(*sorted(sys.modules.keys() & set(sys.argv[3].split())))
if hasattr(opened, "index"):
    [hit] = opened.index(["a b", "c"]).search("c", top_k=1)
    print(hit["text"], *sorted(sys.modules.keys() & set(sys.argv[4].split())))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"),
    [("TextEmbedder", "embed"), ("SequenceClassifier", "classify")],
)
def test_the_first_answer_imports_only_what_it_needs(name, method, tmp_path):
    tiny_task(name).export(tmp_path / "served", format="onnx")
    folder, frameworks = str(tmp_path / "served"), " ".join(FRAMEWORKS)
    command = [sys.executable, "-c", SCRIPT, folder, method]
    command += [f"{frameworks} {' '.join(UNUSED)}", frameworks]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported, *searched = done.stdout.splitlines()
    assert imported == ""
    assert searched == (["c"] if name == "TextEmbedder" else [])


@pytest.mark.parametrize(
    "name", ["model.onnx", "tokenizer.json", "tokenizer_config.json", "encoder_zoo.json"]
)
def test_a_changed_file_is_named(copied, name):
    content = (copied / name).read_bytes()
    (copied / name).write_bytes(content.replace(b"e", b"f", 1))
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        ez.open_export(copied)
    (copied / name).write_bytes(content[:-9])
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        ez.open_export(copied)
    (copied / name).unlink()
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        ez.open_export(copied)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"format": "pickle"}, "export: format is 'pickle'"),
        ({"format": "litert"}, "'files' does not contain model.tflite"),
        ({"answers": "os.system"}, "answers is 'os.system'"),
        ({"answers": ["ClassAnswers"]}, "answers is "),
        ({"settings__temperature": -1}, "temperature is -1"),
        ({"settings__thresholds": {"yes": "much"}}, "thresholds is "),
        ({"settings__class_names": []}, "class_names is "),
        ({"settings__class_names": {"a": 1, "b": 2}}, "class_names is "),
        ({"settings__runner": "x"}, "settings has.*runner"),
        ({"settings": {}}, "settings lacks.*class_names"),
        ({"preprocessor__window_length": "6"}, "window_length is '6'"),
        ({"preprocessor__window_length": 10**6}, "window_length is 1000000"),
        ({"preprocessor__code": "x"}, "code"),
        ({"preprocessor__text_columns": {"a": {}}}, "text_columns"),
        ({"tokenizer__class": "Popen"}, "class is 'Popen'"),
        ({"tokenizer__arguments": {"vocabulary": "/etc/passwd"}}, "vocabulary"),
        ({"tokenizer__arguments__truncation_side": "up"}, "truncation_side"),
        ({"backbone__max_sequence_length": 0}, "max_sequence_length is 0"),
        ({"backbone__vocabulary_size": 3}, "tokenizer has 24 tokens"),
        ({"tokenizer": None}, "tokenizer is None"),
    ],
)
def test_hostile_fields_are_named(copied, fields, words):
    change(copied, **fields)
    with pytest.raises(ValueError, match=words):
        ez.open_export(copied)


def test_hostile_manifests(copied):
    path = copied / "encoder_zoo.json"
    manifest = json.loads(path.read_text())

    def refused(words, **fields):
        changed = {**manifest, **fields}
        path.write_text(json.dumps({**changed, "sha256": compute_manifest_digest(changed)}))
        with pytest.raises(ValueError, match=words):
            ez.open_export(copied)

    refused(r"encoder_zoo\.json: format is 2", format=2)
    refused("contains a span_qa.*from_preset", task="span_qa")
    refused("export is ", export=[])
    entry = manifest["files"]["model.onnx"]
    refused("name of a file", files={**manifest["files"], "../model.onnx": entry})
    for content, words in (
        ("[" * 10**5, "nested too deeply"),
        ('{"export": ' + "[" * 200 + "]" * 200 + "}", "nested too deeply"),
        ('{"format": 1, "format": 2}', "'format' occurs twice"),
        ('{"format": 1e999}', "format is inf"),
        ('{"format": ' + "9" * 5000 + "}", "not readable as JSON"),
        ('{"format": NaN}', "NaN"),
        ("", "the file is empty"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"encoder_zoo\.json.*{words}"):
            ez.open_export(copied)


@pytest.mark.skipif(os.name != "posix", reason="links are made")
def test_a_link_that_leads_out_of_the_folder(copied, tmp_path):
    (copied / "model.onnx").rename(tmp_path / "elsewhere.onnx")
    (copied / "model.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(ValueError, match=r"model\.onnx"):
        ez.open_export(copied)


def test_a_model_that_reads_another_file(copied, tmp_path):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "secret").write_bytes(bytes(64))
    tensor = onnx.helper.make_tensor("weight", onnx.TensorProto.FLOAT, [2], [0.0, 0.0])
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    node = onnx.helper.make_node("Identity", ["weight"], ["logits"])
    output = onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [2])
    graph = onnx.helper.make_graph([node], "model", [], [output], [tensor])
    path = copied / "model.onnx"
    path.write_bytes(onnx.helper.make_model(graph, ir_version=9).SerializeToString())
    manifest = json.loads((copied / "encoder_zoo.json").read_text())
    entry = {"bytes": path.stat().st_size, "sha256": compute_checksum(path)}
    manifest["files"]["model.onnx"] = entry
    manifest["sha256"] = compute_manifest_digest(manifest)
    (copied / "encoder_zoo.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="onnx cannot open"):
        ez.open_export(copied)


def test_folders_that_are_no_exports(tmp_path, classifier):
    with pytest.raises(FileNotFoundError):
        ez.open_export(tmp_path / "absent")
    with pytest.raises(ValueError, match="is not an export"):
        ez.open_export(tmp_path)
    classifier.save_to_preset(tmp_path / "preset")
    with pytest.raises(ValueError, match="sequence_classifier.*from_preset"):
        ez.open_export(tmp_path / "preset")
    with pytest.raises(ValueError, match="contains.*encoder_zoo.json"):
        classifier.export(tmp_path / "preset", format="onnx")


@pytest.mark.slow
@pytest.mark.parametrize("format", PACKAGES)
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_every_kind_of_term_weights(pooling, activation, format, tmp_path):
    pytest.importorskip(PACKAGES[format])
    preprocessor = ez.SparseEncoderPreprocessor(tiny.tokenizer(BERT))
    backbone = tiny.backbone(BERT, pooler=False)
    task = ez.SparseEncoder(backbone, preprocessor, pooling=pooling, activation=activation)
    task.export(tmp_path / "served", format=format)
    texts = ["a b c", "b", "c d a b"]
    assert_same(ez.open_export(tmp_path / "served").embed(texts), task.embed(texts))


@pytest.mark.slow(except_for="None")
@pytest.mark.parametrize("sequence_length", [None, 16])
def test_texts_of_different_lengths_have_little_padding(sequence_length, tmp_path, monkeypatch):
    preprocessor = ez.TextEmbedderPreprocessor(tiny.tokenizer(BERT), sequence_length)
    task = ez.TextEmbedder(tiny.backbone(BERT), preprocessor)
    task.export(tmp_path / "served", format="onnx")
    masks, run = [], engines.Session.run

    def record(session, inputs):
        masks.append(inputs["padding_mask"])
        return run(session, inputs)

    monkeypatch.setattr(engines.Session, "run", record)
    texts = [" ".join("ab"[i % 2] * (12 if i % 3 else 1)) for i in range(16)]
    found = ez.open_export(tmp_path / "served").embed(texts)
    np.testing.assert_allclose(found, task.embed(texts), atol=1e-5)
    assert sum(map(len, masks)) == 16
    if sequence_length:  # the padding is the same for any batches
        assert [mask.shape for mask in masks] == [(16, 16)]
    else:
        assert max(mask.size - mask.sum() for mask in masks) <= engines.MAX_PADDING


def test_a_forked_copied_or_changed_export_is_refused(served, monkeypatch):
    opened = ez.open_export(served)
    with pytest.raises(AttributeError, match="'temperature'"):  # answers would stay the same
        opened.temperature = 1.0
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="open_export"):
            copied(opened)
    parent = os.getpid()
    monkeypatch.setattr(engines.os, "getpid", lambda: parent + 1)
    with pytest.raises(RuntimeError, match="fork"):  # its threads would be missing
        opened.classify("a")


@pytest.mark.skipif(not pathlib.Path("/proc/self/statm").exists(), reason="Linux only")
def test_the_memory_of_a_large_batch_is_returned(served):
    def measure():
        """Return the memory of this process in MB."""
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    opened, tokens = ez.open_export(served), np.full((100_000, 8), 5, "int32")
    opened.predict({"token_ids": tokens[:1]})
    before = measure()
    opened.predict({"token_ids": tokens}, batch_size=len(tokens))
    assert measure() - before < 60  # 25 for the inputs, and several 100 for the model


def test_static_embeddings(tmp_path, caplog):
    words = ["[PAD]", "[UNK]", "the", "cat", "dog"]
    library = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "preset").mkdir()
    library.save(str(tmp_path / "preset" / "tokenizer.json"))
    table = np.random.default_rng(0).standard_normal((5, 4)).astype("float32")
    save_file({"embeddings": table}, tmp_path / "preset" / "model.safetensors")
    settings = '{"model_type": "model2vec", "normalize": false}'
    (tmp_path / "preset" / "config.json").write_text(settings)
    embedder = ez.TextEmbedder.from_preset(tmp_path / "preset")
    embedder.export(tmp_path / "served", format="onnx")
    opened, texts = ez.open_export(tmp_path / "served"), ["the cat", "dog", "x", "the dog " * 400]
    expected = [table[2:4].mean(axis=0), table[4], np.zeros(4), table[[2, 4]].mean(axis=0)]
    np.testing.assert_allclose(opened.embed(texts), expected, atol=1e-5)
    assert "longer than 512 tokens" in caplog.text and "windows" not in caplog.text
    assert_same(opened.rank("cat", ["dog", "the cat"]), embedder.rank("cat", ["dog", "the cat"]))
    with pytest.raises(ValueError, match="windows is 'mean'.*static"):
        opened.embed(texts, windows="mean")


@pytest.mark.slow
def test_a_tokenizer_of_any_steps(tmp_path):
    words = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", *"abcdefgh"]
    model = {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}}
    file = {"version": "1.0", "added_tokens": [], "model": {**model, "unk_token": "<unk>"}}
    tokenizer = ez.GenericTokenizer(json.dumps({**file, "pre_tokenizer": {"type": "Whitespace"}}))
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer)
    task = ez.SequenceClassifier(tiny.backbone(BERT), preprocessor, num_classes=2)
    task.export(tmp_path / "served", format="onnx")
    opened = ez.open_export(tmp_path / "served")
    assert opened.preprocessor.tokenizer.tokenize(["h z"]).to_list() == [[12, 1]]
    assert_same(opened.classify(["a b", "c h z"]), task.classify(["a b", "c h z"]))


def test_openvino_reads_an_export_in_int8(tmp_path):
    pytest.importorskip("openvino")
    task = tiny_task("TextEmbedder")
    task.export(tmp_path / "served", format="onnx", dtype="int8")
    vectors = ez.open_export(tmp_path / "served", engine="openvino").embed(["a b c", "d e"])
    cosines = np.sum(vectors * task.embed(["a b c", "d e"]), axis=1)
    assert 0.99 < cosines.min() < cosines.max() < 0.999999


EXPORT = """
import sys
import encoder_zoo as ez
classifier = ez.SequenceClassifier.from_preset(sys.argv[1])
for format in ("onnx", "openvino"):
    classifier.export(sys.argv[2] + format, format=format)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_exports_of_other_backends(classifier, backend, tmp_path):
    pytest.importorskip("openvino")
    classifier.save_to_preset(tmp_path / "preset")
    command = [sys.executable, "-c", EXPORT, str(tmp_path / "preset"), str(tmp_path) + os.sep]
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if backend == "jax":
        assert (
            "'onnx' requires the Keras backend tensorflow or torch, but the backend is 'jax'"
            in done.stderr
        )
        assert done.returncode == 1
        return
    assert done.returncode == 0, done.stderr
    texts = ["a b c d e f g h " * 3, "c"]
    for format in ("onnx", "openvino"):
        opened = ez.open_export(tmp_path / format)
        assert_same(opened.classify(texts), classifier.classify(texts))


def test_a_missing_engine_is_named(served, monkeypatch):
    hide(monkeypatch, engines.onnxruntime)
    with pytest.raises(ImportError, match="`pip install onnxruntime`"):
        ez.open_export(served)
    with pytest.raises(ValueError, match="engine is 'litert'.*openvino"):
        ez.open_export(served, engine="litert")


def test_openvino_reads_an_export_in_onnx(served, classifier):
    pytest.importorskip("openvino")
    opened = ez.open_export(served, engine="openvino")
    assert_same(opened.classify(["a b", "c"]), classifier.classify(["a b", "c"]))


@pytest.mark.slow
def test_an_export_is_replaced_and_files_of_others_are_kept(classifier, copied):
    (copied / "notes.txt").write_text("mine")
    classifier.export(copied, format="onnx")
    assert (copied / "notes.txt").read_text() == "mine"
    assert_same(ez.open_export(copied).classify("a b"), classifier.classify("a b"))


@pytest.mark.slow
def test_what_cannot_be_opened_is_refused(classifier, tmp_path):
    class Titles(ez.SequenceClassifierPreprocessor):
        pass

    bare = ez.SequenceClassifier(tiny.backbone(BERT), num_classes=2)
    own = ez.SequenceClassifier(tiny.backbone(BERT), Titles(tiny.tokenizer(BERT)), num_classes=2)
    for task, words in ((bare, "no preprocessor"), (own, "custom class.*Titles")):
        with pytest.raises(ValueError, match=words):
            task.export(tmp_path / "served", format="onnx")
    table = ez.TermTable(tiny.tokenizer(BERT), vocabulary_size=30)
    preprocessor = ez.SparseEncoder.record.preprocessor_class(tiny.tokenizer(BERT))
    sparse = ez.SparseEncoder(tiny.backbone(BERT), preprocessor, query_encoder=table)
    with pytest.raises(ValueError, match="SparseEncoder.*query_rows"):
        sparse.export(tmp_path / "served", format="onnx")
    with pytest.raises(ValueError, match="path is "):
        classifier.export(tmp_path / "served.pt", format="onnx")
    assert not pathlib.Path(tmp_path / "served").exists()
