"""Check what a second `compile` changes and freezes, and what it logs of an optimizer's rate."""

import logging

import keras
import numpy as np
import pytest

import encoder_zoo as ez


@pytest.fixture
def model():
    backbone = ez.BertBackbone(9, 3, 1, 4, 4)
    return ez.SequenceClassifier(backbone, num_classes=2)


def trained(model) -> list[bool]:
    """Which of embeddings, blocks and pooler are trained; a part of one counts as None."""
    found = []
    for layer in (model.backbone.embeddings, *model.backbone.blocks, model.backbone.pooler_dense):
        states = {weight.trainable for weight in layer.weights}
        found.append(states.pop() if len(states) == 1 else None)
    return found


class TestFrozenLayers:
    def test_what_the_user_froze_stays_frozen(self, model):
        model.backbone.trainable = False
        before = len(model.trainable_variables)
        for count in (1, 0, 3):
            model.compile(frozen_layers=count)
            assert len(model.trainable_variables) == before == 2  # of the head

    def test_a_block_that_the_user_froze(self, model):
        model.backbone.blocks[2].trainable = False
        model.compile(frozen_layers=1)
        assert trained(model) == [False, False, True, False, True]
        model.compile(frozen_layers=0)
        assert trained(model) == [True, True, True, False, True]

    def test_a_part_of_a_block(self, model):
        block = model.backbone.blocks[0]
        block.attention.trainable = False
        model.compile(frozen_layers=2)
        model.compile(frozen_layers=0)
        assert trained(model) == [True, None, True, True, True]
        assert not any(weight.trainable for weight in block.attention.weights)

    def test_fewer_and_more(self, model):
        for count in (2, 1, 3, 0):
            model.compile(frozen_layers=count)
            frozen = [count > 0, *(i < count for i in range(3))]
            assert trained(model) == [*(not each for each in frozen), True]

    def test_low_rank_updates_stay_the_only_ones(self, model):
        model.enable_lora(rank=1)
        before = {id(weight) for weight in model.trainable_variables}
        model.compile(frozen_layers=2)
        assert len(model.trainable_variables) < len(before)
        model.compile(frozen_layers=0)
        assert {id(weight) for weight in model.trainable_variables} == before

    @pytest.mark.slow
    def test_weights_that_are_trained_beside_their_updates_are_logged(self, model, caplog):
        model.enable_lora(rank=1)
        updates = len(model.trainable_variables)
        x, y = {"token_ids": np.array([[1, 2]])}, np.array([0])
        model.fit(x, y, verbose=0)
        assert "low-rank updates" not in caplog.text
        for trainable in (False, True):  # Keras also makes the original weights trainable
            model.backbone.trainable = trainable
        model.fit(x, y, verbose=0)
        assert "enable_lora" in caplog.text
        caplog.clear()
        model.enable_lora(rank=1)
        model.fit(x, y, verbose=0)
        assert "low-rank updates" not in caplog.text
        assert len(model.trainable_variables) == updates

    def test_what_the_user_thaws_and_freezes_again(self, model):
        model.compile(frozen_layers=1)
        for trainable in (False, True):
            model.backbone.trainable = trainable
        assert trained(model) == [True] * 5
        model.compile(frozen_layers=1)
        assert trained(model) == [False, False, True, True, True]
        model.backbone.trainable = False
        model.compile(frozen_layers=0)
        assert trained(model) == [False] * 5


