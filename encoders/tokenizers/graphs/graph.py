"""Base class for tokenizer graphs. Handles characters, added tokens, offsets and words."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.added_tokens import (
    make_added_tokenizer,
    make_finder,
)
from encoder_zoo.encoders.tokenizers.segmentation.tokens import Tokens
from encoder_zoo.encoders.tokenizers.steps import make_unsupported_error
from encoder_zoo.encoders.tokenizers.text.characters import Characters, decode_characters
from encoder_zoo.encoders.tokenizers.text.ragged import compute_row_ids

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Model, Steps


class TokenizerGraph(tf.Module):
    """The tables and graphs of a tokenizer, implemented with TensorFlow core operations.

    Subclasses must implement `_tokenize(characters)`, and call `_index_added_tokens` at the end of
    `__init__`.

    Args:
        steps: `Steps` to execute.
        model: `Model` to use with the steps.
    """

    def __init__(self, steps: Steps, model: Model):
        super().__init__()
        self.words_are_independent = steps.words_are_independent
        self.unknown_token_id = steps.unknown_id
        self._stripping = [token for token in steps.special_tokens if token["lstrip"]]
        texts = tf.TensorSpec([None], tf.string)
        words = tf.RaggedTensorSpec([None, None], tf.string)
        self.texts_to_ids = compile_method(self._texts_to_ids, [texts])
        self.texts_to_tokens = compile_method(self._texts_to_tokens, [texts])
        self.words_to_ids = compile_method(self._words_to_ids, [words])

    def _index_added_tokens(self, steps: Steps) -> None:
        """Create the finders of added tokens. The subclass must have set the normalizer."""
        if len(steps.trims) > 1:
            raise make_unsupported_error("post_processor", steps.post_processor)
        options = {"trim_offsets": bool(steps.trims), "keep_first_space": any(steps.trims)}
        raw = [token for token in steps.tokens_in_texts if not token["normalized"]]
        normalized = [token for token in steps.tokens_in_texts if token["normalized"]]
        contents = [[ord(c) for c in token["content"]] for token in raw]
        self._raw_finder = make_finder(raw, contents, **options)
        self._normalized_finder = None
        if normalized:
            chars = self._normalize(
                decode_characters(tf.constant([t["content"] for t in normalized]))
            )
            contents = tf.RaggedTensor.from_row_splits(chars.codes, chars.row_splits)
            self._normalized_finder = make_finder(normalized, contents.to_list(), **options)

    def _texts_to_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        with tf.device("CPU"):
            return self._compute_ids(texts, as_words=False)

    def _compute_ids(self, texts: tf.Tensor, as_words: bool) -> tf.RaggedTensor:
        """Return ids from `_encode`. This can be overridden with a faster implementation."""
        return self._encode(texts, as_words)[0]

    def _texts_to_tokens(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        return self._encode(texts, as_words=False)

    def _encode(self, texts: tf.Tensor, as_words: bool) -> tuple[tf.RaggedTensor, ...]:
        """Return ids, starts and ends for texts (B,), or for words that each follow a space."""
        with tf.device("CPU"):  # a GPU would only add copies
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

        def tokenize(parts: Characters) -> Tokens:
            return self._tokenize(self._add_prefix_space(parts, as_words))

        def normalize_and_tokenize(parts: Characters) -> Tokens:
            return make_added_tokenizer(self._normalized_finder, tokenize)(self._normalize(parts))

        return make_added_tokenizer(self._raw_finder, normalize_and_tokenize)(chars)

    def _normalize(self, chars: Characters) -> Characters:
        """Normalize characters."""
        return chars

    def _add_prefix_space(self, chars: Characters, as_words: bool) -> Characters:
        """Insert a space before the first word, if this is done by the pre-tokenizer."""
        return chars

    def _tokenize(self, chars: Characters) -> Tokens:
        """Split normalized texts into tokens."""
        raise NotImplementedError

    def _trim_spans(self, tokens: Tokens) -> Tokens:
        """Trim token spans, if this is done by the post-processor."""
        return tokens

    def _words_to_ids(self, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        with tf.device("CPU"):
            ids = self._compute_ids(words.values, as_words=True)  # (words, None)
            per_text = words.with_values(ids)
            within = tf.range(tf.size(words.values)) - tf.gather(
                tf.cast(words.row_splits, tf.int32), tf.cast(words.value_rowids(), tf.int32)
            )
            merged = per_text.merge_dims(1, 2)
            return merged, merged.with_values(tf.gather(within, ids.value_rowids()))


def _call(method: weakref.WeakMethod, *args):
    return method()(*args)


def compile_method(method: Callable, signature: Sequence[tf.TypeSpec]) -> Callable:
    """Compile a bound method to a `tf.function`.

    TensorFlow shows a warning for repeated tracing, and counts methods per class. A partial
    function is used to avoid this warning. The graph only holds a weak reference to the object, so
    that tables can be freed together with the object.
    """
    partial = functools.partial(_call, weakref.WeakMethod(method))
    return tf.function(partial, input_signature=signature, autograph=False)
