"""Every fast form of attention computes what the core's formula does."""

import keras
import numpy as np
import pytest
from keras import ops
from processes import run

import encoder_zoo as ez
from encoder_zoo.encoders import get_family
from encoder_zoo.encoders.attention_masks import make_attention_mask
from encoder_zoo.encoders.core import Encoder, EncoderBlock, SelfAttention
from encoder_zoo.encoders.kernels import long_attention
from encoder_zoo.encoders.kernels.attention import (
    FastAttention,
    attend_fast,
    compute_fused_attention,
)
from encoder_zoo.encoders.positions import compute_rotation
from encoder_zoo.testing import tiny

REAL = np.arange(21) < np.array([[21], [9]])
STARTS = np.array([[0, 5, 6], [0, 3, 21]])


@pytest.fixture
def layer():
    layer = FastAttention(hidden_dim=8, num_heads=2)
    layer.build()
    return layer


@pytest.fixture
def tokens():
    return np.random.default_rng(0).normal(size=(3, 2, 21, 2, 4)).astype("float32")


def formula(tokens, mask):
    """Vaswani et al. 2017, equation 1, in double precision."""
    query, key, value = (np.swapaxes(t.astype(float), 1, 2) for t in tokens)
    scores = query @ np.swapaxes(key, 2, 3) / 2
    weights = np.where(mask, np.exp(scores), 0)
    return np.swapaxes(weights / weights.sum(-1, keepdims=True) @ value, 1, 2)


@pytest.mark.parametrize("kind", [SelfAttention, FastAttention])
def test_the_core_is_the_formula(kind, tokens):
    layer = kind(hidden_dim=8, num_heads=2)
    layer.build()
    mask = ops.convert_to_numpy(make_attention_mask(REAL).make_matrix())
    heads = (np.swapaxes(t, 1, 2) for t in tokens)
    mixed, probabilities = layer.attend(*heads, mask)
    np.testing.assert_allclose(np.swapaxes(mixed, 1, 2), formula(tokens, mask), atol=1e-5)
    np.testing.assert_allclose(ops.sum(probabilities, axis=-1), 1, rtol=1e-5)


@pytest.mark.slow(only="^(in parts-packed-None|in parts-texts-None)")
@pytest.mark.parametrize("max_distance", [None, 3])
@pytest.mark.parametrize("starts", [None, STARTS], ids=["texts", "packed"])
@pytest.mark.parametrize("short", [512, 1], ids=["at once", "in parts"])
def test_every_form_is_the_formula(layer, tokens, monkeypatch, max_distance, starts, short):
    monkeypatch.setattr(long_attention, "SHORT_LENGTH", short)
    monkeypatch.setattr(long_attention, "SMALLEST_BLOCK", 1)
    monkeypatch.setattr(long_attention, "SMALLEST_CHUNK", 4)
    monkeypatch.setattr(long_attention, "CHUNK_NUMBERS", 0)
    mask = make_attention_mask(REAL, starts, max_distance)
    mixed = ops.convert_to_numpy(attend_fast(layer, *tokens, mask))
    expected = formula(tokens, ops.convert_to_numpy(mask.make_matrix()))
    np.testing.assert_allclose(mixed[REAL], expected[REAL], atol=1e-5)


@pytest.mark.slow(only=r"^(in parts)$")
@pytest.mark.parametrize("short", [512, 1], ids=["at once", "in parts"])
def test_texts_without_padding_need_no_mask(layer, tokens, monkeypatch, short):
    monkeypatch.setattr(long_attention, "SHORT_LENGTH", short)
    monkeypatch.setattr(long_attention, "CHUNK_NUMBERS", 0)
    mask = make_attention_mask(None)
    assert mask.make_matrix() is None
    expected = formula(tokens, True)
    np.testing.assert_allclose(attend_fast(layer, *tokens, mask), expected, atol=1e-5)


@pytest.mark.slow(except_for=r"^modernbert$")
@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "deberta-v2", "bart", "xlnet"])
def test_no_padding_mask_means_that_all_tokens_are_real(name):
    backbone = tiny.backbone(get_family(name))
    ids = {"token_ids": np.random.default_rng(0).integers(5, 20, (2, 7))}
    expected = backbone({**ids, "padding_mask": np.ones((2, 7), bool)})["sequence_output"]
    np.testing.assert_allclose(backbone(ids)["sequence_output"], expected, atol=1e-5)


def test_the_fused_kernel_is_the_formula(tokens):
    mask = ops.convert_to_numpy(make_attention_mask(REAL).make_matrix())
    mixed = compute_fused_attention(*tokens, mask)
    np.testing.assert_allclose(mixed, formula(tokens, mask), atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"use_bias": False}, {"rotary": True}, {"fused_qkv": True}, {"gated": True}],
    ids=lambda options: next(iter(options)),
)
def test_options_of_a_block(options):

    x = np.random.default_rng(0).normal(size=(1, 3, 8)).astype("float32")
    turns = compute_rotation(np.arange(3)[None], 10_000.0, 4)
    plain, block = EncoderBlock(8, 2, 16), EncoderBlock(8, 2, 16, **options)
    for each in (plain, block):
        each.build()
    shapes = [{v.path.split("/", 1)[1]: v.shape for v in each.weights} for each in (plain, block)]
    match options:
        case {"use_bias": False}:
            expected = {n: s for n, s in shapes[0].items() if not n.endswith(("bias", "beta"))}
        case {"gated": True}:
            expected = {**shapes[0], "intermediate/kernel": (8, 32), "intermediate/bias": (32,)}
        case {"fused_qkv": True}:
            others = [n for n in shapes[0] if n.split("/")[1] in ("query", "key", "value")]
            expected = {n: s for n, s in shapes[0].items() if n not in others}
            expected["attention/query_key_value/kernel"] = (8, 24)
            expected["attention/query_key_value/bias"] = (24,)
        case _:
            expected = shapes[0]
    assert shapes[1] == expected
    assert np.isfinite(ops.convert_to_numpy(block(x, rotation=turns))).all()


