"""A SavedModel of each of the newer families answers in a process that has TensorFlow alone."""

import json

import numpy as np
import pytest
from processes import run

from encoder_zoo.encoders import get_family

FAMILIES = ("mpnet", "nomic_bert", "gte", "eurobert", "esm", "gemma3_text", "xlnet", "bart")
TEXTS = ["a b ab", "", "c d e a b", "p", "naïve Straße 中国 🙂 e\u0301 \u2003 a  b."]
ALONE = """
import json, pathlib, sys

blocked = ["encoder_zoo", "tensorflow_text", "keras", "keras_hub", "tokenizers", "sentencepiece"]
sys.modules |= dict.fromkeys(blocked)  # to None: not to be imported
import tensorflow as tf

answers, texts = {}, tf.constant(json.load(sys.stdin))
for folder in pathlib.Path(sys.argv[1]).iterdir():
    found = tf.saved_model.load(str(folder)).signatures["serving_default"](text=texts)
    labels = [[label.decode() for label in row] for row in found["label"].numpy()]
    answers[folder.name] = [labels, found["score"].numpy().tolist()]
print(json.dumps(answers))
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def classifiers(tiny):
    return {name: tiny.task(get_family(name), "SequenceClassifier") for name in FAMILIES}


@pytest.fixture(scope="module")
def answers(classifiers, tmp_path_factory):
    """{family: labels and scores} of one process for all exports."""
    folder = tmp_path_factory.mktemp("exports")
    for name, classifier in classifiers.items():
        classifier.export(folder / name)
    return json.loads(run(ALONE, folder, given=json.dumps(TEXTS)).splitlines()[-1])


@pytest.mark.matrix
@pytest.mark.parametrize("name", FAMILIES)
def test_an_export_needs_nothing_of_ours(classifiers, answers, name):
    labels, scores = answers[name]
    expected = classifiers[name].classify(TEXTS, top_k=3)
    assert labels == [[answer["label"] for answer in row] for row in expected]
    expected = [[answer["score"] for answer in row] for row in expected]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
