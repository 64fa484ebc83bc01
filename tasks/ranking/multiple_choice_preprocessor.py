"""Convert questions and choices to text pairs, one pair per choice.

Comments use these letters for shapes: N questions, T choices of all questions, W windows of all
choices, M windows of a question, B batch, L sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from encoder_zoo.common import validation
from encoder_zoo.common.lazy import keras, tf, xp
from encoder_zoo.common.serializable import serializable
from encoder_zoo.tasks.classification.sequence_classifier_preprocessor import (
    SequenceClassifierPreprocessor,
)
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed, combine_candidates
from encoder_zoo.tasks.preprocessing.given_labels import CandidateIndex
from encoder_zoo.tasks.preprocessing.inputs import Inputs, Text, Texts
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor


class ChoicePairs(NamedTuple):
    """Text pairs for the model, one for each choice.

    Attributes:
        first: String tensor of shape (T,). The contexts, or the questions if there are no contexts.
        second: String tensor of shape (T,). Each question joined with a choice, or only the choices
            if there are no contexts.
        counts: Int64 tensor of shape (N,). The number of choices per question.
    """

    first: xp.Tensor
    second: xp.Tensor
    counts: xp.Tensor


def make_choice_pairs(
    questions: xp.Tensor, choices: xp.RaggedTensor, contexts: xp.Tensor | None = None
) -> ChoicePairs:
    """Create the text pairs for all choices.

    Without contexts, each question is paired with each of its choices. With contexts, each context
    is paired with its question joined with a choice, as in Radford et al. 2018 and Liu et al. 2019.

    Args:
        questions, contexts: String tensors of shape (N,).
        choices: Ragged string tensor of shape (N, None).

    Source: Liu et al. 2019, RoBERTa, section 5.3, for RACE.

    Example:
        >>> import tensorflow as tf
        >>> choices = tf.ragged.constant([["She.", "He."]])
        >>> pairs = make_choice_pairs(tf.constant(["Who?"]), choices, tf.constant(["She sings."]))
        >>> pairs.first.numpy().tolist(), pairs.second.numpy().tolist()
        ([b'She sings.', b'She sings.'], [b'Who? She.', b'Who? He.'])
    """
    row = choices.value_rowids()
    first, second = xp.gather(questions, row), choices.values
    if contexts is not None:
        second = xp.strings.join([first, second], separator=" ")
        first = xp.gather(contexts, row)
    return ChoicePairs(first, second, choices.row_lengths())


ColumnNames = Annotated[
    Sequence[str],
    validation.Rule(
        lambda v: isinstance(v, list | tuple) and len(v) in (2, 3) and set(map(type, v)) == {str},
        "a list of two or three names",
    ),
]
CHOICE_INDEX = "choice_index"  # index of the choice of each window, or -1 for padding


@serializable
class MultipleChoicePreprocessor(SequenceClassifierPreprocessor):
    """Convert each choice to `[CLS] question [SEP] choice [SEP]`.

    With contexts, the format is `[CLS] context [SEP] question choice [SEP]`. If a pair is too long,
    the longer text is truncated first. If `window_length` is set, the longer text is split into
    windows instead.

    Args:
        tokenizer: A tokenizer of this package.
        sequence_length: See `Preprocessor`.
        window_length, doc_stride: See `SequenceClassifierPreprocessor`.
        text_columns: Optional list of strings. Names of the columns with the questions, the choices
            and, optionally, the contexts. Required if a table has other columns.

    Returns:
        Model inputs, as for `Preprocessor`. "token_ids" (B, L) contains the first window of each
        question, and "candidate_token_ids" (B, M - 1, L) contains the remaining windows, in the
        order of the choices. "choice_index" (B, M) is the index of the choice that each window
        belongs to, or -1 for padding.

    Source: Radford et al. 2018, Improving Language Understanding by Generative Pre-Training, figure
    1. Liu et al. 2019, RoBERTa, section 5.3.

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
    inputs = Inputs(
        Text("questions", "question"),
        Texts("choices", "choice"),
        Text("contexts", "context", optional=True),
        named=True,
    )
    label_values = CandidateIndex("choice", "question")

    @validation.validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: validation.SequenceLength | None = None,
        window_length: validation.SequenceLength | None = None,
        doc_stride: validation.NonNegativeInt = 0,
        text_columns: ColumnNames | None = None,
    ):
        super().__init__(tokenizer, sequence_length, window_length, doc_stride)
        self.text_columns = text_columns

    @validation.validate_arguments
    def batch_examples(
        self, dataset: tf.data.Dataset, batch_size: validation.PositiveInt
    ) -> tf.data.Dataset:
        """Batch a dataset of single questions. Choices become ragged tensors."""
        x = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0]
        single = self.inputs.get_columns(x, self.text_columns)[0].shape.rank == 0
        return dataset.ragged_batch(batch_size) if single else dataset

    separate = Preprocessor.separate

    def encode(self, x, y=None, sample_weight=None) -> dict:
        """Convert inputs to token ids without padding.

        Args:
            x: See `MultipleChoice.fit`.
            y: Optional index of the correct choice for each question.
            sample_weight: Optional weight for each question.

        Returns:
            Dict of tensors with one row per question. "token_ids", ragged (N, None), and
            "first_length" belong to the first window. Names that start with "candidate_", ragged
            (N, None, ...), belong to the remaining windows. "choice_index" is int32, ragged (N,
            None). "labels" and "sample_weight" are included if they are given.
        """
        windows, counts = self.encode_choices(x)
        choice = xp.cast(windows.pop("text_index"), xp.int64)  # (W,) indices of choices
        row = xp.gather(xp.repeat(xp.range(xp.size(counts, xp.int64)), counts), choice)
        first_choice = xp.cumsum(counts, exclusive=True)  # (N,)
        number = xp.RaggedTensor.from_value_rowids(
            xp.range(xp.size(row)), row, nrows=xp.size(counts, xp.int64)
        )  # (N, None) windows
        firsts, others = number.row_starts(), number[:, 1:]
        examples = combine_candidates(windows, firsts, others)
        index = xp.cast(choice - xp.gather(first_choice, row), xp.int32)
        examples[CHOICE_INDEX] = number.with_values(index)
        labels = None if y is None else self.label_values.convert(y, counts)
        return self.add_labels(examples, labels, sample_weight)

    def encode_choices(self, x) -> tuple[dict, xp.Tensor]:
        """Encode the text pairs of all choices.

        Args:
            x: See `MultipleChoice.fit`.

        Returns:
            Tuple of the examples, in the format of `encode_windows`, and an int64 tensor of shape
            (N,) with the number of choices per question. "text_index" (W,) is the index of each
            window's choice among all T choices.
        """
        pairs = make_choice_pairs(*self.read_texts(x))
        tokens = [self.tokenizer.tokenize(text) for text in (pairs.first, pairs.second)]
        if self.pools_windows:
            return self._encode_windows(tokens), pairs.counts
        examples = self.pack(tokens)
        return {**examples, "text_index": xp.range(xp.size(pairs.first))}, pairs.counts

    def encode_labels(self, y) -> xp.Tensor:
        """Return the labels unchanged, because `encode` has checked them."""
        return y

    @validation.validate_arguments
    def pad(self, examples: dict, bucketed: Bucketed = False) -> dict[str, xp.Tensor]:
        """Pad examples to model inputs (B, L), (B, M - 1, L) and (B, M)."""
        inputs = super().pad(examples, bucketed)
        if CHOICE_INDEX in examples:
            inputs[CHOICE_INDEX] = examples[CHOICE_INDEX].to_tensor(-1)
        return inputs
