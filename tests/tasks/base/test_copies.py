"""What a user sets survives every copy: a table of settings and ways to copy a model.

Keras's files, `copy.deepcopy` and pickles keep all of it, as of Keras's own models. A configuration
has no weights, so that its copies are new models with the same settings. A preset keeps what other
libraries read: weights, labels and settings of answers, and neither what is frozen nor how the
model is compiled; low-rank updates are merged into its weights.
"""

import copy
import pickle

import keras
import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.common.layers import list_direct_weights, list_layers
from encoder_zoo.encoders import get_family

TEXTS, LABELS = ["one two", "three", "four five", "six"], ["a", "b", "a", "b"]
pytestmark = pytest.mark.eager


def by_file(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def by_configuration(model, folder):
    return type(model).from_config(model.get_config())


WHOLE = {
    "keras": by_file,
    "deepcopy": lambda model, folder: copy.deepcopy(model),
    "copy": lambda model, folder: copy.copy(model),
    "pickle": lambda model, folder: pickle.loads(pickle.dumps(model)),
}
WITHOUT_WEIGHTS = {
    "config": by_configuration,
    "clone_model": lambda model, folder: keras.models.clone_model(model),
}


def freeze_backbone(model):
    model.backbone.trainable = False


def freeze_all(model):
    model.trainable = False


def freeze_block(model):
    model.backbone.blocks[0].trainable = False


def freeze_dense(model):
    model.backbone.blocks[0].output_dense.trainable = False


def freeze_embedding(model):
    model.backbone.embeddings.token_embedding.trainable = False


def freeze_weight(model):
    model.backbone.blocks[-1].output_dense.bias.trainable = False


def freeze_head(model):
    model.head.trainable = False


def thaw_in_frozen(model):
    model.backbone.trainable = False
    model.backbone.blocks[-1].trainable = True


def thaw_all(model):
    model.trainable = False
    model.trainable = True


def enable_lora(model):
    model.enable_lora(2, alpha=3.0)
    move(model)


def enable_lora_of_all(model):
    model.enable_lora(1, layers=["intermediate", "output"])
    move(model)


def thaw_after_lora(model):
    model.enable_lora(2)
    model.backbone.blocks[0].trainable = True
    move(model)


LAYERS = [
    freeze_backbone, freeze_all, freeze_block, freeze_dense, freeze_embedding, freeze_weight,
    freeze_head, thaw_in_frozen, thaw_all, enable_lora, enable_lora_of_all, thaw_after_lora,
]  # fmt: skip


def move(model):
    """Move what is trained, so that both factors of low-rank updates differ from 0."""
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.1 * rng.normal(size=weight.shape))


def state_of_layers(model) -> list:
    """Return the flags of all layers and weights, and the ranks of low-rank updates."""
    return [
        (
            layer.trainable,
            [weight.trainable for weight in list_direct_weights(layer)],
            getattr(layer, "lora_rank", None),
            getattr(layer, "lora_alpha", None) if getattr(layer, "lora_enabled", 0) else None,
        )
        for layer in list_layers(model)
    ]


def shared_weights(first, second) -> list:
    return [weight.path for weight in first.weights for other in second.weights if weight is other]


def classifier(tiny, family="bert"):
    family = get_family(family)
    head = ez.SequenceClassifier.get_family_head(family)
    backbone = tiny.backbone(family, pooler=head.pooled)
    preprocessor = ez.SequenceClassifierPreprocessor(tiny.tokenizer(family))
    return tiny.randomize_weights(ez.SequenceClassifier(backbone, preprocessor, labels=["a", "b"]))


