"""Questions and their choices to examples, of a pair of texts for each choice.

Comment letters: N questions, T choices of all of them, W windows of all of these, M windows of a
question, B batch, L sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import keras

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import (
    NonNegativeInt,
    PositiveInt,
    Rule,
    SequenceLength,
    validate_arguments,
)
from encoder_zoo.tasks.multiple_choice.columns import choice_numbers, choice_pairs, columns_of
from encoder_zoo.tasks.preprocessing.candidates import with_candidates
from encoder_zoo.tasks.sequence_classification.preprocessor import SequenceClassifierPreprocessor

ColumnNames = Annotated[
    Sequence[str],
    Rule(
        lambda v: isinstance(v, list | tuple) and len(v) in (2, 3) and set(map(type, v)) == {str},
        "a list of two names or three",
    ),
]
CHOICE_INDEX = "choice_index"  # of each of a question's windows; -1 where there is none


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MultipleChoicePreprocessor(SequenceClassifierPreprocessor):
    """Questions and choices to `[CLS] question [SEP] choice [SEP]` for each choice; with contexts
    to `[CLS] context [SEP] question choice [SEP]`.

    Too long pairs are truncated, the longer text first; or, with `window_length`, the longer text
    is read in several windows.

    Args:
        tokenizer: any of this package's.
        sequence_length: see `Preprocessor`.
        window_length, doc_stride: see `SequenceClassifierPreprocessor`.
        text_columns: names of the columns of questions, choices and, if there are any, contexts, in
            tables with others beside them.

    Returns:
        As of `Preprocessor`: the first choice of each question is "token_ids" (B, L), and the
        others are "candidate_token_ids" (B, M - 1, L), in their order, each with all of its
        windows. "choice_index" (B, M) is the choice of each, -1 where a question has fewer.

    Source: Radford et al. 2018, Improving Language Understanding by Generative Pre-Training, figure
    1; Liu et al. 2019, RoBERTa, section 5.3.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "you", "me"]
        >>> preprocessor = MultipleChoicePreprocessor(BertTokenizer(words))
        >>> x, y = preprocessor((["who"], [["you", "me"]]), [1])
        >>> x["token_ids"].numpy().tolist(), x["candidate_token_ids"].numpy().tolist()
        ([[2, 5, 3, 6, 3]], [[[2, 5, 3, 7, 3]]])
        >>> x["choice_index"].numpy().tolist(), y.numpy().tolist()
        ([[0, 1]], [1])
    """

    task_name = "multiple_choice"

    @validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: SequenceLength | None = None,
        window_length: SequenceLength | None = None,
        doc_stride: NonNegativeInt = 0,
        text_columns: ColumnNames | None = None,
    ):
        super().__init__(tokenizer, sequence_length, window_length, doc_stride)
        self.text_columns = text_columns

    @validate_arguments
    def batched(self, dataset: tf.data.Dataset, batch_size: PositiveInt) -> tf.data.Dataset:
        """Return a dataset of single questions in batches, choices as ragged; others unchanged."""
        x = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0]
        single = columns_of(x, self.text_columns)[0].shape.rank == 0
        return dataset.ragged_batch(batch_size) if single else dataset

    def encode(self, x, y=None, sample_weight=None) -> dict:
        """Return examples of token ids, not padded.

        Args:
            x: see `MultipleChoice.fit`.
            y: the index of the right choice of each question, or None.
            sample_weight: one number for each question, or None.

        Returns:
            Tensors with one row per question: "token_ids" ragged (N, None) and "first_length" of
            its first window, "candidate_..." of the others, ragged (N, None, ...), "choice_index"
            ragged (N, None) int32; and where given "labels" and "sample_weight".
        """
        windows, counts = self.encode_choices(x)
        choice = tf.cast(windows.pop("text_index"), tf.int64)  # (W,) of T
        row = tf.gather(tf.repeat(tf.range(tf.size(counts, tf.int64)), counts), choice)
        first_choice = tf.cumsum(counts, exclusive=True)  # (N,)
        number = tf.RaggedTensor.from_value_rowids(
            tf.range(tf.size(row)), row, nrows=tf.size(counts, tf.int64)
        )  # (N, None) of the windows
        firsts, others = number.row_starts(), number[:, 1:]
        examples = with_candidates(windows, firsts, others)
        index = tf.cast(choice - tf.gather(first_choice, row), tf.int32)
        examples[CHOICE_INDEX] = number.with_values(index)
        labels = None if y is None else choice_numbers(y, counts)
        return self.with_labels(examples, labels, sample_weight)

    def encode_choices(self, x) -> tuple[dict, tf.Tensor]:
        """Return examples of all choices, and the number of choices of each question.

        Args:
            x: see `MultipleChoice.fit`.

        Returns:
            As of `encode_windows`, where "text_index" (W,) is the choice of each window, of all T
            of them; and (N,) int64.
        """
        pairs = choice_pairs(x, self.text_columns)
        texts = pairs.first, pairs.second
        if self.pools_windows:
            return self.encode_windows(texts), pairs.counts
        examples = self.pack([self.tokenizer.tokenize(text) for text in texts])
        return {**examples, "text_index": tf.range(tf.size(pairs.first))}, pairs.counts

    def texts_of(self, x) -> list[tf.Tensor]:
        """Return the two columns of texts (T,) of pairs, which `choice_pairs` has checked."""
        return list(x)

    def encode_labels(self, y) -> tf.Tensor:
        """Return labels, which `encode` has checked."""
        return y

    @validate_arguments
    def pad(self, examples: dict, bucketed: bool = False) -> dict[str, tf.Tensor]:
        """Return the model's inputs (B, L), (B, M - 1, L) and (B, M)."""
        inputs = super().pad(examples, bucketed)
        if CHOICE_INDEX in examples:
            inputs[CHOICE_INDEX] = examples[CHOICE_INDEX].to_tensor(-1)
        return inputs
