"""Logistic regression of some classes, to its optimum.

Comment letters: N examples, D features, C classes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from encoder_zoo.tasks.base.class_names import softmax

logger = logging.getLogger("encoder_zoo")

MAX_STEPS = 2000
TOLERANCE = 1e-4  # of the largest number in the mean gradient


def fit_logistic(
    x: np.ndarray, hot: np.ndarray, activation: Callable[[np.ndarray], np.ndarray] = softmax
) -> tuple[np.ndarray, np.ndarray]:
    """Return kernel (D, C) and bias (C,) with the least cross-entropy and half their square norm.

    That is the objective of scikit-learn's `LogisticRegression` of three classes and more, whose
    bias is not penalized either; with `sigmoid` of one for each class against the others, as in
    `OneVsRestClassifier(LogisticRegression())`. It is convex, and is minimized by accelerated
    gradient descent. A warning says so if `MAX_STEPS` do not reach the minimum, as it does of
    vectors of large norm.

    Args:
        x: (N, D).
        hot: (N, C) of 0 and 1, the classes of each example.
        activation: `softmax` of one class for each example, `sigmoid` of any number.

    Source: Nesterov 1983; O'Donoghue and Candès 2015, Adaptive Restart for Accelerated Gradient
    Schemes, section 3.2, for the restart.

    Example:
        >>> kernel, bias = fit_logistic(np.array([[-1.0], [1.0]]), np.eye(2))
        >>> (np.array([[-2.0], [2.0]]) @ kernel + bias).argmax(axis=1).tolist()
        [0, 1]
    """
    x = np.concatenate([x.astype("float64"), np.ones((len(x), 1))], axis=1)  # (N, D + 1)
    penalty = np.ones((x.shape[1], 1))
    penalty[-1] = 0.0
    step = 1.0 / (0.5 * np.linalg.eigvalsh(x.T @ x)[-1] + 1.0)
    weights = ahead = np.zeros((x.shape[1], hot.shape[1]))
    momentum = 1.0
    for _ in range(MAX_STEPS):
        gradient = x.T @ (activation(x @ ahead) - hot) + penalty * ahead
        if np.abs(gradient).max() <= TOLERANCE * len(x):
            break
        new = ahead - step * gradient
        if np.sum(gradient * (new - weights)) > 0:  # uphill: forget the momentum
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / following * (new - weights)
        weights, momentum = new, following
    else:
        logger.warning(
            "The logistic head did not converge in %d steps: a number of its mean gradient is "
            "%.2g, expected at most %.2g. Vectors of length 1 need fewer steps: normalize=True.",
            MAX_STEPS,
            np.abs(gradient).max() / len(x),
            TOLERANCE,
        )
    return ahead[:-1].astype("float32"), ahead[-1].astype("float32")
