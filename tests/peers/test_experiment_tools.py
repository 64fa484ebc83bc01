"""TensorBoard, Weights & Biases and KerasTuner: their callbacks and searches with `fit`."""

import pytest

import encoder_zoo as ez

# What these packages warn of is theirs.
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("default")]

TEXTS = ["a good film", "a bad film", "a fine day", "a dull day"] * 4
LABELS = ["up", "down", "up", "down"] * 4


def make_classifier(**options) -> ez.SequenceClassifier:
    task = ez.SequenceClassifier.from_preset("bert_nano_en_uncased", labels=["down", "up"])
    task.compile(**options)
    return task


@pytest.fixture
def classifier():
    return make_classifier()


def options_of(callbacks: list) -> dict:
    held_out = (TEXTS[:4], LABELS[:4])
    return {"epochs": 2, "verbose": 0, "validation_data": held_out, "callbacks": callbacks}


class TestTensorBoard:
    def test_scalars_and_histograms_of_each_epoch(self, classifier, tmp_path):
        loading = pytest.importorskip(
            "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
        )
        import keras
        from tensorboard.util import tensor_util

        callback = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, write_graph=False)
        history = classifier.fit(TEXTS, LABELS, **options_of([callback])).history
        for folder, prefix in (("train", ""), ("validation", "val_")):
            events = loading.EventAccumulator(str(tmp_path / folder)).Reload()
            losses = events.Tensors("epoch_loss")
            logged = [float(tensor_util.make_ndarray(event.tensor_proto)) for event in losses]
            assert logged == pytest.approx(history[f"{prefix}loss"], rel=1e-5)
        names = loading.EventAccumulator(str(tmp_path / "train")).Reload().Tags()["tensors"]
        assert any(name.endswith("histogram") for name in names)


class TestWeightsAndBiases:
    def test_metrics_of_the_last_epoch(self, classifier, tmp_path, monkeypatch):
        wandb = pytest.importorskip("wandb")
        monkeypatch.setenv("WANDB_MODE", "offline")
        run = wandb.init(dir=str(tmp_path), project="texts")
        from wandb.integration.keras import WandbMetricsLogger

        history = classifier.fit(TEXTS, LABELS, **options_of([WandbMetricsLogger()])).history
        logged = dict(run.summary)
        run.finish()
        assert logged["epoch/epoch"] == 1
        for name in ("loss", "accuracy", "val_loss"):
            assert logged[f"epoch/{name}"] == pytest.approx(history[name][-1])


class TestKerasTuner:
    def test_a_search_over_learning_rates(self, tmp_path):
        keras_tuner = pytest.importorskip("keras_tuner")
        rates = [1e-6, 3e-4]
        tuner = keras_tuner.GridSearch(
            lambda space: make_classifier(learning_rate=space.Choice("learning_rate", rates)),
            objective="val_loss",
            directory=tmp_path,
            overwrite=True,
        )
        options = options_of([])
        tuner.search(TEXTS, LABELS, **options)
        tried = {
            trial.hyperparameters.get("learning_rate"): trial.score
            for trial in tuner.oracle.trials.values()
        }
        assert sorted(tried) == rates and tried[3e-4] < tried[1e-6]
        [best] = tuner.get_best_models(1)
        found = best.evaluate(*options["validation_data"], verbose=0, return_dict=True)
        assert found["loss"] == pytest.approx(tried[3e-4], rel=1e-4)
