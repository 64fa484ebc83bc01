"""The package itself: light imports, work without TensorFlow, the public names."""

import types

import numpy as np
import pytest
from processes import run

import encoder_zoo as ez
from encoder_zoo.encoders import list_families
from encoder_zoo.names import HOMES
from encoder_zoo.tasks import TASKS, get_task


def test_importing_loads_nothing_heavy_and_takes_well_under_a_second():
    out = run(
        """
        import sys, time
        start = time.process_time()
        import encoder_zoo
        print(time.process_time() - start)
        print({"tensorflow", "torch", "jax", "keras", "numpy"} & set(sys.modules))
        """
    )
    seconds, loaded = out.split("\n")[:2]
    assert float(seconds) < 0.5
    assert loaded == "set()"


def test_every_registered_family_and_task_is_public():
    backbones = {family.backbone.__name__ for family in list_families()}
    tasks = {get_task(name).__name__ for name in TASKS}
    assert backbones | tasks <= set(ez.__all__) == set(dir(ez))


@pytest.mark.parametrize("name", HOMES)
def test_a_name_is_where_the_stub_says(name):
    value, home = getattr(ez, name), HOMES[name]
    if isinstance(value, types.ModuleType):
        assert value.__name__ == f"{home}.{name}"
    else:
        assert value.__module__ == home


@pytest.mark.parametrize("name", ez.__all__)
def test_every_public_name_exists_and_is_documented(name):
    assert getattr(ez, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'Clasifier'"):
        _ = ez.Clasifier


TRAIN_ON_IDS = """
    import sys
    sys.modules["tensorflow"] = None
    import numpy as np
    import keras
    import encoder_zoo as ez

    for cls in (ez.BertBackbone, ez.RobertaBackbone):
        keras.utils.set_random_seed(0)
        backbone = cls(30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
        classifier = ez.Classifier(backbone, num_classes=2)
        ids = np.random.randint(5, 30, (32, 6)).astype("int32")
        x = {"token_ids": ids, "padding_mask": np.ones((32, 6), bool)}
        y = (ids[:, 1] > 17).astype("int32")
        classifier.compile(learning_rate=1e-2)
        losses = classifier.fit(x, y, epochs=8, batch_size=16, verbose=0).history["loss"]
        print(losses[-1] < losses[0], classifier.predict(x, verbose=0).shape)
    print(sys.modules["tensorflow"])
"""


@pytest.mark.matrix
@pytest.mark.slow
def test_prepared_ids_train_where_tensorflow_is_not_installed():
    """With torch; with JAX so do models from presets, below."""
    out = run(TRAIN_ON_IDS, KERAS_BACKEND="torch")
    assert out.split("\n")[:3] == ["True (32, 2)", "True (32, 2)", "None"]


FROM_PRESET_WITHOUT_TENSORFLOW = """
    import sys
    sys.modules["tensorflow"] = None
    import numpy as np
    import encoder_zoo as ez

    for preset in {presets}:
        classifier = ez.Classifier.from_preset(preset, num_classes=2, sequence_length=16)
        ids = np.random.default_rng(0).integers(5, 300, (32, 6)).astype("int32")
        x = {{"token_ids": ids, "padding_mask": np.ones((32, 6), bool)}}
        y = (ids[:, 1] > 150).astype("int32")
        losses = classifier.fit(x, y, epochs=8, batch_size=16, verbose=0).history["loss"]
        print(losses[-1] < losses[0])
        losses = classifier.fit(["a text", "b"], [1, 0], verbose=0).history["loss"]
        print(np.isfinite(losses).all())
        classifier.save_to_preset({folder!r} + preset)
        np.save({folder!r} + preset + ".npy", classifier.predict(x, verbose=0))
"""
PRESETS = ["bert_nano_en_uncased", "roberta_nano_en"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Where the presets are that a process without TensorFlow trained, and what it printed."""
    folder = f"{tmp_path_factory.mktemp('trained')}/"
    code = FROM_PRESET_WITHOUT_TENSORFLOW.format(presets=PRESETS, folder=folder)
    return folder, run(code, KERAS_BACKEND="jax").strip().split("\n")


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_loads_trains_and_is_saved_where_tensorflow_is_not_installed(preset, trained):
    folder, lines = trained
    learned, finite = lines[2 * PRESETS.index(preset) :][:2]
    assert learned == finite == "True"  # on prepared ids, and on texts
    # Whoever has TensorFlow opens it with its tokenizer.
    loaded = ez.Classifier.from_preset(folder + preset)
    ids = np.random.default_rng(0).integers(5, 300, (32, 6)).astype("int32")
    logits = loaded.predict({"token_ids": ids, "padding_mask": np.ones((32, 6), bool)}, verbose=0)
    np.testing.assert_allclose(logits, np.load(folder + preset + ".npy"), atol=1e-4)
    original = ez.Classifier.from_preset(preset, num_classes=2).preprocessor.tokenizer
    assert loaded.preprocessor.tokenizer.get_config() == original.get_config()
    assert loaded.preprocessor.sequence_length == 16
