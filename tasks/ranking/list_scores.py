"""Base class for tasks that score every text in a row.

Comments use these letters for shapes: B batch, K texts of a row, L sequence.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.encoders.inputs import CANDIDATE, combine_texts
from encoder_zoo.tasks.base import head
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.tasks.preprocessing.batch_shapes import add_candidate_ranges


class TextScoringTask(Task):
    """Task that computes a logit for each text. A row contains one text or K texts.

    The first text of each row has the usual input names, with shape (B, L). The other texts have
    names that start with "candidate_", with shape (B, K - 1, L).
    """

    def _add_head(self, name: str, dropout: float | None) -> None:
        """Add a head with a single output, and finish building the task."""
        head.check_pooler(self, name)
        self.dropout = head.get_head_dropout(self.head_record, self.backbone, dropout)
        self._finish_building()

    def build_head(self) -> keras.layers.Layer:
        return head.make_head(self.head_record, self.backbone, 1, self.dropout, self.dtype_policy)

    def call(self, inputs, training=None):
        if CANDIDATE + "token_ids" not in inputs:
            return super().call(inputs, training)  # (B, 1)
        count = 1 + ops.shape(inputs[CANDIDATE + "token_ids"])[1]
        logits = super().call(combine_texts(inputs), training)  # (B * K, 1)
        return ops.reshape(logits, (-1, count))  # (B, K)

    def logits_of(self, encoded, inputs, training=None):
        return head.compute_text_logits(self, encoded, inputs, training)  # (B, 1)

    def compute_output_spec(self, inputs, training=None):
        batch, count = inputs["token_ids"].shape[0], 1
        if CANDIDATE + "token_ids" in inputs:
            others = inputs[CANDIDATE + "token_ids"].shape[1]
            count = None if others is None else 1 + others
        return keras.KerasTensor((batch, count), "float32")

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        return add_candidate_ranges(super().input_ranges(length))