@pytest.mark.slow(except_for="keras|freeze_all")
@pytest.mark.parametrize("way", [*WHOLE, *WITHOUT_WEIGHTS])
@pytest.mark.parametrize("change", LAYERS, ids=lambda change: change.__name__)
def test_layers(tiny, tmp_path, change, way):
    model = classifier(tiny)
    change(model)
    found = {**WHOLE, **WITHOUT_WEIGHTS}[way](model, tmp_path)
    assert state_of_layers(found) == state_of_layers(model)
    assert len(found.trainable_weights) == len(model.trainable_weights)
    assert not shared_weights(found, model)
    if way in WHOLE:
        for ours, theirs in zip(model.weights, found.weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow(except_for="albert|xlnet-config")
@pytest.mark.parametrize("way", ["keras", "config"])
@pytest.mark.parametrize("family", ["albert", "xlnet", "bart", "modernbert", "deberta-v2"])
def test_layers_of_other_families(tiny, tmp_path, family, way):
    model = classifier(tiny, family)
    freeze_block(model)
    enable_lora(model)
    found = {**WHOLE, **WITHOUT_WEIGHTS}[way](model, tmp_path)
    assert state_of_layers(found) == state_of_layers(model)
    if way in WHOLE:
        for ours, theirs in zip(model.weights, found.weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)


TASKS = [
    "TokenClassifier", "EntityExtractor", "SpanQA", "MaskedLM", "TextEmbedder", "LateInteraction",
    "SparseEncoder", "Reranker", "MultipleChoice", "Pretraining",
]  # fmt: skip


@pytest.mark.slow(except_for="^(TokenClassifier|SparseEncoder)")
@pytest.mark.parametrize("way", ["keras", "deepcopy", "config"])
@pytest.mark.parametrize("name", TASKS)
def test_layers_of_other_tasks(tiny, tmp_path, name, way):
    model = tiny.task(get_family("bert"), name)
    freeze_backbone(model)
    found = {**WHOLE, **WITHOUT_WEIGHTS}[way](model, tmp_path)
    assert state_of_layers(found) == state_of_layers(model)
    assert not shared_weights(found, model)


@pytest.mark.slow(only=r"^(keras|pickle)$")
@pytest.mark.parametrize("way", ["keras", "pickle", "config"])
def test_layers_of_a_backbone(tiny, tmp_path, way):
    model = tiny.backbone(get_family("bert"))
    model.blocks[1].trainable = False
    found = {**WHOLE, **WITHOUT_WEIGHTS}[way](model, tmp_path)
    assert state_of_layers(found) == state_of_layers(model)


@pytest.mark.slow
def test_training_a_copy_by_configuration_leaves_the_first_alone(tiny):
    """As for the folds of a cross-validation."""
    model = classifier(tiny)
    fold = type(model).from_config(model.get_config())
    before = model.get_weights()
    fold.compile(learning_rate=0.1)
    fold.fit(TEXTS, LABELS, verbose=0)
    for ours, theirs in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["kernel", "table"])
def test_low_rank_updates_train_on_after_loading(tiny, tmp_path, where):
    """Keras's own layers have both factors at 0 then, whose gradients are 0."""
    model = classifier(tiny)
    if where == "kernel":
        enable_lora(model)
    else:
        model.backbone.embeddings.token_embedding.enable_lora(2)
        move(model)
    found = by_file(model, tmp_path)
    layer = found.backbone.embeddings.token_embedding
    if where == "kernel":
        layer = found.backbone.blocks[0].attention.lora_layers[0]
    factor = getattr(layer, layer.update_names[1])
    before = np.asarray(factor)
    found.compile(learning_rate=0.1)
    found.fit(TEXTS, LABELS, verbose=0)
    assert np.abs(np.asarray(factor) - before).max() > 1e-6


@pytest.mark.slow
def test_weights_of_low_rank_updates_in_a_model_without_them_are_merged(tiny, tmp_path):
    model = classifier(tiny)
    enable_lora(model)
    model.save_weights(tmp_path / "model.weights.h5")
    plain = classifier(tiny)
    plain.load_weights(tmp_path / "model.weights.h5")
    layer = model.backbone.blocks[0].attention.lora_layers[0]
    merged = plain.backbone.blocks[0].attention.lora_layers[0].kernel
    a, b = np.asarray(layer.lora_kernel_a), np.asarray(layer.lora_kernel_b)
    base = np.asarray(layer._kernel)
    np.testing.assert_allclose(merged, base + 3.0 / 2 * a @ b, atol=1e-6)
    np.testing.assert_allclose(
        plain.predict(TEXTS, verbose=0), model.predict(TEXTS, verbose=0), atol=1e-5
    )


@pytest.mark.slow
def test_weights_of_another_rank_are_refused(tiny, tmp_path):
    model, other = classifier(tiny), classifier(tiny)
    model.enable_lora(2)
    other.enable_lora(1)
    model.save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match="4 objects"):
        other.load_weights(tmp_path / "model.weights.h5")


@pytest.mark.slow
@pytest.mark.parametrize(
    "enable",
    [
        lambda model: model.enable_lora(64),  # more than the width
        lambda model: model.backbone.embeddings.token_embedding.enable_lora(2),
    ],
    ids=["rank", "embedding"],
)
def test_what_keras_lets_a_user_save_opens(tiny, tmp_path, enable):
    model = classifier(tiny)
    enable(model)
    move(model)
    model.fit(TEXTS, LABELS, verbose=0)
    found = by_file(model, tmp_path)
    assert state_of_layers(found) == state_of_layers(model)
    expected = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(found.predict(TEXTS, verbose=0), expected, atol=1e-6)


@pytest.mark.slow(except_for=r"^-1$")
@pytest.mark.parametrize("rank", [0, -1, 10**9, 1.5, "2"])
def test_a_rank_in_a_file_has_bounds(tiny, rank):
    model = tiny.backbone(get_family("bert"))
    model.enable_lora(2)
    config = model.get_config()
    for entry in config["low_rank_updates"].values():
        entry["rank"] = rank
    with pytest.raises(ValueError, match="low_rank_updates.*rank"):
        type(model).from_config(config)


