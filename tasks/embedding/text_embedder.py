"""Text embeddings: one vector per text. Texts with similar meanings have similar vectors.

Comments use these letters for shapes: B batch, N texts, K additional texts of an example, L
sequence, D width.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Self, Unpack

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.validation import PositiveFloat, PositiveInt, validate_arguments
from encoder_zoo.common.weights_lock import get_weights_lock, lock_weights
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.families.token_table import TokenTable
from encoder_zoo.encoders.inputs import select_backbone_inputs
from encoder_zoo.encoders.tokenizers.file_tokenizer import FileTokenizer, list_texts
from encoder_zoo.presets.formats.embedding_folder import EmbeddingFolderFormat
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks import losses
from encoder_zoo.tasks.base.inference import compute_text_outputs_in_graph
from encoder_zoo.tasks.base.missing_answers import Missing
from encoder_zoo.tasks.base.task import TaskPresetArguments, TinyData
from encoder_zoo.tasks.embedding.embedder import (
    PAIRS,
    SCORES,
    VECTORS,
    Embedder,
    check_pooled_by_mean,
    make_role_signatures,
)
from encoder_zoo.tasks.embedding.pair_columns import convert_single_texts
from encoder_zoo.tasks.embedding.pooling import (
    build_projections,
    check_modes,
    compute_principal_components,
    list_modes,
    normalize,
    pool,
)
from encoder_zoo.tasks.embedding.text_embedder_preprocessor import (
    ChunkPart,
    TextEmbedderPreprocessor,
)
from encoder_zoo.tasks.embedding.vector_answers import VectorAnswers, check_dim
from encoder_zoo.tasks.preprocessing.batch_shapes import iterate_by_length, take_examples
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.index_kinds import VectorIndex
from encoder_zoo.tasks.retrieval.similarity import Similarity
from encoder_zoo.tasks.training.sources import check_preprocessor

TABLE_TEXTS_PER_STEP = 1024  # number of texts whose table rows are averaged at a time
DEFAULT_LOSSES = {PAIRS: losses.InfoNCE, SCORES: losses.CoSENT, VECTORS: losses.VectorDistillation}


class EmbedderPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `TextEmbedder.from_preset`. `pooling` is in the base class."""

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
    """Embed texts by pooling the token vectors into a single vector per text.

        embedder = ez.TextEmbedder.from_preset("all_minilm_l6_en_uncased")
        embedder.embed(["a text", "another"])  # (2, 384)
        embedder.fit((queries, documents))  # learns to put each query near its document
        index = embedder.index(documents)
        index.search("How do I reset it?")

    `from_preset` loads models that any version of sentence-transformers has saved, with their
    pooling, dense layers and prompts. It also loads static embeddings, for example of model2vec.
    For other encoders, choose the pooling with the argument `pooling`.

    Args:
        backbone: A `Backbone`.
        preprocessor: Optional `TextEmbedderPreprocessor` for raw text.
        pooling: String or list of strings. "mean", "cls", "max", "mean_sqrt_len_tokens",
            "weightedmean" or "lasttoken", as in sentence-transformers. If a list is given, the
            results will be concatenated. Defaults to "mean".
        dense: Optional list of dicts. Options of the dense layers after the pooling. Each dict
            contains `units` and optionally `activation`, `use_bias` and `residual`. See
            `Projection` for details. If None, there are no dense layers.
        normalize: Boolean. Whether to normalize vectors to unit length. Defaults to True.
        dim: Integer. Number of dimensions to which `embed` truncates embeddings. If None,
            embeddings are not truncated.
        similarity_function: String. "cosine", "dot", "euclidean" or "manhattan". Defaults to
            "cosine".

    `fit` accepts these forms of data:

    - Pairs, `fit((queries, documents))`. With the default loss `InfoNCE`, each query is trained to
      be close to the corresponding document and far from all other documents in the batch. To add
      hard negatives, call `fit((queries, documents, negatives))` with one or several columns, or
      with a list in each row. All lists must have the same length.
    - Pairs with scores, `fit((first, second), scores)`. The default loss is `CoSENT`, which is
      based on the order of the scores.
    - Texts, `fit(texts)`. Each text is passed to the model twice with different dropout (SimCSE,
      Gao et al. 2021).
    - Texts with vectors, `fit(texts, teacher.embed(texts))`. With the default loss
      `VectorDistillation`, the model is trained to reproduce the vectors.

    For pairs without scores, the prompt "query" is used for the first text in each row, and the
    prompt "document" for the other texts. The default prompt is used for data with scores or
    vectors. To train on several datasets with every batch from a single dataset, use
    `tf.data.Dataset.sample_from_datasets([first.batch(64), second.batch(64)])`.

    Call arguments:
        inputs: Dict of tensors, as returned by the preprocessor.

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
        answers_class=VectorAnswers,
        text_method="embed",
        compile_settings=("chunk_size",),
        folder=EmbeddingFolderFormat(),
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
        self.pooling = check_modes(pooling)
        self.dense = [dict(settings) for settings in dense]
        self.normalize = normalize
        self.dim = dim
        self.similarity_function = similarity_function
        with self.distribution.scope():
            width = self.backbone.hidden_dim * len(list_modes(self.pooling))
            self.dense_layers = build_projections(width, self.dense, "dense")
        check_dim(dim, self.embedding_dim)
        self._finish_building()
        self.built = True

    @property
    def embedding_dim(self) -> int:
        """Return the embedding dimension before truncation to `dim`."""
        if self.dense_layers:
            return self.dense_layers[-1].units
        return self.backbone.hidden_dim * len(list_modes(self.pooling))

    @property
    def _answers(self) -> VectorAnswers:
        average = self._average_table_rows if self._averages_table_rows else None
        return dataclasses.replace(super()._answers, average_rows=average)

    @property
    def _averages_table_rows(self) -> bool:
        """Return whether texts are embedded by averaging table rows."""
        return isinstance(self.backbone, TokenTable) and list_modes(self.pooling) == ["mean"]

    def _average_table_rows(self, texts: xp.Tensor, prompt: str | None, whole: bool) -> np.ndarray:
        """Compute vectors (N, D) without the model. If `whole` is True, texts are not truncated."""
        with get_weights_lock(self).shared():
            table = self.backbone.get_table()
        texts = list_texts(texts)
        vectors = np.zeros((len(texts), table.shape[1]), "float32")
        for first in range(0, len(texts), TABLE_TEXTS_PER_STEP):
            some = texts[first : first + TABLE_TEXTS_PER_STEP]
            ids, lengths = self.preprocessor.compute_ids(some, prompt, whole)
            filled = np.flatnonzero(lengths)
            if len(filled):
                starts = np.cumsum(lengths) - lengths
                sums = np.add.reduceat(table[ids], starts[filled])
                vectors[first + filled] = sums / lengths[filled, None]
        return self._project(vectors)

    def _project(self, vectors: np.ndarray) -> np.ndarray:
        """Apply the dense layers to the pooled vectors."""
        for layer in self.dense_layers:
            vectors = layer(vectors)
        return ops.convert_to_numpy(vectors)

    def logits_of(self, encoded, inputs, training=None):
        """Compute the text vectors (B, D) from the backbone outputs."""
        mask = inputs.get("pooling_mask", inputs.get("padding_mask"))
        if mask is None:
            mask = ops.ones_like(inputs["token_ids"])
        x = pool(encoded["sequence_output"], mask, list_modes(self.pooling))
        for layer in self.dense_layers:
            x = layer(x)
        return normalize(x) if self.normalize else x

    @validate_arguments
    @lock_weights
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
            texts: The text or texts to embed: a string, a list, array, tensor or column of strings,
                or chunks from `chunks`.
            prompt: String. The prompt to use for encoding: either a prompt name (e.g. "query" or
                "document") or a prompt text (e.g. "query: "). The prompt will be prepended to each
                text. The names "passage" and "corpus" are aliases for "document". These names have
                no effect on models without prompts. If None, the model's default prompt will be
                used.
            dim: Integer. The number of dimensions to truncate the embeddings to. Use this for
                models trained with Matryoshka losses. Truncated embeddings will be normalized again
                if `normalize=True`. If None, the model's `dim` will be used.
            batch_size: Integer. The batch size used for the computation. Defaults to 32.
            windows: "mean" or None. If "mean", long texts are split into windows based on the
                model's maximum length, and the window vectors are averaged, weighted by token
                counts. If None, long texts are truncated, and a log message reports how many.
                Chunks with contexts always use the windows of the whole text.
            missing: "none" or "error". How to handle rows without text (e.g. None, NaN or blank
                strings). "none" returns a row of NaN. "error" raises an error with the index of the
                first missing row. Defaults to "error".

        Returns:
            Float32 array of shape (N, D) in the same order as the inputs, or of shape (D,) for a
            single text.

        Raises:
            ValueError: If a text is empty, if `prompt` is unknown, or if `dim` is larger than
                `embedding_dim`.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> embedder.embed(["A text.", "Another one."]).shape, embedder.embed("A text.").shape
            ((2, 256), (256,))
        """
        if isinstance(texts, Documents) and texts.contexts is not None:
            if not self._averages_table_rows:  # the rows of a table do not depend on the context
                answers = self._answers
                check_dim(dim, self.embedding_dim)
                vectors = self._compute_vectors_in_contexts(texts, prompt, batch_size or BATCH_SIZE)
                return answers.truncate(vectors, dim)
            texts = texts.texts
        return self._get_answers(texts).embed(texts, prompt, dim, batch_size, windows, missing)

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed documents for LangChain, as lists of floats. See `embed` with prompt="document".

            store = langchain_core.vectorstores.InMemoryVectorStore(embedder)

        Args:
            texts: List of strings to embed.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
            >>> len(embedder.embed_documents(["A cat.", "A dog."]))
            2
        """
        return self.embed(texts, prompt="document").tolist()

    def embed_query(self, text: str) -> list[float]:
        """Embed a query for LangChain, as a list of floats. See `embed` with prompt="query".

        Args:
            text: String.
        """
        return self.embed(text, prompt="query").tolist()

    @validate_arguments
    @lock_weights
    def distil_static(
        self,
        dim: PositiveInt = 256,
        sif: PositiveFloat | None = 1e-4,
        batch_size: PositiveInt | None = None,
    ) -> TextEmbedder:
        """Distill the model into a static embedder that averages token vectors.

            static = embedder.distil_static()  # 30,522 tokens of BERT: 31 MB
            static.embed(texts)  # hundreds of times as fast, without the encoder
            static.fit((queries, documents))  # trains like any other embedder
            static.save_to_preset("static")  # opens in sentence-transformers and model2vec

        Each token in the vocabulary is passed to the model on its own. Principal component analysis
        is then applied to reduce the dimension, and frequent tokens are weighted less. This does
        not require any training data.

        Args:
            dim: Integer. The number of principal components to keep, up to the model's width.
                Defaults to 256.
            sif: Float. The constant `a` in the token weights `a / (a + p)`. The token probability
                `p` is estimated from the vocabulary rank with Zipf's law. If None, all tokens are
                weighted equally. Defaults to 1e-4.
            batch_size: Integer. The batch size, in tokens, used for the computation. Defaults to
                32.

        Returns:
            A new `TextEmbedder` with cosine similarity and without prompts.

        Raises:
            ValueError: If the embedder is already static.

        Source: Arora et al. 2017, A Simple but Tough-to-Beat Baseline for Sentence Embeddings,
        section 3, for the weights. This follows the same steps as model2vec.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> static = TextEmbedder.from_preset("bert_nano_en_uncased").distil_static(dim=16)
            >>> static.embed(["A cat.", "A dog."]).shape
            (2, 16)
        """
        check_preprocessor(self, "")
        if isinstance(self.backbone, TokenTable):
            raise ValueError(
                "The embedder is already static. Call this method on an embedder with an encoder."
            )
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
        one_each = xp.RaggedTensor.from_row_lengths(
            xp.constant(ids, "int32"), np.ones(len(ids), "int64")
        )
        examples = {"token_ids": self.preprocessor.pack([one_each])["token_ids"]}
        vectors = np.zeros((len(ids), self.embedding_dim))
        for indices, states in self._iterate_token_states(examples, batch_size or BATCH_SIZE):
            x = pool(states, np.ones(states.shape[:2]), list_modes(self.pooling))
            vectors[indices] = self._project(x)
        vectors = compute_principal_components(vectors, min(dim, self.embedding_dim))
        if sif is not None:
            share = 1 / np.arange(2, len(ids) + 2)
            vectors *= (sif / (sif + share / share.sum()))[:, None]
        backbone = TokenTable(vocabulary_size=static.vocabulary_size, hidden_dim=vectors.shape[1])
        table = np.zeros((static.vocabulary_size, vectors.shape[1]), "float32")
        table[ids] = vectors
        backbone.embeddings.token_embedding.set_weights([table])
        return TextEmbedder(backbone, TextEmbedderPreprocessor(static))

    def _compute_vectors_in_contexts(
        self, chunks: Documents, prompt: str | None, batch_size: int
    ) -> np.ndarray:
        """Compute the vectors of chunks (N, D) from the token vectors of whole texts."""
        check_pooled_by_mean(self)
        examples, parts = self.preprocessor.encode_contexts(chunks.contexts, prompt)
        by_window: dict[int, list[ChunkPart]] = {}
        for part in parts:
            by_window.setdefault(part.window, []).append(part)
        vectors = np.zeros((len(chunks), self.backbone.hidden_dim))
        counts = np.zeros((len(chunks), 1))
        for indices, states in self._iterate_token_states(examples, batch_size):
            for window, x in zip(indices.tolist(), states, strict=True):  # (L, D)
                for _, chunk, first, last in by_window.get(window, []):
                    vectors[chunk] += x[first:last].sum(axis=0, dtype="float64")
                    counts[chunk] += last - first
        vectors = (vectors / np.maximum(counts, 1)).astype("float32")
        vectors, answers = self._project(vectors), self._answers
        if len(alone := np.flatnonzero(counts == 0)):  # chunks without any token
            texts = convert_single_texts([chunks.texts[i] for i in alone])
            vectors[alone] = answers.embed_whole(texts, prompt, batch_size)
        return answers.scale(vectors)

    def _iterate_token_states(
        self, examples: dict, batch_size: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield example indices (B,), longest first, together with the token vectors (B, L, D)."""
        collate = self.batch_maker.collate()
        with get_weights_lock(self).shared():
            for indices in iterate_by_length(examples, batch_size):
                inputs = select_backbone_inputs(collate(take_examples(examples, indices)))
                inputs = {name: np.asarray(values) for name, values in inputs.items()}
                outputs = self.backbone.predict_on_batch(inputs)
                yield indices, np.asarray(outputs["sequence_output"], "float32")

    @validate_arguments
    def signatures(self, dim: PositiveInt | None = None) -> dict[str, Callable]:
        """Return the functions that an export contains.

        The functions are called "serving_default", "query" and "document". The input "text" is
        embedded with the default prompt, or with the prompt for queries or documents.

        Args:
            dim: Optional integer. The number of dimensions to truncate the embeddings to, as in
                `embed`.

        Returns:
            Dict of functions. Each function returns a dict {"embedding": tensor of shape (N, D)}.
        """
        check_dim(dim, self.embedding_dim)
        dim, preprocessor = dim or self.dim or self.embedding_dim, self.preprocessor

        def answer(text, prompt):
            examples = preprocessor.encode(text, prompt=prompt)
            vectors = compute_text_outputs_in_graph(self, examples, self.embedding_dim)[:, :dim]
            shortens = self.normalize and dim < self.embedding_dim
            return {"embedding": normalize(vectors) if shortens else vectors}

        return make_role_signatures(answer, None)

    # -- presets -------------------------------------------------------------------------------

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[EmbedderPresetArguments]
    ) -> Self:
        """Load a pretrained embedder, or an encoder to train. See also `Task.from_preset`.

        Args:
            source: String or path. A name from `list_presets()`, a folder,
                `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: Options for the model: `pooling`, `dense`, `normalize`, `dim` and
                `similarity_function`. Options for the preprocessor: `sequence_length`,
                `max_length`, `prompts`, `default_prompt` and `include_prompt`. Options for the
                backbone, for example `dropout` and `dtype`. Option for the tokenizer:
                `added_tokens`. Options for the checks: `verify`, `max_bytes` and `allow_nonfinite`.
        """
        return super().from_preset(source, **arguments)

    @classmethod
    def tiny_data(cls) -> TinyData:
        x, y = ["a b ab", "c", "c d e a b", "p"], np.cos(np.arange(64.0)).reshape(4, 16)
        return TinyData({"pooling": ["mean", "max"]}, x, y)
