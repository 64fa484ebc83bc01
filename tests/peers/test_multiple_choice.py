"""Logits of raw questions, choices and contexts beside transformers' ForMultipleChoice classes."""

import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import list_families

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore"),  # the other library's own
]

QUESTIONS = ["a b", "c", "d e"]
CHOICES = [["a", "b"], ["c d", "a b ab", "e"], ["d", "e", "f g", "p"]]
CONTEXTS = ["p o n", "a b c d e f", "c"]
FAMILIES = [
    family
    for family in list_families()
    if hasattr(transformers, f"{family.class_prefix}ForMultipleChoice")  # not all have the head
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("contexts", [None, CONTEXTS], ids=["questions", "contexts"])
def test_logits_of_texts_are_those_of_transformers(tiny, family, contexts, tmp_path):
    backbone = tiny.backbone(
        family, pooler=ez.MultipleChoice.get_family_head(family).pooled, max_sequence_length=48
    )
    preprocessor = ez.MultipleChoicePreprocessor(tiny.tokenizer(family))
    here = tiny.randomize_weights(ez.MultipleChoice(backbone, preprocessor))
    here.save_to_preset(tmp_path)
    there, report = transformers.AutoModelForMultipleChoice.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values()), report
    there = there.eval().double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    x = (QUESTIONS, CHOICES) if contexts is None else (QUESTIONS, CHOICES, contexts)
    for i, logits in enumerate(here.predict(x, verbose=0)):
        first, second = [QUESTIONS[i]] * len(CHOICES[i]), CHOICES[i]
        if contexts is not None:
            second = [f"{QUESTIONS[i]} {choice}" for choice in second]
            first = [contexts[i]] * len(second)
        batch = tokenizer(first, second, padding=True, return_tensors="pt")
        with torch.inference_mode():
            expected = there(**{name: value[None] for name, value in batch.items()}).logits[0]
        print(f"{family.name}: {np.abs(logits - expected.numpy()).max():.1e}")
        np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=1e-5)
