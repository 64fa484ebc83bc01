"""Convert texts to examples for sparse encoders, with an optional query encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.serializable import serializable
from encoder_zoo.tasks.embedding.text_embedder_preprocessor import TextEmbedderPreprocessor
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

if TYPE_CHECKING:
    from encoder_zoo.encoders.family import Family
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.presets.files.folder_files import FolderFiles
    from encoder_zoo.presets.formats.preset_task import FolderFormat
    from encoder_zoo.tasks.embedding.term_table import TermTable


def _load_table_class() -> type[TermTable]:
    from encoder_zoo.tasks.embedding.term_table import TermTable

    return TermTable


def _read_tokenizer(files: FolderFiles, family: Family) -> Tokenizer:
    from encoder_zoo.presets.loading import load_tokenizer_files

    return load_tokenizer_files(files, family)


@serializable
class SparseEncoderPreprocessor(TextEmbedderPreprocessor):
    """Convert texts to `[CLS] text [SEP]`, as in `TextEmbedderPreprocessor`.

    For rows with several texts, the prompt "query" is always used for the first text, and the
    prompt "document" for all other texts.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "query", ":"]
        >>> preprocessor = SparseEncoderPreprocessor(BertTokenizer(tokens), max_length=16)
        >>> preprocessor(["hello"])["token_ids"].numpy().tolist()
        [[2, 5, 3]]
    """

    task_name = "sparse_encoder"
    truncation_advice = Preprocessor.truncation_advice
    _query_encoder = None  # `TermTable` or `SparseEncoder` that embeds the queries

    @staticmethod
    def get_folder_format() -> FolderFormat:
        """Return the folder format in which presets are saved and loaded."""
        from encoder_zoo.presets.formats.sparse_folder import SparseFolderFormat

        return SparseFolderFormat(_load_table_class, _read_tokenizer)

    def attach(self, task) -> None:
        super().attach(task)
        self._query_encoder = task.query_encoder

    def is_query(self, prompt: str | None) -> bool:
        """Return whether the separate query encoder embeds texts with this prompt."""
        name = self.default_prompt if prompt is None else prompt
        return self._query_encoder is not None and name == "query"

    def encode_texts(self, texts: xp.Tensor, prompt: str | None) -> dict:
        if not self.is_query(prompt):
            return super().encode_texts(texts, prompt)
        text = self.get_prompt_text(prompt)
        texts = xp.strings.join([text, texts]) if text else texts
        examples = self._query_encoder.encode_queries(texts)
        if self.sequence_length:
            examples["token_ids"] = examples["token_ids"][:, : self.sequence_length]
        return examples

    def _make_training_inputs(self, columns: tuple, y) -> tuple:
        if len(columns) == 1 and y is not None:
            raise ValueError(
                "`x` has one column of texts, but `y` has labels for pairs. Expected x=(queries, "
                "documents), or x=(queries, documents, negatives) with the scores of a teacher as "
                "`y`."
            )
        return super()._make_training_inputs(columns, y)

    def _get_row_prompts(self, prompt: str | None, symmetric: bool) -> tuple[str, str]:
        return "query", "document"
