"""Texts to examples for sparse vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from encoder_zoo.presets.formats import sparse_folder
from encoder_zoo.tasks.embedding.preprocessor import TextEmbedderPreprocessor
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

if TYPE_CHECKING:
    from encoder_zoo.presets.formats.checkpoint import Checkpoint
    from encoder_zoo.presets.opening import TokenizerPreset


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SparseEncoderPreprocessor(TextEmbedderPreprocessor):
    """Texts to `[CLS] text [SEP]`, with the arguments and results of `TextEmbedderPreprocessor`.

    Of rows of several texts the first always gets the prompt "query", the others "document".

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "query", ":"]
        >>> preprocessor = SparseEncoderPreprocessor(BertTokenizer(tokens), max_length=16)
        >>> preprocessor(["hello"])["token_ids"].numpy().tolist()
        [[2, 5, 3]]
    """

    task_name = "sparse_encoder"
    truncation_advice = Preprocessor.truncation_advice

    @classmethod
    def arguments_from_files(cls, preset: Checkpoint | TokenizerPreset, tokenizer) -> dict:
        return sparse_folder.preprocessor_arguments(preset, tokenizer)

    def _prompts_of_rows(self, prompt: str | None, symmetric: bool) -> tuple[str, str]:
        return "query", "document"
