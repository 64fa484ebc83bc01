"""Backbones: numbers of transformers, Keras's own features, refusals."""

import keras
import numpy as np
import pytest
from keras import ops

import encoder_zoo as ez
from encoder_zoo.encoders import gradients
from encoder_zoo.encoders.core import Embeddings, EncoderBlock, SelfAttention
from encoder_zoo.encoders.layers import Dropout, LayerNorm

SIZES = {
    "vocabulary_size": 30,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 20,
}
BACKBONES = [ez.BertBackbone, ez.RobertaBackbone]
INPUTS = {
    "token_ids": np.array([[2, 7, 9, 3], [2, 8, 3, 0]]),
    "padding_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]]),
}


def numbers(outputs):
    return {name: ops.convert_to_numpy(values) for name, values in outputs.items()}


@pytest.mark.slow(except_for="^RobertaBackbone")
@pytest.mark.parametrize("cls", BACKBONES)
def test_a_saved_model_is_the_same_with_every_argument_away_from_its_default(cls, tmp_path):
    arguments = {
        **SIZES,
        "dropout": 0.2,
        "attention_dropout": 0.3,
        "activation": "relu",
        "layer_norm_epsilon": 1e-3,
        "max_sequence_length": 17,
        "num_segments": 3,
        "pooler": False,
    }
    if cls is ez.RobertaBackbone:
        arguments["pad_token_id"] = 3
    backbone = cls(**arguments)
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert {k: loaded.get_config()[k] for k in arguments} == arguments
    np.testing.assert_array_equal(
        numbers(loaded(INPUTS))["sequence_output"], numbers(backbone(INPUTS))["sequence_output"]
    )


@pytest.mark.matrix
@pytest.mark.slow
def test_summary_counts_the_parameters_of_the_paper(capsys):
    """BERT base has 110 million parameters (Devlin et al. 2019, section 3)."""
    backbone = ez.BertBackbone(
        vocabulary_size=30522, num_layers=12, num_heads=12, hidden_dim=768, intermediate_dim=3072
    )
    assert backbone.count_params() == 109_482_240
    backbone.summary()
    shown = capsys.readouterr().out
    assert (
        "109,482,240" in shown and shown.count("(None, None, 768)") == 1 + 12 and "?" not in shown
    )


@pytest.mark.parametrize("cls", BACKBONES)
def test_a_frozen_backbone_has_nothing_to_train(cls):
    backbone = cls(**SIZES)
    backbone.trainable = False
    assert backbone.trainable_variables == []


@pytest.mark.slow
@pytest.mark.parametrize("cls", BACKBONES)
def test_lora_trains_the_attention_updates_alone_and_starts_from_the_same_numbers(cls, tmp_path):
    backbone = cls(**SIZES)
    before = numbers(backbone(INPUTS))["sequence_output"]
    backbone.enable_lora(rank=2)
    # Two matrices of rank 2 for query and value in each of two blocks.
    assert sum(int(np.prod(v.shape)) for v in backbone.trainable_variables) == (
        2 * 2 * (8 * 2 + 2 * 8)
    )
    assert all("query" in v.path or "value" in v.path for v in backbone.trainable_variables)
    np.testing.assert_allclose(numbers(backbone(INPUTS))["sequence_output"], before, atol=1e-6)

    for variable in backbone.trainable_variables:
        variable.assign(variable + 0.1)
    changed = numbers(backbone(INPUTS))["sequence_output"]
    assert np.abs(changed - before).max() > 1e-3
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numbers(loaded(INPUTS))["sequence_output"], changed, atol=1e-6)


def test_int8_quantization_is_close():
    backbone = ez.BertBackbone(**SIZES)
    before = numbers(backbone(INPUTS))
    backbone.quantize("int8")
    assert any(v.dtype == "int8" for v in backbone.weights)
    after = numbers(backbone(INPUTS))
    for name in before:
        np.testing.assert_allclose(after[name], before[name], atol=0.1)


