"""Base of the tasks that embed texts: training on pairs of texts, search, evaluation, negatives.

Comment letters: B batch, K further texts of a row, L sequence, D width, N and M texts, P pairs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.arguments import CompileOptions
from encoder_zoo.common.validation import (
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    PositiveInt,
    validate_arguments,
)
from encoder_zoo.common.wording import ForeignName, invalid
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.base.task import Task
from encoder_zoo.tasks.embedding.pair_columns import COLUMNS
from encoder_zoo.tasks.losses.chunks import recomputed_in_chunks
from encoder_zoo.tasks.preprocessing.batch_shapes import with_candidate_ranges
from encoder_zoo.tasks.retrieval.documents import DocumentColumns, Documents
from encoder_zoo.tasks.retrieval.evaluation import (
    checked_cutoffs,
    checked_scores,
    judged,
    pearson,
    search_metrics,
    spearman,
)
from encoder_zoo.tasks.retrieval.hybrid_index import OpenOptions, load_index
from encoder_zoo.tasks.retrieval.index import Index
from encoder_zoo.tasks.retrieval.index_kinds import BuildOptions
from encoder_zoo.tasks.retrieval.mining import hard_negatives
from encoder_zoo.tasks.retrieval.ranking import RankedText, checked_texts, ranked_texts
from encoder_zoo.tasks.retrieval.similarity import (
    check_finite,
    max_sim,
    pair_scores,
    queries_for,
    similarity_matrix,
    unit_rows,
)
from encoder_zoo.tasks.retrieval.terms import Postings, normalized_for
from encoder_zoo.tasks.retrieval.token_vectors import TokenVectors
from encoder_zoo.tasks.retrieval.vectors import Float32Vectors, Precision
from encoder_zoo.tasks.training.objective import Objective
from encoder_zoo.tasks.training.prepared import is_prepared
from encoder_zoo.tasks.training.sources import check_preprocessor, is_dataset

if TYPE_CHECKING:
    from scipy.sparse import csr_array

logger = logging.getLogger("encoder_zoo")

NO_NEGATIVES = """gradient_accumulation_steps adds no negatives: texts are compared inside each \
batch. For more of them, use a larger batch_size with compile(chunk_size=...)."""
# The forms of the data of `fit`.
PAIRS, SCORES, VECTORS = "pairs", "scores", "vectors"
IndexKind = TypeVar("IndexKind", bound=Index)


class EmbedOptions(TypedDict, total=False):
    """Keyword arguments of `embed`: `dim` of a `TextEmbedder`, `max_terms` of a `SparseEncoder`."""

    dim: int | None
    max_terms: int | None


class IndexOptions(BuildOptions, DocumentColumns, total=False):
    """Keyword arguments of the `build` of indexes; each kind has some of them."""

    precision: Precision
    batch_size: int | None
    keep_texts: bool


class EmbedderCompileOptions(CompileOptions, total=False):
    """Keyword arguments of `Embedder.compile` after `metrics`."""

    chunk_size: int | None


class Embedder(Task, Generic[IndexKind]):
    """Base of `TextEmbedder`, `LateInteraction` and `SparseEncoder`.

    A subclass has an `embed`, whose vectors are of one of three kinds: one for each text, sparse
    ones, or one for each token. The methods here take all of them.

    Attributes:
        default_losses: {form of the data: makes its loss}; forms that are absent are refused.
        embedding_dim: D.
        similarity_function: by which vectors are compared.
        similarity_prompts: of the first and the second texts of `similarity`.
        index_class: of `index`.
        vector_mask: the input that says which tokens the vectors are of.
    """

    default_losses: Mapping[str, Callable[[], keras.losses.Loss]]
    embedding_dim: int
    similarity_function: str
    similarity_prompts: tuple[str | None, str | None] = (None, None)
    index_class: type[IndexKind]
    vector_mask = "pooling_mask"
    chunk_size: int | None = None
    compile_settings = ("chunk_size",)
    if not TYPE_CHECKING:  # so that editors do not offer them
        encode = ForeignName("embed(texts)")
        encode_query = ForeignName('embed(texts, prompt="query")')
        encode_document = ForeignName('embed(texts, prompt="document")')
        get_sentence_embedding_dimension = ForeignName("embedding_dim")
        get_embedding_dimension = ForeignName("embedding_dim")
        truncate_dim = ForeignName("from_preset(source, dim=...)")
        default_prompt_name = ForeignName("from_preset(source, default_prompt=...)")
        similarity_fn_name = ForeignName("from_preset(source, similarity_function=...)")

    def embed(self, texts: object, prompt: str | None = None, **options: Any) -> Any:
        """Return the vectors of texts, in their order."""
        raise NotImplementedError

    # -- the model -----------------------------------------------------------------------------

    def call(self, inputs, training=None):
        if CANDIDATE + "token_ids" not in inputs:
            return self._vectors(inputs, training)
        first = {n: values for n, values in inputs.items() if not n.startswith(CANDIDATE)}
        first = self._query_vectors(first, training)  # (B, D)
        # Not -1 for K, of which a replica without rows would have one.
        batch, count = ops.shape(inputs[CANDIDATE + "token_ids"])[:2]
        others = {  # (B * K, L)
            name.removeprefix(CANDIDATE): ops.reshape(values, (-1, ops.shape(values)[-1]))
            for name, values in inputs.items()
            if name.startswith(CANDIDATE)
        }
        return self._stacked(first, self._vectors(others, training), batch, count)

    def _stacked(self, first, others, batch, count):
        """Return the vectors of rows of several texts, (B, 1 + K, D), of those of each."""
        others = ops.reshape(others, (batch, count, *ops.shape(others)[1:-1], self.embedding_dim))
        return ops.concatenate([first[:, None], others], axis=1)

    def _vectors(self, inputs, training):
        """Return the vectors of inputs (B, L), part by part if it trains with `chunk_size`."""
        call = super().call
        if not (training and self.chunk_size):
            return call(inputs, training)
        length = ops.shape(inputs["token_ids"])[1]

        def of_part(part, training):  # which may be shorter
            return self._padded(call(part, training), length)

        return recomputed_in_chunks(self, of_part, inputs, self.chunk_size)

    def _padded(self, vectors, length):
        """Return the vectors of a part of texts as those of texts of another length."""
        return vectors

    def _query_vectors(self, inputs, training):
        """Return the vectors of the first texts of rows of several, (B, D)."""
        return self._vectors(inputs, training)

    def compute_output_spec(self, inputs, training=None):
        shape = self._shape_of_text(inputs)
        if CANDIDATE + "token_ids" in inputs:
            further = inputs[CANDIDATE + "token_ids"].shape[1]
            shape = None if further is None else 1 + further, *shape
        return keras.KerasTensor((inputs["token_ids"].shape[0], *shape), "float32")

    def _shape_of_text(self, inputs) -> tuple[int | None, ...]:
        """Return the shape of the vectors of each text."""
        return (self.embedding_dim,)

    def prepared_inputs(self) -> list[str]:
        whole = self.preprocessor is None or self.preprocessor.include_prompt
        return [*super().prepared_inputs(), *([] if whole else ["pooling_mask"])]

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        ranges = {**super().input_ranges(length), self.vector_mask: (0, 1)}
        return with_candidate_ranges(ranges, ("token_ids", "padding_mask", self.vector_mask))

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
        """Compile as the other tasks, see `TextModel.compile`.

        Args:
            optimizer, metrics: see there.
            loss: any of `ez.losses`; "auto" fits the data.
            chunk_size: embed so many texts at a time, and compute them again for the gradients
                (GradCache): the same loss and gradients as of the whole batch, so that large
                batches, with many negatives, need the memory of a small one; 0 embeds the whole
                batch at once, as at first.
            **options: the others of `TextModel.compile`.

        Source: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited
        Setup, section 3.
        """
        if chunk_size is not None:
            self.chunk_size = chunk_size or None
        super().compile(optimizer, loss, metrics, **options)
        if (self.recipe.arguments["gradient_accumulation_steps"] or 1) > 1:
            logger.warning(NO_NEGATIVES)

    @property
    def objective(self) -> Objective:
        return Objective(self.default_losses[self.form or PAIRS])

    def _adapt(self, x, y, training=True) -> None:
        """Choose the default loss for the form of the data."""
        if is_prepared(x) or (self.compiled and not training):
            return
        if is_dataset(x):
            x, y, _ = keras.utils.unpack_x_y_sample_weight(x.element_spec)
        of_pairs = PAIRS if y is None else SCORES
        form = of_pairs if isinstance(x, tuple) else VECTORS
        if form != (self.form or PAIRS):
            self.form = form
            if self.compiled:
                self.compile(**self.recipe.arguments, **self.recipe.options)

    # -- vectors compared ----------------------------------------------------------------------

    def similarity(self, a: object, b: object) -> np.ndarray:
        """Return how similar each of some texts is to each of others.

        Args:
            a: texts, or their vectors, as of `embed`; of `LateInteraction` queries.
            b: likewise; of `LateInteraction` documents.

        Returns:
            (N, M) float32, by the model's `similarity_function`; more is closer. Of a single text
            or vector the axis is left out.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> embedder.similarity("A cat.", ["A cat.", "A dog."]).shape
            (2,)
        """
        (a, one_a), (b, one_b) = (
            self._vectors_of(x, prompt, name)
            for x, prompt, name in zip((a, b), self.similarity_prompts, "ab", strict=True)
        )
        found = similarities(a, b, self.similarity_function)
        return found[tuple(0 if one else slice(None) for one in (one_a, one_b))]

    def _vectors_of(self, x: Any, prompt: str | None, name: str) -> tuple[Any, bool]:
        """Return the vectors of texts, or given ones; and whether it is a single one."""
        if isinstance(x, str | bytes):
            return self.embed([x], prompt), True
        given = self._answers.given_vectors(x, name)
        return (self.embed(x, prompt), False) if given is None else given

    @validate_arguments
    def rank(
        self,
        query: str,
        texts: object,
        top_k: PositiveInt | None = None,
        batch_size: PositiveInt | None = None,
    ) -> list[RankedText]:
        """Return the texts in the order of how well they match a query, the best first.

        Args:
            query: a text.
            texts: one or more texts.
            top_k: return so many; None is all.
            batch_size: default 32.

        Returns:
            For each text `{"index", "score", "text"}`: its number among the texts given, and its
            score. Texts of equal scores stay in their order.

        Raises:
            ValueError: If `query` is not one text, or if `texts` or one of them is empty.
        """
        return ranked_texts(self, query, texts, top_k, batch_size)

    def _scores_of_texts(self, query, texts, batch_size):
        documents = self.embed(texts, "document", batch_size=batch_size)
        return self.similarity(self.embed([query], "query", batch_size=batch_size), documents)[0]

    # -- search --------------------------------------------------------------------------------

    def index(self, documents: object, **options: Unpack[IndexOptions]) -> IndexKind:
        """Return an index that finds the documents nearest to a text.

        Args:
            documents: texts; or a table, or rows that are dicts, with a column "text" (or
                `text_column=`), "id", and others, which are fields that `where=` of a search asks;
                or {id: text} or {id: {"title", "text"}}, as BEIR has them.
            **options: `ids` and `metadata` of texts, a list each; and of the `build` of
                `VectorIndex`, `MultiVectorIndex` or `SparseIndex`, such as `precision="int8"`.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> [hit] = embedder.index(["A cat.", "A dog."]).search("A dog.", top_k=1)
            >>> hit["index"], hit["text"]
            (1, 'A dog.')
        """
        return self.index_class.build(self, documents, **options)

    @validate_arguments
    def chunks(
        self,
        documents: object,
        length: PositiveInt = 256,
        overlap: NonNegativeInt = 0,
        late: bool = False,
        **columns: Unpack[DocumentColumns],
    ) -> Documents:
        """Return documents cut into chunks of at most so many of this model's tokens.

            index = embedder.index(embedder.chunks(table, 256, overlap=32))
            index.search("How do I reset it?", group_by="document")  # the best chunk of each
            index.add(embedder.chunks(more, 256, overlap=32))

        Args:
            documents: as for `index`.
            length: most tokens of a chunk, which ends with a word.
            overlap: tokens that neighbouring chunks share, at most.
            late: whether a chunk's vector is the mean of its tokens' vectors in the whole document,
                which is read once (late chunking): "its capital" is then near a query for Rome.
                Only of a `TextEmbedder` with mean pooling.
            **columns: `ids`, `metadata`, `text_column`, as of the index's `build`.

        Returns:
            What `index` and `Index.add` take. Of each chunk the text; the fields of its document,
            with "document", its id or index, and "start" and "end", the chunk's characters in it;
            and where documents have ids the id "a17#0", "a17#1" and so on.

        Raises:
            ValueError: If `length` is more than the model reads, if `overlap` is not less than
                `length`, or if `late` is True for a model whose pooling is not "mean".

        Source: of `late` Günther et al. 2024, Late Chunking: Contextual Chunk Embeddings Using
        Long-Context Embedding Models, section 3.

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
        most = self.preprocessor.document_room
        if length > most:
            raise invalid("length", length, f"at most {most}, the tokens that the model reads")
        if overlap >= length:
            raise invalid("overlap", overlap, f"less than length={length}")
        if late:
            check_pooled_by_mean(self)
        given = Documents.of(documents, **columns)
        return given.chunked(self.preprocessor.tokenizer, length, overlap, late)

    def load_index(
        self, folder: str | os.PathLike[str], **options: Unpack[OpenOptions]
    ) -> IndexKind:
        """Open an index of this embedder that its `save` wrote; see `encoder_zoo.load_index`.

        Args:
            folder: of the index.
            **options: of `encoder_zoo.load_index`, such as `verify=False`.
        """
        return load_index(folder, self, **options)

    # -- evaluation ----------------------------------------------------------------------------

    @validate_arguments
    def evaluate_retrieval(
        self,
        queries: object,
        documents: object,
        relevant: Sequence[object] | None = None,
        cutoffs: Sequence[int] = (1, 5, 10),
        batch_size: PositiveInt | None = None,
        query_prompt: str | None = "query",
        document_prompt: str | None = "document",
        **options: Unpack[EmbedOptions],
    ) -> dict[str, float]:
        """Return how near the top each query has its relevant documents, among all documents.

        Documents with the same text count as one. Those of equal scores have no order: a metric is
        its mean over all orders of them. Scores are computed in blocks: beside the vectors, memory
        does not grow with the number of documents. A document without a term of the query is not
        found where vectors are sparse.

        Args:
            queries: texts. Or these three are BEIR's dicts: {id: text}, {id: {"title", "text"}} or
                {id: text}, and {id of a query: {id of a document: grade}}.
            documents: texts.
            relevant: for each query the index of its document, or a list of indices, or {index:
                grade}; None: the document with the query's own index.
            cutoffs: how many of the nearest documents are looked at.
            batch_size: of `embed`.
            query_prompt: of `embed`, for queries.
            document_prompt: of `embed`, for documents.
            **options: `dim` or `max_terms` of `embed`.

        Returns:
            For each cutoff k "ndcg@k", "mrr@k", "recall@k" and "accuracy@k", and "map@100"; see
            `ranking_metrics`. Of sparse vectors also "query_terms" and "document_terms", the mean
            numbers of terms of a query and of a document, and "flops", the mean number of products
            for the score of a query and a document.

        Raises:
            ValueError: If `queries` or `documents` is empty, if `relevant` does not fit them, or if
                `cutoffs` has other values than integers above 0.

        Source: `flops` Paria et al. 2020, Minimizing FLOPs to Learn Efficient Sparse
        Representations, section 3.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> found = embedder.evaluate_retrieval(["A cat.", "Tax."], ["Tax.", "A cat."], [1, 0])
            >>> found["ndcg@10"], found["recall@1"]
            (1.0, 1.0)
        """
        cutoffs = checked_cutoffs(cutoffs)
        texts = judged(queries, documents, relevant)
        found = [
            compared(self, self.embed(part, prompt=prompt, batch_size=batch_size, **options))
            for part, prompt in (
                (texts.queries, query_prompt),
                (texts.documents, document_prompt),
            )
        ]
        store = store_of(self, found[1])

        def search(some: list[int], k: int):
            return zip(*store.nearest(take(found[0], some), min(k, len(store))), strict=True)

        metrics = search_metrics(search, texts.relevant, cutoffs, len(store))
        return metrics | (_term_counts(*found) if isinstance(store, Postings) else {})

    @validate_arguments
    def evaluate_similarity(
        self,
        pairs: object,
        scores: object,
        batch_size: PositiveInt | None = None,
        prompt: str | None = None,
        **options: Unpack[EmbedOptions],
    ) -> dict[str, float]:
        """Return how well the similarities of pairs of texts agree with scores.

        Args:
            pairs: `(first, second)`, a list of pairs, or a table of two columns, as for `fit`.
            scores: a number for each pair, larger for pairs that are more similar.
            batch_size: of `embed`.
            prompt: of `embed`, for all texts.
            **options: `dim` or `max_terms` of `embed`.

        Returns:
            "spearman", the correlation of the ranks, and "pearson", of the numbers.

        Raises:
            ValueError: If `pairs` is not of two columns, if `scores` does not have one finite
                number for each pair, or if all scores are equal.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> pairs = ["A cat.", "A cat.", "A cat."], ["A cat.", "A cats.", "Tax law of 1990."]
            >>> embedder.evaluate_similarity(pairs, [5.0, 4.0, 0.5])["spearman"]
            1.0
        """
        columns = [np.asarray(column) for column in COLUMNS.read(pairs)]
        if len(columns) != 2:
            raise ValueError(
                f"pairs has {len(columns)} columns of texts. Expected two, (first, second)."
            )
        named = zip(columns, ("first", "second"), strict=True)
        first, second = (checked_texts(column, name) for column, name in named)
        scores = checked_scores(scores, len(first), len(second))
        a, b = (
            compared(self, self.embed(texts, prompt=prompt, batch_size=batch_size, **options))
            for texts in (first, second)
        )
        found = scores_of_pairs(a, b, self.similarity_function)
        if np.ptp(found) == 0:
            raise ValueError(
                f"All pairs have the similarity {found[0]:g}. A correlation needs different ones."
            )
        return {"spearman": spearman(found, scores), "pearson": pearson(found, scores)}

    @validate_arguments
    def mine_negatives(
        self,
        queries: object,
        documents: object,
        relevant: Sequence[object] | None = None,
        num_negatives: PositiveInt = 3,
        skip_top: NonNegativeInt = 0,
        top_k: PositiveInt = 100,
        max_score: Number | None = None,
        absolute_margin: NonNegativeFloat | None = None,
        relative_margin: NonNegativeFloat | None = None,
        reranker: Any = None,
        batch_size: PositiveInt | None = None,
        query_prompt: str | None = "query",
        document_prompt: str | None = "document",
    ) -> tuple[list[str], list[str], list[list[str]]]:
        """Return queries, their documents and hard negatives of each, for `fit`.

            embedder.fit(embedder.mine_negatives(queries, documents, relative_margin=0.05))

        The negatives are the documents most similar to the query. A document that is relevant to an
        equal query, or equal to a relevant one or to the query, is never one. Rows with too few
        negatives are left out, and their number is logged.

        Args:
            queries: texts.
            documents: texts.
            relevant: for each query the index of its document, or a list of indices, one row for
                each; None: the document with the query's own index.
            num_negatives: of each row.
            skip_top: leave out so many of the most similar documents, which may be right too.
            top_k: how many of the most similar documents are looked at.
            max_score: negatives have at most this similarity.
            absolute_margin: negatives have at most the document's similarity less this.
            relative_margin: negatives have at most the document's similarity less this share of it.
            reranker: a `Reranker`, or an object with its `score`: its scores take the place of the
                similarities of those `top_k`.
            batch_size: of `embed`.
            query_prompt: of `embed`, for queries.
            document_prompt: of `embed`, for documents.

        Returns:
            Queries (P,), documents (P,), and negatives, a list of P lists of `num_negatives`, the
            most similar first.

        Raises:
            ValueError: If `queries` or `documents` is empty, if `relevant` does not fit them, or if
                no query has `num_negatives` negatives.

        Source: Karpukhin et al. 2020, Dense Document Retrieval, section 3.2; margins: Moreira et
        al. 2024, NV-Retriever, section 3.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> texts = ["A cat.", "A dog.", "The law."]
            >>> embedder.mine_negatives(["A cat?"], texts, [0], num_negatives=1)
            (['A cat?'], ['A cat.'], [['A dog.']])
        """
        texts = judged(queries, documents, relevant)
        a = compared(self, self.embed(texts.queries, prompt=query_prompt, batch_size=batch_size))
        b = self.embed(texts.documents, prompt=document_prompt, batch_size=batch_size)
        store = store_of(self, b := compared(self, b))

        def score(asked: np.ndarray, found: np.ndarray) -> np.ndarray:
            if reranker is None:
                return scores_of_pairs(take(a, asked), take(b, found), self.similarity_function)
            pairs = [texts.queries[i] for i in asked], [texts.documents[i] for i in found]
            return np.reshape(reranker.score(pairs), (-1,))

        return hard_negatives(
            texts,
            search=lambda k: store.nearest(
                queries_for(a, self.similarity_function), min(k, len(store))
            ),
            score=score,
            reranks=reranker is not None,
            num_negatives=num_negatives,
            skip_top=skip_top,
            top_k=top_k,
            limits=(max_score, absolute_margin, relative_margin),
        )