def compile_by_hand(model):
    optimizer = keras.optimizers.SGD(0.03, momentum=0.5, clipnorm=1.0)
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])


def compile_automatically(model):
    model.compile(learning_rate=1e-3, weight_decay=0.2, warmup=0.3, frozen_layers=1)


@pytest.mark.slow(except_for="hand-keras")
@pytest.mark.parametrize("way", WHOLE)
@pytest.mark.parametrize("compiled", [compile_by_hand, compile_automatically])
def test_the_optimizer(tiny, tmp_path, compiled, way):
    model = classifier(tiny)
    compiled(model)
    model.fit(TEXTS, LABELS, verbose=0)
    found = WHOLE[way](model, tmp_path)
    assert found.compiled and type(found.optimizer) is type(model.optimizer)
    assert state_of_layers(found) == state_of_layers(model)
    for name in ("weight_decay", "clipnorm", "momentum", "beta_1"):
        assert getattr(found.optimizer, name, None) == getattr(model.optimizer, name, None)
    for mine, other in zip(model.optimizer.variables, found.optimizer.variables, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.slow(except_for="bert-keras")
@pytest.mark.parametrize("way", WHOLE)
@pytest.mark.parametrize("family", ["bert", "albert"])
def test_layers_frozen_by_compile_can_be_trained_again(tiny, tmp_path, family, way):
    """As in the first model, and layers that were frozen in another way stay frozen."""
    model = classifier(tiny, family)
    model.backbone.embeddings.token_embedding.trainable = False
    before = state_of_layers(model)
    model.compile(frozen_layers=2)
    model.optimizer.build(
        model.trainable_variables
    )  # Keras warns about files without its variables
    found = WHOLE[way](WHOLE[way](model, tmp_path), tmp_path)
    assert state_of_layers(found) == state_of_layers(model) != before
    found.compile(frozen_layers=0)
    assert state_of_layers(found) == before


@pytest.mark.slow(except_for="^(keras|config)$")
@pytest.mark.parametrize("way", [*WHOLE, *WITHOUT_WEIGHTS])
def test_gradient_checkpointing(tiny, tmp_path, way):
    model = classifier(tiny)
    copy_of = {**WHOLE, **WITHOUT_WEIGHTS}[way]
    assert not copy_of(model, tmp_path).backbone._checkpoints_gradients
    model.backbone.enable_gradient_checkpointing()
    assert copy_of(model, tmp_path).backbone._checkpoints_gradients


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise InterruptedError


@pytest.mark.slow
def test_gradient_checkpointing_can_be_enabled_to_resume_a_training(tiny, tmp_path):
    """For example after it has run out of memory."""
    model, backup = classifier(tiny), ez.BackupAndRestore(tmp_path)
    with pytest.raises(InterruptedError):
        model.fit(TEXTS, LABELS, epochs=2, callbacks=[backup, Stop()], verbose=0)
    model = classifier(tiny)
    model.backbone.enable_gradient_checkpointing()
    callbacks = [ez.BackupAndRestore(tmp_path)]
    assert model.fit(TEXTS, LABELS, epochs=2, callbacks=callbacks, verbose=0).epoch == [1]


OPTIONS = {
    "jit_compile": "auto",
    "loss_weights": 0.5,
    "run_eagerly": True,
    "steps_per_execution": 2,
    "auto_scale_loss": False,
}


@pytest.mark.slow(except_for="keras")
@pytest.mark.parametrize("way", WHOLE)
def test_options_of_compile(tiny, tmp_path, way):
    model = tiny.task(get_family("bert"), "SequenceClassifier", dtype="mixed_float16")
    model.compile(keras.optimizers.SGD(0.01), **OPTIONS)
    found = WHOLE[way](model, tmp_path)
    assert type(found.optimizer) is keras.optimizers.SGD  # without a scale of the loss
    assert {**found.recipe.options, **found.recipe.arguments}.items() >= OPTIONS.items()


@pytest.mark.slow(except_for="SequenceClassifier-None")
@pytest.mark.parametrize("metrics", [None, [], ["f1"]], ids=str)
@pytest.mark.parametrize("name", ["SequenceClassifier", "TokenClassifier", "SpanQA", "MaskedLM"])
def test_metrics_are_chosen_as_by_the_first_model(tiny, tmp_path, name, metrics):
    """Also when the copy is compiled with other metrics later."""
    model = tiny.task(get_family("bert"), name)
    if metrics == ["f1"] and name == "MaskedLM":
        metrics = ["perplexity"]
    model.compile(metrics=metrics)
    model.optimizer.build(model.trainable_variables)
    found = by_file(model, tmp_path)

    def names(model):
        return [type(metric).__name__ for metric in model.task_metrics.given]

    assert names(found) == names(model)
    for each in (model, found):
        each.compile(metrics=["accuracy"])
    assert names(found) == names(model)


@pytest.mark.slow
@pytest.mark.parametrize("way", [*WHOLE, "preset"])
def test_settings_of_answers(tiny, tmp_path, way):
    model = classifier(tiny)
    model.calibrate(TEXTS, LABELS)
    model.tune_thresholds(TEXTS, LABELS)
    if way == "preset":
        model.save_to_preset(tmp_path / "preset")
        found = ez.SequenceClassifier.from_preset(tmp_path / "preset")
    else:
        found = WHOLE[way](model, tmp_path)
    for name in ("labels", "thresholds", "temperature", "problem_type"):
        assert getattr(found, name) == getattr(model, name)
    assert found.classify(TEXTS) == model.classify(TEXTS)


@pytest.mark.slow
def test_a_preset_keeps_weights_and_not_what_is_frozen(tiny, tmp_path):
    model = classifier(tiny)
    enable_lora(model)
    freeze_head(model)
    model.save_to_preset(tmp_path)
    found = ez.SequenceClassifier.from_preset(tmp_path)
    assert len(found.trainable_weights) == len(found.weights)
    np.testing.assert_allclose(
        found.predict(TEXTS, verbose=0), model.predict(TEXTS, verbose=0), atol=1e-5
    )


FIXED = ["model.dropout", "model.num_classes", "model.backbone.dropout", "model.backbone.num_heads"]
FIXED += ["model.preprocessor.sequence_length", "model.preprocessor.doc_stride"]


@pytest.mark.slow(except_for=r"^model\.backbone\.num_heads$")
@pytest.mark.parametrize("name", FIXED)
def test_what_layers_were_made_with_cannot_be_set(name, tiny):
    model = tiny.task(get_family("bert"), "SequenceClassifier")
    thing = model
    for part in name.split(".")[1:-1]:
        thing = getattr(thing, part)
    attribute = name.split(".")[-1]
    before = getattr(thing, attribute)
    with pytest.raises(AttributeError, match=attribute):
        setattr(thing, attribute, 0.25 if attribute == "dropout" else 7)
    assert getattr(thing, attribute) == before
    setattr(thing, attribute, before)


@pytest.mark.slow(except_for=r"^thresholds-value2$")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("thresholds", [0.5, 0.5]),
        ("thresholds", {"a": 2}),
        ("abstain_below", 7),
        ("window_pooling", "median"),
    ],
)
def test_settings_are_checked_when_they_are_set(name, value, tiny):
    model = tiny.task(get_family("bert"), "SequenceClassifier")
    before = getattr(model, name)
    with pytest.raises(ValueError, match=name):
        setattr(model, name, value)
    assert getattr(model, name) == before


