"""Entities by their names: gliner's folders, windows, training, exports, errors."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
from fake_hub import Hub, environment
from paths import GOLDEN
from processes import printed, run
from replayed_hub import write_old_gliner
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.common.lazy import use_numpy, use_tensorflow, xp
from encoder_zoo.tasks.tagging.entity_extractor_preprocessor import (
    EntityExtractorPreprocessor,
    split_words,
)

FOLDERS = GOLDEN / "gliner"
SLOW = ("bert_marker", "deberta", "modernbert")
NAMES = [
    pytest.param(path.name, marks=[pytest.mark.slow] if path.name in SLOW else [])
    for path in sorted(FOLDERS.iterdir())
]
# A space of width 0, of which BERT's tokenizer makes no token: gliner then counts words otherwise
# than tokens, and gives entities behind it the offsets of their neighbours.
WITHOUT_TOKEN = "\u200b"


@pytest.fixture(scope="module", params=NAMES)
def golden(request):
    """A folder that gliner wrote, opened here, and what gliner finds."""
    folder = FOLDERS / request.param
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    return ez.EntityExtractor.from_preset(folder), expected, folder


@pytest.mark.slow
def test_logits_are_those_of_gliner(golden):
    model, expected, folder = golden
    labels = expected["settings"]["flat"]["labels"]
    texts = expected["texts"]
    stored = np.load(folder / "expected.npz")
    for i, found in enumerate(model.predict((texts, [labels] * len(texts)), verbose=0)):
        theirs = stored[str(i)][: len(found)]
        inside = found > -1e8  # gliner computes spans beyond the text, too
        assert inside.any() == bool(texts[i].strip())
        np.testing.assert_allclose(found[inside], theirs[inside], atol=1e-4)


@pytest.mark.slow
def test_entities_are_those_of_gliner(golden):
    model, expected, _ = golden
    for name, settings in expected["settings"].items():
        found = model.extract_entities(expected["texts"], **settings)
        rows = zip(expected["texts"], found, expected["found"][name], strict=True)
        for text, ours, theirs in rows:
            for entity in ours:
                assert text[entity["start"] : entity["end"]] == entity["text"]
            if WITHOUT_TOKEN in text and model.backbone.family.name == "bert":
                continue
            scores = [[entity.pop("score") for entity in row] for row in (ours, theirs)]
            assert ours == theirs, (name, text)
            np.testing.assert_allclose(*scores, atol=1e-4)


@pytest.mark.slow
def test_words_are_those_of_the_pattern():
    rng = np.random.default_rng(0)
    letters = list("ab1é_-- \n\u00a0\u200b٣東क्ि🍕'.\x00\x1c")
    texts = ["", " ", "-", *("".join(rng.choice(letters, rng.integers(1, 40))) for _ in range(300))]
    array = np.array([text.encode() for text in texts], object)
    import tensorflow as tf

    words, starts, ends = split_words(tf.constant(array))
    for i, text in enumerate(texts):
        theirs = list(re.finditer(r"\w+(?:[-_]\w+)*|\S", text))
        assert [w.decode() for w in words[i].numpy()] == [m.group() for m in theirs], repr(text)
        assert starts[i].numpy().tolist() == [m.start() for m in theirs]
        assert ends[i].numpy().tolist() == [m.end() for m in theirs]


@pytest.fixture(scope="module")
def model():
    return ez.EntityExtractor.from_preset(FOLDERS / "bert")


LABELS = ["person", "city"]
LONG = " ".join(f"Anna saw Bob in old Paris by the river {i}." for i in range(30))


@pytest.mark.slow
def test_long_texts_are_read_in_windows_that_overlap(model):
    """A text in windows has the entities of its windows, each span scored in one of them."""
    assert len(LONG) > 1000
    [logits] = model.predict(([LONG], [LABELS]), verbose=0)
    words = re.findall(r"\w+(?:[-_]\w+)*|\S", LONG)
    assert logits.shape == (len(words), 12, 2)
    missing = np.argwhere(logits[:-12] < -1e8)
    assert not len(missing), missing[:5]  # every span is scored
    found = model.extract_entities(LONG, LABELS)
    assert all(LONG[e["start"] : e["end"]] == e["text"] for e in found)
    ends = [e["end"] for e in found]
    assert all(a <= e["start"] for a, e in zip(ends, found[1:], strict=False))
    assert found[-1]["start"] > 0.9 * len(LONG)


@pytest.mark.slow
def test_nested_entities_may_be_inside_of_each_other(model):
    text = "Anna Lee met Bob in Paris."
    flat = model.extract_entities(text, LABELS, threshold=0.2)
    nested = model.extract_entities(text, LABELS, threshold=0.2, nested=True)
    spans = [(e["start"], e["end"]) for e in nested]
    inside = [a != b and a[0] >= b[0] and a[1] <= b[1] for a in spans for b in spans]
    assert len(nested) > len(flat) and any(inside)
    for a in spans:
        for b in spans:
            apart = a[1] <= b[0] or b[1] <= a[0]
            within = (a[0] >= b[0] and a[1] <= b[1]) or (b[0] >= a[0] and b[1] <= a[1])
            assert apart or within


def test_labels_of_each_text_and_descriptions(model):
    texts = ["Anna met Bob.", "In Paris.", ""]
    both = model.extract_entities(texts, [["person"], {"CITY": "city"}, ["x"]], threshold=0.1)
    alone = model.extract_entities(texts[0], ["person"], threshold=0.1)
    assert [e["label"] for e in both[0]] == [e["label"] for e in alone]
    np.testing.assert_allclose(
        [e["score"] for e in both[0]], [e["score"] for e in alone], atol=1e-5
    )
    named = model.extract_entities(texts[1], ["city"], threshold=0.1)
    assert {e["label"] for e in both[1]} == {"CITY"} and len(named) == len(both[1])
    assert both[2] == []


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "No labels"),
        ([], "No labels"),
        ("person", "labels is 'person'"),
        (5, "labels is 5"),
        (
            {"person", "city"},
            r"labels is \{.*\}",
        ),  # they are read in an order
        ([None], r"labels\[0\] is None"),
        ([["a"], "b"], "1 texts.*2 lists"),
        (["\ud800"], r"labels\[0\] has the lone surrogate"),
        (["a", "b", "a"], "labels.*contains 'a' twice"),
        (["a", " "], r"labels\[1\] is ' '"),
        (["a", 3], r"labels\[1\] is 3"),
        ({"a": "x", "b": "x"}, "contains 'x' twice"),
        ([["a"], ["b"]], "1 texts.*2 lists"),
        (["a <<ENT>>"], "'<<ENT>>'"),
        (["long " * 600], "Text 0: the labels take 2402 of the 510 tokens"),
    ],
)
def test_wrong_labels_are_refused(model, labels, message):
    with pytest.raises(ValueError, match=message):
        model.extract_entities(["Anna"], labels)


@pytest.mark.slow(except_for="^spans1")
@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 4)], r"Example 0: \(0, 4\).*span"),
        ([{"start": 0, "end": 4}], "Example 0: {'start': 0, 'end': 4}.*span"),
        (["B-PER"], "Example 0: 'B-PER'.*span"),
        ([(0.5, 4, "p")], r"Example 0: start is 0\.5"),
        ([(-3, 4, "p")], "the span from -3 to 4 .* 12 characters"),
        ([(0, 40, "p")], "the span from 0 to 40"),
        ([(4, 5, "p")], "the span from 4 to 5"),
        ([], "no spans"),
    ],
)
def test_wrong_spans_are_refused(spans, message):
    model = ez.EntityExtractor.from_preset("bert_nano_en_uncased", max_width=4)
    with pytest.raises(ValueError, match=message):
        model.fit(["Anna sings ."], [spans], verbose=0)


def test_labels_are_learned_from_a_dataset_of_spans():
    import tensorflow as tf

    model = ez.EntityExtractor.from_preset("bert_nano_en_uncased", max_width=4)
    x = ["Anna sings .", "In Rome ."]
    tags = tf.data.Dataset.from_tensor_slices((x, [["B-PER"], ["B-LOC"]])).batch(2)
    for wrong in ((["Anna", None], [[(0, 4, "person")], []]), (tags,)):
        with pytest.raises(ValueError, match=r"texts\[1\] is None|'B-PER' is not a span"):
            model.fit(*wrong, verbose=0)
        assert model.labels is None
    spans = {"start": [[0], [3]], "end": [[4], [7]], "label": [["person"], ["city"]]}
    columns = {name: tf.ragged.constant(rows) for name, rows in spans.items()}
    model.fit(tf.data.Dataset.from_tensor_slices((x, columns)).batch(2), verbose=0)
    assert model.labels == ["city", "person"]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (["Anna"], None, "The labels are missing"),
        (["Anna", "Bob"], [[]], "2 texts.*spans for 1"),
        (["Anna"], [[(0, 40, "person")]], "Example 0: the span from 0 to 40"),
        (["Anna"], [[(4, 0, "person")]], "Example 0: the span from 4 to 0"),
        (["Anna"], [[(0, 4, None)]], "Row 0 has no label"),
        ("Anna", [[]], "x.*is 'Anna'"),
    ],
)
def test_wrong_spans_are_neither_evaluated_nor_tuned_on(model, x, y, message):
    for method in (model.evaluate_entities, model.tune_thresholds):
        with pytest.raises(ValueError, match=message):
            method(x, y, LABELS)
    with pytest.raises(ValueError, match="x is.*at least one"):
        model.tune_thresholds([], [], LABELS)


def test_labels_of_a_model_are_names_that_differ():
    for labels, message in (
        ([""], r"labels\[0\] is ''"),
        (["a", " "], r"labels\[1\] is ' '"),
        (["a", "a"], "labels.*contains 'a' twice"),
    ):
        with pytest.raises(ValueError, match=message):
            ez.EntityExtractor.from_preset(FOLDERS / "bert", labels=labels)


@pytest.mark.slow
def test_labels_that_are_learned():
    prepares = ez.EntityExtractor.from_preset(FOLDERS / "bert", labels=["p", "q"]).preprocessor
    with pytest.raises(ValueError, match="Text 1: the labels.* 'q' twice"):
        prepares.encode((["Anna", "Bob"], [["p"], ["q", "p", "q"]]), [[], [(0, 3, "q")]])
    with pytest.raises(ValueError, match="'a<<ENT>>'"):
        prepares.encode(["Anna"], [[(0, 4, "a<<ENT>>")]], labels=["a<<ENT>>"])
    names = [str(i) for i in range(30)]  # integers name labels; of so many some are drawn
    examples = prepares.encode(["Anna", "Bob"], [[(0, 4, 7)], [(0, 3, 29)]], labels=names)
    assert [len(row) for row in examples["span_start"].to_list()] == [1, 1]


@pytest.mark.slow
@pytest.mark.matrix
def test_no_texts_and_texts_without_words(golden):
    import tensorflow as tf

    model, *_ = golden
    assert model.extract_entities([], LABELS) == []
    for text in ("", " \r\n\t\u00a0"):
        assert model.extract_entities(text, LABELS, 0.0) == []
        assert model.extract_entities([text] * 3, LABELS, 0.0) == [[], [], []]
    tokenize = tf.function(model.preprocessor.tokenizer.tokenize)
    assert tokenize(tf.constant([], tf.string)).to_list() == []


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "rnn.lstm.weight_hh_l0_reverse",
            lambda x: np.concatenate([x, x[:1]]),
            r"is \(33, 8\), exp",
        ),
        ("prompt_rep_layer.3.weight", None, "prompt_rep_layer.3.weight.*missing"),
        (
            "span_rep_layer.span_rep_layer.out_project.0.bias",
            lambda x: x[:0],
            r"out_project.0.bias",
        ),
    ],
)
def test_a_head_that_is_there_in_part_is_damaged(name, change, message, tmp_path):
    shutil.copytree(FOLDERS / "bert", tmp_path / "bert")
    path = tmp_path / "bert" / "model.safetensors"
    weights = load_file(path)
    if change is None:
        del weights[name]
    else:
        weights[name] = change(weights[name])
    save_file(weights, path)
    with pytest.raises(ValueError, match=f"missing or have.*shapes: .*{message}"):
        ez.EntityExtractor.from_preset(tmp_path / "bert")
    # Another task has a new head, and the encoder.
    ez.TextEmbedder.from_preset(tmp_path / "bert")


@pytest.mark.matrix
def test_what_is_saved_is_what_was_opened(golden, tmp_path):
    model, _, folder = golden
    model.save_to_preset(tmp_path / "again")
    ours = json.loads((tmp_path / "again" / "gliner_config.json").read_text())
    theirs = json.loads((folder / "gliner_config.json").read_text())
    for field in ("ent_token", "sep_token", "max_width", "span_mode", "hidden_size", "max_len"):
        assert ours[field] == theirs[field]
    assert ours["class_token_index"] == theirs["class_token_index"]
    assert not (tmp_path / "again" / "config.json").exists()
    again = ez.EntityExtractor.from_preset(tmp_path / "again")
    for a, b in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"span_mode": "token_level"}, "span_mode is 'token_level'"),
        ({"span_mode": "conv_max"}, "span_mode is 'conv_max'"),
        ({"labels_encoder": "bert"}, "a separate encoder for labels"),
        ({"fuse_layers": True}, "a weighted sum of the outputs"),
        ({"words_splitter_type": "spacy"}, "words_splitter_type is 'spacy'"),
        ({"max_width": 0}, "max_width is 0. Expected"),
        ({"num_rnn_layers": 3}, "num_rnn_layers is 3.* 1,"),
        ({"hidden_size": 10**9}, "hidden_size is 1000000000.* 16, .*prompt_rep_layer"),
        ({"class_token_index": 3}, "class_token_index is 3.*'<<ENT>>'"),
        ({"ent_token": "<<X>>"}, "ent_token is '<<X>>'"),
        ({"encoder_config": None, "model_name": "../encoder"}, "encoder_config.*'../encoder'"),
    ],
)
def test_what_is_not_implemented_is_refused(changed, message, tmp_path):
    source = FOLDERS / "bert"
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "gliner_config.json").read_text())
    (tmp_path / "gliner_config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises(ValueError, match=message):
        ez.EntityExtractor.from_preset(tmp_path)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = Hub({"org/encoder": tmp_path / "encoder"})
    for name, value in environment(hub, tmp_path).items():
        monkeypatch.setenv(name, value)
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield hub
    hub.stop()


@pytest.mark.slow
def test_a_folder_of_an_old_version_names_its_encoder(model, hub, tmp_path):
    write_old_gliner(tmp_path / "old", tmp_path / "encoder", "bert")
    old = ez.EntityExtractor.from_preset(tmp_path / "old")
    assert not hub.count("GET", ".safetensors")
    assert old.preprocessor.label_marker == "<<ENT>>"
    texts = ["Anna Lee met Bob in Paris."]
    found = [m.predict((texts, [LABELS]), verbose=0)[0] for m in (old, model)]
    np.testing.assert_array_equal(*found)
    preprocessor = ez.EntityExtractorPreprocessor.from_preset(tmp_path / "old")
    assert preprocessor.label_marker == "<<ENT>>" and preprocessor.max_words == 64
    hub.stop()
    ez.EntityExtractor.from_preset(tmp_path / "old")  # from the cache
    config = (tmp_path / "old" / "gliner_config.json").read_text()
    config = config.replace("org/encoder", "org/absent")
    (tmp_path / "old" / "gliner_config.json").write_text(config)
    with pytest.raises(ValueError, match=r"gliner_config\.json.*hf://org/abs"):
        ez.EntityExtractor.from_preset(tmp_path / "old")


ALONE = """
import json, sys

