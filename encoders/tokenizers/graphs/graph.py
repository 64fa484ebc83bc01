"""Tokenizer graph: characters, added tokens, normalizer, pre-tokenizer, model and offsets."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.common.lazy import use_tensorflow
from encoder_zoo.encoders.tokenizers.files.reading import make_byte_alphabet
from encoder_zoo.encoders.tokenizers.graphs import sentencepiece, wordpiece
from encoder_zoo.encoders.tokenizers.graphs.models import check_model, make_model, map_token_ids
from encoder_zoo.encoders.tokenizers.graphs.normalizers import make_normalizer
from encoder_zoo.encoders.tokenizers.graphs.words import Words, make_pre_tokenizer
from encoder_zoo.encoders.tokenizers.segmentation.added_tokens import (
    make_added_tokenizer,
    make_finder,
)
from encoder_zoo.encoders.tokenizers.segmentation.tokens import Tokens
from encoder_zoo.encoders.tokenizers.segmentation.word_table import WordLookup
from encoder_zoo.encoders.tokenizers.steps import SPACE, make_unsupported_error
from encoder_zoo.encoders.tokenizers.text.characters import Characters, decode_characters
from encoder_zoo.encoders.tokenizers.text.ragged import compute_row_ids

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Model, Steps


class TokenizerGraph(tf.Module):
    """Executes tokenizer steps with TensorFlow core operations.

    Args:
        steps: `Steps` to execute.
        model: `Model` to use with the steps.

    Raises:
        ValueError: If a step is not supported by TensorFlow operations.
    """

    def __init__(self, steps: Steps, model: Model):
        super().__init__()
        self._stripping = [token for token in steps.special_tokens if token["lstrip"]]
        texts = tf.TensorSpec([None], tf.string)
        words = tf.RaggedTensorSpec([None, None], tf.string)
        self.texts_to_ids = compile_method(self._compute_ids, [texts])
        self.texts_to_tokens = compile_method(self._encode, [texts])
        self.words_to_ids = compile_method(self._words_to_ids, [words])
        kind, ids = model.settings["type"], map_token_ids(model.settings)
        self._is_byte_level = "ByteLevel" in steps.list_types("pre_tokenizer")
        if kind == "WordPiece" and wordpiece.has_bert_steps(steps):
            self._model, self._pre_tokenize = wordpiece.BertWordPiece(steps, model), None
            self._normalizer = self._model.normalizer
        else:
            self._model = make_model(model, steps.unknown_id, self._is_byte_level)
            self._normalizer = make_normalizer(steps.normalizer)
            self._pre_tokenize = make_pre_tokenizer(steps.pre_tokenizer)
        self._splits_at_meta_symbols = steps.keeps_spaces and sentencepiece.are_tokens_within_words(
            ids
        )
        self._splits_at_meta_symbols &= kind in ("BPE", "Unigram") and not self._is_byte_level
        independent = self._splits_at_meta_symbols or not steps.keeps_spaces
        self.has_independent_words = steps.has_independent_words and independent
        self._without_space = None  # pattern of words to which no space is added
        if steps.keeps_spaces and not steps.inserts_space:
            special = [re.escape(token["content"]) for token in steps.special_tokens]
            self._without_space = "".join(rf"(?:{token})\C*|" for token in special)
        self._trims, self._spaces = steps.trims, None
        if self._trims:
            self._spaces = tf.constant(count_spaces(steps, ids))
        self._index_added_tokens(steps)
        split, prefix = None, ""
        if self.has_independent_words and self._pre_tokenize is None:
            split = wordpiece.make_bert_splitter(steps)
        elif self.has_independent_words and kind in ("BPE", "Unigram"):
            split, prefix = sentencepiece.make_splitter(steps), SPACE
        self._word_lookup = None
        if split:
            words = [token[len(prefix) :] for token in ids if token.startswith(prefix)]
            self._word_lookup = WordLookup(self._find_single_tokens(words), split)

    def _find_single_tokens(self, words: Sequence[str]) -> dict[str, int]:
        """Return {word: id} for all words with a single token."""
        ids, *_ = self._encode(tf.constant(words, tf.string))
        rows = np.flatnonzero(ids.row_lengths() == 1)
        found = tf.gather(ids.values, tf.gather(ids.row_starts(), rows)).numpy().tolist()
        return {words[row]: token_id for row, token_id in zip(rows, found, strict=True)}

    def _index_added_tokens(self, steps: Steps) -> None:
        """Create the finders of added tokens, which need the normalizer."""
        if len(steps.trims) > 1:
            raise make_unsupported_error("post_processor", steps.post_processor)
        options = {"trim_offsets": bool(steps.trims), "keep_first_space": any(steps.trims)}
        raw = [token for token in steps.tokens_in_texts if not token["normalized"]]
        normalized = [token for token in steps.tokens_in_texts if token["normalized"]]
        contents = [[ord(c) for c in token["content"]] for token in raw]
        self._raw_finder = make_finder(raw, contents, **options)
        self._normalized_finder = None
        if normalized:
            chars = self._normalizer(
                decode_characters(tf.constant([t["content"] for t in normalized]))
            )
            contents = tf.RaggedTensor.from_row_splits(chars.codes, chars.row_splits)
            self._normalized_finder = make_finder(normalized, contents.to_list(), **options)

    def _compute_ids(self, texts: tf.Tensor, as_words: bool = False) -> tf.RaggedTensor:
        """Return ids for texts (B,). With `as_words`, each text is a word that follows a space."""
        with tf.device("CPU"):  # a GPU would only add copies
            if as_words and self._without_space is not None:
                apart = tf.strings.regex_full_match(texts, self._without_space)
                texts = tf.where(apart, texts, tf.strings.join([" ", texts]))
            if self._word_lookup is None:
                return self._encode(texts, as_words)[0]
            return self._word_lookup.look_up_ids(
                texts, lambda part: self._encode(part, as_words)[0]
            )

    def _encode(self, texts: tf.Tensor, as_words: bool = False) -> tuple[tf.RaggedTensor, ...]:
        """Return ids, starts and ends for texts (B,). See `_compute_ids` for `as_words`."""
        with tf.device("CPU"):
            chars = decode_characters(texts)
            tokens = self._trim_spans(self._tokenize_with_added(chars, as_words))
            for token in self._stripping:  # exclude white space before the token from the span
                first = tokens.ends - len(token["content"])
                starts = tf.where(tokens.ids == token["id"], first, tokens.starts)
                tokens = tokens._replace(starts=starts)
            splits = tf.cast(tokens.row_splits, tf.int64)
            ids = tf.RaggedTensor.from_row_splits(tokens.ids, splits, validate=False)
            row = compute_row_ids(tokens.row_splits, tf.size(tokens.ids))
            row_start = tf.gather(chars.original_splits, row)
            return (
                ids,
                ids.with_values(tokens.starts - row_start),
                ids.with_values(tokens.ends - row_start),
            )

    def _tokenize_with_added(self, chars: Characters, as_words: bool) -> Tokens:
        """Find added tokens, and tokenize the text between them."""

        def tokenize(chars: Characters) -> Tokens:
            if self._pre_tokenize is None:
                return self._model(chars)
            words = Words.from_texts(chars)
            if as_words and self._is_byte_level:
                words = Words.from_texts(words.prepend(ord(" ")).chars)
            words = self._pre_tokenize(words)
            return self._model(
                sentencepiece.split_at_meta_symbols(words)
                if self._splits_at_meta_symbols
                else words
            )

        def normalize_and_tokenize(chars: Characters) -> Tokens:
            return make_added_tokenizer(self._normalized_finder, tokenize)(self._normalizer(chars))

        return make_added_tokenizer(self._raw_finder, normalize_and_tokenize)(chars)

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

    def _words_to_ids(self, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        with tf.device("CPU"):
            ids = self._compute_ids(words.values, as_words=True)  # (words, None)
            per_text = words.with_values(ids)
            within = tf.range(tf.size(words.values)) - tf.gather(
                tf.cast(words.row_splits, tf.int32), tf.cast(words.value_rowids(), tf.int32)
            )
            merged = per_text.merge_dims(1, 2)
            return merged, merged.with_values(tf.gather(within, ids.value_rowids()))


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


def count_spaces(steps: Steps, vocabulary: Mapping[str, int]) -> np.ndarray:
    """Return the number of leading and trailing spaces for each token, with shape (ids, 2)."""
    added = [token["id"] for token in steps.tokens_in_texts]
    size = 1 + max(*vocabulary.values(), *steps.skipped_ids, *added)
    spaces = np.zeros([size, 2], np.int32)
    space = make_byte_alphabet()[ord(" ")]
    spaces[[*vocabulary.values()]] = [
        [len(token) - len(rest) for rest in (token.lstrip(space), token.rstrip(space))]
        for token in vocabulary
    ]
    spaces[[token["id"] for token in steps.added_tokens]] = 0
    return spaces


def _call_weak_method(method: weakref.WeakMethod, *args):
    return method()(*args)


def compile_method(method: Callable, signature: Sequence[tf.TypeSpec]) -> Callable:
    """Compile a bound method to a `tf.function`.

    TensorFlow shows a warning for repeated tracing, and counts methods per class. A partial
    function is used to avoid this warning. The graph only holds a weak reference to the object, so
    that tables can be freed together with the object.
    """
    partial = functools.partial(_call_weak_method, weakref.WeakMethod(method))
    return tf.function(partial, input_signature=signature, autograph=False)
