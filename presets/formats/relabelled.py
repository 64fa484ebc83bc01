"""A checkpoint seen with other labels than its own.

Comment letters: C labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from encoder_zoo.presets.formats.checkpoint import Checkpoint


class RelabelledCheckpoint(Checkpoint):
    """A checkpoint whose output layer has the rows of other labels, some of which are its own.

    Args:
        checkpoint: with the rows of its labels.
        output: name of the output layer.
        rows: (C,) for each label the row that is its own in the checkpoint; None for a new label,
            whose weights are 0.
    """

    def __init__(self, checkpoint: Checkpoint, output: str, rows: Sequence[int | None]):
        vars(self).update(vars(checkpoint))
        self._checkpoint, self._rows = checkpoint, rows
        self._of_labels = {f"{output}.weight", f"{output}.bias"} & set(self.shapes)
        self.shapes = {
            name: (len(rows), *shape[1:]) if name in self._of_labels else shape
            for name, shape in self.shapes.items()
        }

    def tensor(self, name: str) -> np.ndarray:
        value = self._checkpoint.tensor(name)
        if name not in self._of_labels:
            return value
        known = [(i, row) for i, row in enumerate(self._rows) if row is not None]
        here, there = map(list, zip(*known, strict=True))
        new = np.zeros(self.shapes[name], "float32")
        new[here] = value[there]
        return new
