"""Late interaction: one vector per token, compared token by token.

Comment letters: B batch, K further texts of an example, L sequence, D width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.presets.formats.late_interaction_folder import LateInteractionFolder
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks import losses
from encoder_zoo.tasks.base.missing_answers import Missing
from encoder_zoo.tasks.base.task import Task, TaskPresetArguments, TinyData
from encoder_zoo.tasks.embedding.embedder import PAIRS, SCORES, Embedder
from encoder_zoo.tasks.embedding.late_interaction_preprocessor import (
    DOCUMENT,
    QUERY,
    LateInteractionPreprocessor,
)
from encoder_zoo.tasks.embedding.pooling import Projection, to_unit_length
from encoder_zoo.tasks.embedding.token_answers import TokenAnswers
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.retrieval.index_kinds import MultiVectorIndex
from encoder_zoo.tasks.retrieval.similarity import TokenSimilarity
from encoder_zoo.tasks.training.sources import check_preprocessor

if TYPE_CHECKING:
    from typing import Self

DIM = 128  # of a new projection
MEAN_SCALE = 50.0  # of means, as BGE-M3 was trained: a temperature of 0.02


class LateInteractionPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `LateInteraction.from_preset`."""

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
    """Embed the tokens of texts, and compare queries and documents token by token (ColBERT).

        colbert = ez.LateInteraction.from_preset("hf://lightonai/GTE-ModernColBERT-v1")
        colbert.embed(documents)  # a list of (tokens, 128)
        colbert.rank("How do I reset it?", documents, top_k=3)
        index = colbert.index(documents, pool_factor=2)
        index.search("How do I reset it?")

    `from_preset` loads models from the authors of ColBERT, from PyLate, from MultiVectorEncoder of
    sentence-transformers 6, and from BGE-M3. Other encoders get a new projection. Presets are saved
    in the format of PyLate, which sentence-transformers 6 can also read. If the first token has no
    vector, they are saved in the format of BGE-M3.

    Args:
        backbone: A `Backbone`.
        preprocessor: `LateInteractionPreprocessor` for raw text. Defaults to None.
        dim: Integer. Number of dimensions, if there are no `projections`. Defaults to 128.
        projections: List of dicts, one per linear layer that projects the token vectors. Each dict
            contains `units` and optionally `activation` ("linear"), `use_bias` (False) and
            `residual` (False). Defaults to one layer with `dim` units.
        normalize: Boolean. Whether to scale vectors to unit length. Defaults to True.
        similarity_function: "maxsim" or "meanmaxsim". For each token of the query, "maxsim" takes
            the largest dot product with a token of the document, and adds these products.
            "meanmaxsim" divides the sum by the number of query tokens, as in BGE-M3. Defaults to
            "maxsim".

    `fit` accepts these forms of data:

    - Pairs, `fit((queries, documents))`. The loss `MaxSimInfoNCE` moves each query near its
      document and away from the other documents in the batch. `fit((queries, documents,
      negatives))` adds hard negatives: one or several columns, or a list of the same length in each
      row.
    - Queries with a list of documents each, and the scores of a teacher such as a `Reranker`,
      `fit((queries, lists), scores)`. The loss `MaxSimDistillation` trains the model to reproduce
      the scores.

    Call arguments:
        inputs: Dict of tensors that the preprocessor returns.

    Returns:
        Float32 tensor of shape (B, L, D), or (B, 1 + K, L, D) for inputs with candidates. Tokens
        without a vector are zeros.

    Raises:
        ValueError: If `dim` differs from the units of the last projection.

    Source: Khattab and Zaharia 2020, ColBERT, section 3. Santhanam et al. 2022, ColBERTv2.

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
        text_method="embed",
        folder=LateInteractionFolder(),
        predicts_lists=True,
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
            self.projection_layers = self._make_projections()
        if dim not in (None, self.embedding_dim):
            raise ValueError(
                f"dim is {dim}, but the last of projections has {self.embedding_dim} units. Leave "
                "one of them out."
            )
        self._finish_building()
        self.built = True

    def _make_projections(self) -> list[Projection]:
        width, layers = self.backbone.hidden_dim, []
        for i, settings in enumerate(self.projections or [{"units": self.dim or DIM}]):
            settings = {"activation": "linear", "use_bias": False, **settings}
            layers.append(Projection(**settings, name=f"projection_{i}"))
            layers[-1].build((None, width))
            width = layers[-1].units
        return layers

    @property
    def embedding_dim(self) -> int:
        """Return the number of dimensions of the vectors."""
        return self.projection_layers[-1].units

    @property
    def default_losses(self) -> dict[str, Callable[[], keras.losses.Loss]]:
        """Return a dict that maps forms of the data to functions that create their loss."""
        prepares, mean = self.preprocessor, self.similarity_function == "meanmaxsim"
        length = prepares and prepares.sequence_length is None and prepares.longest("query")
        scale = MEAN_SCALE if mean else 1.0
        return {
            PAIRS: lambda: losses.MaxSimInfoNCE(scale, length or None, mean=mean),
            SCORES: lambda: losses.MaxSimDistillation(query_length=length or None, mean=mean),
        }

    # -- the model -----------------------------------------------------------------------------

    def _stacked(self, first, others, batch, count):
        """Join the vectors of the texts in each row to (B, 1 + K, L, D), padded to one length."""
        lengths = [ops.shape(x)[1] for x in (first, others)]
        longest = max(lengths) if all(type(n) is int for n in lengths) else ops.maximum(*lengths)
        first, others = pad_to_length(first, longest), pad_to_length(others, longest)
        return super()._stacked(first, others, batch, count)

    def _padded(self, vectors, length):
        return pad_to_length(vectors, length)

    def logits_of(self, encoded, inputs, training=None):
        """Compute the vectors (B, L, D) from the outputs of the backbone."""
        x = ops.cast(encoded["sequence_output"], "float32")
        for layer in self.projection_layers:
            x = layer(x)
        x = to_unit_length(x) if self.normalize else x
        mask = inputs.get("scored_mask", inputs.get("padding_mask"))
        return x if mask is None else x * ops.expand_dims(ops.cast(mask, "float32"), 2)

    def _shape_of_text(self, inputs) -> tuple[int | None, ...]:
        names = "token_ids", CANDIDATE + "token_ids"
        lengths = [inputs[name].shape[-1] for name in names if name in inputs]
        return None if None in lengths else max(lengths), self.embedding_dim

    def prepared_inputs(self) -> list[str]:
        prepares = self.preprocessor
        expands = prepares and prepares.expand_queries and not prepares.attend_to_expansion
        own = ["scored_mask", *(["attended_mask"] if expands else [])]
        return [*Task.prepared_inputs(self), *own]

    # -- answers -------------------------------------------------------------------------------

    @validate_arguments
    def embed(
        self,
        texts: object,
        prompt: str | None = "document",
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> list[np.ndarray] | np.ndarray:
        """Compute the token embeddings of texts.

        Texts that are too long are truncated, and a log message reports their number.

        Args:
            texts: A text, or a list, array, tensor or column of texts.
            prompt: "query" or "document". Queries are padded with [MASK] tokens, which also have
                vectors. In documents, the words of the skiplist have no vectors. Defaults to
                "document".
            batch_size: Integer. Number of texts per batch. Defaults to 32.
            missing: "none" or "error". How to handle rows without text, such as None, NaN or blank
                strings. "none" returns None. "error" raises an error that names the first missing
                row. Defaults to "error".

        Returns:
            List of float32 arrays (tokens, D), in the order of the texts. A single text returns one
            array.

        Raises:
            ValueError: If a text is empty, or if `prompt` is neither "query" nor "document".

        Example:
            >>> from encoder_zoo import LateInteraction
            >>> model = LateInteraction.from_preset("bert_nano_en_uncased", dim=16)
            >>> [vectors.shape for vectors in model.embed(["Cats sleep.", "Cats"])]
            [(6, 16), (5, 16)]
            >>> model.embed("Cats", prompt="query").shape
            (32, 16)
        """
        check_preprocessor(self, texts)
        return self._answers.embed(texts, prompt, batch_size, missing)

    @property
    def _answers(self) -> TokenAnswers:
        return TokenAnswers(self.preprocessor, self, self.embedding_dim, self.similarity_function)

    @validate_arguments
    def embed_with_spans(
        self,
        texts: object,
        prompt: str | None = "document",
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> list[tuple[np.ndarray, np.ndarray]] | tuple[np.ndarray, np.ndarray]:
        """Compute the token embeddings of texts, and the position of each token in its text.

        Args:
            texts, prompt, batch_size: See `embed`.
            missing: "none" or "error". How to handle rows without text, such as None, NaN or blank
                strings. "none" returns None. "error" raises an error that names the first missing
                row. Defaults to "error".

        Returns:
            List of pairs of arrays, in the order of the texts. The first array contains the vectors
            (tokens, D), float32. The second array contains the start and end offset of each token,
            (tokens, 2), int32. It is -1 for special tokens and the padding of queries. A single
            text returns one pair.

        Example:
            >>> from encoder_zoo import LateInteraction
            >>> model = LateInteraction.from_preset("bert_nano_en_uncased", dim=16)
            >>> vectors, spans = model.embed_with_spans("Cats sleep.")
            >>> ["Cats sleep."[begin:end] for begin, end in spans if end > 0]
            ['Cat', 's', 'sleep']
        """
        check_preprocessor(self, texts)
        return self._answers.embed_with_spans(texts, prompt, batch_size, missing)

    def signatures(self) -> dict[str, Callable]:
        """Return the functions that an export contains: "serving_default", "query" and "document".

        The default function embeds documents.

        Returns:
            Dict of functions. Each function returns "embedding" (N, tokens, D), padded with zeros,
            and "length" (N,) int32, the number of tokens per text.
        """
        preprocessor, width = self.preprocessor, self.embedding_dim

        def vectors_of(examples):
            inputs = preprocessor.pad(examples)
            vectors = ops.reshape(self(inputs, training=False), (-1, width))
            return array_ops.boolean_mask(vectors, array_ops.reshape(inputs["scored_mask"], [-1]))

        def answer(text, prompt):
            examples = preprocessor.encode(text, prompt=prompt)
            kept = array_ops.cast(preprocessor.scored(examples), array_ops.int64)
            kept = examples["token_ids"].with_flat_values(kept)
            lengths = array_ops.reduce_sum(kept, axis=1)
            vectors = in_graph_batches(vectors_of, examples, lengths, width)
            return {
                "embedding": vectors.to_tensor(shape=(None, None, width)),
                "length": array_ops.cast(lengths, array_ops.int32),
            }

        return {
            "serving_default": lambda text: answer(text, DOCUMENT),
            "query": lambda text: answer(text, QUERY),
            "document": lambda text: answer(text, DOCUMENT),
        }

    # -- presets -------------------------------------------------------------------------------

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[LateInteractionPresetArguments]
    ) -> Self:
        """Load a pretrained model, or an encoder with a new projection and new markers.

        Args:
            source: Name from `list_presets()`, path to a folder, `hf://organisation/name` with an
                optional `@revision`, or `kaggle://...`.
            **arguments: Options of the model: `dim`, `projections`, `normalize` and
                `similarity_function`. Options of the preprocessor: `query_length`,
                `document_length`, `query_marker`, `document_marker`, `prompts`, `expand_queries`,
                `expansion_length`, `attend_to_expansion`, `skiplist`, `score_first` and
                `sequence_length`. Markers are added to the vocabulary if they are missing. Options
                of the backbone, such as `dropout` and `dtype`. Option of the tokenizer:
                `added_tokens`. Options of the checks: `verify`, `max_bytes` and `allow_nonfinite`.
        """
        return super().from_preset(source, **arguments)

    # -- checks of `encoder_zoo.testing` -------------------------------------------------------

    @classmethod
    def tiny_data(cls) -> TinyData:
        x = ["a b ab", "c", "c d e a b", "p"], ["d e", "a b", "p", "a b c"], ["c", "f", "a", "d e"]
        return TinyData({"dim": 4}, x, questions=lambda task: x[:1])


def pad_to_length(x: keras.KerasTensor, length) -> keras.KerasTensor:
    """Return vectors (B, L, D) padded with zeros at the end, (B, length, D).

    Example:
        >>> pad_to_length(ops.ones((1, 2, 3)), 4).shape
        TensorShape([1, 4, 3])
    """
    batch, own, width = ops.shape(x)
    if type(own) is int and type(length) is int and own == length:
        return x
    return ops.concatenate([x, ops.zeros((batch, length - own, width), x.dtype)], axis=1)
