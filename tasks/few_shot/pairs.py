"""Pairs of texts of one class, and of two, from few labelled texts.

Comment letters: N texts, P pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class ContrastivePairs(NamedTuple):
    """Indices of texts in pairs, and whether the two are of one class.

    Attributes:
        first, second: (P,) int, of N texts.
        score: (P,) float32, 1 for one class and 0 for two.
    """

    first: np.ndarray
    second: np.ndarray
    score: np.ndarray


def contrastive_pairs(
    classes: np.ndarray, pairs_per_text: int, rng: np.random.Generator
) -> ContrastivePairs:
    """Return pairs of each text with others, drawn at random: of its class, and as many of others.

    Args:
        classes: (N,) int, two classes or more. The only text of a class has no pairs of one class.
        pairs_per_text: pairs of each kind.
        rng: source of the draws.

    Source: Tunstall et al. 2022, Efficient Few-Shot Learning Without Prompts, section 3.1.

    Example:
        >>> pairs = contrastive_pairs(np.array([0, 0, 1, 1]), 2, np.random.default_rng(0))
        >>> len(pairs.score), pairs.score.sum().item()
        (16, 8.0)
    """
    parts = []
    for i, own in enumerate(classes):
        alike = classes == own
        of_class, of_others = np.flatnonzero(alike), np.flatnonzero(~alike)
        for others, score in ((of_class[of_class != i], 1), (of_others, 0)):
            if len(others):
                few = len(others) < pairs_per_text
                second = rng.choice(others, pairs_per_text, replace=few)
                parts.append(
                    np.stack([np.full_like(second, i), second, np.full_like(second, score)])
                )
    first, second, score = np.concatenate(parts, axis=1)
    return ContrastivePairs(first, second, score.astype("float32"))
