"""Sentence order: pairs of texts for ALBERT's second objective of pretraining."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from encoder_zoo.common.validation import NonNegativeInt, validate_arguments

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