@pytest.mark.parametrize("cls", BACKBONES)
def test_attention_probabilities_sum_to_one_and_leave_padding_out(cls):
    probabilities = ops.convert_to_numpy(cls(**SIZES).attention_probabilities(INPUTS))
    assert probabilities.shape == (2, 2, 2, 4, 4)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, atol=1e-6)
    assert probabilities[1, ..., 3].max() == 0.0


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match=r"hidden_dim is 8.*num_heads=3"):
        ez.BertBackbone(**{**SIZES, "num_heads": 3})


@pytest.mark.parametrize("cls", BACKBONES)
def test_too_long_a_sequence_is_refused(cls):
    backbone = cls(**SIZES, max_sequence_length=5)
    backbone({"token_ids": np.ones((1, 5), "int32")})
    with pytest.raises(ValueError, match="6.* 5.*sequence_length"):
        backbone({"token_ids": np.ones((1, 6), "int32")})


def test_an_unknown_activation_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'gleu'.*gelu, gelu_new"):
        ez.BertBackbone(**SIZES, activation="gleu")


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_gradient_checkpointing_changes_nothing_but_memory(dropout):
    rng = np.random.default_rng(0)
    inputs = {"token_ids": rng.integers(5, 50, (8, 6))}
    labels = rng.integers(0, 2, 8)

    def losses(checkpointing):
        keras.utils.set_random_seed(0)
        backbone = ez.BertBackbone(50, 2, 2, 16, 32, dropout=dropout, attention_dropout=dropout)
        if checkpointing:
            backbone.enable_gradient_checkpointing()
        classifier = ez.SequenceClassifier(backbone, num_classes=2)
        classifier.compile(optimizer=keras.optimizers.SGD(0.5))
        return classifier.fit(inputs, labels, epochs=5, verbose=0).history["loss"]

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-5)


@pytest.mark.parametrize(
    "formula, shapes",
    [
        (gradients.gelu, [(3, 4)]),
        (gradients.layer_norm(1e-3), [(3, 4), (4,), (4,)]),
        (gradients.layer_norm(1e-3), [(2, 3, 4), (4,), (4,)]),
        (gradients.matmul, [(2, 3, 4, 5), (2, 3, 5, 6)]),
        (gradients.matmul_transposed, [(2, 3, 4, 5), (2, 3, 6, 5)]),
        (gradients.softmax, [(2, 3, 4, 5)]),
    ],
)
def test_gradients_written_out_are_those_that_tensorflow_derives(formula, shapes):
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    tensors = [tf.constant(rng.normal(size=shape), "float32") for shape in shapes]
    found = []
    for training in (True, False):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = formula(*tensors, training=training)
            total = tf.reduce_sum(tf.sin(3 * y))  # its gradient differs from element to element
        found.append(tape.gradient(total, tensors))
    for own, derived in zip(*found, strict=True):
        np.testing.assert_allclose(own, derived, atol=1e-5)


