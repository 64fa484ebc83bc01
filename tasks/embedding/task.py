"""The task of text embeddings: one vector for each text, near those of texts with like meaning.

Comment letters: B batch, N texts, K further texts of an example, L sequence, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Unpack

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.layer_arguments import LayerArguments
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.tasks import losses
from encoder_zoo.tasks.base.task import Task, TinyData
from encoder_zoo.tasks.embedding import inference
from encoder_zoo.tasks.embedding.pooling import (
    Projection,
    checked_modes,
    modes_of,
    pool,
    to_unit_length,
)
from encoder_zoo.tasks.embedding.preprocessor import TextEmbedderPreprocessor
from encoder_zoo.tasks.embedding.presets import EmbedderPresets
from encoder_zoo.tasks.embedding.retrieval import VectorRetrieval
from encoder_zoo.tasks.embedding.text_pairs import PAIRS, SCORES, VECTORS, LearnsFromPairs
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE
from encoder_zoo.tasks.retrieval.similarity import Similarity, unit_rows
from encoder_zoo.tasks.training.sources import check_preprocessor

DEFAULT_LOSSES = {
    PAIRS: losses.InfoNCE,
    SCORES: losses.CoSENT,
    VECTORS: losses.VectorDistillation,
}


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TextEmbedder(VectorRetrieval, EmbedderPresets, LearnsFromPairs, Task):
    """Embed texts: from the vectors of a text's tokens to one vector, of unit length by default.

        embedder = ez.TextEmbedder.from_preset("all_minilm_l6_en_uncased")
        embedder.embed(["a text", "another"])  # (2, 384)
        embedder.fit((queries, documents))  # learns to put each query near its document
        index = embedder.index(documents)
        index.search("How do I reset it?")

    `from_preset` opens folders of sentence-transformers, of all its versions, with their pooling,
    dense layers and prompts; and any encoder, whose pooling is an argument.

    Args:
        backbone: any `Backbone`.
        preprocessor: for raw text.
        pooling: "mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean" or "lasttoken", as in
            sentence-transformers; or a list of these, whose vectors are concatenated.
        dense: layers after pooling, each a dict of `units` and, if they differ from the defaults
            of `Projection`, `activation`, `use_bias`, `residual`.
        normalize: whether vectors get unit length.
        dim: `embed` keeps so many leading numbers of each vector, see there; None keeps all.
        similarity_function: "cosine", "dot", "euclidean" or "manhattan".

    `fit` takes x in these forms, and y where there are scores:

    - pairs `(queries, documents)`: the loss (`InfoNCE`) puts each text near its partner and away
      from the others of the batch. `(queries, documents, negatives)` adds texts to stay away
      from, one column, several, or a list of equally many in every row.
    - pairs and their scores, `fit((first, second), scores)`: the loss (`CoSENT`) orders pairs.
    - texts alone: each is its own partner, under another dropout (SimCSE, Gao et al. 2021).
    - texts and vectors, `fit(texts, teacher.embed(texts))`: it learns them (`VectorDistillation`).

    The first text of a row gets the prompt "query" and the others "document"; pairs with a score
    or a vector each, which need not be query and document, get the default prompt.
    `tf.data.Dataset.sample_from_datasets([first.batch(64), second.batch(64)])` mixes datasets, each
    batch from one of them.

    Call arguments:
        inputs: the preprocessor's outputs.

    Returns:
        (B, D) float32; of inputs with candidates (B, 1 + K, D).

    Raises:
        ValueError: "pooling is 'average'. Expected one of cls, max, mean, ..."

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

    task_name = "text_embedder"
    pipeline_tag = "sentence-similarity"
    preprocessor_class = TextEmbedderPreprocessor
    text_method = "embed"
    default_losses = DEFAULT_LOSSES

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
        self._check_dim(dim)
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
        """Return the width of the model's vectors, before they are shortened to `dim`."""
        if self.dense_layers:
            return self.dense_layers[-1].units
        return self.backbone.hidden_dim * len(modes_of(self.pooling))

    def _check_dim(self, dim: int | None) -> None:
        if dim is not None and dim > self.embedding_dim:
            raise ValueError(f"dim is {dim}. Expected at most {self.embedding_dim}.")

    def logits_of(self, encoded, inputs, training=None):
        """Return the vectors (B, D), of the backbone's outputs."""
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
    ) -> np.ndarray:
        """Return the vector of each text.

        Args:
            texts: a text, or a list, array, tensor or column of texts.
            prompt: put before every text: the name of one of the model's prompts, such as "query"
                or "document" ("passage" and "corpus" are the same), which mean none where the model
                has none; or the text of a prompt, such as "query: "; None is the model's default.
            dim: keep so many leading numbers, for models trained that way (Matryoshka), and
                normalize again if the model normalizes; None is the model's `dim`.
            batch_size: default 32.
            windows: "mean" reads texts that are longer than the model takes in parts of its
                length, and returns the mean of their vectors, each weighted by its tokens; None
                reads the beginning, and logs how many texts were longer.

        Returns:
            (N, D) float32, in the order of the texts; of a single text (D,).

        Raises:
            ValueError: "Row 3 of texts is empty. ...", "There is no prompt 'qeury'. ...", "dim is
                500. Expected at most 384."

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> embedder.embed(["A text.", "Another one."]).shape, embedder.embed("A text.").shape
            ((2, 256), (256,))
        """
        if isinstance(texts, str | bytes):
            return self.embed([texts], prompt, dim, batch_size, windows)[0]
        self._check_dim(dim)
        check_preprocessor(self, texts)
        embed = inference.mean_of_windows if windows else inference.embed
        vectors = embed(self, inference.only_column(texts), prompt, batch_size or BATCH_SIZE)
        dim = dim or self.dim
        if dim is None or dim == vectors.shape[1]:
            return vectors
        return self.scaled(np.ascontiguousarray(vectors[:, :dim]))

    def scaled(self, vectors: np.ndarray) -> np.ndarray:
        """Return vectors (N, D) as the model scales them: of unit length, if it normalizes."""
        return unit_rows(vectors) if self.normalize else vectors

    @validate_arguments
    def signatures(self, dim: PositiveInt | None = None) -> dict[str, Callable]:
        """Return `embed` for exports: of "text" with the default prompt, and as "query" and
        "document" with theirs.

        Args:
            dim: see `embed`.

        Returns:
            Functions whose result is "embedding" (N, D).
        """
        self._check_dim(dim)
        return inference.signatures(self, dim or self.dim or self.embedding_dim)

    @classmethod
    def tiny_data(cls) -> TinyData:
        x, y = ["a b ab", "c", "c d e a b", "p"], np.cos(np.arange(64.0)).reshape(4, 16)
        return TinyData({"pooling": ["mean", "max"]}, x, y)
