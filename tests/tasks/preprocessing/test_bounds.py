"""Numbers of files are bounded, and what is no callback is refused before any work."""

import json

import keras
import numpy as np
import pytest

import encoder_zoo as ez

pytestmark = pytest.mark.eager

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop"]
TEXTS = ["a b", "c d", "e f"]


@pytest.fixture
def tokenizer():
    return ez.BertTokenizer(WORDS)


@pytest.fixture
def backbone():
    return ez.BertBackbone(len(WORDS), 1, 2, 8, 16, max_sequence_length=32)


@pytest.fixture
def classifier(backbone, tokenizer):
    preprocessor = ez.SequenceClassifierPreprocessor(tokenizer)
    return ez.SequenceClassifier(backbone, preprocessor, labels=["down", "up"])


@pytest.fixture
def folder(classifier, tmp_path):
    classifier.save_to_preset(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("callbacks", [[5], 5, [keras.callbacks.EarlyStopping], ["early"]])
def test_what_is_no_callback(callbacks, classifier):
    for call in (classifier.predict, classifier.evaluate, classifier.fit):
        with pytest.raises(ValueError, match="callbacks is"):
            call(TEXTS, callbacks=callbacks, verbose=0)


@pytest.mark.slow(except_for=r"^nan$")
@pytest.mark.parametrize("value", [1e-300, 1e300, 0.0, -1.0, float("nan"), "1", True, 10**400])
def test_a_temperature_in_a_file(value, folder):
    path = folder / "encoder_zoo.json"
    content = json.loads(path.read_text())
    content["preprocessor"]["temperature"] = value
    path.write_text(json.dumps({**content, "files": {}}))
    with pytest.raises(ValueError, match=r"encoder_zoo.json"):
        ez.SequenceClassifier.from_preset(folder, verify=False)


@pytest.mark.slow
def test_nothing_is_tuned_by_nan_or_nothing(classifier):
    for method in (classifier.calibrate, classifier.tune_thresholds):
        with pytest.raises(ValueError, match="requires labels"):
            method([], [])
    for weight in classifier.head.weights:
        weight.assign(np.full(weight.shape, np.nan))
    for method in (classifier.calibrate, classifier.tune_thresholds):
        with pytest.raises(ValueError, match="NaN or infinite"):
            method(TEXTS, ["up", "down", "up"])


@pytest.mark.slow(except_for=r"^head-False$")
@pytest.mark.parametrize(
    ("part", "crf"), [("backbone", False), ("head", False), ("head", True), ("transitions", True)]
)
def test_no_threshold_of_tags_is_tuned_by_nan(part, crf, backbone, tokenizer):
    preprocessor = ez.TokenClassifierPreprocessor(tokenizer)
    tagger = ez.TokenClassifier(backbone, preprocessor, labels=["O", "B-X", "I-X"], crf=crf)
    span = {"start": 0, "end": 1, "label": "X"}
    words = [text.split() for text in TEXTS]
    assert set(tagger.tune_thresholds(TEXTS, [[span]] * 3)) == {"X"}
    with pytest.raises(ValueError, match="requires labels"):
        tagger.tune_thresholds([], [])
    weight = getattr(tagger, part).weights[0]
    weight.assign(np.full(weight.shape, np.nan))
    for x, y in ((TEXTS, [[span]] * 3), (words, [["B-X", "O"]] * 3)):
        with pytest.raises(ValueError, match="NaN or infinite"):
            tagger.tune_thresholds(x, y)