@pytest.mark.parametrize("shape", [(1000, 33), (40, 5, 20, 20)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_drops_the_share_and_keeps_the_sum(shape, dtype):
    dropout = Dropout(0.1, dtype=dtype)
    first, second = (
        ops.convert_to_numpy(ops.cast(dropout(ops.ones(shape, dtype), training=True), "float32"))
        for _ in range(2)
    )
    assert abs((first == 0).mean() - 0.1) < 0.01
    assert abs((first[:, 0] == 0).mean() - 0.1) < 0.05
    np.testing.assert_allclose(np.unique(first), [0, 1 / 0.9], rtol=4e-3)
    # Neither the second draw nor the other half of the same numbers says anything of the first.
    half = shape[1] // 2
    assert abs(((first == 0) & (second == 0)).mean() - 0.01) < 0.004
    assert abs(((first == 0)[:, :half] & (first == 0)[:, -half:]).mean() - 0.01) < 0.004
    assert ops.convert_to_numpy(dropout(ops.ones((2, 2)))).min() == 1


@pytest.mark.parametrize("center", [True, False])
def test_layer_norm_is_that_of_keras(center):
    x = np.random.default_rng(0).normal(3, 5, (6, 7)).astype("float32")
    ours, theirs = (
        cls(epsilon=1e-3, center=center) for cls in (LayerNorm, keras.layers.LayerNormalization)
    )
    for layer in (ours, theirs):
        layer.build(x.shape)
        layer.set_weights([w + np.arange(7) for w in layer.get_weights()])
    for training in (True, False):
        np.testing.assert_allclose(ours(x, training=training), theirs(x), atol=1e-5)


def test_dropout_before_a_residual_is_differentiated_in_both():
    tf = pytest.importorskip("tensorflow")
    x, update, dropout = tf.ones((50, 8)), 2 * tf.ones((50, 8)), Dropout(0.5)
    with tf.GradientTape() as tape:
        tape.watch([x, update])
        y = dropout(update, residual=x, training=True)
    of_x, of_update = tape.gradient(y, [x, update])
    np.testing.assert_array_equal(of_x, 1)
    np.testing.assert_array_equal(of_update, (y - 1) / 2)


@pytest.mark.slow
def test_a_step_of_training_is_a_small_graph():
    """Every operation is traced: 707 in a block's training step took seconds for six blocks."""
    tf = pytest.importorskip("tensorflow")
    [block] = ez.BertBackbone(30, 1, num_heads=2, hidden_dim=8, intermediate_dim=16).blocks

    @tf.function
    def step(x, mask):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(block(x, mask, training=True))
        return tape.gradient(loss, [x, *(v.value for v in block.trainable_variables)])

    x = tf.TensorSpec((None, None, 8))
    graph = step.get_concrete_function(x, tf.TensorSpec((None, 1, 1, None), tf.bool)).graph
    assert len(graph.get_operations()) <= 440


@keras.saving.register_keras_serializable(package="tests")
class SharedBlockBackbone(ez.BertBackbone):
    """As ALBERT: one block at every place, behind narrower embeddings; and a norm at the end."""

    def __init__(self, *args, embedding_dim=4, **kwargs):
        super().__init__(*args, **kwargs)
        self.embedding_dim = embedding_dim

    def make_embeddings(self):
        sizes = (self.vocabulary_size, self.embedding_dim, 0, 0)
        return Embeddings(*sizes, output_dim=self.hidden_dim, name="embeddings")

    def make_block(self, i):
        return self.blocks[0] if i else super().make_block(0)

    def make_final_layer(self):
        return keras.layers.LayerNormalization(name="final_norm")


class RelativeAttention(SelfAttention):
    """Adds what a table, handed from outside, says of the distance between two tokens."""

    def scores(self, query, key, training=None, relative=None):
        length = ops.shape(query)[2]
        distance = ops.arange(length)[:, None] - ops.arange(length)[None]
        bias = ops.take(relative, distance + 4, axis=0)  # (L, L, H)
        return super().scores(query, key, training=training) + ops.transpose(bias, (2, 0, 1))


class RelativeBlock(EncoderBlock):
    def make_attention(self):
        return RelativeAttention(self.hidden_dim, self.num_heads, name="attention")


class RelativeBackbone(ez.BertBackbone):
    """As DeBERTa: all blocks read one table of relative positions; every other one looks back."""

    def build(self, input_shape=None):
        super().build(input_shape)
        self.relative = self.add_weight(name="relative", shape=(9, self.num_heads))

    def make_block(self, i):
        sizes = (self.hidden_dim, self.num_heads, self.intermediate_dim, self.dropout)
        return RelativeBlock(*sizes, name=f"block_{i}")

    def block_contexts(self, inputs):
        contexts = super().block_contexts(inputs)
        back = ops.tril(ops.ones((4, 4), "bool"))
        masks = [
            c["attention_mask"] & back if i % 2 else c["attention_mask"]
            for i, c in enumerate(contexts)
        ]
        relative = ops.convert_to_tensor(self.relative)
        return [{"attention_mask": mask, "relative": relative} for mask in masks]


@pytest.mark.slow(except_for=r"^SharedBlockBackbone$")
@pytest.mark.parametrize("cls", [*BACKBONES, SharedBlockBackbone])
def test_hidden_states_are_what_goes_into_the_blocks_and_comes_out(cls):
    backbone = cls(**{**SIZES, "num_layers": 3})
    outputs = backbone(INPUTS, return_hidden_states=True)
    states = [ops.convert_to_numpy(state) for state in outputs["hidden_states"]]
    x = backbone.embeddings(INPUTS["token_ids"], padding_mask=INPUTS["padding_mask"])
    assert len(states) == 4
    for block, state, context in zip(
        backbone.blocks, states, backbone.block_contexts(INPUTS), strict=False
    ):
        np.testing.assert_allclose(state, x, atol=1e-6)
        x = block(x, **context)
    last = x if backbone.final_layer is None else backbone.final_layer(x)
    np.testing.assert_allclose(states[-1], last, atol=1e-6)
    np.testing.assert_array_equal(states[-1], outputs["sequence_output"])
    assert "hidden_states" not in backbone(INPUTS)


@pytest.mark.slow
def test_one_block_at_every_place_behind_narrower_embeddings(tmp_path):
    backbone = SharedBlockBackbone(**SIZES, embedding_dim=6)
    assert backbone.blocks[0] is backbone.blocks[1]
    block = sum(int(np.prod(v.shape)) for v in backbone.blocks[0].weights)
    # Tokens and their norm, the projection, one block, the norm at the end, the pooler.
    assert backbone.count_params() == 30 * 6 + 12 + (6 + 1) * 8 + block + 16 + (8 + 1) * 8
    backbone({"token_ids": np.ones((1, 600), "int32")})  # no table of positions, no limit
    backbone.enable_lora(rank=2)
    assert sum("lora" in v.path for v in backbone.trainable_variables) == 4
    backbone.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.embedding_dim == 6
    np.testing.assert_allclose(
        numbers(loaded(INPUTS))["sequence_output"],
        numbers(backbone(INPUTS))["sequence_output"],
        atol=1e-6,
    )


@pytest.mark.slow
def test_what_all_blocks_are_given_is_differentiated_also_with_gradient_checkpointing():
    tf = pytest.importorskip("tensorflow")
    gradients_of = []
    for checkpointing in (False, True):
        keras.utils.set_random_seed(0)
        backbone = RelativeBackbone(**{**SIZES, "num_layers": 3}, dropout=0.2)
        if checkpointing:
            backbone.enable_gradient_checkpointing()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(backbone(INPUTS, training=True)["pooled_output"] ** 2)
        found = tape.gradient(loss, [v.value for v in backbone.trainable_variables])
        gradients_of.append([tf.convert_to_tensor(gradient).numpy() for gradient in found])
        table = [v.path for v in backbone.trainable_variables].index(backbone.relative.path)
    assert np.abs(gradients_of[0][table]).max() > 1e-5
    for plain, recompute_block in zip(*gradients_of, strict=True):
        np.testing.assert_allclose(recompute_block, plain, atol=1e-5)


def test_each_block_has_its_own_mask():
    backbone = RelativeBackbone(**SIZES)
    probabilities = ops.convert_to_numpy(backbone.attention_probabilities(INPUTS))
    assert (probabilities[:, 0] > 0)[0].all()
    assert not np.triu(probabilities[0, 1], 1).any()
    relative = backbone.relative
    relative.assign(np.where(np.arange(9)[:, None] == 5, 50.0, 0.0) * np.ones((1, 2)))
    previous = ops.convert_to_numpy(backbone.attention_probabilities(INPUTS))[0, :, :, 1:]
    np.testing.assert_allclose(np.diagonal(previous, axis1=-2, axis2=-1), 1, atol=1e-5)
