"""Convert queries and texts to examples for reranking.

Comments use these letters for shapes: B batch, N examples, T texts of all examples, K texts of an
example, L sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from encoder_zoo.common.lazy import keras, tf, xp
from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import PositiveInt, SequenceLength, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.preprocessing import batch_shapes
from encoder_zoo.tasks.preprocessing.checks import check_each, check_no_iterator, convert_numbers
from encoder_zoo.tasks.preprocessing.columns import ROW_TYPES, convert_to_plain
from encoder_zoo.tasks.preprocessing.given_labels import Labels, Numbers, check_not_missing
from encoder_zoo.tasks.preprocessing.inputs import Inputs, Text, TextOrTexts, has_text_lists
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

if TYPE_CHECKING:
    from encoder_zoo.presets.formats.preset_task import FolderFormat

ExpectedScores = Literal["probabilities", "gains"]

EXPECTED_SCORES = "numbers as scores"  # expected values in `y`
MAX_GAIN = 30.0  # a gain of 2 ** 30 is so large that all other scores have no effect


def convert_pair_scores(y, probabilities: bool = False) -> xp.Tensor:
    """Check the scores of pairs, and convert them to float32 of shape (N,).

    Args:
        y: Scores with shape (N,) or (N, 1).
        probabilities: Boolean. Whether to check that scores are between 0 and 1. Defaults to False.

    Raises:
        ValueError: If a score in `y` is not finite, or if `probabilities` is True and a score is
            not between 0 and 1.

    Example:
        >>> convert_pair_scores([0.5, 5.0], probabilities=True)
        Traceback (most recent call last):
        ValueError: Row 1 has the score 5.0. Expected a number from 0 to 1 for binary ...
    """
    return _check_scores(Numbers("score", "pair", finite=False).convert(y), probabilities)


def list_scores(y, lengths: xp.Tensor, as_gains: bool = False) -> xp.RaggedTensor:
    """Check the scores of lists, and convert them to a ragged float32 tensor (N, None).

    Args:
        y: List of scores for each query.
        lengths: Integer tensor of shape (N,). The number of texts per query.
        as_gains: Boolean. Whether the scores will be used as gains in `LambdaLoss`. Defaults to
            False.

    Raises:
        ValueError: If a text does not have exactly one finite score, or if `as_gains` is True and
            the scores are not valid for `LambdaLoss`.

    Example:
        >>> import tensorflow as tf
        >>> list_scores([[1, 0], [1]], tf.constant([2, 2], tf.int64))
        Traceback (most recent call last):
        ValueError: Row 1 has 1 scores for 2 texts. Expected one for each text.
    """
    check_no_iterator(y, "y")
    y = convert_to_plain(check_not_missing(y))
    if isinstance(y, xp.RaggedTensor):
        scores = y.with_values(convert_numbers(y.values, "y", EXPECTED_SCORES))
    elif xp.is_tensor(y):
        scores = xp.RaggedTensor.from_tensor(convert_numbers(y, "y", EXPECTED_SCORES))
    else:
        for i, row in enumerate(y):
            if not isinstance(row, ROW_TYPES):
                raise invalid(f"Row {i} of `y`", row, "a list of scores, one for each text")
        values = convert_numbers([score for row in y for score in row], "y", EXPECTED_SCORES)
        scores = xp.RaggedTensor.from_row_lengths(values, [len(row) for row in y])
    counts = scores.row_lengths(), lengths
    if None not in (known := [n.shape[0] for n in counts]) and known[0] != known[1]:
        raise ValueError(
            f"Received {known[0]} lists of scores for {known[1]} queries. Expected one list per "
            "query."
        )
    right = xp.equal(*counts)
    expected = " texts. Expected one for each text."
    scores = check_each(scores, right, " has ", counts[0], " scores for ", counts[1], expected)
    scores = scores.with_values(_check_scores(scores.values, row=scores.value_rowids()))
    return _check_gains(scores) if as_gains else scores


def _check_gains(scores: xp.RaggedTensor) -> xp.RaggedTensor:
    """Check that the scores are valid for `LambdaLoss`, and return them."""
    highest = xp.reduce_max(scores.to_tensor(float("-inf")), axis=1)
    lowest = xp.reduce_min(scores.to_tensor(float("inf")), axis=1)
    right = (highest <= MAX_GAIN) & ((highest > 0) | xp.equal(highest, lowest))
    expected = (
        ". LambdaLoss, the default loss for lists, expects a score above 0 and no score above "
        f"{MAX_GAIN:g}, because it uses the gain 2 ** score - 1 for positive scores. For the "
        "scores of a teacher, use compile(loss=ez.losses.ListMarginMSE()). For other scores, use "
        "ez.losses.RankNet()."
    )
    return check_each(scores, right, " has the highest score ", highest, expected)


def _check_scores(scores: xp.Tensor, probabilities: bool = False, row: xp.Tensor | None = None):
    right, expected = xp.math.is_finite(scores), "a finite number"
    if probabilities:
        right = right & (scores >= 0) & (scores <= 1)
        expected = (
            "a number from 0 to 1 for binary cross-entropy. Use another loss for other scores"
        )
    return check_each(
        scores, right, " has the score ", scores, f". Expected {expected}.", index=row
    )


@serializable
class RerankerPreprocessor(Preprocessor):
    """Convert queries and texts to `[CLS] query [SEP] text [SEP]`.

    RoBERTa uses `<s> query </s></s> text </s>`. If a pair is too long, the longer text is truncated
    first.

    Args:
        tokenizer: A tokenizer of this package.
        sequence_length: See `Preprocessor`.
        max_length: Optional integer. Maximum number of tokens, including special tokens. Longer
            pairs are truncated. Unlike `sequence_length`, this argument does not add padding. If
            None, the maximum length of the model is used.

    Returns:
        See `Preprocessor`. For queries with a list of texts, "token_ids" (B, L) contains the
        longest text of each list, so that batches can be made of lists with similar lengths.
        "candidate_token_ids" (B, K - 1, L) contains the other texts. The scores (B, K) have the
        same order. At padding, the score is minus infinity, and the mask contains a single token.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "you"]
        >>> preprocessor = RerankerPreprocessor(BertTokenizer(words))
        >>> x, y = preprocessor((["hello"], [["you", "hello you"]]), [[0, 1]])
        >>> x["token_ids"].numpy().tolist(), x["candidate_token_ids"].numpy().tolist()
        ([[2, 5, 3, 5, 6, 3]], [[[2, 5, 3, 6, 3, 0]]])
        >>> y.numpy().tolist()
        [[1.0, 0.0]]
    """

    task_name = "reranker"
    inputs = Inputs(
        Text("queries", "query", filled=True), TextOrTexts("texts", "text", filled=True)
    )
    label_values = Labels(
        "one score per pair, or a list of scores for each query, with one score per text", "score"
    )
    one_example_per_text = True
    truncation_advice = "Split long texts into passages, and rank the passages."
    expected_scores: ExpectedScores | None = None  # depends on the loss, set by `attach`

    @validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: SequenceLength | None = None,
        max_length: SequenceLength | None = None,
    ):
        super().__init__(tokenizer, sequence_length)
        self.max_length = max_length
        self.max_sequence_length = sequence_length or max_length or self.max_sequence_length

    @staticmethod
    def get_folder_format() -> FolderFormat:
        """Return the folder format in which presets are saved and loaded."""
        from encoder_zoo.presets.formats.cross_encoders import CrossEncoderFolderFormat

        return CrossEncoderFolderFormat()

    def attach(self, task) -> None:
        super().attach(task)
        self.expected_scores = task.expected_scores

    @validate_arguments
    def batch_examples(self, dataset: tf.data.Dataset, batch_size: PositiveInt) -> tf.data.Dataset:
        """Batch a dataset of single examples. Lists become ragged tensors."""
        x = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0]
        queries, texts = self.inputs.get_columns(x)
        if queries.shape.rank == 0 and texts.shape.rank == 1:
            return dataset.ragged_batch(batch_size)
        return super().batch_examples(dataset, batch_size)

    def encode(self, x, y=None, sample_weight=None) -> dict:
        """Convert inputs to token ids without padding.

        Args:
            x: See `Reranker.fit`.
            y: Optional score for each pair, or list of scores for each query.
            sample_weight: Optional weight for each pair or query.

        Returns:
            Dict of tensors, as for `Preprocessor.encode`. For lists, the dict also contains
            "candidate_token_ids", ragged (N, None, None), "candidate_first_length", and "labels",
            ragged (N, None).
        """
        queries, texts = self.read_texts(x)
        if isinstance(texts, xp.RaggedTensor):
            examples = self._encode_lists(queries, texts, y)
        else:
            tokens = [self.tokenizer.tokenize(part) for part in (queries, texts)]
            examples = self.pack(tokens)
            if y is not None:
                examples["labels"] = convert_pair_scores(
                    y, self.expected_scores == "probabilities"
                )[:, None]
        return self.add_labels(examples, None, sample_weight)

    def _encode_lists(self, queries: xp.Tensor, texts: xp.RaggedTensor, y) -> dict:
        """Encode lists of texts. The longest text of each list is first."""
        row = texts.value_rowids()
        tokens = xp.gather(self.tokenizer.tokenize(queries), row)
        packed = self.pack([tokens, self.tokenizer.tokenize(texts.values)])  # T pairs
        lengths = packed["token_ids"].row_lengths()
        # (T,)
        order = xp.argsort(row * (self.max_sequence_length + 1) - lengths, stable=True)
        firsts = xp.gather(order, texts.row_starts())
        others = texts.with_values(order)[:, 1:]  # ragged (N, None)
        examples = batch_shapes.combine_candidates(packed, firsts, others)
        if y is not None:
            scores = list_scores(y, texts.row_lengths(), self.expected_scores == "gains")
            examples["labels"] = texts.with_values(xp.gather(scores.values, order))
        return examples

    def collate(self, examples: dict, seed=None, bucketed: batch_shapes.Bucketed = False):
        if CANDIDATE + "token_ids" not in examples:
            return super().collate(examples, seed, bucketed)
        labels = examples.get("labels")
        labels = labels if labels is None else labels.to_tensor(batch_shapes.ABSENT_SCORE)
        x = batch_shapes.pad_candidates(self.pad, examples, self.tokenizer.pad_token_id, bucketed)
        return batch_shapes.pack_batch(x, labels, examples.get("sample_weight"))


def is_list_input(x) -> bool:
    """Return whether each query has a list of texts, from raw inputs or a dataset's specification.

    Example:
        >>> is_list_input((["q"], [["a", "b"]])), is_list_input([("q", "a")])
        (True, False)
    """
    queries, texts = RerankerPreprocessor.inputs.get_columns(x)
    single = getattr(queries, "shape", None) is not None and not len(queries.shape)
    return (len(texts.shape) == 1) if single else has_text_lists(texts)