def test_a_gated_net_multiplies_its_halves():

    block = EncoderBlock(4, 2, 3, activation="relu", gated=True)
    block.build()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    kernel = ops.convert_to_numpy(block.intermediate_dense.kernel)
    expected = np.maximum(x @ kernel[:, :3], 0) * (x @ kernel[:, 3:])
    np.testing.assert_allclose(block.compute_intermediate(x), expected, atol=1e-6)


def test_fused_projections_are_queries_keys_and_values_side_by_side(layer):
    fused = FastAttention(hidden_dim=8, num_heads=2, fused_qkv=True)
    fused.build()
    kernels = [ops.convert_to_numpy(dense.kernel) for dense in layer.projection_layers]
    fused.query_key_value_dense.kernel.assign(np.concatenate(kernels, axis=1))
    fused.output_dense.kernel.assign(layer.output_dense.kernel)
    x = np.random.default_rng(0).normal(size=(1, 3, 8)).astype("float32")
    np.testing.assert_allclose(fused(x), layer(x), atol=1e-6)


def test_rotary_heads_have_pairs():
    with pytest.raises(ValueError, match="rotary.*hidden_dim=6, num_hea"):
        ez.ModernBertBackbone(30, 1, num_heads=2, hidden_dim=6, intermediate_dim=8)


@pytest.mark.slow(except_for="^matrix-False")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("max_sequence_length", [32, 1024], ids=["matrix", "long"])
def test_a_backbone_is_the_encoder_with_kernels(training, max_sequence_length):
    models = []
    for cls in (Encoder, ez.BertBackbone):
        keras.utils.set_random_seed(1)
        # Without dropout, which PyTorch draws from one generator for all models.
        sizes = {"max_sequence_length": max_sequence_length, "dropout": 0.0}
        sizes["attention_dropout"] = 0.0
        models.append(cls(30, 2, 2, 8, 16, **sizes))
        if not models[-1].built:
            models[-1].build()
    rng = np.random.default_rng(0)
    batch = {"token_ids": rng.integers(5, 30, (2, 21)), "padding_mask": REAL, "text_starts": STARTS}
    for inputs in (batch, {name: batch[name] for name in ("token_ids", "padding_mask")}):
        plain, fast = (model(inputs, training=training) for model in models)
        for name, values in plain.items():
            found, expected = map(ops.convert_to_numpy, (fast[name], values))
            np.testing.assert_allclose(found, expected, atol=1e-5)
    assert {type(block.attention) for block in models[0].blocks} == {SelfAttention}
    assert {type(block.attention) for block in models[1].blocks} == {FastAttention}


def test_kernels_are_for_plain_scores_alone():
    class Own(FastAttention):
        def scores(self, query, key, training=None, **context):
            return -super().scores(query, key, training=training)

    class Projected(FastAttention):
        def project(self, x, **context):
            return super().project(2 * x)

    assert Projected.has_plain_scores and not Own.has_plain_scores
    assert not type("Later", (Own,), {}).has_plain_scores


NOISE_SHAPE = """
import numpy as np
from keras import ops
from encoder_zoo.encoders.layers import Dropout

x = np.ones((64, 8), "float32")
dropped = ops.convert_to_numpy(Dropout(0.5, noise_shape=(64, 1))(x, training=True))
assert set(dropped[:, 0].tolist()) == {0.0, 2.0}
np.testing.assert_array_equal(dropped, np.repeat(dropped[:, :1], 8, axis=1))
added = ops.convert_to_numpy(Dropout(0.5, noise_shape=(64, 1))(x, training=True, residual=x))
assert set(added[:, 0].tolist()) == {1.0, 3.0}
"""


def test_dropout_drops_rows_together_with_a_noise_shape():
    exec(NOISE_SHAPE, {})


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_so_it_does_on_other_backends(backend):
    run(NOISE_SHAPE, KERAS_BACKEND=backend)


@pytest.mark.slow
def test_calls_that_are_not_compiled_keep_nothing_on_jax():
    """JAX's own function of attention keeps its traces of every one."""
    code = """
import gc
import numpy as np
from encoder_zoo.encoders import get_family
from encoder_zoo.testing import tiny

backbone = tiny.backbone(get_family("bert"))
counts = []
for _ in range(3):
    for _ in range(20):
        backbone({"token_ids": np.ones((1, 3), "int32")})
    gc.collect()
    counts.append(len(gc.get_objects()))
assert counts[2] - counts[1] < 20, counts
"""
    run(code, KERAS_BACKEND="jax")
