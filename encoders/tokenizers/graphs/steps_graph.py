"""Graph for arbitrary steps. Applies a normalizer, a pre-tokenizer and a model in sequence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.files.reading import count_surrounding_spaces
from encoder_zoo.encoders.tokenizers.graphs import sentencepiece
from encoder_zoo.encoders.tokenizers.graphs.byte_bpe import ByteBPE
from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph
from encoder_zoo.encoders.tokenizers.graphs.models import CharacterModel, WordLevel, map_token_ids
from encoder_zoo.encoders.tokenizers.graphs.normalizers import make_normalizer
from encoder_zoo.encoders.tokenizers.graphs.words import Words, make_pre_tokenizer
from encoder_zoo.encoders.tokenizers.segmentation.tokens import Tokens
from encoder_zoo.encoders.tokenizers.segmentation.word_table import WhitespaceWordLookup
from encoder_zoo.encoders.tokenizers.steps import SPACE

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
        kind, ids = model.settings["type"], map_token_ids(model.settings)
        splits_words = steps.keeps_spaces and sentencepiece.tokens_stay_in_words(ids)
        self.words_are_independent &= splits_words or not steps.keeps_spaces
        marks = kind in ("BPE", "Unigram") and sentencepiece.marks_words(steps)
        if marks:
            self._normalizer = make_normalizer(sentencepiece.drop_word_steps(steps.normalizer))
            self._pre_tokenize = sentencepiece.mark_words(steps, splits_words)
        else:
            self._normalizer = make_normalizer(steps.normalizer)
            self._pre_tokenize = make_pre_tokenizer(steps.pre_tokenizer)
        self._is_byte_level = "ByteLevel" in steps.list_types("pre_tokenizer")
        of_words = WordLevel if kind == "WordLevel" else CharacterModel
        model_class = ByteBPE if self._is_byte_level else of_words
        self._model = model_class(model, self.unknown_token_id)
        self._word_lookup = None
        if marks and "WhitespaceSplit" in steps.list_types("pre_tokenizer"):
            self._word_lookup = self._make_word_lookup(steps, ids)
        self._without_space = None  # words that follow a space, but do not start with one
        if steps.keeps_spaces and not steps.inserts_space:
            special = [re.escape(token["content"]) for token in steps.special_tokens]
            self._without_space = "".join(rf"(?:{token})\C*|" for token in special)
        self._trims, self._spaces = steps.trims, None
        if self._trims:
            self._spaces = tf.constant(count_spaces(steps, ids))
        self._index_added_tokens(steps)

    def _make_word_lookup(
        self, steps: Steps, ids: Mapping[str, int]
    ) -> WhitespaceWordLookup | None:
        """Create a lookup table for words with a single token, or return None if not supported."""
        if (rules := sentencepiece.get_lookup_rules(steps.normalizer)) is None:
            return None
        tokens = [token for token in ids if token.startswith(SPACE)]
        found = zip(tokens, self._model.look_up_single_tokens(tokens).tolist(), strict=True)
        special = {-1, *steps.skipped_ids}
        words = {token.removeprefix(SPACE): i for token, i in found if i not in special}
        return WhitespaceWordLookup(words, *rules)

    def _compute_ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        if as_words and self._without_space is not None:
            apart = tf.strings.regex_full_match(texts, self._without_space)
            texts = tf.where(apart, texts, tf.strings.join([" ", texts]))
        if self._word_lookup is None or not self.words_are_independent:
            return super()._compute_ids(texts, as_words)
        return self._word_lookup.look_up_ids(texts, lambda parts: self._encode(parts, as_words)[0])

    def _normalize(self, chars: Characters) -> Characters:
        return self._normalizer(chars)

    def _add_prefix_space(self, chars: Characters, as_words: bool) -> Characters:
        if as_words and self._is_byte_level:
            return Words.from_texts(chars).prepend(ord(" ")).chars
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


def count_spaces(steps: Steps, vocabulary: Mapping[str, int]) -> np.ndarray:
    """Return the number of leading and trailing spaces for each token, with shape (ids, 2)."""
    added = [token["id"] for token in steps.tokens_in_texts]
    size = 1 + max(*vocabulary.values(), *steps.skipped_ids, *added)
    spaces = np.zeros([size, 2], np.int32)
    spaces[[*vocabulary.values()]] = count_surrounding_spaces(list(vocabulary))
    spaces[[token["id"] for token in steps.added_tokens]] = 0
    return spaces
