"""Exports: the same answers in a process that has TensorFlow alone, in ONNX and in LiteRT."""

import importlib.util
import json
import os
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import CHECKPOINTS, ROOT
from processes import run
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tokenizers import Tokenizer

import encoder_zoo as ez
from encoder_zoo.tasks.preprocessing.batching import GRAPH_BATCH_SIZE, map_graph_batches
from encoder_zoo.tasks.serving import export

TASKS = ["SequenceClassifier", "TokenClassifier", "SpanQA", "MaskedLM"]
# Arguments of the text-level methods, not the same for both families.
OPTIONS = {
    "Bert TokenClassifier": {"strategy": "average"},
    "Bert SpanQA": {"max_answer_length": 5},
    "Roberta SpanQA": {"null_threshold": -1.0},
    "Bert MaskedLM": {"top_k": 3},
}
WORDS = "the cat sat on mat naïve 中国 Ünïcode 🙂 \u2003 e\u0301 . , dog's a\x00b \u200b Straße"
WORDS = WORDS.split(" ")
ALONE = """
import json, sys

blocked = ["encoder_zoo", "tensorflow_text", "keras", "keras_hub", "keras_nlp"]
sys.modules |= dict.fromkeys(blocked)  # to None: not to be imported
import tensorflow as tf

def plain(tensor):
    decode = lambda v: [decode(x) for x in v] if isinstance(v, list) else v.decode()
    values = tensor.numpy().tolist()
    return decode(values) if tensor.dtype == tf.string else values

for request in json.load(sys.stdin):
    signatures = tf.saved_model.load(request["folder"]).signatures
    answers = {}
    for name, inputs in request["inputs"].items():
        tensors = {k: tf.constant(v, tf.int32 if name.startswith("ids") else tf.string)
                   for k, v in inputs.items()}
        try:
            found = signatures[name.split(" ")[0]](**tensors)
            answers[name] = {k: plain(v) for k, v in found.items()}
        except tf.errors.InvalidArgumentError as error:
            answers[name] = error.message
    print(json.dumps(answers))
"""


def load(name: str):
    family, task = name.split()
    cls = getattr(ez, task)
    return cls.from_preset(CHECKPOINTS / f"{family}_{cls.record.head}")


def random_texts(count: int, longest: int, seed: int = 0) -> list[str]:
    """The empty text, blanks, and texts of many lengths and scripts."""
    draw = random.Random(seed)
    lengths = [0, *(draw.randrange(longest) for _ in range(count - 2))]
    return [*(" ".join(draw.choices(WORDS, k=n)) for n in lengths), " \t\n"]


TEXTS = random_texts(GRAPH_BATCH_SIZE + 9, 60)
CONTEXTS = [text.strip() or "x" for text in TEXTS]
QUESTIONS = random_texts(len(TEXTS), 4, seed=1)


def masked(task) -> list[str]:
    mask = task.served_tokenizers[0].mask_token
    draw = random.Random(2)
    return [f"{text[:12]}{mask}{text[12:20]}" + f" {mask}" * draw.randrange(3) for text in TEXTS]


def requests(name: str, task) -> dict[str, dict]:
    """Inputs of the signatures that are asked; what stands behind a space tells them apart."""
    ids = {n: [[5, 6, 7], [8, 9, 0]] for n in task.list_input_names()}
    ids["padding_mask"] = [[1, 1, 1], [1, 1, 0]]
    ids |= {n: [[0, 1, 1], [0, 0, 1]] for n in ("segment_ids", "mask_positions") if n in ids}
    if "SpanQA" in name:
        asked = {
            "serving_default": {"question": QUESTIONS, "context": CONTEXTS},
            "serving_default empty": {"question": ["Who?", "Who?"], "context": ["", "a cat"]},
            "serving_default long": {"question": ["the cat " * 30], "context": ["a cat"]},
            "serving_default none": {"question": [], "context": []},
            "serving_default unasked": {"question": ["", " "], "context": ["a cat", "a cat"]},
        }
    else:
        texts = masked(task) if "MaskedLM" in name else TEXTS
        asked = {"serving_default": {"text": texts}, "serving_default none": {"text": []}}
    if "Sequence" in name:
        asked["pairs"] = {"first": TEXTS, "second": TEXTS[::-1]}
        asked["pairs misfit"] = {"first": TEXTS[:1], "second": TEXTS[:3]}
    misfits = {
        "ids negative": {**ids, "token_ids": [[5, 6, 7], [8, -9, 0]]},
        "ids beyond": {**ids, "token_ids": [[5, 6, 7], [8, 10**6, 0]]},
        "ids shapes": {**ids, "padding_mask": [[1, 1], [1, 1]]},
        "ids mask": {**ids, "padding_mask": [[1, 1, 7], [1, 1, 0]]},
        "ids long": {n: [[1] * 600] for n in ids},
    }
    if "segment_ids" in ids:
        misfits["ids segments"] = {**ids, "segment_ids": [[0, 1, 5], [0, 0, 1]]}
    if "mask_positions" in ids:
        misfits["ids masks"] = {**ids, "mask_positions": [[0, 1, 3], [0, 0, 1]]}
    return {**asked, "ids": ids, **misfits}


