"""MPNet's tokenizer: BERT's, with RoBERTa's special tokens."""

from __future__ import annotations

from typing import ClassVar

import keras

from encoder_zoo.encoders.tokenizers.wordpiece import BertTokenizer


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MPNetTokenizer(BertTokenizer):
    """Tokenizes texts by WordPiece as `BertTokenizer` does, with RoBERTa's special tokens.

    Two end tokens separate the texts of a pair. The arguments are those of `BertTokenizer`.

    Source: Song et al. 2020, MPNet, section 3 and released code.

    Example:
        >>> words = ["un", "##affable"]
        >>> tokenizer = MPNetTokenizer(["<s>", "<pad>", "</s>", "[UNK]", "<mask>", *words])
        >>> tokenizer.tokenize(["Unaffable?"]).to_list()
        [[5, 6, 3]]
    """

    lstrip_mask = True
    defaults: ClassVar = {
        "start_token": "<s>",
        "end_token": "</s>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "unknown_token": "[UNK]",
        "uses_segments": False,
        "pair_separators": 2,
    }

    def _settings(self) -> dict:
        settings = super()._settings()
        own = {"tokenizer_class": "MPNetTokenizer"} if self.clean_text else {}
        return {**settings, **own}
