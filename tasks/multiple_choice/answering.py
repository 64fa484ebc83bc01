"""The answers of a model for multiple choice, in memory and in exports.

Comment letters: N questions, K choices of a question, T choices of all of them, W windows of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict, overload

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.tasks.base.class_names import softmax
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.preprocessing.checks import has_text
from encoder_zoo.tasks.preprocessing.text_lists import as_text_lists
from encoder_zoo.tasks.sequence_classification.answering import pooled_predictions
from encoder_zoo.tasks.sequence_classification.pooling import pooled_by_text
from encoder_zoo.tasks.training.sources import check_preprocessor


class Choice(TypedDict):
    """A choice of a question: its index, its text, and its probability among all choices."""

    index: int
    text: str
    score: float


class Choosing:
    """Mixin of `MultipleChoice`."""

    @overload
    def choose(
        self,
        questions: str,
        choices: Sequence[str],
        contexts: str | None = None,
        batch_size: int | None = None,
        top_k: None = None,
    ) -> Choice: ...
    @overload
    def choose(
        self,
        questions: str,
        choices: Sequence[str],
        contexts: str | None = None,
        batch_size: int | None = None,
        *,
        top_k: int,
    ) -> list[Choice]: ...
    @overload
    def choose(
        self,
        questions: object,
        choices: object,
        contexts: object = None,
        batch_size: int | None = None,
        top_k: None = None,
    ) -> list[Choice]: ...
    @overload
    def choose(
        self,
        questions: object,
        choices: object,
        contexts: object = None,
        batch_size: int | None = None,
        *,
        top_k: int,
    ) -> list[list[Choice]]: ...
    @validate_arguments
    def choose(
        self,
        questions: object,
        choices: object,
        contexts: object = None,
        batch_size: PositiveInt | None = None,
        top_k: PositiveInt | None = None,
    ):
        """Return which of its choices answers each question.

        Args:
            questions: list, array, tensor or column of texts; or a single text.
            choices: a list of texts for each question, of any number; of a single question its
                list.
            contexts: texts that the questions are about, one for each, or None.
            batch_size: of choices that are read together, default 32.
            top_k: return the best choices, so many, in place of the best one.

        Returns:
            For every question `{"index", "text", "score"}` of the best choice: its index in the
            list, itself, and its probability. With `top_k` a list of the best, the best first. Of a
            single question its answer alone.

        Raises:
            ValueError: "Row 1 of choices is empty. ...", "Expected as many lists of choices as
                questions. ..."

        Example:
            >>> from encoder_zoo import MultipleChoice
            >>> model = MultipleChoice.from_preset("bert_nano_en_uncased")  # with a new head
            >>> answer = model.choose("Where does Anna live?", ["In Rome.", "Blue.", "At ten."])
            >>> sorted(answer), len(model.choose(["Who?"], [["He.", "She."]], top_k=2)[0])
            (['index', 'score', 'text'], 2)
        """
        if isinstance(questions, str | bytes):
            given = None if contexts is None else [contexts]
            return self.choose([questions], [choices], given, batch_size, top_k)[0]
        x = (questions, choices) if contexts is None else (questions, choices, contexts)
        check_preprocessor(self, x)
        logits = self.predict(x, batch_size, verbose=0)
        texts = as_text_lists(choices, "choices", "question").to_list()
        rows = [_ranked(*row) for row in zip(logits, texts, strict=True)]
        return [row[0] for row in rows] if top_k is None else [row[:top_k] for row in rows]

    def _predict_texts(self, x, batch_size: int, predict: Callable) -> list[np.ndarray]:
        """Return the logits of the choices (K,) of each question, in their order."""
        examples, counts = self.preprocessor.encode_choices(x)
        pooled = pooled_predictions(self, examples, batch_size, 1)  # (T, 1)
        return np.split(pooled[:, 0], np.cumsum(counts.numpy())[:-1]) if len(counts) else []

    def signatures(self) -> dict[str, Callable]:
        """Return `choose` for exports: of "question" (N,) and "choices" (N, K), and as
        "with_context" of these and "context" (N,).

        Where a question has fewer choices, the last are "".

        Returns:
            Functions whose results are "index" (N,) of the best choice and "score" (N, K), which is
            0 where there is no choice.
        """

        def answer(question, choices, *context):
            present = has_text_in_rows(choices)
            lists = tf.ragged.boolean_mask(choices, present)
            logits = self._logits_in_graph((question, lists, *context))
            logits = tf.tensor_scatter_nd_update(
                tf.fill(tf.shape(choices), MASKED_LOGIT), tf.where(present), logits
            )
            score = tf.where(present, tf.nn.softmax(logits), 0.0)
            return {"index": tf.argmax(logits, axis=1, output_type=tf.int32), "score": score}

        def with_context(context, question, choices):
            return answer(question, choices, context)

        functions = {
            "serving_default": lambda question, choices: answer(question, choices),
            "with_context": with_context,
        }
        for function in functions.values():
            function.takes_other_shapes = True
            function.ranks = {"choices": 2}
        return functions

    def _logits_in_graph(self, x: tuple) -> tf.Tensor:
        """Return the logits of all choices (T,), inside `tf.function`."""
        examples, _ = self.preprocessor.encode_choices(x)
        index = examples.pop("text_index")
        ones = tf.ones_like(examples["token_ids"].row_lengths())
        logits = in_graph_batches(self._logits_of_examples, examples, ones, 1).flat_values
        return pooled_by_text(logits, index, self.window_pooling)[:, 0]

    def _logits_of_examples(self, examples: dict):
        return self(self.preprocessor.pad(examples), training=False)


def has_text_in_rows(choices: tf.Tensor) -> tf.Tensor:
    """Return which of the choices (N, K) are there, bool."""
    return tf.reshape(has_text(tf.reshape(choices, [-1])), tf.shape(choices))


def _ranked(logits: np.ndarray, texts: list[bytes]) -> list[Choice]:
    """Return the choices of a question, the best first."""
    scores = softmax(logits)
    order = np.argsort(-logits, kind="stable").tolist()
    return [{"index": i, "text": texts[i].decode(), "score": scores[i].item()} for i in order]