sys.modules |= dict.fromkeys(["encoder_zoo", "keras", "tensorflow_text", "tokenizers"])
import tensorflow as tf

folder, texts, labels = json.load(sys.stdin)
answer = tf.saved_model.load(folder).signatures["serving_default"]
found = answer(text=tf.constant(texts), labels=tf.constant(labels))
rows = {name: values.numpy().tolist() for name, values in found.items()}
texts_of = lambda row: [value.decode() for value in row]
for name in ("label", "text"):
    rows[name] = list(map(texts_of, rows[name]))
print(json.dumps(rows))
"""


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="writes a SavedModel")
def test_a_process_with_tensorflow_alone_finds_the_same(model, tmp_path):
    texts = ["Anna Lee met Bob in Paris. ", LONG, "", "\U0001f600 Zoë lives in São Paulo"]
    model.export(tmp_path / "1", threshold=0.3)
    given = json.dumps([str(tmp_path / "1"), texts, [LABELS]])
    found = json.loads(run(ALONE, given=given).splitlines()[-1])
    expected = model.extract_entities(texts, LABELS, threshold=0.3)
    assert sum(map(len, expected)) > 5
    for i, entities in enumerate(expected):
        assert found["count"][i] == len(entities)
        for j, entity in enumerate(entities):
            score = pytest.approx(entity.pop("score"), abs=1e-5)
            assert found["score"][i][j] == score
            assert {name: found[name][i][j] for name in entity} == entity


def test_other_formats_say_what_exists(model, tmp_path):
    for export in (
        lambda: model.export(tmp_path / "m.onnx", "onnx"),
        lambda: model.export(tmp_path / "m.tflite", "litert"),
        lambda: model.export(tmp_path / "m.xml", "openvino"),
    ):
        with pytest.raises(ValueError, match=r"LSTM.*export\('served/1'\)"):
            export()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="LiteRT's backend")
def test_litert_runs_the_encoder(golden):
    model, expected, _ = golden
    fast = model.for_cpu("float32")
    shape = [None, None, model.backbone.hidden_dim]
    assert fast.cpu_model.session.output_shape == shape
    assert_same_answers(fast, model, [*expected["texts"], LONG], 1e-5)


def assert_same_answers(fast, model, texts, tolerance):
    for options in ({}, {"threshold": 0.3, "nested": True}, {"multi_label": True}):
        found, right = (m.extract_entities(texts, LABELS, **options) for m in (fast, model))
        assert sum(map(len, right)) > 0
        for ours, theirs in zip(found, right, strict=True):
            scores = [[entity.pop("score") for entity in row] for row in (ours, theirs)]
            assert ours == theirs
            np.testing.assert_allclose(*scores, atol=tolerance)


def test_openvino_runs_the_encoder(model):
    pytest.importorskip("openvino")
    fast = model.for_cpu("float32", engine="openvino")
    assert_same_answers(fast, model, ["Anna Lee met Bob in Paris.", "", LONG], 1e-5)
    with pytest.raises(ValueError, match="for_cpu"):
        fast.fit(["Anna"], [[(0, 4, "person")]], verbose=0)


@pytest.mark.slow(only=r"^(litert)$")
@pytest.mark.parametrize("engine", ["litert", "openvino"])
def test_in_int8_scores_are_close(model, engine):
    pytest.importorskip("nncf" if engine == "openvino" else "ai_edge_litert")
    texts = ["Anna Lee met Bob in Paris.", "the old town by the river", "", LONG[:400]] * 3
    typical = (texts, [LABELS] * len(texts)) if engine == "openvino" else None
    fast = model.for_cpu("int8", engine=engine, texts=typical)
    found, expected = (m.predict((texts, [LABELS] * len(texts)), verbose=0) for m in (fast, model))
    different = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        ours, theirs = (1 / (1 + np.exp(-np.maximum(logits, -50.0))) for logits in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, atol=0.25)
        different = max(different, np.abs(ours - theirs).max(initial=0.0))
    assert different > 1e-4


TEXTS = ["Anna Lee met Bob in Paris.", "Paris, the old town", "a river in São-Paulo"]
SPANS = [[(0, 8, "person"), (20, 25, "city")], [(0, 5, "city")], []]


@pytest.fixture
def tunable():
    return ez.EntityExtractor.from_preset(FOLDERS / "bert", labels=LABELS)


@pytest.mark.slow
def test_thresholds_of_labels_choose_among_their_own(tunable):
    """As entities of any score, chosen by hand: the best first, each above its label's."""
    given = {"person": 0.62, "city": 0.2}
    found = tunable.extract_entities(TEXTS, threshold=given)
    everything = tunable.extract_entities(
        TEXTS, threshold=0.0, nested=True, multi_label=True
    )  # all but what overlaps in part
    for text, ours, spans in zip(TEXTS, found, everything, strict=True):
        assert ours and all(e["score"] > given[e["label"]] for e in ours), text
        for span in spans:
            overlaps = [e for e in ours if e["start"] < span["end"] and span["start"] < e["end"]]
            high = max((e["score"] for e in overlaps), default=0.0)
            assert span["score"] <= max(high, given[span["label"]])
    one = tunable.extract_entities(TEXTS, threshold={"person": 0.62})
    assert one == tunable.extract_entities(TEXTS, threshold={"person": 0.62, "city": 0.5})
    assert tunable.extract_entities(TEXTS, threshold={}) == tunable.extract_entities(TEXTS)
    described = {"city": "city", "person": "person"}
    assert tunable.extract_entities(TEXTS, described, {"city": 1.0, "person": 1.0}) == [[], [], []]
    given = {"person": 0.0, "city": 0.25}  # at other places in the labels of each text
    several = tunable.extract_entities(TEXTS, [["city"], LABELS[::-1], ["person"]], given)
    assert [{e["label"] for e in row} for row in several][::2] == [{"city"}, {"person"}]
    assert all(e["score"] > given[e["label"]] for row in several for e in row)
    with pytest.raises(ValueError, match="thresholds.*is 'persn'"):
        tunable.extract_entities(TEXTS, threshold={"persn": 0.4})
    with pytest.raises(ValueError, match="threshold.*dict"):
        tunable.extract_entities(TEXTS, threshold={"person": 4})


