"""What single families have that others have not."""

import json

import numpy as np
from keras import ops

import encoder_zoo as ez


def table(backbone) -> np.ndarray:
    return ops.convert_to_numpy(backbone.embeddings.position_embedding.embeddings)


# -- DistilBERT --------------------------------------------------------------------------------


def test_sinusoidal_positions_stay_as_they_are_and_are_saved(tiny, tmp_path):
    family = ez.DistilBertBackbone.family
    classifier = tiny.task(family, "SequenceClassifier", sinusoidal_positions=True)
    before = table(classifier.backbone)
    classifier.fit(["a b", "c"], ["O", "B-X"], verbose=0)
    np.testing.assert_array_equal(table(classifier.backbone), before)
    classifier.save_to_preset(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["sinusoidal_pos_embds"] is True
    loaded = ez.Backbone.from_preset(tmp_path)
    np.testing.assert_array_equal(table(loaded), before)
    assert not loaded.embeddings.position_embedding.trainable


def test_sinusoidal_positions_are_waves_of_growing_length():
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 4, "intermediate_dim": 4}
    backbone = ez.DistilBertBackbone(9, **sizes, sinusoidal_positions=True)
    positions = np.arange(512)
    waves = [positions, positions / 100]  # 10000 to the powers 0 and 2/4
    expected = np.stack([f(wave) for wave in waves for f in (np.sin, np.cos)], axis=1)
    np.testing.assert_allclose(table(backbone), expected, atol=1e-6)


def test_heads_drop_what_distilberts_code_does_where_the_configuration_is_silent(tiny):
    family = ez.DistilBertBackbone.family
    shares = {
        name: tiny.task(family, name, dropout=0.4).dropout
        for name in ("SequenceClassifier", "TokenClassifier", "SpanQA")
    }
    assert shares == {"SequenceClassifier": 0.2, "TokenClassifier": 0.4, "SpanQA": 0.1}
