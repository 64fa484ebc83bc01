"""Text embeddings: one vector per text. Texts with similar meanings have similar vectors.

Comment letters: B batch, N texts, K further texts of an example, L sequence, D width.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Unpack

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.validation import PositiveFloat, PositiveInt, validate_arguments
from encoder_zoo.common.weights_lock import weights_lock
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.families.token_table import TokenTable
from encoder_zoo.encoders.inputs import backbone_inputs
from encoder_zoo.encoders.tokenizers.file_tokenizer import FileTokenizer
from encoder_zoo.presets.formats.embedding_folder import EmbeddingFolder
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks import losses
from encoder_zoo.tasks.base.missing_answers import Missing
from encoder_zoo.tasks.base.task import TaskPresetArguments, TinyData
from encoder_zoo.tasks.embedding.embedder import (
    PAIRS,
    SCORES,
    VECTORS,
    Embedder,
    check_pooled_by_mean,
)
from encoder_zoo.tasks.embedding.pair_columns import only_column
from encoder_zoo.tasks.embedding.pooling import (
    Projection,
    checked_modes,
    modes_of,
    pool,
    principal_components,
    to_unit_length,
)
from encoder_zoo.tasks.embedding.text_embedder_preprocessor import Part, TextEmbedderPreprocessor
from encoder_zoo.tasks.embedding.vector_answers import StaticAnswers, VectorAnswers, check_dim
from encoder_zoo.tasks.preprocessing.batch_shapes import batches_by_length, take_examples
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE, in_graph_batches
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.index_kinds import VectorIndex
from encoder_zoo.tasks.retrieval.similarity import Similarity
from encoder_zoo.tasks.training.sources import check_preprocessor

if TYPE_CHECKING:
    from typing import Self

DEFAULT_LOSSES = {
    PAIRS: losses.InfoNCE,
    SCORES: losses.CoSENT,
    VECTORS: losses.VectorDistillation,
}


class EmbedderPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `TextEmbedder.from_preset`. The base class contains `pooling`."""

    dense: Sequence[Mapping[str, object]]
    normalize: bool
    dim: int | None
    similarity_function: Similarity
    max_length: int | None
    prompts: Mapping[str, str] | None
    default_prompt: str | None
    include_prompt: bool


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TextEmbedder(Embedder[VectorIndex]):
    """Embed texts: pool the vectors of the tokens to one vector per text.

        embedder = ez.TextEmbedder.from_preset("all_minilm_l6_en_uncased")
        embedder.embed(["a text", "another"])  # (2, 384)
        embedder.fit((queries, documents))  # learns to put each query near its document
        index = embedder.index(documents)
        index.search("How do I reset it?")

    `from_preset` loads models from sentence-transformers of any version, with their pooling, dense
    layers and prompts. It also loads static embeddings, including models from model2vec. For other
    encoders, set the pooling with the argument `pooling`.

    Args:
        backbone: A `Backbone`.
        preprocessor: `TextEmbedderPreprocessor` for raw text. Defaults to None.
        pooling: String or list of strings. "mean", "cls", "max", "mean_sqrt_len_tokens",
            "weightedmean" or "lasttoken", as in sentence-transformers. The results of a list are
            concatenated. Defaults to "mean".
        dense: List of dicts, one per dense layer after the pooling. Each dict contains `units` and
            optionally `activation`, `use_bias` and `residual`, see `Projection`. Defaults to no
            layers.
        normalize: Boolean. Whether to scale vectors to unit length. Defaults to True.
        dim: Integer. Number of dimensions that `embed` keeps. Defaults to None, which keeps all
            dimensions.
        similarity_function: String. "cosine", "dot", "euclidean" or "manhattan". Defaults to
            "cosine".

    `fit` accepts these forms of data:

    - Pairs, `fit((queries, documents))`. The loss `InfoNCE` moves each query near its document and
      away from the other documents in the batch. `fit((queries, documents, negatives))` adds hard
      negatives: one or several columns, or a list of the same length in each row.
    - Pairs with scores, `fit((first, second), scores)`. The loss `CoSENT` orders the pairs by
      their scores.
    - Texts, `fit(texts)`. Each text is embedded twice with different dropout (SimCSE, Gao et al.
      2021).
    - Texts with vectors, `fit(texts, teacher.embed(texts))`. The loss `VectorDistillation` trains
      the model to reproduce the vectors.

    In pairs without scores, the first text of each row gets the prompt "query", and the other texts
    get the prompt "document". Data with scores or vectors get the default prompt. To mix datasets
    so that each batch comes from one dataset, use
    `tf.data.Dataset.sample_from_datasets([first.batch(64), second.batch(64)])`.

    Call arguments:
        inputs: Dict of tensors that the preprocessor returns.

    Returns:
        Float32 tensor of shape (B, D), or (B, 1 + K, D) for inputs with candidates.

    Raises:
        ValueError: If `pooling` is unknown.

    Source: Reimers and Gurevych 2019, Sentence-BERT, section 3.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16)
        >>> embedder = TextEmbedder(backbone, pooling=["cls", "mean"])
        >>> keras.ops.shape(embedder({"token_ids": np.array([[2, 7, 3]])}))
        (1, 16)
    """

    record = TaskRecord(
        "text_embedder",
        TextEmbedderPreprocessor,
        pipeline_tag="sentence-similarity",
        text_method="embed",
        folder=EmbeddingFolder(),
    )
    default_losses = DEFAULT_LOSSES
    index_class = VectorIndex

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: TextEmbedderPreprocessor | None = None,
        pooling: str | Sequence[str] = "mean",
        dense: Sequence[Mapping] = (),
        normalize: bool = True,
        dim: PositiveInt | None = None,
        similarity_function: Similarity = "cosine",
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.pooling = checked_modes(pooling)
        self.dense = [dict(settings) for settings in dense]
        self.normalize = normalize
        self.dim = dim
        self.similarity_function = similarity_function
        with self.distribution.scope():
            self.dense_layers = self._make_dense()
        check_dim(dim, self.embedding_dim)
        self._finish_building()
        self.built = True

    def _make_dense(self) -> list[Projection]:
        width = self.backbone.hidden_dim * len(modes_of(self.pooling))
        layers = []
        for i, settings in enumerate(self.dense):
            layers.append(Projection(**settings, name=f"dense_{i}"))
            layers[-1].build((None, width))
            width = layers[-1].units
        return layers

    @property
    def embedding_dim(self) -> int:
        """Return the number of dimensions before the vectors are truncated to `dim`."""
        if self.dense_layers:
            return self.dense_layers[-1].units
        return self.backbone.hidden_dim * len(modes_of(self.pooling))

    @property
    def _answers(self) -> VectorAnswers:
        vectors = self.preprocessor, self, self.embedding_dim
        settings = *vectors, self.similarity_function, self.normalize, self.dim
        if not self._adds_rows:
            return VectorAnswers(*settings)
        with weights_lock(self).shared():
            table = self.backbone.table()
        return StaticAnswers(*settings, table=table, project=self._project)

    @property
    def _adds_rows(self) -> bool:
        """Return whether the vector of a text is the mean of rows of a table."""
        return isinstance(self.backbone, TokenTable) and modes_of(self.pooling) == ["mean"]

    def _project(self, vectors: np.ndarray) -> np.ndarray:
        """Apply the dense layers."""
        for layer in self.dense_layers:
            vectors = layer(vectors)
        return ops.convert_to_numpy(vectors)

    def logits_of(self, encoded, inputs, training=None):
        """Compute the vectors (B, D) from the outputs of the backbone."""
        mask = inputs.get("pooling_mask", inputs.get("padding_mask"))
        if mask is None:
            mask = ops.ones_like(inputs["token_ids"])
        x = pool(encoded["sequence_output"], mask, modes_of(self.pooling))
        for layer in self.dense_layers:
            x = layer(x)
        return to_unit_length(x) if self.normalize else x

    @validate_arguments
    def embed(
        self,
        texts: object,
        prompt: str | None = None,
        dim: PositiveInt | None = None,
        batch_size: PositiveInt | None = None,
        windows: Literal["mean"] | None = None,
        missing: Missing = "error",
    ) -> np.ndarray:
        """Compute the embeddings of texts.

        Args:
            texts: A text, a list, array, tensor or column of texts, or chunks from `chunks`.
            prompt: String. Name of a prompt of the model, such as "query" or "document", or the
                text of a prompt, such as "query: ". The prompt is prepended to each text. The names
                "passage" and "corpus" are aliases of "document". If the model has no prompts, these
                names have no effect. Defaults to None, which uses the model's default prompt.
            dim: Integer. Number of dimensions to keep, for models that were trained for truncation
                (Matryoshka). A model with `normalize=True` normalizes the truncated vectors.
                Defaults to None, which uses the model's `dim`.
            batch_size: Integer. Number of texts per batch. Defaults to 32.
            windows: "mean" or None. "mean" splits long texts into windows of the model's maximum
                length and averages their vectors, weighted by the number of tokens. Defaults to
                None, which truncates long texts and logs their number.
            missing: "none" or "error". How to handle rows without text, such as None, NaN or blank
                strings. "none" returns a row of NaN. "error" raises an error that names the first
                missing row. Defaults to "error".

        Returns:
            Float32 array of shape (N, D), in the order of the texts, or (D,) for a single text.

        Raises:
            ValueError: If a text is empty, if `prompt` is unknown, or if `dim` is greater than
                `embedding_dim`.
                `embedding_dim`.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> embedder.embed(["A text.", "Another one."]).shape, embedder.embed("A text.").shape
            ((2, 256), (256,))
        """
        if isinstance(texts, Documents) and texts.contexts is not None:
            if not self._adds_rows:  # the rows of a table do not depend on the context
                answers = self._answers
                check_dim(dim, self.embedding_dim)
                vectors = self._vectors_in_contexts(texts, prompt, batch_size or BATCH_SIZE)
                return answers.shorten(vectors, dim)
            texts = texts.texts
        check_preprocessor(self, texts)
        return self._answers.embed(texts, prompt, dim, batch_size, windows, missing)

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed documents for LangChain: return `embed(texts, prompt="document")` as lists.

            store = langchain_core.vectorstores.InMemoryVectorStore(embedder)

        Args:
            texts: List of strings.

            texts: of documents.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
            >>> len(embedder.embed_documents(["A cat.", "A dog."]))
            2
        """
        return self.embed(texts, prompt="document").tolist()

    def embed_query(self, text: str) -> list[float]:
        """Embed a query for LangChain: return `embed(text, prompt="query")` as a list.

        Args:
            text: String.
        """
        return self.embed(text, prompt="query").tolist()

    @validate_arguments
    def distil_static(
        self,
        dim: PositiveInt = 256,
        sif: PositiveFloat | None = 1e-4,
        batch_size: PositiveInt | None = None,
    ) -> TextEmbedder:
        """Distill the model into a static embedder, which averages one vector per token.

            static = embedder.distil_static()  # 30,522 tokens of BERT: 31 MB
            static.embed(texts)  # hundreds of times as fast, without the encoder
            static.fit((queries, documents))  # trains like any other embedder
            static.save_to_preset("static")  # opens in sentence-transformers and model2vec

        The model embeds each token of the vocabulary separately. The vectors are reduced to their
        principal components, and frequent tokens get smaller weights. No training data is needed.

        Args:
            dim: Integer. Number of principal components to keep, at most the width of the model.
                Defaults to 256.
            sif: Float. The constant `a` of the token weights `a / (a + p)`. The probability `p` of
                a token is estimated from its rank in the vocabulary with Zipf's law. None gives all
                tokens the same weight. Defaults to 1e-4.
            batch_size: Integer. Number of tokens per batch. Defaults to 32.

        Returns:
            A `TextEmbedder` with cosine similarity and without prompts.

        Raises:
            ValueError: If the embedder is already static.

        Source: Arora et al. 2017, A Simple but Tough-to-Beat Baseline for Sentence Embeddings,
        section 3, for the weights; the steps are those of model2vec.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> static = TextEmbedder.from_preset("bert_nano_en_uncased").distil_static(dim=16)
            >>> static.embed(["A cat.", "A dog."]).shape
            (2, 16)
        """
        check_preprocessor(self, "")
        if isinstance(self.backbone, TokenTable):
            raise ValueError("The embedder is static already. Distil it from an encoder.")
        tokenizer = self.preprocessor.tokenizer
        file = tokenizer.to_files()["tokenizer.json"]
        file = file.decode() if isinstance(file, bytes) else file
        static = FileTokenizer(file, keeps_unknown=False)
        tokens = tokenizer.get_vocabulary()
        left_out = {*tokenizer.special_tokens, static.get_vocabulary()[static.unknown_id or 0]}
        ids = [
            i
            for i, token in enumerate(tokens)
            if token not in left_out and not re.fullmatch(r"\[unused\d+\]", token)
        ]
        one_each = array_ops.RaggedTensor.from_row_lengths(
            array_ops.constant(ids, "int32"), np.ones(len(ids), "int64")
        )
        examples = {"token_ids": self.preprocessor.pack([one_each])["token_ids"]}
        vectors = np.zeros((len(ids), self.embedding_dim))
        for indices, states in self._token_states(examples, batch_size or BATCH_SIZE):
            x = pool(states, np.ones(states.shape[:2]), modes_of(self.pooling))
            vectors[indices] = self._project(x)
        vectors = principal_components(vectors, min(dim, self.embedding_dim))
        if sif is not None:
            share = 1 / np.arange(2, len(ids) + 2)
            vectors *= (sif / (sif + share / share.sum()))[:, None]
        backbone = TokenTable(vocabulary_size=static.vocabulary_size, hidden_dim=vectors.shape[1])
        table = np.zeros((static.vocabulary_size, vectors.shape[1]), "float32")
        table[ids] = vectors
        backbone.embeddings.token_embedding.set_weights([table])
        return TextEmbedder(backbone, TextEmbedderPreprocessor(static))

    def _vectors_in_contexts(
        self, chunks: Documents, prompt: str | None, batch_size: int
    ) -> np.ndarray:
        """Compute the vectors of chunks (N, D): the mean of their tokens in the whole texts."""
        check_pooled_by_mean(self)
        examples, parts = self.preprocessor.encode_contexts(chunks.contexts, prompt)
        by_window: dict[int, list[Part]] = {}
        for part in parts:
            by_window.setdefault(part.window, []).append(part)
        vectors = np.zeros((len(chunks), self.backbone.hidden_dim))
        counts = np.zeros((len(chunks), 1))
        for indices, states in self._token_states(examples, batch_size):
            for window, x in zip(indices.tolist(), states, strict=True):  # (L, D)
                for _, chunk, first, last in by_window.get(window, []):
                    vectors[chunk] += x[first:last].sum(axis=0, dtype="float64")
                    counts[chunk] += last - first
        vectors = (vectors / np.maximum(counts, 1)).astype("float32")
        vectors, answers = self._project(vectors), self._answers
        if len(alone := np.flatnonzero(counts == 0)):  # chunks without any token
            texts = only_column([chunks.texts[i] for i in alone])
            vectors[alone] = answers.embed_whole(texts, prompt, batch_size)
        return answers.scale(vectors)

    def _token_states(
        self, examples: dict, batch_size: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield indices of examples (B,), longest first, and their token vectors (B, L, D)."""
        collate = self.batch_maker.collate()
        with weights_lock(self).shared():
            for indices in batches_by_length(examples, batch_size):
                inputs = backbone_inputs(collate(take_examples(examples, indices)))
                inputs = {name: np.asarray(values) for name, values in inputs.items()}
                outputs = self.backbone.predict_on_batch(inputs)
                yield indices, np.asarray(outputs["sequence_output"], "float32")

    @validate_arguments
    def signatures(self, dim: PositiveInt | None = None) -> dict[str, Callable]:
        """Return the functions that an export contains.

        The names of the functions are "serving_default", "query" and "document". They embed the
        input "text" with the default prompt or with the prompt of the same name.

        Args:
            dim: Integer. Number of dimensions to keep, see `embed`. Defaults to None.

        Returns:
            Dict of functions. Each function returns {"embedding": tensor of shape (N, D)}.
        """
        check_dim(dim, self.embedding_dim)
        dim, preprocessor = dim or self.dim or self.embedding_dim, self.preprocessor

        def vectors_of(examples):
            return self(preprocessor.pad(examples), training=False)

        def answer(text, prompt=None):
            examples = preprocessor.encode(text, prompt=prompt)
            ones = array_ops.ones_like(examples["token_ids"].row_lengths())
            vectors = in_graph_batches(vectors_of, examples, ones, self.embedding_dim)
            vectors = vectors.flat_values[:, :dim]
            shortens = self.normalize and dim < self.embedding_dim
            return {"embedding": to_unit_length(vectors) if shortens else vectors}

        return {
            "serving_default": lambda text: answer(text),
            "query": lambda text: answer(text, "query"),
            "document": lambda text: answer(text, "document"),
        }

    # -- presets -------------------------------------------------------------------------------

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[EmbedderPresetArguments]
    ) -> Self:
        """Load a pretrained embedder, or an encoder without a head. See also `Task.from_preset`.

        Args:
            source: Name from `list_presets()`, path to a folder, `hf://organisation/name` with an
                optional `@revision`, or `kaggle://...`.
            **arguments: Options of the model: `pooling`, `dense`, `normalize`, `dim` and
                `similarity_function`. Options of the preprocessor: `sequence_length`,
                `max_length`, `prompts`, `default_prompt` and `include_prompt`. Options of the
                backbone, such as `dropout` and `dtype`. Option of the tokenizer: `added_tokens`.
                Options of the checks: `verify`, `max_bytes` and `allow_nonfinite`.
        """
        return super().from_preset(source, **arguments)

    @classmethod
    def tiny_data(cls) -> TinyData:
        x, y = ["a b ab", "c", "c d e a b", "p"], np.cos(np.arange(64.0)).reshape(4, 16)
        return TinyData({"pooling": ["mean", "max"]}, x, y)