@pytest.mark.slow(every=True)
def test_tuned_thresholds_have_the_best_f1(tunable, tmp_path, caplog):
    before = tunable.evaluate_entities(TEXTS, SPANS, ["city"])["f1"]
    found = tunable.tune_thresholds(TEXTS, SPANS, ["city"])
    assert found == tunable.thresholds and found.keys() == {"city"}
    tuned = tunable.evaluate_entities(TEXTS, SPANS, ["city"])["per_type"]["city"]["f1"]
    of_all = tunable.extract_entities(TEXTS, ["city"], threshold=0.0)
    scores = sorted(e["score"] for row in of_all for e in row)
    best = max(
        tunable.evaluate_entities(TEXTS, SPANS, ["city"], threshold=t - 1e-6)["per_type"].get(
            "city", {"f1": 0}
        )["f1"]
        for t in scores
    )
    assert tuned == pytest.approx(best) and best > 0 and before <= tuned
    answers = tunable.extract_entities(TEXTS)
    assert answers == tunable.extract_entities(TEXTS, threshold=found)

    tunable.save_to_preset(tmp_path / "preset")
    again = ez.EntityExtractor.from_preset(tmp_path / "preset")
    assert again.thresholds == found and again.extract_entities(TEXTS) == answers
    tunable.save(tmp_path / "model.keras")
    opened = keras.saving.load_model(tmp_path / "model.keras")
    assert opened.extract_entities(TEXTS) == answers
    assert tunable.tune_thresholds(TEXTS, SPANS, ["person"]).keys() == {"person"}
    assert tunable.thresholds.keys() == {"person", "city"}  # that of the other label is kept
    caplog.clear()
    tunable.tune_thresholds(TEXTS, SPANS, ["river"])
    assert any("'river'" in line and "0.5" in line for line in caplog.messages)
    again.fit(TEXTS, SPANS, verbose=0)
    assert again.thresholds is None
    assert any("Call tune_thresholds again" in line for line in caplog.messages)


