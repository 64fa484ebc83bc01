"""Integrated gradients: the integral over a line by adaptive quadrature.

The integral of all slopes over a part of the line is known without any slope: it is the difference
of the outputs at the part's ends. Where the quadrature misses it, the part is halved.

Comment letters: n points, L sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

TOLERANCE = 1e-3  # of the sum of all attributions
SHARE = 0.01  # of the tolerance, that the shortest parts have: less is lost in float32
MAX_POINTS = 1000  # after which no part is halved: the outputs are too coarse


class Attribution(NamedTuple):
    """Attributions of tokens to an output.

    Attributes:
        tokens: (L,) float64.
        output: of the text.
        baseline: of the text with its words masked.
    """

    tokens: np.ndarray
    output: float
    baseline: float


def lobatto(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights (count,) of the Gauss-Lobatto quadrature from 0 to 1.

    It is exact for polynomials of degree 2 count - 3, and both ends are nodes.

    Source: Abramowitz and Stegun 1964, 25.4.32.

    Example:
        >>> nodes, weights = lobatto(3)
        >>> nodes.tolist(), weights.round(4).tolist()
        ([0.0, 0.5, 1.0], [0.1667, 0.6667, 0.1667])
    """
    legendre = np.polynomial.Legendre.basis(count - 1)
    nodes = np.concatenate([[-1.0], np.sort(legendre.deriv().roots()), [1.0]])
    return (nodes + 1) / 2, 1 / (count * (count - 1) * legendre(nodes) ** 2)


NODES, WEIGHTS = lobatto(7)


def integrated_gradients(along: Callable) -> Attribution:
    """Return the integrated gradients of tokens, whose sum is the difference of the outputs.

    Args:
        along: from points (n,) from 0 to 1 to outputs (n,) and slopes (n, L), as
            `gradients.straight_line` makes it.

    Source: Sundararajan, Taly and Yan 2017, Axiomatic Attribution for Deep Networks, section 3.

    Example:
        >>> square = lambda x: (x**2, 2 * x[:, None])
        >>> integrated_gradients(square).tokens.round(6).tolist()
        [1.0]
    """
    parts, total, ends, count = [(0.0, 0.5), (0.5, 1.0)], 0.0, {}, 0
    while parts:
        points = np.concatenate([a + (b - a) * NODES for a, b in parts])
        count += len(points)
        outputs, slopes = along(points)
        outputs = outputs.reshape(len(parts), -1)
        slopes = slopes.reshape(*outputs.shape, -1)
        halves = []
        for (a, b), values, slope in zip(parts, outputs, slopes, strict=True):
            ends |= {a: values[0], b: values[-1]}
            added = (b - a) * (WEIGHTS @ slope)  # (L,)
            error = abs(added.sum() - (values[-1] - values[0]))
            if error <= TOLERANCE / 2 * max(b - a, SHARE) or count >= MAX_POINTS:
                total = total + added
            else:
                halves += [(a, (a + b) / 2), ((a + b) / 2, b)]
        parts = halves
    return Attribution(total, ends[1.0], ends[0.0])


def gradient_times_input(along: Callable) -> Attribution:
    """Return the slopes of the tokens at the text itself: one gradient, and no completeness.

    Args:
        along: see `integrated_gradients`.

    Source: Shrikumar et al. 2016, Not Just a Black Box, section 2, with the difference to the
    baseline as the input.
    """
    outputs, slopes = along(np.array([0.0, 1.0]))
    return Attribution(slopes[1], outputs[1], outputs[0])
