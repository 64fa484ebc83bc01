"""BPE tokenizer for Gemma and mmBERT, with byte fallback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from encoder_zoo.common.configuration import get_argument_defaults
from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.encoders.tokenizers import GEMMA_BPE
from encoder_zoo.encoders.tokenizers.files.reading import SPECIAL_TOKENS, TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.sentencepiece_json import merge_scores, read_bpe_model
from encoder_zoo.encoders.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from encoder_zoo.encoders.tokenizers.steps import KEPT_WORDS, REPLACED_SPACE, SPACE
from encoder_zoo.encoders.tokenizers.token_format import TokenFormat


@serializable
class GemmaTokenizer(SentencePieceTokenizer):
    """BPE tokenizer for Gemma and mmBERT.

    Spaces are replaced by "▁". No other normalization is applied to texts.

    Args:
        vocabulary: List of tokens in the order of their ids, with "▁" instead of spaces.
        merges: List of "a b" pairs in the order in which they were learned.
        byte_fallback: Boolean. Whether to encode characters without a token as the byte tokens
            "<0x00>" to "<0xFF>". Defaults to True.
        **options: Other arguments for `Tokenizer`.

    Raises:
        ValueError: If a merge does not join two tokens to a third token.

    Source: Gemma Team, "Gemma" (2024), section 2; Marone et al., "mmBERT" (2025), section 3.1.

    Example:
        >>> tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", "a", "b", "▁a"]
        >>> tokenizer = GemmaTokenizer(tokens, ["▁ a"], byte_fallback=False)
        >>> tokenizer.tokenize(["a a", "  ab"]).to_list()
        [[6, 8], [5, 8, 7]]
    """

    kind = GEMMA_BPE

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Sequence[str],
        byte_fallback: bool = True,
        **options,
    ):
        roles = {**get_argument_defaults(type(self)), **options}
        super().__init__(
            vocabulary,
            merge_scores(vocabulary, merges, [roles[name] for name in SPECIAL_TOKENS]),
            byte_fallback=byte_fallback,
            merges=merges,
            remove_extra_whitespaces=False,
            **options,
        )
        self.token_format = self.token_format._replace(clean_up=TokenFormat().clean_up)

    def get_config(self) -> dict:
        """Return the constructor arguments, except for arguments with fixed values."""
        fixed = ("scores", "precompiled_charsmap", "remove_extra_whitespaces")
        return {name: v for name, v in super().get_config().items() if name not in fixed}

    @classmethod
    def _read(cls, files: TokenizerFiles, roles: Mapping[str, str]) -> dict:
        if "tokenizer.json" not in files:
            raise FileNotFoundError(
                f"{files.folder} has no tokenizer.json, which contains the vocabulary. Download "
                "this file."
            )
        tokens, merges, _ = read_bpe_model(files, roles)
        byte_fallback = bool(files.get_part("model").get("byte_fallback"))
        return {"vocabulary": tokens, "merges": merges, "byte_fallback": byte_fallback}

    def _list_normalizers(self) -> list[dict]:
        return [REPLACED_SPACE]

    def _make_steps(self) -> dict:
        spaces = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
        decoders = [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]
        return {
            **super()._make_steps(),
            "normalizer": REPLACED_SPACE,
            "pre_tokenizer": KEPT_WORDS,
            "decoder": {"type": "Sequence", "decoders": decoders},
        }

    def _make_sentencepiece_model(self) -> None:
        """Return None, since the model can only be stored in tokenizer.json."""
