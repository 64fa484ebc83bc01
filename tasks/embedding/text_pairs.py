"""Training of one vector for each text on pairs, triplets and scores of texts.

Comment letters: B batch, K further texts of a row, L sequence, D width.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Unpack

import keras
from keras import ops

from encoder_zoo.common.validation import NonNegativeInt, validate_arguments
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.embedding.columns import ROLES, as_columns
from encoder_zoo.tasks.losses.chunks import recomputed_in_chunks
from encoder_zoo.tasks.preprocessing.candidates import with_candidate_ranges
from encoder_zoo.tasks.training.keyword_arguments import CompileOptions
from encoder_zoo.tasks.training.prepared import is_prepared
from encoder_zoo.tasks.training.sources import is_dataset

logger = logging.getLogger("encoder_zoo")

NO_NEGATIVES = """gradient_accumulation_steps adds no negatives: texts are compared inside each \
batch. For more of them, use a larger batch_size with compile(chunk_size=...)."""
# The forms of the data of `fit`.
PAIRS, SCORES, VECTORS = "pairs", "scores", "vectors"


class LearnsFromPairs:
    """Mixin of `TextEmbedder` and `SparseEncoder`, before `Task`.

    Attributes:
        default_losses: {form of the data: makes its loss}; forms that are absent are refused.
        embedding_dim: D.
    """

    default_losses: Mapping[str, Callable[[], keras.losses.Loss]]
    embedding_dim: int
    column_roles = ROLES
    chunk_size: int | None = None
    _objective = PAIRS

    # -- the model -----------------------------------------------------------------------------

    def call(self, inputs, training=None):
        first = self._vectors(inputs, training)  # (B, D)
        if CANDIDATE + "token_ids" not in inputs:
            return first
        batch = ops.shape(first)[0]
        others = {  # (B * K, L)
            name.removeprefix(CANDIDATE): ops.reshape(values, (-1, ops.shape(values)[-1]))
            for name, values in inputs.items()
            if name.startswith(CANDIDATE)
        }
        others = ops.reshape(self._vectors(others, training), (batch, -1, self.embedding_dim))
        return ops.concatenate([first[:, None], others], axis=1)  # (B, 1 + K, D)

    def _vectors(self, inputs, training):
        """Return the vectors of inputs (B, L), part by part if it trains with `chunk_size`."""
        if training and self.chunk_size:
            return recomputed_in_chunks(self, super().call, inputs, self.chunk_size)
        return super().call(inputs, training)

    def compute_output_spec(self, inputs, training=None):
        shape = inputs["token_ids"].shape[0], self.embedding_dim
        if CANDIDATE + "token_ids" in inputs:
            further = inputs[CANDIDATE + "token_ids"].shape[1]
            shape = shape[0], None if further is None else 1 + further, shape[1]
        return keras.KerasTensor(shape, "float32")

    def prepared_inputs(self) -> list[str]:
        whole = self.preprocessor is None or self.preprocessor.include_prompt
        return [*super().prepared_inputs(), *([] if whole else ["pooling_mask"])]

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        ranges = {**super().input_ranges(length), "pooling_mask": (0, 1)}
        names = ("token_ids", "padding_mask", "pooling_mask")
        return with_candidate_ranges(ranges, names)

    # -- training ------------------------------------------------------------------------------

    @validate_arguments
    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer | None = None,
        loss: object = None,
        metrics: Sequence[object] | Mapping[str, object] | str | None = None,
        *,
        chunk_size: NonNegativeInt | None = None,
        **options: Unpack[CompileOptions],
    ) -> None:
        """Compile as the other tasks, see `Trainer.compile`.

        Args:
            optimizer, metrics: see there.
            loss: any of `ez.losses`; "auto" fits the data.
            chunk_size: embed so many texts at a time, and compute them again for the gradients
                (GradCache): the same loss and gradients as of the whole batch, so that large
                batches, with many negatives, need the memory of a small one; 0 embeds the whole
                batch at once, as at first.
            **options: the others of `Trainer.compile`.

        Source: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited
        Setup, section 3.
        """
        if chunk_size is not None:
            self.chunk_size = chunk_size or None
        super().compile(optimizer, loss, metrics, **options)
        if (self.recipe.arguments["gradient_accumulation_steps"] or 1) > 1:
            logger.warning(NO_NEGATIVES)

    def get_compile_config(self) -> dict | None:
        config = super().get_compile_config()
        return config and {**config, "chunk_size": self.chunk_size}

    @property
    def traced_settings(self) -> tuple:
        return (self.chunk_size, self._objective)

    def default_loss(self) -> keras.losses.Loss:
        return self.default_losses[self._objective]()

    def default_metrics(self) -> list:
        return []

    def _separate(self, x, y) -> tuple:
        """Return the columns of texts, checked; texts without anything else twice."""
        if is_dataset(x) or is_prepared(x):
            return x, y
        columns = as_columns(x)
        if len(columns) == 1 and y is not None:
            return columns[0], y
        return tuple(columns if len(columns) > 1 else columns * 2), y

    def _adapt(self, x, y) -> None:
        """Choose the default loss for the form of the data."""
        if is_prepared(x):
            return
        if is_dataset(x):
            x, y, _ = keras.utils.unpack_x_y_sample_weight(x.element_spec)
        of_pairs = PAIRS if y is None else SCORES
        objective = of_pairs if isinstance(x, tuple) else VECTORS
        if objective != self._objective:
            self._objective = objective
            if self.compiled:
                settings = {**self.recipe.arguments, **self.recipe.options}
                self.compile(**settings, chunk_size=self.chunk_size)

    def _begin_evaluate(self, x, y) -> None:
        if not self.compiled:
            self._adapt(*self._separate(x, y))
        super()._begin_evaluate(x, y)