X, Y = {"token_ids": np.array([[1, 2], [3, 4]])}, np.array([0, 1])
TRAINING = {
    "fit": lambda model: model.fit(X, Y, verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(X, Y),
}


def find_changed(model, train) -> list[bool]:
    """Train, and return whether a weight of the backbone and of the head has changed."""
    parts = model.backbone, model.head
    before = [[weight.numpy() for weight in part.weights] for part in parts]
    TRAINING[train](model)
    return [
        any(
            not np.array_equal(old, weight.numpy())
            for old, weight in zip(each, part.weights, strict=True)
        )
        for each, part in zip(before, parts, strict=True)
    ]


@pytest.mark.parametrize("train", TRAINING)
class TestTrainableAfterTraining:
    """Keras would go on to train the weights that were trainable in the first step."""

    @pytest.mark.slow(except_for="^SGD-train_on_batch")
    @pytest.mark.parametrize("optimizer", ["auto", "sgd", keras.optimizers.SGD])
    def test_frozen_and_thawed_without_another_compile(self, model, optimizer, train):
        model.compile(optimizer=optimizer() if isinstance(optimizer, type) else optimizer)
        assert find_changed(model, train) == [True, True]
        model.backbone.trainable = False
        assert find_changed(model, train) == [False, True]
        model.backbone.trainable = True
        assert find_changed(model, train) == [True, True]

    @pytest.mark.slow
    def test_one_block(self, model, train):
        model.compile(optimizer=keras.optimizers.Adam(0.1))
        TRAINING[train](model)
        block = model.backbone.blocks[1]
        block.trainable = False
        before = [weight.numpy() for weight in block.weights]
        assert find_changed(model, train) == [True, True]
        for old, weight in zip(before, block.weights, strict=True):
            np.testing.assert_array_equal(weight, old)

    @pytest.mark.slow(except_for="fit")
    def test_an_optimizer_that_was_built_for_fewer_weights(self, model, train):
        model.backbone.trainable = False
        model.compile(optimizer=keras.optimizers.Adam(0.1))
        assert find_changed(model, train) == [False, True]
        model.backbone.trainable = True
        with pytest.raises(ValueError, match="optimizer"):
            TRAINING[train](model)
        model.compile(optimizer=keras.optimizers.Adam(0.1))
        assert find_changed(model, train) == [True, True]


class TestSecondCompile:
    def test_only_what_it_names_is_changed(self, model):
        model.compile(metrics=["f1"], weight_decay=0.3, frozen_layers=1)
        model.compile(learning_rate=1e-3)
        kept = model.get_compile_config()
        assert (kept["weight_decay"], kept["learning_rate"]) == (0.3, 1e-3)
        assert model.optimizer.weight_decay == 0.3
        assert model.recipe.arguments["metrics"] == ["f1"]
        assert trained(model) == [False, False, True, True, True]

    def test_loss_and_optimizer_stay(self, model):
        optimizer, loss = keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError()
        model.compile(optimizer, loss)
        model.compile(metrics=["mse"])
        assert model.optimizer is optimizer and model.loss is loss
        model.compile(optimizer="auto", loss="auto", metrics="auto")
        assert model.recipe.makes_optimizer
        assert model.loss is not loss and model.recipe.arguments["metrics"] is None

    def test_a_setting_of_the_recipe_beside_an_optimizer_of_before(self, model):
        model.compile(keras.optimizers.SGD(0.1))
        with pytest.raises(ValueError, match="learning_rate is.*optimizer='auto'"):
            model.compile(learning_rate=1e-3)
        model.compile("auto", learning_rate=1e-3)
        assert model.learning_rate == 1e-3

    def test_another_learning_rate_is_used_outside_fit(self, model):
        for rate in (1e-3, 1e-6):
            model.compile(learning_rate=rate)
            model.train_on_batch(X, Y)
            assert float(model.optimizer.learning_rate) == pytest.approx(rate)

    @pytest.mark.parametrize(
        "wrong", [{"loss": "nonsense"}, {"metrics": ["nonsense"]}, {"optimizer": "nonsense"}]
    )
    def test_an_error_changes_nothing(self, model, wrong):
        model.compile(learning_rate=1e-3)
        recipe, optimizer = model.recipe, model.optimizer
        settings = {} if "optimizer" in wrong else {"learning_rate": 0.5}
        with pytest.raises(ValueError, match="nonsense"):
            model.compile(frozen_layers=1, **settings, **wrong)
        assert trained(model) == [True] * 5 and model.learning_rate == 1e-3
        assert model.recipe is recipe and model.optimizer is optimizer

    def test_options_of_keras(self, model):
        model.compile(run_eagerly=True)
        model.compile(learning_rate=1e-3)
        assert model.run_eagerly
        model.compile(run_eagerly=False)
        assert not model.run_eagerly


class TestOptimizerByName:
    def lines(self, caplog) -> list[str]:
        return [record.getMessage() for record in caplog.records]

    def test_its_rate_is_said(self, model, caplog):
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            model.compile("adam")
        [line] = self.lines(caplog)
        assert line.startswith(
            "optimizer='adam' uses the default learning rate of Keras, 0.001. The default of this "
            "model is 5e-05. Pass keras.optimizers.Adam(5e-05)"
        )

    @pytest.mark.parametrize("optimizer", ["auto", "sgd", keras.optimizers.Adam(1e-3)])
    def test_nothing_is_said_of_others(self, model, caplog, optimizer):
        with caplog.at_level(logging.WARNING, "encoder_zoo"):
            model.compile(optimizer)
        assert self.lines(caplog) == []
