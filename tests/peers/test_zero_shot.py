"""Scores of transformers' zero-shot pipeline, from NLI models of several families."""

import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import get_family

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]

TEXTS = ["a b ab", "c d e a b", "p", "a b c d e f g h i j k l m n o p " * 3]
LENGTH = 48
LABELS = ["a", "b c", "p d"]
CLASSES = [
    ["contradiction", "neutral", "entailment"],
    ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"],
    ["entailment", "not_entailment"],
    ["contradiction", "entailment", "neutral"],
]


@pytest.mark.parametrize(
    ("family", "classes"),
    [
        *(("bert", classes) for classes in CLASSES),
        *((family, CLASSES[0]) for family in ("roberta", "distilbert", "electra", "albert")),
        *((family, CLASSES[1]) for family in ("deberta-v2", "modernbert", "xlm-roberta")),
    ],
)
@pytest.mark.parametrize("multi_label", [False, True])
def test_scores_are_those_of_the_pipeline(tiny, family, classes, multi_label, tmp_path):
    record = get_family(family)
    preprocessor = ez.SequenceClassifierPreprocessor(tiny.tokenizer(record))
    pooler = ez.SequenceClassifier.get_family_head(record).pooled
    backbone = tiny.backbone(record, pooler=pooler, max_sequence_length=LENGTH)
    classifier = ez.SequenceClassifier(backbone, preprocessor, labels=classes)
    tiny.randomize_weights(classifier).save_to_preset(tmp_path)
    there = transformers.pipeline("zero-shot-classification", str(tmp_path), device="cpu")
    there.tokenizer.model_max_length = LENGTH  # the long text is cut
    here = ez.ZeroShotClassifier.from_preset(tmp_path)
    options = {"hypothesis_template": "d {} e", "multi_label": multi_label}
    expected = there(TEXTS, LABELS, **options)
    found = here.classify(
        TEXTS, LABELS, hypothesis_template="d {} e", multi_label=multi_label, top_k=3
    )
    for ours, theirs in zip(found, expected, strict=True):
        scores = dict(zip(theirs["labels"], theirs["scores"], strict=True))
        difference = max(abs(answer["score"] - scores[answer["label"]]) for answer in ours)
        print(f"{family}: {difference:.1e}")
        assert difference < 1e-5
    assert np.ptp([answer["score"] for row in found for answer in row]) > 1e-3
