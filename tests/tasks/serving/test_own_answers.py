"""Answers of a task that is defined here: exported, and opened in a process without Keras."""

import importlib
import json
import sys

import numpy as np
import pytest
from processes import run

import encoder_zoo as ez
from encoder_zoo import tasks
from encoder_zoo.encoders import get_family
from encoder_zoo.encoders.family import Head
from encoder_zoo.tasks.base.answers import Answers, delegate_to_answers
from encoder_zoo.tasks.base.head import make_head
from encoder_zoo.tasks.base.task import Task, TaskRecord
from encoder_zoo.tasks.serving import answers_registry
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.testing import tiny

TEXTS = ["a b c", "d", "e f g h i"]
# What a server imports.
MODULE = """
import dataclasses

import encoder_zoo as ez
from encoder_zoo.common.validation import PositiveInt
from encoder_zoo.tasks.base.answers import Answers
from encoder_zoo.tasks.preprocessing.given_labels import Numbers
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor


class HeightPreprocessor(Preprocessor):
    task_name = "height"
    label_values = Numbers()


class InMetres:
    def in_metres(self, texts):
        return self.measure(texts) / 100


@ez.register_answers
@dataclasses.dataclass(frozen=True)
class HeightAnswers(InMetres, Answers):
    preprocessor_class = HeightPreprocessor
    methods = ("measure",)
    unit: PositiveInt = 1

    def measure(self, texts, batch_size=None):
        return self.predict_texts(texts, batch_size)[:, 0] * self.unit
"""
OPENS = """
import json, sys
import encoder_zoo as ez
import heights

print(json.dumps(ez.open_export(sys.argv[1]).measure(json.loads(sys.argv[2])).tolist()))
assert not {"keras", "tensorflow", "jax", "torch"} & sys.modules.keys()
"""


@pytest.fixture
def heights(tmp_path, monkeypatch):
    """The module with the answers, in a folder that can be imported from."""
    (tmp_path / "heights.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "heights", raising=False)
    registries = (
        tasks.TASKS,
        tasks._REGISTERED,
        answers_registry.ANSWERS,
        answers_registry._REGISTERED,
    )
    before = [dict(registry) for registry in registries]
    yield importlib.import_module("heights")
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)


@pytest.fixture
def task(heights):
    class Height(Task):
        record = TaskRecord(
            "height",
            heights.HeightPreprocessor,
            head="ForHeight",
            default_head=Head("height"),
            answers_class=heights.HeightAnswers,
            text_method="measure",
        )
        objective = Objective("mse")
        unit = 100
        measure = delegate_to_answers(heights.HeightAnswers.measure)

        def __init__(self, backbone, preprocessor=None, **kwargs):
            super().__init__(backbone, preprocessor, **kwargs)
            self._finish_building()

        def build_head(self):
            return make_head(self.head_record, self.backbone, 1, 0.0, self.dtype_policy)

        def logits_of(self, encoded, inputs, training=None):
            return self.head(encoded["sequence_output"][:, 0], training=training)

    return tiny.task(get_family("bert"), ez.register_task(Height))


def test_settings_are_attributes_of_the_task(task):
    """The unit multiplies the outputs."""
    np.testing.assert_allclose(
        task.measure(TEXTS), 100 * task.predict(TEXTS, verbose=0)[:, 0], rtol=1e-6
    )


@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")  # of Keras's export
@pytest.mark.slow
def test_an_export_is_opened_without_keras(task, tmp_path):
    task.export(tmp_path / "served", format="onnx")
    found = json.loads(run(OPENS, tmp_path / "served", json.dumps(TEXTS), cwd=tmp_path))
    np.testing.assert_allclose(found, task.measure(TEXTS), rtol=1e-4, atol=1e-3)


def test_an_error_in_a_setting_is_not_hidden(task, monkeypatch):
    """The default of the setting would be a wrong unit."""
    monkeypatch.setattr(type(task), "unit", property(lambda self: self.missing), raising=True)
    with pytest.raises(AttributeError, match="missing"):
        task.measure(TEXTS)


def test_names_that_are_taken(heights):
    assert ez.register_answers(heights.HeightAnswers) is heights.HeightAnswers

    class TagAnswers(Answers):
        pass

    with pytest.raises(ValueError, match="'TagAnswers'.*tasks.tagging.tag_answers"):
        ez.register_answers(TagAnswers)


def test_answers_that_are_not_registered(task, tmp_path):
    answers_registry.ANSWERS.pop("HeightAnswers")
    with pytest.raises(ValueError, match="HeightAnswers.*register_answers"):
        task.export(tmp_path / "served", format="onnx")
