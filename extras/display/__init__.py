"""Display predictions and training results, in notebooks (HTML) and in terminals (text).

`entities`, `answer`, `explanation`, `errors`, `class_report`, `attention` and `matches` return a
`Picture`. Notebooks display it, and `print` prints it as text. To write it to a page, use `save`.
`learning_curves`, `thresholds`, `coverage` and `confusion_matrix` plot with matplotlib and return
axes.

Example:
    >>> import encoder_zoo as ez
    >>> found = [{"label": "LOC", "text": "Rome", "start": 3, "end": 7, "score": 0.98}]
    >>> ez.display.entities("In Rome.", found)
    In [Rome LOC].
"""

from encoder_zoo.extras.display.charts import (
    class_report,
    confusion_matrix,
    coverage,
    errors,
    learning_curves,
    thresholds,
)
from encoder_zoo.extras.display.marks import answer, attention, entities, explanation
from encoder_zoo.extras.display.matches import matches
from encoder_zoo.extras.display.picture import Picture

__all__ = [
    "Picture",
    "answer",
    "attention",
    "class_report",
    "confusion_matrix",
    "coverage",
    "entities",
    "errors",
    "explanation",
    "learning_curves",
    "matches",
    "thresholds",
]
