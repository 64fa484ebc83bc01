"""Graph for arbitrary steps. Applies a normalizer, a pre-tokenizer and a model in sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.files.reading import surrounding_spaces
from encoder_zoo.encoders.tokenizers.graphs.byte_bpe import ByteBPE
from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
from encoder_zoo.encoders.tokenizers.graphs.models import CharacterModel, WordLevel, token_ids
from encoder_zoo.encoders.tokenizers.graphs.normalizers import make_normalizer
from encoder_zoo.encoders.tokenizers.graphs.words import (
    Words,
    is_text_start,
    make_pre_tokenizer,
)
from encoder_zoo.encoders.tokenizers.segmentation.tokens import Tokens
from encoder_zoo.encoders.tokenizers.steps import SPACE
from encoder_zoo.encoders.tokenizers.text.normalization import is_special_token

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Model, Steps
    from encoder_zoo.encoders.tokenizers.text.characters import Characters


class StepsGraph(TokenizerGraph):
    """Graph for all steps that are supported by TensorFlow operations.

    Args:
        steps: `Steps` to execute.
        model: `Model` to use with the steps.
    """

    def __init__(self, steps: Steps, model: Model):
        super().__init__(steps, model)
        self._normalizer = make_normalizer(steps.normalizer)
        self._pre_tokenize = make_pre_tokenizer(steps.pre_tokenizer)
        is_byte_level = "ByteLevel" in steps.types("pre_tokenizer")
        of_words = WordLevel if model.settings["type"] == "WordLevel" else CharacterModel
        kind = ByteBPE if is_byte_level else of_words
        self._model = kind(model, self.unknown_token_id, self.special_ids)
        self._is_byte_level = is_byte_level
        self._needs_space = steps.keeps_spaces and not steps.inserts_space
        self._trims, self._spaces = steps.trims, None
        if self._trims:
            self._spaces = tf.constant(spaces_around(steps, token_ids(model.settings)))
        self._index_added_tokens(steps)

    def _normalize(self, chars: Characters) -> Characters:
        return self._normalizer(chars)

    def _add_prefix_space(self, chars: Characters, as_words: bool) -> Characters:
        words = Words.from_texts(chars)
        if as_words and self._is_byte_level:
            return words.prepend(ord(" ")).chars
        if as_words and self._needs_space:  # spaces are already replaced by "▁"
            wanted = words.begins & is_text_start(chars) & ~is_special_token(chars.codes)
            return words.insert(ord(SPACE), wanted).chars
        return chars

    def _tokenize(self, chars: Characters) -> Tokens:
        return self._model(self._pre_tokenize(Words.from_texts(chars)))

    def _trim_spans(self, tokens: Tokens) -> Tokens:
        """Exclude spaces at both ends from token spans, as in RobertaProcessing."""
        if not self._trims:
            return tokens
        ids, starts, ends, rows = tokens
        leading, trailing = tf.unstack(tf.gather(self._spaces, ids), num=2, axis=1)
        if self._trims[0]:  # a single leading space is treated like an inserted space
            first = tf.boolean_mask(rows[:-1], rows[:-1] < rows[1:])
            ones = tf.cast(tf.gather(leading, first) == 1, tf.int32)
            leading = tf.tensor_scatter_nd_sub(leading, first[:, None], ones)
        starts = tf.minimum(starts + leading, ends)
        return Tokens(ids, starts, tf.maximum(ends - trailing, starts), rows)


def spaces_around(steps: Steps, vocabulary: Mapping[str, int]) -> np.ndarray:
    """Return the number of leading and trailing spaces for each token, with shape (ids, 2)."""
    added = [token["id"] for token in (*steps.special_tokens, *steps.added_tokens)]
    size = 1 + max(*vocabulary.values(), *steps.skipped_ids, *added)
    spaces = np.zeros([size, 2], np.int32)
    spaces[[*vocabulary.values()]] = surrounding_spaces(list(vocabulary))
    spaces[[token["id"] for token in steps.added_tokens]] = 0
    return spaces