def check_pooled_by_mean(embedder: Any) -> None:
    """Raise an error if the parts of a text cannot have vectors of their own in a model.

    Raises:
        ValueError: If the embedder is not a TextEmbedder whose pooling is "mean".
    """
    pooling = getattr(embedder, "pooling", None)
    if embedder.record.name != "text_embedder" or pooling not in ("mean", ["mean"]):
        raise ValueError(
            f"late=True needs pooling='mean'. {type(embedder).__name__} has pooling={pooling!r}."
        )


def compared(embedder: Any, vectors: Any) -> Any:
    """Return vectors as `store_of` takes them: checked, of unit length if cosines compare them.

    Raises:
        ValueError: If a vector has a value that is NaN, infinite or too large.
    """
    if isinstance(vectors, list):
        return vectors
    if not isinstance(vectors, np.ndarray):
        return normalized_for(vectors, embedder.similarity_function)
    check_finite(vectors, "vectors")
    return unit_rows(vectors) if embedder.similarity_function == "cosine" else vectors


def store_of(embedder: Any, vectors: Any) -> TokenVectors | Float32Vectors | Postings:
    """Return the store that searches exactly among vectors, as `compared` returns them."""
    if isinstance(vectors, list):
        return TokenVectors.of(vectors, "float32")
    if isinstance(vectors, np.ndarray):
        return Float32Vectors.of(vectors, embedder.similarity_function)
    return Postings.of(vectors)


