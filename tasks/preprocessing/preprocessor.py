"""Base class for the preprocessors, which encode texts as examples and pad examples to batches.

Comments use these letters for shapes: B (batch size), L (sequence length).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from encoder_zoo.common.configuration import ConfigFromSignature, make_repr
from encoder_zoo.common.context import get_context, use_context
from encoder_zoo.common.lazy import keras, tf, xp
from encoder_zoo.common.validation import PositiveInt, SequenceLength, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.presets.origin import check_tokenizer
from encoder_zoo.tasks.preprocessing.batch_shapes import LENGTHS, Bucketed, pack_batch
from encoder_zoo.tasks.preprocessing.batching import find_bucket_length
from encoder_zoo.tasks.preprocessing.checks import check_each, check_no_iterator, convert_numbers
from encoder_zoo.tasks.preprocessing.inputs import Inputs, Text
from encoder_zoo.tasks.preprocessing.packing import compute_segments, pack, pad

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.presets.formats.preset_task import FolderFormat
    from encoder_zoo.tasks.preprocessing.given_labels import LabelValues

logger = logging.getLogger("encoder_zoo")


class HasBackbone(Protocol):
    """Protocol for tasks. A preprocessor only reads the backbone of a task."""

    backbone: Backbone


class Preprocessor(ConfigFromSignature):
    """Base class for the preprocessors.

    Preprocessing has two steps, so that texts are tokenized once, but padded for every batch. Use
    `encode` to convert texts to examples of variable length, and `collate` to pad examples to a
    batch. Calling the preprocessor runs both steps. All steps are TensorFlow ops, which can be run
    in `tf.data` and saved in a SavedModel. On JAX and PyTorch, NumPy is used instead (see
    `common.lazy`).

    Args:
        tokenizer: `Tokenizer` from this package.
        sequence_length: Optional positive integer. Every batch is padded to this length, and longer
            texts are truncated. If None, a batch is padded to its longest example, and texts are
            truncated to the model's maximum length.
    """

    # Name of the task that the preprocessor is for. Any other task rejects it.
    task_name: str | None = None
    # Whether the tokens of each text or pair form one example in the original order.
    one_example_per_text = False
    # Whether the outputs for the windows of a text are pooled to one output.
    pools_windows = False
    # Advice that is logged if texts are truncated.
    truncation_advice = "Split them into shorter texts."
    # Maximum number of tokens per example, for preprocessors with this argument.
    max_length: int | None = None
    # Columns of texts that the task reads.
    inputs: Inputs = Inputs(Text("texts"), Text("second texts", optional=True))
    # Names of these columns in tables with more columns, for preprocessors with this argument.
    text_columns: Sequence[str] | None = None
    # Description of the labels, such as `Numbers()`. None if labels are unsupported or optional.
    label_values: LabelValues | None = None
    fixed_settings = ("sequence_length", "max_length", "window_length", "doc_stride")
    # Set from the backbone, see `attach`.
    num_segments: int = 3
    # Set from the task, see `attach`.
    labels: list[str] | None = None
    num_classes: int | None = None
    problem_type: str | None = None

    @validate_arguments
    def __init__(self, tokenizer: Tokenizer, sequence_length: SequenceLength | None = None):
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length
        self.max_sequence_length = sequence_length or tokenizer.model_max_length or 512

    def __repr__(self) -> str:
        return make_repr(self, repr(self.tokenizer))

    @classmethod
    def from_preset(cls, source: str | os.PathLike[str], **arguments: Any) -> Self:
        """Create a preprocessor with the tokenizer and the settings from a preset.

        Args:
            source: String or path. See `Task.from_preset`.
            **arguments: Keyword arguments for the preprocessor, such as `sequence_length=128`. The
                arguments `added_tokens` and the arguments for file checks are also supported, as in
                `Task.from_preset`.

        Raises:
            TypeError: If an argument is unknown.

        Example:
            >>> from encoder_zoo import SequenceClassifierPreprocessor
            >>> preprocessor = SequenceClassifierPreprocessor.from_preset("bert_nano_en_uncased")
            >>> preprocessor(["Good!"])["token_ids"].shape
            TensorShape([1, 4])
        """
        from encoder_zoo.presets import loading

        return loading.load_preprocessor(cls, source, **arguments)

    @staticmethod
    def get_folder_format() -> FolderFormat:
        """Return the folder format in which presets are saved and loaded."""
        from encoder_zoo.presets.formats.preset_task import TRANSFORMERS_FOLDER

        return TRANSFORMERS_FOLDER

    def attach(self, task: HasBackbone) -> None:
        """Copy the labels and lengths of a task. This method is called when the task is built.

        Args:
            task: Task with a backbone.

        Raises:
            ValueError: If the tokenizer or the sequence length does not match the task's backbone.
        """
        backbone = task.backbone
        if self.tokenizer.vocabulary_size > backbone.vocabulary_size:
            raise ValueError(
                f"The tokenizer has {self.tokenizer.vocabulary_size} tokens, but the backbone has "
                f"embeddings for {backbone.vocabulary_size} tokens. Load both from the same "
                "preset. To add tokens, use from_preset(..., added_tokens=[...]) of a task."
            )
        check_tokenizer(backbone, self.tokenizer)
        if (self.sequence_length or 0) > backbone.max_sequence_length:
            expected = f"at most {backbone.max_sequence_length}, the maximum length of the backbone"
            raise invalid("sequence_length", self.sequence_length, expected)
        self.num_segments = 1 + backbone.input_ranges(1)["segment_ids"][1]
        limits = (
            self.requested_length or self.tokenizer.model_max_length,
            backbone.max_sequence_length,
        )
        self.max_sequence_length = min(filter(None, limits))
        for name in ("labels", "num_classes", "problem_type"):
            setattr(self, name, getattr(task, name, None))

    @property
    def requested_length(self) -> int | None:
        """Return the requested maximum number of tokens per example, or None."""
        return min(filter(None, (self.sequence_length, self.max_length)), default=None)

    @property
    def packed_length(self) -> int | None:
        """Return the length of the packed sequences in `fit`, or None without packing."""
        return None

    # This attribute disables AutoGraph. In `dataset.map(preprocessor)`, AutoGraph would try to
    # convert this package's code and print warnings about code that cannot be converted.
    autograph_info__: ClassVar[dict] = {}

    def __call__(self, x, y=None, sample_weight=None):
        """Convert texts to the model inputs `x`, `(x, y)` or `(x, y, sample_weight)`."""
        return self.collate(self.encode(x, y, sample_weight))

    @validate_arguments
    def batch_examples(self, dataset: tf.data.Dataset, batch_size: PositiveInt) -> tf.data.Dataset:
        """Batch a dataset of single raw inputs. A dataset of batches is returned unchanged."""
        x = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0]
        single = len(keras.tree.flatten(x)[0].shape) == 0
        return dataset.batch(batch_size) if single else dataset

    def separate(self, x, y) -> tuple:
        """Separate inputs and labels. Subclasses override this if rows can contain labels."""
        return x, y

    def encode(self, x, y=None, sample_weight=None) -> dict[str, xp.Tensor | xp.RaggedTensor]:
        """Encode texts as examples with token ids, without padding.

        Args:
            x: Texts in a list, array, tensor, or column of pandas, polars, Arrow or datasets. For
                pairs, pass a tuple of two columns, a list of pairs, or a table with two columns.
            y: Optional labels, with one label per text.
            sample_weight: Optional weights, with one number per text.

        Returns:
            Dict of tensors with one row per example: "token_ids" (ragged), "first_length" (number
                of tokens in segment 0) and, if given, "labels" and "sample_weight".
        """
        texts = self.read_texts(x)
        # One more token than necessary is kept to detect truncated texts. For pairs, all tokens are
        # kept, because truncation depends on the full lengths of both texts.
        wanted = self.max_sequence_length - self.count_specials() + 1 if len(texts) == 1 else None
        examples = self.pack([self.tokenizer.tokenize(text, wanted) for text in texts])
        return self.add_labels(examples, y, sample_weight)

    def read_texts(self, x) -> tuple[xp.Tensor | xp.RaggedTensor, ...]:
        """Check an input, and return the columns of texts that are declared in `inputs`."""
        return self.inputs.convert(x, self.text_columns)

    def add_labels(self, examples: dict, y, sample_weight) -> dict:
        """Check labels and weights, and add them to the examples. Both are optional."""
        if y is not None:
            check_no_iterator(y, "y")
            examples["labels"] = self.encode_labels(y)
        if sample_weight is not None:
            examples["sample_weight"] = convert_weights(sample_weight)
        check_same_count(examples)
        return examples

    @validate_arguments
    def count_specials(self, is_pair: bool = False) -> int:
        """Return the number of special tokens in an example."""
        return self.tokenizer.template.count(is_pair)

    def pad_for_special_tokens(self, values: xp.RaggedTensor) -> xp.RaggedTensor:
        """Pad the token values of single texts with a 0 for each special token."""
        zeros = xp.zeros([values.nrows(), self.count_specials()], values.dtype)
        column = self.tokenizer.first_column
        return xp.concat([zeros[:, :column], values, zeros[:, column:]], axis=1)

    def pack(self, segments: list[xp.RaggedTensor]) -> dict[str, xp.Tensor | xp.RaggedTensor]:
        """Create examples from the tokens of one or two texts, with special tokens.

        Args:
            segments: List with one or two ragged int32 tensors of shape (B, None).
        """
        tokenizer, most, is_pair = self.tokenizer, self.max_sequence_length, len(segments) == 2
        lengths = sum(segment.row_lengths() for segment in segments)
        room = most - self.count_specials(is_pair)
        what = "pairs of texts" if is_pair else "texts"
        what = f"{what} are longer than {most} tokens, so {self.truncated_part} is truncated."
        report_truncated(lengths > room, self, what)
        template, side = tokenizer.template_ids, tokenizer.truncation_side
        token_ids, first_length = pack(segments, template, most, side)
        return {"token_ids": token_ids, "first_length": first_length}

    @property
    def truncated_part(self) -> str:
        """Return the part of long texts that is truncated, such as "the end", for messages."""
        return "the beginning" if self.tokenizer.truncation_side == "left" else "the end"

    def encode_unlabelled(self, x, sample_weight=None) -> dict:
        """Encode examples without labels. Subclasses also mark the tokens that can have a label."""
        return self.encode(x, sample_weight=sample_weight)

    def encode_labels(self, y) -> xp.Tensor:
        """Convert labels to numbers. Subclasses declare the kind of labels in `label_values`."""
        if self.label_values is not None:
            return self.label_values.convert(y)
        return xp.convert_to_tensor(y)

    def collate(self, examples: dict, seed=None, bucketed: Bucketed = False):
        """Pad encoded examples to a batch.

        Args:
            examples: Dict. Examples from `encode`.
            seed: Optional integer tensor of shape (2,). Seed for preprocessors that draw random
                numbers.
            bucketed: Boolean or tuple of ascending integers. If given, the batch length is
                rounded up to one of these lengths, so that fewer shapes have to be compiled. True
                means powers of two. This has no effect with a fixed `sequence_length`. Defaults to
                False.

        Returns:
            `x`, `(x, y)` or `(x, y, sample_weight)`. x is `{"token_ids", "padding_mask"}` and, for
            families with segments, "segment_ids". All inputs have the shape (B, L).
        """
        return pack_batch(
            self.pad(examples, bucketed), examples.get("labels"), examples.get("sample_weight")
        )

    @validate_arguments
    def pad(self, examples: dict, bucketed: Bucketed = False) -> dict[str, xp.Tensor]:
        """Pad encoded examples, and create the model inputs (B, L)."""
        length = self.sequence_length
        if length is None and bucketed:
            longest = xp.cast(xp.reduce_max(examples["token_ids"].row_lengths()), "int32")
            lengths = LENGTHS[1:] if bucketed is True else bucketed
            length = xp.minimum(find_bucket_length(longest, lengths), self.max_sequence_length)
        inputs = pad(examples["token_ids"], self.tokenizer.pad_token_id, length)
        shape = xp.shape(inputs["token_ids"], xp.int64)
        if self.tokenizer.uses_segments and "segment_ids" in examples:
            inputs["segment_ids"] = examples["segment_ids"].to_tensor(shape=shape)
        elif self.tokenizer.uses_segments:
            columns = xp.range(xp.cast(shape[1], xp.int32))
            lengths = xp.cast(examples["token_ids"].row_lengths(), xp.int32)[:, None]
            # If "first_length" is missing, all tokens belong to segment 0.
            first_length = examples.get("first_length", xp.fill([shape[0]], 2**30))
            of_rows = first_length[:, None], lengths
            segments = compute_segments(columns, *of_rows, self.tokenizer.first_column)
            inputs["segment_ids"] = xp.minimum(segments, self.num_segments - 1)
        return inputs


def convert_weights(sample_weight) -> xp.Tensor:
    """Check sample weights with shape (B,) or (B, 1), and convert them to float32 (B,).

    Raises:
        ValueError: If `sample_weight` does not contain one number per text, or if a number is
            negative or not finite.
    """
    expected = "a number of 0 or more for each text"
    weights = convert_numbers(sample_weight, "sample_weight", expected)
    rank = xp.TensorShape(weights.shape).rank
    if rank not in (None, 1) and not (rank == 2 and weights.shape[1] == 1):
        raise invalid("The shape of `sample_weight`", tuple(weights.shape), expected)
    weights = given = xp.reshape(weights, [-1])
    right = xp.math.is_finite(given) & (given >= 0)
    expected = ". Expected a number of 0 or more."
    return check_each(weights, right, " has the weight ", given, expected)


def replace_invalid_text(texts: xp.Tensor) -> xp.Tensor:
    """Replace invalid UTF-8 in strings (N,) with U+FFFD inside a graph.

    Example:
        >>> import tensorflow as tf
        >>> replace_invalid_text(tf.constant([bytes([97, 255])])).numpy()[0].decode()
        'a\ufffd'
    """
    return xp.strings.unicode_transcode(texts, "UTF-8", "UTF-8")


def check_same_count(examples: dict) -> None:
    """Raise a ValueError if the number of labels or weights differs from the number of texts."""
    count = examples["token_ids"].shape[0]
    for name, plural in (("labels", "labels"), ("sample_weight", "sample weights")):
        given = examples[name].shape[0] if name in examples else count
        if given != count and None not in (count, given):
            raise ValueError(
                f"Received {count} texts, but {given} {plural}. Expected one value per text."
            )


def report_truncated(is_cut: xp.Tensor, preprocessor: Preprocessor, what: str) -> None:
    """Log the number of texts or pairs that are longer than the preprocessor's maximum length.

    Inside graphs, texts are only counted for datasets (see `report_truncation_in_datasets`).

    Args:
        is_cut: Boolean tensor of shape (N,). Whether each text is truncated.
        preprocessor: `Preprocessor` of the texts. The message ends with its `truncation_advice`.
        what: String. Truncation message, such as "texts are longer than 512 tokens, so
            the end is truncated."

    Example:
        >>> import tensorflow as tf
        >>> from encoder_zoo import BertTokenizer, SequenceClassifierPreprocessor
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
        >>> preprocessor = SequenceClassifierPreprocessor(tokenizer)
        >>> with log_truncation_once():
        ...     for is_cut in ([False, False], [False]):
        ...         report_truncated(tf.constant(is_cut), preprocessor, "texts are too long.")
        ...     list(get_context().truncated.values())
        [(0, 3)]
    """
    counts, what = get_context().truncated, f"{what} {preprocessor.truncation_advice}"
    cut, count = xp.math.count_nonzero(is_cut), xp.size(is_cut)
    if xp.is_symbolic_tensor(is_cut):
        if callable(counts):
            tf.numpy_function(counts, [cut, count, what], [])
    elif isinstance(counts, dict):
        key = id(preprocessor), what
        before = counts.get(key, (0, 0))
        counts[key] = before[0] + int(cut), before[1] + int(count)
    else:
        _log_truncated(int(cut), int(count), what)


def _log_truncated(cut: int, count: int, what: str, where: str = "") -> None:
    if cut:
        logger.warning("%s%d of %d %s", where, cut, count, what)


@contextlib.contextmanager
def log_truncation_once(of_stream: set[str] | None = None) -> Iterator[None]:
    """Count truncated texts inside this context, and log one message on exit.

    Args:
        of_stream: Optional set of strings. Messages that were logged for earlier batches of a
            stream. They are not logged again, and new messages are added.
    """
    if get_context().truncated is not None:
        yield
        return
    counts: dict[tuple[int, str], tuple[int, int]] = {}
    with use_context(truncated=counts):
        yield
    # Equal messages of two preprocessors, such as a student and a teacher, are logged once.
    for cut, count, what in dict.fromkeys((*n, what) for (_, what), n in counts.items()):
        if of_stream is None:
            _log_truncated(cut, count, what)
        elif cut and what not in of_stream:
            of_stream.add(what)
            _log_truncated(cut, count, what, "In a batch of the stream, ")


def report_truncation_in_datasets() -> contextlib.AbstractContextManager[None]:
    """Return a context manager in which datasets log the first batch with truncated texts."""
    logged = []

    def report(cut: np.ndarray, count: np.ndarray, what: bytes) -> list:
        if cut and not logged:
            logged.append(what)
            logger.warning("In a batch of the dataset, %d of %d %s", cut, count, what.decode())
        return []

    return use_context(truncated=report)
