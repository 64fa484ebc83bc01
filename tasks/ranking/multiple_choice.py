"""Multiple choice models, which select the answer to a question.

Comments use these letters for shapes: B batch, M windows of a question's choices, L sequence, D
hidden.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Self, Unpack

import keras
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import Rate, validate_arguments
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.answers import delegate_to_answers
from encoder_zoo.tasks.base.inference import compute_text_outputs_in_graph
from encoder_zoo.tasks.base.task import TaskPresetArguments, TinyData
from encoder_zoo.tasks.classification.window_pooling import WindowPooling, pool_windows
from encoder_zoo.tasks.losses.crossentropy import ClassCrossentropy
from encoder_zoo.tasks.ranking.choice_answers import ChoiceAnswers
from encoder_zoo.tasks.ranking.list_scores import TextScoringTask
from encoder_zoo.tasks.ranking.multiple_choice_preprocessor import (
    CHOICE_INDEX,
    MultipleChoicePreprocessor,
)
from encoder_zoo.tasks.training.metrics import ClassAccuracy
from encoder_zoo.tasks.training.objective import Objective


class MultipleChoicePresetArguments(TaskPresetArguments, total=False):
    """Types of the keyword arguments of `MultipleChoice.from_preset`."""

    window_length: int | None
    doc_stride: int
    window_pooling: WindowPooling
    text_columns: Sequence[str] | None


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MultipleChoice(TextScoringTask):
    """Select the best answer to a question, or the best ending for a text.

        model = ez.MultipleChoice.from_preset("roberta_base_en")
        model.fit((questions, choices, passages), answers)
        model.choose("What is the weather like?", ["It rains.", "It is Monday."])

    Each choice is passed to the model together with the question and, if provided, the context. The
    model computes a score for each choice. A softmax over the choices of a question converts scores
    to probabilities.

    Args:
        backbone: A `Backbone`. It must have a pooler if the head of its family uses the pooler
            output.
        preprocessor: Optional `MultipleChoicePreprocessor` for raw text.
        dropout: Float between 0 and 1. Dropout rate before the output layer. If None, the
            backbone's dropout rate will be used.
        window_pooling: String, "mean" or "max". How to pool the logits of a choice's windows, for
            training and answers. It is used if the preprocessor has a `window_length`. Defaults to
            "mean".

    For `fit`, `x` is `(questions, choices)`, `(questions, choices, contexts)`, or a table with
    these columns. The number of choices can differ between questions. `y` contains the index of the
    correct choice for each question.

    Call arguments:
        inputs: Dict of tensors, as returned by the preprocessor. Without "choice_index", each text
            is a choice.

    Returns:
        Float32 logits of shape (B, M), or (B, 1) for inputs without candidates. Logits are set to
        -1e9 for padding. For texts, `predict` returns a list with an array of logits of shape
        (choices,) per question.

    Raises:
        ValueError: If the head uses the pooler output, and `backbone` has no pooler.

    Source: Devlin et al. 2019, BERT, section 4.4, for SWAG. Liu et al. 2019, RoBERTa, section 5.3,
    for RACE.

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
        answers_class=ChoiceAnswers,
        text_method="choose",
        answer_settings=("window_pooling",),
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
        self._add_head("multiple choice model", dropout)

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[MultipleChoicePresetArguments]
    ) -> Self:
        """Load a multiple choice model, or an encoder with a new head.

        Works like `Task.from_preset`.

        Args:
            source: String or path. A name from `list_presets()`, a folder,
                `hf://organisation/name[@revision]`, or `kaggle://...`.
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

    choose = delegate_to_answers(ChoiceAnswers.choose)

    def signatures(self) -> dict[str, Callable]:
        """Return the functions to export: "serving_default" and "with_context".

        Both functions take "question" (N,) and "choices" (N, K). "with_context" also takes
        "context" (N,). Pad the choices of a question with empty strings.

        Returns:
            Dict of functions. Each function returns "index" (N,), the index of the best choice, and
            "score" (N, K), with a score of 0 for padding.
        """
        return self._answers.make_choose_functions(self._compute_logits_in_graph)

    def _compute_logits_in_graph(self, x: tuple) -> xp.Tensor:
        """Compute the logits (T,) of all choices inside a `tf.function`."""
        examples, _ = self.preprocessor.encode_choices(x)
        index = examples.pop("text_index")
        logits = compute_text_outputs_in_graph(self, examples, 1)
        return pool_windows(logits, index, self.window_pooling)[:, 0]


def pool_choice_logits(logits, choice_index, pooling: WindowPooling):
    """Pool the logits of windows to logits of choices, (B, M), with `MASKED_LOGIT` for padding.

    The output has the same shape as the logits of the windows, so the shape does not depend on the
    data. The output has enough columns, because each choice has at least one window.

    Args:
        logits: Float tensor of shape (B, M). Logits of the windows.
        choice_index: Integer tensor of shape (B, M). Index of the choice that each window belongs
            to, or -1 for padding.
        pooling: String, "mean" or "max". How to pool over a choice's windows.

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
