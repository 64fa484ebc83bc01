"""Compute text embeddings, term weights and token embeddings in one forward pass.

Comments use these letters for shapes: N texts, D width, V vocabulary, L tokens of a text.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack

import keras
import numpy as np

from encoder_zoo.common.arguments import PresetArguments, SaveOptions
from encoder_zoo.common.lazy import require
from encoder_zoo.common.validation import Name, NonNegativeInt, PositiveInt, validate_arguments
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets import loading, saving
from encoder_zoo.presets.formats import late_interaction_folder
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.base.task import Task, TaskPresetArguments
from encoder_zoo.tasks.embedding.late_interaction import LateInteraction
from encoder_zoo.tasks.embedding.pair_columns import convert_single_texts
from encoder_zoo.tasks.embedding.searchable import Searchable
from encoder_zoo.tasks.embedding.sparse_encoder import SparseEncoder
from encoder_zoo.tasks.embedding.sparse_pooling import TOKEN_WEIGHTS
from encoder_zoo.tasks.embedding.text_embedder import TextEmbedder
from encoder_zoo.tasks.embedding.text_embedder_preprocessor import TextEmbedderPreprocessor
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.hybrid_index import HybridIndex, IndexWeights
from encoder_zoo.tasks.retrieval.index_kinds import MultiVectorIndex, SparseIndex, VectorIndex
from encoder_zoo.tasks.retrieval.options import DocumentColumns, Precision
from encoder_zoo.tasks.retrieval.terms import convert_to_sparse_rows, sparse
from encoder_zoo.tasks.training.sources import check_preprocessor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SCORE_WEIGHTS = (1.0, 0.3, 1.0)  # score weights in BGE-M3
# Arguments of `from_preset` for several tasks. `LateInteraction` has no `default_prompt`.
SHARED_ARGUMENTS = (
    "max_length",
    "sequence_length",
    "prompts",
    "default_prompt",
    "added_tokens",
    "dtype",
)
# Number of cached inputs: the current texts, and the texts of the index fingerprint.
CACHED_INPUTS = 2


class HybridVectors(NamedTuple):
    """Three kinds of vectors for N texts.

    Attributes:
        dense: Float32 array of shape (N, D). Embeddings of `TextEmbedder`.
        terms: Float32 `scipy.sparse.csr_array` of shape (N, V). Term weights of `SparseEncoder`.
        tokens: List of float32 arrays of shape (L, D). Token embeddings of `LateInteraction`.
    """

    dense: np.ndarray
    terms: csr_array
    tokens: list[np.ndarray]


class HybridPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments for `HybridEmbedder.from_preset`."""

    max_length: int | None
    prompts: Mapping[str, str] | None
    default_prompt: str | None
    max_terms: int | None
    weights: IndexWeights


@keras.saving.register_keras_serializable("encoder_zoo")
class _ThreeHeads(Task):
    """Model that computes the outputs of three tasks with a single backbone."""

    record = TaskRecord("hybrid_embedder", TextEmbedderPreprocessor)

    def __init__(self, dense: TextEmbedder, terms: SparseEncoder, tokens: LateInteraction):
        super().__init__(dense.backbone, dense.preprocessor, name="hybrid_embedder")
        self.tasks = {"dense": dense, "terms": terms, "tokens": tokens}
        self.built = True

    @property
    def preprocessor(self) -> TextEmbedderPreprocessor:
        """Return the current preprocessor of the `TextEmbedder`, which can be replaced."""
        return self.tasks["dense"].preprocessor

    def get_config(self) -> dict:
        return dict(self.tasks)

    def logits_of(self, encoded, inputs, training=None):
        return {n: task.logits_of(encoded, inputs, training) for n, task in self.tasks.items()}


