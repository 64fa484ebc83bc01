"""A family and a task that are defined here, outside the package, and what the checks find."""

import dataclasses

import keras
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from keras import ops

import encoder_zoo as ez
from encoder_zoo import encoders, tasks
from encoder_zoo.encoders import FAMILIES, get_family
from encoder_zoo.encoders.family import Head
from encoder_zoo.encoders.layers import LayerNorm
from encoder_zoo.tasks import TASKS, get_task
from encoder_zoo.tasks.base.head import make_head
from encoder_zoo.tasks.base.task import Task, TaskRecord, TinyData
from encoder_zoo.tasks.preprocessing.given_labels import Labels, Numbers
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.testing import tiny

TABLES = (pd.DataFrame, pa.table, dict)
REGISTRIES = (FAMILIES, encoders._REGISTERED_FAMILIES, TASKS, tasks._REGISTERED)


def registries(contents: list[dict] | None = None) -> list[dict]:
    """What is registered; given contents, what was."""
    before = [dict(registry) for registry in REGISTRIES]
    for registry, content in zip(REGISTRIES, contents or [], strict=False):
        registry.clear()
        registry.update(content)
    return before


OURS = registries()


@ez.register_family(
    like=ez.RobertaBackbone.family,
    name="toy",
    class_prefix="Toy",
    prefix="toy",
    tensors={**ez.RobertaBackbone.family.tensors, "final_layer": "final.LayerNorm"},
)
class ToyBackbone(ez.RobertaBackbone):
    """RoBERTa with a LayerNorm behind its last block."""

    def make_final_layer(self) -> keras.layers.Layer:
        return LayerNorm(epsilon=self.layer_norm_epsilon, name="final", dtype=self.dtype_policy)


class ScorerPreprocessor(Preprocessor):
    task_name = "toy_scorer"
    label_values = Numbers()


@ez.register_task
class Scorer(Task):
    """The mean of the tokens' vectors as one number for each text, without a head."""

    record = TaskRecord("toy_scorer", ScorerPreprocessor)
    objective = Objective(keras.losses.MeanSquaredError, activation="linear")

    def __init__(self, backbone, preprocessor=None, **kwargs):
        super().__init__(backbone, preprocessor, **kwargs)
        self.built = True
        if preprocessor is not None:
            self.preprocessor.attach(self)

    @classmethod
    def tiny_data(cls) -> TinyData:
        return TinyData({}, super().tiny_data().x, [0.5, 1.0, -1.0, 0.0])

    def call(self, inputs, training=None):
        x = self.encode_inputs(inputs, training)["sequence_output"]  # (B, L, D)
        real = ops.cast(inputs["padding_mask"], "float32")[..., None]
        x = ops.cast(x, "float32") * real * ops.arange(1.0, self.backbone.hidden_dim + 1)
        return ops.sum(x, axis=(1, 2))[:, None] / ops.sum(real, axis=1)  # (B, 1)

    def compute_output_spec(self, inputs, training=None):
        return keras.KerasTensor((inputs["token_ids"].shape[0], 1), "float32")


class HeadedPreprocessor(ScorerPreprocessor):
    task_name = "toy_headed_scorer"


@ez.register_task
class HeadedScorer(Scorer):
    """The same with a dense layer, which it has in every family."""

    record = TaskRecord(
        "toy_headed_scorer",
        HeadedPreprocessor,
        head="ForToyScoring",
        default_head=Head("toy_output"),
    )

    def __init__(self, backbone, preprocessor=None, **kwargs):
        super().__init__(backbone, preprocessor, **kwargs)
        self.head = make_head(self.head_record, backbone, 1, 0.0, self.dtype_policy)

    def call(self, inputs, training=None):
        x = self.encode_inputs(inputs, training)["sequence_output"]  # (B, L, D)
        return self.head(x[:, 0], training=training)


WITH_THEIRS = registries(OURS)  # other files' tests run over the registries, too


@pytest.fixture(autouse=True, scope="module")
def registered():
    registries(WITH_THEIRS)
    yield
    registries(OURS)


def of(checks) -> list:
    return [pytest.param(check, id=name) for name, check in checks]


TOY = ToyBackbone.family


@pytest.mark.slow(
    only="get config|keras file|preset round|padding and|precision|gradients|every weight"
)
@pytest.mark.parametrize("check", of(ez.testing.family_checks(TOY)))
def test_the_family(check):
    check()


@pytest.mark.slow(except_for=": (an|every|get|the) ")
@pytest.mark.parametrize("check", of(ez.testing.task_checks(Scorer, [TOY])))
def test_the_task_without_a_head(check):
    check()


@pytest.mark.slow(except_for=": (an|every|gradients|the) ")
@pytest.mark.parametrize("check", of(ez.testing.task_checks(HeadedScorer, [TOY])))
def test_the_task_with_a_head(check):
    check()


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("check", of(ez.testing.task_checks(ez.SequenceClassifier, [TOY])))
def test_a_task_of_ours_with_the_family(check):
    check()


