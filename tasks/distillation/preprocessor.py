"""Preprocessing for a student, and for its teacher if that reads other inputs.

Comment letters: B batch, L sequence.
"""

from __future__ import annotations

import keras

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.distillation.alignment import NOWHERE, positions_in_examples
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor, as_texts

# Prefix of the names of inputs that only the teacher reads.
TEACHER = "teacher_"
# Positions of the student's tokens in the teacher's example.
TEACHER_POSITIONS = "positions_in_teacher"


class DistillationPreprocessor(Preprocessor):
    """Makes a student's examples and, if the teacher reads other inputs, also those.

    Args:
        student: the student's preprocessor.
        teacher: the teacher's; None where it reads the student's examples.
        segments: makes the "segment_ids" of the student's examples for the teacher, where that has
            them and the student has not; or None.
        aligned: whether to add the position of the teacher's token that each of the student's
            corresponds to.

    Returns:
        When called `x`, `(x, y)` or `(x, y, sample_weight)` as the student's preprocessor. x also
        holds the teacher's inputs, as "teacher_token_ids" and so on, and without labels, where
        some texts or tokens count more than others, their weights: "soft_weights"; and "aligned"
        the "positions_in_teacher", (B, L) int32, -1 where there is no such token.
    """

    def __init__(
        self,
        student: Preprocessor,
        teacher: Preprocessor | None = None,
        segments: Preprocessor | None = None,
        aligned: bool = False,
    ):
        super().__init__(student.tokenizer, student.sequence_length)
        self.student = student
        self.teacher = teacher
        self.segments = segments
        self.aligned = aligned
        self.max_sequence_length = student.max_sequence_length

    @property
    def packed_length(self) -> int | None:
        return self.student.packed_length

    def batched(self, dataset: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        return self.student.batched(dataset, batch_size)

    def encode(self, x, y=None, sample_weight=None) -> dict:
        if y is None:
            examples = self.student.encode_unlabelled(x, sample_weight)
        else:
            examples = self.student.encode(x, y, sample_weight)
        if self.teacher is not None:
            teachers = self.teacher.encode(x)
            examples |= {TEACHER + name: values for name, values in teachers.items()}
        if self.aligned:
            examples[TEACHER_POSITIONS] = positions_in_examples(
                as_texts(x), self.student, self.teacher
            )
        return examples

    def collate(self, examples: dict, seed: tf.Tensor | None = None, bucketed: bool = False):
        own = {name: values for name, values in examples.items() if not name.startswith(TEACHER)}
        batch = self.student.collate(own, seed, bucketed)
        inputs, *rest = batch if isinstance(batch, tuple) else (batch,)
        inputs = {**inputs, **self._teachers(examples, own, bucketed)}
        if self.aligned:
            shape = tf.shape(inputs["token_ids"], tf.int64)
            positions = examples[TEACHER_POSITIONS].to_tensor(NOWHERE, shape=shape)
            inputs[TEACHER_POSITIONS] = tf.ensure_shape(positions, inputs["token_ids"].shape)
        if not rest:
            inputs |= _soft_weights(examples, tf.shape(inputs["token_ids"], tf.int64))
        return keras.utils.pack_x_y_sample_weight(inputs, *rest)

    def _teachers(self, examples: dict, own: dict, bucketed: bool) -> dict[str, tf.Tensor]:
        """Return the inputs that only the teacher reads."""
        if self.teacher is not None:
            named = {n.removeprefix(TEACHER): v for n, v in examples.items() if n not in own}
            padded = self.teacher.pad(named, bucketed)
        elif self.segments is not None:
            padded = {"segment_ids": self.segments.pad(own, bucketed)["segment_ids"]}
        else:
            padded = {}
        return {TEACHER + name: values for name, values in padded.items()}


def _soft_weights(examples: dict, shape: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the weights of texts (B,) or tokens (B, L) without labels, or None if all are
    equal."""
    if "label_weights" in examples:
        weights = examples["label_weights"].to_tensor(shape=shape)
        return {"soft_weights": tf.ensure_shape(weights, (None, None))}
    return {"soft_weights": examples["sample_weight"]} if "sample_weight" in examples else {}


def teacher_inputs(inputs: dict, uses_segments: bool) -> dict:
    """Return the teacher's own inputs, or the student's if both read the same.

    Args:
        inputs: of a `Distillation`.
        uses_segments: whether the teacher's family does.
    """
    own = {n.removeprefix(TEACHER): v for n, v in inputs.items() if n.startswith(TEACHER)}
    if "token_ids" in own:
        return own
    shared = {n: v for n, v in inputs.items() if uses_segments or n != "segment_ids"}
    return {**shared, **own}
