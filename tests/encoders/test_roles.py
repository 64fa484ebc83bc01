"""What decides by the role of a layer is the same whatever users call their models and layers."""

import re

import keras
import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.encoders.core import EncoderBlock
from encoder_zoo.encoders.training import choose_layers, list_undecayed
from encoder_zoo.presets.formats.checkpoint import map_backbone_layers, map_weights

# Every name that a rule of this package, of Keras or of transformers mentions.
NAMES = [
    "bias_detector", "bias", "norm", "layer_norm", "LayerNorm", "gamma", "beta", "kernel",
    "embeddings", "token_embedding", "position_embedding", "pooler", "pooler_dense", "head",
    "output", "intermediate", "attention", "query", "value", "gate", "lora", "lora_kernel_a",
    "block_0", "block_1", "blocks", "classifier", "terms", "relative_bias", "transitions",
]  # fmt: skip
NEUTRAL = "model"
# transformers' Trainer: `get_decay_parameter_names`, whose LayerNorm modules are known by class;
# ESM's `emb_layer_norm_after` is the only one that none of its patterns names.
FORBIDDEN = r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)|layer_norm_after"


class OwnBlock(EncoderBlock):
    """A user's block with one more dense layer and one more LayerNorm, of any names."""

    names = (NEUTRAL, NEUTRAL)

    def build(self, input_shape=None):
        super().build(input_shape)
        first, second = self.names
        self.extra_dense = keras.layers.Dense(self.hidden_dim, name=first)
        self.extra_norm = keras.layers.LayerNormalization(name=second)
        self.extra_dense.build((None, self.hidden_dim))
        self.extra_norm.build((None, self.hidden_dim))

    def call(self, x, *args, **options):
        found = super().call(x, *args, **options)
        return self.extra_norm(self.extra_dense(found))


