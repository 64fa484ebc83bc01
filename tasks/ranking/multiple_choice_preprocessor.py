"""Questions and their choices to examples, of a pair of texts for each choice.

Comment letters: N questions, T choices of all of them, W windows of all of these, M windows of a
question, B batch, L sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from encoder_zoo.common.lazy import array_ops, keras, tf
from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import (
    NonNegativeInt,
    PositiveInt,
    Rule,
    SequenceLength,
    validate_arguments,
)
from encoder_zoo.tasks.classification.sequence_classifier_preprocessor import (
    SequenceClassifierPreprocessor,
)
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed, with_candidates
from encoder_zoo.tasks.preprocessing.given_labels import Index
from encoder_zoo.tasks.preprocessing.inputs import Inputs, Text, Texts
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor


class ChoicePairs(NamedTuple):
    """Texts of the model's inputs, one pair for each choice.

    Attributes:
        first: (T,) contexts, or without these questions.
        second: (T,) questions with a choice each, or without contexts choices.
        counts: (N,) int64, the number of choices of each question.
    """

    first: array_ops.Tensor
    second: array_ops.Tensor
    counts: array_ops.Tensor


def choice_pairs(
    questions: array_ops.Tensor,
    choices: array_ops.RaggedTensor,
    contexts: array_ops.Tensor | None = None,
) -> ChoicePairs:
    """Return pairs of texts, choice after choice.

    Without contexts a pair is question and choice; with them context, and question with choice, as
    Radford et al. 2018 and Liu et al. 2019 have it.

    Args:
        questions, contexts: (N,) strings.
        choices: (N, None) strings.

    Source: Liu et al. 2019, RoBERTa, section 5.3, of RACE.

    Example:
        >>> import tensorflow as tf
        >>> choices = tf.ragged.constant([["She.", "He."]])
        >>> pairs = choice_pairs(tf.constant(["Who?"]), choices, tf.constant(["She sings."]))
        >>> pairs.first.numpy().tolist(), pairs.second.numpy().tolist()
        ([b'She sings.', b'She sings.'], [b'Who? She.', b'Who? He.'])
    """
    row = choices.value_rowids()
    first, second = array_ops.gather(questions, row), choices.values
    if contexts is not None:
        second = array_ops.strings.join([first, second], separator=" ")
        first = array_ops.gather(contexts, row)
    return ChoicePairs(first, second, choices.row_lengths())


ColumnNames = Annotated[
    Sequence[str],
    Rule(
        lambda v: isinstance(v, list | tuple) and len(v) in (2, 3) and set(map(type, v)) == {str},
        "a list of two names or three",
    ),
]
CHOICE_INDEX = "choice_index"  # of each of a question's windows; -1 where there is none


@serializable
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
    inputs = Inputs(
        Text("questions", "question"),
        Texts("choices", "choice"),
        Text("contexts", "context", optional=True),
        named=True,
    )
    label_values = Index("choice", "question")

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
        single = self.inputs.columns(x, self.text_columns)[0].shape.rank == 0
        return dataset.ragged_batch(batch_size) if single else dataset

    separate = Preprocessor.separate

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
        choice = array_ops.cast(windows.pop("text_index"), array_ops.int64)  # (W,) of T
        row = array_ops.gather(
            array_ops.repeat(array_ops.range(array_ops.size(counts, array_ops.int64)), counts),
            choice,
        )
        first_choice = array_ops.cumsum(counts, exclusive=True)  # (N,)
        number = array_ops.RaggedTensor.from_value_rowids(
            array_ops.range(array_ops.size(row)), row, nrows=array_ops.size(counts, array_ops.int64)
        )  # (N, None) of the windows
        firsts, others = number.row_starts(), number[:, 1:]
        examples = with_candidates(windows, firsts, others)
        index = array_ops.cast(choice - array_ops.gather(first_choice, row), array_ops.int32)
        examples[CHOICE_INDEX] = number.with_values(index)
        labels = None if y is None else self.label_values.read(y, counts)
        return self.with_labels(examples, labels, sample_weight)

    def encode_choices(self, x) -> tuple[dict, array_ops.Tensor]:
        """Return examples of all choices, and the number of choices of each question.

        Args:
            x: see `MultipleChoice.fit`.

        Returns:
            As of `encode_windows`, where "text_index" (W,) is the choice of each window, of all T
            of them; and (N,) int64.
        """
        pairs = choice_pairs(*self.texts_of(x))
        tokens = [self.tokenizer.tokenize(text) for text in (pairs.first, pairs.second)]
        if self.pools_windows:
            return self._encode_windows_of(tokens), pairs.counts
        examples = self.pack(tokens)
        return {
            **examples,
            "text_index": array_ops.range(array_ops.size(pairs.first)),
        }, pairs.counts

    def encode_labels(self, y) -> array_ops.Tensor:
        """Return labels, which `encode` has checked."""
        return y

    @validate_arguments
    def pad(self, examples: dict, bucketed: Bucketed = False) -> dict[str, array_ops.Tensor]:
        """Return the model's inputs (B, L), (B, M - 1, L) and (B, M)."""
        inputs = super().pad(examples, bucketed)
        if CHOICE_INDEX in examples:
            inputs[CHOICE_INDEX] = examples[CHOICE_INDEX].to_tensor(-1)
        return inputs
