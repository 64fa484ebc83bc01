"""Preprocessing of questions and contexts. Labels are the first and last token of the answer.

Comments use these letters for shapes: B batch, L sequence, N questions, W windows.
"""

from __future__ import annotations

from typing import NamedTuple

from encoder_zoo.common import validation
from encoder_zoo.common.lazy import keras, tf, xp
from encoder_zoo.common.serializable import serializable
from encoder_zoo.tasks.preprocessing.batch_shapes import Bucketed
from encoder_zoo.tasks.preprocessing.checks import check_each
from encoder_zoo.tasks.preprocessing.preprocessor import (
    Preprocessor,
    check_same_count,
    convert_weights,
    report_truncated,
)
from encoder_zoo.tasks.preprocessing.tokenized_texts import find_overlapping
from encoder_zoo.tasks.preprocessing.windows import Windows, check_stride, make_windows, take
from encoder_zoo.tasks.question_answering import answers

DOC_STRIDE = 128
# A question is too long if it leaves space for fewer context tokens.
MIN_CONTEXT_TOKENS = 8
OUTSIDE_WINDOWS = (
    "questions have an answer that is not fully inside any window, so their label is no answer."
)


class QuestionContexts(NamedTuple):
    """Questions and their tokenized contexts.

    Attributes:
        texts: String tensor of shape (N,). The contexts.
        questions: Ragged int32 tensor of shape (N, None). Token ids of the questions.
        ids, starts, ends: Ragged int32 tensors of shape (N, None). Token ids of the contexts and
            their character offsets.
        windows: `Windows` of the contexts.
    """

    texts: xp.Tensor
    questions: xp.RaggedTensor
    ids: xp.RaggedTensor
    starts: xp.RaggedTensor
    ends: xp.RaggedTensor
    windows: Windows

    @property
    def has_characters(self) -> xp.RaggedTensor:
        """Return a ragged mask (N, None), which is False for tokens without characters.

        RoBERTa, for example, has separate tokens for spaces.
        """
        return self.ids.with_flat_values(self.starts.flat_values < self.ends.flat_values)


