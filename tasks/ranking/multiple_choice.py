"""Multiple choice models to select the answer to a question.

Comments use these letters for shapes: B batch, M windows of a question's choices, L sequence, D
hidden.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import keras
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.validation import PositiveInt, Rate, validate_arguments
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.inference import text_outputs_in_graph
from encoder_zoo.tasks.base.missing_answers import Missing
from encoder_zoo.tasks.base.task import TaskPresetArguments, TinyData
from encoder_zoo.tasks.classification.window_pooling import WindowPooling, pool_windows
from encoder_zoo.tasks.losses.crossentropy import ClassCrossentropy
from encoder_zoo.tasks.ranking.choice_answers import Choice, ChoiceAnswers
from encoder_zoo.tasks.ranking.list_scores import ListScores
from encoder_zoo.tasks.ranking.multiple_choice_preprocessor import (
    CHOICE_INDEX,
    MultipleChoicePreprocessor,
)
from encoder_zoo.tasks.training.metrics import ClassAccuracy
from encoder_zoo.tasks.training.objective import Objective

if TYPE_CHECKING:
    from typing import Self


class MultipleChoicePresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `MultipleChoice.from_preset`."""

    window_length: int | None
    doc_stride: int
    window_pooling: WindowPooling
    text_columns: Sequence[str] | None


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MultipleChoice(ListScores):
    """Select the best answer to a question, or the best ending for a text.

        model = ez.MultipleChoice.from_preset("roberta_base_en")
        model.fit((questions, choices, passages), answers)
        model.choose("What is the weather like?", ["It rains.", "It is Monday."])

    Each choice is passed to the model together with the question and, if provided, the context.
    This results in a score per choice, and the softmax is then computed on all scores for the same
    question.

    Args:
        backbone: A `Backbone`. A pooler is required if the pooler output is used by the head for
            this model family.
        preprocessor: `MultipleChoicePreprocessor` for raw text. Defaults to None.
        dropout: Float between 0 and 1. Dropout rate before the output layer. If None, the
            backbone's dropout rate will be used. Defaults to None.
        window_pooling: "mean" or "max". How to combine the window logits for each choice, during
            training and prediction. This is only used if `window_length` is set in the
            preprocessor. Defaults to "mean".

    For training, pass `(questions, choices)` or `(questions, choices, contexts)` as x, or a table
    with these columns. The list of choices can have a different length for each question. The
    labels y should be the indices of the correct choices.

    Call arguments:
        inputs: Dict of tensors, as returned by the preprocessor. If "choice_index" is not included,
            each text is treated as a choice.

    Returns:
        Float32 logits of shape (B, M), or (B, 1) for inputs without candidates. Logits are set to
        -1e9 for padding. When using `predict` on texts, a list with the logits (choices,) for each
        question is returned.

    Raises:
        ValueError: If a pooler is required but not included in the backbone.

    Source: Devlin et al. 2019, section 4.4, for SWAG. Liu et al. 2019, section 5.3, for RACE.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16)
        >>> inputs = {"token_ids": np.array([[2, 7, 3]]),
        ...           "candidate_token_ids": np.array([[[2, 8, 3], [2, 9, 3]]])}
        >>> keras.ops.shape(MultipleChoice(backbone)(inputs))
        (1, 3)
    """

    record = TaskRecord(
        "multiple_choice",
        MultipleChoicePreprocessor,
        head="ForMultipleChoice",
        pipeline_tag="multiple-choice",
        text_method="choose",
        answer_settings=("window_pooling",),
        predicts_lists=True,
    )
    objective = Objective(
        functools.partial(ClassCrossentropy, from_logits=True),
        lambda: [ClassAccuracy(name="accuracy")],
        "softmax",
        pads_classes=True,
    )

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: MultipleChoicePreprocessor | None = None,
        dropout: Rate | None = None,
        window_pooling: WindowPooling = "mean",
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.window_pooling = window_pooling
        self._add_head("model for multiple choice", dropout)

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[MultipleChoicePresetArguments]
    ) -> Self:
        """Load a pretrained multiple choice model, or an encoder to train with a new head.

        See also `Task.from_preset`.

        Args:
            source: Name from `list_presets()`, path to a folder, `hf://organisation/name` with an
                optional `@revision`, or `kaggle://...`.
            **arguments: Option for the model: `window_pooling`. Options for the preprocessor:
                `sequence_length`, `window_length`, `doc_stride` and `text_columns`. Options for the
                backbone, for example `dropout` and `dtype`. Option for the tokenizer:
                `added_tokens`. Options for the checks: `verify`, `max_bytes` and `allow_nonfinite`.
        """
        return super().from_preset(source, **arguments)

    # -- the model -----------------------------------------------------------------------------

    def call(self, inputs, training=None):
        logits = super().call(inputs, training)  # (B, M)
        if not {CHOICE_INDEX, CANDIDATE + "token_ids"} <= inputs.keys():
            return logits
        return pool_choice_logits(logits, inputs[CHOICE_INDEX], self.window_pooling)

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        return {**super().input_ranges(length), CHOICE_INDEX: (-1, 2**31 - 1)}

    # -- checks of `encoder_zoo.testing` -------------------------------------------------------

    @classmethod
    def tiny_data(cls) -> TinyData:
        choices = [["a", "b"], ["c d", "a b ab", "e"], ["p"], ["d", "e", "f g"]]
        questions = ["a b ab", "c", "c d e a b", "p"]
        of_one_length = questions, [[row[0], "b c"] for row in choices]
        return TinyData({}, (questions, choices), [1, 0, 0, 2], lambda task: of_one_length)

    # -- answers -----------------------------------------------------------------------------------

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
    @overload
    def choose(
        self,
        questions: object,
        choices: object,
        contexts: object = None,
        *,
        missing: Literal["none"],
        **options: Any,
    ) -> list[Any]: ...
    @validate_arguments
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
            questions: Question or questions to answer, as a string or a list, array, tensor or
                column of strings.
            choices: List of choices for each question. The lists can have different lengths. For a
                single question, pass a single list.
            contexts: Optional context for each question, for example a passage to read. Defaults to
                None.
            batch_size: Integer. The batch size, in choices, used for the computation. Defaults to
                32.
            top_k: Integer. The number of choices to return per question. If None, only the best
                choice is returned. Defaults to None.
            missing: "none" or "error". How to handle rows without text (e.g. None, NaN or blank
                strings). "none" returns None for these rows. "error" raises an error with the index
                of the first missing row. Defaults to "error".

        Returns:
            List with a dict `{"index", "text", "score"}` per question, containing the index in the
            list, the text and the probability for the best choice. With `top_k`, a list of dicts is
            returned per question, sorted by decreasing score. For a single question, only the entry
            for this question is returned.

        Raises:
            ValueError: If any list of choices is empty, or if the number of questions does not
                match the number of lists.

        Example:
            >>> from encoder_zoo import MultipleChoice
            >>> model = MultipleChoice.from_preset("bert_nano_en_uncased")  # with a new head
            >>> answer = model.choose("Where does Anna live?", ["In Rome.", "Blue.", "At ten."])
            >>> sorted(answer), len(model.choose(["Who?"], [["He.", "She."]], top_k=2)[0])
            (['index', 'score', 'text'], 2)
        """
        return self._answers_to(questions).choose(
            questions, choices, contexts, batch_size, top_k, missing
        )

    @property
    def _answers(self) -> ChoiceAnswers:
        return ChoiceAnswers(self.preprocessor, self, self.window_pooling)

    def signatures(self) -> dict[str, Callable]:
        """Return the functions to export: "serving_default" and "with_context".

        The inputs for both functions are "question" (N,) and "choices" (N, K). In addition,
        "context" (N,) is passed to "with_context". Use empty strings to pad questions with fewer
        choices.

        Returns:
            Dict of functions. Each function returns "index" (N,), the index of the best choice, and
            "score" (N, K), with a score of 0 for padding.
        """
        return self._answers.trace_choices(self._logits_in_graph)

    def _logits_in_graph(self, x: tuple) -> array_ops.Tensor:
        """Compute the logits for all choices (T,) inside a `tf.function`."""
        examples, _ = self.preprocessor.encode_choices(x)
        index = examples.pop("text_index")
        logits = text_outputs_in_graph(self, examples, 1)
        return pool_windows(logits, index, self.window_pooling)[:, 0]


def pool_choice_logits(logits, choice_index, pooling: WindowPooling):
    """Pool window logits into choice logits, (B, M). `MASKED_LOGIT` is used for padding.

    To avoid output shapes that depend on the data, the output has the same shape as the window
    logits. This is always enough, because each choice has at least one window.

    Args:
        logits: Window logits with shape (B, M).
        choice_index: Integer tensor of shape (B, M). Maps each window to a choice, or to -1 for
            padding.
        pooling: "mean" or "max", to pool over the windows for each choice.

    Example:
        >>> import numpy as np
        >>> logits = pool_choice_logits(np.float32([[1, 3, 7]]), np.array([[0, 0, 1]]), "mean")
        >>> ops.convert_to_numpy(logits)[:, :2].tolist()
        [[2.0, 7.0]]
    """
    count = choice_index.shape[-1]
    count = ops.shape(choice_index)[-1] if count is None else count
    choices = ops.arange(count, dtype="int32")
    belongs = choices[:, None] == ops.cast(choice_index, "int32")[:, None, :]  # (B, choices, M)
    values = ops.where(belongs, logits[:, None, :], MASKED_LOGIT)
    best = ops.max(values, axis=-1)
    if pooling == "max":
        return best
    number = ops.sum(ops.cast(belongs, logits.dtype), axis=-1)
    total = ops.sum(ops.where(belongs, values, 0.0), axis=-1)
    return ops.where(number > 0, total / ops.maximum(number, 1.0), MASKED_LOGIT)
