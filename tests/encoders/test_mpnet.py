"""MPNet's distances, and the tokens between two texts."""

import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders.families.mpnet import compute_distance_buckets


def test_buckets_are_those_of_transformers():
    """The first distance of each bucket from 8 on, by MPNetEncoder.relative_position_bucket."""
    first = np.flatnonzero(np.diff(compute_distance_buckets())) + 1
    assert first.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]


@pytest.mark.slow
def test_two_end_tokens_separate_the_texts_of_a_pair(tiny):
    family = ez.MPNetBackbone.family
    classifier = tiny.task(family, "SequenceClassifier")
    packed = classifier.preprocessor((["a b"], ["c"]))
    assert np.array(packed["token_ids"]).tolist() == [[0, 5, 6, 2, 2, 7, 2]]
    assert "segment_ids" not in packed
    assert classifier.preprocessor.tokenizer.kind.lstrip_mask