@serializable
class SpanQAPreprocessor(Preprocessor):
    """Convert questions and contexts to `[CLS] question [SEP] context [SEP]`.

    For RoBERTa, the model's separators are used. For XLNet, the start token comes last, so the
    order is `context <sep> question <sep> <cls>`, as in the original code and in transformers.

    Contexts longer than the maximum length are split into overlapping windows, with an example per
    window. The labels are the positions of the first and last answer token. If the answer is not
    fully inside the window, the position of the start token (used for "no answer") will be used for
    both labels.

    Args:
        tokenizer: The `Tokenizer` to use, from this package.
        sequence_length: Optional positive integer. See `Preprocessor`.
        window_length: Positive integer. Maximum number of tokens per example, including question
            and special tokens. Defaults to 384.
        doc_stride: Integer. Overlap between adjacent windows in tokens, as in transformers.
            This can be at most half the window length. For long questions, the overlap will be
            reduced to at most half the remaining space. Defaults to 128, or to half the length for
            smaller windows.

    Returns:
        When called with answers, `(x, y)`, with y an integer tensor of shape (B, 2). For models
        with a beam, "answer_mask" (B, L) is added to x to mark context tokens and the start token.
        With answers, "answer_start" (B, 1), the position of the first answer token, is also added.

    Raises:
        ValueError: If `doc_stride` is more than half a window, or if a window is too small for a
            question and its context.

    Source: Devlin et al. 2019, BERT, sections 4.2 and 4.3, and the released code. Yang et al. 2019,
    XLNet, the released code (run_squad.py).

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> words = ["who", "sings", "anna"]
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        >>> preprocessor = SpanQAPreprocessor(tokenizer)
        >>> answer = {"text": "Anna", "answer_start": 0}
        >>> x, y = preprocessor((["Who sings"], ["Anna sings"]), [answer])
        >>> x["token_ids"].numpy().tolist(), y.numpy().tolist()
        ([[2, 5, 6, 3, 7, 6, 3]], [[4, 4]])
    """

    task_name = "span_qa"
    inputs = answers.INPUTS
    label_values = answers.ANSWER_LABELS
    truncation_advice = "Pass a larger window_length or doc_stride to from_preset."
    marks_answers = False  # for a beam, see `attach`

    @validation.validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: validation.SequenceLength | None = None,
        window_length: validation.SequenceLength = 384,
        doc_stride: validation.NonNegativeInt = DOC_STRIDE,
    ):
        super().__init__(tokenizer, sequence_length)
        self.window_length = window_length
        self.doc_stride = doc_stride
        self._set_window_length()

    def attach(self, task) -> None:
        super().attach(task)
        self.marks_answers = bool(getattr(task, "beam", None))  # not in all tasks
        if self.marks_answers and self.tokenizer.first_column:
            raise ValueError(
                f"`beam` requires a start token after the texts, but "
                f"{type(self.tokenizer).__name__} adds it before the texts. Remove `beam`, or use "
                "XLNet."
            )
        self._set_window_length()

    @property
    def context_first(self) -> bool:
        """Return whether to put the context before the question, as in transformers."""
        return self.tokenizer.padding_side == "left"

    def _set_window_length(self) -> None:
        self.max_sequence_length = min(self.max_sequence_length, self.window_length)
        if self._max_question_tokens < 1:
            least = self._num_special_tokens + 1 + MIN_CONTEXT_TOKENS
            raise ValueError(
                f"`sequence_length` or `window_length` is {self.max_sequence_length}, but a "
                f"question and its context need at least {least} tokens. Pass a larger value."
            )
        if self.doc_stride != DOC_STRIDE:  # the default is half of a window that is smaller
            check_stride(
                self.doc_stride, (self.max_sequence_length - self._num_special_tokens) // 2
            )

    @validation.validate_arguments
    def tokenize_contexts(
        self, questions: xp.Tensor, contexts: xp.Tensor, allow_empty: bool = False
    ) -> QuestionContexts:
        """Tokenize questions (N,) and contexts (N,), and split the contexts into windows.

        Raises:
            ValueError: If a context is empty, or if a question is too long to leave space for the
                context.
        """
        question_ids = self.tokenizer.tokenize(xp.strings.strip(questions))
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(contexts)
        lengths, most = question_ids.row_lengths(), self._max_question_tokens
        message = ": the question has ", lengths, " tokens, so there is no space for its context "
        expected = f"in examples of {self.max_sequence_length} tokens. Expected at most {most}."
        lengths = check_each(lengths, lengths <= most, *message, expected, unit="Example")
        capacity = self.max_sequence_length - self._num_special_tokens - lengths  # (N,)
        doc_stride = xp.minimum(xp.cast(self.doc_stride, xp.int64), capacity // 2)
        windows = make_windows(ids.row_lengths(), capacity, doc_stride)
        found = QuestionContexts(contexts, question_ids, ids, starts, ends, windows)
        right = xp.reduce_any(found.has_characters, axis=1) | allow_empty
        return check_each(found, right, ": the context is empty.", unit="Example")

    @property
    def _num_special_tokens(self) -> int:
        return self.count_specials(is_pair=True)

    @property
    def _max_question_tokens(self) -> int:
        return self.max_sequence_length - self._num_special_tokens - MIN_CONTEXT_TOKENS

    def make_examples(self, contexts: QuestionContexts) -> dict:
        """Create an example per window, with the question and a part of the context."""
        windows = contexts.windows
        texts = [xp.gather(contexts.questions, windows.example), take(contexts.ids, windows)]
        examples = self.pack(texts[::-1] if self.context_first else texts)
        return {**examples, "text_index": windows.example}

    def find_context_start(self, examples: dict) -> xp.Tensor:
        """Return the position of the first context token, int32 (W,)."""
        return self._find_text_columns(examples)[0 if self.context_first else 1]

    def find_question_start(self, examples: dict) -> xp.Tensor:
        """Return the position of the first question token, int32 (W,)."""
        return self._find_text_columns(examples)[1 if self.context_first else 0]

    def _find_text_columns(self, examples: dict) -> tuple[xp.Tensor, xp.Tensor]:
        """Return the start positions for the first and second text."""
        lengths = examples["first_length"]
        first = xp.zeros_like(lengths) + self.tokenizer.first_column
        return first, lengths + self.tokenizer.template.num_second_segment_tokens

    def find_null_position(self, examples: dict) -> xp.Tensor:
        """Return the position of the start token (used for "no answer"), int32 (W,)."""
        lengths = xp.cast(examples["token_ids"].row_lengths(), xp.int32)
        return xp.zeros_like(lengths) if self.tokenizer.first_column else lengths - 1

    def encode(self, x, y=None, sample_weight=None) -> dict:
        questions, texts, y = answers.split_inputs(x, y)
        contexts = self.tokenize_contexts(questions, texts)
        examples = self.make_examples(contexts)
        if y is None:
            return examples
        examples["labels"] = self._find_labels(contexts, examples, *answers.check_answers(y, texts))
        if sample_weight is not None:
            weight = convert_weights(sample_weight)
            check_same_count({"token_ids": contexts.ids, "sample_weight": weight})
            examples["sample_weight"] = xp.gather(weight, contexts.windows.example)
        return examples

    def _find_labels(self, contexts: QuestionContexts, examples: dict, start, end) -> xp.Tensor:
        """Convert start and end offsets to token positions, int32 (W, 2)."""
        first, last = _find_answer_tokens(contexts, start, end)
        windows = contexts.windows
        begin = xp.cast(windows.begin, xp.int32)
        first, last, known = (xp.gather(v, windows.example) for v in (first, last, start >= 0))
        inside = known & (first >= begin) & (last < begin + xp.cast(windows.length, xp.int32))
        count = xp.size(start)
        found = xp.math.unsorted_segment_max(xp.cast(inside, xp.int32), windows.example, count)
        report_truncated((start >= 0) & (found < 1), self, OUTSIDE_WINDOWS)
        shift = self.find_context_start(examples) - begin
        columns = xp.stack([first + shift, last + shift], axis=1)
        return xp.where(inside[:, None], columns, self.find_null_position(examples)[:, None])

    @validation.validate_arguments
    def pad(self, examples: dict, bucketed: Bucketed = False) -> dict[str, xp.Tensor]:
        inputs = super().pad(examples, bucketed)
        if self.marks_answers:
            columns = xp.range(xp.shape(inputs["token_ids"])[1])
            null = self.find_null_position(examples)[:, None]
            inputs["answer_mask"] = (columns < examples["first_length"][:, None] - 1) | (
                columns == null
            )  # (B, L)
        return inputs

    def collate(self, examples: dict, seed=None, bucketed: Bucketed = False):
        batch = super().collate(examples, seed, bucketed)
        if not self.marks_answers or "labels" not in examples:
            return batch
        inputs, *labels = batch
        return ({**inputs, "answer_start": examples["labels"][:, :1]}, *labels)

    @validation.validate_arguments
    def batch_examples(
        self, dataset: tf.data.Dataset, batch_size: validation.PositiveInt
    ) -> tf.data.Dataset:
        """Batch single examples. Several answers to a question should be passed as vectors."""
        x = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0]
        question = x["question"] if isinstance(x, dict) else x[0]
        return dataset.ragged_batch(batch_size) if question.shape.rank == 0 else dataset


def _find_answer_tokens(contexts: QuestionContexts, start, end) -> tuple[xp.Tensor, xp.Tensor]:
    """Return the index of the first and last answer tokens, int32 (N,).

    Whitespace at the start and end is ignored, as it can be a separate token.
    """
    first_character, stop = answers.strip_white_space(contexts.texts, start, end)
    row = xp.range(xp.size(start), dtype=xp.int64)
    first, last = find_overlapping(contexts.starts, contexts.ends, row, first_character, stop)
    empty = (start >= 0) & ((first_character == stop) | (first > last))
    answer = xp.strings.substr(
        contexts.texts, xp.maximum(start, 0), xp.maximum(end - start, 0), unit="UTF8_CHAR"
    )
    expected = (
        "because the tokenizer removes all its characters. Correct the answer, or remove "
        "the example."
    )
    message = ": the answer ", answer, " has no token, ", expected
    return check_each((first, last), ~empty, *message, unit="Example")
