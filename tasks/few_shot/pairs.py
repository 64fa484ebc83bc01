"""Pairs of texts of one class, and of two, from few labelled texts.

Comment letters: N texts, C classes, P pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class ContrastivePairs(NamedTuple):
    """Indices of texts in pairs, and whether the two share a class.

    Attributes:
        first, second: (P,) int, of N texts.
        score: (P,) float32, 1 if they share a class, else 0.
    """

    first: np.ndarray
    second: np.ndarray
    score: np.ndarray


def contrastive_pairs(
    hot: np.ndarray, pairs_per_text: int, rng: np.random.Generator
) -> ContrastivePairs:
    """Return pairs of each text with others, drawn at random.

    As many are with texts that share a class as with texts that share none; a text has no pairs of
    a kind if there are no such texts.

    Args:
        hot: (N, C) of 0 and 1, the classes of each text; two different rows or more.
        pairs_per_text: pairs of each kind.
        rng: source of the draws.

    Source: Tunstall et al. 2022, Efficient Few-Shot Learning Without Prompts, section 3.1; for
    several classes a text, SetFit's code.

    Example:
        >>> pairs = contrastive_pairs(np.eye(2)[[0, 0, 1, 1]], 2, np.random.default_rng(0))
        >>> len(pairs.score), pairs.score.sum().item()
        (16, 8.0)
    """
    parts = []
    for i, own in enumerate(hot):
        shared = hot @ own > 0  # (N,)
        alike, others = np.flatnonzero(shared), np.flatnonzero(~shared)
        for partners, score in ((alike[alike != i], 1), (others[others != i], 0)):
            if len(partners):
                few = len(partners) < pairs_per_text
                second = rng.choice(partners, pairs_per_text, replace=few)
                parts.append(
                    np.stack([np.full_like(second, i), second, np.full_like(second, score)])
                )
    first, second, score = np.concatenate(parts, axis=1)
    return ContrastivePairs(first, second, score.astype("float32"))
