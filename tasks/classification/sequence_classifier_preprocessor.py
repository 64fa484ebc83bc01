"""Preprocessor for texts or pairs of texts with labels.

Comments use these letters for shapes: B batch, N texts, W windows, L sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import NonNegativeInt, Rule, SequenceLength, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.classification import class_labels
from encoder_zoo.tasks.preprocessing.batch_shapes import (
    Bucketed,
    combine_candidates,
    pad_candidates,
)
from encoder_zoo.tasks.preprocessing.columns import split_texts_and_labels
from encoder_zoo.tasks.preprocessing.given_labels import Labels
from encoder_zoo.tasks.preprocessing.inputs import Inputs, Text
from encoder_zoo.tasks.preprocessing.packing import compute_first_kept
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor, report_truncated
from encoder_zoo.tasks.preprocessing.windows import Windows, check_stride, make_full_windows, take

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

ColumnNames = Annotated[
    Sequence[str],
    Rule(
        lambda v: isinstance(v, list | tuple) and len(v) in (1, 2) and set(map(type, v)) == {str},
        "a list of one or two names",
    ),
]


@serializable
class SequenceClassifierPreprocessor(Preprocessor):
    """Convert texts or pairs of texts to `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    RoBERTa uses `<s> a </s>` and `<s> a </s></s> b </s>`. Long inputs are truncated. For pairs, the
    longer text is truncated first. If `window_length` is set, long inputs will be split into
    several windows instead. Labels are class indices or rows of probabilities. Class names are also
    accepted if the preprocessor belongs to a task with `labels`. If a class name is an integer,
    such as "1", integer labels are read as names. For the classes "1" to "5", for example, the
    label 1 means the first class.

    Args:
        tokenizer: The `Tokenizer` to use, from this package.
        sequence_length: Optional positive integer. See `Preprocessor`.
        window_length: Optional positive integer. Maximum number of tokens per window, including
            special tokens. Longer texts are split into several windows. For pairs, the longer text
            is split, and the other text is truncated to half of the window length and added to each
            window. If None, long texts are truncated.
        doc_stride: Integer. Minimum overlap between adjacent windows, in tokens. At most half of
            the window length. Defaults to 0.
        text_columns: Optional list of strings. Names of one or two text columns to read from a
            table. Required if the table has other columns.

    Returns:
        Model inputs, as for `Preprocessor`. With `window_length`, "token_ids" (B, L) contains the
        first window of each text, and "candidate_token_ids" (B, K - 1, L) contains the remaining
        windows. For a text with fewer windows, the padding mask of a missing window has one token.

    Raises:
        ValueError: If `window_length` is larger than the maximum length for the backbone, or if
            `doc_stride` is larger than half the window length or given without `window_length`.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello"])
        >>> x = SequenceClassifierPreprocessor(tokenizer)((["hello"], ["hello hello"]))
        >>> x["token_ids"].numpy().tolist(), x["segment_ids"].numpy().tolist()
        ([[2, 5, 3, 5, 5, 3]], [[0, 0, 0, 1, 1, 1]])
        >>> x = SequenceClassifierPreprocessor(tokenizer, window_length=4)(["hello hello hello"])
        >>> x["token_ids"].numpy().tolist(), x["candidate_token_ids"].numpy().tolist()
        ([[2, 5, 5, 3]], [[[2, 5, 5, 3]]])
    """

    task_name = "sequence_classifier"
    inputs = Inputs(Text("texts"), Text("second texts", optional=True), named=True)
    label_values = Labels("one label per text")

    @validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: SequenceLength | None = None,
        window_length: SequenceLength | None = None,
        doc_stride: NonNegativeInt = 0,
        text_columns: ColumnNames | None = None,
    ):
        super().__init__(tokenizer, sequence_length)
        self.window_length = window_length
        self.doc_stride = doc_stride
        self.text_columns = text_columns
        self._set_window_length()

    def attach(self, task: Task) -> None:
        super().attach(task)  # the maximum length of the backbone
        longest = task.backbone.max_sequence_length
        if (self.window_length or 0) > longest:
            raise invalid(
                "window_length",
                self.window_length,
                f"at most {longest}, the maximum length of the backbone",
            )
        self._set_window_length()

    def _set_window_length(self) -> None:
        if self.pools_windows:
            limits = self.sequence_length, self.window_length
            self.max_sequence_length = min(filter(None, limits))
            check_stride(self.doc_stride, (self.max_sequence_length - self.count_specials()) // 2)
        elif self.doc_stride:
            raise ValueError(
                f"doc_stride is {self.doc_stride}, but there are no windows. Pass `window_length`, "
                "or set doc_stride=0."
            )

    @property
    def one_example_per_text(self) -> bool:
        return not self.pools_windows

    @property
    def pools_windows(self) -> bool:
        return self.window_length is not None

    @property
    def truncation_advice(self) -> str:
        if self.pools_windows:
            return "Shorten this text, or use longer windows."
        length = self.max_sequence_length
        return f"Use from_preset(..., window_length={length}) to read the whole text in windows."

    def separate(self, x, y) -> tuple:
        several = self.problem_type == "multi_label_classification"
        return split_texts_and_labels(x, y, self.labels, several)

    def encode(self, x, y=None, sample_weight=None) -> dict:
        if not self.pools_windows:
            return super().encode(x, y, sample_weight)
        windows = self.encode_windows(x)
        index = windows.pop("text_index")
        numbers = xp.RaggedTensor.from_value_rowids(xp.range(xp.size(index)), index)  # (N, None)
        firsts, others = numbers.row_starts(), numbers[:, 1:]
        examples = combine_candidates(windows, firsts, others)
        return self.add_labels(examples, y, sample_weight)

    def encode_windows(self, x) -> dict:
        """Encode texts or pairs. Long inputs are split into several windows.

        Args:
            x: Texts or pairs, in any format supported by `encode`.

        Returns:
            Dict with the keys from `encode`, with one row per window, and "text_index", an int64
            tensor of shape (W,) with the index of the text that each window belongs to.
        """
        return self._encode_windows([self.tokenizer.tokenize(text) for text in self.read_texts(x)])

    def _encode_windows(self, tokens: list[xp.RaggedTensor]) -> dict:
        """Split the tokens (N, None) of one or two columns into windows, and encode the windows."""
        windows = self._split_into_windows(tokens)
        parts = [take(part, of_part) for part, of_part in zip(tokens, windows, strict=True)]
        return {**self.pack(parts), "text_index": windows[0].example}

    def _split_into_windows(self, tokens: list[xp.RaggedTensor]) -> list[Windows]:
        """Split the tokens of one or two columns into windows."""
        specials = self.count_specials(len(tokens) == 2)
        room = self.max_sequence_length - specials
        if room < 2 and len(tokens) == 2:
            raise invalid("window_length", self.window_length, f"at least {specials + 2} for pairs")
        lengths = [part.row_lengths() for part in tokens]
        longer, shared = lengths[0], xp.zeros_like(lengths[0])
        if len(tokens) == 2:
            longer, shorter = xp.maximum(*lengths), xp.minimum(*lengths)
            what = f"pairs have two texts longer than a window of {self.max_sequence_length} tokens"
            what = f"{what}, so {self.truncated_part} of the shorter text is truncated."
            report_truncated(shorter > room // 2, self, what)
            shared = xp.minimum(shorter, room // 2)
        capacity = room - shared
        windows = make_full_windows(longer, capacity, xp.minimum(capacity // 2, self.doc_stride))
        # If both texts are equally long, the second is split, as in truncation.
        is_longer = [lengths[0] > lengths[-1], lengths[0] <= lengths[-1]][-len(tokens) :]
        parts = []
        side = self.tokenizer.truncation_side
        for length, divided in zip(lengths, is_longer, strict=True):
            divided, rest, length = (
                xp.gather(v, windows.example) for v in (divided, shared, length)
            )
            begin = xp.where(divided, windows.begin, compute_first_kept(length, rest, side))
            length = xp.where(divided, windows.length, rest)
            parts.append(windows._replace(begin=begin, length=length))
        return parts

    @validate_arguments
    def pad(self, examples: dict, bucketed: Bucketed = False) -> dict[str, xp.Tensor]:
        """Pad examples to model inputs (B, L). Further windows become inputs (B, K - 1, L)."""
        if CANDIDATE + "token_ids" in examples:
            return pad_candidates(super().pad, examples, self.tokenizer.pad_token_id, bucketed)
        return super().pad(examples, bucketed)

    def encode_labels(self, y) -> xp.Tensor:
        """Convert labels to the targets of the problem type.

        For single-label classifiers, the targets are class indices (B,) or probabilities (B, C).
        For multi-label classifiers and regression, they are float32 values (B, C).

        Args:
            y: Class indices or names, or rows with C values. For multi-label classifiers, a list of
                names per text, or rows with 0s and 1s. For regression, numbers.

        Raises:
            ValueError: If `y` contains an unknown label. The message names the row.
        """
        return class_labels.convert_targets(y, self.problem_type, self.labels, self.num_classes)
