"""Base class for embedding tasks, with training, search, evaluation and hard negatives.

Comments use these letters for shapes: B batch, K additional texts in a row, L sequence, D width, N
and M texts, P pairs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import keras
import numpy as np
from keras import ops

from encoder_zoo.common import validation
from encoder_zoo.common.arguments import CompileOptions
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.common.wording import ForeignName, invalid
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.tasks.embedding.pair_columns import PAIR_COLUMNS
from encoder_zoo.tasks.embedding.searchable import IndexKind, Searchable
from encoder_zoo.tasks.losses.chunks import recompute_in_chunks
from encoder_zoo.tasks.preprocessing.batch_shapes import add_candidate_ranges
from encoder_zoo.tasks.retrieval import evaluation
from encoder_zoo.tasks.retrieval.documents import Documents
from encoder_zoo.tasks.retrieval.mining import mine_hard_negatives
from encoder_zoo.tasks.retrieval.options import DocumentColumns
from encoder_zoo.tasks.retrieval.ranking import check_texts
from encoder_zoo.tasks.retrieval.similarity import (
    check_finite,
    compute_max_sim,
    compute_paired_similarities,
    scale_queries,
    scale_to_unit_length,
)
from encoder_zoo.tasks.retrieval.terms import Postings, normalize_rows
from encoder_zoo.tasks.retrieval.token_vectors import TokenVectors
from encoder_zoo.tasks.retrieval.vectors import Float32Vectors
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.tasks.training.sources import ArrayData, check_preprocessor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

logger = logging.getLogger("encoder_zoo")

NO_NEGATIVES = """gradient_accumulation_steps does not add negatives, because texts are only \
compared within a batch. For more negatives, use a larger batch_size with \
compile(chunk_size=...)."""
# The forms of training data. `PAIRS` is also the form before `fit`.
PAIRS, SCORES, VECTORS = None, "scores", "vectors"


def make_role_signatures(
    answer: Callable[[xp.Tensor, str | None], dict], default: str | None
) -> dict[str, Callable]:
    """Create the functions to export: "serving_default", "query" and "document".

    Args:
        answer: Function that embeds texts with a prompt.
        default: Optional string. Prompt for "serving_default".
    """
    return {
        "serving_default": lambda text: answer(text, default),
        "query": lambda text: answer(text, "query"),
        "document": lambda text: answer(text, "document"),
    }


class EmbedOptions(TypedDict, total=False):
    """Types of the `embed` arguments `dim` (`TextEmbedder`) and `max_terms` (`SparseEncoder`)."""

    dim: int | None
    max_terms: int | None


class EmbedderCompileOptions(CompileOptions, total=False):
    """Types of the keyword arguments of `Embedder.compile` after `metrics`."""

    chunk_size: int | None


class Embedder(Task, Searchable[IndexKind]):
    """Base class for `TextEmbedder`, `LateInteraction` and `SparseEncoder`.

    A subclass implements `embed`, which returns a dense vector per text, a sparse vector per text,
    or a vector per token. All methods in this class support all three kinds.

    Attributes:
        default_losses: Dict mapping each supported form of training data to a function that creates
            the default loss. Any other form raises an error.
        vector_mask: String. Name of the input that masks the tokens to pool.
    """

    default_losses: Mapping[str | None, Callable[[], keras.losses.Loss]]
    vector_mask = "pooling_mask"
    chunk_size: int | None = None
    if not TYPE_CHECKING:  # hidden from autocompletion in editors
        encode = ForeignName("embed(texts)")
        encode_query = ForeignName('embed(texts, prompt="query")')
        encode_document = ForeignName('embed(texts, prompt="document")')
        get_sentence_embedding_dimension = ForeignName("embedding_dim")
        get_embedding_dimension = ForeignName("embedding_dim")
        truncate_dim = ForeignName("from_preset(source, dim=...)")
        prompts = ForeignName("from_preset(source, prompts=...)")
        default_prompt = ForeignName("from_preset(source, default_prompt=...)")
        default_prompt_name = ForeignName("from_preset(source, default_prompt=...)")
        similarity_fn_name = ForeignName("from_preset(source, similarity_function=...)")

    # -- the model -----------------------------------------------------------------------------

    def call(self, inputs, training=None):
        if CANDIDATE + "token_ids" not in inputs:
            return self._compute_vectors(inputs, training)
        first = {n: values for n, values in inputs.items() if not n.startswith(CANDIDATE)}
        first = self._compute_query_vectors(first, training)  # (B, D)
        # Reshaping with -1 instead of K fails on a replica without rows.
        batch, count = ops.shape(inputs[CANDIDATE + "token_ids"])[:2]
        others = {  # (B * K, L)
            name.removeprefix(CANDIDATE): ops.reshape(values, (-1, ops.shape(values)[-1]))
            for name, values in inputs.items()
            if name.startswith(CANDIDATE)
        }
        return self._stack_vectors(first, self._compute_vectors(others, training), batch, count)

    def _stack_vectors(self, first, others, batch, count):
        """Stack the vectors of the first text and the other texts in each row, (B, 1 + K, D)."""
        others = ops.reshape(others, (batch, count, *ops.shape(others)[1:-1], self.embedding_dim))
        return ops.concatenate([first[:, None], others], axis=1)

    def _compute_vectors(self, inputs, training):
        """Embed inputs (B, L). In training with `chunk_size`, embed them in chunks."""
        call = super().call
        if not (training and self.chunk_size):
            return call(inputs, training)
        length = ops.shape(inputs["token_ids"])[1]

        def embed_part(part, training):  # a chunk may be padded to a shorter length
            return self._pad_vectors(call(part, training), length)

        return recompute_in_chunks(self, embed_part, inputs, self.chunk_size)

    def _pad_vectors(self, vectors, length):
        """Pad a chunk's vectors to the length of the whole batch."""
        return vectors

    def _compute_query_vectors(self, inputs, training):
        """Compute the vectors (B, D) of the first text in each row."""
        return self._compute_vectors(inputs, training)

    def compute_output_spec(self, inputs, training=None):
        shape = self._get_text_shape(inputs)
        if CANDIDATE + "token_ids" in inputs:
            further = inputs[CANDIDATE + "token_ids"].shape[1]
            shape = None if further is None else 1 + further, *shape
        return keras.KerasTensor((inputs["token_ids"].shape[0], *shape), "float32")

    def _get_text_shape(self, inputs) -> tuple[int | None, ...]:
        """Return the shape of the output for a single text."""
        return (self.embedding_dim,)

    def list_input_names(self) -> list[str]:
        whole = self.preprocessor is None or self.preprocessor.include_prompt
        return [*super().list_input_names(), *([] if whole else ["pooling_mask"])]

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        ranges = {**super().input_ranges(length), self.vector_mask: (0, 1)}
        return add_candidate_ranges(ranges, ("token_ids", "padding_mask", self.vector_mask))

    # -- training ------------------------------------------------------------------------------

    @validation.validate_arguments
    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer | None = None,
        loss: object = None,
        metrics: Sequence[object] | Mapping[str, object] | str | None = None,
        *,
        chunk_size: validation.NonNegativeInt | None = None,
        **options: Unpack[CompileOptions],
    ) -> None:
        """Configure the model for training. Works like `TextModel.compile`.

        Args:
            optimizer, metrics: See `TextModel.compile`.
            loss: Loss from `ez.losses`, any Keras loss, or "auto" for the default loss of the
                training data. Defaults to "auto".
            chunk_size: Optional integer. Number of texts per chunk for gradient caching
                (GradCache). With chunks, a large batch with many negatives needs only as much
                memory as a small batch. The loss and the gradients do not change, but training
                computes the embeddings a second time. 0 embeds the whole batch at once, as in a new
                model. If None, the current setting is kept.
            **options: Additional arguments to pass to `TextModel.compile`.

        Source: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited
        Setup, section 3.
        """
        with self._restore_on_error("chunk_size"):
            if chunk_size is not None:
                self.chunk_size = chunk_size or None
            super().compile(optimizer, loss, metrics, **options)
        if (self.recipe.arguments["gradient_accumulation_steps"] or 1) > 1:
            logger.warning(NO_NEGATIVES)

    @property
    def objective(self) -> Objective:
        return Objective(self.default_losses[self.form])

    def _adapt_to_data(self, given, training=True) -> None:
        """Choose the default loss that fits the format of the training data."""
        if isinstance(given, ArrayData) or (self.compiled and not training):
            return
        x, y, _ = given.element
        of_pairs = PAIRS if y is None else SCORES
        self._set_form(of_pairs if isinstance(x, tuple) else VECTORS)

    # -- search --------------------------------------------------------------------------------

    @validation.validate_arguments
    def chunks(
        self,
        documents: object,
        length: validation.PositiveInt = 256,
        overlap: validation.NonNegativeInt = 0,
        late: bool = False,
        **columns: Unpack[DocumentColumns],
    ) -> Documents:
        """Split documents into chunks of at most `length` tokens.

            index = embedder.index(embedder.chunks(table, 256, overlap=32))
            index.search("How do I reset it?", group_by="document")  # the best chunk of each
            index.add(embedder.chunks(more, 256, overlap=32))

        Args:
            documents: Documents to split, in any format supported by `index`.
            length: Integer. Maximum number of tokens per chunk. Chunks end at the end of a word,
                unless a single word has more than `length` tokens. Defaults to 256.
            overlap: Integer. Maximum overlap between adjacent chunks, in tokens. Defaults to 0.
            late: Boolean. Whether to use late chunking, which embeds each whole document and then
                averages the token vectors of each chunk. For example, if a document is about
                Italy, a chunk with "its capital" can then be similar to a query about Rome.
                Requires a `TextEmbedder` with mean pooling. Defaults to False.
            **columns: `ids`, `metadata` and `text_column`, as in `build` of the index.

        Returns:
            `Documents` with one entry per chunk, for `index` or `Index.add`. A chunk has the fields
            of its document, and three additional fields: "document" is the id or index of the
            document, and "start" and "end" are character offsets in its text. If the documents have
            ids, the chunks have ids such as "a17#0" and "a17#1".

        Raises:
            ValueError: If `length` is too long for the model, if `overlap` is not smaller than
                `length`, or if `late` is True and the pooling is not "mean".

        Source: Günther et al. 2024, Late Chunking: Contextual Chunk Embeddings Using Long-Context
        Embedding Models, section 3, for `late`.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> documents = [{"id": "x", "text": "A cat sleeps. The law of taxes is long."}]
            >>> index = embedder.index(embedder.chunks(documents, length=5))
            >>> [hit] = index.search("tax law", top_k=1, group_by="document")
            >>> hit["id"], hit["text"], hit["metadata"]["start"]
            ('x#1', 'The law of taxes is', 14)
        """
        check_preprocessor(self, documents)
        most = self.preprocessor.max_document_tokens
        if length > most:
            expected = f"at most {most}, the maximum length without special tokens and prompt"
            raise invalid("length", length, expected)
        if overlap >= length:
            raise invalid("overlap", overlap, f"less than length={length}")
        if late:
            check_pooled_by_mean(self)
        given = Documents.create(documents, **columns)
        return given.split_into_chunks(self.preprocessor.tokenizer, length, overlap, late)

    # -- evaluation ----------------------------------------------------------------------------

    @validation.validate_arguments
    @lock_weights
    def evaluate_retrieval(
        self,
        queries: object,
        documents: object,
        relevant: Sequence[object] | None = None,
        cutoffs: Sequence[int] = (1, 5, 10),
        batch_size: validation.PositiveInt | None = None,
        query_prompt: str | None = "query",
        document_prompt: str | None = "document",
        **options: Unpack[EmbedOptions],
    ) -> dict[str, float]:
        """Evaluate the embeddings on a retrieval task.

        For each query, the documents are ranked by similarity, and the ranking is compared with the
        relevant documents. Duplicate documents are merged. For ties, each metric is averaged over
        all possible orders. Scores are computed block by block, so that only the vectors need more
        memory for larger corpora. Sparse encoders only find documents that share a term with the
        query.

        Args:
            queries: List, array or column of texts. In the format of BEIR, `queries` is {id:
                text}, `documents` is {id: text} or {id: {"title", "text"}}, and `relevant` is
                {query id: {document id: grade}}.
            documents: List, array or column of texts.
            relevant: For each query, the index of its document, a list of indices, or {index:
                grade}. If None, document `i` is used as the relevant document for query `i`.
            cutoffs: Sequence of integers. Values of k, the number of top documents that count.
                Defaults to (1, 5, 10).
            batch_size: Optional positive integer. Number of texts per batch. If None, 32 is used.
            query_prompt: Optional string. Prompt for the queries, as in `embed`. Defaults to
                "query".
            document_prompt: Optional string. Prompt for the documents, as in `embed`. Defaults to
                "document".
            **options: Options of `embed`: `dim` or `max_terms`.

        Returns:
            Dict with "ndcg@k", "mrr@k", "recall@k" and "accuracy@k" for each cutoff k, and
            "map@100". See `compute_ranking_metrics` for details. For sparse vectors, the dict also
            contains "query_terms" and "document_terms", the average number of terms per query and
            per document, and "flops", the average number of multiplications per query-document
            pair.

        Raises:
            ValueError: If `queries` or `documents` is empty, if `relevant` does not match
                `queries`, or if `cutoffs` contains anything but positive integers.

        Source: Paria et al. 2020, Minimizing FLOPs to Learn Efficient Sparse Representations,
        section 3, for "flops".

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> found = embedder.evaluate_retrieval(["A cat.", "Tax."], ["Tax.", "A cat."], [1, 0])
            >>> found["ndcg@10"], found["recall@1"]
            (1.0, 1.0)
        """
        cutoffs = evaluation.check_cutoffs(cutoffs)
        texts = evaluation.merge_judgements(queries, documents, relevant)
        a = embed_checked(self, texts.queries, query_prompt, batch_size, **options)
        b = embed_checked(self, texts.documents, document_prompt, batch_size, **options)
        store = make_store(self, b)

        def search(some: list[int], k: int):
            found = store.find_nearest(select_vectors(a, some), min(k, len(store)))
            return zip(*found, strict=True)

        metrics = evaluation.compute_search_metrics(search, texts.relevant, cutoffs, len(store))
        return metrics | (_count_terms(a, b) if isinstance(store, Postings) else {})

    @validation.validate_arguments
    @lock_weights
    def evaluate_similarity(
        self,
        pairs: object,
        scores: object,
        batch_size: validation.PositiveInt | None = None,
        prompt: str | None = None,
        **options: Unpack[EmbedOptions],
    ) -> dict[str, float]:
        """Evaluate the embeddings on a semantic textual similarity task.

        Args:
            pairs: Pairs of texts: `(first, second)`, a list of pairs, or a table with two columns,
                as in `fit`.
            scores: Sequence of floats. Reference scores of the pairs. More similar texts have
                higher scores.
            batch_size: Optional positive integer. Number of texts per batch. If None, 32 is used.
            prompt: Optional string. Prompt for all texts, as in `embed`.
            **options: Options of `embed`: `dim` or `max_terms`.

        Returns:
            Dict with the correlation between the computed similarities and the reference scores:
            "spearman" is the rank correlation, and "pearson" is the linear correlation.

        Raises:
            ValueError: If `pairs` does not have two columns, if `scores` does not contain one
                finite score per pair, or if all scores are equal.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> pairs = ["A cat.", "A cat.", "A cat."], ["A cat.", "A cats.", "Tax law of 1990."]
            >>> embedder.evaluate_similarity(pairs, [5.0, 4.0, 0.5])["spearman"]
            1.0
        """
        columns = [np.asarray(column) for column in PAIR_COLUMNS.convert(pairs)]
        if len(columns) != 2:
            raise ValueError(
                f"`pairs` has {len(columns)} columns of texts. Expected two columns of texts."
            )
        named = zip(columns, ("first", "second"), strict=True)
        first, second = (check_texts(column, name) for column, name in named)
        scores = evaluation.check_scores(scores, len(first), len(second))
        a, b = (embed_checked(self, x, prompt, batch_size, **options) for x in (first, second))
        found = compute_pair_scores(a, b, self.similarity_function)
        if np.ptp(found) == 0:
            raise ValueError(
                f"All pairs have the similarity {found[0]:g}. A correlation requires different "
                "similarities."
            )
        return {
            "spearman": evaluation.compute_spearman(found, scores),
            "pearson": evaluation.compute_pearson(found, scores),
        }

    @validation.validate_arguments
    @lock_weights
    def mine_negatives(
        self,
        queries: object,
        documents: object,
        relevant: Sequence[object] | None = None,
        num_negatives: validation.PositiveInt = 3,
        skip_top: validation.NonNegativeInt = 0,
        top_k: validation.PositiveInt = 100,
        max_score: validation.Number | None = None,
        absolute_margin: validation.NonNegativeFloat | None = None,
        relative_margin: validation.NonNegativeFloat | None = None,
        reranker: Any = None,
        batch_size: validation.PositiveInt | None = None,
        query_prompt: str | None = "query",
        document_prompt: str | None = "document",
    ) -> tuple[list[str], list[str], list[list[str]]]:
        """Mine hard negatives for pairs of a query and a document.

            embedder.fit(embedder.mine_negatives(queries, documents, relative_margin=0.05))

        The negatives are the documents that are most similar to the query. Documents that are
        relevant to the same query text are skipped, and also documents that are equal to the query
        or to a relevant document. Rows with too few negatives are dropped, and their number is
        logged.

        Args:
            queries: List, array or column of texts.
            documents: List, array or column of texts.
            relevant: For each query, the index of the relevant document, or a list of indices to
                create several rows for the query. If None, document `i` is used as the relevant
                document for query `i`.
            num_negatives: Integer. Number of negatives per row. Defaults to 3.
            skip_top: Integer. Number of top documents to skip, because they may be relevant.
                Defaults to 0.
            top_k: Integer. Number of top documents that can be negatives. Defaults to 100.
            max_score: Optional float. Maximum similarity of the query and a negative. If None, this
                filter is disabled.
            absolute_margin: Optional float. Minimum difference between the query's similarity to
                the relevant document and its similarity to a negative. If None, this filter is
                disabled.
            relative_margin: Optional float. Like `absolute_margin`, but as a fraction of the
                similarity of the query and the relevant document. If None, this filter is disabled.
            reranker: Optional `Reranker`, or any object with a method `score`. Its scores of the
                `top_k` documents replace the similarities.
            batch_size: Optional positive integer. Number of texts per batch. If None, 32 is used.
            query_prompt: Optional string. Prompt for the queries, as in `embed`. Defaults to
                "query".
            document_prompt: Optional string. Prompt for the documents, as in `embed`. Defaults to
                "document".

        Returns:
            Tuple of P queries, P documents, and P lists of `num_negatives` negatives, sorted from
            most to least similar.

        Raises:
            ValueError: If `queries` or `documents` is empty, if `relevant` does not match
                `queries`, or if no query has enough negatives.

        Source: Karpukhin et al. 2020, Dense Passage Retrieval, section 3.2. Margins: Moreira et
        al. 2024, NV-Retriever, section 3.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> texts = ["A cat.", "A dog.", "The law."]
            >>> embedder.mine_negatives(["A cat?"], texts, [0], num_negatives=1)
            (['A cat?'], ['A cat.'], [['A dog.']])
        """
        texts = evaluation.merge_judgements(queries, documents, relevant)
        a = embed_checked(self, texts.queries, query_prompt, batch_size)
        b = embed_checked(self, texts.documents, document_prompt, batch_size)
        store = make_store(self, b)

        def score(asked: np.ndarray, found: np.ndarray) -> np.ndarray:
            if reranker is None:
                return compute_pair_scores(
                    select_vectors(a, asked), select_vectors(b, found), self.similarity_function
                )
            pairs = [texts.queries[i] for i in asked], [texts.documents[i] for i in found]
            return np.reshape(reranker.score(pairs), (-1,))

        return mine_hard_negatives(
            texts,
            search=lambda k: store.find_nearest(
                scale_queries(a, self.similarity_function), min(k, len(store))
            ),
            score=score,
            reranks=reranker is not None,
            num_negatives=num_negatives,
            skip_top=skip_top,
            top_k=top_k,
            limits=(max_score, absolute_margin, relative_margin),
        )


