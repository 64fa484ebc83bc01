"""Counts texts that are longer than what is read, and logs it once.

Comment letters: N texts or pairs.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import array_ops, tf

if TYPE_CHECKING:
    from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

logger = logging.getLogger("encoder_zoo")

# Inside of `logged_once`: {(preprocessor, what is logged): [cut, all]}.
_counts: contextvars.ContextVar[dict | None] = contextvars.ContextVar("counts", default=None)
# Inside of `reported_by_datasets`: logs the counts of a batch.
_report: contextvars.ContextVar[Callable | None] = contextvars.ContextVar("report", default=None)


def count_truncated(is_cut: array_ops.Tensor, preprocessor: Preprocessor, what: str) -> None:
    """Log how many texts, or pairs of texts, are longer than what a preprocessor reads of them.

    In graphs nothing is counted, but for those of datasets, see `reported_by_datasets`.

    Args:
        is_cut: (N,) bool.
        preprocessor: that reads them; its `truncation_advice` is the line's last sentence.
        what: such as "texts are longer than 512 tokens; the rest is not read."

    Example:
        >>> import tensorflow as tf
        >>> from encoder_zoo import BertTokenizer, SequenceClassifierPreprocessor
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
        >>> preprocessor = SequenceClassifierPreprocessor(tokenizer)
        >>> with logged_once():
        ...     for is_cut in ([False, False], [False]):
        ...         count_truncated(tf.constant(is_cut), preprocessor, "texts are too long.")
        ...     list(_counts.get().values())
        [(0, 3)]
    """
    report, what = _report.get(), f"{what} {preprocessor.truncation_advice}"
    cut, count = array_ops.math.count_nonzero(is_cut), array_ops.size(is_cut)
    if not array_ops.is_symbolic_tensor(is_cut):
        _note((id(preprocessor), what), int(cut), int(count))
    elif report is not None:
        tf.numpy_function(report, [cut, count, what], [])


def _note(key: tuple[int, str], cut: int, count: int) -> None:
    counts = _counts.get()
    if counts is None:
        _log(cut, count, key[1])
    else:
        before = counts.get(key, (0, 0))
        counts[key] = before[0] + cut, before[1] + count


def _log(cut: int, count: int, what: str) -> None:
    if cut:
        logger.warning("%d of %d %s", cut, count, what)


@contextlib.contextmanager
def logged_once() -> Iterator[None]:
    """Log one line of all texts that a preprocessor counts inside, at the end."""
    if _counts.get() is not None:
        yield
        return
    counts: dict[tuple[int, str], tuple[int, int]] = {}
    token = _counts.set(counts)
    try:
        yield
    finally:
        _counts.reset(token)
    # The same line of two preprocessors, as of a student and its teacher, is one.
    for line in dict.fromkeys((*numbers, what) for (_, what), numbers in counts.items()):
        _log(*line)


@contextlib.contextmanager
def reported_by_datasets() -> Iterator[None]:
    """Have the pipeline that is traced inside log its first batch in which texts are cut."""
    logged = []

    def report(cut: np.ndarray, count: np.ndarray, what: bytes) -> list:
        if cut and not logged:
            logged.append(what)
            logger.warning("In a batch of the dataset %d of %d %s", cut, count, what.decode())
        return []

    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)
