"""Chooses the graph that executes the steps of a tokenizer."""

from __future__ import annotations

import tensorflow as tf

from encoder_zoo.common.lazy import for_graphs
from encoder_zoo.encoders.tokenizers.files.reading import byte_alphabet
from encoder_zoo.encoders.tokenizers.graphs.bertweet import BertweetGraph
from encoder_zoo.encoders.tokenizers.graphs.byte_bpe import ByteBPEGraph
from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
from encoder_zoo.encoders.tokenizers.graphs.sentencepiece import SentencePieceGraph
from encoder_zoo.encoders.tokenizers.graphs.wordpiece import WordPieceGraph
from encoder_zoo.encoders.tokenizers.steps import (
    WORD_END,
    Model,
    Steps,
    model_settings,
    without_interpreter,
)

_BPE = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
# {graph: settings that its model must have}
SETTINGS = {
    WordPieceGraph: {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    ByteBPEGraph: {**_BPE, "byte_fallback": False, "fuse_unk": False},
    SentencePieceGraph: {**_BPE, "ignore_merges": False, "fuse_unk": True},
    BertweetGraph: {**_BPE, "end_of_word_suffix": WORD_END, "ignore_merges": False},
}


def make_graph(steps: Steps, model: Model) -> TokenizerGraph:
    """Build the tables and graphs that execute steps and model.

    Raises:
        ValueError: If a step or the model has no interpreter in TensorFlow's operations.
    """
    graph = choose_graph(steps, model)
    settings = model_settings(model.settings, model.settings["type"])
    for name, expected in SETTINGS[graph].items():
        if settings.get(name, expected) != expected:
            raise without_interpreter("model", [{name: settings[name]}])
    with tf.init_scope(), for_graphs():  # its tables belong to no graph of the user
        return graph(steps, model)


def choose_graph(steps: Steps, model: Model) -> type[TokenizerGraph]:
    """Return the class of the graph that executes a model after its words were found."""
    kind, vocabulary = model.settings["type"], model.settings["vocab"]
    if kind == "WordPiece":
        return WordPieceGraph
    if kind not in ("BPE", "Unigram"):
        raise without_interpreter("model", [{"type": kind}])
    is_byte_level = "ByteLevel" in steps.types("pre_tokenizer")
    if not (is_byte_level and set(byte_alphabet()) <= {*vocabulary}):
        unknown = "unk_token" if kind == "BPE" else "unk_id"
        if model.settings.get(unknown) is None:
            raise without_interpreter("model", [{unknown: None}])
    if is_byte_level:
        return ByteBPEGraph
    return BertweetGraph if model.settings.get("end_of_word_suffix") else SentencePieceGraph
