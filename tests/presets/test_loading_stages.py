"""Each stage of `Task.from_preset` by itself, on a checkpoint that transformers wrote."""

import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.presets import loading
from encoder_zoo.presets.files.folder_files import Safeguards
from encoder_zoo.presets.heads import resolve_head, restore_head
from encoder_zoo.presets.opening import open_preset

CLS = ez.SequenceClassifier


@pytest.fixture
def folder(golden, tmp_path):
    """A classifier of two classes, saved with a temperature, a threshold and a length."""
    task = CLS.from_preset(golden("Bert_ForSequenceClassification").folder, sequence_length=12)
    task.temperature, task.abstain_below = 2.0, 0.75
    task.save_to_preset(tmp_path / "preset")
    return tmp_path / "preset"


@pytest.fixture
def checkpoint(folder):
    with open_preset(folder, Safeguards()) as checkpoint:
        yield resolve_head(checkpoint, CLS, {})


def divided(checkpoint, **arguments):
    return loading.group_arguments(CLS, checkpoint.family, arguments)


def test_arguments_go_to_those_that_take_them(checkpoint):
    asked = divided(
        checkpoint, added_tokens=["<x>"], attention_dropout=0.0, sequence_length=8, temperature=3.0
    )
    assert asked.added_tokens == ["<x>"] and asked.preprocessor is loading.CREATE_PREPROCESSOR
    assert asked.backbone == {"attention_dropout": 0.0}
    assert asked.texts == {"sequence_length": 8}
    assert asked.task == {"temperature": 3.0}
    with pytest.raises(TypeError, match="sequence_lenght"):
        divided(checkpoint, sequence_lenght=8)
    with pytest.raises(TypeError, match="backbone"):
        divided(checkpoint, backbone=object())


def test_the_head_of_another_task_is_named_and_not_loaded(folder):
    with open_preset(folder, Safeguards()) as checkpoint:
        own, other = (resolve_head(checkpoint, c, {}) for c in (CLS, ez.TokenClassifier))
        assert own.other_class is None and checkpoint.other_class is None
        assert other.other_class == "BertForSequenceClassification"
        task = ez.TokenClassifier.from_preset(folder)
        assert not restore_head(other, task, {})


def test_the_tokenizer_has_the_added_tokens_and_the_checkpoint_rows_for_them(checkpoint):
    asked = divided(checkpoint)
    tokenizer = loading.read_task_tokenizer(CLS, checkpoint, asked)
    assert loading.add_missing_embeddings(checkpoint, tokenizer) is checkpoint
    assert loading.add_missing_embeddings(checkpoint, None) is checkpoint
    asked = divided(checkpoint, added_tokens=[f"<{i}>" for i in range(40)])
    longer = loading.read_task_tokenizer(CLS, checkpoint, asked)
    assert longer.vocabulary_size == tokenizer.vocabulary_size + 40
    enlarged = loading.add_missing_embeddings(checkpoint, longer)
    assert enlarged.config["vocab_size"] == longer.vocabulary_size
    backbone, _ = loading.restore_encoder(CLS, enlarged, asked)
    assert backbone.vocabulary_size == longer.vocabulary_size


def test_the_preprocessor_has_the_settings_of_files_and_of_the_caller(checkpoint):
    tokenizer = loading.read_task_tokenizer(CLS, checkpoint, divided(checkpoint))
    made = loading.make_preprocessor(CLS, checkpoint, divided(checkpoint), tokenizer)
    assert made.sequence_length == 12
    asked = divided(checkpoint, sequence_length=7)
    assert loading.make_preprocessor(CLS, checkpoint, asked, tokenizer).sequence_length == 7
    assert loading.make_preprocessor(CLS, checkpoint, divided(checkpoint), None) is None
    given = divided(checkpoint, preprocessor=made)
    assert loading.make_preprocessor(CLS, checkpoint, given, tokenizer) is made
    both = divided(checkpoint, preprocessor=made, sequence_length=7)
    with pytest.raises(TypeError, match="sequence_length"):
        loading.make_preprocessor(CLS, checkpoint, both, tokenizer)


def test_the_encoder_has_the_weights_of_the_files(checkpoint):
    asked = divided(checkpoint)
    backbone, used = loading.restore_encoder(CLS, checkpoint, asked)
    [name] = [name for name in used if name.endswith("word_embeddings.weight")]
    table = backbone.embeddings.token_embedding.embeddings
    np.testing.assert_array_equal(table, checkpoint.read_tensor(name))
    assert not backbone.pooler_is_new


def test_settings_of_answers_are_those_that_were_saved(checkpoint):
    assert loading.read_inference_settings(CLS, checkpoint) == {
        "window_pooling": "mean",
        "temperature": 2.0,
        "thresholds": None,
        "abstain_below": 0.75,
    }
    settings = loading.collect_task_settings(CLS, checkpoint, {"temperature": 5.0})
    assert settings["temperature"] == 5.0 and settings["abstain_below"] == 0.75


def test_settings_of_answers_are_kept_without_a_tokenizer(folder, tmp_path):
    task = CLS.from_preset(folder, preprocessor=None)
    assert task.temperature == 2.0
    task.save_to_preset(tmp_path / "without")
    again = CLS.from_preset(tmp_path / "without", preprocessor=None)
    assert again.preprocessor is None
    assert again.temperature == 2.0 and again.abstain_below == 0.75