@pytest.mark.slow(every=True)
@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="a graph of TensorFlow")
def test_thresholds_of_labels_in_an_export(tunable):
    import tensorflow as tf

    tunable.thresholds = {"person": 0.62, "city": 0.2, "another": 0.9}
    expected = tunable.extract_entities(TEXTS)
    for options, right in (
        ({}, expected),
        ({"threshold": 0.5}, tunable.extract_entities(TEXTS, threshold=0.5)),
        ({"threshold": {"a": 0.1}}, tunable.extract_entities(TEXTS, threshold=0.5)),
    ):
        answer = tf.function(tunable.signatures(**options)["serving_default"])
        found = answer(tf.constant(TEXTS), tf.constant([LABELS]))
        assert found["count"].numpy().tolist() == [len(row) for row in right]
        for i, row in enumerate(right):
            for j, entity in enumerate(row):
                assert found["label"][i, j].numpy().decode() == entity["label"]
                assert found["score"][i, j].numpy() == pytest.approx(entity["score"], abs=1e-5)


@pytest.mark.slow
def test_characters_without_tokens_are_no_words(model):
    for text in ("Bob \u200b\u200b\u200b", "\u200b", "\u200bBob\u200b saw Anna"):
        for entity in model.extract_entities(text, LABELS, threshold=0.0, nested=True):
            assert text[entity["start"] : entity["end"]] == entity["text"]
            assert entity["text"].strip("\u200b") and "\u200b" not in entity["text"][:1]