def test_they_are_found_by_name():
    assert get_family("toy") is TOY and FAMILIES["toy"] == "ToyBackbone"
    assert get_task("toy_scorer") is Scorer and TASKS["toy_scorer"] == f"{__name__}.Scorer"


@pytest.mark.slow
def test_a_preset_of_the_family_picks_its_backbone(tmp_path):
    tiny.task(TOY, ez.MaskedLM).save_to_preset(tmp_path)
    assert type(ez.Backbone.from_preset(tmp_path)) is ToyBackbone
    assert type(ez.Classifier.from_preset(tmp_path, num_classes=2).backbone) is ToyBackbone


def test_a_preset_without_a_head_is_a_bare_model(tmp_path):
    task = tiny.task(get_family("bert"), Scorer)
    task.save_to_preset(tmp_path)
    assert '"BertModel"' in (tmp_path / "config.json").read_text()
    assert "AutoModel.from_pretrained" in (tmp_path / "README.md").read_text()
    inputs = tiny.examples(get_family("bert"))
    expected = task.backbone(inputs)["sequence_output"]
    found = ez.Backbone.from_preset(tmp_path)(inputs)["sequence_output"]
    np.testing.assert_array_equal(found, expected)
    assert "Scorer" in repr(task)
    task.summary(print_fn=lambda *_: None)
    with pytest.raises(ValueError, match="save_to_preset"):
        task.enable_lora(2)
        task.save_adapters(tmp_path / "adapters")


@pytest.mark.slow
def test_a_task_with_the_preprocessor_of_spans_needs_no_beam():
    class Spans(ez.SpanQAPreprocessor):
        task_name = "toy_scorer"

    family = get_family("bert")
    preprocessor = Spans(tiny.tokenizer(family))
    scores = Scorer(tiny.backbone(family), preprocessor).predict((["a b"], ["a b ab"]), verbose=0)
    assert not preprocessor.marks_answers and len(scores) == 1


@pytest.fixture(scope="module")
def scorer():
    return tiny.task(get_family("bert"), Scorer)


class TestInputsOfAStrangersTask:
    """Its preprocessor declares that labels are numbers; all else is the package's."""

    TEXTS, SCORES = ["a b ab", "c", "c d e", "p"], [0.5, 1.0, -1.0, 0.0]

    @pytest.mark.parametrize(
        "make",
        [np.array, pd.Series, pa.array, *(lambda x, of=of: of({"text": x}) for of in TABLES)],
    )
    def test_columns_and_tables(self, scorer, make):
        expected = scorer.predict(self.TEXTS, verbose=0)
        found = scorer.predict(make(self.TEXTS), verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)

    @pytest.mark.slow(only="^(x4|x5)")
    @pytest.mark.parametrize(
        ("x", "y", "message"),
        [
            (["a", None, "b", "c"], SCORES, r"texts\[1\] is None"),
            (pd.Series(["a", None, "b", "c"]), SCORES, "texts.*row 1"),
            (TEXTS, [0.5, float("nan"), 1, 2], "Row 1.*nan"),
            (pa.array(TEXTS), pa.array([0.5, None, 1, 2]), "Row 1 "),
            (TEXTS, [0.5, float("inf"), 1, 2], "Row 1.*inf"),
            (TEXTS, list("abcd"), "type of.*y.*is 'string'"),
            (TEXTS, np.ones((4, 2)), r"shape of.*y.*is.*4, 2"),
            (TEXTS, [1.0], "4 texts.*1 labels"),
            (TEXTS, None, "The labels are missing"),
            (pd.DataFrame({"id": ["a1", "a2"], "t": TEXTS[:2]}), [1, 2], "'id'"),
            ([], [], r"x is \[\]"),
            (iter(TEXTS), SCORES, "dataset"),
        ],
    )
    def test_errors_name_the_row(self, scorer, x, y, message):
        for method in (scorer.fit, scorer.evaluate):
            with pytest.raises(ValueError, match=message):
                method(x, y, verbose=0)


@pytest.fixture(scope="module")
def colours():
    class ColoursPreprocessor(ScorerPreprocessor):
        label_values = Labels("a colour for each text", "colour")

        def encode_labels(self, y):
            return super().encode_labels([float(len(colour)) for colour in y])

    class Colours(Scorer):
        record = dataclasses.replace(Scorer.record, preprocessor_class=ColoursPreprocessor)

    return tiny.task(get_family("bert"), Colours)


class TestLabelsThatAStrangersTaskReads:
    """Its preprocessor names them, and reads them itself."""

    def test_they_are_needed(self, colours):
        x, message = ["a b", "c"], "The colours are missing.*a colour for each text"
        for method in (colours.fit, colours.evaluate):
            with pytest.raises(ValueError, match=message):
                method(x, verbose=0)
            with pytest.raises(ValueError, match="Row 1.*None"):
                method(x, ["red", None], verbose=0)

    @pytest.mark.slow
    def test_they_are_read(self, colours):
        assert np.isfinite(colours.evaluate(["a b", "c"], ["red", "blue"], verbose=0))


