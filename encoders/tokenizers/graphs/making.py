"""Check that a model is supported, and build the graph to execute tokenizer steps."""

from __future__ import annotations

import tensorflow as tf

from encoder_zoo.common.lazy import use_tensorflow
from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet
from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
from encoder_zoo.encoders.tokenizers.steps import (
    Model,
    Steps,
    get_model_settings,
    make_unsupported_error,
)

_BPE = {"dropout": None, "continuing_subword_prefix": None}
_CHARACTER_BPE = {**_BPE, "ignore_merges": False}
_BYTE_BPE = {**_BPE, "byte_fallback": False, "fuse_unk": False, "end_of_word_suffix": None}
_WORDPIECE = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}


def make_graph(steps: Steps, model: Model) -> TokenizerGraph:
    """Build the tables and graphs to execute tokenizer steps and a model.

    Args:
        steps: `Steps` to execute.
        model: `Model` to use with the steps.

    Raises:
        ValueError: If a step or the model is not supported by TensorFlow operations.
    """
    check_model(steps, model)
    with tf.init_scope(), use_tensorflow():  # do not add tables to a user's graph
        return TokenizerGraph(steps, model)


def check_model(steps: Steps, model: Model) -> None:
    """Raise a ValueError if a model setting is not supported."""
    kind, vocabulary = model.settings["type"], model.settings["vocab"]
    settings = get_model_settings(model.settings, kind)
    is_byte_level = "ByteLevel" in steps.list_types("pre_tokenizer")
    needs_unknown = True
    if kind == "BPE":
        needs_unknown = not (is_byte_level and set(make_byte_alphabet()) <= {*vocabulary})
        expected, unknown = _BYTE_BPE if is_byte_level else _CHARACTER_BPE, "unk_token"
        if settings["end_of_word_suffix"]:  # the library also converts the suffix to bytes
            expected = {**expected, "byte_fallback": False}
    elif kind == "Unigram" and not is_byte_level:
        expected, unknown = {}, "unk_id"
    elif kind in ("WordPiece", "WordLevel") and not is_byte_level:
        expected, unknown = _WORDPIECE if kind == "WordPiece" else {}, "unk_token"
    else:
        raise make_unsupported_error("model", [{"type": kind}])
    for name, value in expected.items():
        if settings.get(name, value) != value:
            raise make_unsupported_error("model", [{name: settings[name]}])
    if needs_unknown and settings.get(unknown, model.settings.get(unknown)) is None:
        raise make_unsupported_error("model", [{unknown: None}])
