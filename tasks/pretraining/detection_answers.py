"""Detect replaced tokens in texts, based on the logits for all tokens.

Comments use these letters for shapes: N texts, L sequence, T tokens of all texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypedDict, overload

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.ragged_array import make_array
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.base.answers import Answers, prepares_in_numpy
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.base.records import make_records, pad_columns
from encoder_zoo.tasks.preprocessing.batching import map_graph_batches
from encoder_zoo.tasks.preprocessing.inputs import convert_column
from encoder_zoo.tasks.preprocessing.packing import truncate_tokens
from encoder_zoo.tasks.preprocessing.preprocessor import replace_invalid_text
from encoder_zoo.tasks.pretraining.replaced_tokens_preprocessor import (
    ReplacedTokenDetectionPreprocessor,
)


class ReplacedToken(TypedDict):
    """A token of a text, and the probability that it has been replaced."""

    token: str
    start: int
    end: int
    score: float


class DetectionAnswers(Answers):
    """The `Answers` of `ReplacedTokenDetection`."""

    preprocessor_class = ReplacedTokenDetectionPreprocessor
    instead_of_predict = "detect(texts)"
    methods = ("detect",)

    @overload
    def detect(self: Any, texts: str, batch_size: int | None = None) -> list[ReplacedToken]: ...
    @overload
    def detect(
        self: Any, texts: object, batch_size: int | None = None
    ) -> list[list[ReplacedToken]]: ...
    @overload
    def detect(
        self: Any, texts: object, *, missing: Literal["none"], **options: Any
    ) -> list[Any]: ...
    @validate_arguments
    @prepares_in_numpy
    @skips_missing("texts")
    def detect(
        self, texts, batch_size: PositiveInt | None = None, missing: Missing = "error"
    ) -> list[ReplacedToken] | list[list[ReplacedToken]]:
        """Compute a replacement probability for each token in a text.

        Args:
            texts: A text or a list of texts. Texts will be truncated to the model's maximum length.
            batch_size: Optional positive integer. Batch size, in texts. If None, 32 will be used.
            missing: String. How to handle rows with a missing text (None, NaN or blank). Use "none"
                to return None for these rows, or "error" to raise an error for the first such row.
                Defaults to "error".

        Returns:
            List of `{"token", "start", "end", "score"}` per text, in token order. "start" and "end"
            are character offsets into the text. If a single text is passed, a single list will be
            returned.
        """
        if isinstance(texts, str):
            return self.detect([texts], batch_size)[0]
        tensor = convert_column(texts)
        if not tensor.shape[0]:
            return []
        examples, tokens = self._encode(tensor)
        inputs = {name: values.numpy() for name, values in self.preprocessor.pad(examples).items()}
        logits = xp.constant(self.runner.predict(inputs, batch_size))
        return make_records(_add_scores(tokens, self._select_inner_logits(logits, examples)))

    def make_detect_function(self, run: Callable) -> Callable:
        """Create the function to export. See `ReplacedTokenDetection.signatures`.

        Args:
            run: Function that computes logits (N, L) from examples.
        """

        def select_inner(examples):
            return self._select_inner_logits(run(examples), examples)[:, None]

        def detect(text):
            examples, tokens = self._encode(replace_invalid_text(text))
            logits = map_graph_batches(select_inner, examples, tokens["start"].row_lengths(), 1)
            return pad_columns(_add_scores(tokens, logits.flat_values[:, 0]))

        return detect

    def _encode(self, texts: xp.Tensor) -> tuple[dict, dict]:
        """Encode texts, and return "token", "start" and "end" of their tokens, ragged (N, None)."""
        limit = self.preprocessor.max_sequence_length - self.preprocessor.count_specials()
        tokenizer = self.preprocessor.tokenizer
        tokens = tokenizer.tokenize_with_offsets(texts)
        ids, start, end = (
            truncate_tokens(values, limit, tokenizer.truncation_side) for values in tokens
        )
        names = xp.gather(xp.constant(self._names), ids.values)
        columns = {"token": ids.with_values(names), "start": start}
        return self.preprocessor.pack([tokens[0]]), {**columns, "end": end}

    @functools.cached_property
    def _names(self) -> np.ndarray:
        """The names of all tokens, strings in UTF-8 of shape (V,)."""
        return make_array(self.preprocessor.tokenizer.get_vocabulary())

    def _select_inner_logits(self, logits: xp.Tensor, examples: dict) -> xp.Tensor:
        """Select the logits (T,) for tokens that are not special tokens, from logits (N, L)."""
        lengths = examples["token_ids"].row_lengths() - self.preprocessor.count_specials()
        column = self.preprocessor.tokenizer.first_column
        return xp.RaggedTensor.from_tensor(logits[:, column:], lengths).values


def _add_scores(tokens: dict, logits: xp.Tensor) -> dict[str, xp.RaggedTensor]:
    return {**tokens, "score": tokens["start"].with_values(xp.sigmoid(logits))}