class HybridEmbedder(Searchable[HybridIndex]):
    """Compute embeddings, term weights and token embeddings at once, like BGE-M3.

        model = ez.HybridEmbedder.from_preset("bge_m3")
        dense, terms, tokens = model.embed(texts)  # one forward pass
        model.rank("How do I reset it?", texts)
        index = model.index(documents)
        index.search("How do I reset it?")  # by dense + 0.3 * terms + tokens

    The tasks `dense`, `terms` and `tokens` share one backbone. Each task can also be used
    separately. Training a task affects all three kinds of vectors.

    Args:
        dense: The `TextEmbedder` for text embeddings.
        terms: The `SparseEncoder` for term weights, with the same backbone.
        tokens: The `LateInteraction` for token embeddings, with the same backbone, and without
            markers, query expansion and skiplist.
        weights: Tuple of three floats. Score weights. Defaults to (1.0, 0.3, 1.0).

    Attributes:
        dense, terms, tokens, weights: The arguments.

    Raises:
        ValueError: If the tasks have different backbones, tokenizers or maximum lengths, if
            `tokens` uses markers, query expansion or a skiplist, if `dense` ignores prompt tokens
            in pooling, or if `weights` does not have three elements.

    Source: Chen et al. 2024, BGE M3-Embedding, section 3.2.

    Example:
        >>> from encoder_zoo import LateInteraction, SparseEncoder, TextEmbedder
        >>> from encoder_zoo import LateInteractionPreprocessor, SparseEncoderPreprocessor
        >>> dense = TextEmbedder.from_preset("bert_nano_en_uncased", pooling="cls")
        >>> backbone, tokenizer = dense.backbone, dense.preprocessor.tokenizer
        >>> terms = SparseEncoder(
        ...     backbone, SparseEncoderPreprocessor(tokenizer), pooling="token_weights")
        >>> prepare = LateInteractionPreprocessor(
        ...     tokenizer, query_length=None, document_length=None, expand_queries=False,
        ...     skiplist=[], score_first=False)
        >>> tokens = LateInteraction(backbone, prepare, dim=16, similarity_function="meanmaxsim")
        >>> model = HybridEmbedder(dense, terms, tokens)
        >>> vectors = model.embed(["A cat.", "The law."])
        >>> vectors.dense.shape, vectors.terms.shape[0], [v.shape for v in vectors.tokens]
        ((2, 256), 2, [(4, 16), (4, 16)])
    """

    @validate_arguments
    def __init__(
        self,
        dense: TextEmbedder,
        terms: SparseEncoder,
        tokens: LateInteraction,
        weights: IndexWeights = SCORE_WEIGHTS,
    ):
        self.dense, self.terms, self.tokens = dense, terms, tokens
        self.weights = [float(weight) for weight in weights or SCORE_WEIGHTS]
        self._check()
        self._model = _ThreeHeads(dense, terms, tokens)
        self._asked = threading.local()

    def __reduce__(self) -> tuple:
        """Return the state for pickling and copying. Copied tasks also share one backbone."""
        return _make_embedder, (self._model, self.weights)

    def _check(self) -> None:
        """Check that all tasks use the same tokens for each text."""
        if len(self.weights) != 3:
            raise invalid("weights", self.weights, "three floats")
        given = {"dense": self.dense, "terms": self.terms, "tokens": self.tokens}
        for name, task in given.items():
            if task.backbone is not self.backbone:
                raise ValueError(
                    f"`{name}` and `dense` have different backbones. Expected three tasks that "
                    "share one backbone, as created by from_preset."
                )
            check_preprocessor(task, [""])
        first, prepares = self.dense.preprocessor, self.tokens.preprocessor
        for name in ("terms", "tokens"):
            other = given[name].preprocessor
            if other.tokenizer.get_config() != first.tokenizer.get_config():
                raise ValueError(
                    f"`{name}` and `dense` have different tokenizers. Expected the same tokenizer."
                )
        lengths = [("terms", self.terms.preprocessor.max_sequence_length)]
        lengths += [("tokens", prepares.get_max_length(role)) for role in ("query", "document")]
        for name, length in lengths:
            if length != first.max_sequence_length:
                raise ValueError(
                    f"`{name}` uses up to {length} tokens, but `dense` uses up to "
                    f"{first.max_sequence_length} tokens. Pass the same value for max_length, "
                    "query_length and document_length."
                )
        needless = ("query_marker", "document_marker", "expand_queries", "skiplist")
        for name in needless:
            if getattr(prepares, name):
                raise ValueError(
                    f"`tokens.preprocessor.{name}` is {quote(getattr(prepares, name))}, but a "
                    "HybridEmbedder encodes each text only once, without markers, query expansion "
                    "and skiplist. Remove this setting."
                )
        if not first.include_prompt:
            raise invalid("dense.include_prompt", False, "True")

    @property
    def backbone(self):
        """The backbone that the three tasks share."""
        return self.dense.backbone

    def __repr__(self) -> str:
        numbers = ", ".join(f"{weight:g}" for weight in self.weights)
        return f"<HybridEmbedder: {self.dense!r}; scores weighted {numbers}>"

    # -- vectors -------------------------------------------------------------------------------

    @validate_arguments
    @skips_missing("texts")
    def embed(
        self,
        texts: object,
        prompt: str | None = None,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> HybridVectors:
        """Compute all three kinds of vectors for texts in one forward pass.

        Args:
            texts: String, or list, array, tensor or table column of strings.
            prompt: Optional string. The name of a `TextEmbedder` prompt to add before each text.
            batch_size: Optional integer. The batch size. If None, 32 will be used.
            missing: String, "none" or "error". Handling of rows without text (None, NaN or blank).
                With "none", embeddings are NaN, term weights are empty, and token embeddings are
                None. With "error", an error will be raised for the first row without text. Defaults
                to "error".

        Returns:
            `HybridVectors` with the results of the `embed` method of each task, in the order of the
            texts. A single text is treated as a list with one text.

        Raises:
            ValueError: If a text is empty, or if `prompt` is unknown.
            ImportError: If scipy is not installed.
        """
        texts = [texts] if isinstance(texts, str | bytes) else texts
        require(sparse)
        column = convert_single_texts(texts)
        count, width = column.shape[0], self.terms.embedding_dim
        dense = np.zeros((count, self.dense.embedding_dim), "float32")
        tokens: list[np.ndarray] = [np.zeros((0, self.tokens.embedding_dim), "float32")] * count
        parts, order = [sparse.csr_array((0, width), dtype="float32")], [np.zeros(0, "int64")]
        if count:
            examples = self.dense.preprocessor.encode(column, prompt=prompt)
            kept = self.tokens._answers.mark_scored_tokens(examples)
            for indices, outputs in self._model._runner.run_examples(examples, batch_size):
                dense[indices] = outputs["dense"]
                parts.append(
                    convert_to_sparse_rows(np.asarray(outputs["terms"]), self.terms.max_terms)
                )
                order.append(indices)
                for i, vectors in zip(indices.tolist(), outputs["tokens"], strict=True):
                    tokens[i] = np.asarray(vectors)[: len(kept[i])][kept[i]]
        rows = sparse.vstack(parts, format="csr")[np.argsort(np.concatenate(order))]
        return HybridVectors(self.dense._answers.truncate(dense), rows, tokens)

    @validate_arguments
    def similarity(self, queries: object, documents: object) -> np.ndarray:
        """Compute the weighted sum of all three similarities between queries and documents.

        Args:
            queries: Texts or `HybridVectors`.
            documents: Texts or `HybridVectors`.

        Returns:
            A float32 array of shape (N, M). Higher values are more similar. If an argument
            is a single text, its axis is removed.
        """
        sides, ones = [], []
        for x, prompt in ((queries, "query"), (documents, "document")):
            sides.append(x if isinstance(x, HybridVectors) else self.embed(x, prompt))
            ones.append(isinstance(x, str | bytes))
        tasks = self.dense, self.terms, self.tokens
        found = sum(
            weight * task.similarity(a, b)
            for weight, task, a, b in zip(self.weights, tasks, *sides, strict=True)
        )
        found = np.asarray(found, "float32")
        return found[tuple(0 if one else slice(None) for one in ones)]

    # -- search --------------------------------------------------------------------------------

    @validate_arguments
    @lock_weights
    def index(
        self,
        documents: object,
        precision: Precision = "float32",
        batch_size: PositiveInt | None = None,
        ids: object = None,
        metadata: object = None,
        text_column: Name | None = None,
    ) -> HybridIndex:
        """Build an index to search documents by the weighted sum of all three scores.

        Each document and each query is only encoded once.

        Args:
            documents: List, array or column of strings, table, list of dicts, or result of
                `chunks`.
            precision: String. The precision of text and token embeddings. See `VectorIndex`.
                Defaults to "float32".
            batch_size: Optional integer. The batch size for `embed`. If None, 32 will be used.
            ids, metadata, text_column: See `VectorIndex.build`.

        Raises:
            ValueError: If `documents` is empty, or if a document is empty.
        """
        given = Documents.create(documents, ids, metadata, text_column)
        dense, terms, tokens = self.embed(given, "document", batch_size)
        kept = {"texts": given.texts, "ids": given.ids, "metadata": given.metadata}
        of_texts, of_terms, of_tokens = self._make_index_embedders()
        indexes = [
            VectorIndex.from_vectors(of_texts, dense, precision=precision, **kept),
            SparseIndex.from_vectors(of_terms, terms, **kept),
            MultiVectorIndex.from_vectors(of_tokens, tokens, precision=precision, **kept),
        ]
        return HybridIndex(indexes, weights=self.weights)

    @validate_arguments
    def chunks(
        self,
        documents: object,
        length: PositiveInt = 256,
        overlap: NonNegativeInt = 0,
        **columns: Unpack[DocumentColumns],
    ) -> Documents:
        """Split documents into chunks with a maximum number of tokens.

        Args:
            documents, length, overlap, **columns: See `TextEmbedder.chunks`.
        """
        return self.dense.chunks(documents, length, overlap, **columns)

    @validate_arguments
    def load_index(self, folder: str | os.PathLike[str], verify: bool = True) -> HybridIndex:
        """Load an index from a folder that was created with `HybridIndex.save`.

        Args:
            folder: Path. The index folder.
            verify: Boolean. Whether to verify all file checksums. Defaults to True.
        """
        return HybridIndex.load(folder, self._make_index_embedders(), verify)

    def _make_index_embedders(self) -> list[_IndexEmbedder]:
        """Create one embedder for each index."""
        return [_IndexEmbedder(self, name) for name in HybridVectors._fields]

    def _compute_vectors(
        self, name: str, texts: Sequence[str], prompt: str | None, batch_size
    ) -> Any:
        """Compute one kind of vectors. All kinds are cached for later calls in this thread."""
        if isinstance(texts, Documents):
            convert_single_texts(texts)  # raises an error for chunks with late chunking
        kept = vars(self._asked).setdefault("kept", {})  # {texts: {kind: vectors}}
        key = tuple(texts), prompt, self.backbone.weights_version
        if name not in kept.get(key, ()):
            kept.pop(key, None)
            for oldest in list(kept)[: len(kept) - CACHED_INPUTS + 1]:
                del kept[oldest]
            kept[key] = self.embed(texts, prompt, batch_size)._asdict()
        vectors = kept[key].pop(name)
        if not kept[key]:
            del kept[key]
        return vectors

    # -- presets -------------------------------------------------------------------------------

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[HybridPresetArguments]
    ) -> Self:
        """Load a model with three kinds of vectors, such as BGE-M3.

        Missing heads are initialized with random weights, and a warning is logged.

        Args:
            source: String. "bge_m3", a folder, or `hf://organisation/name[@revision]`. The preset
                should contain `TextEmbedder` files, `sparse_linear.pt` and `colbert_linear.pt`.
            **arguments: `weights`, `max_terms` for the `SparseEncoder`, and all `TextEmbedder`
                arguments. `max_length`, `prompts` and `sequence_length` are used for all tasks.

        Raises:
            ValueError: See `TextEmbedder.from_preset`.
        """
        weights = arguments.pop("weights", SCORE_WEIGHTS)
        checks = {n: arguments.pop(n) for n in PresetArguments.__annotations__ if n in arguments}
        shared = {name: value for name, value in arguments.items() if name in SHARED_ARGUMENTS}
        of_terms = {n: arguments.pop(n) for n in ("max_terms",) if n in arguments}
        of_tokens = {n: v for n, v in shared.items() if n != "default_prompt"}
        if "max_length" in of_tokens:
            length = of_tokens.pop("max_length")
            of_tokens |= {"query_length": length, "document_length": length}
        classes = [
            (TextEmbedder, arguments),
            (SparseEncoder, {"pooling": TOKEN_WEIGHTS, **shared, **of_terms}),
            (LateInteraction, of_tokens),
        ]
        return cls(*loading.load_tasks(classes, source, **checks), weights=weights)

    @validate_arguments
    @lock_weights
    def save_to_preset(
        self,
        directory: str | os.PathLike[str],
        dtype: str | None = None,
        **options: Unpack[SaveOptions],
    ) -> None:
        """Save the model in BGE-M3 format, which FlagEmbedding can also load.

        The folder can also be loaded with `TextEmbedder`, `SparseEncoder` and `LateInteraction`.

        Args:
            directory: Path. Folder to write or replace.
            dtype: Optional string, "float32", "float16" or "bfloat16". If None, each weight keeps
                its dtype.
            **options: Arguments for `Task.save_to_preset`.

        Raises:
            ValueError: If the BGE-M3 format does not support a setting, such as max pooling in
                `terms`.
            OSError: If files cannot be written, for example because the disk is full.
        """
        tasks = self.dense, self.terms, self.tokens
        beside = late_interaction_folder.make_hybrid_files(*tasks, saving.DTYPES.get(dtype))
        saving.save_task(self.dense, directory, dtype, beside=beside, **options)


def _make_embedder(model: _ThreeHeads, weights: Sequence[float]) -> HybridEmbedder:
    return HybridEmbedder(**model.tasks, weights=weights)


class _IndexEmbedder:
    """Embedder for a single index. The forward pass is shared between all indexes."""

    def __init__(self, model: HybridEmbedder, name: str):
        self._model, self._name = model, name
        self._task = getattr(model, name)

    def __reduce__(self) -> tuple:
        return type(self), (self._model, self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def embed(
        self,
        texts: Sequence[str],
        prompt: str | None = None,
        batch_size: int | None = None,
        dim: int | None = None,
        max_terms: int | None = None,
    ) -> Any:
        """Compute one kind of vectors, like the `embed` method of the task."""
        vectors = self._model._compute_vectors(self._name, texts, prompt, batch_size)
        if max_terms is not None:
            return convert_to_sparse_rows(vectors.toarray(), max_terms)
        return vectors
