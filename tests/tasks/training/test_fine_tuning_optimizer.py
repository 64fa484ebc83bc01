"""The fine-tuning recipe: the fused optimizer against Keras's, accumulated gradients."""

import functools

import keras
import numpy as np
import plain_training
import pytest
import tensorflow as tf
from processes import run

import encoder_zoo as ez
from encoder_zoo.tasks.training.optimizers import FusedAdamW, LinearWarmupDecay


def test_fused_adamw_takes_the_steps_of_keras():
    options = {"weight_decay": 0.1, "global_clipnorm": 0.5, "epsilon": 1e-6}
    schedule = LinearWarmupDecay(0.1, total_steps=6)
    start = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    results = []
    for optimizer_class in (FusedAdamW, keras.optimizers.AdamW):
        kernel, bias = keras.Variable(start, name="kernel"), keras.Variable(start[0], name="bias")
        optimizer = optimizer_class(schedule, **options)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        for step in range(6):
            rng = np.random.default_rng(step)
            gradients = [rng.normal(size=v.shape).astype("float32") for v in (kernel, bias)]
            optimizer.apply([tf.constant(g) for g in gradients], [kernel, bias])
        results.append([kernel.numpy(), bias.numpy()])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_norm_of_an_embeddings_gradient_is_of_the_summed_rows():
    # Row 1 stands twice: its gradient is (6, 8), of norm 10.
    sparse = tf.IndexedSlices(tf.constant([[3.0, 4.0], [3.0, 4.0]]), tf.constant([1, 1]), [3, 2])
    optimizer, table = FusedAdamW(0.1, global_clipnorm=1.0), keras.Variable(np.zeros((3, 2)))
    optimizer.apply([sparse], [table])
    momentum = optimizer._momentums[0]  # a tenth of the clipped gradient
    np.testing.assert_allclose(momentum, [[0, 0], [0.06, 0.08], [0, 0]], rtol=1e-6)


@functools.cache
def fitted(folder, accumulated):
    """Return the predictions after four steps, each of so many accumulated batches."""
    texts = ["the cat sat on the mat", "a dog ran", "the film was good", "bad"] * 4
    classifier = ez.Classifier.from_preset(folder, dropout=0.0, attention_dropout=0.0)
    classifier.compile(learning_rate=1e-3, gradient_accumulation_steps=accumulated)
    size = 16 // (accumulated or 1)
    classifier.fit(texts, [0, 1, 2, 1] * 4, epochs=4, batch_size=size, shuffle=False, verbose=0)
    assert int(classifier.optimizer.iterations) == 4
    return classifier.predict(texts[:4], verbose=0)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("batches", [2, 4])
def test_accumulated_gradients_take_the_steps_of_whole_batches(batches, golden):
    folder = golden("Bert_ForSequenceClassification").folder
    np.testing.assert_allclose(fitted(folder, batches), fitted(folder, None), atol=1e-5)


def test_more_accumulated_batches_than_there_are(golden):
    classifier = ez.Classifier.from_preset(golden("Bert_ForSequenceClassification").folder)
    classifier.compile(gradient_accumulation_steps=3)
    with pytest.raises(ValueError, match="gradient_accumulation_steps is 3.* 2"):
        classifier.fit(["a"] * 4, [0] * 4, batch_size=2)


def test_a_float16_backbone_has_its_task_scale_the_loss():
    backbone = ez.BertBackbone(9, 1, 1, 4, 4, dtype="mixed_float16")
    classifier = ez.SequenceClassifier(backbone, num_classes=2)
    classifier.compile()
    assert isinstance(classifier.optimizer, keras.optimizers.LossScaleOptimizer)
    assert isinstance(classifier.optimizer.inner_optimizer, FusedAdamW)


@pytest.mark.slow
def test_batches_that_overflow_are_left_out_of_accumulated_steps_and_counted():
    plain_training.check_overflows()


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_batches_that_overflow_on_other_backends(backend):
    run("import plain_training as table; table.check_overflows()", KERAS_BACKEND=backend)


@pytest.mark.slow
def test_accumulation_in_float16_counts_every_batch():
    task = plain_training.CASES["SequenceClassifier"].task("mixed_float16")
    task.compile(gradient_accumulation_steps=7)
    task.optimizer.initial_scale = 2.0**20  # the first batches overflow
    task.fit(["a b", "c", "d e", "ab", "a"], [0, 1, 0, 1, 0], 1, 3, verbose=0)
    assert 0 < 20 - np.log2(task.optimizer.dynamic_scale) < 7
    assert int(task.optimizer.iterations) == 3  # of 7, 7 and 1 batches


def test_accumulation_belongs_to_the_recipe(golden):
    classifier = ez.Classifier.from_preset(golden("Bert_ForSequenceClassification").folder)
    with pytest.raises(ValueError, match="gradient_accumulation_steps is.*optimizer='auto'"):
        classifier.compile(optimizer="adam", gradient_accumulation_steps=2)


ELECTRA = {
    "num_layers": 1,
    "num_heads": 4,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "pooler": False,
}


@pytest.mark.parametrize("task", ["MaskedLM", "ReplacedTokenDetection", "TokenClassifier"])
def test_what_the_paper_says_of_fine_tuning_is_not_said_of_pretraining(task):
    # ELECTRA is fine-tuned without weight decay, lower layers slower (Clark et al. 2020, table 7).
    labels = {"labels": ["O", "X"]} if task == "TokenClassifier" else {}
    model = getattr(ez, task)(ez.ElectraBackbone(30, **ELECTRA), **labels)
    model.compile()
    weights = model.backbone.embeddings.weights
    shares = (
        {model.optimizer.learning_rate_multiplier(w) for w in weights}
        if model.optimizer.learning_rate_multiplier
        else {1}
    )
    fine_tunes = task == "TokenClassifier"
    assert model.optimizer.weight_decay == (0.0 if fine_tunes else 0.01)
    assert all(share == pytest.approx(0.64 if fine_tunes else 1) for share in shares)
