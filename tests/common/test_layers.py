"""The layers inside a layer, and what each has of its own."""

import keras
import numpy as np
import pytest

from encoder_zoo.common.layers import (
    get_frozen_kernel,
    list_direct_weights,
    list_innermost_layers,
    list_layers,
)
from encoder_zoo.encoders import list_families


def nested():
    block = keras.Sequential([keras.layers.Dense(1, name="a"), keras.layers.Dropout(0.1, name="b")])
    return keras.Sequential([block, keras.layers.Dense(1, name="c")], name="outer")


def test_layers_in():
    names = [layer.name for layer in list_layers(nested())]
    assert names[0] == "outer" and {"a", "b", "c"} < set(names)


@pytest.mark.slow(except_for=r"^modernbert$")
@pytest.mark.parametrize("family", list_families(), ids=lambda family: family.name)
def test_layers_are_in_the_order_of_keras(family, tiny):
    """Files of Keras number them so."""
    model = tiny.backbone(family)
    assert [*map(id, list_layers(model))] == [*map(id, model._flatten_layers())]
    for layer in list_layers(model):
        own = [*layer._trainable_variables, *layer._non_trainable_variables]
        assert [*map(id, list_direct_weights(layer))] == [*map(id, own)]


def test_innermost_layers():
    names = sorted(layer.name for layer in list_innermost_layers(nested()))
    assert names == ["a", "b", "c"]


def test_own_weights():
    model = nested()
    model(np.ones((4, 2)))
    assert list_direct_weights(model) == []
    assert [v.name for v in list_direct_weights(model.layers[1])] == ["kernel", "bias"]


def test_frozen_kernel():
    dense = keras.layers.Dense(2)
    dense.build((None, 3))
    before = dense.kernel
    dense.enable_lora(1)
    assert get_frozen_kernel(dense) is before
    assert dense.kernel is not before


def test_frozen_embeddings():
    embedding = keras.layers.Embedding(3, 2)
    embedding.build()
    before = embedding.embeddings
    embedding.enable_lora(1)
    assert get_frozen_kernel(embedding) is before