def test_another_preprocessor_fits_the_task(tiny):
    model = tiny.task(get_family("bert"), "SequenceClassifier")
    tokenizer = model.preprocessor.tokenizer
    model.preprocessor = ez.SequenceClassifierPreprocessor(tokenizer, sequence_length=4)
    assert model.preprocessor.labels == model.labels
    assert model.preprocessor(["one two three four"])["token_ids"].shape == (1, 4)
    with pytest.raises(TypeError, match="TokenClassifierPreprocessor"):
        model.preprocessor = ez.TokenClassifierPreprocessor(tokenizer)
    with pytest.raises(ValueError, match="sequence_length"):
        model.preprocessor = ez.SequenceClassifierPreprocessor(tokenizer, sequence_length=10**4)


@keras.saving.register_keras_serializable("test_copies")
class TwoTasks(keras.Model):
    """Two tasks of a user's model on one backbone."""

    def __init__(self, first, second, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = first, second

    def call(self, inputs):
        return self.first(inputs), self.second(inputs)

    def get_config(self):
        return {"first": self.first, "second": self.second}

    def build_from_config(self, config):
        """Do nothing: both tasks are built."""

    @classmethod
    def from_config(cls, config):
        return cls(**{n: keras.saving.deserialize_keras_object(v) for n, v in config.items()})


@pytest.mark.slow
@pytest.mark.parametrize("way", ["keras", "deepcopy", "pickle"])
def test_tasks_on_one_backbone_share_it_in_copies(way, tiny, tmp_path):
    first = tiny.task(get_family("bert"), "SequenceClassifier")
    second = ez.SequenceClassifier(first.backbone, num_classes=2)
    model = TwoTasks(first, second)
    inputs = tiny.rows(get_family("bert"))
    expected = model(inputs)
    again = WHOLE[way](model, tmp_path)
    assert again.first.backbone is again.second.backbone is not first.backbone
    for found, outputs in zip(again(inputs), expected, strict=True):
        np.testing.assert_allclose(found, outputs, atol=1e-6)