def take(vectors: Any, indices: Sequence[int]) -> Any:
    """Return some of the vectors."""
    return [vectors[i] for i in indices] if isinstance(vectors, list) else vectors[indices]


def similarities(a: Any, b: Any, function: str) -> np.ndarray:
    """Return the similarity of each of some vectors to each of others, (N, M) float32."""
    if isinstance(a, list):
        return max_sim(queries_for(a, function), b)
    if isinstance(a, np.ndarray):
        return similarity_matrix(a, b, function)
    a, b = (normalized_for(x, function) for x in (a, b))
    return (a @ b.T).toarray()


def scores_of_pairs(a: Any, b: Any, function: str) -> np.ndarray:
    """Return the similarity of each vector to the one in the same row, (P,) float32."""
    if isinstance(a, list):
        a = queries_for(a, function)
        return np.array([max_sim([x], [y])[0, 0] for x, y in zip(a, b, strict=True)])
    if isinstance(a, np.ndarray):
        return pair_scores(a, b, function).astype("float32")
    return np.asarray(a.multiply(b).sum(axis=1)).ravel()


def _term_counts(queries: csr_array, documents: csr_array) -> dict[str, float]:
    """Return how many terms sparse vectors have, and how many products a score takes."""
    shares = [(rows > 0).mean(axis=0) for rows in (queries, documents)]
    return {
        "query_terms": queries.nnz / queries.shape[0],
        "document_terms": documents.nnz / documents.shape[0],
        "flops": float(shares[0] @ shares[1]),
    }
