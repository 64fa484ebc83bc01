"""Pairs of segments to examples in which some tokens are masked.

Comment letters: B batch, L sequence, M masked positions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import NonNegativeInt, Rate, SequenceLength, validate_arguments
from encoder_zoo.tasks.classification.class_labels import class_indices
from encoder_zoo.tasks.preprocessing.preprocessor import check_same_count
from encoder_zoo.tasks.pretraining.corpus_examples import ShardExamples, segment_pairs
from encoder_zoo.tasks.pretraining.corpus_writing import Shard
from encoder_zoo.tasks.pretraining.masked_lm_preprocessor import MaskedLMPreprocessor

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

SHORT_SHARE = 0.1


@keras.saving.register_keras_serializable(package="encoder_zoo")
class PretrainingPreprocessor(MaskedLMPreprocessor):
    """Pairs of segments to examples in which some tokens are masked, for `Pretraining`.

    Of a `PretrainingCorpus` it makes the pairs itself: see `segment_pairs`. Half of them follow
    each other; of the others, the second is from another document (BERT) or the two are swapped
    (ALBERT).

    Args:
        tokenizer: a `BertTokenizer` or `AlbertTokenizer`.
        sequence_length: see `Preprocessor`; pairs of a corpus fill it.
        short_share: of the pairs of a corpus, those made for a smaller length, so that the model
            is trained on short texts too.
        **kwargs: `mask_rate`, `whole_words`, `dynamic` and `seed` of `MaskedLMPreprocessor`.

    Returns:
        When called `(x, y, sample_weight)`: x as of `MaskedLMPreprocessor`; y and sample_weight
        are `{"masked_lm": (B, M), OBJECTIVE: (B,)}`, where OBJECTIVE is "next_sentence" or
        "sentence_order", as the task says, and its label 0 for pairs in order.

    Raises:
        ValueError: "Pretraining learns from pairs of segments ..."

    Source: Devlin et al. 2019, section 3.1 and appendix A; Lan et al. 2020, section 3.1.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> words = ["the", "cat", "sat", "it", "ate"]
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
        >>> x, y, _ = PretrainingPreprocessor(tokenizer)((["the cat sat"], ["it ate"]), [0])
        >>> x["segment_ids"].numpy().tolist(), y["next_sentence"].numpy().tolist()
        ([[0, 0, 0, 0, 0, 1, 1, 1]], [0])
    """

    task_name = "pretraining"

    labels_pairs = True

    @validate_arguments
    def __init__(
        self,
        tokenizer,
        sequence_length: SequenceLength | None = None,
        short_share: Rate = SHORT_SHARE,
        **kwargs,
    ):
        super().__init__(tokenizer, sequence_length, **kwargs)
        self.short_share = short_share
        self.objective = "next_sentence"
        if self.pack_texts or not self.across_documents:
            raise ValueError(
                "Pretraining learns from pairs of segments, one in a row: pack_texts and "
                "across_documents are for MaskedLM."
            )

    def attach(self, task: Task) -> None:
        super().attach(task)
        self.objective = task.head_record.pair.objective

    def corpus_examples(self, shard: Shard, rng: random.Random) -> ShardExamples:
        swapped = self.objective == "sentence_order"
        return segment_pairs(shard, self.max_sequence_length, swapped, self.short_share, rng)

    def encode(self, x, y=None, sample_weight=None) -> dict:
        if y is None:
            raise ValueError(
                "Pretraining learns from a PretrainingCorpus, or from pairs (first, second) with "
                "labels: 0 for segments in order, 1 for others. Received: no labels."
            )
        examples = super().encode(x, sample_weight=sample_weight)
        examples["labels"] = self.encode_labels(y)
        check_same_count(examples)
        return examples

    def encode_labels(self, y) -> tf.Tensor:
        names = list(LABELS) if self.objective == "sentence_order" else None
        labels = class_indices(y, names, 2)
        if len(labels.shape) == 2:
            raise ValueError(
                "Expected one label for each pair: 0 for segments in order, 1 for others. "
                f"Received: labels of the shape {tuple(labels.shape)}."
            )
        return labels

    def collate(self, examples: dict, seed: tf.Tensor | None = None, bucketed: bool = False):
        x, y, weights = super().collate(examples, seed, bucketed)
        labels = examples["labels"]
        each = examples.get("sample_weight", tf.ones(tf.shape(labels)))
        return (
            x,
            {"masked_lm": y, self.objective: labels},
            {"masked_lm": weights, self.objective: each},
        )


LABELS = ("in_order", "swapped")  # in the order of transformers' `sentence_order_label`


@validate_arguments
def sentence_order_pairs(
    documents: Sequence[Sequence[str]], seed: NonNegativeInt = 0
) -> tuple[tuple[list[str], list[str]], list[str]]:
    """Return pairs of neighbouring texts, half of them swapped, and their labels.

    A `SequenceClassifier` learns them by the coherence of the texts; the pairs of BERT's
    next-sentence prediction differ in their topics already.

    Args:
        documents: each a list of its sentences or paragraphs, in their order. The first and the
            second make a pair, the third and the fourth, and so on; of an odd number the last one
            is left out.
        seed: of the choice which are swapped, each with probability 1/2.

    Returns:
        `(first, second), labels`, as `fit` takes them; the labels are "in_order" and "swapped".

    Raises:
        ValueError: "documents[0] is a text; expected a list of its sentences"

    Source: Lan et al. 2020, ALBERT, section 3.1, inter-sentence coherence loss.

    Example:
        >>> pairs, labels = sentence_order_pairs([["One.", "Two.", "Three.", "Four."], ["Alone."]])
        >>> [sorted(pair) for pair in zip(*pairs, strict=True)]
        [['One.', 'Two.'], ['Four.', 'Three.']]
    """
    for i, document in enumerate(documents):
        if isinstance(document, str | bytes):
            raise ValueError(f"documents[{i}] is a text; expected a list of its sentences")
    pairs = [
        (document[i], document[i + 1])
        for document in documents
        for i in range(0, len(document) - 1, 2)
    ]
    swapped = np.random.default_rng(seed).random(len(pairs)) < 0.5
    first = [pair[int(s)] for pair, s in zip(pairs, swapped, strict=True)]
    second = [pair[1 - int(s)] for pair, s in zip(pairs, swapped, strict=True)]
    return (first, second), [LABELS[int(s)] for s in swapped]