def check_pooled_by_mean(embedder: Any) -> None:
    """Raise a ValueError if the model does not support late chunking.

    Raises:
        ValueError: If `embedder` is not a TextEmbedder with mean pooling.
    """
    if embedder.record.name != "text_embedder":
        raise ValueError(
            f"late=True requires a TextEmbedder, but this model is a {type(embedder).__name__}."
        )
    if embedder.pooling not in ("mean", ["mean"]):
        raise ValueError(
            f"late=True requires pooling='mean', but this {type(embedder).__name__} has "
            f"pooling={embedder.pooling!r}."
        )


def embed_checked(
    embedder: Any, texts: Any, prompt: str | None, batch_size: int | None, **options: Any
) -> Any:
    """Embed texts, and normalize the vectors to unit length for the cosine similarity.

    Raises:
        ValueError: If a value in the vectors is NaN, infinite or too large.
    """
    vectors = embedder.embed(texts, prompt=prompt, batch_size=batch_size, **options)
    if isinstance(vectors, list):
        return vectors
    if not isinstance(vectors, np.ndarray):
        return normalize_rows(vectors, embedder.similarity_function)
    check_finite(vectors, "vectors")
    return scale_to_unit_length(vectors) if embedder.similarity_function == "cosine" else vectors


def make_store(embedder: Any, vectors: Any) -> TokenVectors | Float32Vectors | Postings:
    """Build a store for exact search from normalized vectors."""
    if isinstance(vectors, list):
        return TokenVectors.create(vectors, "float32")
    if isinstance(vectors, np.ndarray):
        return Float32Vectors.create(vectors, embedder.similarity_function)
    return Postings.create(vectors)


def select_vectors(vectors: Any, indices: Sequence[int]) -> Any:
    """Select vectors by index."""
    return [vectors[i] for i in indices] if isinstance(vectors, list) else vectors[indices]


def compute_pair_scores(a: Any, b: Any, function: str) -> np.ndarray:
    """Compute the similarity of row `i` of `a` and row `i` of `b`, float32 (P,)."""
    if isinstance(a, list):
        a = scale_queries(a, function)
        return np.array([compute_max_sim([x], [y])[0, 0] for x, y in zip(a, b, strict=True)])
    if isinstance(a, np.ndarray):
        return compute_paired_similarities(a, b, function).astype("float32")
    return np.asarray(a.multiply(b).sum(axis=1)).ravel()


def _count_terms(queries: csr_array, documents: csr_array) -> dict[str, float]:
    """Compute the mean number of terms per vector, and of multiplications per score."""
    shares = [(rows > 0).mean(axis=0) for rows in (queries, documents)]
    return {
        "query_terms": queries.nnz / queries.shape[0],
        "document_terms": documents.nnz / documents.shape[0],
        "flops": float(shares[0] @ shares[1]),
    }
