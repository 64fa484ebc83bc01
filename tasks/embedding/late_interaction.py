"""Late interaction models, which embed each token of a text.

Comments use these letters for shapes: B batch, K additional texts of an example, L sequence, D
width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Self, Unpack

import keras
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.presets.formats.late_interaction_folder import LateInteractionFolderFormat
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks import losses
from encoder_zoo.tasks.base.answers import delegate_to_answers
from encoder_zoo.tasks.base.task import Task, TaskPresetArguments, TinyData
from encoder_zoo.tasks.embedding.embedder import PAIRS, SCORES, Embedder, make_role_signatures
from encoder_zoo.tasks.embedding.late_interaction_preprocessor import (
    DOCUMENT,
    LateInteractionPreprocessor,
)
from encoder_zoo.tasks.embedding.pooling import build_projections, normalize
from encoder_zoo.tasks.embedding.token_answers import TokenAnswers
from encoder_zoo.tasks.preprocessing.batching import map_graph_batches
from encoder_zoo.tasks.retrieval.index_kinds import MultiVectorIndex
from encoder_zoo.tasks.retrieval.similarity import TokenSimilarity

DIM = 128  # default dimension for a new projection
MEAN_SCALE = 50.0  # scale for mean scores, as in the training of BGE-M3 (temperature 0.02)


class LateInteractionPresetArguments(TaskPresetArguments, total=False):
    """Types of the keyword arguments of `LateInteraction.from_preset`."""

    dim: int | None
    projections: Sequence[Mapping[str, object]]
    normalize: bool
    similarity_function: TokenSimilarity
    query_length: int | None
    document_length: int | None
    query_marker: str | None
    document_marker: str | None
    prompts: Mapping[str, str] | None
    expand_queries: bool
    expansion_length: int | None
    attend_to_expansion: bool
    skiplist: Sequence[str]
    score_first: bool


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LateInteraction(Embedder[MultiVectorIndex]):
    """Embed each token of a text, to compare queries with documents (ColBERT).

        colbert = ez.LateInteraction.from_preset("hf://lightonai/GTE-ModernColBERT-v1")
        colbert.embed(documents)  # a list of (tokens, 128)
        colbert.rank("How do I reset it?", documents, top_k=3)
        index = colbert.index(documents, pool_factor=2)
        index.search("How do I reset it?")

    `from_preset` loads original ColBERT models, and models of PyLate, of MultiVectorEncoder in
    sentence-transformers 6, and of BGE-M3. Other encoders get a new projection. Presets are saved
    in the PyLate format, which sentence-transformers 6 can also load, or in the BGE-M3 format if
    the first token has no vector.

    Args:
        backbone: A `Backbone`.
        preprocessor: Optional `LateInteractionPreprocessor` for raw text.
        dim: Integer. Embedding dimension to use when no `projections` are given. Defaults to 128.
        projections: Optional list of dicts. Options of the linear layers that project the token
            vectors. Each dict contains `units`, and optionally `activation` (default "linear"),
            `use_bias` (default False) and `residual` (default False). If None, a single layer with
            `dim` units is used.
        normalize: Boolean. Whether to normalize vectors to unit length. Defaults to True.
        similarity_function: String, "maxsim" or "meanmaxsim". "maxsim" computes the maximum dot
            product with the document tokens for each query token, and sums these maxima.
            With "meanmaxsim", the sum is divided by the number of query tokens, as in BGE-M3.
            Defaults to "maxsim".

    `fit` accepts these forms of data:

    - Pairs, `fit((queries, documents))`. With the default loss `MaxSimInfoNCE`, each query is
      trained to be close to the corresponding document and far from all other documents in the
      batch. To add hard negatives, call `fit((queries, documents, negatives))` with one or several
      columns, or with a list in each row. All lists must have the same length.
    - Queries with a list of documents per query and scores from a teacher (e.g. a `Reranker`),
      `fit((queries, lists), scores)`. With the default loss `MaxSimDistillation`, the model is
      trained to reproduce the scores.

    Call arguments:
        inputs: Dict of tensors, as returned by the preprocessor.

    Returns:
        Float32 tensor of shape (B, L, D), or (B, 1 + K, L, D) for inputs with candidates. Vectors
        are set to zero for tokens that are not scored.

    Raises:
        ValueError: If `dim` is not equal to the units in the last projection.

    Source: Khattab and Zaharia 2020, ColBERT, section 3; Santhanam et al. 2022, ColBERTv2.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16)
        >>> model = LateInteraction(backbone, dim=4)
        >>> keras.ops.shape(model({"token_ids": np.array([[2, 7, 3]])}))
        (1, 3, 4)
    """

    record = TaskRecord(
        "late_interaction",
        LateInteractionPreprocessor,
        pipeline_tag="sentence-similarity",
        answers_class=TokenAnswers,
        text_method="embed",
        compile_settings=("chunk_size",),
        folder=LateInteractionFolderFormat(),
    )
    index_class = MultiVectorIndex
    vector_mask = "scored_mask"

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: LateInteractionPreprocessor | None = None,
        dim: PositiveInt | None = None,
        projections: Sequence[Mapping] = (),
        normalize: bool = True,
        similarity_function: TokenSimilarity = "maxsim",
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.dim = dim
        self.similarity_function = similarity_function
        self.projections = [dict(settings) for settings in projections]
        self.normalize = normalize
        with self.distribution.scope():
            given = self.projections or [{"units": self.dim or DIM}]
            settings = [{"activation": "linear", "use_bias": False, **one} for one in given]
            self.projection_layers = build_projections(backbone.hidden_dim, settings, "projection")
        if dim not in (None, self.embedding_dim):
            raise ValueError(
                f"dim is {dim}, but the last projection has {self.embedding_dim} units. Remove "
                "`dim` or `projections`."
            )
        self._finish_building()
        self.built = True

    @property
    def embedding_dim(self) -> int:
        """Return the vector dimension."""
        return self.projection_layers[-1].units

    @property
    def default_losses(self) -> dict[str, Callable[[], keras.losses.Loss]]:
        """Map each format of training data to a function that creates the default loss."""
        prepares, mean = self.preprocessor, self.similarity_function == "meanmaxsim"
        length = prepares and prepares.sequence_length is None and prepares.get_max_length("query")
        scale = MEAN_SCALE if mean else 1.0
        return {
            PAIRS: lambda: losses.MaxSimInfoNCE(scale, length or None, mean=mean),
            SCORES: lambda: losses.MaxSimDistillation(query_length=length or None, mean=mean),
        }

    # -- the model -----------------------------------------------------------------------------

    def _stack_vectors(self, first, others, batch, count):
        """Stack the vectors for the texts in each row into (B, 1 + K, L, D), with padding."""
        lengths = [ops.shape(x)[1] for x in (first, others)]
        longest = max(lengths) if all(type(n) is int for n in lengths) else ops.maximum(*lengths)
        first, others = pad_to_length(first, longest), pad_to_length(others, longest)
        return super()._stack_vectors(first, others, batch, count)

    def _pad_vectors(self, vectors, length):
        return pad_to_length(vectors, length)

    def logits_of(self, encoded, inputs, training=None):
        """Compute the token vectors (B, L, D) from the backbone outputs."""
        x = ops.cast(encoded["sequence_output"], "float32")
        for layer in self.projection_layers:
            x = layer(x)
        x = normalize(x) if self.normalize else x
        mask = inputs.get("scored_mask", inputs.get("padding_mask"))
        return x if mask is None else x * ops.expand_dims(ops.cast(mask, "float32"), 2)

    def _get_text_shape(self, inputs) -> tuple[int | None, ...]:
        names = "token_ids", CANDIDATE + "token_ids"
        lengths = [inputs[name].shape[-1] for name in names if name in inputs]
        return None if None in lengths else max(lengths), self.embedding_dim

    def list_input_names(self) -> list[str]:
        prepares = self.preprocessor
        expands = prepares and prepares.expand_queries and not prepares.attend_to_expansion
        own = ["scored_mask", *(["attended_mask"] if expands else [])]
        return [*Task.list_input_names(self), *own]

    # -- answers -------------------------------------------------------------------------------

    embed = delegate_to_answers(TokenAnswers.embed)

    embed_with_spans = delegate_to_answers(TokenAnswers.embed_with_spans)

    def signatures(self) -> dict[str, Callable]:
        """Return the functions to export: "serving_default", "query" and "document".

        By default, texts are embedded as documents.

        Returns:
            Dict of functions. Each function returns "embedding" (N, tokens, D), padded with zeros,
            and "length" (N,) int32, which is the number of tokens per text.
        """
        preprocessor, width = self.preprocessor, self.embedding_dim

        def compute_vectors(examples):
            inputs = preprocessor.pad(examples)
            vectors = ops.reshape(self(inputs, training=False), (-1, width))
            return xp.boolean_mask(vectors, xp.reshape(inputs["scored_mask"], [-1]))

        def answer(text, prompt):
            examples = preprocessor.encode(text, prompt=prompt)
            kept = xp.cast(preprocessor.mark_scored_tokens(examples), xp.int64)
            kept = examples["token_ids"].with_flat_values(kept)
            lengths = xp.reduce_sum(kept, axis=1)
            vectors = map_graph_batches(compute_vectors, examples, lengths, width)
            return {
                "embedding": vectors.to_tensor(shape=(None, None, width)),
                "length": xp.cast(lengths, xp.int32),
            }

        return make_role_signatures(answer, DOCUMENT)

    # -- presets -------------------------------------------------------------------------------

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[LateInteractionPresetArguments]
    ) -> Self:
        """Load a pretrained model, or an encoder to train with a new projection and new markers.

        Args:
            source: String or path. A name from `list_presets()`, a folder,
                `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: Options for the model: `dim`, `projections`, `normalize` and
                `similarity_function`. Options for the preprocessor: `query_length`,
                `document_length`, `query_marker`, `document_marker`, `prompts`, `expand_queries`,
                `expansion_length`, `attend_to_expansion`, `skiplist`, `score_first` and
                `sequence_length`. Missing markers will be added to the vocabulary. Options for the
                backbone, for example `dropout` and `dtype`. Option for the tokenizer:
                `added_tokens`. Options for the checks: `verify`, `max_bytes` and `allow_nonfinite`.
        """
        return super().from_preset(source, **arguments)

    # -- checks of `encoder_zoo.testing` -------------------------------------------------------

    @classmethod
    def tiny_data(cls) -> TinyData:
        x = ["a b ab", "c", "c d e a b", "p"], ["d e", "a b", "p", "a b c"], ["c", "f", "a", "d e"]
        return TinyData({"dim": 4}, x, questions=lambda task: x[:1])


def pad_to_length(x: keras.KerasTensor, length) -> keras.KerasTensor:
    """Pad vectors (B, L, D) with zeros at the end to shape (B, length, D).

    Example:
        >>> pad_to_length(ops.ones((1, 2, 3)), 4).shape
        TensorShape([1, 4, 3])
    """
    batch, own, width = ops.shape(x)
    if type(own) is int and type(length) is int and own == length:
        return x
    return ops.concatenate([x, ops.zeros((batch, length - own, width), x.dtype)], axis=1)