class Loaded(dict):
    """Tasks by name. Each is loaded on first use."""

    def __missing__(self, name):
        return self.setdefault(name, load(name))


@pytest.fixture(scope="module")
def tasks():
    return Loaded()


# test_conformance.py has an export of every family.
BOTH = ["Bert", pytest.param("Roberta", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=BOTH)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folders(family, tasks, tmp_path_factory):
    """Every task of a family exported, and then moved elsewhere."""
    root = tmp_path_factory.mktemp("exports")
    folders = {}
    for name in (f"{family} {task}" for task in TASKS):
        tasks[name].export(root / "served" / "1", **OPTIONS.get(name, {}))
        folders[name] = root / name.replace(" ", "_")
        (root / "served").rename(folders[name])
    return folders


@pytest.fixture(scope="module")
def answers(tasks, folders):
    """What the exports say in a process that can import TensorFlow only."""
    asked = [
        {"folder": str(folder / "1"), "inputs": requests(name, tasks[name])}
        for name, folder in folders.items()
    ]
    lines = run(ALONE, given=json.dumps(asked)).splitlines()
    return dict(zip(folders, map(json.loads, lines), strict=True))


@pytest.mark.slow
class TestAnswersOfTensorFlowAlone:
    @pytest.mark.matrix
    def test_classify(self, tasks, answers, family):
        task, found = (values[f"{family} SequenceClassifier"] for values in (tasks, answers))
        for signature, texts in (("serving_default", TEXTS), ("pairs", (TEXTS, TEXTS[::-1]))):
            expected = task.classify(texts, top_k=3)
            assert found[signature]["label"] == [[c["label"] for c in row] for row in expected]
            scores = [[c["score"] for c in row] for row in expected]
            np.testing.assert_allclose(found[signature]["score"], scores, atol=1e-5)
        assert found["serving_default none"] == {"label": [], "score": []}

    def test_extract_entities(self, tasks, answers, family):
        name = f"{family} TokenClassifier"
        found = answers[name]["serving_default"]
        expected = tasks[name].extract_entities(TEXTS, **OPTIONS.get(name, {}))
        assert found["count"] == [len(row) for row in expected]
        assert max(found["count"]) > 10
        for i, entities in enumerate(expected):
            for key in ("label", "text", "start", "end"):
                assert found[key][i][: len(entities)] == [e[key] for e in entities]
            scores = [e["score"] for e in entities]
            np.testing.assert_allclose(found["score"][i][: len(entities)], scores, atol=1e-5)
            assert not any(found["text"][i][len(entities) :])

    @pytest.mark.matrix
    def test_answer(self, tasks, answers, family):
        name = f"{family} SpanQA"
        found = answers[name]["serving_default"]
        expected = tasks[name].answer(QUESTIONS, CONTEXTS, **OPTIONS[name])
        for key in ("text", "start", "end"):
            assert found[key] == [answer[key] for answer in expected]
        np.testing.assert_allclose(found["score"], [a["score"] for a in expected], atol=1e-5)
        assert found["text"].count("") == (16 if "null_threshold" in OPTIONS[name] else 0)

    def test_fill_mask(self, tasks, answers, family):
        name = f"{family} MaskedLM"
        found = answers[name]["serving_default"]
        expected = tasks[name].fill_mask(masked(tasks[name]), **OPTIONS.get(name, {}))
        for i, masks in enumerate(expected):
            masks = masks if isinstance(masks[0], list) else [masks]
            assert found["count"][i] == len(masks)
            for j, fills in enumerate(masks):
                for key in ("token", "text"):
                    assert found[key][i][j] == [fill[key] for fill in fills]
                scores = [fill["score"] for fill in fills]
                np.testing.assert_allclose(found["score"][i][j], scores, atol=1e-5)

    @pytest.mark.matrix
    @pytest.mark.parametrize("task", TASKS)
    def test_prepared_ids(self, tasks, answers, family, task):
        name = f"{family} {task}"
        inputs = {k: np.array(v) for k, v in requests(name, tasks[name])["ids"].items()}
        expected = np.asarray(tasks[name](inputs))
        np.testing.assert_allclose(answers[name]["ids"]["logits"], expected, atol=1e-5)

    @pytest.mark.matrix
    def test_inputs_that_do_not_fit_are_named(self, answers, family):
        pairs = answers[f"{family} SequenceClassifier"]["pairs misfit"]
        assert "first has the shape [1], but second [3]. Expected the same." in pairs
        for task in TASKS:
            found = answers[f"{family} {task}"]
            assert "token_ids has the id [-9]. Expected 0 to " in found["ids negative"]
            assert "token_ids has the id [1000000]. Expected 0 to " in found["ids beyond"]
            assert "token_ids has the shape [2 3], but " in found["ids shapes"]
            assert "token_ids has 600 " in found["ids long"]
            assert "padding_mask has the number [7]. Expected 0 to 1." in found["ids mask"]
            if "ids segments" in found:
                assert "segment_ids has the id [5]. Expected 0 to 1." in found["ids segments"]
        found = answers[f"{family} MaskedLM"]["ids masks"]
        assert "mask_positions has the number [3]. Expected 0 to 2." in found

    @pytest.mark.matrix
    def test_nothing_is_answered_where_nothing_is_asked(self, tasks, answers, family):
        for task in TASKS:
            found = answers[f"{family} {task}"]["serving_default none"]
            assert found and all(values == [] for values in found.values())
        task = tasks[f"{family} SpanQA"]
        assert task.answer([], []) == []
        found = answers[f"{family} SpanQA"]["serving_default unasked"]
        expected = task.answer(["", " "], ["a cat"] * 2, **OPTIONS[f"{family} SpanQA"])
        assert found["text"] == [answer["text"] for answer in expected]
        scores = [answer["score"] for answer in expected]
        np.testing.assert_allclose(found["score"], scores, atol=1e-5)

    @pytest.mark.matrix
    def test_what_python_refuses(self, answers, family):
        found = answers[f"{family} SpanQA"]["serving_default empty"]
        nothing = "null_threshold" in OPTIONS[f"{family} SpanQA"]
        assert (found["text"][0], found["score"][0]) == ("", float(nothing))
        assert nothing or found["text"][1] != ""
        too_long = answers[f"{family} SpanQA"]["serving_default long"]
        for words in ("the question has ", "no space for its context in examples of "):
            assert words in too_long


def fields(message: bytes) -> dict[int, bytes]:
    """The fields of a protocol buffer that holds length-delimited ones alone, each once."""
    found, place = {}, 0

    def varint():
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while place < len(message):
        tag, length = varint(), varint()
        assert tag & 7 == 2 and tag >> 3 not in found
        found[tag >> 3] = message[place : place + length]
        place += length
    return found


class TestFolder:
    @pytest.mark.slow
    @pytest.mark.matrix
    def test_it_names_no_place_of_this_machine(self, folders):
        places = {os.path.dirname(module.__file__) for module in (ez, export, tf)}
        places |= {os.getcwd(), *(str(folder.parent) for folder in folders.values())}
        for folder in folders.values():
            content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
            assert len(content) > 10_000
            assert [place for place in places if len(place) > 5 and place.encode() in content] == []

    def test_it_holds_what_tensorflow_serving_looks_for(self, tasks, tmp_path):
        folder = tmp_path / "1"
        tasks["Bert MaskedLM"].export(folder)
        names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        warm_up = "assets.extra/tf_serving_warmup_requests"
        assert {"saved_model.pb", "variables/variables.index", warm_up} <= names
        assert (folder / "variables").stat().st_mode & 0o700 == 0o700

    @pytest.mark.slow
    def test_warm_up_requests_are_answered(self, folders, family):
        folder = str(folders[f"{family} MaskedLM"] / "1")
        signatures = tf.saved_model.load(folder).signatures
        records = tf.data.TFRecordDataset(f"{folder}/assets.extra/tf_serving_warmup_requests")
        counts = []
        for record in records.as_numpy_iterator():
            log = fields(record)[6]  # PredictionLog.predict_log
            request = fields(fields(log)[1])  # PredictLog.request
            assert fields(request[1]) == {3: b"serving_default"}  # model_spec.signature_name
            entry = fields(request[2])  # inputs: name, tensor
            text = tf.make_ndarray(TensorProto.FromString(entry[2]))
            found = signatures["serving_default"](**{entry[1].decode(): tf.constant(text)})
            counts.append(found["count"].numpy().tolist())
        assert counts == [[1], [1, 0] * 4]

    @pytest.mark.slow
    def test_a_failed_export_leaves_the_older_one(self, tasks, tmp_path, monkeypatch):
        older = tmp_path / "served" / "1"
        older.mkdir(parents=True)
        (older / "saved_model.pb").write_text("older")
        monkeypatch.setattr(export, "write_warm_up", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tasks["Bert SequenceClassifier"].export(older)
        assert [p.read_text() for p in older.iterdir()] == ["older"]
        assert list(older.parent.iterdir()) == [older]

    @pytest.mark.slow
    @pytest.mark.matrix
    def test_an_export_replaces_a_savedmodel_and_nothing_else(self, tasks, tmp_path, monkeypatch):
        said = []
        monkeypatch.setattr(tf.get_logger(), "handle", said.append)
        tasks["Bert SequenceClassifier"].export(tmp_path)
        for name in ("config.json", "2/saved_model.pb", "assets/mine.txt"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("older")
        tasks["Bert SequenceClassifier"].export(tmp_path)
        for name in ("config.json", "2/saved_model.pb", "assets/mine.txt"):
            assert (tmp_path / name).read_text() == "older"
        assert (tmp_path / "saved_model.pb").stat().st_size > 10_000
        assert said == []


class TestServedFunctions:
    """The signatures' functions, called without being saved."""

    def signatures(self, task, texts, **options):
        found = tf.function(task.signatures(**options)["serving_default"], autograph=False)(
            tf.constant(texts)
        )
        return {name: values.numpy() for name, values in found.items()}

    @pytest.fixture
    def classifier(self):
        folder = CHECKPOINTS / "Bert_ForSequenceClassification"
        return lambda **settings: ez.SequenceClassifier.from_preset(folder, **settings)

    @pytest.mark.slow
    def test_several_labels(self, classifier):
        task = classifier(problem_type="multi_label_classification", sequence_length=16)
        found = self.signatures(task, TEXTS[:5])
        for labels, scores, expected in zip(*found.values(), task.classify(TEXTS[:5]), strict=True):
            names = [label.decode() for label in labels[scores >= 0.5]]
            assert names == [e["label"] for e in expected]

    @pytest.mark.slow
    def test_regression(self, classifier):
        task = classifier(problem_type="regression", num_classes=1)
        found = self.signatures(task, TEXTS)
        expected = [[e["score"]] for e in task.classify(TEXTS)]
        np.testing.assert_allclose(found.pop("score"), expected, atol=1e-5)
        assert not found

    @pytest.mark.slow
    def test_classes_without_names(self, classifier):
        task = classifier(num_classes=2)  # not as many as the checkpoint has names for
        labels = self.signatures(task, TEXTS[:5])["label"][:, 0]
        assert [int(label) for label in labels] == [e["label"] for e in task.classify(TEXTS[:5])]

    @pytest.mark.slow
    @pytest.mark.matrix
    def test_text_that_is_not_utf8(self, tasks):
        task = tasks["Roberta TokenClassifier"]
        [expected] = task.extract_entities(["the \ufffdcat sat"])
        found = self.signatures(task, [b"the \xffcat sat"])
        assert [text.decode() for text in found["text"][0]] == [e["text"] for e in expected]


class TestErrors:
    @pytest.mark.parametrize(
        "arguments, message",
        [
            ({"path": "m", "format": "h5"}, "format is 'h5'"),
            ({"path": "m.pb", "format": "onnx"}, r"path is 'm.pb'.*\.onnx"),
            ({"path": "m.bin", "format": "openvino"}, r"path is 'm.bin'.*\.xml"),
            ({"path": "m", "strategy": "last"}, "strategy is 'last'"),
        ],
    )
    def test_arguments(self, tasks, arguments, message):
        with pytest.raises(ValueError, match=message):
            tasks["Bert TokenClassifier"].export(**arguments)

    def test_no_preprocessor(self, tasks, tmp_path):
        task = ez.SpanQA(tasks["Bert SpanQA"].backbone)
        with pytest.raises(ValueError, match="preprocessor"):
            task.export(tmp_path / "1")

    def what_to_do(self, task, path, monkeypatch, format="tf_saved_model") -> str:
        with monkeypatch.context() as patched, pytest.raises(ValueError) as caught:
            patched.setattr(keras.config, "backend", lambda: "jax")
            task.export(path, format)
        assert "is 'jax'" in str(caught.value)
        return str(caught.value)

    @pytest.mark.parametrize(
        ("path", "format", "process"),
        [
            ("served/1", "tf_saved_model", "KERAS_BACKEND=tensorflow (`pip install tensorflow`)"),
            ("a.onnx", "onnx", "KERAS_BACKEND=torch (`pip install torch onnx`)"),
            ("a.xml", "openvino", "KERAS_BACKEND=torch (`pip install torch openvino onnx`)"),
            ("a.tflite", "litert", "KERAS_BACKEND=tensorflow (`pip install tensorflow`)"),
        ],
    )
    def test_another_backend_says_what_to_do(self, tasks, monkeypatch, path, format, process):
        text = self.what_to_do(tasks["Bert SequenceClassifier"], path, monkeypatch, format)
        assert process in text
        line = f"ez.SequenceClassifier.from_preset('my_preset').export('{path}', '{format}')"
        assert text.splitlines()[-1].strip() == line

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_what_another_backend_says_to_do_exports_the_task(self, tasks, tmp_path, monkeypatch):
        task = tasks["Bert SequenceClassifier"]
        text = self.what_to_do(task, tmp_path / "served" / "1", monkeypatch)
        # Presets of one backend are opened on another in test_package.py.
        task.save_to_preset(tmp_path / "my_preset")
        monkeypatch.chdir(tmp_path)
        exec(text.splitlines()[-1].strip())
        served = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"]
        [expected] = task.classify(["the cat"])
        found = served(text=tf.constant(["the cat"]))
        assert found["label"].numpy()[0, 0].decode() == expected["label"]
        assert found["score"].numpy()[0, 0] == pytest.approx(expected["score"], abs=1e-5)


def ids_of(task, batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(length)
    inputs = {n: np.ones((batch, length), "int32") for n in task.list_input_names()}
    inputs["token_ids"] = rng.integers(5, 70, (batch, length)).astype("int32")
    inputs["padding_mask"][0, length // 2 :] = 0
    if "mask_positions" in inputs:
        inputs["mask_positions"] = rng.integers(0, length, (batch, 2)).astype("int32")
    return inputs


@pytest.mark.filterwarnings("ignore")  # of the converters
class TestIdsModels:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "name",
        ["Bert SequenceClassifier", pytest.param("Roberta MaskedLM", marks=pytest.mark.slow)],
    )
    def test_onnx(self, tasks, name, tmp_path, monkeypatch):
        runtime = pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")
        warnings = []
        monkeypatch.setattr(tf.get_logger(), "warning", lambda *parts: warnings.append(parts))
        tasks[name].export(tmp_path / "model.onnx", format="onnx")
        assert warnings == []
        session = runtime.InferenceSession(tmp_path / "model.onnx")
        for batch, length in ((1, 5), (3, 30)):
            inputs = ids_of(tasks[name], batch, length)
            [found] = session.run(["logits"], inputs)
            np.testing.assert_allclose(found, np.asarray(tasks[name](inputs)), atol=1e-5)
        expected, classes = {"pipeline_tag": tasks[name].record.pipeline_tag}, {}
        [output] = session.get_outputs()
        if "Classifier" in name:
            classes = dict(enumerate(tasks[name].labels))
            expected["problem_type"] = tasks[name].problem_type
            assert output.shape == ["batch", len(classes)]
        else:
            assert output.shape == ["batch", "masks", tasks[name].backbone.vocabulary_size]
        axes = {put.name: put.shape for put in session.get_inputs()}
        lengths = {n: "masks" if n == "mask_positions" else "length" for n in inputs}
        assert axes == {n: ["batch", length] for n, length in lengths.items()}
        metadata = session.get_modelmeta().custom_metadata_map
        found = {int(i): label for i, label in json.loads(metadata.pop("id2label", "{}")).items()}
        assert (found, metadata) == (classes, expected)

    @pytest.mark.matrix
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["Roberta SequenceClassifier", "Bert SpanQA"])
    def test_litert(self, tasks, name, tmp_path):
        tasks[name].export(tmp_path / "model.tflite", format="litert")
        model = tf.lite.Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
        for batch, length in ((1, 5), (3, 30)):
            inputs = ids_of(tasks[name], batch, length)
            found = model(**inputs)["logits"]
            np.testing.assert_allclose(found, np.asarray(tasks[name](inputs)), atol=1e-4)

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_int8(self, tmp_path):
        pytest.importorskip("tf2onnx")
        runtime = pytest.importorskip("onnxruntime")
        task = load("Bert SequenceClassifier")
        task.quantize("int8")
        with pytest.raises(ValueError, match="LiteRT.*quantized"):
            task.export(tmp_path / "model.tflite", format="litert")
        task.export(tmp_path / "model.onnx", format="onnx")
        inputs = ids_of(task, 3, 30)
        [found] = runtime.InferenceSession(tmp_path / "model.onnx").run(None, inputs)
        np.testing.assert_allclose(found, np.asarray(task(inputs)), atol=1e-5)


ON_TORCH = """
import json, sys

sys.modules |= dict.fromkeys(["tensorflow", "jax"])  # to None: not to be imported
import keras
import numpy as np
import encoder_zoo as ez

folder, preset, task, texts, formats = json.load(sys.stdin)
task = getattr(ez, task).from_preset(preset)
for name in formats:
    task.export(f"{folder}/{name}", {"onnx": "onnx", "xml": "openvino"}[name.split(".")[1]])
found = task.predict(texts, verbose=0)
print(json.dumps([np.asarray(rows).tolist() for rows in found]))
"""
LITERT_ON_TORCH = """
import json, sys

import keras
import numpy as np
import encoder_zoo as ez
from ai_edge_litert.interpreter import Interpreter
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

found = {}
for name in ("SequenceClassifier", "TextEmbedder", "MaskedLM"):
    task = tiny.task(get_family("bert"), getattr(ez, name))
    made, tokenizer = type(task.preprocessor), task.preprocessor.tokenizer
    task.preprocessor = made(tokenizer, sequence_length=16)
    path = f"{sys.argv[1]}/{name}.tflite"
    for _ in range(2):  # the second replaces the first
        task.export(path, "litert")
    inputs = {name: np.ones((1, 16), "int32") for name in task.list_input_names()}
    inputs["token_ids"] = np.random.default_rng(0).integers(5, 30, (1, 16)).astype("int32")
    inputs["padding_mask"][:, 11:] = 0
    inputs["segment_ids"][:, :7] = 0
    expected = keras.ops.convert_to_numpy(task(inputs, training=False))
    answer = Interpreter(path).get_signature_runner()
    gap = float(np.abs(answer(**inputs)["logits"] - expected).max())
    found[name] = list(answer.get_input_details()), gap
print(json.dumps(found))
"""
CLIENT = """
import json, sys

blocked = ["encoder_zoo", "keras", "tensorflow", "jax", "torch"]
sys.modules |= dict.fromkeys(blocked)
texts, formats = json.load(sys.stdin)
{}
answered = [logits.tolist()]
if "model.xml" in formats:
    import openvino
    exact = dict(INFERENCE_PRECISION_HINT="f32")
    model = openvino.compile_model("served/model.xml", "CPU", exact)
    answered.append(model(inputs)["logits"].tolist())
print(json.dumps([answers, *answered]))
"""


class TestOnTorch:
    """Exports of PyTorch, without TensorFlow, asked by the client in the documentation."""

    @pytest.fixture
    def client(self):
        page = (ROOT / "docs/pages/topics/production.md").read_text()
        [code] = [part for part in page.split("```") if "tokenizer.json" in part and "run(" in part]
        return CLIENT.format(code.removeprefix("python"))

    @pytest.mark.slow
    def test_a_client_that_has_a_runtime_alone_answers_alike(self, client, tmp_path):
        for package in ("torch", "onnx", "onnxruntime"):
            pytest.importorskip(package)
        formats = ["model.onnx"]
        formats += ["model.xml"] if importlib.util.find_spec("openvino") else []
        (tmp_path / "served").mkdir()
        preset = CHECKPOINTS / "Bert_ForSequenceClassification"
        texts = [text for text in TEXTS[:12] if "\x00" not in text] + ["the cat sat " * 30]
        request = [str(tmp_path / "served"), str(preset), "SequenceClassifier", texts, formats]
        expected = json.loads(run(ON_TORCH, given=json.dumps(request), KERAS_BACKEND="torch"))
        read = Tokenizer.from_file(str(tmp_path / "served" / "tokenizer.json")).encode_batch(texts)
        assert len({len(row.type_ids) for row in read}) == 1
        assert {segment for row in read for segment in row.type_ids} == {0}  # of padding, too
        found = json.loads(run(client, given=json.dumps([texts, formats]), cwd=tmp_path))
        answers, *outputs = found
        for logits in outputs:
            np.testing.assert_allclose(logits, expected, atol=1e-5)
        labels = json.loads((preset / "config.json").read_text())["id2label"]
        assert answers == [labels[str(np.argmax(row))] for row in expected]

    @pytest.mark.matrix
    @pytest.mark.slow
    def test_litert_of_one_text_answers_alike(self, tmp_path):
        """Needs litert-torch, whose pins keep it out of the tests' own packages."""
        pytest.importorskip("litert_torch")
        found = json.loads(run(LITERT_ON_TORCH, tmp_path, KERAS_BACKEND="torch").splitlines()[-1])
        for name, (names, gap) in found.items():
            assert gap <= 1e-5, name
            assert {"token_ids", "padding_mask"} <= set(names), name
        assert len(found) == 3

    def test_a_tokenizer_of_another_model_is_kept(self, tasks, tmp_path):
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(ValueError, match="tokenizer.json.*model.tflite"):
            tasks["Bert SequenceClassifier"].export(tmp_path / "model.tflite", "litert")
        assert (tmp_path / "tokenizer.json").read_text() == "{}"
        assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Bert SequenceClassifier", "Roberta TokenClassifier"])
def test_openvino(tasks, name, tmp_path):
    openvino = pytest.importorskip("openvino")
    for _ in range(2):  # the second replaces the first
        tasks[name].export(tmp_path / "model.xml", format="openvino")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.bin",
        "model.xml",
        "tokenizer.json",
    ]
    read = openvino.Core().read_model(tmp_path / "model.xml")
    labels = json.loads(read.get_rt_info(["encoder_zoo", "id2label"]).astype(str))
    assert list(labels.values()) == tasks[name].labels
    model = openvino.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for batch, length in ((1, 5), (3, 30)):
        inputs = ids_of(tasks[name], batch, length)
        found = model(inputs)["logits"]
        np.testing.assert_allclose(found, np.asarray(tasks[name](inputs)), atol=1e-5)


@pytest.mark.slow(only="^101")
@pytest.mark.parametrize("count", [0, 1, GRAPH_BATCH_SIZE, 3 * GRAPH_BATCH_SIZE + 5])
def test_batches_in_a_graph_keep_the_order_of_the_rows(count):
    lengths = np.random.default_rng(0).integers(0, 9, count)
    values = tf.range(lengths.sum(), dtype=tf.float32)
    rows = {"token_ids": tf.RaggedTensor.from_row_lengths(values, lengths)}
    sizes = []

    @tf.function(autograph=False)
    def run():
        def function(rows):
            tf.py_function(lambda n: sizes.append(int(n)), [rows["token_ids"].nrows()], [])
            return rows["token_ids"].values[:, None]

        return map_graph_batches(function, rows, rows["token_ids"].row_lengths(), 1)

    assert run().to_list() == [[[v] for v in row] for row in rows["token_ids"].to_list()]
    assert max(sizes, default=0) <= GRAPH_BATCH_SIZE