class TestNamesThatAreTaken:
    def test_of_a_family(self):
        with pytest.raises(ValueError, match="'bert'.* BertBackbone"):
            ez.register_family(like=TOY, name="bert")(ToyBackbone)

    def test_of_a_task(self):
        class Other(Scorer):
            record = dataclasses.replace(Scorer.record, name="masked_lm")

        with pytest.raises(ValueError, match="'masked_lm'.*pretraining.masked_lm"):
            ez.register_task(Other)

    def test_the_same_class_again(self):
        assert ez.register_task(Scorer) is Scorer


# -- what the checks find ----------------------------------------------------------------------


def failures(checks) -> set[str]:
    found = set()
    for name, check in checks:
        try:
            check()
        except AssertionError as error:
            assert str(error).startswith(name)
            found.add(name.split(": ")[1])
    return found


@pytest.fixture
def broken(monkeypatch):
    """`broken(cls)`: a record with other fields, registered as "toy" for the time of a test."""

    def register(backbone=ToyBackbone, **fields):
        family = dataclasses.replace(TOY, backbone=backbone, **fields)
        monkeypatch.setattr(backbone, "family", family)
        monkeypatch.setitem(encoders._REGISTERED_FAMILIES, "toy", family)
        monkeypatch.setitem(FAMILIES, "toy", backbone.__name__)
        return {name.split(": ")[1]: check for name, check in ez.testing.family_checks(family)}

    return register


def only(checks: dict, *names: str) -> set[str]:
    return failures((f"toy: {name}", checks[name]) for name in names)


class TestABrokenFamily:
    @pytest.mark.slow
    def test_a_weight_without_a_name(self, broken):
        checks = broken(tensors=ez.RobertaBackbone.family.tensors)
        names = "every weight has one name", "preset round trip"
        assert only(checks, *names) == set(names)
        with pytest.raises(AssertionError, match="name.*final"):
            checks[names[0]]()

    def test_a_setting_that_config_json_lacks(self, broken):
        keys = {n: k for n, k in TOY.config_keys.items() if n != "max_sequence_length"}
        assert only(broken(config_keys=keys), "preset round trip") == {"preset round trip"}

    def test_an_argument_stored_under_another_value(self, broken):
        class Halved(ToyBackbone):
            def __init__(self, *args, dropout=0.1, **kwargs):
                super().__init__(*args, dropout=dropout / 2, **kwargs)

        names = "config json round trip", "get config round trip"
        assert "get config round trip" in only(broken(Halved), *names)

    def test_padding_that_leaks(self, broken):
        class Leaking(ToyBackbone):
            def call(self, inputs, **kwargs):
                outputs = super().call(inputs, **kwargs)
                mean = ops.mean(outputs["sequence_output"], axis=1, keepdims=True)
                return {**outputs, "sequence_output": outputs["sequence_output"] + mean}

        name = "padding and batching change nothing"
        assert only(broken(Leaking), name) == {name}

    def test_a_weight_without_a_gradient(self, broken):
        class Stopped(ToyBackbone):
            def call(self, inputs, **kwargs):
                outputs = super().call(inputs, **kwargs)
                return {n: ops.stop_gradient(x) for n, x in outputs.items()}

        name = "gradients reach every weight"
        assert only(broken(Stopped), name) == {name}

    def test_one_that_is_not_registered(self):
        other = dataclasses.replace(TOY, name="unknown")
        checks = dict(ez.testing.family_checks(other))
        with pytest.raises(AssertionError, match="FAMILIES.*'unknown'"):
            checks["unknown: family is registered"]()


class TestABrokenTask:
    def found(self, cls, *names) -> set[str]:
        checks = dict(ez.testing.task_checks(cls, [TOY]))
        prefix = f"{cls.__name__} of toy: "
        return failures((prefix + name, checks[prefix + name]) for name in names)

    def test_outputs_that_depend_on_the_batch(self):
        class OfTheBatch(Scorer):
            def call(self, inputs, training=None):
                scores = super().call(inputs, training)
                return scores - ops.mean(scores)

        name = "padding and batching change nothing"
        assert self.found(OfTheBatch, name) == {name}

    @pytest.mark.slow
    def test_a_head_that_is_not_saved(self):
        class Unsaved(HeadedScorer):
            record = TaskRecord("toy_headed_scorer", HeadedPreprocessor)

            def __init__(self, backbone, preprocessor=None, **kwargs):
                super(HeadedScorer, self).__init__(backbone, preprocessor, **kwargs)
                record = HeadedScorer.record.default_head
                self.head = make_head(record, backbone, 1, 0.0, self.dtype_policy)

        names = "every head weight has one name", "preset round trip"
        assert self.found(Unsaved, *names) == set(names)

    def test_another_name_than_its_preprocessors(self):
        class Renamed(Scorer):
            record = dataclasses.replace(Scorer.record, name="toy_renamed")

        name = "task is registered"
        assert self.found(Renamed, name) == {name}

    @pytest.mark.slow
    def test_outputs_of_half_precision(self):
        class Half(Scorer):
            def call(self, inputs, training=None):
                return ops.cast(super().call(inputs, training), self.compute_dtype)

        name = "mixed precision is close"
        assert self.found(Half, name) == {name}