def made(name, layers=(NEUTRAL, NEUTRAL)):
    """A classifier with an own block and an own head, named and with named layers."""

    class Named(OwnBlock):
        names = layers

    class Own(ez.BertBackbone):
        def make_block(self, i):
            return super().make_block(i, Named)

    sizes = {"num_layers": 3, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = Own(30, **sizes, dropout=0.0, attention_dropout=0.0, name=name)
    first, second = layers
    head = keras.Sequential(
        [
            keras.layers.Dense(4, name=f"{first}_1"),
            keras.layers.LayerNormalization(name=f"{second}_2"),
            keras.layers.Dense(2, name=first),
        ],
        name=second,
    )
    return ez.SequenceClassifier(backbone, num_classes=2, head=head, name=name)


def behaviour(task):
    """What the rules decide, by the positions of the weights."""
    task.compile(learning_rate=0.1, weight_decay=0.5, layer_decay=0.5, frozen_layers=1)
    optimizer = task.optimizer
    optimizer.build(task.trainable_variables)
    for weight in task.weights:
        weight.assign(np.ones(weight.shape))
    # Gradients of 0: what is left of each 1 are the decay and the rate of that weight.
    optimizer.apply([keras.ops.zeros(v.shape) for v in task.trainable_variables])
    steps = [round(float(np.asarray(weight).ravel()[0]), 5) for weight in task.weights]
    frozen = [weight.trainable for weight in task.weights]
    task.compile(frozen_layers=0)
    chosen = {
        names: [
            list(task._flatten_layers()).index(layer)
            for layer in choose_layers(task.backbone, names)
        ]
        for names in (None, ("query",), ("output",), ("extra",), ("intermediate", "value"))
    }
    mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
    layout = ez.Backbone.layout_map(mesh, vocabulary_size=30)
    # Inside of a block the layout goes by the names that its author gives to the parts.
    own = {
        id(w) for b in task.backbone.blocks for w in (*b.extra_dense.weights, *b.extra_norm.weights)
    }
    found = [layout[w.path] for w in task.backbone.weights if id(w) not in own]
    axes = [one and one.axes for one in found]
    task.enable_lora(2)
    trained = [weight.trainable for weight in task.weights]
    return {"steps": steps, "frozen": frozen, "lora": chosen, "layout": axes, "trained": trained}


@pytest.fixture(scope="module")
def neutral():
    found = behaviour(made(NEUTRAL))
    assert len(set(found["steps"])) == 4  # the decay of three layers and none
    assert len(set(map(str, found["layout"]))) > 3
    return found


@pytest.mark.slow(except_for=r"^pooler$")
@pytest.mark.parametrize("name", NAMES)
def test_names_of_models_and_layers_decide_nothing(name, neutral):
    assert behaviour(made(name, (name, NAMES[NAMES.index(name) - 1]))) == neutral


@pytest.mark.slow(except_for=r"^bart-TokenClassifier$")
@pytest.mark.parametrize("suffix", ["SequenceClassifier", "TokenClassifier", "MaskedLM", "SpanQA"])
@pytest.mark.parametrize("name", FAMILIES)
def test_weight_decay_is_that_of_transformers(name, suffix, tiny):
    """All weights but biases and those of LayerNorm, by their names in transformers."""
    family = get_family(name)
    if not getattr(ez, suffix).supports(family):
        pytest.skip("no such head")
    task = tiny.task(family, suffix)
    undecayed = {id(weight) for weight in list_undecayed(task)}
    named = {
        **map_weights(task.backbone, map_backbone_layers(task.backbone)),
        **map_weights(task, task.head_record.tensors),
    }
    wrong = {
        name: id(weight) in undecayed
        for name, (weight, _) in named.items()
        if (id(weight) in undecayed) != bool(re.search(FORBIDDEN, name.lower()))
    }
    assert len(named) > 15 and not wrong
    assert {id(weight) for weight, _ in named.values()} >= {id(w) for w in task.trainable_weights}


def test_weights_of_own_layers_follow_their_attributes():
    class Own(keras.layers.Layer):
        without_weight_decay = ("offset",)

        def build(self, input_shape):
            self.scale = self.add_weight((2,), name="bias")
            self.query_bias = self.add_weight((2,), name="scale")
            self.biases = [self.add_weight((2,), name=f"w{i}") for i in range(2)]
            self.offset = self.add_weight((2,), name="offset")
            self.inner = keras.layers.Dense(2, name="gamma")
            self.inner.build((None, 2))
            self.rms = keras.layers.RMSNormalization(name="dense")
            self.rms.build((None, 2))
            self.lstm = keras.layers.LSTM(2)
            self.lstm.build((None, None, 2))

    layer = Own()
    layer.build((None, 2))
    right = [
        layer.query_bias, *layer.biases, layer.offset, layer.inner.bias, layer.rms.scale,
        layer.lstm.cell.bias,
    ]  # fmt: skip
    assert {id(weight) for weight in list_undecayed(layer)} == {id(weight) for weight in right}


def test_transitions_do_not_decay(tiny):
    task = ez.TokenClassifier(
        tiny.backbone(get_family("bert")), labels=["O", "B-X", "I-X"], crf=True
    )
    undecayed = {id(weight) for weight in list_undecayed(task)}
    assert {id(weight) for weight in task.transitions.weights} <= undecayed


@pytest.mark.parametrize("name", FAMILIES)
def test_targets_of_updates_are_the_names_of_layers(name, tiny):
    """In families of this package the attribute of a layer has its name."""
    backbone = tiny.backbone(get_family(name))
    dense = keras.layers.Dense | keras.layers.EinsumDense
    blocks = dict.fromkeys(backbone.blocks)
    layers = [one for block in blocks for one in block._flatten_layers() if isinstance(one, dense)]
    for target in {layer.name for layer in layers}:
        named = {one for one in layers if one.name == target}
        assert set(choose_layers(backbone, [target])) == named
