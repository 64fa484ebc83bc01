"""Convert logits to answers for multiple choice questions.

Comments use these letters for shapes: N questions, K choices of a question, T choices of all
questions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, overload

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.tasks.base.answers import Answers, prepares_in_numpy
from encoder_zoo.tasks.base.classes import compute_softmax
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.classification.window_pooling import WindowPooling, predict_pooled
from encoder_zoo.tasks.preprocessing.inputs import convert_text_lists, has_text
from encoder_zoo.tasks.ranking.multiple_choice_preprocessor import MultipleChoicePreprocessor


class Choice(TypedDict):
    """A choice with its index, its text and its probability as the score."""

    index: int
    text: str
    score: float


@dataclasses.dataclass(frozen=True)
class ChoiceAnswers(Answers):
    """The `Answers` of `MultipleChoice`.

    Attributes:
        window_pooling: String, "mean" or "max". How to pool the logits of a choice's windows.
    """

    preprocessor_class = MultipleChoicePreprocessor
    methods = ("choose",)
    returns_lists = True
    window_pooling: WindowPooling = "mean"

    @prepares_in_numpy
    def predict_texts(self, x: Any, batch_size: int | None = None) -> list[np.ndarray]:
        """Compute the choice logits (K,) for each question, in the given order."""
        examples, counts = self.preprocessor.encode_choices(x)
        pooled = predict_pooled(self.runner, examples, batch_size, 1, self.window_pooling)
        return np.split(pooled[:, 0], np.cumsum(counts.numpy())[:-1]) if len(counts) else []

    @overload
    def choose(
        self: Any,
        questions: str,
        choices: Sequence[str],
        contexts: str | None = None,
        batch_size: int | None = None,
        top_k: None = None,
    ) -> Choice: ...
    @overload
    def choose(
        self: Any,
        questions: str,
        choices: Sequence[str],
        contexts: str | None = None,
        batch_size: int | None = None,
        *,
        top_k: int,
    ) -> list[Choice]: ...
    @overload
    def choose(
        self: Any,
        questions: object,
        choices: object,
        contexts: object = None,
        batch_size: int | None = None,
        top_k: None = None,
    ) -> list[Choice]: ...
    @overload
    def choose(
        self: Any,
        questions: object,
        choices: object,
        contexts: object = None,
        batch_size: int | None = None,
        *,
        top_k: int,
    ) -> list[list[Choice]]: ...
    @overload
    def choose(
        self: Any,
        questions: object,
        choices: object,
        contexts: object = None,
        *,
        missing: Literal["none"],
        **options: Any,
    ) -> list[Any]: ...
    @validate_arguments
    @prepares_in_numpy
    @skips_missing("questions", "choices", "contexts")
    def choose(
        self,
        questions: object,
        choices: object,
        contexts: object = None,
        batch_size: PositiveInt | None = None,
        top_k: PositiveInt | None = None,
        missing: Missing = "error",
    ):
        """Choose the best answers to questions.

        Args:
            questions: String, or list, array, tensor or column of strings. The questions to answer.
            choices: List of choices for each question. The lists can have different lengths. For a
                single question, pass a single list.
            contexts: Optional list of strings, or a string for a single question. A context for
                each question, for example a passage to read.
            batch_size: Optional positive integer. Batch size, in choices. If None, 32 is used.
            top_k: Optional positive integer. Number of choices to return per question. If None,
                only the best choice is returned.
            missing: String. How to handle rows with a missing text (None, NaN or blank). Use "none"
                to return None for these rows, or "error" to raise an error for the first such row.
                Defaults to "error".

        Returns:
            List with a dict `{"index", "text", "score"}` per question: the index, the text and the
            probability of the best choice. With `top_k`, a list of dicts per question, sorted by
            score in descending order. For a single question, the answer is returned without the
            outer list.

        Raises:
            ValueError: If a list of choices is empty, or if `questions` and `choices` differ in
                length.

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
        logits = self.predict_texts(x, batch_size)
        texts = convert_text_lists(choices, "choices", "question").to_list()
        rows = [_rank_choices(*row) for row in zip(logits, texts, strict=True)]
        return [row[0] for row in rows] if top_k is None else [row[:top_k] for row in rows]

    def make_choose_functions(self, run: Callable) -> dict[str, Callable]:
        """Create the functions to export. See `MultipleChoice.signatures`.

        Args:
            run: Function that computes the logits (T,) of all choices from a tuple of questions
                (N,), ragged choices (N, None) and, optionally, contexts (N,).
        """

        def choose(question, choices, *context):
            present = has_text(xp.reshape(choices, [-1]))
            present = xp.reshape(present, xp.shape(choices))  # False for padding
            lists = xp.ragged.boolean_mask(choices, present)
            logits = xp.tensor_scatter_nd_update(
                xp.fill(xp.shape(choices), MASKED_LOGIT),
                xp.where(present),
                run((question, lists, *context)),
            )
            score = xp.where(present, xp.nn.softmax(logits), 0.0)
            index = xp.argmax(logits, axis=1, output_type=xp.int32)
            return {"index": index, "score": score}

        functions = {
            "serving_default": lambda question, choices: choose(question, choices),
            "with_context": lambda context, question, choices: choose(question, choices, context),
        }
        for function in functions.values():
            function.takes_other_shapes = True
            function.ranks = {"choices": 2}
        return functions


def _rank_choices(logits: np.ndarray, texts: list[bytes]) -> list[Choice]:
    """Return a question's choices, sorted by probability in descending order."""
    scores = compute_softmax(logits)
    order = np.argsort(-logits, kind="stable").tolist()
    return [{"index": i, "text": texts[i].decode(), "score": scores[i].item()} for i in order]
