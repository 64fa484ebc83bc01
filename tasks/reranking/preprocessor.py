"""Queries and texts to examples for reranking: of pairs, or of a query with a list of texts.

Comment letters: B batch, N examples, T texts of all of them, K texts of an example, L sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, SequenceLength, validate_arguments
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.presets.formats import cross_encoders
from encoder_zoo.tasks.losses.ranking import ABSENT
from encoder_zoo.tasks.preprocessing.candidates import pad_candidates, with_candidates
from encoder_zoo.tasks.preprocessing.preprocessor import (
    Preprocessor,
    as_weights,
    check_same_count,
)
from encoder_zoo.tasks.reranking.columns import (
    are_lists,
    list_scores,
    pair_scores,
    queries_and_texts,
    two_columns,
)

if TYPE_CHECKING:
    from encoder_zoo.presets.formats.checkpoint import Checkpoint
    from encoder_zoo.presets.opening import TokenizerPreset


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RerankerPreprocessor(Preprocessor):
    """Queries and texts to `[CLS] query [SEP] text [SEP]`, in RoBERTa's form `<s> query </s></s>
    text </s>`; the longer of the two is truncated first.

    Args:
        tokenizer: any of this package's.
        sequence_length: see `Preprocessor`.
        max_length: longer pairs are truncated to so many tokens, special ones counted; None is the
            model's longest. Unlike `sequence_length` it does not pad.

    Returns:
        As of `Preprocessor`. With a list of texts for each query, the longest is "token_ids"
        (B, L), so that batches are of like length, and the others are "candidate_token_ids"
        (B, K - 1, L). Their scores (B, K) are in the same order; an entry without a text has
        the score minus infinity, and a mask of one token.

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
    one_example_per_text = True
    truncation_advice = "Split long texts into passages, and rank these."
    # Set by the task, for its loss.
    _learns_probabilities = False
    _learns_gains = False

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

    @classmethod
    def arguments_from_files(cls, preset: Checkpoint | TokenizerPreset, tokenizer) -> dict:
        return cross_encoders.cross_encoder_length(preset, tokenizer)

    @validate_arguments
    def batched(self, dataset: tf.data.Dataset, batch_size: PositiveInt) -> tf.data.Dataset:
        """Return a dataset of single examples in batches, lists as ragged; others unchanged."""
        x = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0]
        queries, texts = two_columns(x)
        if queries.shape.rank == 0 and texts.shape.rank == 1:
            return dataset.ragged_batch(batch_size)
        return super().batched(dataset, batch_size)

    def encode(self, x, y=None, sample_weight=None) -> dict:
        """Return examples of token ids, not padded.

        Args:
            x: see `Reranker.fit`.
            y: one score for each pair, or a list of scores for each query; or None.
            sample_weight: one number for each pair or query, or None.

        Returns:
            As of `Preprocessor.encode`; with lists also "candidate_token_ids", ragged
            (N, None, None), "candidate_first_length" and "labels", ragged (N, None).
        """
        queries, texts = queries_and_texts(x)
        if isinstance(texts, tf.RaggedTensor):
            examples = self._encode_lists(queries, texts, y)
        else:
            tokens = [self.tokenizer.tokenize(part) for part in (queries, texts)]
            examples = self.pack(tokens)
            if y is not None:
                examples["labels"] = pair_scores(y, self._learns_probabilities)[:, None]
        if sample_weight is not None:
            examples["sample_weight"] = as_weights(sample_weight)
        check_same_count(examples)
        return examples

    def _encode_lists(self, queries: tf.Tensor, texts: tf.RaggedTensor, y) -> dict:
        """Return examples of lists, in each the longest text first."""
        row = texts.value_rowids()
        tokens = tf.gather(self.tokenizer.tokenize(queries), row)
        packed = self.pack([tokens, self.tokenizer.tokenize(texts.values)])  # of T pairs
        lengths = packed["token_ids"].row_lengths()
        order = tf.argsort(row * (self.max_sequence_length + 1) - lengths, stable=True)  # (T,)
        firsts = tf.gather(order, texts.row_starts())
        others = texts.with_values(order)[:, 1:]  # ragged (N, None)
        examples = with_candidates(packed, firsts, others)
        if y is not None:
            scores = list_scores(y, texts.row_lengths(), self._learns_gains)
            examples["labels"] = texts.with_values(tf.gather(scores.values, order))
        return examples

    def collate(self, examples: dict, seed: tf.Tensor | None = None, bucketed: bool = False):
        if CANDIDATE + "token_ids" not in examples:
            return super().collate(examples, seed, bucketed)
        labels = examples.get("labels")
        labels = labels if labels is None else labels.to_tensor(ABSENT)
        x = pad_candidates(self.pad, examples, self.tokenizer.pad_token_id, bucketed)
        return keras.utils.pack_x_y_sample_weight(x, labels, examples.get("sample_weight"))


def takes_lists(x) -> bool:
    """Return whether raw inputs, or their specification, have a list of texts for each query.

    Example:
        >>> takes_lists((["q"], [["a", "b"]])), takes_lists([("q", "a")])
        (True, False)
    """
    queries, texts = two_columns(x)
    single = getattr(queries, "shape", None) is not None and not len(queries.shape)
    return (len(texts.shape) == 1) if single else are_lists(texts)
