"""EuroBERT's tokenizer, which is Llama 3's: byte-level BPE of words that another pattern finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import keras

from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.byte_bpe import RobertaTokenizer
    from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
    from encoder_zoo.encoders.tokenizers.graphs.graph import TokenizerGraph


PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}

# Puts a space before what does not begin with one.
SPACE_BEFORE = {
    "type": "Metaspace",
    "replacement": " ",
    "prepend_scheme": "always",
    "split": False,
}


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EuroBertTokenizer(RobertaTokenizer):
    """Tokenizes texts by byte-level BPE as Llama 3 does, as EuroBERT checkpoints were trained.

    Words are found by another pattern than RoBERTa's: numbers have at most three digits. A word
    that is a token is that token, whatever the merges make of it. The end token pads. Spans keep
    the spaces of their tokens. The arguments are those of `RobertaTokenizer`.

    Source: Boizard et al. 2025, EuroBERT, section 2.1; Dubey et al. 2024, The Llama 3 Herd of
        Models, section 3.2.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.files.merges import byte_alphabet
        >>> tokens = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", *byte_alphabet(), "12"]
        >>> vocabulary = {token: i for i, token in enumerate(tokens)}
        >>> tokenizer = EuroBertTokenizer(vocabulary, ["1 2"])
        >>> [tokenizer.id_to_token(i) for i in tokenizer.tokenize("3451212")]
        ['3', '4', '5', '12', '1', '2']
    """

    trims_spans = False
    defaults: ClassVar = {
        "start_token": "<|begin_of_text|>",
        "end_token": "<|end_of_text|>",
        "pad_token": "<|end_of_text|>",
        "mask_token": "<|mask|>",
        "unknown_token": "<|end_of_text|>",
        "pair_separators": 1,
    }

    def _make_graph(self) -> TokenizerGraph:
        from encoder_zoo.encoders.tokenizers.graphs.llama_bpe import LlamaBPEGraph

        return LlamaBPEGraph(self)

    @classmethod
    def _from_files(cls, files: TokenizerFiles, **template) -> EuroBertTokenizer:
        # The library would put a space before every word, not only before the first.
        if any(step.get("add_prefix_space") for step in files.steps("pre_tokenizer")):
            raise files.mismatch("pre_tokenizer has add_prefix_space", "none")
        return super()._from_files(files, **template)

    def _vocabulary_files(self) -> dict[str, str]:
        return {}

    def _settings(self) -> dict:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "attention_mask"],
        }

    def _steps(self) -> dict:
        steps = super()._steps()
        byte_level = {**steps["pre_tokenizer"], "use_regex": False}
        return {
            **steps,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, byte_level]},
            "model": {**steps["model"], "ignore_merges": True},
        }

    def _library_steps(self, as_words: bool = False) -> dict:
        steps = super()._library_steps()
        if as_words:
            steps["pre_tokenizer"]["pretokenizers"] = [
                SPACE_BEFORE,
                *steps["pre_tokenizer"]["pretokenizers"],
            ]
        return steps