STEPS = """
import json, sys
import keras
import encoder_zoo as ez

texts = ["Anna Lee met Bob in Paris .", "Paris , the old town", "a river in São-Paulo"]
spans = [[(0, 8, "person"), (20, 25, "city")], [(0, 5, "city"), (8, 20, "city")], []]
model = ez.EntityExtractor.from_preset(sys.argv[1], dropout=0.0, attention_dropout=0.0)
model.compile(keras.optimizers.SGD(0.01), ez.SpanFocalLoss(2.0, 0.75))
history = model.fit(texts, spans, batch_size=2, epochs=3, shuffle=False, verbose=0)
print(json.dumps(history.history["loss"]))
"""


@pytest.mark.matrix
@pytest.mark.slow
def test_backends_learn_alike():
    losses = {
        backend: json.loads(printed(STEPS, backend, FOLDERS / "bert").splitlines()[-1])
        for backend in ("tensorflow", "jax", "torch")
    }
    assert losses["tensorflow"][0] > 1.01 * losses["tensorflow"][2] > 0
    for backend in ("jax", "torch"):
        np.testing.assert_allclose(losses[backend], losses["tensorflow"], rtol=1e-5)


@pytest.mark.slow
def test_spans_inside_of_words_are_said_before_the_training(caplog):
    """A sentence without blanks is one word here."""
    model = ez.EntityExtractor.from_preset("bert_nano_en_uncased", max_width=4, num_rnn_layers=0)
    model.fit(["王小明住在北京", " Rome !"], [[(0, 3, "PER")], [(0, 6, "LOC")]], verbose=0)
    assert "1 of the spans begin or end inside a word." in caplog.text
    every = {"threshold": 0.0, "nested": True, "multi_label": True}
    judged = model.evaluate_entities([" Rome !"], [[(0, 6, "LOC")]], **every)
    assert judged["per_type"]["LOC"]["recall"] == 1.0  # without the blanks at the edges


