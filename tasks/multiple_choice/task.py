"""The task of multiple choice: which of some texts answers a question.

Comment letters: B batch, M windows of a question's choices, L sequence, D hidden.
"""

from __future__ import annotations

from typing import Unpack

import keras

from encoder_zoo.common.layer_arguments import LayerArguments
from encoder_zoo.common.validation import Rate, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.base.list_scores import ListScores
from encoder_zoo.tasks.base.task import TinyData
from encoder_zoo.tasks.multiple_choice.answering import Choosing
from encoder_zoo.tasks.multiple_choice.columns import NAMES
from encoder_zoo.tasks.multiple_choice.pooling import logits_of_choices
from encoder_zoo.tasks.multiple_choice.preprocessor import (
    CHOICE_INDEX,
    MultipleChoicePreprocessor,
)
from encoder_zoo.tasks.multiple_choice.presets import MultipleChoicePresets
from encoder_zoo.tasks.preprocessing.text_columns import columns_advice
from encoder_zoo.tasks.sequence_classification.pooling import WindowPooling
from encoder_zoo.tasks.training.logit_metrics import ClassAccuracy, ClassCrossentropy
from encoder_zoo.tasks.training.sources import is_dataset


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MultipleChoice(Choosing, MultipleChoicePresets, ListScores):
    """Choose the text that answers a question, or continues a text, from a list of them.

        model = ez.MultipleChoice.from_preset("roberta_base_en")
        model.fit((questions, choices, passages), answers)
        model.choose("What is the weather like?", ["It rains.", "It is Monday."])

    Each choice is read with its question, and with the context if there is one; the model scores
    it, and the scores of a question's choices are compared.

    Args:
        backbone: any `Backbone`; for families whose head reads the pooler's output one with a
            pooler.
        preprocessor: for raw text.
        dropout: before the output layer, in training; None is the backbone's.
        window_pooling: of a preprocessor with a `window_length`: the logit of a choice is the
            "mean" or the "max" of those of its windows, in training and in answers.

    `fit` takes x as `(questions, choices)` or `(questions, choices, contexts)`, or as a table of
    such columns. A question has a list of choices, of any number. y is the index of the right
    choice of each question.

    Call arguments:
        inputs: the preprocessor's outputs; of prepared inputs without "choice_index" each text is a
            choice.

    Returns:
        (B, M) float32 logits, -1e9 where there is no choice; of inputs without candidates (B, 1).
        `predict` of texts returns a list with the logits (choices,) of each question.

    Raises:
        ValueError: "A Bert model for multiple choice reads the pooler's output. ..."

    Source: Devlin et al. 2019, section 4.4, of SWAG; Liu et al. 2019, section 5.3, of RACE.

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

    task_name = "multiple_choice"
    checkpoint_class_suffix = "ForMultipleChoice"
    pipeline_tag = "multiple-choice"
    preprocessor_class = MultipleChoicePreprocessor
    text_method = "choose"
    column_roles = NAMES
    answer_settings = ("window_pooling",)
    predicts_lists = True
    output_activation = "softmax"

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

    # -- the model -----------------------------------------------------------------------------

    def call(self, inputs, training=None):
        logits = super().call(inputs, training)  # (B, M)
        if not {CHOICE_INDEX, CANDIDATE + "token_ids"} <= inputs.keys():
            return logits
        return logits_of_choices(logits, inputs[CHOICE_INDEX], self.window_pooling)

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        return {**super().input_ranges(length), CHOICE_INDEX: (-1, 2**31 - 1)}

    # -- training ------------------------------------------------------------------------------

    def default_loss(self) -> keras.losses.Loss:
        return ClassCrossentropy(from_logits=True)

    def default_metrics(self) -> list:
        return [ClassAccuracy(name="accuracy")]

    def _check_labels(self, x, y) -> None:
        if is_dataset(x) and y is None:
            y = keras.utils.unpack_x_y_sample_weight(x.element_spec)[1]
        if y is None:
            raise ValueError(
                "The labels are missing. Expected y: the index of the right choice of each "
                f"question.{columns_advice(x)}"
            )

    # -- checks of `encoder_zoo.testing` -------------------------------------------------------

    @classmethod
    def tiny_data(cls) -> TinyData:
        choices = [["a", "b"], ["c d", "a b ab", "e"], ["p"], ["d", "e", "f g"]]
        return TinyData({}, (["a b ab", "c", "c d e a b", "p"], choices), [1, 0, 0, 2])

    def tiny_questions(self) -> tuple:
        questions, choices = self.tiny_data().x
        return questions, [[row[0], "b c"] for row in choices]
