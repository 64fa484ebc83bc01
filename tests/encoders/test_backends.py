"""Every Keras backend trains to the same losses, with fused attention and with checkpointing."""

import numpy as np
import pytest
from processes import printed, run

SCRIPT = """
import sys
import keras
import numpy as np
import encoder_zoo as ez
from encoder_zoo.encoders.attention_masks import make_attention_mask
from encoder_zoo.encoders.kernels import long_attention


def make_classifier(dropout, **compiled):
    keras.utils.set_random_seed(0)
    rates = {"dropout": dropout, "attention_dropout": dropout}
    classifier = ez.Classifier.from_preset(sys.argv[1], **rates)
    classifier.compile(**compiled)
    return classifier


texts = ["the cat sat on the mat", "a dog ran", "the film was good", "bad"] * 4
labels = [0, 1, 2, 1] * 4
classifier = make_classifier(dropout=0.0, learning_rate=1e-3)
history = classifier.fit(  # in batches of one size, as each is compiled
    texts, labels, validation_data=(texts[:8], labels[:8]), epochs=3, batch_size=8, shuffle=False,
    verbose=0,
).history
print(*history["loss"], *history["val_loss"], *classifier.predict(texts[:8], verbose=0).ravel())

attention = classifier.backbone.blocks[0].attention
rows = keras.random.normal((4, 16, attention.hidden_dim), seed=1)
real = np.arange(16) < np.array([1, 5, 16, 0])[:, None]  # the last row is padding alone
mask = make_attention_mask(real)
with_kernel = attention(rows, attention_mask=mask)
spelled_out, _ = attention(rows, attention_mask=mask, return_probabilities=True)
for result in (with_kernel, spelled_out):
    assert np.isfinite(keras.ops.convert_to_numpy(result)).all()
difference = keras.ops.max(keras.ops.abs(with_kernel - spelled_out))
assert difference < 1e-5, difference

inputs = {"token_ids": keras.Input((None,), dtype="int32")}
assert ez.BertBackbone(30, 1, 2, 8, 16)(inputs)["sequence_output"].shape[-1] == 8

states = classifier.backbone({"token_ids": np.ones((1, 3), "int32")}, return_hidden_states=True)
assert [state.shape for state in states["hidden_states"]] == [(1, 3, attention.hidden_dim)] * (
    len(classifier.backbone.blocks) + 1
)

ids, losses = {"token_ids": np.arange(5, 29).reshape(4, 6)}, []
for checkpointing in (False, True):
    classifier = make_classifier(dropout=0.3, optimizer=keras.optimizers.SGD(0.02))
    if checkpointing:
        classifier.backbone.enable_gradient_checkpointing()
    history = classifier.fit(ids, np.array(labels[:4]), batch_size=2, epochs=2, verbose=0)
    losses.append(history.history["loss"])
np.testing.assert_allclose(*losses, rtol=1e-5)


class Means(keras.Model):
    def __init__(self):
        super().__init__()
        self.backbone = ez.ModernBertBackbone(30, 4, 2, 8, 16, local_attention=2)

    def call(self, inputs, training=False):
        outputs = self.backbone(inputs, training=training)["sequence_output"]
        real = keras.ops.cast(inputs["padding_mask"], "float32")[:, :, None]
        return keras.ops.mean(outputs[:, :, :3] * real, axis=1)


ids["padding_mask"] = np.arange(6) < np.array([6, 3, 5, 1])[:, None]
ids["text_starts"] = np.array([[0, 2], [0, 1], [0, 6], [0, 6]])
long_attention.CHUNK_NUMBERS, long_attention.SMALLEST_CHUNK = 0, 4
long_attention.SMALLEST_BLOCK, losses = 1, []
for long_attention.SHORT_LENGTH in (512, 1):  # all at once, and part by part
    keras.utils.set_random_seed(0)
    model = Means()
    model.compile(keras.optimizers.SGD(1.0), "mse")
    history = model.fit(ids, np.ones((4, 3)), batch_size=2, epochs=3, shuffle=False, verbose=0)
    losses.append([*history.history["loss"], *model.predict(ids, verbose=0).ravel()])
np.testing.assert_allclose(*losses, rtol=1e-4, atol=1e-5)
assert losses[0][2] < 0.9 * losses[0][0]  # it learns
"""

TWO_MODELS = """
import keras
import numpy as np
import encoder_zoo as ez

keras.utils.set_random_seed(0)
backbone = ez.DebertaV2Backbone(40, 2, 2, 16, 32, position_buckets=8, max_relative_positions=16)
task = ez.ReplacedTokenDetection(backbone)
token_ids = np.random.default_rng(0).integers(5, 40, (64, 12))
positions = np.tile([2, 5], (64, 1))
masked, labels = token_ids.copy(), np.take_along_axis(token_ids, positions, 1)
np.put_along_axis(masked, positions, 4, 1)
inputs = {"token_ids": token_ids, "masked_token_ids": masked, "mask_positions": positions}
inputs["padding_mask"] = np.ones_like(token_ids, "bool")
inputs["text_starts"] = np.tile([0, 6], (64, 1))
task.compile(learning_rate=1e-3)
before = [keras.ops.convert_to_numpy(weight) for weight in task.trainable_variables]
history = task.fit(inputs, labels, epochs=2, batch_size=16, verbose=0).history
assert np.isfinite(history["loss"]).all() and history["loss"][1] < history["loss"][0], history
for weight, old in zip(task.trainable_variables, before):
    assert not np.array_equal(keras.ops.convert_to_numpy(weight), old), weight.path
"""

DIRECTLY = """
from unittest import mock

import keras
import numpy as np
from encoder_zoo.encoders import list_families
from encoder_zoo.encoders.layers import DirectCallMixin
from encoder_zoo.testing import tiny


def outputs(backbone, inputs):
    return keras.ops.convert_to_numpy(backbone(inputs, training=False)["sequence_output"])


checked = mock.patch.object(DirectCallMixin, "_can_skip_checks", return_value=False)
for family in list_families():
    for dtype in ("float32", "mixed_bfloat16"):
        backbone, inputs = tiny.backbone(family, dtype=dtype), tiny.examples(family)
        found = outputs(backbone, inputs)
        with checked:
            np.testing.assert_array_equal(found, outputs(backbone, inputs), err_msg=family.name)

backbone, inputs, seen = tiny.backbone(list_families()[0]), tiny.examples(list_families()[0]), []
hook = backbone.blocks[0].output_dense.register_forward_hook(lambda *call: seen.append(call))
before = outputs(backbone, inputs)
assert len(seen) == 1
hook.remove()
backbone.enable_lora(2)
np.testing.assert_array_equal(outputs(backbone, inputs), before)
assert len(seen) == 1
"""


def losses(backend: str, folder) -> np.ndarray:
    return np.array(printed(SCRIPT, backend, str(folder)).split(), float)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_training_on_raw_text_equals_tensorflow(backend, golden):
    folder = golden("Bert_ForSequenceClassification").folder
    # Adam divides by small gradients, so float32's rounding shows in the third digit.
    np.testing.assert_allclose(
        losses(backend, folder), losses("tensorflow", folder), rtol=1e-3, atol=5e-3
    )


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_generator_and_a_discriminator_learn_with_all_their_weights(backend):
    run(TWO_MODELS, KERAS_BACKEND=backend)


@pytest.mark.matrix
@pytest.mark.slow
def test_layers_called_directly_compute_the_same():
    run(DIRECTLY, KERAS_BACKEND="torch")