@pytest.mark.parametrize("engine", [use_tensorflow, use_numpy])
def test_arrays_of_the_example_in_the_comments(engine):
    """The values that the comments in `entity_extractor_preprocessor.py` show."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = ez.BertTokenizer([*special, "who", "an", "##na", "sings"])
    preprocessor = EntityExtractorPreprocessor(tokenizer, max_words=3, doc_stride=1)
    preprocessor.labels = ["who"]
    with engine():
        texts = ["Anna sings who sings", "Anna"]
        words = preprocessor.tokenize_words(xp.constant(texts, xp.string))
        labels = xp.RaggedTensor.from_tensor(xp.constant([["who"]] * 2, xp.string))
        prompts = preprocessor.make_prompts(labels)
        examples, found = preprocessor.make_examples(words, prompts)
        spans = [[(0, 4, "who"), (11, 20, "who")], []]
        targets = preprocessor.encode(texts, spans)

    def lists(rows):
        return rows.to_list() if hasattr(rows, "to_list") else rows.numpy().tolist()

    tokens = [[tokenizer.id_to_token(i) for i in row] for row in lists(examples["token_ids"])]
    assert lists(words.starts) == [[0, 5, 11, 15], [0]]
    assert lists(words.ends) == [[4, 10, 14, 20], [4]]
    assert lists(words.counts) == [[2, 1, 1, 1], [2]]
    assert lists(words.numbers) == [[0, 0, 1, 2, 3], [0, 0]]
    assert lists(prompts.positions) == [[1], [1]]
    assert lists(found.windows.example) == [0, 0, 1]
    assert lists(found.windows.begin) == [0, 2, 0]
    assert lists(found.windows.length) == [3, 3, 2]
    assert lists(found.first_word) == [0, 1, 0]
    assert lists(found.word_count) == [2, 3, 1]
    assert lists(found.word_index) == [[1, 0, 2], [1, 2, 3], [1, 0]]
    assert " ".join(tokens[1]) == "[CLS] [MASK] who [SEP] sings who sings [SEP]"
    assert lists(examples["word_index"])[1] == [0, 0, 0, 0, 1, 2, 3, 0]
    assert lists(targets["span_start"]) == [[0], [1], []]
    assert lists(targets["span_width"]) == [[0], [1], []]
